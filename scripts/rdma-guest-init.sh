#!/bin/sh
# The first process of the guest that scripts/test-rdma.sh boots: makes RDMA devices of Soft-RoCE, runs
# /tests and the engine on each layout and says how it ended. The host judges by the line `TEST-EXIT rc=N`.
#
#   rxe0         on a dummy interface: two endpoints of one device
#   rxe1, rxe2   on a veth pair in one namespace: two devices, and packets between them
export PATH=/bin:/sbin
busybox mkdir -p /proc /sys /dev /tmp /run
busybox mount -t proc proc /proc
busybox mount -t sysfs sysfs /sys
busybox mount -t devtmpfs dev /dev
busybox mkdir -p /dev/shm
busybox mount -t tmpfs shm /dev/shm

finish() {
  echo "TEST-EXIT rc=$1"
  busybox sync
  busybox reboot -f
}

while read -r module; do
  busybox insmod "/modules/$module" || echo "module $module did not load"
done </modules/order

ip=/bin/ip
$ip link set lo up
$ip link add lone0 type dummy || finish 90
$ip addr add 10.77.0.1/24 dev lone0
$ip link set lone0 mtu 9000 up
rdma link add rxe0 type rxe netdev lone0 || finish 91

$ip link add va type veth peer name vb || finish 92
for side in a b; do
  busybox sysctl -q -w "net.ipv4.conf.v$side.accept_local=1" "net.ipv4.conf.v$side.rp_filter=0" \
    "net.ipv4.conf.v$side.arp_ignore=1"
done
busybox sysctl -q -w net.ipv4.conf.all.rp_filter=0
$ip addr add 10.78.0.1/24 dev va
$ip addr add 10.78.0.2/24 dev vb
$ip link set va mtu 9000 up
$ip link set vb mtu 9000 up
# Packets from one end to the other leave by the wire instead of being handed over inside the host.
$ip rule add pref 1 iif va lookup local
$ip rule add pref 2 iif vb lookup local
$ip rule add pref 3 to 10.78.0.2 lookup 100
$ip rule add pref 4 to 10.78.0.1 lookup 101
$ip rule add pref 1000 lookup local
$ip rule del pref 0
$ip route add 10.78.0.2 dev va src 10.78.0.1 table 100
$ip route add 10.78.0.1 dev vb src 10.78.0.2 table 101
rdma link add rxe1 type rxe netdev va || finish 93
rdma link add rxe2 type rxe netdev vb || finish 94

rc=0
if [ -f /only ]; then
  read -r only </only
  . /$only.sh
  finish $rc
