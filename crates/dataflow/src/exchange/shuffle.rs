//! The shuffle exchange (Q): every row goes to the leader of its key. With `uppar` (S13) only half
//! of the workers lead: see [`halves`](crate::job::halves).
//!
//! Rows for one leader are collected until they fill the batching threshold (Q5), the oldest has
//! waited long enough (W4) or the watermark passes a point at which something may become complete.
//! Links and queues are first in first out, so that a watermark arrives after the rows that it
//! speaks of.
//!
//! An operator may have several inputs; rows of each travel on a *port* of their own, with one
//! watermark for all. Rows of a port for every worker go along a tree, and may be overtaken by a
//! watermark that goes straight: it carries how many frames were broadcast before it, and whoever
//! has not seen as many holds it until then.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::Arc;

use arrow::record_batch::RecordBatch;
use channel::Class;
use state::Frequent;
use state::epoch::Progress;

use super::broadcast::Broadcast;
use super::port::{ALL, Port};
use super::{Acks, Arrival, Member, said};
use crate::error::DataflowError;
use crate::job::Lead;
use crate::job::worker_set::WorkerSet;
use crate::rows::wire::detach;
use crate::runtime::frame::{Envelope, Frame};
use crate::runtime::net::Message;
use crate::runtime::place::Place;
use crate::runtime::scheduler::Event;

/// The sending and the receiving side of a shuffle on one worker.
pub(crate) struct Shuffle {
    ports: Vec<Port>,
    announced: Cell<(i64, bool)>,
    acks: Acks,
    /// Acks that [`Shuffle::resume`] still waits for.
    unanswered: Cell<u32>,
    reached: Cell<i64>,
    answered: Event,
    /// Rows have begun to wait.
    began: Event,
    /// What is for every worker, if a port has such rows.
    broadcast: Option<Box<Broadcast>>,
    /// By worker: its progress behind broadcast frames that are not here yet.
    held: RefCell<Vec<VecDeque<Announced>>>,
}

/// The progress that another worker has announced.
#[derive(Clone, Copy)]
struct Announced {
    progress: Progress,
    resumes: bool,
    broadcast_before: u64,
}

impl Shuffle {
    pub(crate) fn new(ports: Vec<Port>, workers: u32) -> Self {
        Self {
            ports,
            announced: Cell::new((i64::MIN, false)),
            acks: Acks::new(workers),
            unanswered: Cell::new(0),
            reached: Cell::new(i64::MIN),
            answered: Event::default(),
            began: Event::default(),
            broadcast: None,
            held: RefCell::new(vec![VecDeque::new(); workers as usize]),
        }
    }

    /// The same, of the operator `tag`: with what its ports for every worker need, if there are
    /// any.
    pub(crate) fn broadcasting(self, tag: u32, place: &Place) -> Self {
        for port in &self.ports {
            port.turn.set(place.worker);
        }
        let lists = self.ports.iter().any(|port| port.spread.is_some());
        let broadcasts = |port: &Port| port.spread.is_some() || port.lead == Lead::ToAll;
        let first = self.ports.iter().position(broadcasts);
        let broadcast = first.map(|port| Broadcast::new(tag, port as u32, place, lists));
        Self { broadcast: broadcast.map(Box::new), ..self }
    }

    /// Sends what is for every worker, until there can be nothing more.
    pub(crate) async fn broadcast(&self, member: &impl Member) {
        if let Some(broadcast) = &self.broadcast {
            broadcast.run(member.net(), || member.others_have_ended()).await;
        }
    }

    /// Until when another worker must have taken something, if it has been waited for.
    ///
    /// # Errors
    /// [`DataflowError::Stalled`] when that time has come.
    pub(crate) fn deadline(&self, now_ns: u64) -> Result<Option<u64>, DataflowError> {
        self.broadcast.as_ref().map_or(Ok(None), |broadcast| broadcast.deadline(now_ns))
    }

