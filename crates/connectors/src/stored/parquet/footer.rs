//! The footer, looked at before the library makes types of it, and what it states afterwards.
//!
//! The library builds nested types by calling itself, so a schema that is deep enough ends the
//! process; and it believes the counts of rows, of which there are three.

use std::sync::Arc;

use dataflow::error::ConnectorError;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader};

use super::compact::{Compact, Damage, kind};
use super::damaged;
use crate::format::typed::guarded;
use crate::stored::{Blob, look, read_exactly};

/// Levels of a file's schema at most; a list takes two or three.
const SCHEMA_DEPTH_MAX: usize = 128;

/// Columns and groups of columns of a file's schema at most.
const SCHEMA_NODES_MAX: u64 = 100_000;

/// Bytes of a footer at most.
const FOOTER_BYTES_MAX: u64 = 256 << 20;

/// What a Parquet file begins and ends with.
const MAGIC: &[u8] = b"PAR1";

/// The same, where the footer is encrypted.
const ENCRYPTED: &[u8] = b"PARE";

/// Bytes behind the footer: its length and the magic.
const TRAILER_BYTES: usize = 8;

pub(super) fn read(blob: &Arc<dyn Blob>) -> Result<ArrowReaderMetadata, ConnectorError> {
    if blob.bytes() == 0 {
        return Err(damaged(blob.name(), "it is empty"));
    }
    look(&**blob, 0, 1)?;
    parse(&**blob).map_err(|message| damaged(blob.name(), &message))
}

fn parse(blob: &dyn Blob) -> Result<ArrowReaderMetadata, String> {
    let said = |error: std::io::Error| error.to_string();
    let Some(end) = blob.bytes().checked_sub(TRAILER_BYTES as u64) else {
        return Err("it is too short for a footer".into());
    };
    let trailer = read_exactly(blob, end, TRAILER_BYTES).map_err(said)?;
    let length = match trailer.split_first_chunk() {
        Some((length, MAGIC)) => u64::from(u32::from_le_bytes(*length)),
        Some((_, ENCRYPTED)) => return Err("its footer is encrypted".into()),
        _ => return Err("its footer is missing".into()),
    };
    let Some(begin) = end.checked_sub(length).filter(|_| length <= FOOTER_BYTES_MAX) else {
        return Err(format!("it states a footer of {length} bytes"));
    };
    let bytes = read_exactly(blob, begin, length as usize).map_err(said)?;
    check_schema(&bytes)?;
    let metadata = guarded(|| ParquetMetaDataReader::decode_metadata(&bytes))?;
    check_counts(&metadata)?;
    guarded(|| ArrowReaderMetadata::try_new(Arc::new(metadata), ArrowReaderOptions::new()))
}

/// Refuses a schema that is too deep or too wide, and a footer that is none.
fn check_schema(footer: &[u8]) -> Result<(), String> {
    let mut refused = None;
    let mut compact = Compact::new(footer);
    let walked = compact.fields(|compact, id, of| {
        if (id, of) != (2, kind::LIST) {
            return Ok(false);
        }
        let (of, count) = compact.list()?;
        if of != kind::STRUCT {
            return Err(Damage::Unreadable);
        }
        if count > SCHEMA_NODES_MAX {
            refused = Some(format!("its schema has {count} nodes; {SCHEMA_NODES_MAX} are read"));
            return Err(Damage::Unreadable);
        }
        // How many children are still to come of each group that has begun.
        let mut open: Vec<i32> = Vec::new();
        for _ in 0..count {
            let mut children = 0;
            compact.fields(|compact, id, of| match (id, of) {
                (5, kind::I32) => {
                    children = compact.i32()?;
                    Ok(true)
                }
                _ => Ok(false),
            })?;
            while open.pop_if(|left| *left <= 0).is_some() {}
            if let Some(left) = open.last_mut() {
                *left -= 1;
            }
            if children > 0 {
                open.push(children);
            }
            if open.len() > SCHEMA_DEPTH_MAX {
                refused = Some(format!("its schema is deeper than {SCHEMA_DEPTH_MAX} levels"));
                return Err(Damage::Unreadable);
            }
        }
        Ok(true)
    });
    match (refused, walked) {
        (Some(refused), _) => Err(refused),
        (None, Ok(())) => Ok(()),
        (None, Err(_)) => Err("its footer is unreadable".into()),
    }
}

/// Refuses counts of rows that contradict each other.
fn check_counts(metadata: &ParquetMetaData) -> Result<(), String> {
    let mut rows: i64 = 0;
    for (index, group) in metadata.row_groups().iter().enumerate() {
        let stated = group.num_rows();
        if stated < 0 {
            return Err(format!("row group {index} states {stated} rows"));
        }
        rows = rows.saturating_add(stated);
        for chunk in group.columns() {
            let values = chunk.num_values();
            // A row has one value of a column, or several of a repeated one.
            let fits = match chunk.column_descr().max_rep_level() {
                0 => values == stated,
                _ => values >= stated,
            };
            if !fits {
                let column = chunk.column_path();
                return Err(format!(
                    "row group {index} states {stated} rows, and {values} values of column {column}"
                ));
            }
        }
    }
    let stated = metadata.file_metadata().num_rows();
    if stated != rows {
        return Err(format!("it states {stated} rows, and {rows} in its row groups"));
    }
    Ok(())
}
