//! The receiver of the rows, watermarks and end of an operator, as the operator sees it. An
//! operator knows nothing else of the graph that it is part of.
//!
//! Calls wait until the rows have come to rest, so that a slow operator holds back those in front
//! of it. Operators are made for one kind of `Downstream` at compile time: a push is no indirect
//! call.

use state::Folded;

use crate::error::DataflowError;
use crate::job::{RawBatch, Step};
use crate::rows::{Ahead, Rows};

/// What columns are made of, if that can be said.
pub(crate) type Raw = Result<Option<RawBatch>, DataflowError>;

/// Takes what an operator gives out.
pub(crate) trait Downstream {
    /// Counts rows that were read, of a source.
    fn count_read(&self, rows: usize);

    /// Takes rows.
    ///
    /// # Errors
    /// When a step, state or a sink fails.
    async fn push(&self, rows: Rows) -> Result<(), DataflowError>;

    /// Has the operator behind fold in rows as they were read, from the first on, as far as it can,
    /// if there is but one: gives how many. The others are to be pushed.
    ///
    /// # Errors
    /// As [`Downstream::push`].
    async fn fold(&self, ahead: Ahead<'_>) -> Result<usize, DataflowError>;

    /// The same for rows that a lookup has been given, which makes `raw` of them if the step behind
    /// it is the one that it is given.
    ///
    /// # Errors
    /// As [`Downstream::push`].
    async fn fold_looked(
        &self,
        ahead: Ahead<'_>,
        raw: impl Fn(Option<&dyn Step>, usize, Option<usize>) -> Raw,
    ) -> Result<Folded, DataflowError>;

    /// Whether this watermark ends a window somewhere.
    fn awaits(&self, watermark: i64) -> bool;

    /// No row before `watermark` will come.
    ///
    /// # Errors
    /// As [`Downstream::push`].
    async fn advance(&self, watermark: i64, idle: bool) -> Result<(), DataflowError>;

    /// Rows come again after an idle time. Gives the watermark before which they are late anywhere.
    ///
    /// # Errors
    /// As [`Downstream::push`].
    async fn resume(&self) -> Result<i64, DataflowError>;

    /// No more rows will come.
    ///
    /// # Errors
    /// As [`Downstream::push`].
    async fn end(&self, watermark: i64) -> Result<(), DataflowError>;
}
