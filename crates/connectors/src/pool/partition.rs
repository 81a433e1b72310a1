//! In which partition a row lies.
//!
//! A bucket is a part of the range of the hash by which workers exchange rows, so that rows of two
//! tables that are equal in a bucket column lie in partitions of the same number, and go to the
//! same worker. Equal values hash alike whatever their width: integers as 64 bits, text as bytes,
//! decimals without the zeros at their end.

use arrow::array::{Array, ArrayRef, AsArray, BinaryBuilder};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Decimal128Type, Schema};
use dataflow::Partitioner;
use dataflow::connector::HashBuckets;
use dataflow::error::ConnectorError;
use dataflow::source::RowBuckets;
use pool::manifest::{Buckets, Definition, KeyFamily};

use crate::options::sql_type;

/// The buckets of a declaration.
///
/// # Errors
/// When a column is unknown, or of a type of which equal values may differ.
pub(super) fn buckets(
    schema: &Schema,
    declared: &[HashBuckets],
) -> Result<Vec<Buckets>, ConnectorError> {
    let each = declared.iter().map(|HashBuckets { column, count }| {
        let refused = |message: String, hint: &str| ConnectorError::Column {
            column: column.clone(),
            message,
            hint: Some(hint.to_owned()),
        };
        let Ok(at) = schema.index_of(column) else {
            return Err(refused("the table has no such column".into(), "name one that it has"));
        };
        let of = schema.field(at).data_type();
        let Some(family) = family(of) else {
            let message = format!("rows are not distributed by a {}", sql_type(of));
            let hint = "name a column of whole numbers, text, decimals or points in time";
            return Err(refused(message, hint));
        };
        Ok(Buckets { column: at as u16, bits: count.ilog2() as u8, family })
    });
    each.collect()
}

/// Of which family the keys of a type are; `None` where equal values may have different bytes.
pub(super) fn family(of: &DataType) -> Option<KeyFamily> {
    match of {
        DataType::Utf8 | DataType::Binary => Some(KeyFamily::Bytes),
        DataType::Decimal128(..) => Some(KeyFamily::Decimal),
        DataType::Date32
        | DataType::Date64
        | DataType::Time32(_)
        | DataType::Time64(_)
        | DataType::Timestamp(..) => Some(KeyFamily::Integer),
        of if of.is_integer() => Some(KeyFamily::Integer),
        _ => None,
    }
}

/// Whether an exchange between workers leads keys of a family by the same hash: it has another one
/// of decimals.
pub(super) fn is_led_alike(family: KeyFamily) -> bool {
    family != KeyFamily::Decimal
}

/// Finds the partitions of rows.
#[derive(Debug)]
pub(super) struct Partitions {
    buckets: Vec<(Buckets, Partitioner)>,
    scratch: Vec<u32>,
}

impl Partitions {
    pub(super) fn of(definition: &Definition) -> Self {
        let each = definition.buckets.iter().map(|by| (*by, Partitioner::new(1 << by.bits)));
        Self { buckets: each.collect(), scratch: vec![] }
    }

    /// Whether there is but one.
    pub(super) fn is_one(&self) -> bool {
        self.buckets.iter().all(|(by, _)| by.bits == 0)
    }

    /// The partition of each row: the buckets of the columns, the first one most significant.
    ///
    /// # Errors
    /// When a column cannot be hashed.
    pub(super) fn of_rows(
        &mut self,
        columns: &[ArrayRef],
        rows: usize,
    ) -> Result<Vec<u32>, String> {
        let mut partitions = vec![0_u32; rows];
        for (by, hash) in &mut self.buckets {
            let key = key(&columns[usize::from(by.column)], by.family)?;
            let found = hash.owners_of(std::slice::from_ref(&key), &mut self.scratch);
            found.map_err(|error| error.to_string())?;
            for (partition, bucket) in partitions.iter_mut().zip(&self.scratch) {
                *partition = *partition << by.bits | bucket;
            }
        }
        Ok(partitions)
    }
}

/// Finds buckets of a column.
pub(super) struct KeyBuckets(pub(super) Buckets);

impl RowBuckets for KeyBuckets {
    fn of_values(&self, column: &ArrayRef, to: &mut Vec<u32>) -> Result<(), String> {
        let Buckets { bits, family, .. } = self.0;
        let mut found = vec![];
        let owners = Partitioner::new(1 << bits).owners_of(&[key(column, family)?], &mut found);
        owners.map_err(|error| error.to_string())?;
        to.append(&mut found);
        Ok(())
    }
}

/// The bucket of a value, which is the only one of an array.
pub(super) fn bucket(value: &ArrayRef, by: &Buckets) -> Option<u32> {
    let mut bucket = vec![];
    let key = key(value, by.family).ok()?;
    Partitioner::new(1 << by.bits).owners_of(&[key], &mut bucket).ok()?;
    bucket.first().copied()
}

/// The bucket of one of the bucket columns in a partition.
pub(super) fn bucket_in(partition: u32, buckets: &[Buckets], at: usize) -> u32 {
    let below: u32 = buckets[at + 1..].iter().map(|by| u32::from(by.bits)).sum();
    (partition >> below) & ((1 << buckets[at].bits) - 1)
}

/// Values that hash alike where they are equal.
pub(super) fn key(column: &ArrayRef, family: KeyFamily) -> Result<ArrayRef, String> {
    match (family, column.data_type()) {
        (KeyFamily::Integer, DataType::Int64 | DataType::UInt64) | (KeyFamily::Bytes, _) => {
            Ok(ArrayRef::clone(column))
        }
        (KeyFamily::Integer, DataType::Date32 | DataType::Time32(_)) => {
            let days =
                cast(column, &DataType::Int32).and_then(|days| cast(&days, &DataType::Int64));
            days.map_err(|error| error.to_string())
        }
        (KeyFamily::Integer, _) => {
            cast(column, &DataType::Int64).map_err(|error| error.to_string())
        }
        (KeyFamily::Decimal, DataType::Decimal128(_, scale)) => {
            Ok(std::sync::Arc::new(shortest(column, *scale)))
        }
        (KeyFamily::Decimal, of) => Err(format!("{of} is no decimal")),
    }
}

/// Decimals without the zeros at their end, as bytes.
fn shortest(column: &ArrayRef, scale: i8) -> arrow::array::BinaryArray {
    let mut keys = BinaryBuilder::new();
    for value in column.as_primitive::<Decimal128Type>() {
        let key = value.map(|mut value| {
            let mut scale = i16::from(scale);
            while value != 0 && value % 10 == 0 {
                (value, scale) = (value / 10, scale - 1);
            }
            let scale = if value == 0 { 0 } else { scale };
            [&value.to_le_bytes()[..], &scale.to_le_bytes()[..]].concat()
        });
        keys.append_option(key);
    }
    keys.finish()
}
