//! Finds the row on which a step fails: the step is run again on parts of its batch.

use arrow::record_batch::RecordBatch;

use crate::error::DataflowError;
use crate::error::located::{text, values};
use crate::job::step::Step;

/// The failure of a step on a batch, with the first row on which it fails.
pub(crate) fn at_row(step: &dyn Step, batch: &RecordBatch, error: DataflowError) -> DataflowError {
    // Of the beginnings of the batch that fail, the shortest ends with the row.
    let (mut passing, mut failing) = (0, batch.num_rows());
    while failing > passing + 1 {
        let middle = passing + (failing - passing) / 2;
        match step.apply(&batch.slice(0, middle)) {
            Ok(_) => passing = middle,
            Err(_) => failing = middle,
        }
    }
    if failing == passing {
        return error;
    }
    let row = batch.slice(passing, 1);
    match step.apply(&row) {
        Err(own) => own.map(|located| {
            let blame = step.blame(&row);
            let all = || values(&row, 0..row.num_columns());
            let reads = blame.as_ref().map(|blame| blame.reads.clone());
            let reads = reads.filter(|reads| !reads.is_empty()).unwrap_or_else(all);
            located.expression = blame.map(|blame| blame.expression);
            located.row = Some(text(&reads)).filter(|text| !text.is_empty());
            located.index = Some(passing);
        }),
        // It depends on more than the row.
        Ok(_) => error,
    }
}
