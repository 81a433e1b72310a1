//! An operator on one worker, as its node drives it: rows, watermarks and the end of its inputs go
//! in by these calls. What it emits goes to its [`Downstream`](super::downstream::Downstream).
//!
//! A node calls one at a time, and waits until it is through: rows and watermarks of several edges
//! do not interleave. Only [`OperatorTask::run`] goes on beside all others.

use std::num::NonZeroU64;
use std::rc::Rc;
use std::sync::Arc;

use state::ConsumedRows;
use state::epoch::Progress;

use crate::checkpoint::OperatorSnapshot;
use crate::error::DataflowError;
use crate::exchange::{Connected, Member, Task, begin_next};
use crate::job::{FusedLookup, ProbeChain, RawColumns, ShuffleSettings};
use crate::operators::downstream::Downstream;
use crate::operators::probe_stage::ProbeStage;
use crate::operators::restoring::Restoring;
use crate::rows::selection::Selection;
use crate::rows::{FusedRows, Rows};
use crate::runtime::builds::Listeners;
use crate::runtime::metrics::Metrics;
use crate::runtime::net::Net;
use crate::runtime::place::WorkerContext;

/// An operator with inputs, on one worker.
pub(crate) trait OperatorTask: Connected {
    /// The slice of all rows of the span from one event time to another, if the operator groups by
    /// windows and they are of one slice. It is asked before the step of the edge makes the rows.
    fn slice_of(&self, _: (i64, i64)) -> Option<OneSlice> {
        None
    }

    /// A task that must be awaited before rows of an input are pushed, if there is one. Rows of the
    /// other inputs are pushed meanwhile.
    ///
    /// # Errors
    /// As [`OperatorTask::push`].
    fn when_ready(&self, _input: usize) -> Option<Task<'_>> {
        None
    }

    /// Takes rows of this worker's own edges.
    ///
    /// # Errors
    /// When state cannot be updated, rows cannot travel, or a sink fails.
    fn push(&self, rows: Arriving) -> Task<'_>;

    /// The task that takes rows of an input before their columns are copied, if the operator has
    /// one.
    fn selection_input(&self, _input: usize) -> Option<&dyn SelectionInput> {
        None
    }

    /// The same operator as a stage of a chain, if it is a join whose rows another operator may
    /// look up.
    fn probe_stage(&self) -> Option<&dyn ProbeStage> {
        None
    }

    /// Work that must be awaited before [`OperatorTask::fold`], if there is any.
    ///
    /// # Errors
    /// As [`OperatorTask::push`].
    fn prepare_fold(&self) -> Option<Task<'_>> {
        None
    }

    /// Folds rows of a fused scan, from the first on, as far as it can without waiting. The others
    /// are pushed.
    ///
    /// # Errors
    /// As [`OperatorTask::push`].
    fn fold(&self, _fused: Fused<'_>) -> Result<ConsumedRows, DataflowError> {
        Ok(ConsumedRows::default())
    }

    /// Work that must be awaited after [`OperatorTask::fold`], if there is any. `timed` says
    /// whether watermarks come by the edge.
    ///
    /// # Errors
    /// As [`OperatorTask::push`].
    fn finish_fold(&self, _timed: bool) -> Option<Task<'_>> {
        None
    }

    /// Whether this watermark ends a window, here or further on where it is passed on.
    fn ends_window(&self, _: i64) -> bool {
        false
    }

    /// The watermark of its inputs has moved, or all of them fell idle. Gives what has to be waited
    /// for, if something has.
    ///
    /// # Errors
    /// When state or rows cannot travel.
    fn progress(&self, _watermark: i64, _idle: bool) -> Option<Task<'_>> {
        None
    }

    /// The inputs were idle and have rows again. Gives the watermark before which these are late.
    ///
    /// # Errors
    /// When state or rows cannot travel.
    fn resume(&self) -> Task<'_, i64>;

    /// One of several inputs has no more rows; others may have. `watermark` is `i64::MAX` if its
    /// rows are complete. Gives a task that must be awaited, if there is one.
    ///
    /// # Errors
    /// When state or rows cannot travel.
    fn end_input(&self, _input: usize, _watermark: i64) -> Option<Task<'_>> {
        None
    }

    /// The inputs have no more rows. `watermark` is `i64::MAX` if they are complete.
    ///
    /// # Errors
    /// When state or rows cannot travel.
    fn end(&self, watermark: i64) -> Task<'_>;

    /// All edges have marked a round, at this progress: sends what waits, and the marker behind it.
    /// [`OperatorTask::run`] saves what is kept when the round is complete. An operator that cannot
    /// do that is in no job with rounds.
    ///
    /// # Errors
    /// When state or rows cannot travel.
    fn end_round(&self, _round: u64, _progress: Progress) -> Task<'_> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Emits results until there will be no more; the body of a coroutine.
    ///
    /// # Errors
    /// When a result cannot be made or written.
    fn run(&self) -> Task<'_>;

    /// Whether later rows make no difference any more, because a limit has all of its rows: this
    /// operator, or one on each path behind it.
    fn is_satisfied(&self) -> bool {
        false
    }

    /// What it keeps, which stays as it is; nothing if it keeps nothing. It is asked for at rest:
    /// all that is due at its clock has been emitted, and what travels between its instances has
    /// arrived.
    ///
    /// # Errors
    /// [`DataflowError::Recovery`] if it cannot be saved or is not at rest; when state cannot be
    /// read.
    fn save(&self) -> Result<Option<OperatorSnapshot>, DataflowError>;

    /// Takes up what was saved of it and belongs to this worker, before rows or progress come. Its
    /// clock begins at [`Restoring::watermark`], which is not moved here.
    ///
    /// # Errors
    /// As [`Restoring::each`]; when state cannot be updated.
    fn load(&self, from: &Restoring<'_>) -> Result<(), DataflowError>;

    /// Nanoseconds between two calls of [`OperatorTask::interval`], if there are any.
    fn interval_ns(&self) -> Option<NonZeroU64> {
        None
    }

    /// An interval is over.
    ///
    /// # Errors
    /// When state cannot travel.
    fn interval(&self) -> Task<'_> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Makes rows visible that a reader should see now.
    ///
    /// # Errors
    /// When a sink fails.
    fn flush(&self) -> Result<(), DataflowError> {
        Ok(())
    }
}

