//! Rows of others (S7): they are kept by leader and window where they are read, and leave as a
//! delta of the epoch.
//!
//! ```text
//!   helper                                            leader
//!   push ─ by leader ─┬─ own rows ─▶ operator
//!                     └─ by input and window ─ kept
//!   end of the epoch ─ put together ─ chunks ───────▶ staged until the epoch is complete
//!                                                     ─▶ operator, chunk by chunk, as they lie
//! ```
//!
//! An epoch ends with the window, as for groups, and also when the rows that are kept take
//! [`MergedRows::length`] bytes: rows do not combine, and a longer epoch would only take memory.

use std::cell::RefCell;
use std::rc::Rc;

use arrow::record_batch::RecordBatch;
use state::epoch::{Ended, HeldRows, RowsOfLeader};

use super::super::{Arrival, Member, Outgoing, Partition, Port};
use super::content::{Chunk, ChunkBody, Cut, PickedRows, ReceivedChunk};
use crate::error::DataflowError;
use crate::rows::windows::by_window;
use crate::rows::wire::{Cutter, Decoder, Picks, bytes_of, take_rows};
use crate::runtime::frame::Colour;
use crate::runtime::local_exchange::Load;
use crate::runtime::place::WorkerContext;

/// The part of an operator's memory that rows of others may take before an epoch ends is one of so
/// many, divided by the workers: a leader may have to stage an epoch of each of them.
const KEPT_PART: usize = 16;
/// Bytes of a batch beside its rows, for each column and once.
const ARRAY_BYTES: usize = 128;
/// Rows of so many slots are cut into chunks together.
const GATHERED_SLOTS: usize = 4;

/// Rows that others lead, until the epoch ends.
pub(super) struct MergedRows {
    ports: Vec<MergedPort>,
    held: RefCell<HeldRows<RecordBatch>>,
    scratch: RefCell<Scratch>,
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

struct Scratch {
    owners: Vec<u32>,
    /// The rows of a batch by owner.
    rows: Vec<Vec<u32>>,
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

    /// Rows by their window, if they have one.
    fn windows(&self, rows: RecordBatch) -> Result<Vec<(Option<i64>, RecordBatch)>, DataflowError> {
        let Some(end) = self.window else { return Ok(vec![(None, rows)]) };
        Ok(by_window(&rows, end)?.into_iter().map(|(end, rows)| (Some(end), rows)).collect())
    }
}

impl MergedRows {
    pub(super) fn new(ports: Vec<Port>, place: &WorkerContext) -> Self {
        let workers = place.workers as usize;
        let scratch = Scratch { owners: vec![], rows: vec![vec![]; workers] };
        Self {
            ports: ports.into_iter().map(|port| MergedPort::new(port, place)).collect(),
            held: RefCell::new(HeldRows::new(place.workers)),
            scratch: RefCell::new(scratch),
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
        let (port, number) = (&self.ports[rows.port], rows.port as u32);
        for (owner, part) in self.split(port, &rows.batch)? {
            if owner == member.worker() {
                member.keep(Arrival::local(member, &rows), part)?;
                continue;
            }
            let mut held = self.held.borrow_mut();
            for (window, part) in port.windows(part)? {
                let bytes = bytes_of(&part) + ARRAY_BYTES * (1 + part.num_columns());
                held.push(owner, number, window, part, bytes);
            }
        }
        member.account()
    }

    /// The rows of each worker.
    fn split(
        &self,
        port: &MergedPort,
        batch: &RecordBatch,
    ) -> Result<Vec<(u32, RecordBatch)>, DataflowError> {
        let Scratch { owners, rows } = &mut *self.scratch.borrow_mut();
        port.partition.owners(batch, None, owners)?;
        rows.iter_mut().for_each(Vec::clear);
        for (row, &owner) in owners.iter().enumerate() {
            rows[owner as usize].push(row as u32);
        }
        let each = (0..).zip(&*rows).filter(|(_, rows)| !rows.is_empty());
        each.map(|(owner, rows)| Ok((owner, take_rows(batch, rows)?))).collect()
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
            let of_leader = rows.values().flatten().map(|rows| rows.num_rows() as u64);
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
        rows: RowsOfLeader<RecordBatch>,
    ) -> Result<Vec<Chunk>, DataflowError> {
        let mut chunks = vec![];
        let mut gathered: Vec<Vec<RecordBatch>> = vec![vec![]; self.ports.len()];
        for ((port, _), batches) in rows {
            gathered[port as usize].extend(batches);
        }
        for (port, batches) in (0..).zip(gathered).filter(|(_, batches)| !batches.is_empty()) {
            let room = member.net().payload_max(leader);
            let (mut together, mut bytes) = (Picks::default(), 0);
            for batch in batches {
                bytes += bytes_of(&batch);
                together.add_all(batch);
                if bytes >= GATHERED_SLOTS * room {
                    let together = std::mem::take(&mut together);
                    self.cut_up(member, (leader, port), together, &mut chunks)?;
                    bytes = 0;
                }
            }
            self.cut_up(member, (leader, port), together, &mut chunks)?;
        }
        Ok(chunks)
    }

    /// Cuts batches of an input into chunks for a leader: where they lie, or put together for one
    /// of this process, to whom they are handed over.
    fn cut_up(
        &self,
        member: &impl Member,
        (leader, port): (u32, u32),
        together: Picks,
        chunks: &mut Vec<Chunk>,
    ) -> Result<(), DataflowError> {
        if member.net().is_beside(leader) {
            let whole = together.batch()?;
            chunks.extend(whole.map(|whole| Chunk::of(port, Load::of_rows(&whole))));
            return Ok(());
        }
        let cutter = &self.ports[port as usize].cutter;
        let (picks, mut done) = (Rc::new(together), 0);
        while done < picks.rows() {
            let layout = cutter.cut(&picks, done, member.net().payload_max(leader))?;
            let (rows, bytes) = (done..done + layout.rows(), layout.len());
            done = rows.end;
            let body = ChunkBody::Picked(PickedRows { picks: picks.clone(), rows, bytes });
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
