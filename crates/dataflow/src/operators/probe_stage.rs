//! A join whose rows another operator may look up for it: a stage of a
//! [chain](crate::job::ProbeChain).

use std::sync::Arc;

use arrow::array::UInt32Array;

use crate::error::DataflowError;
use crate::exchange::Task;
use crate::pairing::Hashed;
use crate::rows::keys::nulls_of;
use crate::rows::selection::Selection;
use crate::runtime::metrics::OperatorMetrics;

/// A join on one worker, as the head of its chain sees it.
pub(crate) trait ProbeStage {
    /// Its build, if that is complete and in memory.
    fn build(&self) -> Option<ProbeBuild>;

    /// Counts rows that looked up its build, beside those of chains.
    fn count_probed(&self, _rows: usize) {}

    /// Where its rows are counted.
    fn counters(&self) -> Option<&OperatorMetrics>;

    /// The join that takes its rows, if one operator alone takes them.
    fn next(&self) -> Option<&dyn ProbeStage>;

    /// Emits rows as its own.
    ///
    /// # Errors
    /// When what takes them fails.
    fn emit(&self, rows: Selection) -> Task<'_>;
}

/// The next output of a join or of a chain of joins.
#[derive(Debug)]
pub(crate) enum ProbeOutput<T = Selection> {
    /// Rows.
    Rows(T),
    /// No rows yet: other tasks of the worker run before the next ones are asked for.
    Yield,
    /// There are no more rows.
    End,
}

impl<T> From<Option<T>> for ProbeOutput<T> {
    fn from(rows: Option<T>) -> Self {
        rows.map_or(Self::End, Self::Rows)
    }
}

/// A complete build.
pub(crate) struct ProbeBuild {
    /// Its rows.
    pub(crate) hashed: Arc<Hashed>,
    /// The rows that may be looked up.
    pub(crate) passes: EmittedRows,
}

/// The rows of the probe side that may be emitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EmittedRows {
    /// All.
    All,
    /// Those whose keys have no NULL.
    WithKey,
    /// None.
    None,
}

impl EmittedRows {
    /// Those of some rows, if there are any; `keys` are the columns that are looked up.
    ///
    /// # Errors
    /// As [`Selection::columns`].
    pub(crate) fn of_rows(
        self,
        rows: Selection,
        keys: &[usize],
    ) -> Result<Option<Selection>, DataflowError> {
        let rows = match self {
            EmittedRows::All => rows,
            EmittedRows::None => return Ok(None),
            EmittedRows::WithKey => match nulls_of(&rows.columns(keys)?) {
                Some(valid) => {
                    let with_key = valid.valid_indices().map(|row| row as u32);
                    rows.take(&UInt32Array::from_iter_values(with_key))?
                }
                None => rows,
            },
        };
        Ok((rows.len() > 0).then_some(rows))
    }
}
