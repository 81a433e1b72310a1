//! A delta as it travels: partial states of one leader's groups, packed into payloads of a slot's
//! size.
//!
//! ```text
//! ┌ extra ─────────────────────────────────────────────────────────┐ ┌ columns ────────────────┐
//! │ head of the narrow columns │ (start of a slice, its groups) … │ │ keys and states, narrow │
//! └────────────────────────────────────────────────────────────────┘ └─────────────────────────┘
//! ```
//!
//! A helper keeps groups until they are acknowledged, and writes them from there into slots. A
//! payload is what a leader stages until the epoch is whole. Large slices are cut, small ones put
//! together.

use std::borrow::Cow;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use bytes::Bytes;
use state::{GroupBy, GroupColumns, RowsByOwner};

use crate::error::DataflowError;
use crate::rows::wire::{Cutter, Decoder, GroupPart, NarrowGroups, RowsLayout};

/// Bytes of a run: the slice's start and its groups.
const RUN_BYTES: usize = 12;

/// How many groups of a slice follow one another: the slice's start, and the groups.
type Run = (i64, u32);

/// How the partial states of a grouping travel.
pub(crate) struct Deltas {
    keys: usize,
    decoder: Decoder,
}

impl Deltas {
    pub(crate) fn new(group_by: &GroupBy) -> Self {
        let types = group_by.keys.iter().cloned().chain(group_by.state_types());
        let field = |(i, data_type): (usize, DataType)| Field::new(format!("{i}"), data_type, true);
        let schema = Arc::new(Schema::new(types.enumerate().map(field).collect::<Vec<_>>()));
        Self::of(&schema, group_by.keys.len())
    }

    /// Of keys, then states.
    fn of(schema: &SchemaRef, keys: usize) -> Self {
        Self { keys, decoder: Decoder::new(schema) }
    }

    /// Reads a payload; its columns may lie in it.
    ///
    /// # Errors
    /// When the payload is malformed, and how.
    pub(crate) fn read(&self, payload: &Bytes) -> Result<Landed, String> {
        let (groups, runs) = self.decoder.decode_narrow(payload)?;
        Landed::new(groups, &runs, self.keys)
    }
}

/// The groups of one leader, until it has acknowledged them.
#[derive(Debug, Default)]
pub(crate) struct Delta {
    groups: NarrowGroups,
    /// By run of groups of one slice the start of the slice, and the groups before them.
    runs: Vec<(i64, usize)>,
}

/// Groups of a delta: the payload of one frame.
#[derive(Debug, Clone)]
pub(crate) struct DeltaChunk {
    delta: Rc<Delta>,
    groups: Range<usize>,
    payload_bytes: usize,
}

impl Delta {
    /// Adds a leader's groups of the slice that starts at `start`.
    ///
    /// # Errors
    /// When a column cannot be built.
    pub(crate) fn add(
        &mut self,
        start: i64,
        part: &GroupPart,
        split: &RowsByOwner,
        leader: u32,
    ) -> Result<(), DataflowError> {
        let before = self.groups.rows();
        self.groups.add(part, split, leader)?;
        let goes_on = self.runs.last().is_some_and(|&(last, _)| last == start);
        if self.groups.rows() > before && !goes_on {
            self.runs.push((start, before));
        }
        Ok(())
    }

    /// The groups in chunks, whose payloads have at most `room` bytes, or one group.
    ///
    /// # Errors
    /// When a column's type cannot travel, or a group is too large to.
    pub(crate) fn cut(self, room: usize) -> Result<Vec<DeltaChunk>, DataflowError> {
        let (delta, cutter) = (Rc::new(self), Cutter::default());
        let (mut chunks, mut done) = (vec![], 0);
        while done < delta.groups.rows() {
            let of = |groups| delta.measured(&(done..done + groups));
            let layout = cutter.fit(delta.groups.rows() - done, room, of)?;
            let (groups, payload_bytes) = (done..done + layout.rows(), layout.len());
            done = groups.end;
            chunks.push(DeltaChunk { delta: delta.clone(), groups, payload_bytes });
        }
        Ok(chunks)
    }

    /// The payload of some groups without the extra.
    fn measured(&self, groups: &Range<usize>) -> Result<RowsLayout<'_>, DataflowError> {
        let form = self.groups.form(groups);
        let extra = form.head_bytes() + self.runs_of(groups).count() * RUN_BYTES;
        self.groups.layout(groups, &form, extra)
    }

    /// Of some groups how many of a slice follow one another.
    fn runs_of(&self, groups: &Range<usize>) -> impl Iterator<Item = Run> {
        let (start, end) = (groups.start, groups.end);
        let first = self.runs.partition_point(|&(_, before)| before <= start) - 1;
        let ends = self.runs[first + 1..].iter().map(|&(_, before)| before);
        let ends = ends.chain([self.groups.rows()]);
        let within =
            self.runs[first..].iter().zip(ends).take_while(move |((_, from), _)| *from < end);
        within.map(move |(&(slice, from), to)| (slice, (to.min(end) - from.max(start)) as u32))
    }
}

