//! Which rows of an array travel, and in which order.

use std::ops::Range;
use std::rc::Rc;

use arrow::array::Array;

use crate::error::DataflowError;

/// The number of a row that is not there: it has a NULL, or no elements.
pub(super) const ABSENT: u32 = u32::MAX;

/// Rows of an array.
#[derive(Debug, Clone)]
pub(super) enum Rows<'a> {
    /// Rows that follow one another.
    Range(Range<usize>),
    /// Rows by their numbers.
    Numbers(Numbers<'a>),
}

/// Numbers of rows, or [`ABSENT`].
#[derive(Debug, Clone)]
pub(super) enum Numbers<'a> {
    /// Of somebody else.
    Borrowed(&'a [u32]),
    /// Made of the rows of another column, and shared by the columns of a struct.
    Made(Rc<[u32]>),
}

impl std::ops::Deref for Numbers<'_> {
    type Target = [u32];
    fn deref(&self) -> &[u32] {
        match self {
            Numbers::Borrowed(numbers) => numbers,
            Numbers::Made(numbers) => numbers,
        }
    }
}

/// Rows of an array that stand one behind the other in a column.
#[derive(Clone)]
pub(super) struct Part<'a> {
    pub(super) array: &'a dyn Array,
    pub(super) rows: Rows<'a>,
    /// Whether some of the rows may be absent.
    pub(super) absent: bool,
}

impl<'a> Part<'a> {
    /// Rows of this array by the numbers of others; nothing stands for an absent one.
    ///
    /// # Errors
    /// When a number has more than 32 bits.
    pub(super) fn picked(
        array: &'a dyn Array,
        numbers: impl Iterator<Item = Option<usize>>,
    ) -> Result<Self, DataflowError> {
        let mut absent = false;
        let mut number = |row: Option<usize>| match row {
            Some(row) => number_of(row),
            None => {
                absent = true;
                Ok(ABSENT)
            }
        };
        let numbers: Rc<[u32]> = numbers.map(&mut number).collect::<Result<_, _>>()?;
        Ok(Self { array, rows: Rows::Numbers(Numbers::Made(numbers)), absent })
    }

    /// Whether some row has no value.
    pub(super) fn has_nulls(&self) -> bool {
        self.absent || self.array.nulls().is_some_and(|nulls| nulls.null_count() > 0)
    }
}

impl Rows<'_> {
    /// How many there are.
    pub(super) fn len(&self) -> usize {
        match self {
            Rows::Range(range) => range.len(),
            Rows::Numbers(numbers) => numbers.len(),
        }
    }

    /// Their numbers; nothing for one that is absent.
    pub(super) fn iter(&self) -> impl Iterator<Item = Option<usize>> {
        let (range, numbers): (Range<usize>, &[u32]) = match self {
            Rows::Range(range) => (range.clone(), &[]),
            Rows::Numbers(numbers) => (0..0, numbers),
        };
        let present = |&row: &u32| (row != ABSENT).then_some(row as usize);
        range.map(Some).chain(numbers.iter().map(present))
    }
}

/// The number of a row, which is not that of an absent one.
fn number_of(row: usize) -> Result<u32, DataflowError> {
    let number = u32::try_from(row).ok().filter(|&number| number != ABSENT);
    number.ok_or_else(|| {
        let message = format!("a column with {row} values in a row of lists cannot travel");
        DataflowError::Expression(message)
    })
}