fi
filter=
[ ! -f /filter ] || read -r filter </filter
for devices in rxe0 rxe1,rxe2; do
  for test in /tests/*; do
    echo "== $devices: $test"
    skip=
    [ -n "$filter" ] || skip="--skip datagrams_reach_a_group"
    MILLSTREAM_RDMA_DEVICES=$devices RUST_BACKTRACE=1 $test --test-threads=1 $skip $filter || rc=1
  done
done
[ -z "$filter" ] || finish $rc
# One device alone hands its packets to itself inside the driver; between two they are on the wire.
for device in rxe1 rxe2; do
  busybox cat /sys/class/infiniband/$device/ports/1/hw_counters/sent_pkts >/run/packets
  read -r packets </run/packets
  echo "$device sent $packets packets"
  [ "$packets" -gt 1000 ] || rc=95
done

# The engine: two processes, on one device and on two. The rows are those of one process.
cd /
flights=examples/flights-csv.sql
busybox sed "s/'10000000'/'200000'/" examples/ysb.sql >/run/ysb.sql
millstream run /run/ysb.sql --nodes 1 --format csv --progress none | busybox sort >/run/ysb.expected
busybox sort examples/expected/flights.csv >/run/flights.expected
busybox grep -q , /run/ysb.expected || rc=96

# rank N DEVICE QUERY: that rank of a job of two, with $more of the device and $options of the run.
more= options=
rank() {
  MILLSTREAM_NODES=2 MILLSTREAM_RANK=$1 MILLSTREAM_JOB=guest MILLSTREAM_RENDEZVOUS=/run \
    MILLSTREAM_RDMA=device=$2,connect=$connect$more \
    millstream run $3 --workers 1 --fabric verbs --format csv --progress none $options
}

# both QUERY: on $devices. The rows go to standard output, as rank 0 has them.
both() {
  rank 1 ${devices#*,} $1 >/dev/null &
  rank 0 ${devices%,*} $1 || rc=97
  wait $! || rc=97
}

# is_expected NAME ROWS
is_expected() {
  busybox sort $2 >/run/rows
  busybox cmp /run/$1.expected /run/rows && echo "$1: the rows of one process" || rc=98
  busybox rm $2
}

for devices in rxe0 rxe1,rxe2; do
  for connect in tcp rdma_cm; do
    echo "== $devices: millstream run, connect=$connect"
    both $flights >/dev/null
    is_expected flights target/demo/flights.csv
    both /run/ysb.sql >/run/ysb.csv
    is_expected ysb /run/ysb.csv
  done
done

. /exchanges.sh

# A queue pair that breaks: no packet of the devices finds the other for longer than they try (33 ms, seven times). The job
# goes on over another one, and the rows are those of one process.
cut_wire() {
  $ip neigh replace 10.78.0.2 lladdr 02:00:00:00:00:77 dev va nud permanent
  $ip neigh replace 10.78.0.1 lladdr 02:00:00:00:00:77 dev vb nud permanent
}
mend_wire() {
  $ip neigh del 10.78.0.2 dev va
  $ip neigh del 10.78.0.1 dev vb
}
packets() { busybox cat /sys/class/infiniband/rxe1/ports/1/hw_counters/sent_pkts; }
is_sending() { [ $(($(packets) - before)) -gt 100 ]; }
is_broken() { busybox grep -q 'its links go on over another' /run/said; }
await() { # CONDITION, for 20 s
  tries=0
  until "$@" || [ $tries = 400 ]; do
    busybox usleep 50000
    tries=$((tries + 1))
  done
}

devices=rxe1,rxe2
more=,ack_timeout=13 options='--set millstream.exchange=shuffle'
busybox sed "s/'rows' *=/'rate' = '40000', &/" /run/ysb.sql >/run/ysb-rated.sql
for connect in tcp rdma_cm; do
  echo "== $devices: a queue pair that breaks, connect=$connect"
  before=$(packets)
  { both /run/ysb-rated.sql; exit $rc; } >/run/ysb.csv 2>/run/said &
  job=$!
  await is_sending
  cut_wire
  await is_broken
  mend_wire
  wait $job || rc=97
  busybox cat /run/said
  is_broken || rc=94
  is_expected ysb /run/ysb.csv
done
more= options=

. /pool.sh

# Two hosts: this network namespace, and one whose processes take the second device. They know of each other by a
# wire of their own; that of the devices stays here, since Soft-RoCE of kernel 6.1 sends in no other namespace.
busybox unshare -n busybox sleep 100000 &
other=$!
until [ "$(busybox readlink /proc/$other/ns/net)" != "$(busybox readlink /proc/self/ns/net)" ]; do
  busybox usleep 10000
done
there="busybox nsenter -t $other -n"
$ip link add near type veth peer name far netns $other
$ip addr add 10.79.0.1/24 dev near
$ip link set near up
$there $ip link set lo up
$there $ip addr add 10.79.0.2/24 dev far
$there $ip link set far up

# four ARGUMENTS…: the flights as a job of four ranks, 0 and 1 on this host, 2 and 3 on the other. Those of a host
# are joined by its memory, the others by the devices, and the rows are those of one process.
four() {
  echo "== two hosts: millstream run --fabric auto $*"
  pids=
  for rank in 0 1 2 3; do
    host=$((rank / 2 + 1))
    inside=
    [ $host = 1 ] || inside=$there
    MILLSTREAM_NODES=4 MILLSTREAM_RANK=$rank MILLSTREAM_JOB=hosts MILLSTREAM_RENDEZVOUS=/run \
      MILLSTREAM_RDMA=device=rxe$host $inside millstream run $flights "$@" --listen 10.79.0.$host:0 --insecure \
      --format csv --progress none --log millstream=debug >/dev/null 2>/run/said.$rank &
    pids="$pids $!"
  done
  for pid in $pids; do wait $pid || rc=97; done
  for rank in 0 1 2 3; do
    joined=$(busybox sed -n 's/.*joined with node \([0-9]\) by \([a-z]*\).*/\1 \2/p' /run/said.$rank)
    joined=$(echo $joined)
    echo "rank $rank is joined with $joined"
    case $rank in
      0) [ "$joined" = "1 shm 2 verbs 3 verbs" ] ;;
      1) [ "$joined" = "0 shm 2 verbs 3 verbs" ] ;;
      2) [ "$joined" = "0 verbs 1 verbs 3 shm" ] ;;
      3) [ "$joined" = "0 verbs 1 verbs 2 shm" ] ;;
    esac || rc=99
  done
  busybox grep -h -A 1 '^error' /run/said.*
  is_expected flights target/demo/flights.csv
}

