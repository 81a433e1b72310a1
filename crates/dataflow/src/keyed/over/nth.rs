//! The n-th value of a frame, as an aggregate of runs that come from left to right: of each the
//! first n values are kept. For frames alone, as [`super::edge`].

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, ListArray, new_null_array};
use arrow::buffer::OffsetBuffer;
use arrow::compute::interleave;
use arrow::datatypes::{DataType, Field};
use state::{Accumulator, Aggregate, Groups, Part, StateError};

/// The `n`-th value, from 1, of values of a type; with `skip_nulls` of those that are not null.
pub fn nth_value(of: DataType, n: usize, skip_nulls: bool) -> Arc<dyn Aggregate> {
    Arc::new(Nth { of, n: n.max(1), skip_nulls })
}

#[derive(Debug, Clone)]
struct Nth {
    of: DataType,
    n: usize,
    skip_nulls: bool,
}

impl Nth {
    fn item(&self) -> Arc<Field> {
        Arc::new(Field::new_list_field(self.of.clone(), true))
    }
}

impl Aggregate for Nth {
    fn state_types(&self) -> Vec<DataType> {
        vec![DataType::List(self.item())]
    }

    fn output_type(&self) -> DataType {
        self.of.clone()
    }

    fn create(&self) -> Box<dyn Accumulator> {
        let arrays = vec![new_null_array(&self.of, 1)];
        Box::new(Firsts { spec: self.clone(), arrays, groups: vec![] })
    }
}

/// The first values of groups.
struct Firsts {
    spec: Nth,
    /// The first is one NULL, the value of a group with fewer rows.
    arrays: Vec<ArrayRef>,
    /// By group the array and the row of each of its values.
    groups: Vec<Vec<(u32, u32)>>,
}

impl Firsts {
    /// Appends the rows of `values`, which become an array of their own: those of each range to the
    /// group.
    fn append(
        &mut self,
        values: &ArrayRef,
        groups: impl Iterator<Item = (u32, Range<usize>)>,
        total: usize,
    ) {
        let array = self.arrays.len() as u32;
        self.groups.resize(self.groups.len().max(total), vec![]);
        for (group, rows) in groups {
            let kept = &mut self.groups[group as usize];
            let counts = |row: &usize| !self.spec.skip_nulls || values.is_valid(*row);
            let room = self.spec.n - kept.len();
            kept.extend(rows.filter(counts).take(room).map(|row| (array, row as u32)));
        }
        self.arrays.push(values.clone());
    }

    fn take(&self, picked: impl Iterator<Item = (u32, u32)>) -> Result<ArrayRef, StateError> {
        let picked: Vec<_> = picked.map(|(array, row)| (array as usize, row as usize)).collect();
        let arrays: Vec<&dyn Array> = self.arrays.iter().map(|array| array.as_ref()).collect();
        Ok(interleave(&arrays, &picked)?)
    }
}

impl Accumulator for Firsts {
    fn update(
        &mut self,
        args: &[ArrayRef],
        groups: &Groups,
        total: usize,
    ) -> Result<(), StateError> {
        let Some(values) = args.first() else {
            return Err(StateError::Shape { what: "arguments", expected: 1, got: 0 });
        };
        let rows = groups.iter().enumerate().map(|(row, group)| (group, row..row + 1));
        self.append(values, rows, total);
        Ok(())
    }

    fn merge(
        &mut self,
        states: &[ArrayRef],
        groups: &Groups,
        total: usize,
    ) -> Result<(), StateError> {
        let Some(lists) = states.first().and_then(|state| state.as_list_opt::<i32>()) else {
            return Err(StateError::Shape { what: "lists", expected: 1, got: 0 });
        };
        let rows = groups.iter().enumerate().map(|(row, group)| {
            let [from, to] = [row, row + 1].map(|at| lists.value_offsets()[at] as usize);
            (group, from..to)
        });
        self.append(lists.values(), rows, total);
        Ok(())
    }

    fn state(&mut self, part: &Part) -> Result<Vec<ArrayRef>, StateError> {
        self.groups.resize(self.groups.len().max(part.ids().end), vec![]);
        let groups = &self.groups[part.ids()];
        let values = self.take(groups.iter().flatten().copied())?;
        let offsets = OffsetBuffer::from_lengths(groups.iter().map(Vec::len));
        Ok(vec![Arc::new(ListArray::try_new(self.spec.item(), offsets, values, None)?)])
    }

    fn values(&mut self, part: &Part) -> Result<ArrayRef, StateError> {
        self.groups.resize(self.groups.len().max(part.ids().end), vec![]);
        let nth = |kept: &Vec<(u32, u32)>| kept.get(self.spec.n - 1).copied().unwrap_or((0, 0));
        self.take(self.groups[part.ids()].iter().map(nth))
    }

    fn clear(&mut self, _: usize) {
        self.arrays.truncate(1);
        self.groups.clear();
    }

    fn bytes(&self) -> usize {
        let arrays: usize = self.arrays.iter().map(|array| array.get_array_memory_size()).sum();
        let kept: usize = self.groups.iter().map(Vec::capacity).sum();
        arrays + kept * size_of::<(u32, u32)>() + self.groups.capacity() * size_of::<Vec<u64>>()
    }
}
