//! The number of distinct values of a column, by the dictionary of one of its row groups.
//!
//! The header of a dictionary page, of which a few bytes are read, states the number of its
//! entries. The file is not trusted: the number is used to estimate costs, and changes no result.

use parquet::file::metadata::ColumnChunkMetaData;

use super::ParquetFile;
use super::compact::{Compact, Damage, kind};

/// Bytes that are read to find the header of a page.
const HEADER_BYTES: usize = 128;

/// Size of a dictionary in bytes at which writers stop using it: later values are not in it.
const DICTIONARY_BYTES_MAX: i32 = 512 << 10;

impl ParquetFile {
    /// About how many distinct values a column of the file has in its largest row group; `None` if
    /// they are not all in a dictionary, or if the file is remote.
    pub(super) fn distinct(&self, column: usize) -> Option<u64> {
        let metadata = self.metadata.metadata();
        let group = metadata.row_groups().iter().max_by_key(|group| group.num_rows())?;
        let roots = self.metadata.parquet_schema();
        let mut leaves =
            (0..group.num_columns()).filter(|leaf| roots.get_column_root_idx(*leaf) == column);
        let (leaf, None) = (leaves.next()?, leaves.next()) else { return None };
        let chunk = group.column(leaf);
        let stated = chunk.statistics().and_then(|statistics| statistics.distinct_count_opt());
        let found = stated.or_else(|| self.entries(chunk));
        // A column whose values hardly repeat is not encoded by a dictionary.
        found.filter(|&found| found > 0 && found <= group.num_rows().max(0) as u64 / 2)
    }

    /// The entries of the dictionary of a column.
    fn entries(&self, chunk: &ColumnChunkMetaData) -> Option<u64> {
        if !self.blob.is_at_hand() {
            return None;
        }
        let offset = u64::try_from(chunk.dictionary_page_offset()?).ok()?;
        let bytes = self.blob.read_at(offset, HEADER_BYTES).ok()?;
        let (size, entries) = dictionary(&bytes).ok()?;
        u64::try_from(entries?).ok().filter(|_| size < DICTIONARY_BYTES_MAX)
    }
}

/// The unpacked bytes of a page, and its entries if it is a dictionary.
fn dictionary(header: &[u8]) -> Result<(i32, Option<i32>), Damage> {
    let (mut size, mut entries) = (0, None);
    Compact::new(header).fields(|compact, id, of| match (id, of) {
        (2, kind::I32) => {
            size = compact.i32()?;
            Ok(true)
        }
        (7, kind::STRUCT) => {
            compact.fields(|compact, id, of| {
                if (id, of) != (1, kind::I32) {
                    return Ok(false);
                }
                entries = Some(compact.i32()?);
                Ok(true)
            })?;
            Ok(true)
        }
        _ => Ok(false),
    })?;
    Ok((size, entries))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_in_the_header_of_a_dictionary() {
        // Kind 2, 100 bytes, 60 packed bytes, and then a plain dictionary of 25 values.
        let header = [0x15, 0x04, 0x15, 0xc8, 0x01, 0x15, 0x78, 0x4c, 0x15, 0x32, 0x15, 0x00, 0, 0];
        assert_eq!(dictionary(&header), Ok((100, Some(25))));
        assert_eq!(dictionary(&[0x15, 0x00, 0x15, 0x08, 0]), Ok((4, None)));
        for cut in 0..header.len() - 1 {
            assert!(dictionary(&header[..cut]).is_err(), "{cut}");
        }
    }
}
