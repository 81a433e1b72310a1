//! Flags that were given and would change nothing, or say two things at once.

use super::{BenchArgs, Name};
use crate::failure::Failure;

/// What only runs by the clock know.
const BY_CLOCK: [&str; 2] = ["--seconds", "--window-every"];

/// What sets an option besides `--set`.
const SETTINGS: [(&str, &str); 4] = [
    ("--exchange", "millstream.exchange"),
    ("--slot-bytes", "millstream.slot_bytes"),
    ("--credits", "millstream.slots"),
    ("--epoch", "millstream.epoch_bytes"),
];

impl BenchArgs {
    /// An error for the first flag that what is measured does not take, or that says something else
    /// than another.
    pub(super) fn check(&self) -> Result<(), Failure> {
        let given = self.given();
        let is_given = |flag: &str| given.contains(&flag);
        if let Some((what, taken)) = self.taken()
            && let Some(flag) = given.iter().find(|flag| !taken.contains(flag))
        {
            let hint = format!("it takes {}", taken.join(", "));
            return Err(Failure::usage(&format!("{flag} is not of {what}"), Some(&hint)));
        }
        if is_given("--report") && self.taken().is_none() {
            return Err(Failure::usage("--report is of 'bench wire' and 'bench shuffle'", None));
        }
        if !self.by_clock()
            && let Some(flag) = BY_CLOCK.into_iter().find(|&flag| is_given(flag))
        {
            let hint = "add --latency RATE or --sustainable";
            return Err(Failure::usage(&format!("{flag} is of runs by the clock"), Some(hint)));
        }
        let both = |(flag, key): &(&str, &str)| {
            is_given(flag) && self.set.iter().any(|(set, _)| set.eq_ignore_ascii_case(key))
        };
        if let Some((flag, key)) = SETTINGS.iter().find(|one| both(one)) {
            let why = format!("{flag} and --set {key} say the same");
            return Err(Failure::usage(&why, Some("leave one of them out")));
        }
        let alone = self.nodes() * self.workers() == 1;
        if alone && self.exchange.iter().any(|exchange| exchange == "uppar") {
            let why = "by uppar one half of the workers partitions and the other aggregates";
            return Err(Failure::usage(why, Some("use --workers 2 or --nodes 2")));
        }
        Ok(())
    }

    /// What is measured, and all flags that it takes, where these are few.
    fn taken(&self) -> Option<(&'static str, &'static [&'static str])> {
        Some(match self.workload {
            Some(Name::Limits) => ("'bench limits'", &["--workers", "--runs"]),
            Some(Name::Wire) => ("'bench wire'", &["--fabric", "--runs", "--report"]),
            Some(Name::Shuffle) => {
                ("'bench shuffle'", &["--nodes", "--fabric", "--rows", "--runs", "--report"])
            }
            _ if self.write.is_some() => (
                "the rows that --write writes",
                &["--nodes", "--workers", "--rows", "--keys", "--distribution", "--exponent"],
            ),
            _ if self.by_clock() => (
                "runs by the clock",
                &[
                    "--nodes",
                    "--workers",
                    "--fabric",
                    "--keys",
                    "--distribution",
                    "--exponent",
                    "--slot-bytes",
                    "--credits",
                    "--epoch",
                    "--exchange",
                    "--seconds",
                    "--window-every",
                    "--low-latency",
                    "--set",
                ],
            ),
            _ => return None,
        })
    }

    /// Those that were given, but not those by which what is measured is chosen, and how it is
    /// printed.
    fn given(&self) -> Vec<&'static str> {
        let all = [
            ("--nodes", self.nodes.is_some()),
            ("--workers", self.workers.is_some()),
            ("--fabric", self.fabric.is_some()),
            ("--rows", self.rows.is_some()),
            ("--keys", self.keys.is_some()),
            ("--distribution", self.distribution.is_some()),
            ("--exponent", self.exponent.is_some()),
            ("--record-bytes", self.record_bytes.is_some()),
            ("--slot-bytes", self.slot_bytes.is_some()),
            ("--credits", self.credits.is_some()),
            ("--epoch", self.epoch.is_some()),
            ("--exchange", !self.exchange.is_empty()),
            ("--against-one", self.against_one),
            ("--against-loop", self.against_loop),
            ("--runs", self.runs.is_some()),
            ("--seconds", self.seconds.is_some()),
            ("--window-every", self.window_every.is_some()),
            ("--low-latency", self.low_latency),
            ("--set", !self.set.is_empty()),
            ("--report", self.report.is_some()),
        ];
        all.into_iter().filter_map(|(flag, given)| given.then_some(flag)).collect()
    }
}
