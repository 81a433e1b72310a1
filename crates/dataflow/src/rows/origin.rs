//! Which rows the rows of a batch were before something was done to them.

use arrow::array::{AsArray, BooleanArray, UInt32Array};

use crate::error::DataflowError;

/// Which rows of a step's input its result is made of.
pub enum Origin {
    /// All, in order.
    All,
    /// Those, in order.
    Mask(BooleanArray),
    /// For each row of the result its number in the input: a row may come several times.
    Taken(UInt32Array),
}

impl Origin {
    /// The origin of rows that went through another step behind this one; `rows` is how many came
    /// to the first.
    ///
    /// # Errors
    /// [`DataflowError::Expression`] when a step has named rows that it was not given.
    pub fn then(self, next: Origin, rows: usize) -> Result<Origin, DataflowError> {
        let numbers = |origin: Origin| match origin {
            Origin::All => UInt32Array::from_iter_values(0..rows as u32),
            Origin::Taken(numbers) => numbers,
            Origin::Mask(kept) => {
                UInt32Array::from_iter_values(kept.values().set_indices().map(|row| row as u32))
            }
        };
        Ok(match (self, next) {
            (origin, Origin::All) | (Origin::All, origin) => origin,
            (first, Origin::Mask(kept)) => Origin::Taken(
                arrow::compute::filter(&numbers(first), &kept)?.as_primitive().clone(),
            ),
            (first, Origin::Taken(taken)) => {
                let taken = arrow::compute::take(&numbers(first), &taken, None)?;
                Origin::Taken(taken.as_primitive().clone())
            }
        })
    }
}
