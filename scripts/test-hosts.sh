#!/usr/bin/env bash
# Runs jobs of four processes on two hosts: two network namespaces of this machine, joined by a wire, which
# know of each other only by it. `--fabric auto` has to take shared memory within a host and TCP between the
# two, by certificates; the rows are those of one process; and who is killed or cut off is named by all.
# Where no such namespaces can be had the script says NOT RUN and why, and its status is 77.
set -euo pipefail
source "$(dirname "$0")/env.sh"
source "$(dirname "$0")/apt.sh"
source "$(dirname "$0")/launched.sh"
cd "$root"
what="the tests on two hosts"

# The script runs a second time in the first of the namespaces, where it may do what only root may.
if [ "${1:-}" != inside ]; then
  [ "$(uname -s)" = Linux ] || not_run "namespaces are Linux's"
  command -v ip >/dev/null || packages_or_not_run iproute2
  build_millstream
  for namespace in -n -rn; do
    if said=$(unshare $namespace ip link add near type veth peer name far 2>&1); then
      exec unshare $namespace "$0" inside
    fi
  done
  not_run "there are no network namespaces with a wire between them: $said"
fi

# --- two hosts ----------------------------------------------------------------------------------------
millstream=$CARGO_TARGET_DIR/release/millstream
dir=$(mktemp -d)
unshare -n sleep infinity &
other=$!
pids=()
disown
trap 'kill -9 $other ${pids[*]} 2>/dev/null || true; rm -rf "$dir"' EXIT
own=$(readlink /proc/self/ns/net)
for _ in $(seq 100); do
  [ "$(readlink "/proc/$other/ns/net")" = "$own" ] || break
  sleep 0.05
done
ip link set lo up
ip link add near type veth peer name far netns "$other"
ip addr add 10.79.0.1/24 dev near
ip link set near up
nsenter -t "$other" -n ip link set lo up
nsenter -t "$other" -n ip addr add 10.79.0.2/24 dev far
nsenter -t "$other" -n ip link set far up

# --- jobs ---------------------------------------------------------------------------------------------
jobs=0
# job ARGUMENTS: starts four ranks, 0 and 1 on this host, 2 and 3 on the other. What rank N writes is in
# $dir/rows.N and $dir/said.N.
job() {
  local rank host
  pids=()
  jobs=$((jobs + 1))
  for rank in 0 1 2 3; do
    host=()
    [ "$rank" -lt 2 ] || host=(nsenter -t "$other" -n)
    MILLSTREAM_RANK=$rank MILLSTREAM_NODES=4 MILLSTREAM_JOB=hosts$jobs MILLSTREAM_RENDEZVOUS=$dir \
      "${host[@]}" "$millstream" run "$@" --listen "10.79.0.$((rank / 2 + 1)):0" \
      --format csv --quiet --log millstream=debug >"$dir/rows.$rank" 2>"$dir/said.$rank" </dev/null &
    pids+=($!)
  done
}

# Waits until all ranks of the job have ended; their statuses are in `ended`.
await_end() {
  local rank code
  ended=()
  for rank in 0 1 2 3; do
    timeout 60 tail --pid="${pids[rank]}" -f /dev/null || die "rank $rank does not end: $(tell)"
    code=0
    wait "${pids[rank]}" 2>/dev/null || code=$?
    ended+=("$code")
  done
}

tell() { tail -n 5 "$dir"/said.* "$dir"/rows.0; }

# compare_hosts ARGUMENTS: a job whose rows have to be those of one process, with the transports of `auto`.
compare_hosts() {
  job "$@"
  await_end
  [ "${ended[*]}" = "0 0 0 0" ] || die "statuses ${ended[*]}: $(tell)"
  [ "$(sort "$dir/rows.0")" = "$expected" ] || die "other rows than those of one process: $*"
  [ ! -s "$dir/rows.1" ] || die "rank 1 wrote rows"
  local rank joined
  for rank in 0 1 2 3; do
    joined=$(sed -n 's/.*joined with node \([0-9]*\) by \([a-z]*\).*/\1 \2/p' "$dir/said.$rank" | xargs)
    case $rank in
      0) [ "$joined" = "1 shm 2 tcp 3 tcp" ] ;;
      1) [ "$joined" = "0 shm 2 tcp 3 tcp" ] ;;
      2) [ "$joined" = "0 tcp 1 tcp 3 shm" ] ;;
      3) [ "$joined" = "0 tcp 1 tcp 2 shm" ] ;;
    esac || die "rank $rank is joined otherwise: $joined"
  done
}

