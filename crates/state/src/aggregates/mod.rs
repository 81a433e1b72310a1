//! The aggregates that have kernels of their own: count, sum, min, max and avg.
//!
//! Each function here answers `None` for a type without a kernel; the planner then adapts its own
//! implementation to [`crate::Aggregate`]. All of them treat nulls like SQL: count counts values,
//! the others of no value are NULL.

mod avg;
mod count;
mod decimal;
mod extreme;
mod sum;
#[cfg(test)]
mod tests;
mod valid;

use std::fmt::Debug;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, PrimitiveArray};
use arrow::datatypes::DataType;

use crate::{Aggregate, StateError};

pub use avg::avg;
pub use extreme::{max, min};
pub use sum::sum;

/// `count(*)`: rows of each group, as `Int64`.
pub fn count() -> Arc<dyn Aggregate> {
    Arc::new(count::Count { argument: false })
}

/// `count(x)`: rows of each group where `x`, of any type, is not null, as `Int64`.
pub fn count_of(of: &DataType) -> Arc<dyn Aggregate> {
    let _ = of;
    Arc::new(count::Count { argument: true })
}

/// A type of numbers that accumulators are generic over.
trait Values: ArrowPrimitiveType + Debug + Send + Sync {}
impl<T: ArrowPrimitiveType + Debug + Send + Sync> Values for T {}

/// Column `at` of `columns` as an array of `T`.
fn column<'a, T: ArrowPrimitiveType>(
    columns: &'a [ArrayRef],
    at: usize,
    what: &'static str,
) -> Result<&'a PrimitiveArray<T>, StateError> {
    let column = any_column(columns, at, what)?;
    column.as_any().downcast_ref().ok_or_else(|| StateError::Type {
        what,
        expected: T::DATA_TYPE,
        got: column.data_type().clone(),
    })
}

/// Column `at` of `columns`.
fn any_column<'a>(
    columns: &'a [ArrayRef],
    at: usize,
    what: &'static str,
) -> Result<&'a ArrayRef, StateError> {
    columns.get(at).ok_or(StateError::Shape { what, expected: at + 1, got: columns.len() })
}
