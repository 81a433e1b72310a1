//! How a job with checkpoints is recovered, operator by operator: one decision for the start of a
//! job and for EXPLAIN.

use std::fmt;

use super::{JobFunction, Operator, OperatorKind, RowOwner, SavedState, Scan};
use crate::connector::sink::SinkVisibility;

/// The promise that a user asks of a job with checkpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Guarantee {
    /// Each row of the output is seen once, whatever fails.
    ExactlyOnce,
    /// Each row of the output is seen, after a failure perhaps again.
    AtLeastOnce,
}

impl Guarantee {
    /// The name by which it is set.
    pub fn name(self) -> &'static str {
        match self {
            Self::ExactlyOnce => "exactly-once",
            Self::AtLeastOnce => "at-least-once",
        }
    }
}

/// The fate of an operator in a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OperatorRecovery {
    /// A source: it is read on from saved positions.
    Positions,
    /// A source without positions from which it could be read on. It gives the same rows when it
    /// is read anew.
    ReadAnew,
    /// A source whose rows come once: nothing can be read of it again.
    ReadOnce,
    /// It keeps nothing from one row to the next.
    Stateless,
    /// Its state is saved by the keys of its rows, so that it may be distributed otherwise.
    SavedByKey,
    /// Its state is saved as a whole.
    Saved,
    /// It is built anew from all rows.
    Rebuilt,
    /// A user's operator that does not say what it keeps.
    Unknown,
    /// A sink: when its rows are seen.
    Sink(SinkVisibility),
}

impl OperatorRecovery {
    /// The fate of an operator.
    pub fn of(operator: &Operator) -> Self {
        if let OperatorKind::Source(scan) = &operator.kind {
            return match (scan.source.replays(), scan.source.repeats()) {
                (true, _) => Self::Positions,
                (false, true) => Self::ReadAnew,
                (false, false) => Self::ReadOnce,
            };
        }
        if let Some(sink) = operator.kind.spec().sink() {
            return Self::Sink(sink.staging());
        }
        match operator.kind.spec().saved_state() {
            SavedState::Nothing => Self::Stateless,
            SavedState::Rebuilt => Self::Rebuilt,
            SavedState::Unknown => Self::Unknown,
            SavedState::Parts(saved) => {
                let by_key =
                    |owner: &RowOwner| matches!(owner, RowOwner::Input(_) | RowOwner::Keys(_));
                let is_keyed = saved.parts.iter().any(|part| by_key(&part.owner));
                if is_keyed { Self::SavedByKey } else { Self::Saved }
            }
        }
    }

    /// Why a job with an operator of this name and fate takes no checkpoints.
    fn obstacle(self, name: &str) -> Option<String> {
        match self {
            Self::Rebuilt => Some(format!("'{name}' is built anew from all rows")),
            Self::ReadAnew | Self::ReadOnce => {
                Some(format!("'{name}' is not read on from a position"))
            }
            Self::Sink(SinkVisibility::AtEnd) => {
                Some(format!("rows of '{name}' are kept until the job has ended"))
            }
            _ => None,
        }
    }

    /// Why an operator of this name and fate does not keep a promise.
    fn breach(self, name: &str, guarantee: Guarantee) -> Option<String> {
        match (self, guarantee) {
            (Self::ReadOnce, _) => {
                Some(format!("rows of '{name}' that were read before a failure are lost"))
            }
            (Self::Sink(SinkVisibility::AsTheyCome), Guarantee::ExactlyOnce) => {
                Some(format!("rows of '{name}' are seen as they come, and again after a failure"))
            }
            _ => None,
        }
    }
}

impl fmt::Display for OperatorRecovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Positions => "positions are saved",
            Self::ReadAnew => "not read on from a position, but anew",
            Self::ReadOnce => "not read on from a position: what was read is lost",
            Self::Stateless => "keeps nothing",
            Self::SavedByKey => "state is saved by key",
            Self::Saved => "state is saved",
            Self::Rebuilt => "built anew from all rows",
            Self::Unknown => "does not say what it keeps",
            Self::Sink(SinkVisibility::ByCheckpoint) => "each row once, seen with each checkpoint",
            Self::Sink(SinkVisibility::Retained) => "each row once, seen when the job has ended",
            Self::Sink(SinkVisibility::AsTheyCome) => "at least once, seen as rows come",
            Self::Sink(SinkVisibility::AtEnd) => {
                "each row once, seen when the job has ended, which no checkpoint keeps"
            }
        })
    }
}

