//! A delta as it travels: partial states of one leader's groups, packed into payloads of a slot's
//! size.
//!
//! ```text
//! ┌ extra ─────────────────────────────────────────────────────────┐ ┌ columns ────────────────┐
//! │ head of the narrow columns │ (start of a slice, its groups) … │ │ keys and states, narrow │
//! └────────────────────────────────────────────────────────────────┘ └─────────────────────────┘
//! ```
//!
//! A payload is what a helper keeps until it is acknowledged, and what a leader stages until the
//! epoch is whole. Large slices are cut, small ones put together.

use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use bytes::Bytes;
use state::{GroupBy, GroupColumns};

use crate::error::DataflowError;
use crate::rows::narrow::Narrow;
use crate::rows::wire::{Decoder, Picks, RowsLayout, bytes_of};

/// Bytes of a run: the slice's start and its groups.
const RUN_BYTES: usize = 12;
/// Groups of so many slots are gathered before they are narrowed, for they become several times
/// narrower.
const WIDE_SLOTS: usize = 4;

/// How many groups of a slice follow one another: the slice's start, and the groups.
type Run = (i64, u32);

/// How the partial states of a grouping travel.
pub(crate) struct Deltas {
    keys: usize,
    /// Keys, then states.
    schema: SchemaRef,
    decoder: Decoder,
}

impl Deltas {
    pub(crate) fn new(group_by: &GroupBy) -> Self {
        let types = group_by.keys.iter().cloned().chain(group_by.state_types());
        let field = |(i, data_type): (usize, DataType)| Field::new(format!("{i}"), data_type, true);
        let schema = Arc::new(Schema::new(types.enumerate().map(field).collect::<Vec<_>>()));
        Self::of(schema, group_by.keys.len())
    }

    fn of(schema: SchemaRef, keys: usize) -> Self {
        let decoder = Decoder::new(&schema);
        Self { keys, schema, decoder }
    }

    /// What packs the groups of a leader, for payloads of at most `room` bytes, or one group.
    pub(crate) fn packer(&self, room: usize) -> Packer<'_> {
        let (payloads, gathered, runs) = (vec![], vec![], vec![]);
        Packer { deltas: self, payloads, room, gathered, gathered_bytes: 0, runs }
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

/// Packs the groups of one leader.
pub(crate) struct Packer<'a> {
    deltas: &'a Deltas,
    payloads: Vec<Bytes>,
    room: usize,
    gathered: Vec<RecordBatch>,
    gathered_bytes: usize,
    runs: Vec<Run>,
}

impl Packer<'_> {
    /// Adds groups of the slice that starts at `start`.
    ///
    /// # Errors
    /// When a column's type cannot travel.
    pub(crate) fn add(&mut self, start: i64, groups: GroupColumns) -> Result<(), DataflowError> {
        let rows = groups.rows();
        let columns: Vec<ArrayRef> = groups.keys.into_iter().chain(groups.states).collect();
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        let schema = self.deltas.schema.clone();
        let groups = RecordBatch::try_new_with_options(schema, columns, &options)?;
        self.gathered_bytes += RUN_BYTES + bytes_of(&groups);
        self.gathered.push(groups);
        match self.runs.last_mut() {
            Some((last, groups)) if *last == start => *groups += rows as u32,
            _ => self.runs.push((start, rows as u32)),
        }
        if self.gathered_bytes >= WIDE_SLOTS * self.room { self.pack() } else { Ok(()) }
    }

    /// The payloads.
    ///
    /// # Errors
    /// When a column's type cannot travel.
    pub(crate) fn finish(mut self) -> Result<Vec<Bytes>, DataflowError> {
        self.pack()?;
        Ok(self.payloads)
    }

    fn pack(&mut self) -> Result<(), DataflowError> {
        self.gathered_bytes = 0;
        let gathered = std::mem::take(&mut self.gathered);
        let runs = std::mem::take(&mut self.runs);
        let whole = match &gathered[..] {
            [] => return Ok(()),
            [one] => one.clone(),
            [first, ..] => concat_batches(&first.schema(), &gathered)?,
        };
        let narrow = Narrow::of(&whole)?;
        let (head, columns) = narrow.part(0, whole.num_rows())?;
        let beside = head.len() + runs.len() * RUN_BYTES;
        let bytes = beside + RowsLayout::of(&Picks::of(columns), 0..whole.num_rows(), &[])?.len();
        let mut fitting = rows_fitting(whole.num_rows(), self.room, bytes);
        let (mut done, mut cutter) = (0, RunCutter { runs: &runs, begun: 0 });
        while done < whole.num_rows() {
            let rows = fitting.min(whole.num_rows() - done);
            let before = cutter;
            let (head, columns) = narrow.part(done, rows)?;
            let extra = [&head[..], &encode_runs(&cutter.cut(rows as u32))].concat();
            let picks = Picks::of(columns);
            let layout = RowsLayout::of(&picks, 0..rows, &extra)?;
            if layout.len() > self.room && rows > 1 {
                fitting = rows_fitting(rows, self.room, layout.len()).min(rows - 1);
                cutter = before;
                continue;
            }
            self.payloads.push(layout.payload());
            done += rows;
        }
        Ok(())
    }
}

