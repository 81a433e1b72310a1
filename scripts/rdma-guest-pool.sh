# shellcheck shell=sh disable=SC2034
# Sourced by the first process of the guest (rdma-guest-init.sh): a memory server whose memory is registered
# with rxe1, and clients that read and write it by rxe2. Their rows are those of one process without a pool; the
# blocks are between the devices, and what is said beside them is on loopback. Sets rc where something is wrong.
echo "== rxe1,rxe2: a memory server"
export XDG_RUNTIME_DIR=/run
busybox cat >/run/numbers.sql <<'SQL'
CREATE TABLE numbers (n BIGINT)
WITH ('connector' = 'generator', 'rows' = '100000', 'fields.n.kind' = 'sequence');
SQL
{
  busybox cat /run/numbers.sql
  echo "SELECT k, count(*) AS c, sum(n) AS s FROM (SELECT n, n % 3000 AS k FROM numbers) GROUP BY k;"
} >/run/plain.sql
{
  busybox cat /run/numbers.sql
  echo "CREATE TABLE kept WITH ('connector' = 'pool') AS SELECT n, n % 3000 AS k FROM numbers;"
} >/run/load.sql
{
  echo "CREATE TABLE kept WITH ('connector' = 'pool');"
  echo "SELECT k, count(*) AS c, sum(n) AS s FROM kept GROUP BY k;"
} >/run/pooled.sql
millstream run /run/plain.sql --nodes 1 --format csv --progress none | busybox sort >/run/pooled.expected
busybox grep -q , /run/pooled.expected || rc=80

MILLSTREAM_RDMA=device=rxe1 millstream memory --bytes 64MiB --listen 127.0.0.1:7740 --fabric verbs >/run/memory.said 2>&1 &
memory=$!
tries=0
until busybox grep -q ' at ' /run/memory.said || [ $tries = 400 ]; do
  busybox usleep 50000
  tries=$((tries + 1))
done
busybox cat /run/memory.said
busybox grep -q 'read by verbs' /run/memory.said || rc=81

# in_pool RANK FILE: that rank of a job of two, which reads and loads the pool.
in_pool() {
  MILLSTREAM_NODES=2 MILLSTREAM_RANK=$1 MILLSTREAM_JOB=pool MILLSTREAM_RENDEZVOUS=/run MILLSTREAM_RDMA=device=rxe2 \
    millstream run $2 --workers 1 --fabric shm --format csv --progress none \
    --pool 127.0.0.1:7740 --pool-fabric verbs
}
# sent: bytes that the server's device has sent and received on the wire of the devices.
sent() {
  read -r a </sys/class/net/va/statistics/tx_bytes
  read -r b </sys/class/net/va/statistics/rx_bytes
  echo $((a + b))
}
for file in /run/load.sql /run/pooled.sql; do
  before=$(sent)
  in_pool 1 $file >/dev/null &
  in_pool 0 $file >/run/pooled.rows || rc=82
  wait $! || rc=83
  moved=$(($(sent) - before))
  echo "$file: $moved bytes between the devices"
  [ $moved -gt 100000 ] || rc=84
done
busybox sort /run/pooled.rows >/run/rows
busybox cmp /run/pooled.expected /run/rows && echo "pool: the rows of one process" || rc=85
millstream pool verify kept --pool 127.0.0.1:7740 --pool-fabric verbs || rc=86

# It dies while a job reads.
busybox sed "s/'100000'/'1000000000'/; s/TABLE kept/TABLE endless/" /run/load.sql >/run/endless.sql
in_pool 1 /run/endless.sql >/run/said.1 2>&1 &
other=$!
in_pool 0 /run/endless.sql >/run/said.0 2>&1 &
loader=$!
tries=0
until millstream pool stat --json --pool 127.0.0.1:7740 --pool-fabric verbs 2>/dev/null | busybox grep -q '"loads":1' ||
  [ $tries = 100 ]; do
  busybox usleep 50000
  tries=$((tries + 1))
done
busybox kill -9 $memory
wait $loader && rc=87
wait $other && rc=88
busybox grep -h "memory server 'm0' is gone" /run/said.0 /run/said.1 || rc=89
