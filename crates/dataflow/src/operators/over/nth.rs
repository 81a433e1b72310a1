//! The n-th value of a frame, as an aggregate of runs that come from left to right: of each the
//! first n values are kept. For frames alone, as [`super::edge`].

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, ListArray};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field};
use state::{Accumulator, Aggregate, Groups, Part, StateError};

use super::picked::{At, NULL, Values};

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
        Box::new(Firsts { spec: self.clone(), values: Values::new(&self.of), groups: vec![] })
    }
}

/// The first values of groups.
struct Firsts {
    spec: Nth,
    values: Values,
    /// By group where each of its values is.
    groups: Vec<Vec<At>>,
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
        let array = self.values.push(values);
        self.groups.resize(self.groups.len().max(total), vec![]);
        for (group, rows) in groups {
            let kept = &mut self.groups[group as usize];
            let counts = |row: &usize| !self.spec.skip_nulls || values.is_valid(*row);
            let room = self.spec.n - kept.len();
            kept.extend(rows.filter(counts).take(room).map(|row| (array, row as u32)));
        }
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
        let values = self.values.read(groups.iter().flatten().copied())?;
        let offsets = OffsetBuffer::from_lengths(groups.iter().map(Vec::len));
        Ok(vec![Arc::new(ListArray::try_new(self.spec.item(), offsets, values, None)?)])
    }

    fn values(&mut self, part: &Part) -> Result<ArrayRef, StateError> {
        self.groups.resize(self.groups.len().max(part.ids().end), vec![]);
        // A group with fewer rows has none.
        let nth = |kept: &Vec<At>| kept.get(self.spec.n - 1).copied().unwrap_or(NULL);
        self.values.read(self.groups[part.ids()].iter().map(nth))
    }

    fn clear(&mut self, _: usize) {
        self.values.clear();
        self.groups.clear();
    }

    fn bytes(&self) -> usize {
        let kept: usize = self.groups.iter().map(Vec::capacity).sum();
        let groups = self.groups.capacity() * size_of::<Vec<At>>();
        self.values.bytes() + kept * size_of::<At>() + groups
    }
}
