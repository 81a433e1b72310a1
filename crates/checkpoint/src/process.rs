//! Which process this is, and whether another one is dead.

use crate::record::Holder;

impl Holder {
    /// This process.
    #[must_use]
    pub fn this_process() -> Self {
        let pid = std::process::id();
        let mut nonce = [0; 8];
        // Without random numbers two processes still differ by host, number and start.
        let _ = rustix::rand::getrandom(&mut nonce[..], rustix::rand::GetRandomFlags::NONBLOCK);
        Self {
            host: line_of("/proc/sys/kernel/hostname"),
            machine: machine(),
            pid,
            started: started(pid).unwrap_or(0),
            nonce: u64::from_le_bytes(nonce),
        }
    }

    /// Whether the process ran on this machine and has ended. A process of another machine, or of
    /// another PID namespace, is not known to be dead.
    #[must_use]
    pub fn is_known_dead(&self) -> bool {
        self.machine == machine() && !is_running(self.pid, self.started)
    }
}

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

fn line_of(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_runs_and_one_that_was_awaited_does_not() {
        let this = Holder::this_process();
        assert!(!this.is_known_dead());
        assert!(Holder { started: this.started + 1, ..this.clone() }.is_known_dead());
        assert!(!Holder { machine: "another".into(), started: 0, ..this.clone() }.is_known_dead());
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = child.id();
        let holder = Holder { pid, started: started(pid).unwrap(), ..this };
        assert!(!holder.is_known_dead());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(holder.is_known_dead());
    }
}
