# shellcheck shell=bash
# Sourced behind env.sh by the scripts of .ci/run: runs the parts of a check, and tells in the end how long each
# took and what could not run here. Scripts that run one behind the other share one table: the directory
# $MILLSTREAM_PARTS, which .ci/run makes.

if [ -z "${MILLSTREAM_PARTS:-}" ]; then
  MILLSTREAM_PARTS=$(mktemp -d)
  trap 'rm -rf "$MILLSTREAM_PARTS"' EXIT
fi
parts_table=$MILLSTREAM_PARTS/table parts_log=$MILLSTREAM_PARTS/log
touch "$parts_table" "$parts_log"

# part NAME COMMAND...: runs it and notes its time. Gives its status, except for 77, which is that of scripts
# that say NOT RUN.
part() {
  local name=$1 code=0 began=$SECONDS
  local said=$MILLSTREAM_PARTS/said
  shift
  say "$name: $*"
  "$@" </dev/null 2>&1 | tee "$said" || code=$?
  cat "$said" >>"$parts_log"
  if [ "$code" = 77 ]; then
    not_run_part "$name" "$(grep '^NOT RUN: ' "$said" | tail -n 1)"
    return 0
  fi
  printf '%s\t%s\n' "$name" $((SECONDS - began)) >>"$parts_table"
  suites_of "$said" >>"$parts_table"
  return "$code"
}

# not_run_part NAME "NOT RUN: why": notes a part that cannot run here.
not_run_part() {
  printf '%s\t-\n' "$1" >>"$parts_table"
  printf '%s\n' "$2" >>"$MILLSTREAM_PARTS/not_run"
}

# Suites of five seconds and more, from what `cargo test` printed.
suites_of() {
  awk '
    $1 == "Running" { suite = $NF; gsub(/^.*\/|-[0-9a-f]+\)$/, "", suite) }
    $1 == "==" { suite = $0; sub(/^== /, "", suite) }
    $1 == "Running" && $2 == "unittests" { suite = suite " (unit tests)" }
    /^test result: / {
      seconds = $NF + 0
      if (seconds >= 5) printf "  %s\t%d\n", suite, seconds + 0.5
    }' "$1"
}

# The table, and the reasons of what did not run.
tell_parts() {
  printf '\n%-44s min:s\n' part
  awk -F '\t' '
    function row(name, seconds) { printf "%-44s %2d:%02d\n", name, seconds / 60, seconds % 60 }
    $2 == "-" { printf "%-44s not run\n", $1; next }
    { row($1, $2) }
    !/^ / { all += $2 }
    END { row("all", all) }' "$parts_table"
  cat "$MILLSTREAM_PARTS/not_run" 2>/dev/null || true
}

# The failures, with the first lines of the output of each test.
tell_failures() {
  printf '\nfailed:\n'
  grep -E '^(test .* \.\.\. FAILED|error(\[|:))' "$parts_log" | sort -u || true
  awk '
    /^---- .* stdout ----$/ { left = 20; print "" }
    /^stack backtrace:$/ { left = 0 }
    left > 0 && NF { print substr($0, 1, 400); left-- }' "$parts_log"
}

# Passed, failed and skipped, which is what the tests themselves left out and the parts that did not run.
count_tests() {
  awk '
    FILENAME ~ /not_run$/ { skipped++; next }
    /^test result: / {
      for (i = 2; i <= NF; i++) {
        if ($i == "passed;") passed += $(i - 1)
        if ($i == "failed;") failed += $(i - 1)
        if ($i == "ignored;") skipped += $(i - 1)
      }
    }
    END { print passed + 0, failed + 0, skipped + 0 }' "$parts_log" $(ls "$MILLSTREAM_PARTS"/not_run 2>/dev/null)
}
