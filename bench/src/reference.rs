//! The right answer of a workload, computed row by row in the order of event time, without the
//! engine: no SQL, no windows, no state of ours, no exchange.

use std::sync::Arc;

use arrow::array::{Array, AsArray};
use arrow::datatypes::{
    DataType, Float32Type, Int8Type, Int64Type, Schema, TimestampMillisecondType,
};
use arrow::record_batch::RecordBatch;
use connectors::Generator;
use dataflow::connector::{Connector, Options, TableDef};
use dataflow::error::ConnectorError;
use dataflow::source::{FlowContext, Next};
use fabric::clock::MonotonicClock;

use crate::tally::Sums;
use crate::workload::{Answer, Shape, Size, Workload};

/// Rows asked for at a time.
const BATCH_ROWS: usize = 8192;

/// Sums over the result of a workload.
///
/// # Errors
/// When the generator refuses the size.
pub fn sums(workload: Workload, size: &Size) -> Result<Sums, ConnectorError> {
    let shape = workload.shape();
    let mut options: Options =
        workload.values(size).into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    options.insert("kind".into(), shape.kind.into());
    match workload {
        // As in the SQL.
        Workload::Ysb => ["keys", "distribution"].iter().for_each(|key| drop(options.remove(*key))),
        Workload::Nb7 => drop(options.insert("proportions".into(), "1:0:0".into())),
        _ => {}
    }
    let schema = Generator.infer(&options)?.unwrap_or_else(|| Arc::new(Schema::empty()));
    let columns = columns(&shape);
    let projection: Result<Vec<usize>, _> =
        columns.iter().map(|name| schema.index_of(name).map_err(|_| missing(name))).collect();
    let table =
        TableDef { name: "reference".into(), schema, options, metadata: Default::default() };
    let source = Generator.source(&table, &projection?)?;
    source.flows(1, None)?;
    let context = FlowContext { clock: Arc::new(MonotonicClock::new()), bad: Arc::default() };
    let mut flow = source.open(0, &context)?;
    let mut oracle = Oracle { shape, window: 0, groups: Vec::new(), sums: Sums::default() };
    while let Next::Batch(batch) = flow.next(BATCH_ROWS)? {
        oracle.take(&batch);
    }
    oracle.fire();
    Ok(oracle.sums)
}

/// The columns that a workload reads: key, time, filter, value.
fn columns(shape: &Shape) -> Vec<&'static str> {
    let time = shape.window.map(|(time, _)| time);
    let filter = shape.filter.map(|(filter, _)| filter);
    [Some(shape.key.0), time, filter, shape.value].into_iter().flatten().collect()
}

fn missing(column: &str) -> ConnectorError {
    let message = "the workload has no such column".into();
    ConnectorError::Column { column: column.into(), message, hint: None }
}

/// What is known of a key in the window.
#[derive(Debug, Clone, Copy, Default)]
struct Group {
    count: u32,
    max: i64,
    sum: f64,
}

struct Oracle {
    shape: Shape,
    window: i64,
    /// By key: keys are small numbers.
    groups: Vec<Group>,
    sums: Sums,
}

impl Oracle {
    fn take(&mut self, batch: &RecordBatch) {
        let shape = self.shape;
        let mut columns = batch.columns().iter();
        let mut next = || columns.next().unwrap_or(batch.column(0));
        let keys = next().as_primitive::<Int64Type>().values();
        let times = shape.window.map(|(_, length)| {
            (next().as_primitive::<TimestampMillisecondType>().values(), length)
        });
        let kept = shape.filter.map(|(_, word)| kept(next(), word));
        let value = shape.value.map(|_| next());
        for row in 0..batch.num_rows() {
            if let Some((times, length)) = times {
                let window = times[row].div_euclid(length);
                if window != self.window {
                    self.fire();
                    self.window = window;
                }
            }
            if kept.as_ref().is_some_and(|kept| !kept[row]) {
                continue;
            }
            let key = (keys[row] / shape.key.1) as usize;
            if key >= self.groups.len() {
                self.groups.resize((key + 1).next_power_of_two(), Group::default());
            }
            let group = &mut self.groups[key];
            group.count += 1;
            match value.map(|value| (value, value.data_type())) {
                Some((value, DataType::Float32)) => {
                    group.sum += f64::from(value.as_primitive::<Float32Type>().value(row));
                }
                Some((value, _)) => {
                    let value = value.as_primitive::<Int64Type>().value(row);
                    group.max = if group.count == 1 { value } else { group.max.max(value) };
                }
                None => {}
            }
        }
    }

    /// Gives out the groups of the window.
    fn fire(&mut self) {
        for (key, group) in self.groups.iter_mut().enumerate().filter(|(_, g)| g.count > 0) {
            let key = key as i64;
            match self.shape.answer {
                Answer::Count => self.sums.add_whole(key, group.count.into()),
                Answer::Max => self.sums.add_whole(key, group.max),
                Answer::Mean => self.sums.add_real(key, group.sum / f64::from(group.count)),
            }
            *group = Group::default();
        }
    }
}

/// Which rows have the word.
fn kept(column: &dyn Array, word: &str) -> Vec<bool> {
    let column = column.as_dictionary::<Int8Type>();
    let words = column.values().as_string::<i32>();
    let is: Vec<bool> = words.iter().map(|value| value == Some(word)).collect();
    column.keys().values().iter().map(|&key| is[key as usize]).collect()
}
