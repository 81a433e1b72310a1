//! What an operator says of its state that is saved, as data: its parts, and which worker each
//! saved row belongs to.
//!
//! Saved rows know nothing of the workers that saved them. On a restart each worker is shown all
//! rows of an operator and keeps those that its own partition of the keys gives it, so that the
//! number of workers, the exchange and the fabric may be others than before.

use arrow::datatypes::SchemaRef;

/// The fate of an operator's state when a job is recovered.
#[derive(Debug, Clone)]
pub enum SavedState {
    /// It keeps nothing at the end of a round.
    Nothing,
    /// It is saved at each checkpoint.
    Parts(SavedParts),
    /// It is not saved, but built anew from all rows: with such an operator no checkpoints are
    /// taken, and the job begins anew after a failure.
    Rebuilt,
    /// The operator is a user's, and does not say what it keeps. A job with checkpoints refuses
    /// it.
    Unknown,
}

/// The state of an operator as rows.
#[derive(Debug, Clone, Default)]
pub struct SavedParts {
    /// Counts the forms in which the operator has saved its state: rows of another form are
    /// refused.
    pub version: u32,
    /// The parts, by their number.
    pub parts: Vec<SavedPart>,
}

/// A part of the state of an operator: rows of the same columns.
#[derive(Debug, Clone)]
pub struct SavedPart {
    /// Its columns.
    pub schema: SchemaRef,
    /// The worker of each row.
    pub owner: RowOwner,
}

/// The worker that a saved row belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RowOwner {
    /// The worker that the exchange of this input leads the row to. The first columns are those of
    /// the input. Rows that are broadcast are saved by one worker, and belong to all.
    Input(usize),
    /// The worker that the exchange of the first input leads rows of its key to. Pairs of a column
    /// of that input and of the column that has its value: those of all keys of the input are
    /// among them.
    Keys(Vec<(usize, usize)>),
    /// The first worker.
    First,
    /// Every worker takes what all have saved.
    Every,
}