# bytes INTERFACE…: what they have sent and received so far.
bytes() {
  total=0
  for interface in "$@"; do
    for direction in rx tx; do
      read -r counted </sys/class/net/$interface/statistics/${direction}_bytes
      total=$((total + counted))
    done
  done
  echo $total
}

four --workers 1
# Workers of which two share a process.
devices_before=$(bytes va) others_before=$(bytes lo near)
four --workers 2 --set millstream.exchange=shuffle
by_devices=$(($(bytes va) - devices_before)) by_others=$(($(bytes lo near) - others_before))
echo "bytes: $by_devices between the devices, $by_others by TCP"
[ $by_devices -gt $by_others ] || rc=95
kill $other

# Groups come last: in kernel 6.1 a connection manager or queue pair of Soft-RoCE was seen to hang after them.
for devices in rxe0 rxe1,rxe2; do
  echo "== $devices: groups"
  MILLSTREAM_RDMA_DEVICES=$devices /tests/verbs --test-threads=1 datagrams_reach_a_group || rc=1
done
millstream fabric info || rc=96

# The broadcast by groups: without them it would not start.
busybox cat >/run/places.sql <<'SQL'
CREATE TABLE requests (ts TIMESTAMP(3), request BIGINT, place BIGINT, WATERMARK FOR ts AS ts)
WITH ('connector' = 'generator', 'rows' = '100000', 'interval' = '1ms', 'fields.request.kind' = 'sequence',
      'fields.place.kind' = 'sequence');
CREATE TABLE drivers (ts TIMESTAMP(3), driver BIGINT, place BIGINT, WATERMARK FOR ts AS ts)
WITH ('connector' = 'generator', 'rows' = '100000', 'interval' = '1ms', 'fields.driver.kind' = 'sequence',
      'fields.place.kind' = 'sequence');
SET millstream.multicast = 'hardware';
SELECT /*+ BROADCAST(r) */ r.window_start, count(*), sum(r.request + d.driver)
FROM (SELECT * FROM TUMBLE(TABLE drivers, DESCRIPTOR(ts), INTERVAL '10' SECOND)) AS d
JOIN (SELECT * FROM TUMBLE(TABLE requests, DESCRIPTOR(ts), INTERVAL '10' SECOND)) AS r
ON r.window_start = d.window_start AND r.window_end = d.window_end AND r.place = d.place
GROUP BY r.window_start, r.window_end;
SQL
millstream run /run/places.sql --nodes 1 --format csv --progress none | busybox sort >/run/places.expected
busybox grep -q , /run/places.expected || rc=96
connect=tcp
export MILLSTREAM_LOG=dataflow=debug
for devices in rxe0 rxe1,rxe2; do
  echo "== $devices: a broadcast by groups"
  both /run/places.sql >/run/places.csv
  is_expected places /run/places.csv
done
finish $rc
