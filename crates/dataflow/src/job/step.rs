//! Stateless work on batches.

use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use state::recycled::RecycledWords;
use state::{KeyOf, RawRows, Times};

use crate::error::DataflowError;
use crate::error::located::Blame;
use crate::job::{FusedColumns, NotFused, Property};
use crate::rows::origin::Origin;

/// Stateless work on a batch: filter, project, look up, unfold.
pub trait Step: Send + Sync {
    /// Columns of the result.
    fn schema(&self) -> SchemaRef;

    /// Does the work.
    ///
    /// # Errors
    /// [`DataflowError::Expression`] when an expression fails on a row.
    fn apply(&self, batch: &RecordBatch) -> Result<Stepped, DataflowError> {
        self.apply_for(batch, None)
    }

    /// Does the work for who does not look at the column `unread` of the result: its values may be
    /// any.
    ///
    /// # Errors
    /// As [`Step::apply`].
    fn apply_for(
        &self,
        batch: &RecordBatch,
        unread: Option<usize>,
    ) -> Result<Stepped, DataflowError>;

    /// Whether a fused scan can make the columns `key` and `arg` of the result itself, and of what.
    ///
    /// # Errors
    /// Why it cannot.
    fn fused(&self, key: usize, arg: Option<usize>) -> Result<FusedColumns, NotFused> {
        let _ = (key, arg);
        Err(NotFused::Step)
    }

    /// The source columns from which a fused scan computes the columns `key` and `arg` of the
    /// result, where [`Step::fused`] allows it; `None` where the arrays of this batch do not.
    ///
    /// # Errors
    /// As [`Step::apply`].
    fn raw(
        &self,
        batch: &RecordBatch,
        key: usize,
        arg: Option<usize>,
    ) -> Result<Option<RawBatch>, DataflowError> {
        let _ = (batch, key, arg);
        Ok(None)
    }

    /// Whether it is known that each row of the result is made of the same row of the input, and
    /// none is left out.
    fn keeps_rows(&self) -> bool {
        false
    }

    /// How many rows it makes of one at most, if that is known.
    fn rows_of_one(&self) -> Option<u64> {
        Some(1)
    }

    /// The column that the step is given which column `output` of the result is, row by row.
    fn passes_on(&self, output: usize) -> Option<usize>;

    /// The columns that the step is given of which column `output` of the result is the first that
    /// is not NULL, row by row: most often the one that it passes on.
    fn first_of(&self, output: usize) -> Option<Vec<usize>> {
        self.passes_on(output).map(|column| vec![column])
    }

    /// The column that the step is given of which column `output` of the result is made by a cast:
    /// where two rows have equal values there, they have equal ones here.
    fn cast_of(&self, output: usize) -> Option<usize> {
        let _ = output;
        None
    }

    /// What is to blame for its failure on a batch of one row, where it can tell.
    fn blame(&self, row: &RecordBatch) -> Option<Blame> {
        let _ = row;
        None
    }

    /// For EXPLAIN: what it does, one thing after another, as in `("Filter", "delay > 15")`.
    fn describe(&self) -> Vec<Property>;
}

/// Rows of a batch before a step's work is done: see [`RawRows`].
pub struct RawBatch {
    /// Which rows pass, if not all: see [`RawRows::passes`].
    pub passes: Option<RecycledWords>,
    /// The column of which keys are made.
    pub key: ArrayRef,
    /// How.
    pub by: KeyOf,
    /// The column of the argument; where there is one, all rows pass.
    pub arg: Option<ArrayRef>,
}

impl RawBatch {
    /// Rows that need no work.
    pub(crate) fn of(batch: &RecordBatch, key: usize, arg: Option<usize>) -> Self {
        let arg = arg.map(|arg| batch.column(arg).clone());
        Self { passes: None, key: batch.column(key).clone(), by: KeyOf::Word, arg }
    }

    /// The same for a loop, with the times of the rows; `None` if keys have nulls or no words.
    pub(crate) fn rows<'a>(&'a self, times: Option<Times<'a>>) -> Option<RawRows<'a>> {
        let (key, passes) = (&self.by, self.passes.as_ref().map(|passes| passes.as_slice()));
        Some(RawRows { key, passes, times, ..RawRows::of_column(&self.key)? })
    }
}

/// The source columns of a key and of an argument, found when they are needed: see [`Step::raw`].
pub(crate) type RawColumns<'a> = &'a dyn Fn() -> Result<Option<RawBatch>, DataflowError>;

/// What a step made of a batch.
pub struct Stepped {
    /// The rows that remain.
    pub batch: RecordBatch,
    /// Which row of the input each of them was.
    pub origin: Origin,
}

/// The columns of rows behind an edge with this step, by their numbers before it, if the step does
/// nothing else than choose them; `width` is how many there are before it.
pub(crate) fn chosen(step: Option<&Arc<dyn Step>>, width: usize) -> Option<Vec<usize>> {
    match step {
        None => Some((0..width).collect()),
        Some(step) if step.keeps_rows() => {
            let columns = step.schema().fields().len();
            (0..columns).map(|output| step.passes_on(output)).collect()
        }
        Some(_) => None,
    }
}

/// One step behind another.
pub fn chain(first: Option<Arc<dyn Step>>, second: Option<Arc<dyn Step>>) -> Option<Arc<dyn Step>> {
    match (first, second) {
        (Some(first), Some(second)) => Some(Arc::new(Chain { first, second })),
        (first, second) => first.or(second),
    }
}

/// Two steps as one.
struct Chain {
    first: Arc<dyn Step>,
    second: Arc<dyn Step>,
}

impl Step for Chain {
    fn schema(&self) -> SchemaRef {
        self.second.schema()
    }

    fn apply_for(
        &self,
        batch: &RecordBatch,
        unread: Option<usize>,
    ) -> Result<Stepped, DataflowError> {
        let first = self.first.apply(batch)?;
        let second = self.second.apply_for(&first.batch, unread)?;
        let origin = first.origin.then(second.origin, batch.num_rows())?;
        Ok(Stepped { batch: second.batch, origin })
    }

    fn keeps_rows(&self) -> bool {
        self.first.keeps_rows() && self.second.keeps_rows()
    }

    fn rows_of_one(&self) -> Option<u64> {
        Some(self.first.rows_of_one()?.saturating_mul(self.second.rows_of_one()?))
    }

    fn passes_on(&self, output: usize) -> Option<usize> {
        self.first.passes_on(self.second.passes_on(output)?)
    }

    fn first_of(&self, output: usize) -> Option<Vec<usize>> {
        let before = self.second.first_of(output)?;
        let each = before.into_iter().map(|column| self.first.first_of(column));
        Some(each.collect::<Option<Vec<_>>>()?.concat())
    }

    fn cast_of(&self, output: usize) -> Option<usize> {
        match self.second.passes_on(output) {
            Some(column) => self.first.cast_of(column),
            None => self.first.passes_on(self.second.cast_of(output)?),
        }
    }

    fn blame(&self, row: &RecordBatch) -> Option<Blame> {
        match self.first.apply(row) {
            Ok(first) => self.second.blame(&first.batch),
            Err(_) => self.first.blame(row),
        }
    }

    fn describe(&self) -> Vec<Property> {
        self.first.describe().into_iter().chain(self.second.describe()).collect()
    }
}
