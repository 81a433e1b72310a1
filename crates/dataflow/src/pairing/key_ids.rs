//! The ids of the keys of a build.

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::SchemaRef;
use state::{KeySpan, KeyTable, NullKeys, StateError};

use crate::error::DataflowError;
use crate::rows::chunks::Chunks;
use crate::rows::keys::columns_of;
use crate::rows::selection::Selection;

/// How many times as many keys as there are rows a span may have: four bytes each, where a hash
/// table takes some thirty for a row.
const SPAN_TIMES: usize = 4;

/// Rows whose keys get ids before it is asked again whether the query was stopped.
const PART_ROWS: usize = 1 << 16;

/// What knows the ids of keys.
#[derive(Debug)]
pub(super) enum KeyIds {
    Table(Box<KeyTable>),
    /// Keys of one number, close together.
    Span(KeySpan),
}

impl KeyIds {
    /// A span, if the rows have such keys, and the end of its ids; those of the rows go to `ids`.
    pub(super) fn span(
        rows: &Chunks,
        keys: &[usize],
        ids: &mut Vec<u32>,
    ) -> Result<Option<(Self, usize)>, StateError> {
        let &[key] = keys else { return Ok(None) };
        let columns: Vec<&ArrayRef> =
            rows.batches().iter().map(|batch| batch.column(key)).collect();
        let Some(span) = KeySpan::of(&columns, SPAN_TIMES * rows.rows())? else { return Ok(None) };
        let mut some = vec![];
        for column in columns {
            span.find(column, &mut some)?;
            ids.extend_from_slice(&some);
        }
        let end = span.end();
        Ok(Some((Self::Span(span), end)))
    }

    /// As [`KeyIds::span`], of any keys. There are fewer ids than rows if the query was `stopped`.
    pub(super) fn table(
        stopped: &dyn Fn() -> bool,
        rows: &Chunks,
        schema: &SchemaRef,
        keys: &[usize],
        nulls: NullKeys,
        ids: &mut Vec<u32>,
    ) -> Result<(Self, usize), StateError> {
        let types = keys.iter().map(|&key| schema.field(key).data_type().clone());
        let mut table = KeyTable::new(&types.collect::<Vec<_>>(), nulls)?;
        let mut some = vec![];
        let parts = rows.batches().iter().flat_map(parts_of);
        for batch in parts.take_while(|_| !stopped()) {
            // Once most rows have keys of their own, that is expected of all that are left.
            let own = table.len() > ids.len() / 2;
            table.reserve(if own { rows.rows() - ids.len() } else { batch.num_rows() })?;
            table.intern(&columns_of(&batch, keys), batch.num_rows(), &mut some)?;
            ids.extend_from_slice(&some);
        }
        let end = table.len();
        Ok((Self::Table(Box::new(table)), end))
    }

    /// The ids of the keys of some rows.
    pub(super) fn find(&self, rows: &Selection, keys: &[usize]) -> Result<Vec<u32>, DataflowError> {
        let (columns, mut ids) = (rows.columns(keys)?, vec![]);
        match self {
            Self::Table(table) => table.find(&columns, rows.len(), &mut ids)?,
            Self::Span(span) => span.find(&columns[0], &mut ids)?,
        }
        Ok(ids)
    }

    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Table(table) => table.bytes(),
            Self::Span(_) => 0,
        }
    }
}

/// A batch in parts of at most [`PART_ROWS`] rows.
fn parts_of(batch: &RecordBatch) -> impl Iterator<Item = RecordBatch> {
    let rows = batch.num_rows();
    let part = move |from| batch.slice(from, PART_ROWS.min(rows - from));
    (0..rows).step_by(PART_ROWS).map(part)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::Arc;

    use arrow::array::StringArray;

    use crate::pairing::Hashed;

    use super::*;

    #[test]
    fn a_table_is_cut_where_the_query_was_stopped() {
        let rows = 3 * PART_ROWS + 1;
        let keys: ArrayRef = Arc::new(StringArray::from_iter_values(
            (0..rows).map(|row| (row % 70_000).to_string()),
        ));
        let batch = RecordBatch::try_from_iter([("k", keys)]).expect("a column");
        let of = |looks: usize| {
            let left = Cell::new(looks);
            let stopped = || left.replace(left.get().saturating_sub(1)) == 0;
            let (batches, schema) = (vec![batch.clone()], batch.schema());
            Hashed::unless(&stopped, batches, &schema, &[0], NullKeys::Nothing).expect("keys")
        };
        for looks in 0..4 {
            assert!(of(looks).is_cut, "after {looks} parts");
        }
        let whole = of(4);
        assert!(!whole.is_cut);
        let found = whole.ids.find(&Selection::of(batch.clone()), &[0]).expect("ids");
        assert!((0..rows).all(|row| found[row] == (row % 70_000) as u32));
    }
}
