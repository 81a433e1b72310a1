//! A part of a job that somebody else continues: what a query gives to a stream, and a stream to a
//! query.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;

use crate::job::{Operator, Step};

/// Operators whose rows go on.
#[derive(Clone)]
pub struct Fragment {
    /// The operators; edges count from the first of them.
    pub operators: Vec<Operator>,
    /// Those that give out the rows, and what is done with the rows of each to have these columns.
    pub from: Vec<(usize, Option<Arc<dyn Step>>)>,
    /// The columns of the rows.
    pub schema: SchemaRef,
    /// The column of which the watermarks speak, if there is one.
    pub time: Option<usize>,
    /// The columns that tell the window of each row, if the rows belong to windows.
    pub window: Option<WindowColumns>,
    /// Ticks of the time by which the operator that takes the rows waits behind the watermark.
    pub lateness: i64,
    /// Whether the rows end.
    pub bounded: bool,
}

/// Columns that tell the window of a row: timestamps of one unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowColumns {
    /// Its start.
    pub start: usize,
    /// Its end, exclusively.
    pub end: usize,
    /// The time of what is given out of it: its last millisecond.
    pub time: usize,
}
