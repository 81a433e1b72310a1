//! The workloads: their SQL, and how large they are. What they compute: [`crate::task`].

use std::fmt;

use dataflow::connector::Options;

/// A workload of the papers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Workload {
    /// Views of 100 campaigns, every 10 seconds (S14, A8).
    Ysb,
    /// Views of each 8-byte key, every 10 minutes: YSB as Slash has it.
    YsbKeys,
    /// Clicks for each view of 100 campaigns, every 10 seconds (A8).
    YsbStar,
    /// Rows of each key, over everything.
    Ro,
    /// Mean of a share per job, every 2 seconds.
    Cm,
    /// Highest bid per auction, every minute.
    Nb7,
    /// Auctions with their sellers, of 12 hours (S7).
    Nb8,
    /// Bids with their bidders, of a session (S7).
    Nb11,
    /// Events of each advertisement in 10 seconds, every 2 seconds (A8).
    Swa,
}

/// How often each key comes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum KeyDistribution {
    /// All as often.
    Uniform,
    /// By Zipf's law with this exponent, more than 0.
    Zipf(f64),
    /// By Pareto's law: 80 % of the rows have 20 % of the keys.
    Pareto,
}

/// How large a workload is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WorkloadSize {
    /// Rows of each worker, of all tables together.
    pub rows_per_worker: u64,
    /// Workers of all nodes.
    pub workers: u64,
    /// Different keys; of no effect where [`Workload::has_keys`] is false.
    pub keys: u64,
    /// How often each comes; of no effect where [`Workload::has_keys`] is false.
    pub distribution: KeyDistribution,
    /// Nanoseconds of event time between two rows of the stream, if not as the workload has it.
    pub interval_ns: Option<u64>,
    /// Bytes of a record, where rows lie in memory as records of fixed length and not in columns.
    pub record_bytes: Option<u64>,
}

/// The size of a workload in its paper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PaperSize {
    /// Bytes of a record.
    pub record_bytes: u64,
    /// Different keys.
    pub keys: u64,
}

impl PaperSize {
    /// Records of each thread: a gigabyte.
    pub fn rows_per_worker(self) -> u64 {
        1_000_000_000 / self.record_bytes
    }
}

impl WorkloadSize {
    /// Rows of all workers.
    pub fn rows(&self) -> u64 {
        self.rows_per_worker.saturating_mul(self.workers)
    }
}

impl Workload {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Ysb,
        Self::YsbKeys,
        Self::YsbStar,
        Self::Ro,
        Self::Cm,
        Self::Nb7,
        Self::Nb8,
        Self::Nb11,
        Self::Swa,
    ];

    /// Its SQL, to be filled in.
    fn template(self) -> &'static str {
        match self {
            Workload::Ysb => include_str!("../sql/ysb.sql"),
            Workload::YsbKeys => include_str!("../sql/ysb-keys.sql"),
            Workload::YsbStar => include_str!("../sql/ysb-star.sql"),
            Workload::Ro => include_str!("../sql/ro.sql"),
            Workload::Cm => include_str!("../sql/cm.sql"),
            Workload::Nb7 => include_str!("../sql/nb7.sql"),
            Workload::Nb8 => include_str!("../sql/nb8.sql"),
            Workload::Nb11 => include_str!("../sql/nb11.sql"),
            Workload::Swa => include_str!("../sql/swa.sql"),
        }
    }

    /// Its SQL at a size.
    pub fn sql(self, size: &WorkloadSize) -> String {
        let interval_ns = size.interval_ns.unwrap_or_else(|| self.interval_ns(size.workers));
        let (rows, four) = (size.rows(), size.rows() - size.rows() / 5);
        let exponent = match size.distribution {
            KeyDistribution::Uniform => 1.0,
            KeyDistribution::Zipf(exponent) => exponent,
            KeyDistribution::Pareto => 1.16,
        };
        let mut sql = self.template().to_owned();
        if let Some(bytes) = size.record_bytes {
            let preload = "'preload' = 'true'";
            let records =
                format!("{preload}, 'layout' = 'fixed', 'fixed.record_bytes' = '{bytes}'");
            sql = sql.replace(preload, &records);
        }
        for (name, value) in [
            ("{rows}", rows.to_string()),
            ("{four_of_five}", four.to_string()),
            ("{one_of_five}", (rows - four).to_string()),
            ("{keys}", size.keys.to_string()),
            ("{distribution}", size.distribution.name().to_owned()),
            ("{exponent}", exponent.to_string()),
            ("{interval}", format!("{interval_ns}ns")),
        ] {
            sql = sql.replace(name, &value);
        }
        sql
    }

    /// Nanoseconds of event time between two rows of the stream: such that a few windows fire while
    /// it runs. Each worker reads the same span of event time, however many there are.
    pub fn interval_ns(self, workers: u64) -> u64 {
        let of_one = match self {
            Workload::Ysb | Workload::YsbStar | Workload::Ro | Workload::Cm | Workload::Swa => {
                1_000
            }
            Workload::YsbKeys => 15_000,
            Workload::Nb7 => 5_000,
            Workload::Nb8 => 40_000_000,
            Workload::Nb11 => 1_000_000,
        };
        (of_one / workers.max(1)).max(1)
    }

    /// Rows of each worker, unless somebody says otherwise: one to three gigabytes, a third of a
    /// second or more. Of a shorter run the start and the end show.
    pub fn rows_per_worker(self) -> u64 {
        match self {
            Workload::Nb8 | Workload::Nb11 => 4_000_000,
            Workload::YsbStar | Workload::Swa => 64_000_000,
            _ => 128_000_000,
        }
    }

    /// Whether all that is read of a row has a fixed length.
    pub fn is_fixed(self) -> bool {
        !matches!(self, Workload::Nb8 | Workload::Nb11)
    }

    /// How often each row is read: where the SQL names a table twice.
    pub fn reads(self) -> u64 {
        match self {
            Workload::YsbStar => 2,
            _ => 1,
        }
    }

    /// Whether keys and their distribution are for the caller to choose.
    pub fn has_keys(self) -> bool {
        use Workload::{Nb8, Nb11, Swa, Ysb, YsbStar};
        !matches!(self, Ysb | YsbStar | Swa | Nb8 | Nb11)
    }

    /// The size of its paper, where rows have a fixed length: a gigabyte for each thread.
    pub fn paper_size(self) -> Option<PaperSize> {
        let of = |record_bytes, keys| Some(PaperSize { record_bytes, keys });
        match self {
            Workload::Ysb | Workload::YsbStar | Workload::YsbKeys => of(78, self.keys()),
            // Variable there, and so many on the average.
            Workload::Swa => of(136, self.keys()),
            Workload::Ro => of(16, 100_000_000),
            Workload::Cm => of(64, self.keys()),
            Workload::Nb7 => of(32, self.keys()),
            Workload::Nb8 | Workload::Nb11 => None,
        }
    }

    /// Keys, unless somebody says otherwise.
    pub fn keys(self) -> u64 {
        match self {
            Workload::YsbKeys | Workload::Ro => 10_000_000,
            Workload::Cm | Workload::Nb7 => 10_000,
            Workload::Swa => 1_000,
            Workload::Ysb | Workload::YsbStar => 100,
            // Of persons this many sell and bid at a time.
            Workload::Nb8 | Workload::Nb11 => 1_000,
        }
    }

    /// How often each key comes, unless somebody says otherwise.
    pub fn distribution(self) -> KeyDistribution {
        match self {
            Workload::Cm => KeyDistribution::Zipf(1.0),
            Workload::Nb7 => KeyDistribution::Pareto,
            _ => KeyDistribution::Uniform,
        }
    }
}

