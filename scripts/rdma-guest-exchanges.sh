# shellcheck shell=sh disable=SC2034
# Sourced by the first process of the guest (rdma-guest-init.sh): the job of tests/exchanges on two, three and four
# processes by every exchange, on two devices, and two on one. The rows are those of one process. Sets rc where
# something is wrong.
# of_job RANK FILE: that rank of a job of $nodes. Ranks take the two of $devices in turns.
of_job() {
  device=${devices%,*}
  [ $(($1 % 2)) = 0 ] || device=${devices#*,}
  MILLSTREAM_NODES=$nodes MILLSTREAM_RANK=$1 MILLSTREAM_JOB=exchanges MILLSTREAM_RENDEZVOUS=/run \
    MILLSTREAM_RDMA=device=$device \
    millstream run $2 --workers 1 --fabric verbs --format csv --progress none
}

for exchange in merge shuffle uppar broadcast; do
  job=/exchanges/$exchange.sql
  millstream run $job --nodes 1 --workers 1 --format csv --progress none | busybox sort >/run/exchange.expected
  [ "$(busybox wc -l </run/exchange.expected)" -gt 10000 ] || rc=71
  for layout in rxe0:2 rxe1,rxe2:2 rxe1,rxe2:3 rxe1,rxe2:4; do
    devices=${layout%:*} nodes=${layout#*:}
    echo "== $devices: $nodes processes by $exchange"
    pids= number=1
    while [ $number -lt $nodes ]; do
      of_job $number $job >/dev/null &
      pids="$pids $!"
      number=$((number + 1))
    done
    of_job 0 $job >/run/exchange.csv || rc=72
    for pid in $pids; do wait $pid || rc=72; done
    busybox sort /run/exchange.csv >/run/rows
    busybox cmp /run/exchange.expected /run/rows && echo "$exchange: the rows of one process" || rc=73
  done
done