impl DeltaChunk {
    /// Bytes of the payload.
    pub(crate) fn payload_bytes(&self) -> usize {
        self.payload_bytes
    }

    /// Bytes that its groups take where they are kept.
    pub(crate) fn kept_bytes(&self) -> usize {
        let groups = &self.delta.groups;
        groups.bytes() * self.groups.len() / groups.rows().max(1)
    }

    /// The payload, which is to be written.
    ///
    /// # Errors
    /// When a column's type cannot travel.
    pub(crate) fn layout(&self) -> Result<RowsLayout<'_>, DataflowError> {
        let groups = &self.delta.groups;
        let form = groups.form(&self.groups);
        let mut extra = groups.head(&self.groups, &form);
        for (start, groups) in self.delta.runs_of(&self.groups) {
            extra.extend_from_slice(&start.to_le_bytes());
            extra.extend_from_slice(&groups.to_le_bytes());
        }
        let layout = groups.layout(&self.groups, &form, extra.len())?;
        Ok(layout.beside(Cow::Owned(extra)))
    }
}

/// The part of groups of several leaders that is computed once.
///
/// # Errors
/// When a column cannot be read.
pub(crate) fn part_of(groups: &GroupColumns) -> Result<GroupPart, DataflowError> {
    GroupPart::of(groups.keys.iter().chain(&groups.states).cloned())
}

/// Groups that arrived.
pub(crate) struct Landed {
    runs: Vec<Run>,
    groups: RecordBatch,
    keys: usize,
}

impl Landed {
    fn new(groups: RecordBatch, runs: &[u8], keys: usize) -> Result<Self, String> {
        let run = |run: &[u8]| {
            let (start, groups) = run.split_at_checked(8)?;
            Some((
                i64::from_le_bytes(start.try_into().ok()?),
                u32::from_le_bytes(groups.try_into().ok()?),
            ))
        };
        let runs: Option<Vec<_>> = runs.chunks(RUN_BYTES).map(run).collect();
        let runs = runs.ok_or("its runs are cut off")?;
        let total: u64 = runs.iter().map(|&(_, groups)| u64::from(groups)).sum();
        if total != groups.num_rows() as u64 {
            return Err(format!("its runs have {total} groups, not {}", groups.num_rows()));
        }
        Ok(Self { runs, groups, keys })
    }

    /// The same with its columns changed.
    pub(crate) fn map(self, change: impl FnOnce(RecordBatch) -> RecordBatch) -> Self {
        Self { groups: change(self.groups), ..self }
    }

    /// Each run: the slice's start, and the groups.
    pub(crate) fn runs(&self) -> impl Iterator<Item = (i64, GroupColumns)> {
        let mut done = 0;
        self.runs.iter().map(move |&(start, rows)| {
            let run = self.groups.slice(done, rows as usize);
            done += rows as usize;
            let (keys, states) = run.columns().split_at(self.keys);
            (start, GroupColumns { keys: keys.to_vec(), states: states.to_vec() })
        })
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, Int64Array, StringArray};
    use state::Partitioner;

    use crate::rows::wire::take_copied;

    use super::*;

    /// Of a text and a number as keys, with a number as state.
    fn deltas() -> Deltas {
        let field = |name: &str, data_type| Field::new(name, data_type, true);
        let schema = Schema::new(vec![
            field("0", DataType::Utf8View),
            field("1", DataType::Int64),
            field("2", DataType::Int64),
        ]);
        Deltas::of(&Arc::new(schema), 2)
    }

    fn groups(first: i64, rows: i64, text: usize) -> GroupColumns {
        let text: StringArray =
            (0..rows).map(|i| Some("t".repeat(text) + &(first + i).to_string())).collect();
        let text = arrow::compute::cast(&text, &DataType::Utf8View).unwrap();
        let keys = Int64Array::from_iter_values(first..first + rows);
        let states = (0..rows).map(|i| (i % 3 > 0).then_some(i % 7)).collect::<Int64Array>();
        GroupColumns { keys: vec![text, Arc::new(keys)], states: vec![Arc::new(states)] }
    }

    /// The payloads of groups of slices, all of them of one leader.
    fn payloads(parts: &[(i64, GroupColumns)], room: usize) -> Vec<Bytes> {
        let (mut delta, mut split) = (Delta::default(), RowsByOwner::default());
        for (start, groups) in parts {
            Partitioner::new(1).split(groups, &mut split).unwrap();
            delta.add(*start, &part_of(groups).unwrap(), &split, 0).unwrap();
        }
        let chunks = delta.cut(room).unwrap();
        let payload = |chunk: &DeltaChunk| {
            let payload = chunk.layout().unwrap().payload();
            assert_eq!(payload.len(), chunk.payload_bytes());
            payload
        };
        chunks.iter().map(payload).collect()
    }

