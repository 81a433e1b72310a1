//! The shuffle exchange (Q): every row goes to one worker, which a [`Partition`] tells; mostly to
//! the leader of its key.
//!
//! Rows stay in the batches in which they came, and are written from there straight into the slot
//! of a ring (S1). Rows for one leader are collected until they fill the batching threshold (Q5),
//! the oldest has waited long enough (W4) or progress is announced. Links and queues are first in
//! first out, so that progress arrives after the rows that it speaks of.
//!
//! If the operator cannot always process rows when they come, senders keep within a window
//! ([`super::window`]).

use std::cell::{Cell, RefCell};

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;

use super::buffer::{Batching, Buffer};
use super::partition::NumbersByWorker;
use super::window::InputWindows;
use super::{Arrival, Member, Outgoing, Partition, RowExchange, refused};
use crate::error::DataflowError;
use crate::job::ShuffleSettings;
use crate::rows::wire::{Cutter, Decoder, Picks, bytes_of, take_rows};
use crate::runtime::frame::{Envelope, Frame};
use crate::runtime::net::Message;
use crate::runtime::place::WorkerContext;

/// Bytes of batches whose rows wait, at most, before all rows that wait are sent.
const KEPT_BYTES: usize = 4 << 20;
/// The frames for each worker that these bytes are at least, where there are many workers.
const FRAMES_KEPT: usize = 8;

/// The sending and the receiving side of a shuffle on one worker.
pub(crate) struct Shuffle {
    port: u32,
    partition: Partition,
    batching: Batching,
    /// Rows that wait to be sent, by leader.
    buffers: RefCell<Vec<Buffer>>,
    /// Bytes of batches of which rows may wait.
    kept: Cell<usize>,
    cutter: Cutter,
    decoder: Decoder,
    scratch: RefCell<NumbersByWorker>,
    /// The windows of the input, if rows may have to wait in the operator.
    windows: Option<InputWindows>,
}

impl Shuffle {
    /// Of the rows of an input.
    pub(crate) fn new(
        port: usize,
        schema: &SchemaRef,
        partition: Partition,
        place: &WorkerContext,
        shuffle: ShuffleSettings,
    ) -> Self {
        let workers = place.workers as usize;
        Self {
            port: port as u32,
            partition,
            batching: Batching::new(schema, place, shuffle),
            buffers: RefCell::new((0..workers).map(|_| Buffer::default()).collect()),
            kept: Cell::new(0),
            cutter: Cutter::default(),
            decoder: Decoder::new(schema),
            scratch: RefCell::default(),
            windows: None,
        }
    }

    /// The same, with windows, for rows that may have to wait in the operator.
    pub(crate) fn with_windows(self, place: &WorkerContext) -> Self {
        Self { windows: Some(InputWindows::new(self.port as usize, place)), ..self }
    }

    /// Counts a batch whose rows wait. True if those that wait may hold too much: a batch stays
    /// whole until the last of its rows has left, also where a worker gets few rows.
    fn keeps_much(&self, batch: &RecordBatch) -> bool {
        let kept = self.kept.get() + bytes_of(batch);
        self.kept.set(kept);
        let together = FRAMES_KEPT * self.batching.bytes_together();
        kept > KEPT_BYTES.max(together * self.partition.apart() as usize)
    }

    fn is_full(&self, to: u32) -> bool {
        self.batching.is_full(&self.buffers.borrow()[to as usize])
    }

    async fn send_buffered(&self, member: &impl Member, to: u32) -> Result<(), DataflowError> {
        let rows = self.buffers.borrow_mut()[to as usize].take();
        self.send(member, to, None, &rows).await
    }

    async fn send_all_buffered(&self, member: &impl Member) -> Result<(), DataflowError> {
        self.kept.set(0);
        for to in member.net().peers() {
            self.send_buffered(member, to).await?;
        }
        Ok(())
    }

    async fn send(
        &self,
        member: &impl Member,
        to: u32,
        slice: Option<i64>,
        rows: &Picks,
    ) -> Result<(), DataflowError> {
        let envelope = member.envelope(self.port, Frame::Rows { slice });
        let windows = self.windows.as_ref().map(InputWindows::sending);
        member.net().send_rows(to, envelope, &self.cutter, windows, rows).await
    }

