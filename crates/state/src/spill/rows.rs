//! Rows that wait on a disk, for operators that keep rows rather than groups.

use std::fmt;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;

use super::section::{self, Appending, Section, SpillCounters};
use super::{Disk, DiskFile, Spilled};
use crate::StateError;

/// Batches of rows on a disk, each of which is read back by itself.
#[derive(Debug)]
pub struct RowFiles {
    disk: Arc<dyn Disk>,
    counters: SpillCounters,
}

/// A batch on a disk. Its file is gone with the last of its pieces.
#[derive(Clone)]
pub struct RowPiece {
    file: Arc<dyn DiskFile>,
    section: Section,
    schema: SchemaRef,
}

impl RowFiles {
    /// On this disk, nothing yet.
    pub fn new(disk: Arc<dyn Disk>) -> Self {
        Self { disk, counters: SpillCounters::default() }
    }

    /// Writes batches, together in one file.
    ///
    /// # Errors
    /// [`StateError::Disk`] if they cannot be written.
    pub fn write(
        &self,
        batches: impl Iterator<Item = RecordBatch>,
    ) -> Result<Vec<RowPiece>, StateError> {
        let mut file = Appending::new(&*self.disk, &self.counters);
        let mut sections = vec![];
        for batch in batches {
            let schema = batch.schema();
            let plain = section::recast(&batch, &section::plain_schema(&schema))?;
            sections.push((file.append(&plain)?, schema));
        }
        let Some(file) = file.finish()? else { return Ok(vec![]) };
        let file: Arc<dyn DiskFile> = file.into();
        let piece = |(section, schema)| RowPiece { file: Arc::clone(&file), section, schema };
        Ok(sections.into_iter().map(piece).collect())
    }

    /// The rows of a piece.
    ///
    /// # Errors
    /// [`StateError::Disk`] if they cannot be read; [`StateError::Damaged`] if they are not what
    /// was written.
    pub fn read(&self, piece: &RowPiece) -> Result<RecordBatch, StateError> {
        let batch = section::read(&*piece.file, &piece.section, &self.counters)?;
        section::recast(&batch, &piece.schema)
    }

    /// Bytes written and read so far.
    pub fn spilled(&self) -> Spilled {
        self.counters.spilled()
    }
}

impl RowPiece {
    /// Bytes on the disk.
    pub fn bytes(&self) -> usize {
        self.section.bytes
    }
}

impl fmt::Debug for RowPiece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, section, .. } = self;
        f.debug_struct("RowPiece").field("file", &file.name()).field("section", section).finish()
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, DictionaryArray, Int64Array, StringViewArray};
    use arrow::datatypes::Int32Type;

    use super::*;
    use crate::sim::{SimDisk, SimDiskOptions};

    fn rows(numbers: std::ops::Range<i64>) -> RecordBatch {
        let text = |at: i64| (at % 3 > 0).then(|| format!("a text that is not short, {at}"));
        let words: DictionaryArray<Int32Type> =
            numbers.clone().map(|at| ["one", "two", "three"][at as usize % 3]).collect();
        let texts: StringViewArray = numbers.clone().map(text).collect();
        RecordBatch::try_from_iter([
            ("number", Arc::new(Int64Array::from_iter_values(numbers)) as ArrayRef),
            ("text", Arc::new(texts)),
            ("word", Arc::new(words)),
        ])
        .expect("columns of equal lengths")
    }

    #[test]
    fn rows_come_back_one_batch_at_a_time() {
        let disk = SimDisk::new(SimDiskOptions::default());
        let files = RowFiles::new(disk.clone());
        let batches = [rows(0..100), rows(100..101), rows(0..1000).slice(300, 50)];
        let pieces = files.write(batches.iter().cloned()).expect("room");
        assert_eq!(disk.files(), 1);
        for (piece, batch) in pieces.iter().zip(&batches).rev() {
            assert_eq!(&files.read(piece).expect("it is there"), batch);
        }
        let all = pieces.iter().map(RowPiece::bytes).sum::<usize>() as u64;
        assert_eq!(files.spilled(), Spilled { runs: 1, bytes: all, read_bytes: all });
        drop(pieces);
        assert_eq!(disk.files(), 0);
        assert!(files.write(std::iter::empty()).expect("nothing").is_empty());
        assert_eq!(disk.files(), 0);
    }

    #[test]
    fn a_damaged_byte_is_an_error() {
        let damages_at = Some(0);
        let files =
            RowFiles::new(SimDisk::new(SimDiskOptions { damages_at, ..SimDiskOptions::default() }));
        let pieces = files.write([rows(0..9)].into_iter()).expect("room");
        assert!(matches!(files.read(&pieces[0]), Err(StateError::Damaged { .. })));
    }
}
