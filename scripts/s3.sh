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
version=${MOTO_VERSION:-5.2.1}
home=${S3_HOME:-$HOME/.cache/millstream-s3}/$version
pidfile=${TMPDIR:-/tmp}/millstream-s3-$UID.pid

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
  "$home/bin/moto_server" -H 127.0.0.1 -p "$port" >"$home/log" 2>&1 </dev/null &
  echo $! >"$pidfile"
  for _ in $(seq 1 240); do
    # Its requests are checked by no signature, but one has to be there.
    if curl -fsS -X PUT -H "Authorization: AWS4-HMAC-SHA256 Credential=a/20200101/us-east-1/s3/aws4_request" \
      "http://127.0.0.1:$port/bucket" >/dev/null 2>&1; then
      echo "http://127.0.0.1:$port"
      exit 0
    fi
    kill -0 "$(cat "$pidfile")" 2>/dev/null || break
    sleep 0.5
  done
  tail -n 20 "$home/log" >&2
  exit 1
  ;;
stop)
  [ -f "$pidfile" ] || exit 0
  pid=$(cat "$pidfile")
  kill "$pid" 2>/dev/null || true
  for _ in $(seq 1 100); do
    kill -0 "$pid" 2>/dev/null || break
    sleep 0.1
  done
  kill -9 "$pid" 2>/dev/null || true
  rm -f "$pidfile"
  ;;
*)
  sed -n '2,10p' "$0" >&2
  exit 2
  ;;
esac
