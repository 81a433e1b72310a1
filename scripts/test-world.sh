#!/usr/bin/env bash
# Tests with what stands around a streaming engine, as it really is: a Kafka broker from Maven Central and a Postgres
# server, which are started for them. `scripts/test-world.sh NAME` runs the tests with that in their names. With
# KAFKA_TLS=1 the client of Kafka has TLS and SCRAM, and is tested with them: OpenSSL is compiled once, which takes minutes.
#
# Where Java or Maven cannot be had, or the broker cannot be fetched, the script says NOT RUN and why, and its status
# is 77.
set -euo pipefail
source "$(dirname "$0")/env.sh"
source "$(dirname "$0")/apt.sh"
source "$(dirname "$0")/launched.sh"
cd "$root"
what="the tests with a broker"

command -v java >/dev/null && command -v mvn >/dev/null ||
  packages_or_not_run openjdk-17-jre-headless maven
said=$(scripts/kafka.sh fetch 2>&1) || not_run "cannot fetch the broker: $(grep -m 1 . <<<"$said")"

packages_or_not_run postgresql

build_millstream
KAFKA_DATA=$(mktemp -d)
POSTGRES_DATA=$(mktemp -d)
export KAFKA_DATA POSTGRES_DATA
trap 'scripts/kafka.sh kill; scripts/postgres.sh kill; rm -rf "$KAFKA_DATA" "$POSTGRES_DATA"' EXIT
# A port with four free ones behind it. None of them is one that the system gives to clients: while a server is down,
# a client with its port would keep it from starting again.
port=$(python3 -c '
import random, socket
with open("/proc/sys/net/ipv4/ip_local_port_range") as given:
    least = int(given.read().split()[0])
while True:
    port = random.randrange(least // 2, least - 4)
    try:
        sockets = [socket.create_server(("127.0.0.1", port + more)) for more in range(5)]
        print(port); break
    except OSError:
        pass')
say "starting the broker"
MILLSTREAM_KAFKA=$(scripts/kafka.sh start "$port")
export MILLSTREAM_KAFKA MILLSTREAM_BIN=$millstream MILLSTREAM_KAFKA_SCRIPT=$root/scripts/kafka.sh
MILLSTREAM_POSTGRES=$(scripts/postgres.sh start "$((port + 4))")
MILLSTREAM_POSTGRES_SCRIPT=$root/scripts/postgres.sh
MILLSTREAM_POSTGRES_ROOT=$POSTGRES_DATA/root.pem
export MILLSTREAM_POSTGRES MILLSTREAM_POSTGRES_SCRIPT MILLSTREAM_POSTGRES_ROOT
tls=()
[ -z "${KAFKA_TLS:-}" ] || tls=(--features millstream-kafka/tls)
cargo test --release --workspace "${tls[@]}" --test world -- --test-threads 1 "$@"
