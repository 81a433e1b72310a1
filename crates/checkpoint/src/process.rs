//! Processes by their machine, number and start.

/// The boot of this machine, and the PID namespace: in it a process is known by its number and
/// start. Empty only where `/proc` is not mounted.
pub(crate) fn machine() -> String {
    let boot = line_of("/proc/sys/kernel/random/boot_id");
    let namespace = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    let number: String = namespace.to_string_lossy().chars().filter(char::is_ascii_digit).collect();
    format!("{}-{number}", boot.chars().filter(char::is_ascii_hexdigit).collect::<String>())
}

/// Whether a process of this number runs that started then.
pub(crate) fn is_running(pid: u32, started_then: u64) -> bool {
    started(pid) == Some(started_then)
}

/// When a process started, in clock ticks since the machine did; `None` if it has ended.
pub(crate) fn started(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The program's name stands in brackets and may have any characters.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace();
    // A zombie has ended: it holds nothing and does nothing.
    let state = fields.next()?;
    if state == "Z" || state == "X" {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

pub(crate) fn line_of(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}
