//! The join of a stream with a small table, as data.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;

use super::Input;
use super::join_kind::{JoinKind, names};
use crate::job::step::Step;

/// A join with a table that every process has whole. The left side is the stream, the right side
/// the table.
#[derive(Clone)]
pub struct Lookup {
    /// The table; its source ends.
    pub table: Input,
    /// What is done with each of the table's rows before it is kept.
    pub step: Option<Arc<dyn Step>>,
    /// Bytes of the table's rows at most.
    pub bytes_max: usize,
    /// Of the stream and of what is kept of the table: the columns that must be equal. NULL is
    /// equal to nothing.
    pub keys: [Vec<usize>; 2],
    /// Which rows are given out: no right rows alone.
    pub kind: JoinKind,
    /// A filter over both sides' columns that a pair must pass, besides equal keys.
    pub on: Option<Arc<dyn Step>>,
    /// Both sides' columns, or the stream's where the kind gives out one side.
    pub schema: SchemaRef,
    /// The stream's columns and what is kept of the table's: what `on` is given.
    pub both: SchemaRef,
}

impl Lookup {
    /// For EXPLAIN.
    pub fn describe(&self) -> String {
        let [stream, table] = &self.keys;
        let keys = [names(&self.both, stream), names(&self.kept(), table)];
        self.kind.describe("", keys, self.on.as_ref())
    }

    /// How many of the columns that are given out are the stream's, which come first.
    pub(crate) fn width(&self) -> usize {
        self.both.fields().len() - self.kept().fields().len()
    }

    /// Whether a column that is given out is the stream's, of the same number.
    pub(crate) fn passes_on(&self, column: usize) -> bool {
        column < self.width()
    }

    /// The columns of the table that are kept.
    pub(crate) fn kept(&self) -> SchemaRef {
        match &self.step {
            Some(step) => step.schema(),
            None => self.table.source.schema(),
        }
    }
}
