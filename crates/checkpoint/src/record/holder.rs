//! The process that leads a run, and whether it is dead.

use super::Holder;
use crate::process;

impl Holder {
    /// This process.
    #[must_use]
    pub fn this_process() -> Self {
        let pid = std::process::id();
        let mut nonce = [0; 8];
        // Without random numbers two processes still differ by host, number and start.
        let _ = rustix::rand::getrandom(&mut nonce[..], rustix::rand::GetRandomFlags::NONBLOCK);
        Self {
            host: process::line_of("/proc/sys/kernel/hostname"),
            machine: process::machine(),
            pid,
            started: process::started(pid).unwrap_or(0),
            nonce: u64::from_le_bytes(nonce),
        }
    }

    /// Whether the process ran on this machine and has ended. A process of another machine, or of
    /// another PID namespace, is not known to be dead.
    #[must_use]
    pub fn is_known_dead(&self) -> bool {
        self.machine == process::machine() && !process::is_running(self.pid, self.started)
    }
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
        let holder = Holder { pid, started: process::started(pid).unwrap(), ..this };
        assert!(!holder.is_known_dead());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(holder.is_known_dead());
    }
}
