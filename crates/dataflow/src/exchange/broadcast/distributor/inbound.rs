//! The receiving side of a broadcast: frames of other processes, batches of relays,
//! acknowledgements.

use bytes::Bytes;
use channel::broadcast::{Numbered, Relay, RelayBreach};

use super::copies::CopyNumber;
use super::{BroadcastFrame, Distributor, Relayed, Way};
use crate::error::DataflowError;
use crate::exchange::rounds::deliver;
use crate::exchange::{Arrival, Member};
use crate::rows::wire::Decoder;
use crate::rows::wire::detach;
use crate::runtime::frame::payload::{Placeholder, decode_children};
use crate::runtime::frame::{Envelope, Frame};
use crate::runtime::local_exchange::Load;
use crate::runtime::net::{Message, Net, REASSEMBLED_BYTES_MAX};

impl Distributor {
    /// Takes a frame of the broadcast. Gives the worker of whose rows more are here than before.
    ///
    /// # Errors
    /// When it is malformed or its rows cannot be taken.
    pub(in crate::exchange) fn receive<'a>(
        &self,
        member: &impl Member,
        from: u32,
        message: Message,
        decoder: impl Fn(usize) -> Option<&'a Decoder>,
    ) -> Result<Option<u32>, DataflowError> {
        let malformed = |detail: String| DataflowError::Frame { worker: from, detail };
        let frame = message.envelope.frame;
        let source = match frame {
            Frame::Broadcast { source, .. } | Frame::BroadcastReference { source, .. } => {
                self.expect_relay(from, source).map_err(malformed)?;
                Some(source)
            }
            Frame::BroadcastList { .. } | Frame::BroadcastCopy { .. } => Some(from),
            Frame::Repair { .. } => Some(from),
            _ => None,
        };
        match frame {
            Frame::Broadcast { source, number, version, placeholder } if self.way == Way::Tree => {
                let frame = self.frame_of(number, placeholder, message).map_err(malformed)?;
                let numbered = Numbered { seq: number, version, frame };
                self.take_in(from, source, numbered).map_err(malformed)?;
                while self.take(member, source, &decoder, &malformed)? {}
            }
            Frame::BroadcastList { number } if self.way == Way::Lists => {
                let frame = self.frame_of(number, false, message).map_err(malformed)?;
                let numbered = Numbered { seq: number, version: 0, frame };
                self.take_in(from, from, numbered).map_err(malformed)?;
                while self.take(member, from, &decoder, &malformed)? {}
            }
            Frame::BroadcastCopy { number, complete_before } if self.way == Way::Copies => {
                let copy = CopyNumber { number, complete_before };
                self.take_copy(member, from, copy, message, decoder).map_err(malformed)?;
            }
            Frame::BroadcastReference { source, number, complete_before } => {
                let Load::Rows { batch, .. } = message.load else {
                    return Err(malformed("no rows were passed by reference".into()));
                };
                self.mark_received(source, complete_before);
                self.acknowledge(from, source, number);
                let Envelope { port, colour, .. } = message.envelope;
                let port = port as usize;
                let arrival = Arrival { port, source, colour, slice: None, bytes: 0 };
                deliver(member, arrival, batch, false)?;
            }
            Frame::BroadcastAck { source, before } => {
                self.acknowledged(from, source, before).map_err(malformed)?;
                self.stalled.borrow_mut().remove(&from);
            }
            Frame::TreeUpdate { version } => {
                self.update_tree(from, version, &message.load.bytes()).map_err(malformed)?;
            }
            Frame::TreeUpdateAck { version } => {
                let changed = self.own.borrow_mut().answered(from, version);
                if changed.map_err(|breach| malformed(breach.to_string()))? {
                    member.net().count(|metrics| &metrics.tree_changes, 1);
                    self.report_switch();
                }
            }
            Frame::Nack { number } => self.receive_nack(from, number).map_err(malformed)?,
            Frame::PayloadAck { before } => {
                self.receive_payload_ack(from, before).map_err(malformed)?;
            }
            Frame::Repair { number } => {
                let payload = message.load.bytes();
                self.fill(member.net(), from, number, &payload).map_err(malformed)?;
                while self.take(member, from, &decoder, &malformed)? {}
            }
            frame => return Err(malformed(format!("{frame:?} is not of this broadcast"))),
        }
        self.acknowledge_payloads();
        self.pump(member.net());
        self.leave_slots();
        member.net().notify_waiters();
        Ok(source)
    }

    /// Frames of a source go between its relays, and from those to the workers of their process.
    fn expect_relay(&self, from: u32, source: u32) -> Result<(), String> {
        let workers = self.received.borrow().len() as u32;
        let relays =
            source < workers && from == self.process.relay_of(self.process.rank_of(from), source);
        if relays { Ok(()) } else { Err(format!("it relays rows of worker {source}")) }
    }

    /// The sender will pass its frames on to these children in a tree.
    fn update_tree(&self, from: u32, version: u64, children: &[u8]) -> Result<(), String> {
        let mut relayed = self.relayed.borrow_mut();
        let relayed = relayed.get_mut(&from).ok_or_else(|| not_relay(from))?;
        let children = self.children_in(from, children)?;
        if relayed.relay.prepare(version, children) {
            self.control(from, Frame::TreeUpdateAck { version });
        }
        Ok(())
    }

    /// Takes frames whose payloads have come by the network, and asks for those that have not.
    /// Gives the workers of whose rows more are here than before.
    ///
    /// # Errors
    /// As [`Distributor::receive`].
    pub(in crate::exchange) fn poll<'a>(
        &self,
        member: &impl Member,
        decoder: impl Fn(usize) -> Option<&'a Decoder>,
    ) -> Result<Vec<u32>, DataflowError> {
        let awaited = self.awaited();
        let mut moved = vec![];
        for &source in &awaited {
            let malformed = |detail| DataflowError::Frame { worker: source, detail };
            let received = self.received(source);
            while self.take(member, source, &decoder, &malformed)? {}
            if self.received(source) != received {
                moved.push(source);
            }
        }
        if !awaited.is_empty() || self.is_crowded() {
            self.acknowledge_payloads();
            self.pump(member.net());
            self.leave_slots();
        }
        if !moved.is_empty() {
            member.net().notify_waiters();
        }
        Ok(moved)
    }

    /// A batch of a source is here, and with it all of its frames before `upto`. Lists are counted
    /// for each worker.
    fn mark_received(&self, source: u32, upto: u64) {
        let received = &mut self.received.borrow_mut()[source as usize];
        *received = match self.way {
            Way::Lists => *received + 1,
            Way::Tree | Way::Copies => upto,
        };
    }

    /// The receiver `from` has passed on the frames of `source` before `upto`.
    fn acknowledged(&self, from: u32, source: u32, upto: u64) -> Result<(), String> {
        let broken = |breach: RelayBreach| breach.to_string();
        if source != self.worker {
            let mut relayed = self.relayed.borrow_mut();
            let relayed = relayed.get_mut(&source).ok_or_else(|| not_relay(source))?;
            return relayed.relay.acknowledged(from, upto).map_err(broken);
        }
        let elsewhere = self.process.rank_of(from) != self.process.rank();
        let upto = match self.way {
            Way::Lists if elsewhere => self.lists.passed(from, upto).map_err(broken)?,
            _ => upto,
        };
        self.own.borrow_mut().relay_mut().acknowledged(from, upto).map_err(broken)?;
        if elsewhere {
            self.monitor.borrow_mut().acknowledged(from, upto, self.clock.now_ns());
        }
        Ok(())
    }

    /// A frame of another process, as it is passed on.
    fn frame_of(
        &self,
        number: u64,
        placeholder: bool,
        message: Message,
    ) -> Result<BroadcastFrame, String> {
        let Envelope { port, colour, more, .. } = message.envelope;
        let payload = message.load.bytes();
        let (to, payload) = match self.way {
            Way::Lists => self.listed(&payload).map(|(to, rows)| (Some(to), rows))?,
            Way::Tree | Way::Copies => (None, payload),
        };
        let (placeholder, payload) = if placeholder {
            (Some(Placeholder::decode(&payload)?.bytes), Bytes::new())
        } else {
            (None, payload)
        };
        let complete_before = number.saturating_add(1);
        let (owned, batch) = (false, None);
        Ok(BroadcastFrame {
            port,
            colour,
            complete_before,
            more,
            placeholder,
            payload,
            owned,
            lent: None,
            batch,
            to,
        })
    }

    /// A frame has come to the relay of a source.
    fn take_in(
        &self,
        from: u32,
        source: u32,
        numbered: Numbered<BroadcastFrame>,
    ) -> Result<(), String> {
        let mut relayed = self.relayed.borrow_mut();
        let relayed = relayed.get_mut(&source).ok_or_else(|| not_relay(source))?;
        relayed.relay.receive(from, numbered).map_err(|breach| breach.to_string())
    }

    /// Takes the next frame of a source, if it is here: passes it on along the tree, and then gives
    /// its rows to the workers of this process.
    fn take<'a>(
        &self,
        member: &impl Member,
        source: u32,
        decoder: &impl Fn(usize) -> Option<&'a Decoder>,
        malformed: &impl Fn(String) -> DataflowError,
    ) -> Result<bool, DataflowError> {
        let mut relayed = self.relayed.borrow_mut();
        let Some(of_source) = relayed.get_mut(&source) else { return Ok(false) };
        if !self.land(member.net(), source, of_source) {
            return Ok(false);
        }
        let Relayed { relay, partial, .. } = of_source;
        let taken = relay.take().map_err(|breach| malformed(breach.to_string()))?;
        let Some(seq) = taken else { return Ok(false) };
        self.lend_again(member.net(), relay, seq);
        let part = relay.frame_mut(seq).map(|frame| {
            let BroadcastFrame { port, colour, more, payload, to, .. } = frame;
            (*port as usize, *colour, *more, payload.clone(), to.clone())
        });
        let Some((port, colour, more, payload, to)) = part else { return Ok(false) };
        self.pump_first(member.net(), source, relay);
        if !more || self.way == Way::Tree {
            self.mark_received(source, seq + 1);
        }
        if more || !partial.is_empty() {
            if partial.len() + payload.len() > REASSEMBLED_BYTES_MAX {
                return Err(malformed(format!("a payload exceeds {REASSEMBLED_BYTES_MAX} bytes")));
            }
            partial.extend_from_slice(&payload);
        }
        if more {
            return Ok(true);
        }
        let whole = if partial.is_empty() { payload } else { Bytes::from(std::mem::take(partial)) };
        let decoder = decoder(port);
        let decoder = decoder.ok_or_else(|| malformed(format!("there is no input {port}")))?;
        let (batch, _) = decoder.decode(whole).map_err(malformed)?;
        // One copy for all workers of the process: what they keep must not hold a slot.
        let batch = detach(&batch);
        if let Some(frame) = relay.frame_mut(seq) {
            frame.batch = Some(batch.clone());
        }
        relay.also(seq, &self.locals_of(to.as_ref()));
        drop(relayed);
        if to.is_none_or(|to| to.contains(self.worker)) {
            let arrival = Arrival { port, source, colour, slice: None, bytes: 0 };
            deliver(member, arrival, batch, false)?;
        }
        Ok(true)
    }

    /// Passes on what was just taken, from the slot where it landed.
    fn pump_first(&self, net: &Net, source: u32, relay: &mut Relay<BroadcastFrame>) {
        for child in relay.awaiting() {
            while let Some(next) = relay.to_send(child) {
                if !self.try_send(net, source, child, next) {
                    break;
                }
                relay.sent(child);
                self.stalled.borrow_mut().remove(&child);
            }
        }
    }

    /// Copies what could not be passed on out of its slot: its sender must not wait for who is slow
    /// behind us.
    fn leave_slots(&self) {
        for relayed in self.relayed.borrow_mut().values_mut() {
            for frame in relayed.relay.frames_mut().filter(|frame| !frame.owned) {
                frame.payload = Bytes::copy_from_slice(&frame.payload);
                frame.owned = true;
            }
        }
    }

    /// Acknowledges what was handed over or copied, a quarter of the credit at a time.
    pub(super) fn acknowledge(&self, from: u32, source: u32, seq: u64) {
        let mut unacknowledged = self.unacknowledged.borrow_mut();
        let count = &mut unacknowledged[source as usize];
        *count += 1;
        if *count >= (self.open_max as u64 / 4).max(1) {
            *count = 0;
            self.control(from, Frame::BroadcastAck { source, before: seq + 1 });
        }
    }

    /// The children that a source names: its relays in other processes, each once.
    fn children_in(&self, source: u32, payload: &[u8]) -> Result<Vec<u32>, String> {
        let workers = self.received.borrow().len() as u32;
        let children = decode_children(payload, workers)?;
        let fits = |&child: &u32| {
            let rank = self.process.rank_of(child);
            child == self.process.relay_of(rank, source)
                && rank != self.process.rank()
                && rank != self.process.rank_of(source)
        };
        if children.iter().all(fits) {
            Ok(children)
        } else {
            Err(format!("worker {source} names children that it cannot have"))
        }
    }
}

pub(super) fn not_relay(source: u32) -> String {
    format!("this worker is not the relay of worker {source}")
}
