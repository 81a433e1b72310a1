//! Memory that a job may use, computed before it starts, and held against what the machine has.
//!
//! Only what nobody asks for when it grows is held against that: rings, queues, buffers. State has
//! a limit and an error of its own, and most jobs have far less.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use plan::{Explain, Workers};

use crate::error::Error;

/// Named amounts that add up.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Memory {
    /// The amounts.
    pub needs: Vec<JobMemoryNeed>,
}

/// A named amount of memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobMemoryNeed {
    /// Its purpose.
    pub name: &'static str,
    /// How it comes about, per worker.
    pub sum: String,
    /// Bytes of the node that has most of it, node 0.
    pub node_bytes: u64,
    /// Bytes of all nodes.
    pub all_bytes: u64,
    /// Whether it is a limit whose end is an error of its own.
    pub asks: bool,
}

impl Memory {
    pub(crate) fn of(explain: &Explain, workers: Workers) -> Self {
        let needs = explain
            .memory()
            .iter()
            .map(|need| {
                let per_node = if need.once { 1 } else { u64::from(workers.per_node) };
                let nodes = if need.once { 1 } else { u64::from(workers.nodes) };
                let node_bytes = need.bytes.saturating_mul(per_node);
                JobMemoryNeed {
                    name: need.name,
                    sum: need.sum.clone(),
                    node_bytes,
                    all_bytes: node_bytes.saturating_mul(nodes),
                    asks: need.asks,
                }
            })
            .collect();
        Self { needs }
    }

    /// The sum of node 0, in bytes.
    pub fn node_bytes(&self) -> u64 {
        self.needs.iter().map(|need| need.node_bytes).fold(0, u64::saturating_add)
    }

    /// The sum of all nodes, in bytes.
    pub fn all_bytes(&self) -> u64 {
        self.needs.iter().map(|need| need.all_bytes).fold(0, u64::saturating_add)
    }

    /// Refuses what this machine does not have: of node 0, or of all nodes where they are on one
    /// machine.
    pub(crate) fn fits(&self, on_one_machine: bool, machine: Option<u64>) -> Result<(), Error> {
        let of =
            |need: &JobMemoryNeed| if on_one_machine { need.all_bytes } else { need.node_bytes };
        let taken = self.needs.iter().filter(|need| !need.asks && of(need) > 0);
        let sum = taken.clone().map(of).fold(0, u64::saturating_add);
        let Some(has) = machine.filter(|has| *has < sum) else { return Ok(()) };
        let gib = |bytes: u64| format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30));
        let parts = taken.map(|need| format!("{} {} ({})", need.name, gib(of(need)), need.sum));
        let parts = parts.collect::<Vec<_>>().join(", ");
        let message = format!(
            "the buffers between workers may take {}, and this machine has {}: {parts}",
            gib(sum),
            gib(has)
        );
        let hint = "give fewer --workers, or smaller rings and queues: SET millstream.slot_bytes, \
                    SET millstream.slots";
        Err(Error::Usage { message, hint: hint.into() })
    }
}

/// How long an answer of the system about memory is good for: a session runs many statements within
/// that time, and limits of control groups rarely change.
const KNOWN_FOR: Duration = Duration::from_secs(1);

/// The last answer of the system about the memory of this machine, and when it was asked.
#[derive(Debug, Default)]
pub(crate) struct MachineMemory(Option<(Instant, Option<u64>)>);

impl MachineMemory {
    /// As [`of_machine`], as of [`KNOWN_FOR`] ago at most.
    pub(crate) fn recent(&mut self) -> Option<u64> {
        self.at(Instant::now(), of_machine)
    }

    fn at(&mut self, now: Instant, ask: impl FnOnce() -> Option<u64>) -> Option<u64> {
        match self.0 {
            Some((since, bytes)) if now.saturating_duration_since(since) < KNOWN_FOR => bytes,
            _ => self.0.insert((now, ask())).1,
        }
    }
}

