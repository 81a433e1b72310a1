//! The pages of a column, read and unpacked: the part of reading that can be harmed by what a file
//! states.
//!
//! A page's header is looked at before its bytes are asked for, its checksum is compared where
//! there is one, and it is unpacked to exactly the length that it states, which has a bound.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use parquet::arrow::arrow_reader::RowGroups;
use parquet::basic::{Compression, Encoding};
use parquet::column::page::{Page, PageIterator, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::{ParquetMetaData, RowGroupMetaData};

use super::compact::{Compact, Damage, kind};
use super::index::PageList;
use crate::format::unpack::{Packing, Unpacker};
use crate::stored::{BUFFER_BYTES, Blob, read_exactly};

/// Bytes to which any page may be unpacked: writers make pages of about a megabyte.
const PAGE_BYTES_MAX: usize = 256 << 20;

/// How many times its packed bytes a larger page may have unpacked.
const PAGE_TIMES_MAX: usize = 8;

/// Bytes of the pages of a row group that are unpacked at once, one for each column; a page that is
/// alone has its own bound only.
const UNPACKED_BYTES_MAX: u64 = 2 << 30;

/// Bytes of a page's header at most: it may have the least and the greatest value.
const HEADER_BYTES_MAX: usize = 16 << 20;

/// A row group, as the library asks for it.
pub(super) struct Group {
    pub(super) blob: Arc<dyn Blob>,
    pub(super) metadata: Arc<ParquetMetaData>,
    pub(super) index: usize,
    /// The pages of each leaf whose page index was read.
    pub(super) pages: Arc<BTreeMap<usize, PageList>>,
    /// Bytes of its unpacked pages.
    pub(super) unpacked: Arc<AtomicU64>,
}

/// A column's share of the bytes of the unpacked pages of its row group: one page, which
/// the library gives back before it asks for the next.
struct Share {
    bytes: u64,
    all: Arc<AtomicU64>,
}

impl Share {
    /// Takes bytes in place of those that it has; the sum where that is too many.
    fn take(&mut self, bytes: u64) -> std::result::Result<(), u64> {
        self.all.fetch_sub(std::mem::replace(&mut self.bytes, bytes), Ordering::Relaxed);
        let others = self.all.fetch_add(bytes, Ordering::Relaxed);
        match others.saturating_add(bytes) {
            sum if others > 0 && sum > UNPACKED_BYTES_MAX => Err(sum),
            _ => Ok(()),
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl RowGroups for Group {
    fn num_rows(&self) -> usize {
        self.metadata.row_group(self.index).num_rows().max(0) as usize
    }

    fn column_chunks(&self, column: usize) -> Result<Box<dyn PageIterator>> {
        let chunk = self.metadata.row_group(self.index).column(column);
        let (offset, length) = chunk.byte_range();
        let pages = Pages {
            blob: Arc::clone(&self.blob),
            column: chunk.column_path().string(),
            packing: packing(chunk.compression())?,
            offset,
            end: offset.saturating_add(length),
            listed: self.pages.get(&column).cloned().map(ListedPages::new),
            at_hand: (offset, Bytes::new()),
            next: None,
            has_dictionary: false,
            unpacker: Unpacker::default(),
            share: Share { bytes: 0, all: Arc::clone(&self.unpacked) },
        };
        Ok(Box::new(OneColumn(Some(pages))))
    }

    fn row_groups(&self) -> Box<dyn Iterator<Item = &RowGroupMetaData> + '_> {
        Box::new(std::iter::once(self.metadata.row_group(self.index)))
    }

    fn metadata(&self) -> &ParquetMetaData {
        &self.metadata
    }
}

/// The pages of one row group.
struct OneColumn(Option<Pages>);

impl Iterator for OneColumn {
    type Item = Result<Box<dyn PageReader>>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.take().map(|pages| Ok(Box::new(pages) as Box<dyn PageReader>))
    }
}

impl PageIterator for OneColumn {}

fn packing(of: Compression) -> Result<Option<Packing>> {
    Ok(Some(match of {
        Compression::UNCOMPRESSED => return Ok(None),
        Compression::SNAPPY => Packing::Snappy,
        Compression::GZIP(_) => Packing::Gzip,
        Compression::BROTLI(_) => Packing::Brotli,
        Compression::LZ4 => Packing::Lz4Hadoop,
        Compression::ZSTD(_) => Packing::Zstd,
        Compression::LZ4_RAW => Packing::Lz4Block,
        other => return Err(ParquetError::NYI(format!("pages packed with {other}"))),
    }))
}

/// The header of a page.
#[derive(Debug, Default, Clone, Copy)]
struct Header {
    kind: i32,
    unpacked: i32,
    packed: i32,
    checksum: Option<i32>,
    values: i32,
    encoding: i32,
    levels: [i32; 2],
    is_sorted: bool,
    /// Of the second version of pages of data.
    nulls: i32,
    rows: i32,
    level_bytes: [i32; 2],
    is_plain: bool,
    /// Its own bytes.
    bytes: usize,
}

/// Kinds of pages.
const DATA: i32 = 0;
const INDEX: i32 = 1;
const DICTIONARY: i32 = 2;
const DATA_2: i32 = 3;

impl Header {
    fn parse(bytes: &[u8]) -> std::result::Result<Self, Damage> {
        let mut header = Self { kind: -1, ..Self::default() };
        let mut compact = Compact::new(bytes);
        compact.fields(|compact, id, of| {
            match (id, of) {
                (1, kind::I32) => header.kind = compact.i32()?,
                (2, kind::I32) => header.unpacked = compact.i32()?,
                (3, kind::I32) => header.packed = compact.i32()?,
                (4, kind::I32) => header.checksum = Some(compact.i32()?),
                (5 | 7 | 8, kind::STRUCT) => header.details(compact, id)?,
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        header.bytes = compact.position();
        Ok(header)
    }

    /// The message about a page of one kind.
    fn details(&mut self, compact: &mut Compact<'_>, of: i64) -> std::result::Result<(), Damage> {
        compact.fields(|compact, id, kind| {
            match (of, id, kind) {
                (_, 1, kind::I32) => self.values = compact.i32()?,
                (5 | 7, 2, kind::I32) | (8, 4, kind::I32) => self.encoding = compact.i32()?,
                (5, 3, kind::I32) => self.levels[0] = compact.i32()?,
                (5, 4, kind::I32) => self.levels[1] = compact.i32()?,
                (7, 3, kind::TRUE) => self.is_sorted = true,
                (8, 2, kind::I32) => self.nulls = compact.i32()?,
                (8, 3, kind::I32) => self.rows = compact.i32()?,
                (8, 5, kind::I32) => self.level_bytes[0] = compact.i32()?,
                (8, 6, kind::I32) => self.level_bytes[1] = compact.i32()?,
                (8, 7, kind::FALSE) => self.is_plain = true,
                _ => return Ok(false),
            }
            Ok(true)
        })
    }
}

/// The pages of a column that are left.
struct Pages {
    blob: Arc<dyn Blob>,
    column: String,
    packing: Option<Packing>,
    /// Where the next page's header or, once that is known, its bytes begin.
    offset: u64,
    end: u64,
    /// The pages that are left, if their places are known.
    listed: Option<ListedPages>,
    /// Bytes that were read already, and where they begin.
    at_hand: (u64, Bytes),
    /// The header of the next page.
    next: Option<Header>,
    /// Whether a dictionary has come.
    has_dictionary: bool,
    unpacker: Unpacker,
    share: Share,
}

/// Pages whose places are known: a page that is skipped is not read.
struct ListedPages {
    list: PageList,
    next: usize,
}

impl ListedPages {
    fn new(list: PageList) -> Self {
        Self { list, next: 0 }
    }

    /// The number of rows of the next page; `None` for a dictionary.
    fn peek(&self) -> Option<Option<u64>> {
        if self.list.dictionary.is_some() {
            return Some(None);
        }
        let (_, rows) = self.list.pages.get(self.next)?;
        Some(Some(rows.end - rows.start))
    }

    /// Takes the next page: its place, and its number of rows.
    fn take(&mut self) -> Option<(Range<u64>, Option<u64>)> {
        if let Some(dictionary) = self.list.dictionary.take() {
            return Some((dictionary, None));
        }
        let (place, rows) = self.list.pages.get(self.next)?.clone();
        self.next += 1;
        Some((place, Some(rows.end - rows.start)))
    }
}

impl Pages {
    /// Goes to the next page, if its place is known; gives its number of rows.
    fn go_on(&mut self) -> Option<Option<u64>> {
        let (place, rows) = self.listed.as_mut()?.take()?;
        (self.offset, self.end) = (place.start, place.end);
        Some(rows)
    }

    /// Whether all pages have been read or skipped.
    fn is_done(&self) -> bool {
        self.listed.as_ref().is_some_and(|listed| listed.peek().is_none())
    }

    fn wrong(&self, message: impl std::fmt::Display) -> ParquetError {
        ParquetError::General(format!("column {}: {message}", self.column))
    }

    /// Bytes from `offset` on, without reading anew what is at hand.
    fn read(&mut self, length: usize) -> Result<Bytes> {
        let (from, bytes) = &self.at_hand;
        let skip = (self.offset - from) as usize;
        if let Some(end) = skip.checked_add(length).filter(|end| *end <= bytes.len()) {
            return Ok(bytes.slice(skip..end));
        }
        read_exactly(&*self.blob, self.offset, length)
            .map_err(|error| ParquetError::External(error.into()))
    }

    /// The header of the next page that is not an index.
    fn header(&mut self) -> Result<Option<Header>> {
        while self.next.is_none() && self.offset < self.end {
            let header = self.read_header()?;
            self.offset += header.bytes as u64;
            let left = self.end - self.offset;
            let sizes = [header.packed, header.unpacked];
            let counts = [header.values, header.nulls, header.rows];
            let sizes = sizes.iter().chain(&counts).chain(&header.level_bytes);
            if sizes.into_iter().any(|number| *number < 0) || header.packed as u64 > left {
                return Err(self.wrong("a page states sizes that it cannot have"));
            }
            let [packed, unpacked] = [header.packed, header.unpacked].map(|size| size as usize);
            let most = PAGE_BYTES_MAX.max(packed.saturating_mul(PAGE_TIMES_MAX));
            if unpacked > most {
                let column = &self.column;
                return Err(ParquetError::NYI(format!(
                    "column {column}: a page of {packed} bytes states {unpacked} unpacked; at most \
                     {most} are read"
                )));
            }
            match header.kind {
                INDEX => self.offset += header.packed as u64,
                _ => self.next = Some(header),
            }
        }
        Ok(self.next)
    }

    fn read_header(&mut self) -> Result<Header> {
        let (from, bytes) = &self.at_hand;
        let rest = bytes.get((self.offset - from) as usize..);
        if let Some(Ok(header)) = rest.map(Header::parse) {
            return Ok(header);
        }
        let mut length = BUFFER_BYTES;
        loop {
            let left = usize::try_from(self.end - self.offset).unwrap_or(usize::MAX);
            let bytes = self.read(length.min(left))?;
            let damage = match Header::parse(&bytes) {
                Ok(header) => {
                    self.at_hand = (self.offset, bytes);
                    return Ok(header);
                }
                Err(damage) => damage,
            };
            if damage == Damage::Unreadable || length >= left.min(HEADER_BYTES_MAX) {
                return Err(self.wrong("the header of a page is unreadable"));
            }
            length *= 4;
        }
    }

    /// The bytes of a page as they were before they were packed.
    fn body(&mut self, header: &Header) -> Result<Bytes> {
        let packed = self.read(header.packed as usize)?;
        self.offset += header.packed as u64;
        let checksum = || {
            let mut checksum = flate2::Crc::new();
            checksum.update(&packed);
            checksum.sum()
        };
        if header.checksum.is_some_and(|stated| checksum() != stated as u32) {
            return Err(self.wrong("a page does not fit its checksum: the file is damaged"));
        }
        let unpacked = header.unpacked as usize;
        // The levels of the second version are not packed.
        let levels = match header.kind {
            DATA_2 => header.level_bytes[0] as usize + header.level_bytes[1] as usize,
            _ => 0,
        };
        if levels > packed.len().min(unpacked) {
            return Err(self.wrong("a page states sizes that it cannot have"));
        }
        let Some(packing) = self.packing.filter(|_| !header.is_plain) else {
            return if packed.len() == unpacked {
                Ok(packed)
            } else {
                Err(self.wrong("a page states sizes that it cannot have"))
            };
        };
        self.share.take(unpacked as u64).map_err(|bytes| {
            ParquetError::NYI(format!(
                "column {}: the pages of its row group are {bytes} bytes unpacked at once; at most \
                 {UNPACKED_BYTES_MAX} are read",
                self.column
            ))
        })?;
        let mut out = Vec::with_capacity(unpacked);
        out.extend_from_slice(&packed[..levels]);
        // A page without any value has nothing to unpack.
        if unpacked > levels {
            self.unpacker
                .unpack(packing, &packed[levels..], unpacked - levels, &mut out)
                .map_err(|message| self.wrong(format!("a page: {message}")))?;
        }
        Ok(out.into())
    }
}

impl PageReader for Pages {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        if self.is_done() {
            return Ok(None);
        }
        let rows = self.go_on().flatten();
        let Some(header) = self.header()? else { return Ok(None) };
        self.next = None;
        if rows.is_some_and(|rows| rows != header.values.max(0) as u64) {
            return Err(self.wrong("a page has other rows than the page index states"));
        }
        let buf = self.body(&header)?;
        self.has_dictionary |= header.kind == DICTIONARY;
        let encoding = |number: i32| encoding(number).map_err(|message| self.wrong(message));
        let of_values = encoding(header.encoding)?;
        let by_dictionary = [Encoding::PLAIN_DICTIONARY, Encoding::RLE_DICTIONARY];
        if !self.has_dictionary && by_dictionary.contains(&of_values) {
            return Err(self.wrong("a page asks for a dictionary, and there is none before it"));
        }
        let count = |number: i32| number.max(0) as u32;
        Ok(Some(match header.kind {
            DATA => Page::DataPage {
                buf,
                num_values: count(header.values),
                encoding: of_values,
                def_level_encoding: encoding(header.levels[0])?,
                rep_level_encoding: encoding(header.levels[1])?,
                statistics: None,
            },
            DATA_2 => Page::DataPageV2 {
                buf,
                num_values: count(header.values),
                encoding: of_values,
                num_nulls: count(header.nulls),
                num_rows: count(header.rows),
                def_levels_byte_len: count(header.level_bytes[0]),
                rep_levels_byte_len: count(header.level_bytes[1]),
                is_compressed: !header.is_plain,
                statistics: None,
            },
            DICTIONARY => Page::DictionaryPage {
                buf,
                num_values: count(header.values),
                encoding: of_values,
                is_sorted: header.is_sorted,
            },
            other => return Err(self.wrong(format!("a page of the unknown kind {other}"))),
        }))
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        if let Some(listed) = &self.listed {
            return Ok(listed.peek().map(|rows| PageMetadata {
                num_rows: rows.map(|rows| rows as usize),
                num_levels: None,
                is_dict: rows.is_none(),
            }));
        }
        let Some(header) = self.header()? else { return Ok(None) };
        let is_dict = header.kind == DICTIONARY;
        Ok(Some(PageMetadata {
            num_rows: (header.kind == DATA_2).then_some(header.rows as usize),
            num_levels: (!is_dict).then_some(header.values as usize),
            is_dict,
        }))
    }

    fn skip_next_page(&mut self) -> Result<()> {
        if let Some(listed) = &mut self.listed {
            listed.take();
            return Ok(());
        }
        if let Some(header) = self.header()? {
            self.next = None;
            self.offset += header.packed as u64;
        }
        Ok(())
    }
}

impl Iterator for Pages {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

fn encoding(number: i32) -> std::result::Result<Encoding, String> {
    Ok(match number {
        0 => Encoding::PLAIN,
        2 => Encoding::PLAIN_DICTIONARY,
        3 => Encoding::RLE,
        #[expect(deprecated, reason = "old files have it")]
        4 => Encoding::BIT_PACKED,
        5 => Encoding::DELTA_BINARY_PACKED,
        6 => Encoding::DELTA_LENGTH_BYTE_ARRAY,
        7 => Encoding::DELTA_BYTE_ARRAY,
        8 => Encoding::RLE_DICTIONARY,
        9 => Encoding::BYTE_STREAM_SPLIT,
        other => return Err(format!("a page of the unknown encoding {other}")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unpacked_pages_of_a_row_group_have_a_bound_together() {
        let all = Arc::new(AtomicU64::new(0));
        let share = || Share { bytes: 0, all: Arc::clone(&all) };
        let (mut one, mut other) = (share(), share());
        assert_eq!(one.take(UNPACKED_BYTES_MAX + 1), Ok(()));
        assert_eq!(one.take(UNPACKED_BYTES_MAX - 1), Ok(()));
        assert_eq!(other.take(1), Ok(()));
        assert_eq!(other.take(2), Err(UNPACKED_BYTES_MAX + 1));
        drop(one);
        assert_eq!(other.take(UNPACKED_BYTES_MAX), Ok(()));
        drop(other);
        assert_eq!(all.load(Ordering::Relaxed), 0);
    }
}
