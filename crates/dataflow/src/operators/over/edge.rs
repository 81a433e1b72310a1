//! The first and the last value of a frame, as aggregates of runs that come from left to right.
//!
//! For frames alone: their merge depends on the order of the states, as that of no aggregate of
//! grouped rows may.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef};
use arrow::datatypes::DataType;
use state::{Accumulator, Aggregate, Groups, Part, StateError};

use super::picked::{At, NULL, Values};

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
        Box::new(Edges { spec: self.clone(), values: Values::new(&self.of), picked: vec![] })
    }
}

/// Values of groups.
struct Edges {
    spec: Edge,
    values: Values,
    /// By group where its value is; that of a group without rows is NULL.
    picked: Vec<At>,
}

impl Edges {
    fn read(&mut self, ids: Range<usize>) -> Result<ArrayRef, StateError> {
        self.picked.resize(self.picked.len().max(ids.end), NULL);
        self.values.read(self.picked[ids].iter().copied())
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
        let array = self.values.push(values);
        self.picked.resize(self.picked.len().max(total), NULL);
        for (row, group) in groups.iter().enumerate() {
            let picked = &mut self.picked[group as usize];
            let counts = !self.spec.skip_nulls || values.is_valid(row);
            if counts && (self.spec.last || *picked == NULL) {
                *picked = (array, row as u32);
            }
        }
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
        self.values.clear();
        self.picked.clear();
    }

    fn bytes(&self) -> usize {
        self.values.bytes() + self.picked.capacity() * size_of::<At>()
    }
}