/// Bytes that this process may have: those of the machine, or of its control group if it has a
/// limit. `None` where the system does not tell.
pub(crate) fn of_machine() -> Option<u64> {
    let info = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limit = limit_of(&groups, Path::new("/sys/fs/cgroup"));
    total_of(&info).into_iter().chain(limit).min()
}

fn total_of(info: &str) -> Option<u64> {
    let line = info.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib.saturating_mul(1024))
}

/// The least limit of the control groups around a process, whose files are under
/// `root`: `memory.max` of version 2, `memory.limit_in_bytes` of version 1.
fn limit_of(groups: &str, root: &Path) -> Option<u64> {
    let files = groups.lines().flat_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next().unwrap_or(""), fields.next().unwrap_or("/"));
        let (base, file) = match controllers {
            "" => (root.to_owned(), "memory.max"),
            _ if controllers.split(',').any(|one| one == "memory") => {
                (root.join("memory"), "memory.limit_in_bytes")
            }
            _ => return vec![],
        };
        // In a container the path may be one of the host, and its own group the root.
        let within = Path::new(path.trim_start_matches('/')).ancestors();
        within.map(|path| base.join(path).join(file)).collect::<Vec<PathBuf>>()
    });
    let limit = |file: PathBuf| fs::read_to_string(file).ok()?.trim().parse().ok();
    files.filter_map(limit).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(rings: u64, state: u64) -> Memory {
        let need = |name, bytes, asks| JobMemoryNeed {
            name,
            sum: "a sum".into(),
            node_bytes: bytes,
            all_bytes: 4 * bytes,
            asks,
        };
        Memory { needs: vec![need("rings", rings, false), need("state", state, true)] }
    }

    #[test]
    fn what_the_machine_does_not_have_is_refused_with_its_parts() {
        let gib = 1 << 30;
        let needs = memory(3 * gib, 100 * gib);
        assert!(needs.fits(false, Some(3 * gib)).is_ok(), "state has a limit of its own");
        assert!(needs.fits(true, None).is_ok(), "nobody knows");
        let error = needs.fits(true, Some(8 * gib)).unwrap_err().to_string();
        let parts = ["may take 12.0 GiB", "has 8.0 GiB", "rings 12.0 GiB (a sum)"];
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        assert!(!error.contains("state"), "{error}");
    }

    #[test]
    fn the_system_is_asked_again_when_its_answer_is_old() {
        let mut known = MachineMemory::default();
        let first = Instant::now();
        assert_eq!(known.at(first, || Some(1)), Some(1));
        let last = first + KNOWN_FOR - Duration::from_nanos(1);
        assert_eq!(known.at(last, || unreachable!("it is known")), Some(1));
        assert_eq!(known.at(first + KNOWN_FOR, || None), None);
        assert_eq!(known.at(last + KNOWN_FOR, || unreachable!("known not to be told")), None);
    }

    #[test]
    fn the_least_limit_around_a_process_counts() {
        assert_eq!(total_of("MemFree: 1 kB\nMemTotal:       16 kB\n"), Some(16 << 10));
        assert_eq!(total_of("MemTotal: many\n"), None);
        let root = std::env::temp_dir().join(format!("millstream-groups-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("a/memory.max", "5000\n");
        write("a/b/memory.max", "max\n");
        write("memory/c/memory.limit_in_bytes", "7000\n");
        assert_eq!(limit_of("0::/a/b\n", &root), Some(5000));
        assert_eq!(limit_of("0::/\n", &root), None);
        assert_eq!(limit_of("3:cpu,memory:/c/d\n0::/\n", &root), Some(7000));
        assert_eq!(limit_of("0::/a\n3:memory:/c\n4:cpu:/x\n", &root), Some(5000));
        assert_eq!(limit_of("nonsense", &root), None);
        fs::remove_dir_all(root).unwrap();
    }
}
