//! The shuffle exchange (Q): every row goes to the leader of its key. With `uppar` (S13) only half
//! of the workers lead: see [`halves`](crate::job::halves).
//!
//! Rows for one leader are collected until they fill the batching threshold (Q5), the oldest has
//! waited long enough (W4) or the watermark passes a point at which something may become complete.
//! Links and queues are first in first out, so that a watermark arrives after the rows that it
//! speaks of.
//!
//! An operator may have several inputs; rows of each travel on a *lane* of their own, with one
//! watermark for all. Rows of a lane for every worker go along a tree, and may be overtaken by a
//! watermark that goes straight: it carries how many frames were broadcast before it, and whoever
//! has not seen as many holds it until then.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::Arc;

use arrow::record_batch::RecordBatch;
use channel::{Class, Header};
use state::Frequent;
use state::epoch::Progress;

use super::cast::Cast;
use super::lane::{ALL, Lane};
use super::{Answers, Member, said};
use crate::error::DataflowError;
use crate::job::Lead;
use crate::job::worker_set::WorkerSet;
use crate::rows::wire::detach;
use crate::runtime::frame::{KEYED, Kind, RESUME, flags_of, said_in};
use crate::runtime::net::Message;
use crate::runtime::place::Place;
use crate::runtime::scheduler::Event;

/// The sending and the receiving side of a shuffle on one worker.
pub(crate) struct Shuffle {
    lanes: Vec<Lane>,
    announced: Cell<(i64, bool)>,
    answers: Answers,
    /// Answers that [`Shuffle::resume`] still waits for.
    unanswered: Cell<u32>,
    reached: Cell<i64>,
    answered: Event,
    /// Rows have begun to wait.
    began: Event,
    /// What is for every worker, if a lane has such rows.
    cast: Option<Box<Cast>>,
    /// By worker: what it said of its progress, behind broadcast frames that are not here yet.
    held: RefCell<Vec<VecDeque<Header>>>,
}

impl Shuffle {
    pub(crate) fn new(lanes: Vec<Lane>, workers: u32) -> Self {
        Self {
            lanes,
            announced: Cell::new((i64::MIN, false)),
            answers: Answers::new(workers),
            unanswered: Cell::new(0),
            reached: Cell::new(i64::MIN),
            answered: Event::default(),
            began: Event::default(),
            cast: None,
            held: RefCell::new(vec![VecDeque::new(); workers as usize]),
        }
    }

    /// The same, of the operator `tag`: with what its lanes for every worker need, if there are
    /// any.
    pub(crate) fn casting(self, tag: u32, place: &Place) -> Self {
        for lane in &self.lanes {
            lane.turn.set(place.worker);
        }
        let lists = self.lanes.iter().any(|lane| lane.spread.is_some());
        let casts = lists || self.lanes.iter().any(|lane| lane.lead == Lead::ToAll);
        Self { cast: casts.then(|| Box::new(Cast::new(tag, place, lists))), ..self }
    }

    /// Sends what is for every worker, until there can be nothing more.
    pub(crate) async fn broadcast(&self, member: &impl Member) {
        if let Some(cast) = &self.cast {
            cast.run(member.net(), || member.others_have_ended()).await;
        }
    }

    /// Until when another worker must have taken something, if it has been waited for.
    ///
    /// # Errors
    /// [`DataflowError::Stalled`] when that time has come.
    pub(crate) fn deadline(&self, now_ns: u64) -> Result<Option<u64>, DataflowError> {
        self.cast.as_ref().map_or(Ok(None), |cast| cast.deadline(now_ns))
    }

    pub(crate) fn answers(&self) -> &Answers {
        &self.answers
    }

