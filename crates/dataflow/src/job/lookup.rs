//! The join of a stream with a small table, as data.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};

use super::{
    Copies, Deployment, DescribeContext, Description, JoinKind, OperatorSpec, RowOwner, SavedPart,
    SavedParts, SavedState, Scan, SideTable, StateEstimate, StateMemory, Statistics, Strategy,
};
use crate::job::step::Step;
use crate::rows::size::{INDEX_BYTES, row_bytes};
use crate::rows::time::span_text;

/// A join with a table that every process has whole. The left side is the stream, the right side
/// the table.
#[derive(Clone)]
pub struct Lookup {
    /// The table; its source ends.
    pub table: Scan,
    /// What is done with each of the table's rows before it is kept.
    pub step: Option<Arc<dyn Step>>,
    /// Whether each process reads the table itself, from memory that the processes share (I7); else
    /// the workers of all processes read a part each, and broadcast it.
    pub is_pulled: bool,
    /// How often a newer version of the table is asked for, in nanoseconds: of a stream that does
    /// not end. Each process takes it by itself, between two batches.
    pub refresh_ns: Option<u64>,
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
    /// How many of the columns that are given out are the stream's, which come first.
    pub(crate) fn width(&self) -> usize {
        self.both.fields().len() - self.kept().fields().len()
    }

    /// Statistics of what is kept of the table.
    fn of_table(&self, workers: u32) -> Statistics {
        Statistics::of_scan(&self.table, workers).behind(self.step.as_deref())
    }

    /// The columns of the table that are kept.
    pub(crate) fn kept(&self) -> SchemaRef {
        match &self.step {
            Some(step) => step.schema(),
            None => self.table.columns(),
        }
    }
}

impl OperatorSpec for Lookup {
    /// The columns of the stream, which is input 0, or what is kept of the table.
    fn input_schema(&self, input: usize) -> Option<SchemaRef> {
        Some(match input {
            0 => Arc::new(Schema::new(self.both.fields()[..self.width()].to_vec())),
            _ => self.kept(),
        })
    }

    fn schema(&self) -> Option<SchemaRef> {
        Some(self.schema.clone())
    }

    /// A fingerprint of the table: it is read again, and the user hears if it has changed.
    fn saved_state(&self) -> SavedState {
        let number = |name: &str| Field::new(name, DataType::UInt64, false);
        let schema = Arc::new(Schema::new(vec![number("rows"), number("hash")]));
        let parts = vec![SavedPart { schema, owner: RowOwner::Every }];
        SavedState::Parts(SavedParts { version: 1, parts })
    }

    /// The fingerprint only tells whether the table has changed.
    fn remembers(&self) -> bool {
        false
    }

    fn describe(&self, context: &DescribeContext<'_>) -> Description {
        let keys = self.keys.each_ref().map(Vec::as_slice);
        let mut properties = self.kind.properties(context.columns, keys, self.on.as_ref());
        if let Some(every_ns) = self.refresh_ns {
            let every = span_text(i64::try_from(every_ns).unwrap_or(i64::MAX));
            properties.push(("refresh", format!("a newer version is asked for every {every}")));
        }
        Description { name: "LookupJoin", properties }
    }

    fn statistics(&self, inputs: &[Statistics], workers: u32) -> Statistics {
        let stream = inputs.first().cloned().unwrap_or_default();
        stream.joined(self.of_table(workers))
    }

    fn state(&self, _: &[Statistics], deployment: Deployment) -> Vec<StateEstimate> {
        vec![StateEstimate {
            unit: "row",
            which: format!(" of {}", self.table.table),
            each_bytes: row_bytes(&self.kept()) + INDEX_BYTES,
            count_max: self.of_table(deployment.workers).rows_max,
            copies: Copies { count: deployment.processes.into(), by: "nodes" },
        }]
    }

    fn memory(&self) -> StateMemory {
        StateMemory::Resident
    }

    fn reason(&self, strategy: Strategy) -> Option<&'static str> {
        (strategy == Strategy::Forward).then_some("every worker has the table")
    }

    fn broadcasts(&self) -> bool {
        true
    }

    /// The columns of the stream keep their numbers.
    fn passes_on(&self, input: usize, column: usize) -> Option<usize> {
        (input == 0 && column < self.width()).then_some(column)
    }

    fn passes_through(&self, column: usize) -> Option<usize> {
        (column < self.width()).then_some(column)
    }

    fn side_table(&self) -> Option<SideTable<'_>> {
        let is_pulled = self.is_pulled;
        Some(SideTable { table: &self.table, step: self.step.as_ref(), input: 1, is_pulled })
    }
}
