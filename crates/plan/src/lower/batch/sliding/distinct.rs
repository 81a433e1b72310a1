//! An aggregate of distinct values, of which each is counted: the first row with a value brings it,
//! the last one takes it away.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use arrow::array::ArrayRef;
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::Accumulator;
use datafusion::scalar::ScalarValue;

use super::merges;
use super::whole::count;

/// The aggregate of all values, which has each once.
#[derive(Debug)]
pub(super) struct Distinct {
    of_all: Box<dyn Accumulator>,
    rows: HashMap<Vec<ScalarValue>, usize>,
}

impl Distinct {
    /// `of_all` is not distinct, and takes back what it was given.
    pub(super) fn over(of_all: Box<dyn Accumulator>) -> Self {
        Self { of_all, rows: HashMap::new() }
    }
}

fn value(values: &[ArrayRef], row: usize) -> DfResult<Vec<ScalarValue>> {
    values.iter().map(|column| ScalarValue::try_from_array(column, row)).collect()
}

fn alone(values: &[ArrayRef], row: usize) -> Vec<ArrayRef> {
    values.iter().map(|column| column.slice(row, 1)).collect()
}

impl Accumulator for Distinct {
    fn update_batch(&mut self, values: &[ArrayRef]) -> DfResult<()> {
        for row in 0..count(values) {
            match self.rows.entry(value(values, row)?) {
                Entry::Occupied(mut rows) => *rows.get_mut() += 1,
                Entry::Vacant(new) => {
                    new.insert(1);
                    self.of_all.update_batch(&alone(values, row))?;
                }
            }
        }
        Ok(())
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> DfResult<()> {
        for row in 0..count(values) {
            let Entry::Occupied(mut rows) = self.rows.entry(value(values, row)?) else { continue };
            *rows.get_mut() -= 1;
            if *rows.get() == 0 {
                rows.remove();
                self.of_all.retract_batch(&alone(values, row))?;
            }
        }
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn evaluate(&mut self) -> DfResult<ScalarValue> {
        self.of_all.evaluate()
    }

    fn size(&self) -> usize {
        let of_value = |value: &Vec<ScalarValue>| ScalarValue::size_of_vec(value);
        size_of_val(self) + self.of_all.size() + self.rows.keys().map(of_value).sum::<usize>()
    }

    fn state(&mut self) -> DfResult<Vec<ScalarValue>> {
        self.of_all.state()
    }

    fn merge_batch(&mut self, _: &[ArrayRef]) -> DfResult<()> {
        merges()
    }
}
