//! A file, read to its end with the columns that it says it has.

use std::collections::BTreeMap;
use std::sync::Arc;

use connectors::FileConnector;
use dataflow::bad::BadRows;
use dataflow::connector::{Connector, TableDef};
use dataflow::error::ConnectorError;
use dataflow::source::{Next, ReaderContext};

/// Rows after which reading stops: a column of nulls states its length and has no bytes.
const ROWS_MAX: usize = 1 << 20;

/// Rows asked for at a time.
const BATCH_ROWS: usize = 1000;

struct Standing;

impl fabric::Clock for Standing {
    fn now_ns(&self) -> u64 {
        0
    }
}

/// Good and bad rows of the file.
///
/// # Errors
/// When it is not of its format, or not all of it.
///
/// # Panics
/// When an error does not name the file, a batch is empty or too large, or a file waits.
pub fn file(path: &str) -> Result<(usize, u64), ConnectorError> {
    let read = read(path);
    if let Err(ConnectorError::Io { place, .. }) = &read {
        assert!(place.starts_with(path), "{place} is not {path}");
    }
    read
}

fn read(path: &str) -> Result<(usize, u64), ConnectorError> {
    let options = BTreeMap::from([("path".to_owned(), path.to_owned())]);
    let Some(schema) = FileConnector::default().infer(&options)? else {
        panic!("a file has columns")
    };
    let all: Vec<usize> = (0..schema.fields().len()).collect();
    let table =
        TableDef { name: "t".into(), schema, options, metadata: BTreeMap::new(), buckets: vec![] };
    let source = FileConnector::default().source(&table, &all)?;
    let bad = Arc::new(BadRows::default());
    let context = ReaderContext::new(Arc::new(Standing), bad.clone());
    let mut rows = 0;
    for split in source.splits(1, None)? {
        let mut flow = source.open(&split, None, &context)?;
        loop {
            match flow.next(BATCH_ROWS)? {
                Next::Batch(batch) => {
                    assert!((1..=BATCH_ROWS).contains(&batch.num_rows()));
                    rows += batch.num_rows();
                }
                Next::Pending | Next::Wait { .. } => panic!("a file waits"),
                Next::End => break,
            }
            if rows > ROWS_MAX {
                return Ok((rows, bad.count()));
            }
        }
    }
    Ok((rows, bad.count()))
}