/// The options of a table that the SQL of a workload makes.
pub(crate) fn options_of(sql: &str, table: &str) -> Options {
    let statement = sql.split(';').find_map(|s| s.split_once(&format!("CREATE TABLE {table} ")));
    let options = statement.and_then(|(_, rest)| rest.split_once("WITH ("));
    // Between quotes stand, in turns, a key and its value.
    let words = options.map_or("", |(_, options)| options).split('\'').skip(1).step_by(2);
    let (keys, values) = (words.clone().step_by(2), words.skip(1).step_by(2));
    keys.zip(values).map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

impl KeyDistribution {
    /// Its name in the generator.
    pub fn name(self) -> &'static str {
        match self {
            KeyDistribution::Uniform => "uniform",
            KeyDistribution::Zipf(_) => "zipf",
            KeyDistribution::Pareto => "pareto",
        }
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Workload::Ysb => "ysb",
            Workload::YsbKeys => "ysb-keys",
            Workload::YsbStar => "ysb-star",
            Workload::Ro => "ro",
            Workload::Cm => "cm",
            Workload::Nb7 => "nb7",
            Workload::Nb8 => "nb8",
            Workload::Nb11 => "nb11",
            Workload::Swa => "swa",
        })
    }
}

impl fmt::Display for KeyDistribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyDistribution::Zipf(exponent) if *exponent != 1.0 => write!(f, "zipf {exponent}"),
            other => f.write_str(other.name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_those_of_the_sql() {
        let distribution = KeyDistribution::Zipf(1.5);
        let size = WorkloadSize {
            rows_per_worker: 50,
            workers: 2,
            keys: 7,
            distribution,
            interval_ns: None,
            record_bytes: None,
        };
        let options = options_of(&Workload::Cm.sql(&size), "tasks");
        let of = |options: &Options, key: &str| options.get(key).cloned().unwrap_or_default();
        let zipf = [("keys", "7"), ("rows", "100"), ("distribution", "zipf"), ("exponent", "1.5")];
        for (key, value) in zipf.into_iter().chain([("connector", "generator")]) {
            assert_eq!(of(&options, key), value, "{key}");
        }
        let sql = Workload::Nb8.sql(&size);
        let (auctions, persons) = (options_of(&sql, "auctions"), options_of(&sql, "persons"));
        assert_eq!((of(&auctions, "rows"), of(&persons, "rows")), ("80".into(), "20".into()));
        assert_eq!(
            (of(&auctions, "table"), of(&persons, "table")),
            ("auction".into(), "person".into())
        );
        for workload in Workload::ALL {
            let sql = workload.sql(&size);
            assert!(!sql.contains(['{', '}']), "{sql}");
        }
    }
}
