#!/usr/bin/env bash
# A server with the protocol of S3 (moto, in memory, loopback only) from PyPI, for tests. It checks conditions of puts and
# of uploads in parts, and no signatures.
#
#   s3.sh fetch          installs it into $S3_HOME, once
#   s3.sh start [PORT]   starts it with an empty bucket `bucket`, and returns when it answers; prints its address
#   s3.sh stop           SIGTERM, then SIGKILL after 10 s
#
# Environment: S3_HOME (default ~/.cache/millstream-s3), MOTO_VERSION.
set -euo pipefail
source "$(dirname "$0")/served.sh"
version=${MOTO_VERSION:-5.2.1}
home=${S3_HOME:-$HOME/.cache/millstream-s3}/$version
pidfile=${TMPDIR:-/tmp}/millstream-s3-$UID.pid
log=$home/log

case ${1:-} in
fetch)
  [ -f "$home/installed" ] && exit 0
  rm -rf "$home"
  python3 -m venv "$home"
  "$home/bin/pip" install -q --disable-pip-version-check "moto[s3,server]==$version"
  touch "$home/installed"
  ;;
start)
  port=${2:-15000}
  "$home/bin/moto_server" -H 127.0.0.1 -p "$port" >"$log" 2>&1 </dev/null &
  echo $! >"$pidfile"
  # It checks no signature, and wants one.
  signed="Authorization: AWS4-HMAC-SHA256 Credential=a/20200101/us-east-1/s3/aws4_request"
  await_server curl -fsS -X PUT -H "$signed" "http://127.0.0.1:$port/bucket"
  echo "http://127.0.0.1:$port"
  ;;
stop) stop_server ;;
*)
  sed -n '2,10p' "$0" >&2
  exit 2
  ;;
esac
