//! The gather exchange: rows of all workers go to one (Q8).
//!
//! The receiver may have to wait before it can process rows, while the links by which they come
//! serve other operators too: each sender keeps within a window.

use std::cell::Cell;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use channel::Class;
use state::epoch::{END_OF_STREAM, Presence, Progress};

use super::window::InputWindows;
use super::{Arrival, Member, Outgoing, RowExchange, refused};
use crate::error::DataflowError;
use crate::rows::wire::{Cutter, Decoder, Picks};
use crate::runtime::frame::{Envelope, Frame};
use crate::runtime::net::Message;
use crate::runtime::place::WorkerContext;

/// The worker to which all rows go.
pub(crate) const GATHERER: u32 = 0;

/// In place of a position: no more rows are needed, neither those on their way nor later ones.
const ALL_BYTES: u64 = u64::MAX;

/// Sends all rows to the [`GATHERER`].
pub(crate) struct Gather {
    port: u32,
    cutter: Cutter,
    decoder: Decoder,
    windows: InputWindows,
    /// The gatherer needs no more rows.
    satisfied: Cell<bool>,
}

impl Gather {
    /// Of the rows of an input.
    pub(crate) fn new(port: usize, schema: &SchemaRef, place: &WorkerContext) -> Self {
        Self::with_window(port, schema, place, place.settings.receive_bytes)
    }

    /// The same, with a receive window of `bytes` in place of that of the setting. It must be the
    /// same on each worker.
    pub(crate) fn with_window(
        port: usize,
        schema: &SchemaRef,
        place: &WorkerContext,
        bytes: u64,
    ) -> Self {
        Self {
            port: port as u32,
            cutter: Cutter::default(),
            decoder: Decoder::new(schema),
            windows: InputWindows::of_bytes(port, place, bytes),
            satisfied: Cell::new(false),
        }
    }
}

impl<M: Member> RowExchange<M> for Gather {
    /// Rows of the gatherer itself are pushed when there is room for them.
    async fn push(
        &self,
        member: &M,
        rows: Outgoing<'_>,
    ) -> Result<Option<RecordBatch>, DataflowError> {
        if member.worker() == GATHERER {
            member.keep(Arrival::local(member, &rows), rows.batch)?;
        } else if !self.satisfied.get() {
            let envelope = member.envelope(self.port, Frame::Gather);
            let windows = Some(self.windows.sending());
            let (net, picks) = (member.net(), Picks::of(rows.batch));
            net.send_rows(GATHERER, envelope, &self.cutter, windows, &picks).await?;
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
            self.windows.close();
        }
    }

    fn receive(
        &self,
        member: &M,
        from: u32,
        message: Message,
    ) -> Result<Option<u32>, DataflowError> {
        let Envelope { colour, frame, .. } = message.envelope;
        match frame {
            Frame::Gather if member.worker() == GATHERER => {
                let malformed = |detail| DataflowError::Frame { worker: from, detail };
                let bytes = self.windows.receive(from, message.load.size())?;
                let (batch, own) = message.load.rows(&self.decoder).map_err(malformed)?;
                let (port, slice) = (self.port as usize, None);
                let arrival = Arrival { port, source: from, colour, slice, bytes };
                if own { member.keep(arrival, batch)? } else { member.take(arrival, batch)? }
            }
            Frame::GatherEnd if member.worker() == GATHERER => {
                member.move_clock(from, Progress::ended(END_OF_STREAM));
                // A merge of sorted rows waits for each worker.
                member.leader().1.notify();
                if member.others_have_ended() {
                    self.windows.close();
                }
            }
            Frame::Consumed { position } if member.worker() != GATHERER && from == GATHERER => {
                if position == ALL_BYTES {
                    self.satisfied.set(true);
                    self.windows.open(member, from);
                    member.satisfied();
                } else {
                    self.windows.give_back(member, from, position)?;
                }
            }
            frame => return Err(refused(from, frame)),
        }
        Ok(None)
    }

    async fn acknowledge(&self, member: &M) {
        self.windows.acknowledge(member).await;
    }

    fn satisfied(&self, member: &M) {
        if member.worker() == GATHERER {
            self.satisfied.set(true);
            member.net().peers().for_each(|worker| self.windows.needs_no_more(worker, ALL_BYTES));
        }
    }

    fn is_satisfied(&self, _: &M) -> bool {
        self.satisfied.get()
    }

    fn consumed(&self, member: &M, of: Arrival) {
        self.windows.consumed(member, of);
    }
}
