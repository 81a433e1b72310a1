//! The facts that are known of an operator before it runs, said by the operator itself.
//!
//! The planner, the optimizer, EXPLAIN and the runtime ask these questions of any operator. No
//! other place knows all kinds, but the one that makes them run.

use std::sync::Arc;

use arrow::datatypes::{DataType, SchemaRef};

use super::{
    Description, Distribution, Exchange, Fusion, NotFused, ProbedBuild, SavedState, Scan,
    StateEstimate, StateMemory, Statistics, Step, Strategy,
};
use crate::connector::sink::Sink;

/// An operator as data. All but its schemas and what is saved of it has a default: that of an
/// operator which keeps nothing and moves no rows.
pub trait OperatorSpec {
    /// The columns of an input; nothing if there is no such input.
    fn input_schema(&self, input: usize) -> Option<SchemaRef>;

    /// The columns that it emits; nothing for a sink.
    fn schema(&self) -> Option<SchemaRef>;

    /// For EXPLAIN.
    fn describe(&self, context: &DescribeContext<'_>) -> Description;

    /// Statistics of what it emits, by those of its inputs.
    fn statistics(&self, inputs: &[Statistics], workers: u32) -> Statistics;

    /// The state that it may come to keep, by the statistics of its inputs.
    fn state(&self, inputs: &[Statistics], deployment: Deployment) -> Vec<StateEstimate> {
        let _ = (inputs, deployment);
        vec![]
    }

    /// Where its state is.
    fn memory(&self) -> StateMemory {
        StateMemory::Stateless
    }

    /// The fate of its state when a job is recovered. An operator that keeps none says so.
    fn saved_state(&self) -> SavedState;

    /// Whether later results depend on what it has saved, so that a job which goes on must find it
    /// again, and no other operator may take it up.
    fn remembers(&self) -> bool {
        matches!(self.saved_state(), SavedState::Parts(_))
    }

    /// Whether rows, or what is made of them, wait in it for those of other inputs or for time.
    fn waits_for_rows(&self) -> bool {
        false
    }

    /// How rows of equal keys meet in it; nothing if they need not.
    fn exchange(&self) -> Option<Exchange> {
        None
    }

    /// The exchange by whose function from keys to workers its rows are led: another one where both
    /// lead each key to the same worker.
    fn led_by(&self) -> Option<Exchange> {
        self.exchange()
    }

    /// The exchange to be changed.
    fn exchange_mut(&mut self) -> Option<&mut Exchange> {
        None
    }

    /// Whether workers can keep partial results, or rows, that are merged.
    fn merges(&self) -> bool {
        false
    }

    /// The columns of an input whose equal values meet.
    fn keys(&self, input: usize) -> &[usize] {
        let _ = input;
        &[]
    }

    /// The types of these columns, which are the same of all inputs.
    fn key_types(&self) -> Option<Vec<DataType>> {
        None
    }

    /// Where the rows of an input go; nothing if a function of the operator says so for each.
    fn distribution(&self, input: usize) -> Option<Distribution> {
        let _ = input;
        Some(Distribution::Local)
    }

    /// How the rows of an input reach it on a number of workers.
    fn strategy(&self, input: usize, workers: u32) -> Strategy {
        let _ = (input, workers);
        Strategy::Forward
    }

    /// Why it is this strategy on several workers, where its maker has not said so.
    fn reason(&self, strategy: Strategy) -> Option<&'static str> {
        match strategy {
            Strategy::Gather => Some("there is no key"),
            Strategy::Shuffle | Strategy::UpPar => Some("rows of equal keys meet on one worker"),
            _ => None,
        }
    }

    /// The most receive windows that it has on a worker: one for each sender of each input whose
    /// rows may have to wait before they are processed.
    fn receive_windows(&self, workers: u32) -> u64 {
        let _ = workers;
        0
    }

    /// Whether it may send rows to every worker.
    fn broadcasts(&self) -> bool {
        false
    }

    /// The column that it emits which is `column` of `input`, if there is one.
    fn passes_on(&self, input: usize, column: usize) -> Option<usize> {
        let _ = (input, column);
        None
    }

    /// Whether each row that it emits contains a row of `input`. If not, the columns of that input
    /// are NULL, and the row contains a row of another input with the same key.
    fn always_has(&self, input: usize) -> bool {
        let _ = input;
        true
    }

    /// The column of its input that is `column` of what it emits, where rows and watermarks go
    /// through it at once.
    fn passes_through(&self, column: usize) -> Option<usize> {
        let _ = column;
        None
    }

    /// The time column of its windows.
    fn window_time(&self) -> Option<usize> {
        None
    }

    /// The type of the time that the watermarks of an input speak of.
    fn time_type(&self, input: usize) -> Option<DataType> {
        let _ = input;
        None
    }

    /// The table that it reads, if it is a source.
    fn source(&self) -> Option<&Scan> {
        None
    }

    /// The column by which workers read the rows that an exchange by it would lead to them, and
    /// its type, if it is a source that is stored so.
    fn placed_by(&self) -> Option<(usize, DataType)> {
        None
    }

    /// The table that it reads beside its inputs.
    fn side_table(&self) -> Option<SideTable<'_>> {
        None
    }

    /// The table that it writes, if it is a sink.
    fn sink(&self) -> Option<&Arc<dyn Sink>> {
        None
    }
}

/// A table that an operator reads beside its inputs.
#[derive(Clone, Copy)]
pub struct SideTable<'a> {
    /// The table.
    pub table: &'a Scan,
    /// The step that each of its rows goes through.
    pub step: Option<&'a Arc<dyn Step>>,
    /// The input as which EXPLAIN shows it.
    pub input: usize,
    /// Whether each process reads it whole.
    pub is_pulled: bool,
}

/// The names that a description uses.
#[derive(Debug, Clone, Copy)]
pub struct DescribeContext<'a> {
    /// The columns of each input, as a user knows them.
    pub columns: &'a [Vec<String>],
    /// The columns that the operator emits.
    pub emitted: &'a [String],
    /// How many workers read tables, if known. Sources report their splits for this number.
    pub readers: Option<u32>,
    /// The fusion of the operator, if it is a scan.
    pub fusion: Result<Fusion, NotFused>,
    /// The builds that say which of its rows are needed, if it is a scan.
    pub builds: &'a [ProbedBuild],
}

impl DescribeContext<'_> {
    /// The columns of an input.
    pub(crate) fn of(&self, input: usize) -> &[String] {
        self.columns.get(input).map_or(&[], Vec::as_slice)
    }
}

/// Where a job runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deployment {
    /// Its workers.
    pub workers: u32,
    /// The processes that these are in.
    pub processes: u32,
}
