#!/usr/bin/env bash
# A Postgres server on this machine, from the Debian package, for tests: loopback alone, data in a folder of its own,
# changes of rows can be read from it.
#
#   scripts/postgres.sh start [PORT]   makes fresh data and starts; prints the address when the server answers
#   scripts/postgres.sh restart        starts again with the data that are there
#   scripts/postgres.sh stop           ends it
#   scripts/postgres.sh kill           ends it as a crash does
#
# POSTGRES_DATA is the data folder. The user postgres is let in as it is, and ann by her password, which is 'right'.
set -euo pipefail
data=${POSTGRES_DATA:-${TMPDIR:-/tmp}/millstream-postgres-$UID}
bin=$(find /usr/lib/postgresql/*/bin -maxdepth 0 2>/dev/null | sort -V | tail -n 1)

die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}
[ -x "${bin:-}/postgres" ] || die "there is no Postgres: install the package postgresql"

# The server refuses to be root.
as_server() {
  if [ "$(id -u)" = 0 ]; then
    setpriv --reuid=postgres --regid=postgres --init-groups -- "$@"
  else
    "$@"
  fi
}

# The first line of the file is the server's process.
pid() { head -n 1 "$data/db/postmaster.pid" 2>/dev/null; }
runs() { [ -n "$(pid)" ] && grep -q '^State:[[:space:]]*[^Z]' "/proc/$(pid)/status" 2>/dev/null; }

settings() {
  cat <<CONF
listen_addresses = '127.0.0.1'
port = $1
unix_socket_directories = '$data'
wal_level = logical
max_replication_slots = 32
max_wal_senders = 32
max_connections = 200
ssl = on
ssl_cert_file = '$data/server.pem'
ssl_key_file = '$data/server.key'
# Short intervals: tests wait for these.
wal_receiver_status_interval = 1s
wal_sender_timeout = 10s
CONF
}

# An authority, and a certificate of it that is made out to localhost.
certificate() {
  openssl req -x509 -newkey rsa:2048 -nodes -days 30 -subj /CN=authority -keyout "$data/root.key" \
    -out "$data/root.pem" 2>/dev/null &&
    openssl req -newkey rsa:2048 -nodes -subj /CN=localhost -keyout "$data/server.key" -out "$data/server.csr" \
      2>/dev/null &&
    openssl x509 -req -in "$data/server.csr" -CA "$data/root.pem" -CAkey "$data/root.key" -CAcreateserial -days 30 \
      -extfile <(echo subjectAltName=DNS:localhost) -out "$data/server.pem" 2>/dev/null ||
    die "openssl makes no certificate"
  chmod 600 "$data/server.key"
}

restart() {
  if runs; then die "it runs: process $(pid)"; fi
  cd "$data"
  # Children of a server that was killed hold its memory until they have seen that it is gone.
  for _ in $(seq 1 600); do
    if as_server "$bin/pg_ctl" -D "$data/db" -l "$data/log" -t 90 -w start >"$data/started" 2>&1 </dev/null; then
      echo "127.0.0.1:$(cat "$data/port")"
      return 0
    fi
    tail -n 5 "$data/log" | grep -q 'shared memory block' || break
    sleep 0.1
  done
  die "the server does not start: $(tail -n 5 "$data/log" "$data/started")"
}

case ${1:-} in
  start)
    if runs; then die "it runs: process $(pid)"; fi
    rm -rf "$data"
    mkdir -p "$data"
    echo "${2:-15432}" >"$data/port"
    certificate
    if [ "$(id -u)" = 0 ]; then chown -R postgres: "$data"; fi
    cd "$data"
    as_server "$bin/initdb" -D "$data/db" -A trust -U postgres -E UTF8 --locale C --no-sync >"$data/made" 2>&1 ||
      die "cannot make its data: $(tail -n 5 "$data/made")"
    settings "${2:-15432}" >>"$data/db/postgresql.conf"
    printf 'host all,replication ann 127.0.0.1/32 scram-sha-256\nhost all,replication old 127.0.0.1/32 md5\n%s\n' \
      "host all,replication postgres 127.0.0.1/32 trust" >"$data/db/pg_hba.conf"
    restart
    ;;
  restart) restart ;;
  stop)
    if runs; then as_server "$bin/pg_ctl" -D "$data/db" -m fast -w stop >/dev/null; fi
    ;;
  kill)
    if runs; then kill -KILL "$(pid)"; fi
    for _ in $(seq 1 600); do
      runs || break
      sleep 0.05
    done
    ;;
  *)
    sed -n '2,11p' "$0"
    exit 2
    ;;
esac
