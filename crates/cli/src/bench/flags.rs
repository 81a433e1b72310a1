//! Flags that were given and would change nothing, or say two things at once.

use super::{BenchArgs, Name};
use crate::failure::Failure;

/// What only runs by the clock know.
const BY_CLOCK: [&str; 2] = ["--seconds", "--window-every"];

/// What sets an option besides `--set`.
const SETTINGS: [(&str, &str); 3] = [
    ("--slot-bytes", "millstream.slot_bytes"),
    ("--credits", "millstream.slots"),
    ("--epoch", "millstream.epoch_bytes"),
];

impl BenchArgs {
    /// An error for the first flag that what is measured does not take, or that says something else
    /// than another.
    pub(super) fn check(&self) -> Result<(), Failure> {
        let given = self.given();
        let refused = |why: &str, hint: &str| Err(Failure::usage(why, Some(hint)));
        let is_given = |flag: &str| given.contains(&flag);
        match self.taken() {
            Some((what, taken)) => {
                if let Some(flag) = given.iter().find(|flag| !taken.contains(flag)) {
                    let hint = format!("it takes {}", taken.join(", "));
                    return refused(&format!("{flag} is not of {what}"), &hint);
                }
            }
            None if is_given("--report") => {
                return refused("--report is of 'bench wire' and 'bench shuffle'", "use --json");
            }
            None => {
                if let Some(flag) = BY_CLOCK.into_iter().find(|&flag| is_given(flag)) {
                    let why = format!("{flag} is of runs by the clock");
                    return refused(&why, "add --latency RATE or --sustainable");
                }
            }
        }
        let sets = |key: &str| self.set.iter().any(|(set, _)| set.eq_ignore_ascii_case(key));
        if sets("millstream.exchange") {
            return refused("bench sets millstream.exchange itself", "use --exchange");
        }
        if let Some((flag, key)) = SETTINGS.iter().find(|(flag, key)| is_given(flag) && sets(key)) {
            return refused(&format!("{flag} and --set {key} say the same"), "leave one out");
        }
        self.check_number()
    }

    /// An error where there are too few processes or threads.
    fn check_number(&self) -> Result<(), Failure> {
        let refused = |why: &str, hint: &str| Err(Failure::usage(why, Some(hint)));
        let more = "use --workers 2 or --nodes 2";
        let is_uppar = |exchange: &String| exchange.eq_ignore_ascii_case("uppar");
        match self.workload {
            Some(Name::Shuffle) if self.nodes == Some(1) => {
                refused("one process has nobody to shuffle to", "use --nodes 2")
            }
            Some(Name::Limits) if self.workers == Some(1) => {
                refused("a link has a thread at each end", "use --workers 2")
            }
            _ if self.nodes() * self.workers() > 1 => Ok(()),
            _ if self.exchange.iter().any(is_uppar) => {
                refused("by uppar one half of the workers partitions, the other aggregates", more)
            }
            _ if self.against_one => refused("--against-one compares one worker with more", more),
            _ => Ok(()),
        }
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
                &[
                    "--nodes",
                    "--workers",
                    "--rows",
                    "--keys",
                    "--distribution",
                    "--exponent",
                    "--write",
                ],
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
                    "--latency",
                    "--sustainable",
                    "--seconds",
                    "--window-every",
                    "--low-latency",
                    "--set",
                ],
            ),
            _ => return None,
        })
    }

    /// Those that were given, but for how it is printed.
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
            ("--latency", self.latency.is_some()),
            ("--sustainable", self.sustainable),
            ("--seconds", self.seconds.is_some()),
            ("--window-every", self.window_every.is_some()),
            ("--low-latency", self.low_latency),
            ("--set", !self.set.is_empty()),
            ("--write", self.write.is_some()),
            ("--report", self.report.is_some()),
        ];
        all.into_iter().filter_map(|(flag, given)| given.then_some(flag)).collect()
    }
}
