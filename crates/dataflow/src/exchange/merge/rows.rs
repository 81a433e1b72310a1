//! Rows of others (S7): they are kept by leader and window where they are read, and leave as a
//! delta of the epoch.
//!
//! ```text
//!   helper                                            leader
//!   push ─ by leader ─┬─ own rows ─▶ operator
//!                     └─ by input and window ─ kept in the batches in which they came
//!   end of the epoch ─ chunks, written into slots ──▶ staged until the epoch is complete
//!                                                     ─▶ operator, chunk by chunk, as they lie
//! ```
//!
//! A batch stays whole until the last of its rows is acknowledged. If others lead few of its rows,
//! these are copied instead.
//!
//! An epoch ends with the window, as for groups, and also when the rows that are kept take
//! [`MergedRows::length`] bytes: rows do not combine, and a longer epoch would only take memory.

use std::cell::RefCell;
use std::rc::Rc;

use arrow::record_batch::RecordBatch;
use state::epoch::{Ended, HeldRows, RowsOfLeader};

use super::super::partition::NumbersByWorker;
use super::super::{Arrival, Member, Outgoing, Partition, Port};
use super::content::{Chunk, ChunkBody, Cut, PickedRows, ReceivedChunk};
use crate::error::DataflowError;
use crate::rows::windows::numbers_by_window;
use crate::rows::wire::{Cutter, Decoder, Picks, bytes_of, take_rows};
use crate::runtime::frame::Colour;
use crate::runtime::local_exchange::Load;
use crate::runtime::place::WorkerContext;

/// The part of an operator's memory that rows of others may take before an epoch ends is one of so
/// many, divided by the workers: a leader may have to stage an epoch of each of them.
const KEPT_PART: usize = 16;
/// A batch is kept whole if others lead at least this part of its rows: one of eight.
const KEPT_WHOLE_PART: usize = 8;
/// Rows of so many slots are cut into chunks together.
const GATHERED_SLOTS: usize = 4;

/// Rows that others lead, until the epoch ends.
pub(super) struct MergedRows {
    ports: Vec<MergedPort>,
    held: RefCell<HeldRows<KeptRows>>,
    scratch: RefCell<NumbersByWorker>,
    /// Bytes after which an epoch ends, if memory is not short.
    epoch_bytes: u64,
    workers: usize,
}

/// An input.
struct MergedPort {
    partition: Partition,
    window: Option<usize>,
    cutter: Cutter,
    decoder: Decoder,
}

/// The numbers of rows by the end of their window.
type NumbersByWindow = Vec<(Option<i64>, Vec<u32>)>;

/// Rows of a batch for one leader, in one window.
struct KeptRows {
    batch: RecordBatch,
    numbers: Vec<u32>,
    /// Bytes of these rows.
    bytes: usize,
    /// Bytes that they take while they are kept: their part of the whole batch.
    kept_bytes: usize,
}

impl KeptRows {
    /// Rows of a batch that has `batch_bytes` bytes. Others lead `rows_of_others` of its rows.
    fn new(
        batch: &RecordBatch,
        numbers: Vec<u32>,
        batch_bytes: usize,
        rows_of_others: usize,
    ) -> Result<Self, DataflowError> {
        let part = |of: usize| (batch_bytes as u64 * numbers.len() as u64 / of as u64) as usize;
        // Beside the rows each batch has a list of its columns.
        let beside = size_of::<Self>() + size_of_val(batch.columns());
        let bytes = part(batch.num_rows());
        if rows_of_others * KEPT_WHOLE_PART < batch.num_rows() {
            let batch = take_rows(batch, &numbers)?;
            let numbers = (0..batch.num_rows() as u32).collect();
            return Ok(Self { batch, numbers, bytes, kept_bytes: bytes + beside });
        }
        let kept_bytes = part(rows_of_others) + size_of_val(&numbers[..]) + beside;
        Ok(Self { batch: batch.clone(), numbers, bytes, kept_bytes })
    }
}

/// Rows of an input that are cut into chunks together.
#[derive(Default)]
struct Together {
    picks: Picks,
    /// Bytes of the rows.
    bytes: usize,
    kept_bytes: usize,
}

impl Together {
    fn add(&mut self, rows: KeptRows) {
        self.bytes += rows.bytes;
        self.kept_bytes += rows.kept_bytes;
        self.picks.add(rows.batch, &rows.numbers);
    }
}

impl MergedPort {
    fn new(of: Port, place: &WorkerContext) -> Self {
        let (worker, workers, stateful) = (place.worker, place.workers, place.stateful());
        let partition = match of.partitioner {
            Some(partitioner) => Partition::by_function(partitioner, worker, workers, stateful),
            None => Partition::by_key(&of.keys, worker, workers, stateful),
        };
        let (cutter, decoder) = (Cutter::default(), Decoder::new(&of.schema));
        Self { partition, window: of.window, cutter, decoder }
    }

    /// The numbers of rows by their window, if they have one.
    fn windows(
        &self,
        batch: &RecordBatch,
        numbers: &[u32],
    ) -> Result<NumbersByWindow, DataflowError> {
        let Some(end) = self.window else { return Ok(vec![(None, numbers.to_vec())]) };
        let by_window = numbers_by_window(batch, end, numbers)?.into_iter();
        Ok(by_window.map(|(end, numbers)| (Some(end), numbers)).collect())
    }
}

impl MergedRows {
    pub(super) fn new(ports: Vec<Port>, place: &WorkerContext) -> Self {
        let workers = place.workers as usize;
        Self {
            ports: ports.into_iter().map(|port| MergedPort::new(port, place)).collect(),
            held: RefCell::new(HeldRows::new(place.workers)),
            scratch: RefCell::default(),
            epoch_bytes: place.settings.epoch.bytes,
            workers,
        }
    }

