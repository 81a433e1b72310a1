//! The workloads: their SQL, how large they are, and what they compute.

use std::fmt;

/// A workload of the papers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Workload {
    /// Views of 100 campaigns, every 10 seconds (S14, A8).
    Ysb,
    /// Rows of each 8-byte key, every 10 minutes: YSB as Slash has it.
    YsbKeys,
    /// Rows of each key, over everything.
    Ro,
    /// Mean of a share per job, every 2 seconds.
    Cm,
    /// Highest bid per auction, every minute.
    Nb7,
}

/// How often each key comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Distribution {
    /// All as often.
    Uniform,
    /// By Zipf's law with exponent 1.
    Zipf,
    /// By Pareto's law: 80 % of the rows have 20 % of the keys.
    Pareto,
}

/// How large a workload is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// Rows of each worker.
    pub rows_per_worker: u64,
    /// Workers of all nodes.
    pub workers: u64,
    /// Different keys; of no effect on [`Workload::Ysb`].
    pub keys: u64,
    /// How often each comes; of no effect on [`Workload::Ysb`].
    pub distribution: Distribution,
}

impl Size {
    /// Rows of all workers.
    pub fn rows(&self) -> u64 {
        self.rows_per_worker.saturating_mul(self.workers)
    }
}

/// What is computed of the rows of a key in a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// How many there are.
    Count,
    /// The greatest value.
    Max,
    /// The mean of the values.
    Mean,
}

/// A workload as columns, for who computes it by other means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// The table with its rows, as option 'kind'.
    pub kind: &'static str,
    /// Event time and milliseconds of a window, if there is one.
    pub window: Option<(&'static str, i64)>,
    /// The column of the key, and by what it is divided.
    pub key: (&'static str, i64),
    /// The column of the value, if it matters.
    pub value: Option<&'static str>,
    /// A column and the word that it must have.
    pub filter: Option<(&'static str, &'static str)>,
    /// What is computed.
    pub answer: Answer,
}

impl Workload {
    /// Its SQL, to be filled in.
    fn template(self) -> &'static str {
        match self {
            Workload::Ysb => include_str!("../sql/ysb.sql"),
            Workload::YsbKeys => include_str!("../sql/ysb-keys.sql"),
            Workload::Ro => include_str!("../sql/ro.sql"),
            Workload::Cm => include_str!("../sql/cm.sql"),
            Workload::Nb7 => include_str!("../sql/nb7.sql"),
        }
    }

    /// Its SQL at a size.
    pub fn sql(self, size: &Size) -> String {
        let mut sql = self.template().to_owned();
        for (name, value) in self.values(size) {
            sql = sql.replace(&format!("{{{name}}}"), &value);
        }
        sql
    }

    /// The generator's options that depend on the size.
    pub(crate) fn values(self, size: &Size) -> [(&'static str, String); 4] {
        // Each worker reads the same span of event time, however many there are.
        let interval_ns = (self.interval_ns() / size.workers.max(1)).max(1);
        [
            ("rows", size.rows().to_string()),
            ("keys", size.keys.to_string()),
            ("distribution", size.distribution.to_string()),
            ("interval", format!("{interval_ns}ns")),
        ]
    }

    /// Event time between two rows of one worker: such that a few windows fire while it runs.
    fn interval_ns(self) -> u64 {
        match self {
            Workload::Ysb | Workload::Ro | Workload::Cm => 1_000,
            Workload::YsbKeys => 15_000,
            Workload::Nb7 => 5_000,
        }
    }

    /// Rows of each worker, unless somebody says otherwise: half a gigabyte to two.
    pub fn rows_per_worker(self) -> u64 {
        match self {
            Workload::Ysb | Workload::Cm | Workload::Nb7 => 32_000_000,
            Workload::YsbKeys | Workload::Ro => 128_000_000,
        }
    }

    /// Keys, unless somebody says otherwise.
    pub fn keys(self) -> u64 {
        match self {
            Workload::Ysb => 100,
            Workload::YsbKeys | Workload::Ro => 10_000_000,
            Workload::Cm | Workload::Nb7 => 10_000,
        }
    }

    /// How often each key comes, unless somebody says otherwise.
    pub fn distribution(self) -> Distribution {
        match self {
            Workload::Ysb | Workload::YsbKeys | Workload::Ro => Distribution::Uniform,
            Workload::Cm => Distribution::Zipf,
            Workload::Nb7 => Distribution::Pareto,
        }
    }

    /// What it computes.
    pub fn shape(self) -> Shape {
        let ysb = Shape {
            kind: "ysb",
            window: Some(("event_time", 10_000)),
            key: ("ad_id", 10),
            value: None,
            filter: Some(("event_type", "view")),
            answer: Answer::Count,
        };
        match self {
            Workload::Ysb => ysb,
            Workload::YsbKeys => Shape {
                window: Some(("event_time", 600_000)),
                key: ("key", 1),
                filter: None,
                ..ysb
            },
            Workload::Ro => {
                Shape { kind: "ro", window: None, key: ("key", 1), filter: None, ..ysb }
            }
            Workload::Cm => Shape {
                kind: "cluster-monitoring",
                window: Some(("event_time", 2_000)),
                key: ("job_id", 1),
                value: Some("cpu"),
                filter: None,
                answer: Answer::Mean,
            },
            Workload::Nb7 => Shape {
                kind: "nexmark",
                window: Some(("date_time", 60_000)),
                key: ("auction", 1),
                value: Some("price"),
                filter: None,
                answer: Answer::Max,
            },
        }
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Workload::Ysb => "ysb",
            Workload::YsbKeys => "ysb-keys",
            Workload::Ro => "ro",
            Workload::Cm => "cm",
            Workload::Nb7 => "nb7",
        })
    }
}

impl fmt::Display for Distribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Distribution::Uniform => "uniform",
            Distribution::Zipf => "zipf",
            Distribution::Pareto => "pareto",
        })
    }
}
