//! The settings of `SET key = value`.
//!
//! The table of [`settings`] is the only list of them: parsing, messages, EXPLAIN and the reference
//! page are made from it.

mod values;

use std::collections::BTreeMap;

use dataflow::job::{Exchange, Settings, ShuffleSettings};
use state::KeyMode;

use self::values::{
    bytes, checkpoint, exchange, guarantee, idle, key_mode, nanos, on, prefetch, racks,
    set_casting, set_shuffle, set_wires, spill_dir, transfer,
};

/// One setting, for checks and for the reference page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SettingSpec {
    /// Its name.
    pub name: &'static str,
    /// Its values, for a reader.
    pub values: &'static str,
    /// Its default, as it would be written.
    pub default: &'static str,
    /// Whether it is of a statement or of a whole job.
    pub scope: Scope,
    /// One sentence.
    pub doc: &'static str,
}

/// The scope of a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// How a statement is planned: the statements of a set may differ.
    Statement,
    /// How workers run: all statements of a set have the same.
    Job,
}

/// All settings, by name.
pub fn settings() -> &'static [SettingSpec] {
    SETTINGS
}

const SETTINGS: &[SettingSpec] = &[
    SettingSpec {
        name: "millstream.allowed_lateness",
        values: "a time: 500 ms, 10 s, 5 min, 1 h",
        default: "0 s",
        scope: Scope::Statement,
        doc: "How long windows and joins wait behind the watermark: each emits its result once, \
              when the watermark has passed its end by as much, and rows count until then.",
    },
    SettingSpec {
        name: "millstream.batch_bytes",
        values: "bytes",
        default: "2 GiB",
        scope: Scope::Job,
        doc: "Memory of the part of a query over bounded input that runs when all input has been \
              read: some joins, subqueries, OVER.",
    },
    SettingSpec {
        name: "millstream.batch_rows",
        values: "1 to 1048576",
        default: "16384",
        scope: Scope::Job,
        doc: "Rows of a batch at most.",
    },
    SettingSpec {
        name: "millstream.checkpoint",
        values: "auto, off, or a time: 100 ms, 1 s",
        default: "auto",
        scope: Scope::Job,
        doc: "How often a job that runs with --state is saved. With auto a checkpoint is begun a \
              hundred times as long after another as that took, and after 1 s to 60 s.",
    },
    SettingSpec {
        name: "millstream.checksum",
        values: "auto, on, off",
        default: "auto",
        scope: Scope::Job,
        doc: "Which rows carry checksums from one node to another: with auto those over tcp, with \
              on those over any transport. Where one does not fit, the connection is made anew \
              and the rows are sent again.",
    },
    SettingSpec {
        name: "millstream.connection",
        values: "auto, process, worker",
        default: "auto",
        scope: Scope::Job,
        doc: "Between two nodes: one connection that all their workers share, or one for each pair \
              of workers. With auto they share over tcp and verbs, and wherever a thread moves \
              them.",
    },
    SettingSpec {
        name: "millstream.credit_slots",
        values: "auto, or 1 to 64",
        default: "auto",
        scope: Scope::Job,
        doc: "How many slots of a ring a worker frees before it tells the other by a notice of its \
              own; what it sends tells so too. More than the slots for data count as all of them; \
              with auto it is a quarter of the ring.",
    },
    SettingSpec {
        name: "millstream.epoch_bytes",
        values: "bytes",
        default: "64 MiB",
        scope: Scope::Job,
        doc: "Bytes of input after which a worker sends what it has aggregated to the leaders, to \
              begin with.",
    },
    SettingSpec {
        name: "millstream.epoch_latency",
        values: "a time: 500 ms, 1 s, 5 min",
        default: "1 s",
        scope: Scope::Job,
        doc: "How long the end of an epoch may take; when it takes longer, the next one is \
              shorter.",
    },
    SettingSpec {
        name: "millstream.epoch_stretch",
        values: "1 to 1024",
        default: "16",
        scope: Scope::Job,
        doc: "How many times longer or shorter than millstream.epoch_bytes an epoch may become, by \
              how well rows combine in it; with 1 all are as long.",
    },
    SettingSpec {
        name: "millstream.epochs_kept",
        values: "1 to 64",
        default: "4",
        scope: Scope::Job,
        doc: "Epochs that a worker may close before the oldest was acknowledged.",
    },
    SettingSpec {
        name: "millstream.exchange",
        values: "auto, merge, shuffle, uppar, forward",
        default: "auto",
        scope: Scope::Statement,
        doc: "How rows of different workers meet when they are grouped or joined; with uppar half \
              of the workers read and send rows on, the others group them.",
    },
    SettingSpec {
        name: "millstream.frequent_keys",
        values: "auto, on, off",
        default: "auto",
        scope: Scope::Statement,
        doc: "Whether rows of frequent keys are grouped where they are read and their groups sent, \
              where the exchange is shuffle: with auto if a sample shows that enough rows have \
              such keys.",
    },
    SettingSpec {
        name: "millstream.guarantee",
        values: "auto, exactly-once, at-least-once",
        default: "auto",
        scope: Scope::Job,
        doc: "What a job that runs with --state has to promise of each row of its output: to be \
              seen once whatever fails, or not to be lost. A job that cannot promise it is \
              refused. With auto each table is as exact as it can be.",
    },
    SettingSpec {
        name: "millstream.hardware_counters",
        values: "on, off",
        default: "off",
        scope: Scope::Job,
        doc: "Whether each worker has its processor count cycles, instructions and misses, for the \
              metrics of a worker that has ended, where the kernel gives such counters (perf).",
    },
    SettingSpec {
        name: "millstream.idle",
        values: "block, spin",
        default: "block",
        scope: Scope::Job,
        doc: "What a worker does when nothing is ready: sleep, or poll on for the lowest latency.",
    },
    SettingSpec {
        name: "millstream.idle_timeout",
        values: "a time: 500 ms, 30 s, 5 min, 1 h; 0 s for never",
        default: "30 s",
        scope: Scope::Statement,
        doc: "After so long a silence a flow of a table that never ends no longer holds the \
              watermark back, if the table has no IDLE TIMEOUT of its own. Tables that end \
              always hold it back.",
    },
    SettingSpec {
        name: "millstream.key_mode",
        values: "auto, tiny, array, ranges, hash, packed, wide",
        default: "auto",
        scope: Scope::Statement,
        doc: "How the group of a row is found, where the keys allow it: at its distance from the \
              least key, of few keys, of many, or of many when rows of neighbours have come; in a \
              hash table of numbers; of several packed into one; of bytes.",
    },
    SettingSpec {
        name: "millstream.multicast",
        values: "auto, tree, hardware",
        default: "auto",
        scope: Scope::Job,
        doc: "Who copies rows for every worker between processes, where the fabric has multicast \
              of its own (RDMA over RoCE v2): the network, with datagrams of which what gets lost \
              is fetched, or the processes along the tree. With auto the network, for four \
              processes and more and frames of 4 KiB and more, until it loses a quarter of them.",
    },
    SettingSpec {
        name: "millstream.multicast_queue",
        values: "1 to 65536",
        default: "64",
        scope: Scope::Job,
        doc: "Frames of a broadcast that may wait at the worker that gives them out; then it reads \
              no more rows.",
    },
    SettingSpec {
        name: "millstream.multicast_tree",
        values: "auto, sequential, binomial, copies, or the most children of a process: 1 to 64",
        default: "auto",
        scope: Scope::Job,
        doc: "How rows for every worker go from process to process: by a tree whose degree follows \
              the load, or by a fixed one. With copies the worker that gives rows out encodes and \
              sends them anew for each worker, to compare with.",
    },
    SettingSpec {
        name: "millstream.pin",
        values: "on, off",
        default: "off",
        scope: Scope::Job,
        doc: "Whether each worker runs on a processor of its own: the workers of a machine take, \
              in their order, the processors that the process was given by its launcher (taskset, \
              mpirun --bind-to, srun --cpu-bind) or by the system. Refused where there are too \
              few.",
    },
    SettingSpec {
        name: "millstream.prefetch",
        values: "auto, or strips: 1 to 64",
        default: "auto",
        scope: Scope::Job,
        doc: "How many strips of a table in a pool a worker asks for ahead of the one that it \
              reads, where the table does not say so: with auto about 1 MiB.",
    },
    SettingSpec {
        name: "millstream.progress",
        values: "spin, thread",
        default: "spin",
        scope: Scope::Job,
        doc: "Who moves connections that workers share: the workers when they poll, or one thread \
              of each node that sleeps when nothing happens.",
    },
    SettingSpec {
        name: "millstream.racks",
        values: "a label for each node, with commas between: a,a,b,b; none",
        default: "none",
        scope: Scope::Job,
        doc: "In which rack each node stands: rows for every worker enter each rack once.",
    },
    SettingSpec {
        name: "millstream.readers",
        values: "0 to 4095",
        default: "0",
        scope: Scope::Job,
        doc: "Workers that only read tables and send to the others, which keep state and read \
              none: the last ones, all but one at most. With 0 each worker does both.",
    },
    SettingSpec {
        name: "millstream.receive_bytes",
        values: "bytes, from 1 KiB to 1 GiB",
        default: "256 KiB",
        scope: Scope::Job,
        doc: "The receive window: bytes of rows of one input that a worker may have sent another \
              which has not processed them, where rows may have to wait at their receiver; then \
              the sender waits.",
    },
    SettingSpec {
        name: "millstream.reconnect",
        values: "a time: 100 ms, 30 s; 0 s for never",
        default: "30 s",
        scope: Scope::Job,
        doc: "How long a connection between two nodes that broke may take to be made anew. The job \
              goes on where it was, and without one it fails; so it does when a node has died.",
    },
    SettingSpec {
        name: "millstream.ring_mode",
        values: "write, read, region",
        default: "write",
        scope: Scope::Job,
        doc: "Who moves rows between two nodes: the worker that sends them writes into memory of \
              the one that takes them, or this one reads them from memory of the sender. With \
              `region` rows are written, and rows for every worker are written once into memory \
              of the sender that all of them read; slots have 4 MiB at most.",
    },
    SettingSpec {
        name: "millstream.ring_pages",
        values: "auto, huge, small",
        default: "auto",
        scope: Scope::Job,
        doc: "Pages of the system in which rings lie. With `auto` the rings between the workers of \
              two nodes lie beside each other where together they fill 2 MiB, and huge pages are \
              asked for; with `huge` also where they do not. Where the system has none to give \
              they lie in others; the log says at `info` what it gave. With `small` each ring has \
              memory of its own.",
    },
    SettingSpec {
        name: "millstream.shuffle_bytes",
        values: "bytes, up to 16 MiB",
        default: "16 KiB",
        scope: Scope::Statement,
        doc: "Bytes of rows for one worker, or for all, that are collected before they are sent; a \
              watermark by which something may become complete sends what waits.",
    },
    SettingSpec {
        name: "millstream.shuffle_wait",
        values: "a time: 100 us, 1 ms, 1 s; 0 s to collect no longer than a batch",
        default: "10 ms",
        scope: Scope::Statement,
        doc: "How long such rows wait for others, if they are fewer and no watermark sends them.",
    },
    SettingSpec {
        name: "millstream.slot_bytes",
        values: "bytes: a multiple of 64 from 128 to 16 MiB",
        default: "64 KiB",
        scope: Scope::Job,
        doc: "Bytes of a slot of the rings between workers of different nodes.",
    },
    SettingSpec {
        name: "millstream.slots",
        values: "3 to 64",
        default: "8",
        scope: Scope::Job,
        doc: "Slots of each ring between two workers of different nodes. A queue between two of \
              one node holds as many bytes of rows as all slots of a ring.",
    },
    SettingSpec {
        name: "millstream.spill_dir",
        values: "a folder, with a slash in its name: /var/tmp, ./spill; none",
        default: "none",
        scope: Scope::Job,
        doc: "Where groups go, and rows that wait, that do not fit millstream.state_bytes, in \
              files that have no name, that only this user can read, and that are gone when the \
              job ends, however it ends. Without it such a job ends with an error.",
    },
    SettingSpec {
        name: "millstream.stall_timeout",
        values: "a time: 500 ms, 60 s, 5 min, 1 h",
        default: "5 min",
        scope: Scope::Job,
        doc: "How long a worker may take none of the rows that are broadcast before the job fails.",
    },
    SettingSpec {
        name: "millstream.state_bytes",
        values: "bytes",
        default: "4 GiB",
        scope: Scope::Job,
        doc: "Memory of what the operators of a worker keep: groups, rows that wait in joins, \
              tables.",
    },
    SettingSpec {
        name: "millstream.table_bytes",
        values: "bytes, up to 1 GiB",
        default: "256 MiB",
        scope: Scope::Statement,
        doc: "Memory of a table that each node has whole to join a stream with it, which counts \
              as state of its workers, an equal part of each; and what a side of a join has at \
              most that goes to every worker by choice of the planner.",
    },
];