    /// Gives the operator the rows that this worker leads, and keeps the others.
    pub(super) fn push(
        &self,
        member: &impl Member,
        rows: Outgoing<'_>,
    ) -> Result<(), DataflowError> {
        let (port, number, batch) = (&self.ports[rows.port], rows.port as u32, &rows.batch);
        let mut split = self.scratch.take();
        split.split(&port.partition, batch, None)?;
        let of_others = batch.num_rows() - split.rows[member.worker() as usize].len();
        let batch_bytes = bytes_of(batch);
        let each = (0..).zip(&split.rows).filter(|(_, numbers)| !numbers.is_empty());
        for (owner, numbers) in each {
            if owner == member.worker() {
                member.keep(Arrival::local(member, &rows), take_rows(batch, numbers)?)?;
                continue;
            }
            let mut held = self.held.borrow_mut();
            for (window, numbers) in port.windows(batch, numbers)? {
                let kept = KeptRows::new(batch, numbers, batch_bytes, of_others)?;
                let bytes = kept.kept_bytes;
                held.push(owner, number, window, kept, bytes);
            }
        }
        self.scratch.replace(split);
        member.account()
    }

    pub(super) fn is_long(&self, member: &impl Member, _: u64, _: u64) -> bool {
        self.held.borrow().bytes() as u64 >= self.length(member)
    }

    /// Bytes of kept rows with which an epoch ends.
    pub(super) fn length(&self, member: &impl Member) -> u64 {
        let share = member.share() / KEPT_PART / self.workers.max(1);
        self.epoch_bytes.min(share as u64).max(1)
    }

    pub(super) fn cut(&self, member: &impl Member) -> Result<Cut, DataflowError> {
        let held = self.held.borrow_mut().take();
        let mut cut = Cut { chunks: vec![], given: 0, stayed: 0 };
        for (leader, rows) in (0..).zip(held) {
            let of_leader = rows.values().flatten().map(|rows| rows.numbers.len() as u64);
            cut.given += of_leader.sum::<u64>();
            cut.chunks.push(self.chunks(member, leader, rows)?);
        }
        Ok(cut)
    }

    /// The rows of a leader in chunks, by input and window: none is larger than a slot, unless one
    /// row is.
    fn chunks(
        &self,
        member: &impl Member,
        leader: u32,
        rows: RowsOfLeader<KeptRows>,
    ) -> Result<Vec<Chunk>, DataflowError> {
        let mut chunks = vec![];
        let mut gathered: Vec<Vec<KeptRows>> = self.ports.iter().map(|_| vec![]).collect();
        for ((port, _), kept) in rows {
            gathered[port as usize].extend(kept);
        }
        for (port, kept) in (0..).zip(gathered).filter(|(_, kept)| !kept.is_empty()) {
            let room = member.net().payload_max(leader);
            let mut together = Together::default();
            for rows in kept {
                together.add(rows);
                if together.bytes >= GATHERED_SLOTS * room {
                    let together = std::mem::take(&mut together);
                    self.cut_up(member, (leader, port), together, &mut chunks)?;
                }
            }
            self.cut_up(member, (leader, port), together, &mut chunks)?;
        }
        Ok(chunks)
    }

    /// Cuts rows of an input into chunks for a leader: where they lie, or put together for one
    /// of this process, to whom they are handed over.
    fn cut_up(
        &self,
        member: &impl Member,
        (leader, port): (u32, u32),
        Together { picks, kept_bytes, .. }: Together,
        chunks: &mut Vec<Chunk>,
    ) -> Result<(), DataflowError> {
        if member.net().is_beside(leader) {
            let whole = picks.batch()?;
            chunks.extend(whole.map(|whole| Chunk::of(port, Load::of_rows(&whole))));
            return Ok(());
        }
        let cutter = &self.ports[port as usize].cutter;
        let (picks, mut done) = (Rc::new(picks), 0);
        while done < picks.rows() {
            let layout = cutter.cut(&picks, done, member.net().payload_max(leader))?;
            let (rows, bytes) = (done..done + layout.rows(), layout.len());
            done = rows.end;
            let kept_bytes = kept_bytes * rows.len() / picks.rows();
            let picked = PickedRows { picks: picks.clone(), rows, bytes, kept_bytes };
            let body = ChunkBody::Picked(picked);
            chunks.push(Chunk { port, body });
        }
        Ok(())
    }

    /// Gives the operator rows of a helper. Those of a worker of this process stay where they are.
    pub(super) fn merge(
        &self,
        member: &impl Member,
        from: u32,
        colour: Colour,
        ReceivedChunk { port, load }: ReceivedChunk,
    ) -> Result<(), DataflowError> {
        let malformed = |detail| DataflowError::Frame { worker: from, detail };
        let of = self.ports.get(port as usize);
        let of = of.ok_or_else(|| malformed(format!("there is no input {port}")))?;
        let (in_slot, by_reference) =
            (matches!(load, Load::Slot(_)), matches!(load, Load::Rows { .. }));
        let (batch, _) = load.rows(&of.decoder).map_err(malformed)?;
        let arrival = Arrival { port: port as usize, source: from, colour, slice: None, bytes: 0 };
        match (in_slot, by_reference) {
            (true, _) => member.take(arrival, batch),
            (_, true) => member.adopt(arrival, batch),
            // Columns are slices of one payload, each of which would count as the whole.
            (_, false) => member.keep(arrival, batch),
        }
    }

    /// Nothing is learned: rows do not combine.
    pub(super) fn ended(&self, _: &impl Member, _: &Ended, _: u64) {}

    pub(super) fn bytes(&self) -> usize {
        self.held.borrow().bytes()
    }
}
