//! The order of rows.
//!
//! Rows with equal keys are ordered by their other columns, so that the result is the same for any
//! number of workers. The other columns are compared only if there are such rows.

use std::cell::OnceCell;
use std::cmp::Ordering;

use arrow::array::{ArrayRef, RecordBatch, UInt32Array};
use arrow::compute::{SortOptions, concat_batches, take_record_batch};
use arrow::datatypes::SchemaRef;
use arrow::row::{Row, Rows};
use state::{KeyRows, has_floats};

use crate::error::DataflowError;
use crate::job::Sort;
use crate::rows::wire::{bytes_of, own_views};

/// The order of the rows of a sort.
#[derive(Debug)]
pub(super) struct Order {
    schema: SchemaRef,
    by: Vec<(usize, SortOptions)>,
    /// The columns that order rows with equal keys. Floats of the keys are among them: equal floats
    /// may have different bits.
    others: Vec<usize>,
}

/// Rows with their keys.
pub(super) struct Keyed {
    batch: RecordBatch,
    bytes: usize,
    keys: Rows,
    others: OnceCell<Option<Rows>>,
}

impl Order {
    /// The order of a sort.
    pub(super) fn of(spec: &Sort) -> Self {
        let by = spec.order.clone();
        let named = |at: usize| by.iter().any(|(by, _)| *by == at);
        let tells = |&at: &usize| {
            let data_type = spec.schema.field(at).data_type();
            (!named(at) || has_floats(data_type)) && KeyRows::supports(data_type)
        };
        let others = (0..spec.schema.fields().len()).filter(tells).collect();
        Self { schema: spec.schema.clone(), by, others }
    }

    /// The columns of the rows.
    pub(super) fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    /// Makes the keys of rows.
    pub(super) fn keyed(&self, batch: RecordBatch) -> Result<Keyed, DataflowError> {
        let columns: Vec<ArrayRef> =
            self.by.iter().map(|(at, _)| batch.column(*at).clone()).collect();
        let keys = KeyRows::ordered(&columns, self.by.iter().map(|(_, options)| *options))?;
        Ok(Keyed { bytes: bytes_of(&batch), batch, keys, others: OnceCell::new() })
    }

    /// Some batches as one, and the places of its rows in order, of the first `most` rows.
    fn sorted(
        &self,
        batches: &[RecordBatch],
        most: Option<usize>,
    ) -> Result<(Keyed, Vec<u32>), DataflowError> {
        let rows = self.keyed(concat_batches(&self.schema, batches)?)?;
        let mut places: Vec<u32> = (0..rows.len() as u32).collect();
        let key = |place: &u32| rows.key(*place as usize);
        places.sort_unstable_by(|a, b| key(a).cmp(&key(b)));
        let (mut ordered, until) = (0, most.unwrap_or(usize::MAX).min(places.len()));
        while ordered < until {
            let first = key(&places[ordered]);
            let equal = places[ordered..].iter().take_while(|place| key(place) == first).count();
            if equal > 1 {
                let others = rows.others(self)?;
                let other = |place: u32| (others.map(|rows| rows.row(place as usize)), place);
                places[ordered..ordered + equal].sort_unstable_by(|&a, &b| other(a).cmp(&other(b)));
            }
            ordered += equal;
        }
        places.truncate(until);
        Ok((rows, places))
    }

    /// The first `most` rows of some batches in order, in batches of at most `rows_max`; each in
    /// memory of its own.
    pub(super) fn sort(
        &self,
        batches: &[RecordBatch],
        most: Option<usize>,
        rows_max: usize,
    ) -> Result<Vec<RecordBatch>, DataflowError> {
        let (rows, places) = self.sorted(batches, most)?;
        let part = |places: &[u32]| {
            let places = UInt32Array::from(places.to_vec());
            Ok(own_views(take_record_batch(&rows.batch, &places)?))
        };
        places.chunks(rows_max.max(1)).map(part).collect()
    }
}

impl Keyed {
    /// The number of rows.
    pub(super) fn len(&self) -> usize {
        self.batch.num_rows()
    }

    /// The rows.
    pub(super) fn batch(&self) -> &RecordBatch {
        &self.batch
    }

    /// The key of a row. Rows with equal keys are ordered by [`Keyed::others`].
    pub(super) fn key(&self, row: usize) -> Row<'_> {
        self.keys.row(row)
    }

    /// The other columns, which order rows with equal keys, if there are any.
    fn others(&self, order: &Order) -> Result<Option<&Rows>, DataflowError> {
        if let Some(others) = self.others.get() {
            return Ok(others.as_ref());
        }
        let columns = order.others.iter().map(|&at| self.batch.column(at).clone());
        let columns: Vec<ArrayRef> = columns.collect();
        let others = (!columns.is_empty()).then(|| KeyRows::exact(&columns)).transpose()?;
        Ok(self.others.get_or_init(|| others).as_ref())
    }

    /// Compares a row with a row of `other`.
    pub(super) fn compare(
        &self,
        row: usize,
        (other, of): (&Self, usize),
        order: &Order,
    ) -> Result<Ordering, DataflowError> {
        let by_key = self.key(row).cmp(&other.key(of));
        if by_key.is_ne() {
            return Ok(by_key);
        }
        let place = self.others(order)?.map(|rows| rows.row(row));
        Ok(place.cmp(&other.others(order)?.map(|rows| rows.row(of))))
    }

    /// Bytes of memory.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
            + self.keys.size()
            + self.others.get().and_then(Option::as_ref).map_or(0, Rows::size)
    }
}