/// The choice of an exchange by `SET millstream.exchange`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum ExchangeChoice {
    /// The planner chooses.
    #[default]
    Auto,
    /// The user has chosen.
    Fixed(Exchange),
}

/// The settings in force.
#[derive(Debug, Clone)]
pub(crate) struct InForce {
    pub(crate) job: Settings,
    /// How rows are sent from worker to worker.
    pub(crate) shuffle: ShuffleSettings,
    pub(crate) exchange: ExchangeChoice,
    /// How groups are found; `None` by what the data are like.
    pub(crate) key_mode: Option<KeyMode>,
    pub(crate) batch_bytes: usize,
    pub(crate) table_bytes: usize,
    /// How long windows wait behind the watermark.
    pub(crate) allowed_lateness_ns: u64,
    /// Of flows that never end, where the table says nothing; `None` for never.
    pub(crate) idle_timeout_ns: Option<u64>,
    /// The values given by SET, as written.
    pub(crate) given: BTreeMap<&'static str, String>,
}

impl Default for InForce {
    fn default() -> Self {
        Self {
            job: Settings::default(),
            shuffle: ShuffleSettings::default(),
            exchange: ExchangeChoice::default(),
            key_mode: None,
            batch_bytes: 2 << 30,
            table_bytes: 256 << 20,
            allowed_lateness_ns: 0,
            idle_timeout_ns: Some(30_000_000_000),
            given: BTreeMap::new(),
        }
    }
}

