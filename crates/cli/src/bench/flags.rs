//! Flags that were given and would change nothing, or say two things at once.

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command, FromArgMatches};

use super::{BenchArgs, Name};
use crate::failure::Failure;

/// How something is printed, which is asked of everything.
const PRINTED: [&str; 2] = ["json", "log"];

/// The flags that were given, but for those of printing.
#[derive(Debug)]
pub(super) struct SetFlags(Vec<String>);

impl Args for SetFlags {
    fn augment_args(command: Command) -> Command {
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        command
    }
}

impl FromArgMatches for SetFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let all = BenchArgs::augment_args(Command::new("bench"));
        let flags = all.get_arguments().filter_map(|argument| {
            let flag = argument.get_long().filter(|flag| !PRINTED.contains(flag))?;
            let source = matches.value_source(argument.get_id().as_str());
            (source == Some(ValueSource::CommandLine)).then(|| format!("--{flag}"))
        });
        Ok(Self(flags.collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Options of runs by the clock.
const BY_CLOCK: [&str; 2] = ["--seconds", "--window-every"];

/// Flags that set an option besides `--set`.
const SETTINGS: [(&str, &str); 3] = [
    ("--slot-bytes", "millstream.slot_bytes"),
    ("--credits", "millstream.slots"),
    ("--epoch", "millstream.epoch_bytes"),
];

impl SetFlags {
    pub(super) fn has(&self, flag: &str) -> bool {
        self.0.iter().any(|set| set == flag)
    }
}

impl BenchArgs {
    /// An error for the first flag that what is measured does not take, or that says something else
    /// than another.
    pub(super) fn check(&self) -> Result<(), Failure> {
        let refused = |why: &str, hint: &str| Err(Failure::usage(why, Some(hint)));
        let is_given = |flag: &str| self.set_flags.has(flag);
        match self.taken() {
            Some((what, taken)) => {
                if let Some(flag) =
                    self.set_flags.0.iter().find(|flag| !taken.contains(&flag.as_str()))
                {
                    let hint = format!("it takes {}", taken.join(", "));
                    return refused(&format!("{flag} is not of {what}"), &hint);
                }
            }
            None if is_given("--report") => {
                return refused(
                    "--report is of 'bench wire', 'bench shuffle' and 'bench session'",
                    "use --json",
                );
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
        if self.against_two && self.nodes == 1 {
            return refused("--against-two compares with as many processes", "use --nodes 2");
        }
        let is_uppar = |exchange: &String| exchange.eq_ignore_ascii_case("uppar");
        match self.workload {
            Some(Name::Shuffle) if self.nodes == 1 && self.set_flags.has("--nodes") => {
                refused("one process has nobody to shuffle to", "use --nodes 2")
            }
            Some(Name::Limits) if self.workers == 1 && self.set_flags.has("--workers") => {
                refused("a link has a thread at each end", "use --workers 2")
            }
            _ if self.nodes * self.workers > 1 => Ok(()),
            _ if self.exchange.iter().any(is_uppar) => {
                refused("by uppar one half of the workers partitions, the other aggregates", more)
            }
            _ if self.against_one => refused("--against-one compares one worker with more", more),
            _ => Ok(()),
        }
    }

    /// The workload, and all flags that it takes, where these are few.
    fn taken(&self) -> Option<(&'static str, &'static [&'static str])> {
        Some(match self.workload {
            Some(Name::Limits) => ("'bench limits'", &["--workers", "--runs"]),
            Some(Name::Wire) => ("'bench wire'", &["--fabric", "--runs", "--check", "--report"]),
            Some(Name::Session) => (
                "'bench session'",
                &["--nodes", "--workers", "--fabric", "--runs", "--check", "--set", "--report"],
            ),
            Some(Name::Shuffle) => (
                "'bench shuffle'",
                &["--nodes", "--fabric", "--rows", "--runs", "--check", "--report"],
            ),
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
}
