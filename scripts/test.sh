#!/usr/bin/env bash
# Runs every test and sums the results. The last line is `N passed, N failed, N skipped`; the status is 0 only
# when every run succeeded and at least one test ran. Above that line stand the time of each part, and what
# could not be run here; what failed, with its message, stands directly above it.
set -euo pipefail
source "$(dirname "$0")/env.sh"
source "$(dirname "$0")/parts.sh"
cd "$root"

# A script that runs in the background ignores SIGINT, and so do its children; tests send it to theirs.
[ -z "$(trap -p INT)" ] || exec env --default-signal=INT,QUIT scripts/test.sh "$@"

status=0
run() { part "$@" || status=1; }

# A build that fails is told again by the tests, whose crates that can be built are run.
run "build of the tests" cargo test --release --workspace --no-run --no-fail-fast
run tests cargo test --release --workspace --no-fail-fast
# The lock-free code again, over every interleaving that loom finds. Other compiler flags: a directory of
# its own, so that the two builds do not evict each other. Unoptimized: loom tries the orders that the language
# allows, whatever a compiler makes of them, and most of the time is loom's own build.
RUSTFLAGS="--cfg loom" CARGO_PROFILE_RELEASE_OPT_LEVEL=0 CARGO_TARGET_DIR="$CARGO_TARGET_DIR/loom" \
  run loom cargo test --release --no-fail-fast -p millstream-fabric -p millstream-channel --lib \
  -- spsc::loom registry::loom order::tests
run "Python" scripts/test-python.sh
run "two hosts" scripts/test-hosts.sh
run mpirun scripts/test-mpi.sh
run SLURM scripts/test-slurm.sh
run "Kafka" scripts/test-world.sh
# The verbs on the kernel's RDMA, and the engine over them; and on devices that this machine has.
run "RDMA guest" scripts/test-rdma.sh
[ -z "$(ls -A /sys/class/infiniband 2>/dev/null)" ] ||
  run "RDMA here" cargo test --release --workspace --test verbs

read -r passed failed skipped < <(count_tests)
if [ "$passed" = 0 ] && [ "$failed" = 0 ]; then
  echo "no test ran" >&2
  status=1
elif [ "$status" != 0 ] || [ "$failed" != 0 ]; then
  status=1
fi
tell_parts
[ "$status" = 0 ] || tell_failures
printf '\n%s passed, %s failed, %s skipped\n' "$passed" "$failed" "$skipped"
exit "$status"
