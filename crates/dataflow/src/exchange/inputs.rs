//! The inputs of an operator on one worker: an [`AnyExchange`] for each, and one progress for all.
//!
//! Progress goes straight from worker to worker, on the links by which rows go. Rows that are
//! broadcast take other ways: progress says how many frames it is behind, and the receiver holds it
//! until it has as many.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use arrow::record_batch::RecordBatch;
use channel::Class;
use state::epoch::{Presence, Progress};

use super::acks::Acks;
use super::broadcast::BroadcastPort;
use super::{
    AnyExchange, Arrival, Broadcast, Forward, Member, Merge, Outgoing, Partition, Port,
    RowExchange, Shuffle, Task, progress_of, refused, uppar,
};
use crate::error::DataflowError;
use crate::job::{Distribution, Exchange as Strategy, ShuffleSettings};
use crate::runtime::frame::Frame;
use crate::runtime::net::Message;
use crate::runtime::place::WorkerContext;
use crate::runtime::scheduler::{Event, all};

/// The exchanges of an operator's inputs.
pub(crate) struct Inputs {
    edges: Vec<AnyExchange>,
    /// By input the place of its exchange.
    of_port: Vec<usize>,
    announced: Cell<Progress>,
    acks: Acks,
    /// Acknowledgements that [`Inputs::resume`] still waits for.
    unanswered: Cell<u32>,
    /// The watermark up to which windows have fired anywhere, as far as acknowledged.
    reached: Cell<i64>,
    answered: Event,
    /// Rows have begun to wait.
    buffered: Event,
    /// By worker: its progress behind broadcast frames that have not arrived.
    held: RefCell<Vec<VecDeque<Announced>>>,
}

/// The progress that another worker has announced.
#[derive(Clone, Copy)]
struct Announced {
    progress: Progress,
    resumes: bool,
    broadcast_before: u64,
}

impl Inputs {
    /// Makes `count` inputs whose rows stay on their worker.
    pub(crate) fn local(count: usize, place: &WorkerContext) -> Self {
        Self::of((0..count).map(|_| AnyExchange::Forward(Forward)).collect(), place)
    }

    /// With an exchange for each input.
    pub(crate) fn of(edges: Vec<AnyExchange>, place: &WorkerContext) -> Self {
        let of_port = (0..edges.len()).collect();
        Self::new(edges, of_port, place)
    }

    /// Of inputs of the operator `tag` whose rows travel by themselves. With [`Strategy::Merge`]
    /// all of them are led by keys, and none waits.
    pub(crate) fn of_rows(
        tag: u32,
        ports: Vec<Port>,
        strategy: Strategy,
        place: &WorkerContext,
        shuffle: ShuffleSettings,
    ) -> Self {
        let (worker, workers, stateful) = (place.worker, place.workers, place.stateful());
        if strategy == Strategy::Merge {
            let of_port = vec![0; ports.len()];
            let merge = Merge::of_rows(ports, place);
            return Self::new(vec![AnyExchange::Merge(Box::new(merge))], of_port, place);
        }
        let (mut edges, mut of_port, mut broadcast) = (vec![], vec![0; ports.len()], vec![]);
        for (number, port) in ports.into_iter().enumerate() {
            let partition = match (port.distribution, port.partitioner) {
                _ if port.multi_partitioner.is_some()
                    || port.distribution == Distribution::Broadcast =>
                {
                    broadcast.push((number, port.schema, port.multi_partitioner) as BroadcastPort);
                    continue;
                }
                (Distribution::Local, _) => None,
                (Distribution::RoundRobin, _) => {
                    Some(Partition::in_turn(worker, workers, stateful))
                }
                (Distribution::Partner, _) => {
                    Some(Partition::to_partner(worker, workers, stateful))
                }
                (_, Some(partitioner)) => {
                    Some(Partition::by_function(partitioner, worker, workers, stateful))
                }
                _ if strategy == Strategy::UpPar => Some(uppar(&port.keys, worker, workers)),
                _ => Some(Partition::by_key(&port.keys, worker, workers, stateful)),
            };
            of_port[number] = edges.len();
            edges.push(match partition {
                None => AnyExchange::Forward(Forward),
                Some(partition) => {
                    let exchange = Shuffle::new(number, &port.schema, partition, place, shuffle);
                    let exchange = if port.waits { exchange.with_windows(place) } else { exchange };
                    AnyExchange::Shuffle(Box::new(exchange))
                }
            });
        }
        broadcast.iter().for_each(|(number, ..)| of_port[*number] = edges.len());
        let broadcast = Broadcast::of(tag, broadcast, place, shuffle);
        edges.extend(broadcast.map(|broadcast| AnyExchange::Broadcast(Box::new(broadcast))));
        Self::new(edges, of_port, place)
    }

