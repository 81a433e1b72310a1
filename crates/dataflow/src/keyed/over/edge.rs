//! The first and the last value of a frame, as aggregates of runs that come from left to right.
//!
//! For frames alone: their merge depends on the order of the states, as that of no aggregate of
//! grouped rows may.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, new_null_array};
use arrow::compute::interleave;
use arrow::datatypes::DataType;
use state::{Accumulator, Aggregate, Groups, Part, StateError};

/// `first_value` of values of a type; with `skip_nulls` of those that are not null.
pub fn first_value(of: DataType, skip_nulls: bool) -> Arc<dyn Aggregate> {
    Arc::new(Edge { of, last: false, skip_nulls })
}

/// `last_value` of values of a type; with `skip_nulls` of those that are not null.
pub fn last_value(of: DataType, skip_nulls: bool) -> Arc<dyn Aggregate> {
    Arc::new(Edge { of, last: true, skip_nulls })
}

#[derive(Debug, Clone)]
struct Edge {
    of: DataType,
    last: bool,
    skip_nulls: bool,
}

impl Aggregate for Edge {
    fn state_types(&self) -> Vec<DataType> {
        vec![self.of.clone()]
    }

    fn output_type(&self) -> DataType {
        self.of.clone()
    }

    fn create(&self) -> Box<dyn Accumulator> {
        let arrays = vec![new_null_array(&self.of, 1)];
        Box::new(Edges { spec: self.clone(), arrays, picked: vec![] })
    }
}

/// Values of groups.
struct Edges {
    spec: Edge,
    /// The first is one NULL, the value of a group without rows.
    arrays: Vec<ArrayRef>,
    /// By group the array and the row of its value.
    picked: Vec<(u32, u32)>,
}

impl Edges {
    fn read(&mut self, ids: Range<usize>) -> Result<ArrayRef, StateError> {
        self.picked.resize(self.picked.len().max(ids.end), (0, 0));
        let picked = self.picked[ids].iter().map(|&(array, row)| (array as usize, row as usize));
        let picked: Vec<_> = picked.collect();
        let arrays: Vec<&dyn Array> = self.arrays.iter().map(|array| array.as_ref()).collect();
        Ok(interleave(&arrays, &picked)?)
    }
}

impl Accumulator for Edges {
    fn update(
        &mut self,
        args: &[ArrayRef],
        groups: &Groups,
        total: usize,
    ) -> Result<(), StateError> {
        let Some(values) = args.first() else {
            return Err(StateError::Shape { what: "arguments", expected: 1, got: 0 });
        };
        let array = self.arrays.len() as u32;
        self.picked.resize(self.picked.len().max(total), (0, 0));
        for (row, group) in groups.iter().enumerate() {
            let picked = &mut self.picked[group as usize];
            let counts = !self.spec.skip_nulls || values.is_valid(row);
            if counts && (self.spec.last || picked.0 == 0) {
                *picked = (array, row as u32);
            }
        }
        self.arrays.push(values.clone());
        Ok(())
    }

    fn merge(
        &mut self,
        states: &[ArrayRef],
        groups: &Groups,
        total: usize,
    ) -> Result<(), StateError> {
        self.update(states, groups, total)
    }

    fn state(&mut self, part: &Part) -> Result<Vec<ArrayRef>, StateError> {
        Ok(vec![self.read(part.ids())?])
    }

    fn values(&mut self, part: &Part) -> Result<ArrayRef, StateError> {
        self.read(part.ids())
    }

    fn clear(&mut self, _: usize) {
        self.arrays.truncate(1);
        self.picked.clear();
    }

    fn bytes(&self) -> usize {
        let arrays: usize = self.arrays.iter().map(|array| array.get_array_memory_size()).sum();
        arrays + self.picked.capacity() * size_of::<(u32, u32)>()
    }
}
