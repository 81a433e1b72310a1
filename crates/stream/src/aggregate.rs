//! Aggregates over the rows of a group.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, AsArray, PrimitiveArray};
use arrow::datatypes::{DataType, Schema};
use state::{Accumulator, Aggregate, Groups, Part, StateError, aggregates};

use crate::error::{StreamError, index_of};

/// An aggregate of the rows of a group, under the name of a new column.
#[derive(Clone)]
pub struct Agg {
    pub(crate) name: String,
    columns: Vec<String>,
    make: Arc<Make>,
    /// The aggregate that combines partial results, which are in a column of its name.
    parts: Option<Arc<Parts>>,
}

/// An aggregate of the results of parts, by the name of their column.
type Parts = dyn Fn(&str) -> Agg + Send + Sync;

/// Makes the function for the types of its columns; `None` where there is none.
type Make = dyn Fn(&[DataType]) -> Option<Arc<dyn Aggregate>> + Send + Sync;

impl Agg {
    /// How many rows.
    pub fn count(name: &str) -> Self {
        Self::of(name, &[], |_| Some(aggregates::count())).with(|name| Agg::sum(name, name))
    }

    /// How many values of a column, without NULLs.
    pub fn count_of(column: &str, name: &str) -> Self {
        let count = Self::of(name, &[column], |types| Some(aggregates::count_of(&types[0])));
        count.with(|name| Agg::sum(name, name))
    }

    /// The sum of integers, as 64 bits, or floats.
    pub fn sum(column: &str, name: &str) -> Self {
        let sum = Self::of(name, &[column], |types| aggregates::sum(&types[0]));
        sum.with(|name| Agg::sum(name, name))
    }

    /// The mean, as `Float64`.
    pub fn avg(column: &str, name: &str) -> Self {
        Self::of(name, &[column], |types| aggregates::avg(&types[0]))
    }

    /// The least value.
    pub fn min(column: &str, name: &str) -> Self {
        let min = Self::of(name, &[column], |types| aggregates::min(&types[0]));
        min.with(|name| Agg::min(name, name))
    }

    /// The greatest value.
    pub fn max(column: &str, name: &str) -> Self {
        let max = Self::of(name, &[column], |types| aggregates::max(&types[0]));
        max.with(|name| Agg::max(name, name))
    }

    /// The values of a column put together two by two; NULL of no value. `function` must be
    /// associative and commutative, for rows and the parts of several workers meet in any order.
    pub fn reduce<T>(
        column: &str,
        name: &str,
        function: impl Fn(T::Native, T::Native) -> T::Native + Send + Sync + 'static,
    ) -> Self
    where
        T: ArrowPrimitiveType,
    {
        Self::reduced::<T>(column, name, Arc::new(function))
    }

    fn reduced<T: ArrowPrimitiveType>(
        column: &str,
        name: &str,
        function: Arc<Function<T>>,
    ) -> Self {
        let again = function.clone();
        let reduced = Self::of(name, &[column], move |types| {
            if types[0] == T::DATA_TYPE {
                Some(Arc::new(Reduce::<T>(function.clone())))
            } else {
                None
            }
        });
        reduced.with(move |name| Self::reduced::<T>(name, name, again.clone()))
    }

    /// A function of one's own: made for the types of its columns, or `None` if they do not fit.
    pub fn of(
        name: &str,
        columns: &[&str],
        make: impl Fn(&[DataType]) -> Option<Arc<dyn Aggregate>> + Send + Sync + 'static,
    ) -> Self {
        let columns = columns.iter().map(|column| (*column).to_owned()).collect();
        Self { name: name.to_owned(), columns, make: Arc::new(make), parts: None }
    }

    fn with(self, parts: impl Fn(&str) -> Agg + Send + Sync + 'static) -> Self {
        Self { parts: Some(Arc::new(parts)), ..self }
    }

    /// The aggregate that combines its partial results.
    pub(crate) fn of_parts(&self) -> Result<Self, StreamError> {
        match &self.parts {
            Some(parts) => Ok(parts(&self.name)),
            None => Err(StreamError::refused(
                format!("'{}' of all rows cannot be computed from its values of parts", self.name),
                "ask for sums and counts, and divide them behind: stream.map(…)",
            )),
        }
    }

    /// The function, and its columns.
    pub(crate) fn over(
        &self,
        schema: &Schema,
    ) -> Result<(Arc<dyn Aggregate>, Vec<usize>), StreamError> {
        let columns = self.columns.iter().map(|column| index_of(schema, column));
        let columns: Vec<usize> = columns.collect::<Result<_, _>>()?;
        let types: Vec<DataType> =
            columns.iter().map(|&column| schema.field(column).data_type().clone()).collect();
        match (self.make)(&types) {
            Some(aggregate) => Ok((aggregate, columns)),
            None => Err(StreamError::Type {
                name: self.columns.first().cloned().unwrap_or_default(),
                found: types.first().cloned().unwrap_or(DataType::Null),
                needs: format!("'{}' is not computed of it", self.name),
            }),
        }
    }
}

type Function<T> = dyn Fn(Native<T>, Native<T>) -> Native<T> + Send + Sync;
type Native<T> = <T as ArrowPrimitiveType>::Native;

/// A function of two values as an aggregate.
struct Reduce<T: ArrowPrimitiveType>(Arc<Function<T>>);

impl<T: ArrowPrimitiveType> fmt::Debug for Reduce<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "reduce of {}", T::DATA_TYPE)
    }
}

impl<T: ArrowPrimitiveType> Aggregate for Reduce<T> {
    fn state_types(&self) -> Vec<DataType> {
        vec![T::DATA_TYPE]
    }

    fn output_type(&self) -> DataType {
        T::DATA_TYPE
    }

    fn create(&self) -> Box<dyn Accumulator> {
        Box::new(Reduced::<T> { function: self.0.clone(), values: vec![] })
    }

    fn keeps_arrays(&self) -> bool {
        false
    }
}

/// By group what its values have come to; `None` without one.
struct Reduced<T: ArrowPrimitiveType> {
    function: Arc<Function<T>>,
    values: Vec<Option<T::Native>>,
}

impl<T: ArrowPrimitiveType> Reduced<T> {
    fn array(&self, ids: Range<usize>) -> ArrayRef {
        let value = |id| self.values.get(id).copied().flatten();
        Arc::new(PrimitiveArray::<T>::from_iter(ids.map(value)))
    }
}

impl<T: ArrowPrimitiveType> Accumulator for Reduced<T> {
    fn update(
        &mut self,
        args: &[ArrayRef],
        groups: &Groups,
        total: usize,
    ) -> Result<(), StateError> {
        let column = args.first().and_then(|column| column.as_primitive_opt::<T>());
        let Some(column) = column else {
            let got = args.first().map_or(DataType::Null, |column| column.data_type().clone());
            return Err(StateError::Type { what: "reduce", expected: T::DATA_TYPE, got });
        };
        self.values.resize(total.max(self.values.len()), None);
        for (row, id) in groups.iter().enumerate().filter(|(row, _)| column.is_valid(*row)) {
            let (value, known) = (column.value(row), &mut self.values[id as usize]);
            *known = Some(known.map_or(value, |known| (self.function)(known, value)));
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
        Ok(vec![self.array(part.ids())])
    }

    fn values(&mut self, part: &Part) -> Result<ArrayRef, StateError> {
        Ok(self.array(part.ids()))
    }

    fn clear(&mut self, total: usize) {
        self.values.clear();
        self.values.resize(total, None);
    }

    fn bytes(&self) -> usize {
        self.values.capacity() * size_of::<Option<T::Native>>()
    }
}
