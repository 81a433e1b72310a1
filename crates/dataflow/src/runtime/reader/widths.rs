//! How many bytes rows have.

use arrow::array::Array;
use arrow::datatypes::{DataType, Schema};
use arrow::record_batch::RecordBatch;

/// Bytes of a batch's rows, without looking at fixed-width columns.
pub(super) struct Widths {
    fixed: u64,
    variable: Vec<usize>,
}

impl Widths {
    pub(super) fn new(schema: &Schema) -> Self {
        let mut widths = Self { fixed: 0, variable: Vec::new() };
        for (i, field) in schema.fields().iter().enumerate() {
            match field.data_type() {
                DataType::Dictionary(key, _) => {
                    widths.fixed += key.primitive_width().unwrap_or(4) as u64;
                }
                DataType::Boolean => widths.fixed += 1,
                other => match other.primitive_width() {
                    Some(width) => widths.fixed += width as u64,
                    None => widths.variable.push(i),
                },
            }
        }
        widths
    }

    pub(super) fn bytes(&self, batch: &RecordBatch) -> u64 {
        let variable: usize = self
            .variable
            .iter()
            .map(|&i| batch.column(i).to_data().get_slice_memory_size().unwrap_or(0))
            .sum();
        self.fixed * batch.num_rows() as u64 + variable as u64
    }
}
