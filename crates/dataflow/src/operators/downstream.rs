//! The receiver of the rows, watermarks and end of an operator, as the operator sees it. An
//! operator knows nothing else of the graph that it is part of.
//!
//! Calls wait until the rows have come to rest, so that a slow operator holds back those in front
//! of it. Operators are made for one kind of `Downstream` at compile time; the one indirect call of
//! a push is that of the operator that takes it.

use state::ConsumedRows;

use crate::error::DataflowError;
use crate::exchange::Task;
use crate::job::{Fusion, RawColumns};
use crate::operators::probe_stage::ProbeStage;
use crate::rows::selection::Selection;
use crate::rows::{FusedRows, Rows};

/// Takes what an operator gives out.
pub(crate) trait Downstream {
    /// Counts rows that were read, of a source.
    fn count_read(&self, rows: usize);

    /// Takes rows.
    ///
    /// # Errors
    /// When a step, state or a sink fails.
    async fn push(&self, rows: Rows) -> Result<(), DataflowError>;

    /// Takes rows on time, and copies their columns unless the operator behind takes a selection.
    ///
    /// # Errors
    /// As [`Downstream::push`].
    async fn push_selection(&self, rows: Selection) -> Result<(), DataflowError>;

    /// Folds rows of a fused scan, from the first on, into the aggregate behind it: gives how many.
    /// The others must be pushed.
    ///
    /// # Errors
    /// As [`Downstream::push`].
    async fn fold(&self, rows: FusedRows<'_>, fusion: &Fusion) -> Result<usize, DataflowError>;

    /// The same behind the lookup of a fused scan, which says what keys are made of, as far as
    /// that can be done without waiting.
    ///
    /// # Errors
    /// As [`Downstream::push`].
    fn fold_looked(
        &self,
        rows: FusedRows<'_>,
        raw: RawColumns<'_>,
    ) -> Result<ConsumedRows, DataflowError>;

    /// Work that must be awaited after [`Downstream::fold_looked`], if there is any.
    ///
    /// # Errors
    /// As [`Downstream::push`].
    fn finish_fold(&self) -> Option<Task<'_>>;

    /// The join that takes the rows, if it alone takes them and others may look them up for it.
    fn next_stage(&self) -> Option<&dyn ProbeStage>;

    /// Whether later rows make no difference any more to any operator that takes them.
    fn is_satisfied(&self) -> bool;

    /// Whether this watermark ends a window somewhere.
    fn ends_window(&self, watermark: i64) -> bool;

    /// No row before `watermark` will come.
    ///
    /// # Errors
    /// As [`Downstream::push`].
    async fn advance(&self, watermark: i64, idle: bool) -> Result<(), DataflowError>;

    /// The same at once, where nothing has to be waited for; else gives what does it.
    ///
    /// # Errors
    /// As [`Downstream::push`].
    fn advance_or_wait(&self, watermark: i64, idle: bool) -> Option<Task<'_>>;

    /// Rows come again after an idle time. Gives the watermark before which they are late anywhere.
    ///
    /// # Errors
    /// As [`Downstream::push`].
    async fn resume(&self) -> Result<i64, DataflowError>;

    /// All rows of a round have come. Those that come now belong to the next one.
    ///
    /// # Errors
    /// As [`Downstream::push`].
    async fn mark(&self, round: u64) -> Result<(), DataflowError>;

    /// No more rows will come.
    ///
    /// # Errors
    /// As [`Downstream::push`].
    async fn end(&self, watermark: i64) -> Result<(), DataflowError>;
}

/// Emits rows that a join has made.
///
/// # Errors
/// When what takes them fails; the place of a row in a file is not that of one that was made.
pub(crate) fn emit_made(behind: &impl Downstream, rows: Selection) -> Task<'_> {
    Box::pin(async move { behind.push_selection(rows).await.map_err(DataflowError::of_made_rows) })
}
