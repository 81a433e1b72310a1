#!/usr/bin/env bash
# Runs every test and sums the results. The last line is `N passed, N failed`; the status is 0 only when
# every run succeeded and at least one test ran. What could not be run here is said above that line.
set -euo pipefail
source "$(dirname "$0")/env.sh"
cd "$root"

log=$(mktemp)
trap 'rm -f "$log"' EXIT
status=0

# Status 77 is that of scripts which say NOT RUN.
run() {
  local code=0
  say "$*"
  "$@" </dev/null 2>&1 | tee -a "$log" || code=$?
  [ "$code" = 0 ] || [ "$code" = 77 ] || status=1
}

run cargo test --release --workspace --no-fail-fast
# The lock-free code again, over every interleaving that loom finds. Other compiler flags: a directory of
# its own, so that the two builds do not evict each other.
RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR="$CARGO_TARGET_DIR/loom" \
  run cargo test --release --no-fail-fast -p millstream-fabric -p millstream-channel --lib \
  -- spsc::loom order::tests
# Several hosts.
run scripts/test-hosts.sh
# The verbs with the kernel's RDMA, and the engine over them.
run scripts/test-rdma.sh

read -r passed failed < <(awk '
  /^test result: / {
    for (i = 2; i <= NF; i++) {
      if ($i == "passed;") passed += $(i - 1)
      if ($i == "failed;") failed += $(i - 1)
    }
  }
  END { print passed + 0, failed + 0 }' "$log")

if [ "$passed" = 0 ] && [ "$failed" = 0 ]; then
  echo "no test ran" >&2
  status=1
elif [ "$status" != 0 ] || [ "$failed" != 0 ]; then
  status=1
  printf '\nfailed:\n'
  grep -E '^(test .* \.\.\. FAILED|error(\[|:))' "$log" | sort -u || true
fi
grep '^NOT RUN: ' "$log" || true
printf '\n%s passed, %s failed\n' "$passed" "$failed"
exit "$status"