    /// Gives rows of this worker to its own operator.
    async fn keep(
        &self,
        member: &impl Member,
        arrival: Arrival,
        part: RecordBatch,
    ) -> Result<(), DataflowError> {
        let bytes = match &self.windows {
            Some(windows) => windows.keep_room(member, bytes_of(&part)).await?,
            None => 0,
        };
        member.keep(Arrival { bytes, ..arrival }, part)
    }
}

impl<M: Member> RowExchange<M> for Shuffle {
    /// Rows of one slice leave at once, behind those that wait.
    async fn push(
        &self,
        member: &M,
        rows: Outgoing<'_>,
    ) -> Result<Option<RecordBatch>, DataflowError> {
        let (mut apart, mut waits) = (None, false);
        let mut split = self.scratch.take();
        split.split(&self.partition, &rows.batch, rows.frequent)?;
        let some = (0u32..).zip(&split.rows).filter(|(_, numbers)| !numbers.is_empty());
        for (owner, numbers) in some {
            let batch = &rows.batch;
            match rows.slice {
                _ if owner == self.partition.apart() => apart = Some(take_rows(batch, numbers)?),
                _ if owner == member.worker() => {
                    let part = take_rows(batch, numbers)?;
                    self.keep(member, Arrival::local(member, &rows), part).await?;
                }
                None => {
                    let buffer = &mut self.buffers.borrow_mut()[owner as usize];
                    self.batching.put(buffer, batch, numbers);
                    waits = true;
                }
                slice => {
                    self.send_buffered(member, owner).await?;
                    let mut picks = Picks::default();
                    picks.add(batch.clone(), numbers);
                    self.send(member, owner, slice, &picks).await?;
                }
            }
        }
        self.scratch.replace(split);
        for to in member.net().peers() {
            if self.is_full(to) {
                self.send_buffered(member, to).await?;
            }
        }
        if waits && self.keeps_much(&rows.batch) {
            self.send_all_buffered(member).await?;
        }
        Ok(apart)
    }

    async fn flush(&self, member: &M) -> Result<(), DataflowError> {
        self.send_all_buffered(member).await
    }

    fn receive(
        &self,
        member: &M,
        from: u32,
        message: Message,
    ) -> Result<Option<u32>, DataflowError> {
        let Envelope { colour, frame, .. } = message.envelope;
        match frame {
            Frame::Rows { slice } => {
                let malformed = |detail| DataflowError::Frame { worker: from, detail };
                let bytes = match &self.windows {
                    Some(windows) => windows.receive(from, message.load.size())?,
                    None => 0,
                };
                let (batch, own) = message.load.rows(&self.decoder).map_err(malformed)?;
                let port = self.port as usize;
                let arrival = Arrival { port, source: from, colour, slice, bytes };
                if own { member.keep(arrival, batch)? } else { member.take(arrival, batch)? }
            }
            Frame::Groups => member.take_groups(from, &message.load.bytes())?,
            frame => match (&self.windows, frame) {
                (Some(windows), Frame::Consumed { position }) => {
                    windows.give_back(member, from, position)?;
                }
                _ => return Err(refused(from, frame)),
            },
        }
        Ok(None)
    }

    async fn acknowledge(&self, member: &M) {
        if let Some(windows) = &self.windows {
            windows.acknowledge(member).await;
        }
    }

    fn consumed(&self, member: &M, of: Arrival) {
        if let Some(windows) = &self.windows {
            windows.consumed(member, of);
        }
    }

    fn others_ended(&self, _: &M) {
        if let Some(windows) = &self.windows {
            windows.close();
        }
    }

    fn due(&self, _: &M) -> Option<u64> {
        let buffers = self.buffers.borrow();
        buffers.iter().filter_map(|buffer| self.batching.due_ns(buffer)).min()
    }

    async fn send_due(&self, member: &M, now_ns: u64) -> Result<(), DataflowError> {
        for to in member.net().peers() {
            if self.batching.is_due(&self.buffers.borrow()[to as usize], now_ns) {
                self.send_buffered(member, to).await?;
            }
        }
        Ok(())
    }
}
