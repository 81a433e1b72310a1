//! The footer, looked at before the library makes types of it, and what it states afterwards.
//!
//! The library builds nested types by calling itself, so a schema that is deep enough ends the
//! process; and it believes the counts of rows, of which there are three. Columns of which it would
//! give something else than they hold are named here, and why ([`Footer::unread`]).

use std::collections::BTreeMap;
use std::sync::Arc;

use dataflow::error::ConnectorError;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};
use parquet::basic::{ConvertedType, LogicalType};
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData, ParquetMetaDataReader};
use parquet::schema::types::Type;

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

/// The mark at both ends of a Parquet file.
const MAGIC: &[u8] = b"PAR1";

/// The same, where the footer is encrypted.
const ENCRYPTED: &[u8] = b"PARE";

/// Bytes behind the footer: its length and the magic.
const TRAILER_BYTES: usize = 8;

/// The contents of a file's footer.
pub(super) struct Footer {
    pub(super) metadata: ArrowReaderMetadata,
    /// Why columns are not read, by the number of the leaf: in the words of "the file has it …".
    pub(super) unread: BTreeMap<usize, String>,
}

pub(super) fn read(blob: &Arc<dyn Blob>) -> Result<Footer, ConnectorError> {
    if blob.bytes() == 0 {
        return Err(damaged(blob.name(), "it is empty"));
    }
    look(&**blob, 0, 1)?;
    parse(&**blob).map_err(|message| damaged(blob.name(), &message))
}

fn parse(blob: &dyn Blob) -> Result<Footer, String> {
    let text_of = |error: std::io::Error| error.to_string();
    let Some(end) = blob.bytes().checked_sub(TRAILER_BYTES as u64) else {
        return Err("it is too short for a footer".into());
    };
    let trailer = read_exactly(blob, end, TRAILER_BYTES).map_err(text_of)?;
    let length = match trailer.split_first_chunk() {
        Some((length, MAGIC)) => u64::from(u32::from_le_bytes(*length)),
        Some((_, ENCRYPTED)) => {
            return Err("NYI: it is encrypted, its footer too, and no key can be given".into());
        }
        _ => return Err("its footer is missing".into()),
    };
    let Some(begin) = end.checked_sub(length).filter(|_| length <= FOOTER_BYTES_MAX) else {
        return Err(format!("it states a footer of {length} bytes"));
    };
    let bytes = read_exactly(blob, begin, length as usize).map_err(text_of)?;
    check_schema(&bytes)?;
    let metadata = guarded(|| ParquetMetaDataReader::decode_metadata(&bytes))?;
    check_counts(&metadata)?;
    let mut unread = of_other_types(&metadata);
    for group in metadata.row_groups() {
        for (leaf, chunk) in group.columns().iter().enumerate() {
            match chunk.file_path().filter(|path| !path.is_empty()) {
                Some(path) => drop(unread.insert(leaf, format!("in another file, '{path}'"))),
                None => check_place(chunk, end)?,
            }
        }
    }
    unread.extend(encrypted(&bytes)?.into_iter().map(|leaf| (leaf, "encrypted".into())));
    let metadata = Arc::new(metadata);
    let of = |options| guarded(|| ArrowReaderMetadata::try_new(Arc::clone(&metadata), options));
    // Programs that rename columns leave the schema that Arrow has written as it was.
    let plain = || of(ArrowReaderOptions::new().with_skip_arrow_metadata(true));
    let metadata = of(ArrowReaderOptions::new()).or_else(|error| plain().map_err(|_| error))?;
    Ok(Footer { metadata, unread })
}

/// Leaves that the library reads as something else than they are: of intervals it drops the months,
/// of variants it gives the bytes that they are stored in.
fn of_other_types(metadata: &ParquetMetaData) -> BTreeMap<usize, String> {
    let schema = metadata.file_metadata().schema_descr();
    let mut variants = Vec::new();
    for (root, field) in schema.root_schema().get_fields().iter().enumerate() {
        if has_variant(field) {
            variants.push(root);
        }
    }
    let mut found = BTreeMap::new();
    for leaf in 0..schema.num_columns() {
        if schema.column(leaf).converted_type() == ConvertedType::INTERVAL {
            found.insert(leaf, "as an INTERVAL".into());
        } else if variants.contains(&schema.get_column_root_idx(leaf)) {
            found.insert(leaf, "as a VARIANT".into());
        }
    }
    found
}

/// Whether a field is a variant, or has one within; the depth of a schema has a bound.
fn has_variant(field: &Type) -> bool {
    let of = field.get_basic_info().logical_type_ref();
    let within = || field.is_group() && field.get_fields().iter().any(|field| has_variant(field));
    matches!(of, Some(LogicalType::Variant(_))) || within()
}

/// The leaves that are encrypted in some row group, of which the library knows nothing.
fn encrypted(footer: &[u8]) -> Result<Vec<usize>, String> {
    let mut found = Vec::new();
    let walked = Compact::new(footer).fields(|compact, id, of| {
        if (id, of) != (4, kind::LIST) {
            return Ok(false);
        }
        compact.structures(|compact, _| {
            compact.fields(|compact, id, of| {
                if (id, of) != (1, kind::LIST) {
                    return Ok(false);
                }
                compact.structures(|compact, leaf| {
                    compact.fields(|_, id, _| {
                        if id == 8 {
                            found.push(leaf);
                        }
                        Ok(false)
                    })
                })?;
                Ok(true)
            })
        })?;
        Ok(true)
    });
    walked.map_err(|_| "its footer is unreadable".to_owned())?;
    Ok(found)
}

/// Refuses a column whose bytes cannot be where the footer says.
fn check_place(chunk: &ColumnChunkMetaData, end: u64) -> Result<(), String> {
    let first = chunk.dictionary_page_offset().unwrap_or(chunk.data_page_offset());
    let place = u64::try_from(first).ok().zip(u64::try_from(chunk.compressed_size()).ok());
    match place.and_then(|(first, bytes)| first.checked_add(bytes)) {
        Some(last) if last <= end && chunk.data_page_offset() >= 0 => Ok(()),
        _ => Err(format!("it states a place of column {} that it has not", chunk.column_path())),
    }
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
