//! The shuffle exchange (Q): every row goes to one worker, which a [`Partition`] tells; mostly to
//! the leader of its key.
//!
//! Rows for one leader are collected until they fill the batching threshold (Q5), the oldest has
//! waited long enough (W4) or progress is announced. Links and queues are first in first out, so
//! that progress arrives after the rows that it speaks of.
//!
//! If the operator cannot always process rows when they come, senders keep within a window
//! ([`super::window`]).

use std::cell::RefCell;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use state::Frequent;

use super::buffer::{Batching, Buffer, take_rows};
use super::window::InputWindows;
use super::{Arrival, Member, Outgoing, Partition, RowExchange, refused};
use crate::error::DataflowError;
use crate::job::ShuffleSettings;
use crate::rows::wire::{Decoder, Encoder, bytes_of};
use crate::runtime::frame::{Envelope, Frame};
use crate::runtime::net::Message;
use crate::runtime::place::WorkerContext;

/// The sending and the receiving side of a shuffle on one worker.
pub(crate) struct Shuffle {
    port: u32,
    partition: Partition,
    batching: Batching,
    /// Rows that wait to be sent, by leader.
    buffers: RefCell<Vec<Buffer>>,
    encoder: RefCell<Encoder>,
    decoder: Decoder,
    scratch: RefCell<Scratch>,
    /// The windows of the input, if rows may have to wait in the operator.
    windows: Option<InputWindows>,
}

#[derive(Default)]
struct Scratch {
    owners: Vec<u32>,
    /// By owner the rows; behind the last worker those that are set apart.
    rows: Vec<Vec<u32>>,
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
        let rows = vec![Vec::new(); workers + 1];
        Self {
            port: port as u32,
            partition,
            batching: Batching::new(schema, place, shuffle),
            buffers: RefCell::new((0..workers).map(|_| Buffer::default()).collect()),
            encoder: RefCell::new(Encoder::new(schema)),
            decoder: Decoder::new(schema),
            scratch: RefCell::new(Scratch { owners: Vec::new(), rows }),
            windows: None,
        }
    }

    /// The same, with windows, for rows that may have to wait in the operator.
    pub(crate) fn with_windows(self, place: &WorkerContext) -> Self {
        Self { windows: Some(InputWindows::new(self.port as usize, place)), ..self }
    }

    /// The rows of each worker, and of nobody those that are set apart.
    fn split(
        &self,
        batch: &RecordBatch,
        frequent: Option<&RefCell<Frequent>>,
    ) -> Result<Vec<(u32, RecordBatch)>, DataflowError> {
        let Scratch { owners, rows } = &mut *self.scratch.borrow_mut();
        self.partition.owners(batch, frequent, owners)?;
        rows.iter_mut().for_each(Vec::clear);
        for (row, &owner) in owners.iter().enumerate() {
            rows[owner as usize].push(row as u32);
        }
        let each = rows.iter().enumerate().filter(|(_, rows)| !rows.is_empty());
        each.map(|(owner, rows)| Ok((owner as u32, take_rows(batch, rows)?))).collect()
    }

    fn is_full(&self, to: u32) -> bool {
        self.batching.is_full(&self.buffers.borrow()[to as usize])
    }

    async fn send_buffered(&self, member: &impl Member, to: u32) -> Result<(), DataflowError> {
        let batch = self.batching.take(&mut self.buffers.borrow_mut()[to as usize])?;
        let Some(batch) = batch else { return Ok(()) };
        self.send(member, to, None, &batch).await
    }

    async fn send(
        &self,
        member: &impl Member,
        to: u32,
        slice: Option<i64>,
        batch: &RecordBatch,
    ) -> Result<(), DataflowError> {
        let envelope = member.envelope(self.port, Frame::Rows { slice });
        let windows = self.windows.as_ref().map(InputWindows::sending);
        member.net().send_rows(to, envelope, &self.encoder, windows, batch).await
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
        let mut apart = None;
        for (owner, part) in self.split(&rows.batch, rows.frequent)? {
            match rows.slice {
                _ if owner == self.partition.apart() => apart = Some(part),
                _ if owner == member.worker() => {
                    self.keep(member, Arrival::local(member, &rows), part).await?;
                }
                None => self.batching.put(&mut self.buffers.borrow_mut()[owner as usize], part),
                slice => {
                    self.send_buffered(member, owner).await?;
                    self.send(member, owner, slice, &part).await?;
                }
            }
        }
        for to in member.net().peers() {
            if self.is_full(to) {
                self.send_buffered(member, to).await?;
            }
        }
        Ok(apart)
    }

    async fn flush(&self, member: &M) -> Result<(), DataflowError> {
        for to in member.net().peers() {
            self.send_buffered(member, to).await?;
        }
        Ok(())
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
