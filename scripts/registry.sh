#!/usr/bin/env bash
# A real schema registry (Apicurio, in memory, loopback only) from Maven Central, for tests.
#
#   registry.sh fetch          its jars into $REGISTRY_HOME, once
#   registry.sh start [PORT]   starts it, and returns when it answers; prints its address
#   registry.sh stop           SIGTERM, then SIGKILL after 10 s
#
# Environment: REGISTRY_HOME (default ~/.cache/millstream-registry), REGISTRY_VERSION.
set -euo pipefail
version=${REGISTRY_VERSION:-2.6.13.Final}
home=${REGISTRY_HOME:-$HOME/.cache/millstream-registry}/$version
pidfile=${TMPDIR:-/tmp}/millstream-registry-$UID.pid
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
    -Dquarkus.http.port="$port" -jar "$home/$jar" >"$home/log" 2>&1 &
  echo $! >"$pidfile"
  address=http://127.0.0.1:$port/apis/ccompat/v7
  for _ in $(seq 1 240); do
    if curl -fsS "$address/subjects" >/dev/null 2>&1; then
      echo "$address"
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
  sed -n '2,9p' "$0" >&2
  exit 2
  ;;
esac
