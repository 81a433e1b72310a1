//! The join of a stream with a small table, as data.

use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};

use super::{Description, Input, JoinKind};
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
    /// For EXPLAIN; `columns` are those of the stream and those that are kept of the table.
    pub fn describe(&self, columns: &[Vec<String>]) -> Description {
        let keys = self.keys.each_ref().map(Vec::as_slice);
        let properties = self.kind.properties(columns, keys, self.on.as_ref());
        Description { name: "LookupJoin", properties }
    }

    /// The columns of the stream, which is input 0, or what is kept of the table.
    pub(crate) fn input_schema(&self, input: usize) -> SchemaRef {
        match input {
            0 => Arc::new(Schema::new(self.both.fields()[..self.width()].to_vec())),
            _ => self.kept(),
        }
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