    /// Acknowledges the return of workers that were idle, until all have ended.
    pub(crate) async fn acknowledge(&self, member: &impl Member) {
        self.acks.run(member, 0, |_, watermark| Frame::ResumeAck { watermark }).await;
    }

    /// Takes the rows that this worker leads and passes the others on; those of one `slice` at
    /// once, behind what waits. Gives the others that `frequent` tells, where rows are led by key.
    ///
    /// # Errors
    /// When a key cannot be hashed or a column cannot travel.
    pub(crate) async fn push(
        &self,
        member: &impl Member,
        input: usize,
        batch: &RecordBatch,
        slice: Option<i64>,
        frequent: Option<&RefCell<Frequent>>,
    ) -> Result<Option<RecordBatch>, DataflowError> {
        let port = &self.ports[input];
        if let Some(spread) = &port.spread {
            for set in port.list(spread.as_ref(), batch)? {
                self.broadcast_listed(member, input, &set).await?;
            }
            self.began.notify();
            return Ok(None);
        }
        match port.lead {
            Lead::Here => {
                let arrival = Arrival { slice, ..Arrival::local(member, input) };
                member.keep(arrival, batch.clone())?;
                return Ok(None);
            }
            Lead::ToAll => {
                port.put(ALL, detach(batch));
                if port.is_full_for(ALL) {
                    self.broadcast_buffered(member, input).await?;
                }
                self.began.notify();
                return Ok(None);
            }
            Lead::ByKey | Lead::InTurn => {}
        }
        let mut apart = None;
        for (owner, part) in port.split(batch, frequent)? {
            match slice {
                _ if owner == port.workers => apart = Some(part),
                _ if owner == member.worker() => {
                    member.keep(Arrival { slice, ..Arrival::local(member, input) }, part)?;
                }
                None => port.put(owner as usize, part),
                Some(_) => {
                    self.send_buffered(member, input, owner).await?;
                    let envelope = member.envelope(input as u32, Frame::Rows { slice });
                    member.net().send_rows(owner, envelope, &port.encoder, &part).await?;
                }
            }
        }
        for to in member.net().peers() {
            if port.is_full_for(to as usize) {
                self.send_buffered(member, input, to).await?;
            }
        }
        self.began.notify();
        Ok(apart)
    }

    /// Whether it is time to tell the leaders how far this worker is: something may become
    /// complete, or it falls idle.
    pub(crate) fn announces(&self, member: &impl Member, watermark: i64, idle: bool) -> bool {
        let (announced, was_idle) = self.announced.get();
        idle != was_idle || member.crosses(announced, watermark)
    }

    /// Tells the leaders, when it is time.
    ///
    /// # Errors
    /// When a column cannot travel.
    pub(crate) async fn progress(
        &self,
        member: &impl Member,
        watermark: i64,
        idle: bool,
    ) -> Result<(), DataflowError> {
        if !self.announces(member, watermark, idle) {
            return Ok(());
        }
        self.announced.set((watermark, idle));
        self.announce(member, said(watermark, idle)).await?;
        member.move_clock(member.worker(), said(watermark, idle));
        Ok(())
    }

    /// Sends what waits.
    ///
    /// # Errors
    /// When a column cannot travel.
    pub(crate) async fn share(&self, member: &impl Member) -> Result<(), DataflowError> {
        for to in member.net().peers() {
            for input in 0..self.ports.len() {
                self.send_buffered(member, input, to).await?;
            }
        }
        Ok(())
    }

    /// Waits until rows wait; gives the time at which the first of them have done so for long
    /// enough (W4).
    pub(crate) async fn due_ns(&self) -> u64 {
        self.began.wait_for(|| self.ports.iter().filter_map(Port::first_due_ns).min()).await
    }