/// Why a setting was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refused {
    /// There is no such setting.
    Unknown,
    /// It takes other values, which are named here.
    Value(&'static str),
}

impl InForce {
    /// The scope of a setting; `None` where there is no such setting.
    pub(crate) fn scope(name: &str) -> Option<Scope> {
        SETTINGS.iter().find(|spec| spec.name == name).map(|spec| spec.scope)
    }

    /// Puts a value in force.
    pub(crate) fn set(&mut self, name: &str, value: &str) -> Result<(), Refused> {
        let spec = SETTINGS.iter().find(|spec| spec.name == name).ok_or(Refused::Unknown)?;
        let (refused, mut changed) = (Refused::Value(spec.values), self.clone());
        let job = &mut changed.job;
        let lower = value.trim().to_lowercase();
        let number = |least: u64, most: u64| {
            bytes(&lower).filter(|n| (least..=most).contains(n)).ok_or(refused.clone())
        };
        let flag = || on(&lower).ok_or(refused.clone());
        let time = || nanos(&lower).filter(|ns| *ns > 0).ok_or(refused.clone());
        match name {
            "millstream.allowed_lateness" => {
                changed.allowed_lateness_ns = nanos(&lower).ok_or(refused.clone())?;
            }
            "millstream.idle_timeout" => {
                let silence = nanos(&lower).ok_or(refused.clone())?;
                changed.idle_timeout_ns = Some(silence).filter(|ns| *ns > 0);
            }
            "millstream.batch_bytes" => changed.batch_bytes = number(1 << 20, 1 << 50)? as usize,
            "millstream.batch_rows" => job.batch_rows_max = number(1, 1 << 20)? as usize,
            "millstream.epoch_bytes" => job.epoch.bytes = number(1, 1 << 50)?,
            "millstream.epoch_latency" => job.epoch.latency_ns = time()?,
            "millstream.epoch_stretch" => job.epoch.stretch = number(1, 1024)?,
            "millstream.epochs_kept" => job.epochs_kept_max = number(1, 64)? as usize,
            "millstream.frequent_keys" | "millstream.shuffle_bytes" | "millstream.shuffle_wait" => {
                set_shuffle(&mut changed.shuffle, name, &lower).ok_or(refused.clone())?;
            }
            "millstream.checkpoint" => {
                job.checkpoint = checkpoint(&lower).ok_or(refused.clone())?
            }
            "millstream.guarantee" => job.guarantee = guarantee(&lower).ok_or(refused.clone())?,
            "millstream.prefetch" => job.prefetch = prefetch(&lower).ok_or(refused.clone())?,
            "millstream.readers" => job.readers = number(0, 4_095)? as u32,
            "millstream.receive_bytes" => job.receive_bytes = number(1 << 10, 1 << 30)?,
            "millstream.reconnect" => job.reconnect_ns = nanos(&lower).ok_or(refused.clone())?,
            "millstream.ring_mode" => {
                job.ring.transfer = transfer(&lower).ok_or(refused.clone())?;
            }
            "millstream.slot_bytes" => job.ring.slot_bytes = number(128, 16 << 20)? as u32,
            "millstream.slots" => job.ring.slots = number(3, 64)? as u32,
            "millstream.state_bytes" => job.state_bytes_max = number(1 << 10, 1 << 50)? as usize,
            "millstream.table_bytes" => changed.table_bytes = number(1, 1 << 30)? as usize,
            "millstream.multicast" | "millstream.multicast_queue" | "millstream.multicast_tree" => {
                set_casting(&mut job.casting, name, &lower).ok_or(refused.clone())?;
            }
            "millstream.spill_dir" => {
                job.spill = spill_dir(value.trim()).ok_or(refused.clone())?;
            }
            "millstream.racks" => job.casting.racks = racks(value).ok_or(refused.clone())?,
            "millstream.stall_timeout" => job.casting.stall_ns = time()?,
            "millstream.checksum"
            | "millstream.connection"
            | "millstream.credit_slots"
            | "millstream.progress"
            | "millstream.ring_pages" => {
                set_wires(&mut job.wires, name, &lower).ok_or(refused.clone())?;
            }
            "millstream.key_mode" => changed.key_mode = key_mode(&lower).ok_or(refused.clone())?,
            "millstream.exchange" => changed.exchange = exchange(&lower).ok_or(refused.clone())?,
            "millstream.hardware_counters" => job.hardware_counters = flag()?,
            "millstream.pin" => job.pins_workers = flag()?,
            _ => job.idle = idle(&lower).ok_or(refused.clone())?,
        }
        job.ring.validate().map_err(|_| refused)?;
        changed.given.insert(spec.name, value.trim().to_owned());
        *self = changed;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_setting_takes_its_default_and_changes_nothing() {
        let before = InForce::default();
        for spec in settings() {
            let mut after = before.clone();
            after.set(spec.name, spec.default).unwrap_or_else(|e| panic!("{}: {e:?}", spec.name));
            assert_eq!(after.job, before.job, "{}", spec.name);
            assert_eq!(after.shuffle, before.shuffle, "{}", spec.name);
            assert_eq!(after.exchange, before.exchange);
            assert_eq!(after.batch_bytes, before.batch_bytes);
            assert_eq!(after.table_bytes, before.table_bytes);
            assert_eq!(after.allowed_lateness_ns, before.allowed_lateness_ns);
            assert_eq!(after.idle_timeout_ns, before.idle_timeout_ns);
            assert_eq!(after.set(spec.name, "nonsense"), Err(Refused::Value(spec.values)));
        }
        assert!(settings().is_sorted_by_key(|spec| spec.name));
    }

    #[test]
    fn times_have_units() {
        let mut set = InForce::default();
        for (text, ns) in [("500 ms", 500_000_000), ("2min", 120_000_000_000), ("0 s", 0)] {
            set.set("millstream.allowed_lateness", text).expect("a time");
            assert_eq!(set.allowed_lateness_ns, ns);
        }
        set.set("millstream.idle_timeout", "1 H").expect("a time");
        assert_eq!(set.idle_timeout_ns, Some(3_600_000_000_000));
        set.set("millstream.idle_timeout", "0 s").expect("a time");
        assert_eq!(set.idle_timeout_ns, None);
        for text in ["10", "", "s", "-1 s", "1 year", "99999999999999999 h", "9999999999 s"] {
            assert!(set.set("millstream.idle_timeout", text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_have_units() {
        let mut set = InForce::default();
        set.set("millstream.epoch_bytes", "16 mb").expect("a size");
        assert_eq!(set.job.epoch.bytes, 16 << 20);
        assert_eq!(
            set.set("millstream.slot_bytes", "100"),
            Err(Refused::Value("bytes: a multiple of 64 from 128 to 16 MiB"))
        );
        assert!(set.set("millstream.epoch_bytes", "99999999999g").is_err());
        assert_eq!(set.set("millstream.epochs", "1"), Err(Refused::Unknown));
    }
}