    /// Packs groups of slices, reads them back, and gives the number of payloads.
    fn travel(parts: &[(i64, GroupColumns)], room: usize) -> usize {
        let (deltas, payloads) = (deltas(), payloads(parts, room));
        let mut all: Vec<(i64, GroupColumns)> = vec![];
        for payload in &payloads {
            let landed = deltas.read(payload).unwrap();
            assert!(payload.len() <= room || landed.groups.num_rows() == 1);
            all.extend(landed.runs());
        }
        let rows = |parts: &[(i64, GroupColumns)]| {
            let row = |(start, columns): &(i64, GroupColumns)| {
                let (start, columns) = (*start, columns.clone());
                let all: Vec<ArrayRef> = columns.keys.into_iter().chain(columns.states).collect();
                let show = arrow::util::display::array_value_to_string;
                (0..all[0].len())
                    .map(|row| {
                        let values = all.iter().map(|column| show(column, row).unwrap());
                        (start, values.collect::<Vec<_>>())
                    })
                    .collect::<Vec<_>>()
            };
            parts.iter().flat_map(row).collect::<Vec<_>>()
        };
        assert_eq!(rows(&all), rows(parts));
        payloads.len()
    }

    #[test]
    fn large_slices_are_cut_and_small_ones_put_together() {
        assert_eq!(travel(&[], 4096), 0);
        assert_eq!(travel(&[(10, groups(0, 1, 1)), (20, groups(5, 2, 1))], 4096), 1);
        assert!(travel(&[(10, groups(0, 5000, 8)), (20, groups(5, 2, 1))], 4096) > 10);
        let many: Vec<_> = (0..200).map(|start| (start, groups(start, 3, 2))).collect();
        assert!((2..20).contains(&travel(&many, 4096)));
    }

    #[test]
    fn a_chunk_is_kept_narrow_and_a_payload_of_it_in_memory_counts_as_a_copy() {
        let (mut delta, mut split) = (Delta::default(), RowsByOwner::default());
        let keys = vec![Arc::new(Int64Array::from_iter_values((0..100).rev())) as ArrayRef];
        let groups = GroupColumns { states: keys.clone(), keys };
        Partitioner::new(1).split(&groups, &mut split).unwrap();
        take_copied();
        delta.add(0, &part_of(&groups).unwrap(), &split, 0).unwrap();
        let chunk = delta.cut(4096).unwrap().remove(0);
        let mut slot = vec![0; chunk.payload_bytes()];
        chunk.layout().unwrap().write_to(&mut slot);
        assert_eq!(take_copied().elsewhere, 200, "a byte of each of two words");
        let payload = chunk.layout().unwrap().payload();
        assert_eq!(payload, slot);
        assert_eq!(take_copied().elsewhere, payload.len());
    }

    #[test]
    fn a_group_wider_than_a_slot_is_a_payload_of_its_own() {
        assert_eq!(travel(&[(10, groups(0, 3, 9000)), (20, groups(5, 1, 1))], 4096), 4);
    }

    #[test]
    fn numbers_travel_narrow() {
        let payloads = payloads(&[(0, groups(1 << 40, 10_000, 0))], 1 << 20);
        let bytes: usize = payloads.iter().map(Bytes::len).sum();
        // 13 bytes of text and 4 of its offset, 2 of the key, 1 of the state and an eighth.
        assert!(bytes < 10_000 * 21, "{bytes}");
    }

    #[test]
    fn dense_keys_travel_without_bytes_of_their_own() {
        let bytes = |step: i64| -> usize {
            let keys: ArrayRef =
                Arc::new(Int64Array::from_iter_values((0..400_000).map(|i| i * step)));
            let states: ArrayRef =
                Arc::new(Int64Array::from_iter_values((0..400_000).map(|i| i % 9)));
            let groups = GroupColumns { keys: vec![keys], states: vec![states] };
            payloads(&[(0, groups)], 64 << 10).iter().map(Bytes::len).sum()
        };
        // A byte of state, and of the key none, a bit for each place, and four bytes.
        assert!(bytes(1) < 410_000, "{}", bytes(1));
        assert!(bytes(3) < 570_000, "{}", bytes(3));
        assert!(bytes(64) > 1_900_000, "{}", bytes(64));
    }

    #[test]
    fn damaged_runs_are_refused() {
        let deltas = deltas();
        let payload = payloads(&[(7, groups(0, 3, 1))], 4096).remove(0);
        let at = payload
            .windows(12)
            .position(|w| w == [&7i64.to_le_bytes()[..], &[3, 0, 0, 0]].concat());
        let mut damaged = payload.to_vec();
        damaged[at.unwrap() + 8] = 4;
        let read = |payload: Vec<u8>| deltas.read(&payload.into()).err();
        assert!(read(damaged).unwrap().contains("its runs have 4 groups, not 3"));
        assert!(read(payload[..40].to_vec()).is_some());
    }
}
