# Sourced by the scripts that start one server for tests. They set `pidfile`, and `log`, where it writes.

# Waits for 120 s until a command succeeds, which asks the server. If the server ends before, or does not answer, the end
# of its log is shown, and the status is 1.
await_server() {
  for _ in $(seq 1 240); do
    if "$@" >/dev/null 2>&1; then return 0; fi
    kill -0 "$(cat "$pidfile")" 2>/dev/null || break
    sleep 0.5
  done
  tail -n 20 "$log" >&2
  return 1
}

# SIGTERM, then SIGKILL after 10 s.
stop_server() {
  [ -f "$pidfile" ] || return 0
  local pid
  pid=$(cat "$pidfile")
  kill "$pid" 2>/dev/null || true
  for _ in $(seq 1 100); do
    kill -0 "$pid" 2>/dev/null || break
    sleep 0.1
  done
  kill -9 "$pid" 2>/dev/null || true
  rm -f "$pidfile"
}
