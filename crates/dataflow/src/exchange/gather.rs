//! The gather exchange: rows of all workers go to one (Q8).
//!
//! The receiver may have to wait before it can take rows, while the links by which they come serve
//! other operators too. So each sender stops when [`GATHERED_ROWS_MAX`] of its rows, or fewer where
//! a sort says so, are on their way or wait, and goes on when they have been taken.

use std::cell::{Cell, RefCell};

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use channel::Class;
use state::epoch::{END_OF_STREAM, Presence, Progress};

use super::acks::Acks;
use super::{Arrival, Member, Outgoing, RowExchange, refused};
use crate::error::DataflowError;
use crate::rows::wire::{Decoder, Encoder};
use crate::runtime::frame::{Envelope, Frame};
use crate::runtime::net::Message;
use crate::runtime::place::WorkerContext;
use crate::runtime::scheduler::Event;

/// The worker to which all rows go.
pub(crate) const GATHERER: u32 = 0;

/// Rows of one sender that are on their way or wait at the [`GATHERER`], besides those of one
/// batch.
pub(crate) const GATHERED_ROWS_MAX: usize = 32_768;

/// In place of a number of rows: all were taken, and so were those that are still to come, for the
/// [`GATHERER`] needs no more.
const ALL_ROWS: u64 = u64::MAX;

/// Sends all rows to the [`GATHERER`].
pub(crate) struct Gather {
    port: u32,
    /// Rows of one sender that may be on their way or wait.
    window: u64,
    encoder: RefCell<Encoder>,
    decoder: Decoder,
    /// Of a sender, the rows that it has sent, and those that were taken: of all, if no more are
    /// needed.
    sent: Cell<u64>,
    taken: Cell<u64>,
    acknowledged: Event,
    /// Of the gatherer, by sender: the rows that were taken, and of how many it has been told.
    consumed: RefCell<Vec<(u64, u64)>>,
    acks: Acks,
}

impl Gather {
    /// Of the rows of an input.
    pub(crate) fn new(port: usize, schema: &SchemaRef, place: &WorkerContext) -> Self {
        Self::with_window(port, schema, place, GATHERED_ROWS_MAX)
    }

    /// The same, with so many rows of one sender in place of [`GATHERED_ROWS_MAX`]. Each worker
    /// says the same.
    pub(crate) fn with_window(
        port: usize,
        schema: &SchemaRef,
        place: &WorkerContext,
        window: usize,
    ) -> Self {
        Self {
            port: port as u32,
            window: window as u64,
            encoder: RefCell::new(Encoder::new(schema)),
            decoder: Decoder::new(schema),
            sent: Cell::new(0),
            taken: Cell::new(0),
            acknowledged: Event::default(),
            consumed: RefCell::new(vec![(0, 0); place.workers as usize]),
            acks: Acks::new(place.workers),
        }
    }

    /// Waits until few enough rows of this worker have not been taken.
    async fn room(&self, member: &impl Member) {
        let waiting = || self.sent.get().saturating_sub(self.taken.get());
        let has_room = || (waiting() < self.window).then_some(());
        if has_room().is_none() {
            member.net().wait_for_credit(member.tag(), &self.acknowledged, has_room).await;
        }
    }

    /// The gatherer has taken rows of a sender.
    fn acknowledge_rows(&self, member: &impl Member, from: u32, taken: u64) -> Result<(), String> {
        let sent = self.taken.get()..=self.sent.get();
        if taken != ALL_ROWS && !sent.contains(&taken) {
            return Err(format!("worker {from} has taken {taken} rows, which were not sent"));
        }
        self.taken.set(taken);
        self.acknowledged.notify();
        if taken == ALL_ROWS {
            member.satisfied();
        }
        Ok(())
    }
}

impl<M: Member> RowExchange<M> for Gather {
    async fn push(
        &self,
        member: &M,
        rows: Outgoing<'_>,
    ) -> Result<Option<RecordBatch>, DataflowError> {
        if member.worker() == GATHERER {
            member.keep(Arrival::local(member, &rows), rows.batch)?;
        } else {
            self.room(member).await;
            if self.is_satisfied(member) {
                return Ok(None);
            }
            self.sent.set(self.sent.get() + rows.batch.num_rows() as u64);
            let envelope = member.envelope(self.port, Frame::Gather);
            member.net().send_rows(GATHERER, envelope, &self.encoder, &rows.batch).await?;
        }
        Ok(None)
    }

    /// Rows need no time here, but the end of each worker is waited for.
    async fn announce(&self, member: &M, progress: Progress) -> Result<(), DataflowError> {
        if progress.presence == Presence::Ended && member.worker() != GATHERER {
            let envelope = member.envelope(self.port, Frame::GatherEnd);
            member.net().send(GATHERER, Class::Data, envelope).await;
        }
        Ok(())
    }

    fn carries_progress(&self, _: &M) -> bool {
        true
    }

    fn end(&self, member: &M) {
        if member.worker() != GATHERER || member.others_have_ended() {
            self.acks.close();
        }
    }

    fn receive(
        &self,
        member: &M,
        from: u32,
        message: Message,
    ) -> Result<Option<u32>, DataflowError> {
        let malformed = |detail| DataflowError::Frame { worker: from, detail };
        let Envelope { colour, frame, .. } = message.envelope;
        match frame {
            Frame::Gather if member.worker() == GATHERER => {
                let (batch, own) = message.load.rows(&self.decoder).map_err(malformed)?;
                let (port, slice) = (self.port as usize, None);
                let arrival = Arrival { port, source: from, colour, slice };
                if own { member.keep(arrival, batch)? } else { member.take(arrival, batch)? }
            }
            Frame::GatherEnd if member.worker() == GATHERER => {
                member.move_clock(from, Progress::ended(END_OF_STREAM));
                // Who merges sorted rows waits for each worker.
                member.leader().1.notify();
                if member.others_have_ended() {
                    self.acks.close();
                }
            }
            Frame::GatherAck { rows } if member.worker() != GATHERER && from == GATHERER => {
                self.acknowledge_rows(member, from, rows).map_err(malformed)?;
            }
            frame => return Err(refused(from, frame)),
        }
        Ok(None)
    }

    async fn acknowledge(&self, member: &M) {
        self.acks.run(member, self.port, |rows, _| Frame::GatherAck { rows }).await;
    }

    fn satisfied(&self, member: &M) {
        if member.worker() == GATHERER {
            self.taken.set(ALL_ROWS);
            member.net().peers().for_each(|worker| self.acks.add(worker, ALL_ROWS));
        }
    }

    fn is_satisfied(&self, _: &M) -> bool {
        self.taken.get() == ALL_ROWS
    }

    /// Tells the sender when half of the rows that it may have under way were taken.
    fn consumed(&self, _: &M, from: u32, rows: usize) {
        let (taken, reported) = &mut self.consumed.borrow_mut()[from as usize];
        *taken += rows as u64;
        if from != GATHERER && self.taken.get() != ALL_ROWS && *taken - *reported >= self.window / 2
        {
            *reported = *taken;
            self.acks.add(from, *taken);
        }
    }
}
