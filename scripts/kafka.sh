#!/usr/bin/env bash
# A Kafka broker of one node on this machine, from Maven Central, for tests: KRaft, loopback alone, data in a folder
# of its own.
#
#   scripts/kafka.sh fetch          fetches the jars, once
#   scripts/kafka.sh start [PORT]   makes a fresh data folder and starts; returns when the broker answers
#   scripts/kafka.sh restart        starts again with the data that are there
#   scripts/kafka.sh stop           ends it; after 10 s by force
#   scripts/kafka.sh kill           ends it as a crash does
#
# PORT is without a password, PORT+2 asks for one in clear (PLAIN). With KAFKA_TLS=1 PORT+3 is TLS with SCRAM; the
# data folder has its certificate, cert.pem, and another one that is not its own, other.pem.
#
# KAFKA_AUTO_CREATE=true has it make topics that are asked for, with 4 partitions, and KAFKA_JAVA gives options of Java.
# KAFKA_HOME is where the jars are kept, KAFKA_DATA the data folder.
set -euo pipefail
version=${KAFKA_VERSION:-4.1.0}
home=${KAFKA_HOME:-$HOME/.cache/millstream-kafka}/$version
data=${KAFKA_DATA:-${TMPDIR:-/tmp}/millstream-kafka-$UID}
pid_file=$data/pid

die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}
runs() { [ -f "$pid_file" ] && kill -0 "$(cat "$pid_file")" 2>/dev/null; }

fetch() {
  [ ! -f "$home/complete" ] || return 0
  mkdir -p "$home"
  cat >"$home/pom.xml" <<POM
<project xmlns="http://maven.apache.org/POM/4.0.0">
 <modelVersion>4.0.0</modelVersion>
 <groupId>millstream</groupId><artifactId>broker</artifactId><version>1</version><packaging>pom</packaging>
 <dependencies><dependency>
  <groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>$version</version>
 </dependency></dependencies>
</project>
POM
  mvn -B -q -f "$home/pom.xml" dependency:copy-dependencies -DoutputDirectory="$home/libs" -DincludeScope=runtime
  touch "$home/complete"
}

# A certificate of 127.0.0.1 that nobody has signed: NAME.p12, and NAME.pem without its key.
certificate() {
  local store=(-keystore "$data/$1.p12" -storetype PKCS12 -storepass of-tests -alias broker)
  keytool -genkeypair "${store[@]}" -keyalg EC -groupname secp256r1 -dname CN=127.0.0.1 -ext san=ip:127.0.0.1 \
    -validity 2
  keytool -exportcert -rfc "${store[@]}" -file "$data/$1.pem"
}

settings() {
  local port=$1 tls=
  [ -z "${KAFKA_TLS:-}" ] || tls=,SASL_SSL://127.0.0.1:$((port + 3))
  cat <<CONF
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=127.0.0.1:$((port + 1))
listeners=PLAINTEXT://127.0.0.1:$port,CONTROLLER://127.0.0.1:$((port + 1)),SASL_PLAINTEXT://127.0.0.1:$((port + 2))$tls
advertised.listeners=PLAINTEXT://127.0.0.1:$port,SASL_PLAINTEXT://127.0.0.1:$((port + 2))$tls
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL
sasl.enabled.mechanisms=PLAIN
listener.name.sasl_plaintext.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required user_ann="right";
listener.name.sasl_ssl.sasl.enabled.mechanisms=SCRAM-SHA-256,SCRAM-SHA-512
listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.sasl_ssl.ssl.keystore.type=PKCS12
listener.name.sasl_ssl.ssl.keystore.location=$data/cert.p12
listener.name.sasl_ssl.ssl.keystore.password=of-tests
log.dirs=$data/log
# A topic that is asked for is made, where benchmarks say so.
auto.create.topics.enable=${KAFKA_AUTO_CREATE:-false}
num.partitions=4
# One broker: one replica of the topics of its own, and few partitions, so that it starts in seconds.
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
# A broker that was killed is back when its session has ended: after 9 s where nothing is said.
broker.session.timeout.ms=1500
broker.heartbeat.interval.ms=300
num.network.threads=2
num.io.threads=2
background.threads=2
log.cleaner.enable=false
# Tests wait for transactions that are given up, and for messages that are deleted.
transaction.abort.timed.out.transaction.cleanup.interval.ms=500
log.retention.check.interval.ms=500
CONF
}

# The client compiler alone: half the time to start, and no test is long enough for the other one.
java_of_tests() {
  java -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto -cp "$home/libs/*" "$@"
}

restart() {
  if runs; then die "it runs: process $(cat "$pid_file")"; fi
  local port
  port=$(cat "$data/port")
  # Words of options, and none of them has a space.
  # shellcheck disable=SC2086
  setsid java ${KAFKA_JAVA:--Xmx256m -Xms64m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC} -Xshare:auto -cp "$home/libs/*" \
    -Dkafka.logs.dir="$data" kafka.Kafka "$data/server.properties" >>"$data/broker.out" 2>&1 </dev/null &
  echo $! >"$pid_file"
  for _ in $(seq 1 900); do
    runs || die "the broker ended: $(tail -n 5 "$data/broker.out")"
    if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
      echo "127.0.0.1:$port"
      return 0
    fi
    sleep 0.1
  done
  die "the broker does not answer within 90 s: $(tail -n 5 "$data/broker.out")"
}

case ${1:-} in
  fetch) fetch ;;
  start)
    if runs; then die "it runs: process $(cat "$pid_file")"; fi
    rm -rf "$data"
    mkdir -p "$data/log"
    echo "${2:-19092}" >"$data/port"
    settings "${2:-19092}" >"$data/server.properties"
    # The id may begin with a dash: it is no word of its own.
    id=$(head -c 16 /dev/urandom | base64 | tr '+/' '-_' | tr -d '=')
    users=()
    if [ -n "${KAFKA_TLS:-}" ]; then
      certificate cert
      certificate other
      for hash in 256 512; do users+=(--add-scram "SCRAM-SHA-$hash=[name=ann,password=right]"); done
    fi >"$data/keytool.out" 2>&1 || die "cannot make certificates: $(tail -n 5 "$data/keytool.out")"
    java_of_tests kafka.tools.StorageTool format --standalone --cluster-id="$id" "${users[@]}" \
      -c "$data/server.properties" \
      >"$data/format.out" 2>&1 || die "cannot format: $(tail -n 5 "$data/format.out")"
    restart
    ;;
  restart) restart ;;
  stop)
    runs || exit 0
    pid=$(cat "$pid_file")
    kill -TERM "$pid"
    for _ in $(seq 1 100); do
      kill -0 "$pid" 2>/dev/null || break
      sleep 0.1
    done
    kill -KILL "$pid" 2>/dev/null || true
    rm -f "$pid_file"
    ;;
  kill)
    if runs; then kill -KILL "$(cat "$pid_file")"; fi
    rm -f "$pid_file"
    ;;
  *)
    sed -n '2,15p' "$0"
    exit 2
    ;;
esac