    /// Takes the rows that this worker leads and passes the others on; those of `key` at once
    /// behind what waits, with the key. Gives the others that `frequent` tells, where rows are led
    /// by key.
    ///
    /// # Errors
    /// When a key cannot be hashed or a column cannot travel.
    pub(crate) async fn push(
        &self,
        member: &impl Member,
        input: usize,
        batch: &RecordBatch,
        key: Option<i64>,
        frequent: Option<&RefCell<Frequent>>,
    ) -> Result<Option<RecordBatch>, DataflowError> {
        let lane = &self.lanes[input];
        if let Some(spread) = &lane.spread {
            for set in lane.list(spread.as_ref(), batch)? {
                self.cast_listed(member, input, &set).await?;
            }
            self.began.notify();
            return Ok(None);
        }
        match lane.lead {
            Lead::Here => {
                member.keep(input, batch.clone(), key)?;
                return Ok(None);
            }
            Lead::ToAll => {
                lane.put(ALL, detach(batch));
                if lane.is_full_for(ALL) {
                    self.cast_waiting(member, input).await?;
                }
                self.began.notify();
                return Ok(None);
            }
            Lead::ByKey | Lead::InTurn => {}
        }
        let mut apart = None;
        for (owner, part) in lane.split(batch, frequent)? {
            match key {
                _ if owner == lane.workers => apart = Some(part),
                _ if owner == member.worker() => member.keep(input, part, key)?,
                None => lane.put(owner as usize, part),
                Some(key) => {
                    self.send_waiting(member, input, owner).await?;
                    let header = Header {
                        epoch: input as u64,
                        aux: key as u64,
                        ..header(member, Kind::Rows, 0, KEYED)
                    };
                    member.net().send_rows(owner, header, &lane.encoder, &part).await?;
                }
            }
        }
        for to in member.net().peers() {
            if lane.is_full_for(to as usize) {
                self.send_waiting(member, input, to).await?;
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
            for input in 0..self.lanes.len() {
                self.send_waiting(member, input, to).await?;
            }
        }
        Ok(())
    }

    /// Waits until rows wait; gives the time at which the first of them have done so for long
    /// enough (W4).
    pub(crate) async fn due_ns(&self) -> u64 {
        self.began.wait_for(|| self.lanes.iter().filter_map(Lane::first_due_ns).min()).await
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
        for (input, lane) in self.lanes.iter().enumerate() {
            let (places, sets) = lane.due(now_ns);
            for to in places {
                match lane.lead {
                    Lead::ToAll => self.cast_waiting(member, input).await?,
                    _ => self.send_waiting(member, input, to as u32).await?,
                }
            }
            for set in sets {
                self.cast_listed(member, input, &set).await?;
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
            let flags = flags_of(progress) | RESUME;
            let header = self.progress_header(member, to, watermark, flags);
            member.net().send(to, Class::Data, header).await;
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
        if let Some(cast) = &self.cast {
            cast.end();
            member.net().stir();
        }
        if member.net().peers().next().is_none() {
            self.answers.close();
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
        let header = message.header;
        match message.kind {
            Kind::Rows => {
                let malformed = |detail: String| DataflowError::Frame { worker: from, detail };
                let input = header.epoch as usize;
                let Some(lane) = self.lanes.get(input) else {
                    return Err(malformed(format!("there is no input {input}")));
                };
                let (batch, own) = message.load.rows(&lane.decoder).map_err(malformed)?;
                let key = (header.flags & KEYED != 0).then_some(header.aux as i64);
                match own {
                    true => member.keep(input, batch, key)?,
                    false => member.take(input, batch, key)?,
                }
            }
            Kind::Ack => {
                self.reached.set(self.reached.get().max(header.watermark));
                self.unanswered.set(self.unanswered.get().saturating_sub(1));
                self.answered.notify();
            }
            kind if kind.is_of_broadcast() => {
                let Some(cast) = &self.cast else {
                    let detail = "nothing is broadcast to this operator".into();
                    return Err(DataflowError::Frame { worker: from, detail });
                };
                let decoder = |input: usize| self.lanes.get(input).map(|lane| &lane.decoder);
                if let Some(source) = cast.receive(member, from, message, decoder)? {
                    self.release(member, source);
                }
            }
            _ => {
                self.hold(from, header);
                self.release(member, from);
            }
        }
        Ok(())
    }

    /// Takes rows for every worker that have come by the network's own multicast.
    ///
    /// # Errors
    /// When they are malformed or cannot be taken.
    pub(crate) fn look(&self, member: &impl Member) -> Result<(), DataflowError> {
        let Some(cast) = &self.cast else { return Ok(()) };
        let decoder = |input: usize| self.lanes.get(input).map(|lane| &lane.decoder);
        cast.look(member, decoder)?.into_iter().for_each(|source| self.release(member, source));
        Ok(())
    }

    /// Keeps what a worker said of its progress. Of what was said behind the same frames only the
    /// last counts, so that no more is kept than frames may be under way.
    fn hold(&self, from: u32, header: Header) {
        let held = &mut self.held.borrow_mut()[from as usize];
        let asks = match held.back().is_some_and(|last| last.aux == header.aux) {
            true => held.pop_back().map_or(0, |last| last.flags & RESUME),
            false => 0,
        };
        held.push_back(Header { flags: header.flags | asks, ..header });
    }

    /// Lets a worker's progress count whose frames are here.
    fn release(&self, member: &impl Member, from: u32) {
        let heard = self.cast.as_ref().map_or(u64::MAX, |cast| cast.heard(from));
        let next = || {
            let held = &mut self.held.borrow_mut()[from as usize];
            held.pop_front_if(|header| header.aux <= heard)
        };
        while let Some(header) = next() {
            member.move_clock(from, said_in(&header));
            if header.flags & RESUME != 0 {
                self.answers.owe(from, 0);
            }
            if member.others_have_ended() {
                self.answers.close();
                member.net().stir();
            }
        }
    }

    async fn announce(&self, member: &impl Member, said: Progress) -> Result<(), DataflowError> {
        for (input, lane) in self.lanes.iter().enumerate() {
            self.cast_waiting(member, input).await?;
            for set in lane.sets() {
                self.cast_listed(member, input, &set).await?;
            }
        }
        for to in member.net().peers() {
            for input in 0..self.lanes.len() {
                self.send_waiting(member, input, to).await?;
            }
            let header = self.progress_header(member, to, said.watermark, flags_of(said));
            member.net().send(to, Class::Data, header).await;
        }
        Ok(())
    }

    /// Progress behind all that was broadcast so far and `to` gets.
    fn progress_header(&self, member: &impl Member, to: u32, watermark: i64, flags: u8) -> Header {
        let aux = self.cast.as_ref().map_or(0, |cast| cast.given_to(to));
        Header { aux, ..header(member, Kind::Progress, watermark, flags) }
    }

    /// Gives out what waits for every worker.
    async fn cast_waiting(&self, member: &impl Member, input: usize) -> Result<(), DataflowError> {
        let (Some(cast), lane) = (&self.cast, &self.lanes[input]) else { return Ok(()) };
        if lane.lead != Lead::ToAll {
            return Ok(());
        }
        let Some(batch) = lane.take(ALL)? else { return Ok(()) };
        // Beside rows for some workers there is no tree.
        let all = self.lanes.iter().any(|lane| lane.spread.is_some());
        let all = all.then(|| Arc::new(WorkerSet::all(0..lane.workers)));
        cast.push(member, input, &lane.encoder, batch, all.as_ref()).await
    }

    /// Gives out what waits for some workers.
    async fn cast_listed(
        &self,
        member: &impl Member,
        input: usize,
        to: &Arc<WorkerSet>,
    ) -> Result<(), DataflowError> {
        let (Some(cast), lane) = (&self.cast, &self.lanes[input]) else { return Ok(()) };
        let Some(batch) = lane.take_listed(to)? else { return Ok(()) };
        cast.push(member, input, &lane.encoder, batch, Some(to)).await
    }

    async fn send_waiting(
        &self,
        member: &impl Member,
        input: usize,
        to: u32,
    ) -> Result<(), DataflowError> {
        let lane = &self.lanes[input];
        if lane.lead == Lead::ToAll {
            return Ok(());
        }
        let Some(batch) = lane.take(to as usize)? else { return Ok(()) };
        let header = Header { epoch: input as u64, ..header(member, Kind::Rows, 0, 0) };
        member.net().send_rows(to, header, &lane.encoder, &batch).await
    }
}

fn header(member: &impl Member, kind: Kind, watermark: i64, flags: u8) -> Header {
    Header { kind: kind as u8, tag: member.tag(), watermark, flags, ..Header::default() }
}
