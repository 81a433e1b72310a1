# A SLURM of this machine alone, for scripts/test-slurm.sh: one controller and several nodes, each a slurmd
# with a name and a port of its own. Sourced; needs `root`, `say` and `not_run`.

# Starts it in a directory that only root can write, with $1 nodes, and exports SLURM_CONF.
slurm_start() {
  local nodes=$1 host port node
  slurm_dir=$(mktemp -d /run/millstream-slurm.XXXXXX)
  chmod 755 "$slurm_dir"
  mkdir "$slurm_dir/munge" "$slurm_dir/state"
  host=$(hostname -s)
  port=$(python3 -c 'import random; print(random.randrange(20000, 28000))')
  dd if=/dev/urandom of="$slurm_dir/munge/key" bs=128 count=1 status=none
  chmod 400 "$slurm_dir/munge/key"
  cat >"$slurm_dir/slurm.conf" <<END
ClusterName=millstream
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$slurm_dir/munge/socket
CredType=cred/munge
StateSaveLocation=$slurm_dir/state
SlurmdSpoolDir=$slurm_dir/%n
SlurmctldPidFile=$slurm_dir/slurmctld.pid
SlurmdPidFile=$slurm_dir/%n.pid
SlurmctldLogFile=$slurm_dir/slurmctld.log
SlurmdLogFile=$slurm_dir/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
NodeName=n[1-$nodes] NodeHostname=$host NodeAddr=127.0.0.1 Port=[$((port + 1))-$((port + nodes))] CPUs=1
PartitionName=all Nodes=ALL Default=YES State=UP
END
  export SLURM_CONF=$slurm_dir/slurm.conf
  slurm_pids=()
  munged --foreground --force --key-file="$slurm_dir/munge/key" --socket="$slurm_dir/munge/socket" \
    --pid-file="$slurm_dir/munge/pid" --log-file="$slurm_dir/munge/log" \
    --seed-file="$slurm_dir/munge/seed" >"$slurm_dir/munge/out" 2>&1 &
  slurm_pids+=($!)
  slurm_await "munged" test -S "$slurm_dir/munge/socket"
  slurmctld -D >"$slurm_dir/slurmctld.out" 2>&1 &
  slurm_pids+=($!)
  for node in $(seq "$nodes"); do
    mkdir "$slurm_dir/n$node"
    slurmd -D -N "n$node" >"$slurm_dir/n$node.out" 2>&1 &
    slurm_pids+=($!)
  done
  slurm_await "all nodes" slurm_idle "$nodes"
}

slurm_idle() {
  [ "$(sinfo -h -N -t idle -o %N 2>/dev/null | sort -u | wc -l)" = "$1" ]
}

# Waits until a condition holds.
slurm_await() {
  local what=$1 tries
  shift
  for tries in $(seq 300); do
    "$@" && return
    sleep 0.1
  done
  tail -n 5 "$slurm_dir"/*.out "$slurm_dir"/munge/out >&2
  not_run "$what of SLURM did not come up (see above)"
}

# Ends what slurm_start started.
slurm_end() {
  [ -n "${slurm_dir:-}" ] || return 0
  [ ${#slurm_pids[@]} = 0 ] || kill "${slurm_pids[@]}" 2>/dev/null || true
  wait "${slurm_pids[@]}" 2>/dev/null || true
  rm -rf "$slurm_dir"
}