# all_name RANK WORDS: each other rank has failed, with these words of that rank.
all_name() {
  local rank said
  for rank in 0 1 2 3; do
    [ "$rank" != "$1" ] || continue
    said=$(grep '^error: ' "$dir/said.$rank") || die "rank $rank did not say an error: $(tell)"
    [ "${ended[rank]}" = 1 ] && [[ "$said" == "error: node $1 "*"$2"* ]] || die "rank $rank: $said"
  done
}

# Not by /sys, which tells of the namespace that mounted it.
bytes_of() { awk -v name="$1:" '$1 == name { print $10 }' /proc/net/dev; }

say "certificates"
"$millstream" cert init "$dir/ca"
"$millstream" cert issue "$dir/ca" "$dir/node"
certs=(--certs "$dir/node")

say "flights, merged"
one_process
compare_hosts "$query" --workers 1 "${certs[@]}"

say "flights, shuffled between workers of which two share a process, without certificates"
local_before=$(bytes_of lo) wire_before=$(bytes_of near)
compare_hosts "$query" --workers 2 --insecure --set millstream.exchange=shuffle
by_lo=$(($(bytes_of lo) - local_before)) by_wire=$(($(bytes_of near) - wire_before))
printf 'bytes sent: %s by the wire, %s by loopback\n' "$by_wire" "$by_lo"
[ "$by_wire" -gt $((10 * by_lo)) ] || die "rows within a host travelled by a network"

say "a broadcast"
cat >"$dir/places.sql" <<'SQL'
CREATE TABLE requests (ts TIMESTAMP(3), request BIGINT, place BIGINT, WATERMARK FOR ts AS ts)
WITH ('connector' = 'generator', 'rows' = '100000', 'interval' = '1ms', 'fields.request.kind' = 'sequence',
      'fields.place.kind' = 'sequence');
CREATE TABLE drivers (ts TIMESTAMP(3), driver BIGINT, place BIGINT, WATERMARK FOR ts AS ts)
WITH ('connector' = 'generator', 'rows' = '100000', 'interval' = '1ms', 'fields.driver.kind' = 'sequence',
      'fields.place.kind' = 'sequence');
SELECT /*+ BROADCAST(r) */ r.place, r.window_start, r.request + d.driver
FROM (SELECT * FROM TUMBLE(TABLE drivers, DESCRIPTOR(ts), INTERVAL '10' SECOND)) AS d
JOIN (SELECT * FROM TUMBLE(TABLE requests, DESCRIPTOR(ts), INTERVAL '10' SECOND)) AS r
ON r.window_start = d.window_start AND r.window_end = d.window_end AND r.place = d.place;
SQL
one_process "$dir/places.sql"
compare_hosts "$query" --workers 1 "${certs[@]}"

say "what a user is told"
sed 's/^SELECT/EXPLAIN ANALYZE SELECT/' examples/flights.sql >"$dir/analyze.sql"
job "$dir/analyze.sql" --workers 1 "${certs[@]}"
await_end
grep 'pairs of nodes: 2 by shm, 4 by tcp' "$dir/rows.0" || die "EXPLAIN ANALYZE does not tell: $(tell)"

say "shared memory alone"
job examples/flights.sql --fabric shm "${certs[@]}"
await_end
grep -F 'error: shared memory does not reach node 2' "$dir/said.0" || die "$(tell)"

# --- a pool -------------------------------------------------------------------------------------------
say "a memory server on one host, and a job on both"
cat >"$dir/numbers.sql" <<'SQL'
CREATE TABLE numbers (n BIGINT) WITH ('connector' = 'generator', 'rows' = '200000', 'fields.n.kind' = 'sequence');
SQL
groups='SELECT k, count(*), sum(n) FROM %s GROUP BY k;'
{
  cat "$dir/numbers.sql"
  # shellcheck disable=SC2059
  printf "$groups" '(SELECT n, n % 3000 AS k FROM numbers)'
} >"$dir/plain.sql"
{
  cat "$dir/numbers.sql"
  echo "CREATE TABLE kept WITH ('connector' = 'pool') AS SELECT n, n % 3000 AS k FROM numbers;"
} >"$dir/load.sql"
{
  echo "CREATE TABLE kept WITH ('connector' = 'pool');"
  # shellcheck disable=SC2059
  printf "$groups" kept
} >"$dir/pooled.sql"
one_process "$dir/plain.sql"

