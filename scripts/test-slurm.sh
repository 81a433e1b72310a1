#!/usr/bin/env bash
# Starts jobs with a real SLURM: one controller and four nodes on this machine (scripts/slurm.sh), and
# `srun -n 4 millstream run …` gives the rows that one process gives; with the ranks on four nodes and on
# one, with addresses by a shared directory and by the launcher (PMI). So does `srun -n 4 python3 job.py` with
# the package of Python. A job with --state goes on when a rank
# of it is killed, within the step, and when its supervisor is killed and it is queued again. Where SLURM
# cannot be had the script says NOT RUN and why, and its status is 77.
set -euo pipefail
source "$(dirname "$0")/env.sh"
source "$(dirname "$0")/apt.sh"
source "$(dirname "$0")/launched.sh"
source "$(dirname "$0")/slurm.sh"
cd "$root"
what="the tests with SLURM"

[ "$(id -u)" = 0 ] || not_run "SLURM's daemons need root"
packages_or_not_run slurm-wlm munge
build_millstream
one_process
trap 'slurm_end; rm -rf "$recovery"' EXIT
recovery_begins
slurm_start 4

run=("$millstream" run "$query" --format csv)
# The nodes of this SLURM are all this machine, so that its loopback address reaches them.
local_only=(--listen 127.0.0.1:0)
say "srun on four nodes, addresses by the directory of the job"
compare srun -n 4 "${run[@]}" --fabric tcp "${local_only[@]}"
[ -z "$(ls -A | grep '^\.millstream-' || true)" ] || die "files of the rendezvous are left"
say "srun on four nodes, addresses by PMI"
compare srun --mpi=pmi2 -n 4 "${run[@]}" --fabric tcp "${local_only[@]}"
say "srun on four nodes, beyond loopback with certificates"
"$millstream" cert init "$slurm_dir/ca"
"$millstream" cert issue "$slurm_dir/ca" "$slurm_dir/node"
compare srun -n 4 "${run[@]}" --fabric tcp --certs "$slurm_dir/node"
say "srun on four nodes, beyond loopback as on a network that is trusted"
compare srun -n 4 "${run[@]}" --fabric tcp --insecure
say "srun on four nodes, beyond loopback and unasked"
if said=$(srun -n 4 "${run[@]}" --fabric tcp 2>&1); then die "it listened beyond loopback"; fi
grep -q -- '--insecure' <<<"$said" || die "no word of --insecure: $said"
# The package as it is in the checkout, with the library that cargo builds: no other package is needed.
say "srun on four nodes, a program in Python"
[ -n "${MILLSTREAM_BUILT:-}" ] || cargo build --release --workspace --lib
mkdir -p "$slurm_dir/python/millstream"
cp python/millstream/*.py "$slurm_dir/python/millstream/"
ln -s "$CARGO_TARGET_DIR/release/lib_millstream.so" "$slurm_dir/python/millstream/_millstream.abi3.so"
cat >"$slurm_dir/job.py" <<END
import sys
import millstream as ms

with ms.Session(workers=1) as s:
    rows = s.sql(open("$query").read()).fetchall()
    assert s.nodes == int(sys.argv[1]), s.nodes
    assert not rows or s.rank == 0, "rows are those of process 0"
    sys.stdout.write("".join(f"{row}\\n" for row in rows))
END
of_command=$expected
export PYTHONPATH=$slurm_dir/python
expected=$(python3 "$slurm_dir/job.py" 1 | sort)
[ "$(wc -l <<<"$expected")" = $(($(wc -l <<<"$of_command") - 1)) ] || die "Python has other rows than the command"
for listen in "MILLSTREAM_LISTEN=127.0.0.1:0" "MILLSTREAM_CERTS=$slurm_dir/node" "MILLSTREAM_INSECURE=1"; do
  say "srun on four nodes, a program in Python, ${listen%%=*}"
  compare env "$listen" srun -n 4 python3 "$slurm_dir/job.py" 4
  compare env "$listen" srun --mpi=pmi2 -n 4 python3 "$slurm_dir/job.py" 4
done
[ -z "$(ls -A | grep '^\.millstream-' || true)" ] || die "files of the rendezvous are left"
say "srun on four nodes, a program in Python of which one process differs"
more='workers=1 + (int(__import__("os").environ["SLURM_PROCID"]) == 2)'
sed "s/workers=1/$more/" "$slurm_dir/job.py" >"$slurm_dir/other.py"
if said=$(MILLSTREAM_LISTEN=127.0.0.1:0 timeout -s KILL 120 srun -n 4 python3 "$slurm_dir/other.py" 4 2>&1); then
  die "processes that differ are run"
fi
grep -q 'node 2 differs from node 0 in its number of workers' <<<"$said" || die "it is not named: $said"
unset PYTHONPATH
expected=$of_command
say "a batch script whose process is alone"
cat >"$slurm_dir/batch.sh" <<END
#!/bin/sh
cd "$root" && exec "$millstream" run "$query" --format csv --quiet
END
chmod +x "$slurm_dir/batch.sh"
batch() {
  timeout 120 sbatch -Q -W -n 4 -o "$slurm_dir/batch.out" "$slurm_dir/batch.sh"
  cat "$slurm_dir/batch.out"
}
rows=$(batch | sort)
[ "$rows" = "$expected" ] || die "other rows from the batch script"
saved=("$millstream" run "$recovery/windows.sql" --state "$recovery/state" --workers 1 --fabric tcp)
say "srun on four nodes, a rank is killed and started again"
recovers inside srun -n 4 "${saved[@]}" "${local_only[@]}"
say "srun --mpi=pmi2 on four nodes, a rank is killed and started again"
recovers inside srun --mpi=pmi2 -n 4 "${saved[@]}" "${local_only[@]}"
say "a batch job whose supervisor is killed is queued again"
cat >"$slurm_dir/again.sh" <<END
#!/bin/sh
cd "$root"
srun -n 4 ${saved[*]} ${local_only[*]} --rejoin-timeout 3
code=\$?
[ "\$code" = 0 ] || scontrol requeue "\$SLURM_JOB_ID"
exit "\$code"
END
chmod +x "$slurm_dir/again.sh"
rm -rf "$recovery/out" "$recovery/state"
job=$(sbatch --requeue --open-mode=append -n 4 -o "$recovery/log" --parsable "$slurm_dir/again.sh")
await_job "rows of the batch job" has_rows
# The first process that has this state among its arguments and is no srun: a supervisor.
supervisor=$(pgrep -f "^$millstream run .*--state $recovery/state" | head -n 1)
[ -n "$supervisor" ] || die "no supervisor runs: $(cat "$recovery/log")"
kill -9 "$supervisor"
slurm_ended() {
  [ -n "$(squeue -h -j "$job" 2>/dev/null)" ] || return 0
  # A job that is queued again begins two minutes later, unless its time is set.
  scontrol release "$job" 2>/dev/null || true
  scontrol update JobId="$job" StartTime=now 2>/dev/null || true
  return 1
}
await_job "end of the batch job" slurm_ended
went_on "the batch job"
printf '\nsrun: every job gave the rows of one process\n'
