//! Dense ids of the keys of rows.
//!
//! Joins, frames and sessions keep something for each key. They ask this index for the number of a
//! key and keep it in an array: keys are compared in one place, [`KeyTable`], which groups use too.

use arrow::array::{Array, ArrayRef};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{Field, Schema};
use arrow::record_batch::RecordBatch;
use state::{KeyTable, NullKeys, StateError, without_dictionary};

/// The columns of a key as [`RowKeys::keys`] gives them.
pub(crate) fn key_fields(schema: &Schema, keys: &[usize]) -> Vec<Field> {
    let field = |(at, &key): (usize, &usize)| {
        Field::new(format!("key{at}"), without_dictionary(schema.field(key).data_type()), true)
    };
    keys.iter().enumerate().map(field).collect()
}

/// Ids of keys, whose types those of the first rows are.
#[derive(Debug)]
pub(crate) struct RowKeys {
    nulls: NullKeys,
    table: Option<KeyTable>,
}

impl RowKeys {
    /// No keys yet.
    pub(crate) fn new(nulls: NullKeys) -> Self {
        Self { nulls, table: None }
    }

    /// Replaces `ids` by the id of each of `rows` rows, [`KeyTable::UNKNOWN`] where NULL is equal
    /// to nothing and a key has one. Gives how many ids there are.
    ///
    /// # Errors
    /// As [`KeyTable::intern`].
    pub(crate) fn intern(
        &mut self,
        keys: &[ArrayRef],
        rows: usize,
        ids: &mut Vec<u32>,
    ) -> Result<usize, StateError> {
        let table = match &mut self.table {
            Some(table) => table,
            none => {
                let types: Vec<_> = keys.iter().map(|key| key.data_type().clone()).collect();
                none.insert(KeyTable::new(&types, self.nulls)?)
            }
        };
        table.intern(keys, rows, ids)?;
        Ok(table.len())
    }

    /// Replaces `ids` by the id of each of `rows` rows, [`KeyTable::UNKNOWN`] where it has none.
    ///
    /// # Errors
    /// As [`KeyTable::find`].
    pub(crate) fn find(
        &self,
        keys: &[ArrayRef],
        rows: usize,
        ids: &mut Vec<u32>,
    ) -> Result<(), StateError> {
        if let Some(table) = &self.table {
            return table.find(keys, rows, ids);
        }
        ids.clear();
        ids.resize(rows, KeyTable::UNKNOWN);
        Ok(())
    }

    /// The keys of some ids; nothing if there are no keys.
    ///
    /// # Errors
    /// As [`KeyTable::keys`].
    pub(crate) fn keys(&self, ids: &[u32]) -> Result<Vec<ArrayRef>, StateError> {
        self.table.as_ref().map_or(Ok(vec![]), |table| table.keys(ids))
    }

    /// How many ids there are.
    pub(crate) fn len(&self) -> usize {
        self.table.as_ref().map_or(0, KeyTable::len)
    }

    /// Forgets all keys but those of `ids`, which ascend. Their places there are their new ids.
    ///
    /// # Errors
    /// As [`KeyTable::retain`].
    pub(crate) fn retain(&mut self, ids: &[u32]) -> Result<(), StateError> {
        self.table.as_mut().map_or(Ok(()), |table| table.retain(ids))
    }

    /// Forgets all keys.
    pub(crate) fn clear(&mut self) {
        self.table = None;
    }

    /// Bytes held.
    pub(crate) fn bytes(&self) -> usize {
        self.table.as_ref().map_or(0, KeyTable::bytes)
    }
}

/// The mask of the rows without NULL in these columns of a key; `None` if no row has one.
pub(crate) fn nulls_of(key: &[ArrayRef]) -> Option<NullBuffer> {
    let nulls = key.iter().map(|column| column.logical_nulls());
    let all = nulls.fold(None, |all: Option<NullBuffer>, nulls| {
        NullBuffer::union(all.as_ref(), nulls.as_ref())
    });
    all.filter(|valid| valid.null_count() > 0)
}

/// Some columns of a batch.
pub(crate) fn columns_of(batch: &RecordBatch, columns: &[usize]) -> Vec<ArrayRef> {
    columns.iter().map(|&column| batch.column(column).clone()).collect()
}