    fn new(edges: Vec<AnyExchange>, of_port: Vec<usize>, place: &WorkerContext) -> Self {
        Self {
            edges,
            of_port,
            announced: Cell::new(Progress::active(i64::MIN)),
            acks: Acks::new(place.workers),
            unanswered: Cell::new(0),
            reached: Cell::new(i64::MIN),
            answered: Event::default(),
            buffered: Event::default(),
            held: RefCell::new(vec![VecDeque::new(); place.workers as usize]),
        }
    }

    /// Whether nothing comes from other workers.
    pub(crate) fn is_local(&self) -> bool {
        self.edges.iter().all(|edge| matches!(edge, AnyExchange::Forward(_)))
    }

    /// Whether all rows go to one worker.
    pub(super) fn gathers(&self) -> bool {
        self.edges.iter().all(|edge| matches!(edge, AnyExchange::Gather(_)))
    }

    /// Whether rows travel, and not only what is made of them.
    pub(crate) fn sends_rows<M: Member>(&self, member: &M) -> bool {
        self.edges.iter().any(|edge| edge.sends_rows(member))
    }

    /// Bytes of rows and groups that are kept for others, or staged.
    pub(crate) fn bytes<M: Member>(&self, member: &M) -> usize {
        self.edges.iter().map(|edge| edge.bytes(member)).sum()
    }

    fn carry_progress<M: Member>(&self, member: &M) -> bool {
        self.edges.iter().all(|edge| edge.carries_progress(member))
    }

    /// Takes rows of this worker; see [`RowExchange::push`].
    ///
    /// # Errors
    /// As [`RowExchange::push`].
    pub(crate) async fn push<M: Member>(
        &self,
        member: &M,
        rows: Outgoing<'_>,
    ) -> Result<Option<RecordBatch>, DataflowError> {
        let edge = &self.edges[self.of_port[rows.port]];
        let apart = edge.push(member, rows).await?;
        if edge.sends_rows(member) {
            self.buffered.notify();
        }
        Ok(apart)
    }

    /// Whether it is time to announce progress: something may become complete, the worker falls
    /// idle, or much was pushed.
    fn announces<M: Member>(&self, member: &M, watermark: i64, idle: bool) -> bool {
        let announced = self.announced.get();
        idle != (announced.presence == Presence::Idle)
            || self.is_long(member)
            || member.crosses(announced.watermark, watermark)
    }

    /// Whether so much was pushed that it is time to announce progress.
    pub(crate) fn is_long<M: Member>(&self, member: &M) -> bool {
        self.edges.iter().any(|edge| edge.is_long(member))
    }

