//! Runs: how groups are written and read back.
//!
//! A run is a file of sections. A section has groups of one part, or of all.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef};
use arrow::compute::{cast, concat};
use arrow::record_batch::{RecordBatch, RecordBatchOptions};

use super::section::{self, Appending};
use super::{DiskFile, PARTS, Store};
use crate::partition::{Partitioner, RowsByOwner};
use crate::{Columns, StateError};

/// How large the part of the room is that is split at once, and its least bytes: sections are not
/// tiny then.
const SPLIT_PART: usize = 16;
const SPLIT_BYTES_MIN: usize = 1 << 16;

/// Groups that were written at once.
pub(crate) struct Run {
    file: Box<dyn DiskFile>,
    /// How often what is in it had been split before.
    level: u32,
    sections: Vec<Section>,
}

/// Some groups of a run.
struct Section {
    /// Whose hash says this; `None` if the groups of all are together.
    part: Option<u32>,
    place: section::Section,
}

/// A section of a run that is still to be read.
#[derive(Clone)]
pub(crate) struct RunPiece {
    run: Arc<Run>,
    section: usize,
}

impl Run {
    /// Its sections, in the order in which they were written.
    pub(crate) fn pieces(self: &Arc<Self>) -> impl Iterator<Item = RunPiece> {
        (0..self.sections.len()).map(|section| RunPiece { run: Arc::clone(self), section })
    }

    /// Bytes of memory: of what is known about the file.
    pub(crate) fn bytes(&self) -> usize {
        size_of::<Self>() + self.sections.capacity() * size_of::<Section>()
    }
}

impl RunPiece {
    fn section(&self) -> &Section {
        &self.run.sections[self.section]
    }

    /// Bytes on the disk.
    pub(crate) fn bytes(&self) -> usize {
        self.section().place.bytes
    }

    /// Which part of what was split so often it is, if it was.
    pub(crate) fn part_at(&self, level: u32) -> Option<u32> {
        self.section().part.filter(|_| self.run.level == level)
    }
}

impl Store {
    /// Begins a run. With a `level`, groups are split by a hash that is another for each level;
    /// `room` is what groups may take that are put together.
    pub(crate) fn write(&self, level: Option<u32>, room: usize) -> Writer<'_> {
        let split_bytes = SPLIT_BYTES_MIN.max(room / SPLIT_PART);
        let splitter = level.map(|level| Partitioner::salted(PARTS, level));
        let (gathered, level) = (Vec::new(), level.unwrap_or(0));
        let (file, sections) = (Appending::new(&*self.disk, &self.counters), Vec::new());
        Writer { store: self, level, splitter, split_bytes, gathered, held: 0, file, sections }
    }

    /// The groups of a section.
    ///
    /// # Errors
    /// [`StateError::Disk`] if it cannot be read; [`StateError::Damaged`] if it is not what was
    /// written.
    pub(crate) fn read(&self, piece: &RunPiece) -> Result<Columns, StateError> {
        let batch = section::read(&*piece.run.file, &piece.section().place, &self.counters)?;
        let types = self.spec.keys.iter().cloned().chain(self.spec.state_types());
        let columns = batch.columns().iter().zip(types);
        let mut columns: Vec<ArrayRef> = columns
            .map(
                |(column, of)| {
                    if *column.data_type() == of { Ok(column.clone()) } else { cast(column, &of) }
                },
            )
            .collect::<Result<_, _>>()?;
        let states = columns.split_off(self.spec.keys.len());
        Ok(Columns { keys: columns, states })
    }
}

/// Writes a run.
pub(crate) struct Writer<'a> {
    store: &'a Store,
    level: u32,
    splitter: Option<Partitioner>,
    /// How many bytes of groups are gathered before they are split.
    split_bytes: usize,
    gathered: Vec<Columns>,
    /// Bytes of `gathered`.
    held: usize,
    file: Appending<'a>,
    sections: Vec<Section>,
}

impl Writer<'_> {
    /// Adds groups.
    ///
    /// # Errors
    /// [`StateError::Disk`] if they cannot be written.
    pub(crate) fn add(&mut self, groups: &Columns) -> Result<(), StateError> {
        if groups.rows() == 0 {
            return Ok(());
        }
        let fields = self.store.schema.fields().iter();
        let mut columns: Vec<ArrayRef> = (groups.keys.iter().chain(&groups.states).zip(fields))
            .map(|(column, field)| cast(column, field.data_type()))
            .collect::<Result<_, _>>()?;
        if self.splitter.is_none() {
            return self.write(None, columns);
        }
        let bytes = |column: &ArrayRef| column.to_data().get_slice_memory_size().unwrap_or(0);
        self.held += columns.iter().map(bytes).sum::<usize>();
        let states = columns.split_off(groups.keys.len());
        self.gathered.push(Columns { keys: columns, states });
        if self.held >= self.split_bytes { self.split() } else { Ok(()) }
    }

    /// The run; nothing if no group was added.
    ///
    /// # Errors
    /// [`StateError::Disk`] if it cannot be written.
    pub(crate) fn finish(mut self) -> Result<Option<Arc<Run>>, StateError> {
        self.split()?;
        let Some(file) = self.file.finish()? else { return Ok(None) };
        self.sections.shrink_to_fit();
        Ok(Some(Arc::new(Run { file, level: self.level, sections: self.sections })))
    }

    /// Writes a section of each part of what was gathered.
    fn split(&mut self) -> Result<(), StateError> {
        self.held = 0;
        let gathered = std::mem::take(&mut self.gathered);
        let (Some(splitter), [first, ..]) = (&mut self.splitter, &gathered[..]) else {
            return Ok(());
        };
        let whole = |of: fn(&Columns) -> &[ArrayRef]| -> Result<Vec<ArrayRef>, StateError> {
            let column = |at: usize| {
                let parts: Vec<&dyn Array> = gathered.iter().map(|part| &*of(part)[at]).collect();
                Ok(concat(&parts)?)
            };
            (0..of(first).len()).map(column).collect()
        };
        let groups = Columns { keys: whole(|of| &of.keys)?, states: whole(|of| &of.states)? };
        drop(gathered);
        let mut split = RowsByOwner::default();
        splitter.split(&groups, &mut split)?;
        for part in (0..PARTS).filter(|&part| split.rows(part) > 0) {
            let Columns { mut keys, states } = split.select(part, &groups)?;
            keys.extend(states);
            self.write(Some(part), keys)?;
        }
        Ok(())
    }

    fn write(&mut self, part: Option<u32>, columns: Vec<ArrayRef>) -> Result<(), StateError> {
        let rows = columns.first().map_or(0, |column| column.len());
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        let schema = Arc::clone(&self.store.schema);
        let batch = RecordBatch::try_new_with_options(schema, columns, &options)?;
        self.sections.push(Section { part, place: self.file.append(&batch)? });
        Ok(())
    }
}