/// The number of rows that are likely to fit `room`, of `rows` rows of `bytes` together; at least
/// one.
fn rows_fitting(rows: usize, room: usize, bytes: usize) -> usize {
    let fitting = rows as u128 * room as u128 / bytes.max(1) as u128;
    rows.min(fitting as usize).max(1)
}

/// Gives out runs as payloads need them.
#[derive(Clone, Copy)]
struct RunCutter<'a> {
    runs: &'a [Run],
    /// Groups of the first run that were given out.
    begun: u32,
}

impl RunCutter<'_> {
    /// The runs of the next `groups` groups.
    fn cut(&mut self, mut groups: u32) -> Vec<Run> {
        let mut out = Vec::new();
        while let (1.., Some(&(start, all))) = (groups, self.runs.first()) {
            let taken = groups.min(all - self.begun);
            out.push((start, taken));
            groups -= taken;
            self.begun += taken;
            if self.begun == all {
                (self.runs, self.begun) = (&self.runs[1..], 0);
            }
        }
        out
    }
}

fn encode_runs(runs: &[Run]) -> Vec<u8> {
    let bytes = |&(start, groups): &Run| {
        let mut bytes = [0; RUN_BYTES];
        bytes[..8].copy_from_slice(&start.to_le_bytes());
        bytes[8..].copy_from_slice(&groups.to_le_bytes());
        bytes
    };
    runs.iter().flat_map(bytes).collect()
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
    use arrow::array::{Int64Array, StringArray};

    use super::*;

    /// Of a text and a number as keys, with a number as state.
    fn deltas() -> Deltas {
        let field = |name: &str, data_type| Field::new(name, data_type, true);
        let schema = Schema::new(vec![
            field("0", DataType::Utf8View),
            field("1", DataType::Int64),
            field("2", DataType::Int64),
        ]);
        Deltas::of(Arc::new(schema), 2)
    }

    fn groups(first: i64, rows: i64, text: usize) -> GroupColumns {
        let text: StringArray =
            (0..rows).map(|i| Some("t".repeat(text) + &(first + i).to_string())).collect();
        let text = arrow::compute::cast(&text, &DataType::Utf8View).unwrap();
        let keys = Int64Array::from_iter_values(first..first + rows);
        let states = (0..rows).map(|i| (i % 3 > 0).then_some(i % 7)).collect::<Int64Array>();
        GroupColumns { keys: vec![text, Arc::new(keys)], states: vec![Arc::new(states)] }
    }

    /// Packs groups of slices, reads them back, and gives the number of payloads.
    fn travel(parts: &[(i64, GroupColumns)], room: usize) -> usize {
        let deltas = deltas();
        let mut packer = deltas.packer(room);
        for (start, columns) in parts {
            packer.add(*start, columns.clone()).unwrap();
        }
        let payloads = packer.finish().unwrap();
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
    fn a_group_wider_than_a_slot_is_a_payload_of_its_own() {
        assert_eq!(travel(&[(10, groups(0, 3, 9000)), (20, groups(5, 1, 1))], 4096), 4);
    }

    #[test]
    fn numbers_travel_narrow() {
        let deltas = deltas();
        let mut packer = deltas.packer(1 << 20);
        packer.add(0, groups(1 << 40, 10_000, 0)).unwrap();
        let payloads = packer.finish().unwrap();
        let bytes: usize = payloads.iter().map(Bytes::len).sum();
        // 13 bytes of text and 4 of its offset, 2 of the key, 1 of the state and an eighth.
        assert!(bytes < 10_000 * 21, "{bytes}");
    }

    #[test]
    fn dense_keys_travel_without_bytes_of_their_own() {
        let field = |name: &str| Field::new(name, DataType::Int64, true);
        let schema = Arc::new(Schema::new(vec![field("0"), field("1")]));
        let bytes = |step: i64| -> usize {
            let deltas = Deltas::of(schema.clone(), 1);
            let mut packer = deltas.packer(64 << 10);
            let keys: ArrayRef =
                Arc::new(Int64Array::from_iter_values((0..400_000).map(|i| i * step)));
            let states: ArrayRef =
                Arc::new(Int64Array::from_iter_values((0..400_000).map(|i| i % 9)));
            packer.add(0, GroupColumns { keys: vec![keys], states: vec![states] }).unwrap();
            packer.finish().unwrap().iter().map(Bytes::len).sum()
        };
        // A byte of state, and of the key none, a bit for each place, and four bytes.
        assert!(bytes(1) < 410_000, "{}", bytes(1));
        assert!(bytes(3) < 570_000, "{}", bytes(3));
        assert!(bytes(64) > 1_900_000, "{}", bytes(64));
    }

    #[test]
    fn damaged_runs_are_refused() {
        let deltas = deltas();
        let mut packer = deltas.packer(4096);
        packer.add(7, groups(0, 3, 1)).unwrap();
        let payload = packer.finish().unwrap().remove(0);
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
