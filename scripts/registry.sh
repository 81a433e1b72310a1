#!/usr/bin/env bash
# A real schema registry (Apicurio, in memory, loopback only) from Maven Central, for tests.
#
#   registry.sh fetch          its jars into $REGISTRY_HOME, once
#   registry.sh start [PORT]   starts it, and returns when it answers; prints its address
#   registry.sh stop           SIGTERM, then SIGKILL after 10 s
#
# Environment: REGISTRY_HOME (default ~/.cache/millstream-registry), REGISTRY_VERSION.
set -euo pipefail
source "$(dirname "$0")/served.sh"
version=${REGISTRY_VERSION:-2.6.13.Final}
home=${REGISTRY_HOME:-$HOME/.cache/millstream-registry}/$version
pidfile=${TMPDIR:-/tmp}/millstream-registry-$UID.pid
log=$home/log
jar=apicurio-registry-app-$version-runner.jar

case ${1:-} in
fetch)
  [ -f "$home/$jar" ] && exit 0
  mkdir -p "$home"
  mvn -B -q dependency:copy -DoutputDirectory="$home" \
    -Dartifact="io.apicurio:apicurio-registry-app:$version:tar.gz:all"
  tar xzf "$home/apicurio-registry-app-$version-all.tar.gz" -C "$home"
  rm "$home/apicurio-registry-app-$version-all.tar.gz"
  ;;
start)
  port=${2:-18081}
  java -Xmx256m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dquarkus.http.host=127.0.0.1 \
    -Dquarkus.http.port="$port" -jar "$home/$jar" >"$log" 2>&1 &
  echo $! >"$pidfile"
  address=http://127.0.0.1:$port/apis/ccompat/v7
  await_server curl -fsS "$address/subjects"
  echo "$address"
  ;;
stop) stop_server ;;
*)
  sed -n '2,9p' "$0" >&2
  exit 2
  ;;
esac
