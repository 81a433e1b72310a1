//! Rows of this worker on their way into a broadcast: encoded, cut into frames, and queued.

use std::sync::Arc;

use arrow::record_batch::RecordBatch;
use bytes::Bytes;
use channel::RegionFrame;

use super::{BroadcastFrame, Distributor, Way};
use crate::error::DataflowError;
use crate::exchange::{Arrival, Member};
use crate::job::worker_set::WorkerSet;
use crate::rows::wire::{Cutter, Picks, RowsLayout};
use crate::runtime::net::Net;

/// Rows as a payload.
pub(super) struct Encoded {
    pub(super) payload: Bytes,
    /// The same, where it lies in the region.
    pub(super) lent: Option<RegionFrame>,
    /// How long it took to encode them.
    pub(super) encode_ns: u64,
}

impl Distributor {
    /// Gives rows, in memory of their own, to every worker, or to those of `to`. Waits while the
    /// queue is full.
    ///
    /// # Errors
    /// When the rows cannot be taken here, or a column cannot travel.
    pub(in crate::exchange) async fn push(
        &self,
        member: &impl Member,
        port: usize,
        cutter: &Cutter,
        batch: RecordBatch,
        to: Option<&Arc<WorkerSet>>,
    ) -> Result<(), DataflowError> {
        if to.is_none_or(|to| to.contains(self.worker)) {
            let (source, colour) = (member.worker(), member.colour());
            member.keep(Arrival { port, source, colour, slice: None, bytes: 0 }, batch.clone())?;
        }
        let port = port as u32;
        let colour = member.colour();
        let own = self.process.workers();
        if self.ranks == 1 || to.is_some_and(|to| to.iter().all(|worker| own.contains(&worker))) {
            let frame = BroadcastFrame::local(port, colour, self.next_number() + 1, batch);
            let locals = self.locals_of(to);
            self.lists.give(&locals);
            return self.enqueue(member, frame, Some(locals), 0).await;
        }
        let room = self.room(member.net())?;
        let picks = Picks::of(batch.clone());
        let mut done = 0;
        while done < batch.num_rows() {
            let layout = cutter.cut(&picks, done, room)?;
            let encoded = match self.region_for(member.net(), &layout) {
                Some(region) => self.encode_into(region, member.net(), &layout).await,
                None => self.encode(member.net(), &layout),
            };
            let batch = batch.slice(done, layout.rows());
            match (self.way, to) {
                (Way::Copies, _) => {
                    self.push_copies(member, port, batch, &layout, encoded).await?;
                }
                (Way::Lists, Some(to)) => {
                    self.push_listed(member, port, batch, encoded, to).await?;
                }
                _ => self.push_parts(member, port, batch, encoded).await?,
            }
            done += layout.rows();
        }
        Ok(())
    }

    /// A payload of these rows.
    pub(super) fn encode(&self, net: &Net, rows: &RowsLayout<'_>) -> Encoded {
        let start = self.clock.now_ns();
        let payload = rows.payload();
        let encode_ns = self.clock.now_ns().saturating_sub(start);
        net.count(|metrics| &metrics.broadcast_encode_ns, encode_ns);
        Encoded { payload, lent: None, encode_ns }
    }

    /// Gives rows out along the tree, in as many frames as they need.
    async fn push_parts(
        &self,
        member: &impl Member,
        port: u32,
        batch: RecordBatch,
        Encoded { payload, lent, encode_ns }: Encoded,
    ) -> Result<(), DataflowError> {
        let mut batch = Some(batch);
        let parts = parts_of(&payload, member.net().payload_room());
        let encode_ns = encode_ns / parts.len() as u64;
        let has_groups = member.net().in_flight().is_some();
        let flies = |bytes| has_groups && self.in_flight.borrow().carries(bytes);
        for (payload, more) in parts {
            // The last part brings the rows to workers of this process.
            let batch = batch.take_if(|_| !more);
            let also = batch.is_some().then(|| self.locals());
            let frame = BroadcastFrame {
                port,
                colour: member.colour(),
                complete_before: self.next_number() + 1,
                more,
                placeholder: flies(payload.len()).then_some(payload.len() as u32),
                payload,
                owned: true,
                // It fits one slot, and so is one part.
                lent: lent.clone(),
                batch,
                to: None,
            };
            self.enqueue(member, frame, also, encode_ns).await?;
        }
        Ok(())
    }

    /// Gives out a frame as soon as the queue has room: to the tree, and to others beside it.
    pub(super) async fn enqueue(
        &self,
        member: &impl Member,
        frame: BroadcastFrame,
        also: Option<Vec<u32>>,
        encode_ns: u64,
    ) -> Result<(), DataflowError> {
        let flies = frame.placeholder.map(|_| frame.payload.clone());
        let has_room = || {
            let queue = self.own.borrow().relay().retained() < self.queue_frames;
            let kept = flies.is_none() || self.in_flight.borrow().has_room();
            (queue && kept).then_some(())
        };
        member.net().wait_for_credit(self.tag, &self.room, has_room).await;
        let seq = self.own.borrow_mut().push(frame);
        if let Some(payload) = flies {
            member.net().count(|metrics| &metrics.broadcast_multicast, 1);
            member.net().count(|metrics| &metrics.broadcast_bytes, payload.len() as u64);
            self.in_flight.borrow_mut().launch(seq, payload);
        }
        if let Some(others) = also {
            self.own.borrow_mut().relay_mut().also(seq, &others);
        }
        self.monitor.borrow_mut().arrived(encode_ns);
        self.adapt();
        self.pump(member.net());
        member.net().notify_waiters();
        Ok(())
    }
}

/// A payload as parts of at most `room` bytes, and of each whether another follows.
pub(super) fn parts_of(payload: &Bytes, room: usize) -> Vec<(Bytes, bool)> {
    let count = payload.len().div_ceil(room).max(1);
    let part = |at: usize| {
        let end = payload.len().min((at + 1) * room);
        (payload.slice(at * room..end), at + 1 < count)
    };
    (0..count).map(part).collect()
}
