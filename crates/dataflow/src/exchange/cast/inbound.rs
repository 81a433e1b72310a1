//! What comes of a broadcast: frames of other processes, batches of agents, answers.

use bytes::Bytes;
use channel::Header;
use channel::cast::{Breach, Numbered, Relay};

use super::super::Member;
use super::{Cast, Note, Parcel, Relayed, Way};
use crate::error::DataflowError;
use crate::rows::wire::Decoder;
use crate::rows::wire::detach;
use crate::runtime::frame::{Kind, MORE, STUB};
use crate::runtime::handover::Load;
use crate::runtime::net::{Message, Net, REASSEMBLED_BYTES_MAX};

impl Cast {
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
        let broken = |breach: Breach| malformed(breach.to_string());
        let Header { epoch, aux, .. } = message.header;
        let (source, input) = ((epoch >> 32) as u32, epoch as u32);
        let workers = self.heard.borrow().len() as u32;
        // Frames of a source go between its agents, and from those to the workers of their process.
        let agent =
            source < workers && from == self.process.agent(self.process.rank_of(from), source);
        if !agent && message.kind != Kind::Took && message.kind != Kind::Steered {
            return Err(malformed(format!("it passes on what worker {source} gives out")));
        }
        let (mut news, message_kind) = (None, message.kind);
        match message.kind {
            Kind::Cast | Kind::List if (message.kind == Kind::List) == (self.way == Way::Lists) => {
                if self.way == Way::Lists && from != source {
                    return Err(malformed(format!("it sends a list of worker {source}")));
                }
                self.take_in(from, source, input, message).map_err(malformed)?;
                while self.take(member, source, &decoder, &malformed)? {}
                news = Some(source);
            }
            Kind::Copy if from == source && self.way == Way::Copies => {
                self.take_copy(member, from, input, message, decoder).map_err(malformed)?;
                news = Some(source);
            }
            Kind::Handed => {
                let Load::Rows(batch) = message.load else {
                    return Err(malformed("nothing was handed over".into()));
                };
                self.hears(source, message.header.watermark as u64);
                self.acknowledge(from, source, aux);
                member.keep(input as usize, batch, None)?;
                news = Some(source);
            }
            Kind::Took => self.acknowledged(from, source, aux).map_err(malformed)?,
            Kind::Steer => {
                let mut relayed = self.relayed.borrow_mut();
                let relayed = relayed.get_mut(&source).filter(|_| from == source);
                let relayed = relayed.ok_or_else(|| malformed(not_agent(source)))?;
                let children = message.load.bytes();
                let children = self.children_in(source, &children).map_err(malformed)?;
                if relayed.relay.prepare(aux, children) {
                    let header = self.header(Kind::Steered, source, 0, aux);
                    self.notes.borrow_mut().push_back(Note { to: source, header, payload: vec![] });
                }
            }
            Kind::Steered => {
                let changed = self.own.borrow_mut().answered(from, aux).map_err(broken)?;
                if changed {
                    member.net().count(|metrics| &metrics.tree_changes, 1);
                    self.report_switch();
                }
            }
            Kind::Lack | Kind::Had if source == self.worker => {
                self.hear_of_flight(from, message.kind, aux).map_err(malformed)?;
            }
            Kind::Filled if from == source => {
                self.fill(member.net(), source, aux, &message.load.bytes()).map_err(malformed)?;
                while self.take(member, source, &decoder, &malformed)? {}
                news = Some(source);
            }
            kind => return Err(malformed(format!("a frame of kind {kind:?} by this tree"))),
        }
        if message_kind == Kind::Took {
            self.stalled.borrow_mut().remove(&from);
        }
        self.tell_of_flight();
        self.pump(member.net());
        self.leave_slots();
        member.net().stir();
        Ok(news)
    }

    /// Takes frames whose payloads have come by the network, and asks for those that have not.
    /// Gives the workers of whose rows more are here than before.
    ///
    /// # Errors
    /// As [`Cast::receive`].
    pub(in crate::exchange) fn look<'a>(
        &self,
        member: &impl Member,
        decoder: impl Fn(usize) -> Option<&'a Decoder>,
    ) -> Result<Vec<u32>, DataflowError> {
        let awaited = self.awaited();
        let mut news = vec![];
        for &source in &awaited {
            let malformed = |detail| DataflowError::Frame { worker: source, detail };
            let heard = self.heard(source);
            while self.take(member, source, &decoder, &malformed)? {}
            if self.heard(source) != heard {
                news.push(source);
            }
        }
        if !awaited.is_empty() || self.is_crowded() {
            self.tell_of_flight();
            self.pump(member.net());
            self.leave_slots();
        }
        if !news.is_empty() {
            member.net().stir();
        }
        Ok(news)
    }

    /// A batch of a source is here, and with it all of its frames before `upto`. Lists are counted
    /// for each worker.
    fn hears(&self, source: u32, upto: u64) {
        let heard = &mut self.heard.borrow_mut()[source as usize];
        *heard = match self.way {
            Way::Lists => *heard + 1,
            Way::Tree | Way::Copies => upto,
        };
    }

    /// Who was sent frames of a source has passed on those before `upto`.
    fn acknowledged(&self, from: u32, source: u32, upto: u64) -> Result<(), String> {
        let broken = |breach: Breach| breach.to_string();
        if source != self.worker {
            let mut relayed = self.relayed.borrow_mut();
            let relayed = relayed.get_mut(&source).ok_or_else(|| not_agent(source))?;
            return relayed.relay.acknowledged(from, upto).map_err(broken);
        }
        let elsewhere = self.process.rank_of(from) != self.process.rank();
        let upto = match self.way {
            Way::Lists if elsewhere => self.lists.passed(from, upto).map_err(broken)?,
            _ => upto,
        };
        self.own.borrow_mut().relay_mut().acknowledged(from, upto).map_err(broken)
    }

    /// A frame has come to the agent of a source.
    fn take_in(&self, from: u32, source: u32, input: u32, message: Message) -> Result<(), String> {
        let mut relayed = self.relayed.borrow_mut();
        let relayed = relayed.get_mut(&source).ok_or_else(|| not_agent(source))?;
        let Header { flags, aux: seq, watermark, .. } = message.header;
        let more = flags & MORE != 0;
        let (to, payload) = match self.way {
            Way::Lists => self.listed(&message.load.bytes()).map(|(to, rows)| (Some(to), rows))?,
            Way::Tree | Way::Copies => (None, message.load.bytes()),
        };
        let (stub, payload) = match flags & STUB {
            0 => (None, payload),
            _ => (Some(stub_in(&payload)?), Bytes::new()),
        };
        let (upto, batch) = (seq.saturating_add(1), None);
        let frame = Parcel { input, upto, more, stub, payload, owned: false, batch, to };
        let version = watermark as u64;
        let numbered = Numbered { seq, version, frame };
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
        let part = relay.frame_mut(seq).map(|parcel| {
            let Parcel { input, more, payload, to, .. } = parcel;
            (*input, *more, payload.clone(), to.clone())
        });
        let Some((input, more, payload, to)) = part else { return Ok(false) };
        self.pump_first(member.net(), source, relay);
        if !more || self.way == Way::Tree {
            self.hears(source, seq + 1);
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
        let whole = match partial.is_empty() {
            true => payload,
            false => Bytes::from(std::mem::take(partial)),
        };
        let decoder = decoder(input as usize);
        let decoder = decoder.ok_or_else(|| malformed(format!("there is no input {input}")))?;
        let (batch, _) = decoder.decode(whole).map_err(malformed)?;
        // One copy for all workers of the process: what they keep must not hold a slot.
        let batch = detach(&batch);
        if let Some(parcel) = relay.frame_mut(seq) {
            parcel.batch = Some(batch.clone());
        }
        relay.also(seq, &self.locals_of(to.as_ref()));
        drop(relayed);
        if to.is_none_or(|to| to.contains(self.worker)) {
            member.keep(input as usize, batch, None)?;
        }
        Ok(true)
    }

    /// Passes on what was just taken, from the slot where it landed.
    fn pump_first(&self, net: &Net, source: u32, relay: &mut Relay<Parcel>) {
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
            for parcel in relayed.relay.frames_mut().filter(|parcel| !parcel.owned) {
                parcel.payload = Bytes::copy_from_slice(&parcel.payload);
                parcel.owned = true;
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
            let header = self.header(Kind::Took, source, 0, seq + 1);
            self.notes.borrow_mut().push_back(Note { to: from, header, payload: vec![] });
        }
    }

    /// The children that a source names: its agents in other processes, each once.
    fn children_in(&self, source: u32, payload: &[u8]) -> Result<Vec<u32>, String> {
        let (words, rest) = payload.as_chunks::<4>();
        let children: Vec<u32> = words.iter().map(|word| u32::from_le_bytes(*word)).collect();
        let workers = self.heard.borrow().len() as u32;
        let fits = |&child: &u32| {
            let rank = self.process.rank_of(child);
            child < workers
                && child == self.process.agent(rank, source)
                && rank != self.process.rank()
                && rank != self.process.rank_of(source)
        };
        let mut distinct = children.clone();
        distinct.sort_unstable();
        distinct.dedup();
        match rest.is_empty() && children.iter().all(fits) && distinct.len() == children.len() {
            true => Ok(children),
            false => Err(format!("worker {source} names children that it cannot have")),
        }
    }
}

/// The bytes of the payload that a stub stands for.
fn stub_in(payload: &[u8]) -> Result<u32, String> {
    let bytes = <[u8; 4]>::try_from(payload).ok().map(u32::from_le_bytes).filter(|n| *n > 0);
    bytes.ok_or_else(|| "a stub is not one".into())
}

pub(super) fn not_agent(source: u32) -> String {
    format!("this worker is not the agent of worker {source}")
}
