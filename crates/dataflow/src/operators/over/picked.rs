//! Values that are named by the array and the row in which they came.

use arrow::array::{Array, ArrayRef, new_null_array};
use arrow::datatypes::DataType;
use state::{StateError, gather};

/// The array and the row of a value.
pub(super) type At = (u32, u32);

/// Where NULL is.
pub(super) const NULL: At = (0, 0);

/// Arrays of values. They stay as they came; what is picked of them is copied when it is read.
pub(super) struct Values {
    /// The first is one NULL.
    arrays: Vec<ArrayRef>,
}

impl Values {
    /// No values of this type but NULL.
    pub(super) fn new(of: &DataType) -> Self {
        Self { arrays: vec![new_null_array(of, 1)] }
    }

    /// Adds an array, and gives its number.
    pub(super) fn push(&mut self, values: &ArrayRef) -> u32 {
        self.arrays.push(values.clone());
        self.arrays.len() as u32 - 1
    }

    /// The values at these places.
    ///
    /// # Errors
    /// When they have too many bytes for their type.
    pub(super) fn read(&self, picked: impl Iterator<Item = At>) -> Result<ArrayRef, StateError> {
        let picked: Vec<_> = picked.map(|(array, row)| (array as usize, row as usize)).collect();
        let arrays: Vec<&dyn Array> = self.arrays.iter().map(|array| array.as_ref()).collect();
        Ok(gather(&arrays, &picked)?)
    }

    /// Forgets all but NULL.
    pub(super) fn clear(&mut self) {
        self.arrays.truncate(1);
    }

    pub(super) fn bytes(&self) -> usize {
        self.arrays.iter().map(|array| array.get_array_memory_size()).sum()
    }
}
