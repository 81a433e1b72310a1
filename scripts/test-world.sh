#!/usr/bin/env bash
# Tests with what stands around a streaming engine, as it really is: a Kafka broker and a schema registry from Maven
# Central, a server of S3 and delta-rs from PyPI, and a Postgres server, which are started for them. `scripts/test-world.sh NAME` runs the tests with that in
# their names. With KAFKA_TLS=1 the client of Kafka has TLS and SCRAM, and is tested with them: OpenSSL is compiled once,
# which takes minutes.
#
# Where Java or Maven cannot be had, or the broker cannot be fetched, the script says NOT RUN and why of the tests with
# a broker, and runs the others; the same holds for the registry, for S3 and for Postgres. Its status is 77 if some were not run
# and none has failed.
set -euo pipefail
source "$(dirname "$0")/env.sh"
source "$(dirname "$0")/apt.sh"
source "$(dirname "$0")/launched.sh"
cd "$root"

# A port that is followed by a number of free ones. None of them is one that the system gives to clients: while a server is down,
# a client with its port would keep it from starting again.
free_port() {
  python3 - "$1" <<'PYTHON'
import random, socket, sys
more = int(sys.argv[1])
with open("/proc/sys/net/ipv4/ip_local_port_range") as given:
    least = int(given.read().split()[0])
while True:
    port = random.randrange(least // 2, least - more)
    try:
        sockets = [socket.create_server(("127.0.0.1", port + at)) for at in range(more + 1)]
        print(port); break
    except OSError:
        pass
PYTHON
}

start_broker() {
  command -v java >/dev/null && command -v mvn >/dev/null ||
    packages_or_not_run openjdk-17-jre-headless maven
  said=$(scripts/kafka.sh fetch 2>&1) || not_run "cannot fetch the broker: $(grep -m 1 . <<<"$said")"
  build_millstream
  KAFKA_DATA=$(mktemp -d)
  export KAFKA_DATA
  trap 'scripts/kafka.sh kill; rm -rf "$KAFKA_DATA"' EXIT
  say "starting the broker"
  port=$(free_port 3)
  MILLSTREAM_KAFKA=$(scripts/kafka.sh start "$port")
  export MILLSTREAM_KAFKA MILLSTREAM_BIN=$millstream MILLSTREAM_KAFKA_SCRIPT=$root/scripts/kafka.sh
  tls=()
  [ -z "${KAFKA_TLS:-}" ] || tls=(--features millstream-kafka/tls)
}

with_kafka() {
  what="the tests with a broker"
  start_broker
  cargo test --release --workspace --exclude millstream-postgres "${tls[@]}" --test world -- --test-threads 1 \
    --skip tables:: "$@"
}

with_kafka_and_postgres() {
  what="the tests with a broker and a Postgres server"
  [[ $# = 0 || $1 = *tables* || $1 = nothing_is_lost* ]] || return 0
  packages_or_not_run postgresql
  start_broker
  start_postgres
  trap 'scripts/kafka.sh kill; scripts/postgres.sh kill; rm -rf "$KAFKA_DATA" "$POSTGRES_DATA"' EXIT
  cargo test --release --workspace --exclude millstream-postgres "${tls[@]}" --test world -- --test-threads 1 tables::
}

with_registry() {
  what="the tests with a schema registry"
  [[ $# = 0 || $1 = registry* ]] || return 0
  command -v java >/dev/null && command -v mvn >/dev/null ||
    packages_or_not_run openjdk-17-jre-headless maven
  said=$(scripts/registry.sh fetch 2>&1) || not_run "cannot fetch the registry: $(grep -m 1 . <<<"$said")"
  trap 'scripts/registry.sh stop' EXIT
  say "starting the schema registry"
  MILLSTREAM_REGISTRY=$(scripts/registry.sh start "$(free_port 0)")
  export MILLSTREAM_REGISTRY
  cargo test --release --workspace --test connectors -- registry::a_real_registry
}

with_s3() {
  what="the tests with a server of S3"
  [[ $# = 0 || $1 = *s3* || $1 = *bucket* ]] || return 0
  python3 -c 'import ensurepip' 2>/dev/null || packages_or_not_run python3-venv
  said=$(scripts/s3.sh fetch 2>&1) || not_run "cannot fetch the server: $(grep -m 1 . <<<"$said")"
  trap 'scripts/s3.sh stop' EXIT
  say "starting a server of S3"
  MILLSTREAM_S3=$(scripts/s3.sh start "$(free_port 0)")
  export MILLSTREAM_S3
  cargo test --release --workspace --test connectors -- real_s3::
  cargo test --release --workspace --test program -- of_a_real_server
}

with_deltalake() {
  what="the tests with delta-rs"
  [[ $# = 0 || $1 = *delta* ]] || return 0
  python3 -c 'import ensurepip' 2>/dev/null || packages_or_not_run python3-venv
  MILLSTREAM_DELTALAKE=$(scripts/deltalake.sh fetch 2>"${TMPDIR:-/tmp}/millstream-deltalake-$UID") ||
    not_run "cannot fetch it: $(grep -m 1 . "${TMPDIR:-/tmp}/millstream-deltalake-$UID")"
  export MILLSTREAM_DELTALAKE
  cargo test --release --workspace --test connectors -- real_delta::
}

start_postgres() {
  build_millstream
  POSTGRES_DATA=$(mktemp -d)
  export POSTGRES_DATA
  trap 'scripts/postgres.sh kill; rm -rf "$POSTGRES_DATA"' EXIT
  say "starting Postgres"
  port=$(free_port 0)
  MILLSTREAM_POSTGRES=$(scripts/postgres.sh start "$port")
  MILLSTREAM_POSTGRES_SCRIPT=$root/scripts/postgres.sh
  MILLSTREAM_POSTGRES_ROOT=$POSTGRES_DATA/root.pem
  export MILLSTREAM_POSTGRES MILLSTREAM_POSTGRES_SCRIPT MILLSTREAM_POSTGRES_ROOT MILLSTREAM_BIN=$millstream
}

with_postgres() {
  what="the tests with a Postgres server"
  packages_or_not_run postgresql
  start_postgres
  cargo test --release --workspace --exclude millstream-kafka --test world -- --test-threads 1 "$@"
}

# Each part has a shell of its own, which ends with its first failure: bash ignores them where a status is asked for.
status=0
for part in with_kafka with_kafka_and_postgres with_registry with_s3 with_deltalake with_postgres; do
  set +e
  (
    set -e
    "$part" "$@"
  )
  ended=$?
  set -e
  case $ended in
    0) ;;
    77) [ "$status" != 0 ] || status=77 ;;
    *) status=$ended ;;
  esac
done
exit "$status"