    /// Sends the rows that have waited long enough. None must be pushed meanwhile.
    ///
    /// # Errors
    /// When a column cannot travel.
    pub(crate) async fn send_due(
        &self,
        member: &impl Member,
        now_ns: u64,
    ) -> Result<(), DataflowError> {
        for (input, port) in self.ports.iter().enumerate() {
            let (places, sets) = port.due(now_ns);
            for to in places {
                match port.lead {
                    Lead::ToAll => self.broadcast_buffered(member, input).await?,
                    _ => self.send_buffered(member, input, to as u32).await?,
                }
            }
            for set in sets {
                self.broadcast_listed(member, input, &set).await?;
            }
        }
        Ok(())
    }

    /// Asks every leader how far it has fired.
    pub(crate) async fn resume(&self, member: &impl Member) -> i64 {
        let watermark = self.announced.get().0;
        self.announced.set((watermark, false));
        let progress = Progress::active(watermark);
        member.move_clock(member.worker(), progress);
        let peers: Vec<u32> = member.net().peers().collect();
        self.unanswered.set(peers.len() as u32);
        self.reached.set(member.least());
        for to in peers {
            self.send_progress(member, to, progress, true).await;
        }
        self.answered.wait_for(|| (self.unanswered.get() == 0).then(|| self.reached.get())).await
    }

    /// Sends what waits and ends the stream.
    ///
    /// # Errors
    /// When a column cannot travel.
    pub(crate) async fn end(
        &self,
        member: &impl Member,
        watermark: i64,
    ) -> Result<(), DataflowError> {
        self.announce(member, Progress::ended(watermark)).await?;
        if let Some(broadcast) = &self.broadcast {
            broadcast.end();
            member.net().stir();
        }
        if member.net().peers().next().is_none() {
            self.acks.close();
        }
        Ok(())
    }

    /// Takes a frame of another worker.
    ///
    /// # Errors
    /// When it is malformed or its rows cannot be taken.
    pub(crate) fn receive(
        &self,
        member: &impl Member,
        from: u32,
        message: Message,
    ) -> Result<(), DataflowError> {
        let malformed = |detail: String| DataflowError::Frame { worker: from, detail };
        let Envelope { port: input, colour, frame, .. } = message.envelope;
        match frame {
            Frame::Rows { slice } => {
                let input = input as usize;
                let Some(port) = self.ports.get(input) else {
                    return Err(malformed(format!("there is no input {input}")));
                };
                let (batch, own) = message.load.rows(&port.decoder).map_err(malformed)?;
                let arrival = Arrival { port: input, source: from, colour, slice };
                match own {
                    true => member.keep(arrival, batch)?,
                    false => member.take(arrival, batch)?,
                }
            }
            Frame::Groups => member.take_groups(from, &message.load.bytes())?,
            Frame::ResumeAck { watermark } => {
                self.reached.set(self.reached.get().max(watermark));
                self.unanswered.set(self.unanswered.get().saturating_sub(1));
                self.answered.notify();
            }
            Frame::Progress { progress, resumes, broadcast_before } => {
                self.hold(from, Announced { progress, resumes, broadcast_before });
                self.release(member, from);
            }
            frame => {
                let Some(broadcast) = &self.broadcast else {
                    return Err(malformed(format!("{frame:?} does not belong to the exchange")));
                };
                let decoder = |input: usize| self.ports.get(input).map(|port| &port.decoder);
                if let Some(source) = broadcast.receive(member, from, message, decoder)? {
                    self.release(member, source);
                }
            }
        }
        Ok(())
    }

    /// Takes rows for every worker that have come by the network's own multicast.
    ///
    /// # Errors
    /// When they are malformed or cannot be taken.
    pub(crate) fn look(&self, member: &impl Member) -> Result<(), DataflowError> {
        let Some(broadcast) = &self.broadcast else { return Ok(()) };
        let decoder = |input: usize| self.ports.get(input).map(|port| &port.decoder);
        broadcast
            .look(member, decoder)?
            .into_iter()
            .for_each(|source| self.release(member, source));
        Ok(())
    }