/// A round is complete, and all is emitted that is due: saves what the operator keeps, passes the
/// marker on, and lets the next round begin.
///
/// # Errors
/// When state cannot be read, or what is behind fails.
pub(crate) async fn end_round<M: Member + OperatorTask>(
    operator: &M,
    behind: &impl Downstream,
    round: u64,
) -> Result<(), DataflowError> {
    let Some(rounds) = operator.rounds() else { return Ok(()) };
    rounds.save(round, || {
        // Results that nobody needs any more are not emitted, and need not be kept.
        Ok((if behind.is_satisfied() { None } else { operator.save()? }, None))
    })?;
    behind.mark(round).await?;
    begin_next(operator)
}

/// An input of an operator that reads some columns only, and passes on the others by the numbers of
/// their rows.
pub(crate) trait SelectionInput {
    /// Takes rows.
    ///
    /// # Errors
    /// As [`OperatorTask::push`].
    fn push_selection(&self, rows: Selection) -> Task<'_>;
}

/// The surroundings of an operator on one worker.
pub(crate) struct OperatorContext<'a> {
    /// Its number in the job.
    pub(crate) tag: u32,
    /// Its worker.
    pub(crate) place: &'a WorkerContext,
    /// The links of the worker.
    pub(crate) net: Rc<Net>,
    /// The counters of the worker.
    pub(crate) metrics: Arc<Metrics>,
    /// How rows of its inputs are sent.
    pub(crate) shuffle: ShuffleSettings,
    /// The scans that wait for its build, if it is a join.
    pub(crate) listeners: Listeners,
    /// The chain that it is part of, if it is a join.
    pub(crate) chain: Option<&'a Arc<ProbeChain>>,
}

/// Rows of an edge for an operator.
pub(crate) struct Arriving {
    /// The input.
    pub(crate) input: usize,
    /// The rows.
    pub(crate) rows: Rows,
    /// The key of the slice of all of them, if it is known.
    pub(crate) slice: Option<i64>,
    /// Whether watermarks come by the edge.
    pub(crate) timed: bool,
}

/// Rows of a fused scan.
pub(crate) struct Fused<'a> {
    /// The rows.
    pub(crate) rows: FusedRows<'a>,
    /// The lookup that the loop goes through, if it is still before it.
    pub(crate) lookup: Option<FusedLookup>,
    /// The columns from which key and argument of the aggregate are computed.
    pub(crate) raw: RawColumns<'a>,
}

/// A slice that all rows of a batch belong to.
pub(crate) struct OneSlice {
    /// Its key.
    pub(crate) key: i64,
    /// The column that the operator does not read then.
    pub(crate) unread: Option<usize>,
}
