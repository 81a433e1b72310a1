//! How many different times a frame has, as an aggregate of runs that come from left to right: its
//! rows are in the order of time, so that each time that differs from the one before is another.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array};
use arrow::datatypes::{DataType, Int64Type};
use state::{Accumulator, Aggregate, Groups, Part, StateError};

use crate::rows::time::ticks;

/// The count of different values of a column of time, of rows in its order.
pub fn times(of: DataType) -> Arc<dyn Aggregate> {
    Arc::new(Times { of })
}

#[derive(Debug, Clone)]
struct Times {
    of: DataType,
}

impl Aggregate for Times {
    fn state_types(&self) -> Vec<DataType> {
        vec![DataType::Int64; 3]
    }

    fn output_type(&self) -> DataType {
        DataType::Int64
    }

    fn create(&self) -> Box<dyn Accumulator> {
        Box::new(Counts { of: self.of.clone(), groups: vec![] })
    }

    fn keeps_arrays(&self) -> bool {
        false
    }
}

/// The times of a run of rows.
#[derive(Debug, Clone, Copy, Default)]
struct Run {
    first: i64,
    last: i64,
    /// How many; 0 for no rows.
    count: i64,
}

impl Run {
    fn append(&mut self, next: Run) {
        *self = match (self.count, next.count) {
            (_, 0) => *self,
            (0, _) => next,
            (own, more) => {
                let count = own + more - i64::from(self.last == next.first);
                Run { first: self.first, last: next.last, count }
            }
        };
    }
}

struct Counts {
    of: DataType,
    groups: Vec<Run>,
}

impl Accumulator for Counts {
    fn update(
        &mut self,
        args: &[ArrayRef],
        groups: &Groups,
        total: usize,
    ) -> Result<(), StateError> {
        let got = args.first().map_or(DataType::Null, |arg| arg.data_type().clone());
        let times = args.first().and_then(|arg| ticks(arg));
        let expected = self.of.clone();
        let times = times.ok_or(StateError::Type { what: "time", expected, got })?;
        self.groups.resize(self.groups.len().max(total), Run::default());
        for (group, &time) in groups.iter().zip(times) {
            self.groups[group as usize].append(Run { first: time, last: time, count: 1 });
        }
        Ok(())
    }

    fn merge(
        &mut self,
        states: &[ArrayRef],
        groups: &Groups,
        total: usize,
    ) -> Result<(), StateError> {
        let columns: Option<Vec<_>> =
            states.iter().map(|state| state.as_primitive_opt::<Int64Type>()).collect();
        let Some([firsts, lasts, counts]) = columns.as_deref() else {
            let (expected, got) = (3, states.len());
            return Err(StateError::Shape { what: "state columns", expected, got });
        };
        self.groups.resize(self.groups.len().max(total), Run::default());
        for (row, group) in groups.iter().enumerate() {
            let (first, last, count) = (firsts.value(row), lasts.value(row), counts.value(row));
            self.groups[group as usize].append(Run { first, last, count });
        }
        Ok(())
    }

    fn state(&mut self, part: &Part) -> Result<Vec<ArrayRef>, StateError> {
        self.groups.resize(self.groups.len().max(part.ids().end), Run::default());
        let column = |of: fn(&Run) -> i64| -> ArrayRef {
            Arc::new(Int64Array::from_iter_values(self.groups[part.ids()].iter().map(of)))
        };
        Ok(vec![column(|run| run.first), column(|run| run.last), column(|run| run.count)])
    }

    fn values(&mut self, part: &Part) -> Result<ArrayRef, StateError> {
        Ok(self.state(part)?.swap_remove(2))
    }

    fn clear(&mut self, _: usize) {
        self.groups.clear();
    }

    fn bytes(&self) -> usize {
        self.groups.capacity() * size_of::<Run>()
    }
}