    /// Keeps what a worker announced. Of announcements behind the same frames only the last counts,
    /// so that no more are kept than frames may be under way.
    fn hold(&self, from: u32, announced: Announced) {
        let held = &mut self.held.borrow_mut()[from as usize];
        let same = |last: &mut Announced| last.broadcast_before == announced.broadcast_before;
        let replaced = held.pop_back_if(same);
        let resumes = announced.resumes || replaced.is_some_and(|last| last.resumes);
        held.push_back(Announced { resumes, ..announced });
    }

    /// Lets a worker's progress count whose frames are here.
    fn release(&self, member: &impl Member, from: u32) {
        let received = self.broadcast.as_ref().map_or(u64::MAX, |b| b.received(from));
        let next = || {
            let held = &mut self.held.borrow_mut()[from as usize];
            held.pop_front_if(|announced| announced.broadcast_before <= received)
        };
        while let Some(announced) = next() {
            member.move_clock(from, announced.progress);
            if announced.resumes {
                self.acks.add(from, 0);
            }
            if member.others_have_ended() {
                self.acks.close();
                member.net().stir();
            }
        }
    }

    async fn announce(
        &self,
        member: &impl Member,
        progress: Progress,
    ) -> Result<(), DataflowError> {
        for (input, port) in self.ports.iter().enumerate() {
            self.broadcast_buffered(member, input).await?;
            for set in port.sets() {
                self.broadcast_listed(member, input, &set).await?;
            }
        }
        for to in member.net().peers() {
            for input in 0..self.ports.len() {
                self.send_buffered(member, input, to).await?;
            }
            self.send_progress(member, to, progress, false).await;
        }
        Ok(())
    }

    /// Sends progress, behind all that was broadcast so far and `to` gets.
    async fn send_progress(
        &self,
        member: &impl Member,
        to: u32,
        progress: Progress,
        resumes: bool,
    ) {
        let broadcast_before = self.broadcast.as_ref().map_or(0, |b| b.given_to(to));
        let frame = Frame::Progress { progress, resumes, broadcast_before };
        member.net().send(to, Class::Data, member.envelope(0, frame)).await;
    }

    /// Gives out what waits for every worker.
    async fn broadcast_buffered(
        &self,
        member: &impl Member,
        input: usize,
    ) -> Result<(), DataflowError> {
        let (Some(broadcast), port) = (&self.broadcast, &self.ports[input]) else { return Ok(()) };
        if port.lead != Lead::ToAll {
            return Ok(());
        }
        let Some(batch) = port.take(ALL)? else { return Ok(()) };
        // Beside rows for some workers there is no tree.
        let all = self.ports.iter().any(|port| port.spread.is_some());
        let all = all.then(|| Arc::new(WorkerSet::all(0..port.workers)));
        broadcast.push(member, input, &port.encoder, batch, all.as_ref()).await
    }

    /// Gives out what waits for some workers.
    async fn broadcast_listed(
        &self,
        member: &impl Member,
        input: usize,
        to: &Arc<WorkerSet>,
    ) -> Result<(), DataflowError> {
        let (Some(broadcast), port) = (&self.broadcast, &self.ports[input]) else { return Ok(()) };
        let Some(batch) = port.take_listed(to)? else { return Ok(()) };
        broadcast.push(member, input, &port.encoder, batch, Some(to)).await
    }

    async fn send_buffered(
        &self,
        member: &impl Member,
        input: usize,
        to: u32,
    ) -> Result<(), DataflowError> {
        let port = &self.ports[input];
        if port.lead == Lead::ToAll {
            return Ok(());
        }
        let Some(batch) = port.take(to as usize)? else { return Ok(()) };
        let envelope = member.envelope(input as u32, Frame::Rows { slice: None });
        member.net().send_rows(to, envelope, &port.encoder, &batch).await
    }
}