    /// Announces progress, when it is time. Returns the announcement if other workers may learn of
    /// it; progress of this worker alone is noted at once.
    ///
    /// # Errors
    /// As [`RowExchange::announce`].
    pub(crate) fn progress<'a, M: Member>(
        &'a self,
        member: &'a M,
        watermark: i64,
        idle: bool,
    ) -> Option<Task<'a>> {
        let progress = progress_of(watermark, idle);
        if self.is_local() {
            self.announced.set(progress);
            member.move_clock(member.worker(), progress);
            return None;
        }
        self.announces(member, watermark, idle).then(|| -> Task<'a> {
            Box::pin(async move {
                self.announce(member, progress).await?;
                member.move_clock(member.worker(), progress);
                Ok(())
            })
        })
    }

    /// Sends what waits to be sent together.
    ///
    /// # Errors
    /// As [`RowExchange::flush`].
    pub(crate) async fn flush<M: Member>(&self, member: &M) -> Result<(), DataflowError> {
        for edge in &self.edges {
            edge.flush(member).await?;
        }
        Ok(())
    }

    /// Makes room in the state; see [`RowExchange::relieve`].
    ///
    /// # Errors
    /// As [`RowExchange::relieve`].
    pub(crate) async fn relieve<M: Member>(&self, member: &M) -> Result<(), DataflowError> {
        for edge in &self.edges {
            edge.relieve(member).await?;
        }
        Ok(())
    }

    /// This worker was idle and has rows again. Gives the watermark up to which windows have fired
    /// anywhere: rows before it are late.
    ///
    /// # Errors
    /// As [`RowExchange::resume`].
    pub(crate) async fn resume<M: Member>(&self, member: &M) -> Result<i64, DataflowError> {
        if self.is_local() {
            return Ok(member.least());
        }
        let progress = Progress::active(self.announced.get().watermark);
        self.announced.set(progress);
        for edge in &self.edges {
            if let Some(reached) = edge.resume(member, progress).await? {
                return Ok(reached);
            }
        }
        member.move_clock(member.worker(), progress);
        self.unanswered.set(member.net().peers().count() as u32);
        self.reached.set(member.least());
        self.send_progress(member, progress, true).await;
        let all = || (self.unanswered.get() == 0).then(|| self.reached.get());
        Ok(self.answered.wait_for(all).await)
    }

    /// Sends what waits and ends the stream.
    ///
    /// # Errors
    /// As [`RowExchange::announce`].
    pub(crate) async fn end<M: Member>(
        &self,
        member: &M,
        watermark: i64,
    ) -> Result<(), DataflowError> {
        self.announce(member, Progress::ended(watermark)).await?;
        self.edges.iter().for_each(|edge| edge.end(member));
        if member.net().peers().next().is_none() {
            self.others_ended(member);
        }
        member.move_clock(member.worker(), Progress::ended(watermark));
        Ok(())
    }

    async fn announce<M: Member>(
        &self,
        member: &M,
        progress: Progress,
    ) -> Result<(), DataflowError> {
        self.announced.set(progress);
        for edge in &self.edges {
            edge.announce(member, progress).await?;
        }
        if !self.carry_progress(member) {
            self.send_progress(member, progress, false).await;
        }
        Ok(())
    }

    /// All edges of this worker have marked a round, at this progress: sends what waits, and the
    /// marker behind it.
    ///
    /// # Errors
    /// As [`RowExchange::announce`].
    pub(crate) async fn end_round<M: Member>(
        &self,
        member: &M,
        round: u64,
        progress: Progress,
    ) -> Result<(), DataflowError> {
        let Some(rounds) = &member.instance().rounds else { return Ok(()) };
        self.announced.set(progress);
        for edge in &self.edges {
            edge.announce(member, progress).await?;
        }
        for &to in rounds.to() {
            let broadcast_before = self.sent_before(member, to);
            let frame = Frame::Round { round, progress, broadcast_before };
            member.net().send(to, Class::Data, member.envelope(0, frame)).await;
        }
        member.move_clock(member.worker(), progress);
        rounds.sent(member);
        Ok(())
    }

    fn sent_before<M: Member>(&self, member: &M, to: u32) -> u64 {
        self.edges.iter().map(|edge| edge.sent_before(member, to)).sum()
    }

    /// Sends progress, behind all that was sent so far.
    async fn send_progress<M: Member>(&self, member: &M, progress: Progress, resumes: bool) {
        for to in member.net().peers() {
            let broadcast_before = self.sent_before(member, to);
            let frame = Frame::Progress { progress, resumes, broadcast_before };
            member.net().send(to, Class::Data, member.envelope(0, frame)).await;
        }
    }

    /// Of some groups in this worker's state those that it leads.
    ///
    /// # Errors
    /// As [`RowExchange::led_here`].
    pub(crate) fn led_here<M: Member>(
        &self,
        member: &M,
        groups: state::GroupColumns,
    ) -> Result<state::GroupColumns, DataflowError> {
        self.edges.iter().try_fold(groups, |groups, edge| edge.led_here(member, groups))
    }

    /// The operator has processed rows, and has room for others.
    pub(crate) fn consumed<M: Member>(&self, member: &M, of: Arrival) {
        if of.bytes > 0 {
            self.edges[self.of_port[of.port]].consumed(member, of);
        }
    }

    /// The operator needs no more rows of any input.
    pub(crate) fn satisfied<M: Member>(&self, member: &M) {
        self.edges.iter().for_each(|edge| edge.satisfied(member));
    }

    /// Whether it was reported to this worker that no more of its rows are needed.
    pub(crate) fn is_satisfied<M: Member>(&self, member: &M) -> bool {
        self.edges.iter().all(|edge| edge.is_satisfied(member))
    }

    /// Waits until no other worker needs anything that this one keeps.
    pub(crate) async fn settle<M: Member>(&self, member: &M) {
        for edge in &self.edges {
            edge.settle(member).await;
        }
    }

    /// Gives a frame of another worker to the exchange of its input, or keeps it for the next
    /// round.
    ///
    /// # Errors
    /// When it is malformed, comes behind the end of its sender or in a round that cannot be under
    /// way, or its rows cannot be taken.
    pub(super) fn receive<M: Member>(
        &self,
        member: &M,
        from: u32,
        message: Message,
    ) -> Result<(), DataflowError> {
        let admitted = match &member.instance().rounds {
            Some(rounds) => rounds.take_or_keep(member, from, message)?,
            None => Some(message),
        };
        match admitted {
            Some(message) => self.take(member, from, message),
            None => Ok(()),
        }
    }

    /// Takes a marker of another worker.
    fn mark<M: Member>(
        &self,
        member: &M,
        from: u32,
        round: u64,
        Announced { progress, broadcast_before, .. }: Announced,
    ) -> Result<(), DataflowError> {
        let frame = Frame::Round { round, progress, broadcast_before };
        let Some(rounds) = &member.instance().rounds else { return Err(refused(from, frame)) };
        if !self.carry_progress(member) {
            self.hold(from, Announced { progress, resumes: false, broadcast_before });
            self.release(member, from);
        }
        let received = self.received_before(member, from);
        let marked = rounds.mark_peer(member, from, round, broadcast_before, received);
        marked.map_err(|breach| {
            let detail = format!("{frame:?} is refused: {breach}");
            DataflowError::Frame { worker: from, detail }
        })
    }

    fn received_before<M: Member>(&self, member: &M, from: u32) -> u64 {
        let received = self.edges.iter().map(|edge| edge.received_before(member, from));
        received.min().unwrap_or(u64::MAX)
    }

    fn take<M: Member>(
        &self,
        member: &M,
        from: u32,
        message: Message,
    ) -> Result<(), DataflowError> {
        let malformed = |detail: String| DataflowError::Frame { worker: from, detail };
        let frame = message.envelope.frame;
        if let Some(source) = frame.source(from)
            && source < member.net().size() as u32
            && member.has_ended(source)
        {
            return Err(malformed(format!("{frame:?} comes behind the end of worker {source}")));
        }
        match frame {
            Frame::Progress { progress, resumes, broadcast_before }
                if !self.carry_progress(member) =>
            {
                self.hold(from, Announced { progress, resumes, broadcast_before });
                self.release(member, from);
            }
            Frame::Round { round, progress, broadcast_before } => {
                let resumes = false;
                self.mark(member, from, round, Announced { progress, resumes, broadcast_before })?;
            }
            Frame::ResumeAck { watermark } if self.unanswered.get() > 0 => {
                self.reached.set(self.reached.get().max(watermark));
                self.unanswered.set(self.unanswered.get() - 1);
                self.answered.notify();
            }
            _ => {
                let port = message.envelope.port as usize;
                let edge = self.of_port.get(port).map(|&at| &self.edges[at]);
                let edge = edge.ok_or_else(|| malformed(format!("there is no input {port}")))?;
                if let Some(source) = edge.receive(member, from, message)? {
                    self.release(member, source);
                }
            }
        }
        Ok(())
    }

    /// Takes rows that came without a frame.
    ///
    /// # Errors
    /// When they are malformed or cannot be taken.
    pub(super) fn poll<M: Member>(&self, member: &M) -> Result<(), DataflowError> {
        for edge in &self.edges {
            for source in edge.poll(member)? {
                self.release(member, source);
            }
        }
        Ok(())
    }

    /// Until when another worker must have taken something, if it has been waited for.
    ///
    /// # Errors
    /// [`DataflowError::Stalled`] when that time has come.
    pub(super) fn deadline<M: Member>(
        &self,
        member: &M,
        now_ns: u64,
    ) -> Result<Option<u64>, DataflowError> {
        let mut first = None;
        for edge in &self.edges {
            let deadline = edge.deadline(member, now_ns)?;
            first = first.into_iter().chain(deadline).min();
        }
        Ok(first)
    }

    /// The event that tells that rows have begun to wait to be sent together.
    pub(super) fn buffered(&self) -> &Event {
        &self.buffered
    }

    /// When the first rows have waited long enough (W4).
    pub(super) fn due<M: Member>(&self, member: &M) -> Option<u64> {
        if member.pushes_beside() {
            return None;
        }
        self.edges.iter().filter_map(|edge| edge.due(member)).min()
    }

    /// Sends the rows that have waited long enough. None must be pushed meanwhile.
    ///
    /// # Errors
    /// As [`RowExchange::send_due`].
    pub(super) async fn send_due<M: Member>(
        &self,
        member: &M,
        now_ns: u64,
    ) -> Result<(), DataflowError> {
        for edge in &self.edges {
            edge.send_due(member, now_ns).await?;
        }
        Ok(())
    }

    /// Acknowledges what other workers wait for, until they wait for nothing more.
    pub(super) async fn acknowledge<M: Member>(&self, member: &M) -> Result<(), DataflowError> {
        let mut tasks: Vec<Task<'_>> = vec![];
        if !self.carry_progress(member) {
            tasks.push(Box::pin(async {
                let resumed = |_, watermark| Frame::ResumeAck { watermark };
                self.acks.run(member, 0, resumed).await;
                Ok(())
            }));
        }
        for edge in &self.edges {
            tasks.push(Box::pin(async {
                edge.acknowledge(member).await;
                Ok(())
            }));
        }
        all(tasks).await
    }

    /// Sends what waits for links, and passes on what others send, until all workers have ended.
    pub(super) async fn relay<M: Member>(&self, member: &M) {
        for edge in &self.edges {
            edge.relay(member).await;
        }
    }

    /// Keeps what a worker announced. Of announcements behind the same frames only the last counts,
    /// so that no more are kept than frames may be under way; but all workers hear where one was
    /// before it ended.
    fn hold(&self, from: u32, announced: Announced) {
        let held = &mut self.held.borrow_mut()[from as usize];
        let same = |last: &mut Announced| {
            last.broadcast_before == announced.broadcast_before
                && announced.progress.presence != Presence::Ended
        };
        let replaced = held.pop_back_if(same);
        let resumes = announced.resumes || replaced.is_some_and(|last| last.resumes);
        held.push_back(Announced { resumes, ..announced });
    }

    /// Lets a worker's progress count whose frames have arrived.
    fn release<M: Member>(&self, member: &M, from: u32) {
        let received = self.received_before(member, from);
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
                self.others_ended(member);
                member.net().notify_waiters();
            }
        }
        // Behind the progress of the marker.
        if let Some(rounds) = &member.instance().rounds {
            rounds.received(member, from, received);
        }
    }

    /// No other worker has rows any more: no more acknowledgements will be needed.
    fn others_ended<M: Member>(&self, member: &M) {
        self.acks.close();
        self.edges.iter().for_each(|edge| edge.others_ended(member));
    }
}
