#!/usr/bin/env bash
# Starts jobs with a real SLURM: one controller and four nodes on this machine (scripts/slurm.sh), and
# `srun -n 4 millstream run …` gives the rows that one process gives; with the ranks on four nodes and on
# one, with addresses by a shared directory and by the launcher (PMI). A job with --state goes on when a rank
# of it is killed, in the same step, without that rank, or when it is queued again. Where SLURM cannot be had
# the script says NOT RUN and why, and its status is 77.
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
recovery_begins
trap 'slurm_end; rm -rf "$recovery"' EXIT
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
slurm_await_rows() { [ -n "$(ls "$recovery/out" 2>/dev/null)" ]; }
slurm_await "rows of the batch job" slurm_await_rows
# The first process that has this state among its arguments and is no srun: a supervisor.
supervisor=$(pgrep -f "^$millstream run .*--state $recovery/state" | head -n 1)
kill -9 "$supervisor"
slurm_ended() { [ -z "$(squeue -h -j "$job" 2>/dev/null)" ]; }
tries=0
until slurm_ended; do
  tries=$((tries + 1))
  [ "$tries" -lt 600 ] || die "it does not end: $(cat "$recovery/log")"
  # A job that was queued again waits for two minutes, unless asked.
  scontrol release "$job" 2>/dev/null || true
  scontrol update JobId="$job" StartTime=now 2>/dev/null || true
  sleep 0.5
done
grep -q 'goes on from checkpoint' "$recovery/log" || die "it began anew: $(cat "$recovery/log")"
[ "$(written_rows "$recovery")" = "$undisturbed" ] || die "other rows than those of one process"
printf '\nsrun: every job gave the rows of one process\n'