/// How a job with checkpoints is recovered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobRecovery {
    /// Its operators, by their numbers.
    pub operators: Vec<OperatorRecovery>,
    /// Why it takes no checkpoints, and begins anew after a failure; empty if it takes some.
    pub obstacles: Vec<String>,
    /// Why it is refused; empty if it runs.
    pub refusals: Vec<RecoveryRefusal>,
}

/// Why a job with checkpoints is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecoveryRefusal {
    /// The operator, and the reason.
    pub message: String,
    /// Advice for the user.
    pub hint: &'static str,
}

impl JobRecovery {
    /// The recovery of a job with these operators, which calls these functions of the program, and
    /// of which its user asks a guarantee.
    pub fn of(
        operators: &[Operator],
        functions: &[JobFunction],
        guarantee: Option<Guarantee>,
    ) -> Self {
        let fates: Vec<OperatorRecovery> = operators.iter().map(OperatorRecovery::of).collect();
        let named = || operators.iter().map(|operator| &*operator.name).zip(fates.iter().copied());
        let obstacles: Vec<String> =
            named().filter_map(|(name, fate)| fate.obstacle(name)).collect();
        let scans = operators.iter().filter_map(|operator| match &operator.kind {
            OperatorKind::Source(scan) => Some(scan),
            _ => None,
        });
        let ends = scans.fold(true, |ends, scan: &Scan| ends & scan.bounded());
        let mut refusals = Vec::new();
        for (name, _) in named().filter(|(_, fate)| *fate == OperatorRecovery::Unknown) {
            refusals.push(RecoveryRefusal {
                message: format!(
                    "operator '{name}' does not say what it keeps, so that the job cannot be saved"
                ),
                hint: "give its KeyedOperator::saved the parts of its state",
            });
        }
        if !ends && !obstacles.is_empty() {
            refusals.push(RecoveryRefusal {
                message: format!(
                    "the job has no end and cannot be saved: {}",
                    obstacles.join("; ")
                ),
                hint: "run it without --state: nothing of it can be kept, and a failure begins it \
                       anew",
            });
        }
        let breaches = guarantee.map_or(vec![], |guarantee| {
            named().filter_map(|(name, fate)| fate.breach(name, guarantee)).collect()
        });
        if let Some(guarantee) = guarantee.filter(|_| !breaches.is_empty()) {
            refusals.push(RecoveryRefusal {
                message: format!(
                    "the job cannot promise millstream.guarantee = '{}': {}",
                    guarantee.name(),
                    breaches.join("; ")
                ),
                hint: match guarantee {
                    Guarantee::ExactlyOnce => {
                        "read files or generators, and write into a directory or a file, or set \
                         millstream.guarantee to 'at-least-once' or 'auto'"
                    }
                    Guarantee::AtLeastOnce => {
                        "read files or generators, or set millstream.guarantee to 'auto'"
                    }
                },
            });
        }
        if guarantee == Some(Guarantee::ExactlyOnce) {
            refusals.extend(functions.iter().filter_map(volatile));
        }
        refusals.extend(operators.iter().filter_map(once));
        Self { operators: fates, obstacles, refusals }
    }
}

/// The refusal of a function that gives other values when rows are computed again.
fn volatile(function: &JobFunction) -> Option<RecoveryRefusal> {
    let name = &function.name;
    function.volatile.then(|| RecoveryRefusal {
        message: format!(
            "the job cannot promise millstream.guarantee = 'exactly-once': function '{name}' is \
             volatile, and may give other values when rows are computed again"
        ),
        hint: "declare it immutable or stable if it is, or set millstream.guarantee to 'auto'",
    })
}

/// The refusal of a source whose rows are gone when they were read.
fn once(operator: &Operator) -> Option<RecoveryRefusal> {
    let OperatorKind::Source(scan) = &operator.kind else { return None };
    let name = &operator.name;
    scan.source.comes_once().then(|| RecoveryRefusal {
        message: format!(
            "rows of '{name}' come once, so that the job cannot begin anew after a failure"
        ),
        hint: "run it without --state, or write the rows into a file first",
    })
}