"$millstream" cert issue "$dir/ca" "$dir/memory"
serve() {
  "$millstream" memory --bytes 256MiB --listen 10.79.0.1:7740 --certs "$dir/memory" \
    >"$dir/memory.said" 2>&1 &
  memory=$!
  trap 'kill -9 $other $memory ${pids[*]} 2>/dev/null || true; rm -rf "$dir"' EXIT
  for _ in $(seq 100); do
    [ ! -s "$dir/memory.said" ] || return 0
    sleep 0.1
  done
  die "the memory server does not start"
}
pool=(--pool 10.79.0.1:7740 --pool-certs "$dir/node")
serve
job "$dir/load.sql" --workers 1 "${certs[@]}" "${pool[@]}"
await_end
[ "${ended[*]}" = "0 0 0 0" ] || die "loading, statuses ${ended[*]}: $(tell)"
wire_before=$(bytes_of near)
compare_hosts "$dir/pooled.sql" --workers 1 "${certs[@]}" "${pool[@]}"
by_wire=$(($(bytes_of near) - wire_before))
printf 'bytes sent by the wire: %s, of them blocks for two nodes of four\n' "$by_wire"
for rank in 0 1 2 3; do
  case $rank in [01]) how=shm ;; *) how=tcp ;; esac
  grep -q "memory server m0 .* is read by $how" "$dir/said.$rank" ||
    die "rank $rank does not read by $how: $(tell)"
done
nsenter -t "$other" -n "$millstream" pool verify kept "${pool[@]}"

say "no certificate, none of this cluster, and shared memory over a wire"
if said=$("$millstream" pool ls --pool 10.79.0.1:7740 2>&1); then die "it lists tables: $said"; fi
"$millstream" cert init "$dir/strangers"
"$millstream" cert issue "$dir/strangers" "$dir/stranger"
if said=$("$millstream" pool ls --pool 10.79.0.1:7740 --pool-certs "$dir/stranger" 2>&1); then
  die "it lists tables to a stranger: $said"
fi
if said=$(nsenter -t "$other" -n "$millstream" run "$dir/pooled.sql" "${pool[@]}" --pool-fabric shm 2>&1); then
  die "it maps memory of another host: $said"
fi
grep -q 'it is on another machine' <<<"$said" || die "shm over a wire: $said"

say "the memory server is killed while a job loads"
sed -e "s/'200000'/'1000000000000'/" -e "s/CREATE TABLE kept/CREATE TABLE endless/" "$dir/load.sql" \
  >"$dir/endless-load.sql"
job "$dir/endless-load.sql" --workers 1 "${certs[@]}" "${pool[@]}"
for _ in $(seq 600); do
  "$millstream" pool stat --json "${pool[@]}" | grep -q '"loads":1' && break
  sleep 0.1
done
disown "$memory"
kill -9 "$memory"
await_end
grep -q "memory server 'm0' is gone" "$dir"/said.* || die "nobody names the server: $(tell)"
[ "${ended[0]}" = 1 ] || die "statuses ${ended[*]}: $(tell)"

# --- the end of a host --------------------------------------------------------------------------------
cat >"$dir/endless.sql" <<'SQL'
CREATE TABLE ticks (ts TIMESTAMP(3), k BIGINT, WATERMARK FOR ts AS ts)
WITH ('connector' = 'generator', 'rows' = '1000000000000', 'interval' = '1ms', 'fields.k.kind' = 'sequence');
SELECT window_start, count(*), max(k) FROM TUMBLE(TABLE ticks, DESCRIPTOR(ts), INTERVAL '10' MINUTE)
GROUP BY window_start, window_end;
SQL
endless() {
  job "$dir/endless.sql" --workers 1 "${certs[@]}"
  for _ in $(seq 600); do
    [ ! -s "$dir/rows.0" ] || return 0
    sleep 0.1
  done
  die "no rows: $(tell)"
}

for victim in 3 2; do
  say "rank $victim is killed"
  endless
  # The shell has nothing to say about it.
  disown "${pids[victim]}"
  kill -9 "${pids[victim]}"
  await_end
  all_name "$victim" "closed its connection"
done

say "the wire is cut"
endless
ip link set near down
await_end
# Each host names a node of the other one.
for rank in 0 1 2 3; do
  said=$(grep '^error: ' "$dir/said.$rank") || die "rank $rank did not say an error: $(tell)"
  case "$rank $said" in
    [01]" error: node "[23]" "*"has been silent"*) ;;
    [23]" error: node "[01]" "*"has been silent"*) ;;
    *) die "rank $rank: $said" ;;
  esac
done
grep -h -A 1 '^error: ' "$dir/said.0"

printf '\ntwo hosts: every job gave the rows of one process, and every end was named\n'
