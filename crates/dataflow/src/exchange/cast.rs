//! The broadcast: rows for every worker are encoded once and sent once to each process (W1).
//!
//! In each process one worker, the source's *agent*, takes the frames of a source, passes them on
//! along the tree ([`channel::cast`]), and hands the decoded batch to the other workers of its
//! process by reference: they are children beside the tree. What stays in state is copied out of
//! the slot once for all of them.
//!
//! ```text
//!  process 0          process 1              process 2
//!  source ─ frame ──▶ agent ──── frame ────▶ agent
//!    │ batch            │ batch                │ batch      by reference
//!    ▼                  ▼                      ▼
//!  workers            workers                workers
//! ```
//!
//! Nothing here waits in order to receive. A frame that a child has no room for is copied out of
//! its slot and kept, and the parent has credit for so many; so trees of several sources over the
//! same rings do not block each other, and what is kept has a bound: for each source that a worker
//! is the agent of, as many as the ring has slots, and for a while after a change of the tree as
//! many of the parent before.
//!
//! Rows for some workers go without a tree (`lists`): straight to each process that has one of
//! them, with a list of them in front.
//!
//! Without a tree ([`TreeChoice::Copies`]) the source encodes rows anew for each worker of another
//! process and sends them there itself: what W1 is measured against.

mod copies;
mod flight;
mod inbound;
mod lists;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use arrow::record_batch::RecordBatch;
use bytes::Bytes;
use channel::cast::{
    Advice, Landing, Monitor, Numbered, Relay, Shape, Source, Steer, Thresholds, Tree, degree_max,
};
use channel::{Class, Header};
use fabric::Clock;

use self::flight::Launches;
use self::lists::Lists;
use super::Member;
use crate::error::DataflowError;
use crate::job::worker_set::WorkerSet;
use crate::job::{Multicast, TreeChoice};
use crate::rows::wire::Encoder;
use crate::runtime::frame::{Kind, MORE, STUB};
use crate::runtime::net::Net;
use crate::runtime::place::Place;
use crate::runtime::process::Process;
use crate::runtime::scheduler::Event;

/// A change of the tree that is not answered after this is given up: the old tree stays.
const CHANGE_NS_MAX: u64 = 1_000_000_000;

/// What goes along the tree: a part of a batch, or all of it.
struct Parcel {
    input: u32,
    /// Whoever has this has all frames of the source before that one.
    upto: u64,
    /// The payload goes on in the next frame.
    more: bool,
    /// Bytes of a payload that goes by the network, if it does; a stub goes along the tree.
    stub: Option<u32>,
    /// Empty for a stub whose payload is not here.
    payload: Bytes,
    /// Whether the payload is in memory of its own, and not in a slot.
    owned: bool,
    /// The rows, for workers of this process; with the last part alone.
    batch: Option<RecordBatch>,
    /// For whom it is, if not for all.
    to: Option<Arc<WorkerSet>>,
}

/// A source of another process, of which this worker is the agent.
struct Relayed {
    relay: Relay<Parcel>,
    /// The parts of a payload that is not whole yet.
    partial: Vec<u8>,
    /// Payloads of stubs.
    landing: Landing,
}

/// How rows go to other processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Along a tree.
    Tree,
    /// A copy for each worker.
    Copies,
    /// Straight to each process, with a list of the workers that they are for.
    Lists,
}

/// A small frame that waits for a slot.
struct Note {
    to: u32,
    header: Header,
    payload: Vec<u8>,
}

/// The broadcasts of an operator on one worker: its own, and those that it passes on.
pub(super) struct Cast {
    tag: u32,
    worker: u32,
    process: Arc<Process>,
    ranks: u32,
    clock: Arc<dyn Clock>,
    queue_frames: usize,
    stall_ns: u64,
    open_max: usize,
    own: RefCell<Source<Parcel>>,
    way: Way,
    lists: Lists,
    launches: RefCell<Launches>,
    /// By source: the parts of a copy that is not whole yet.
    partial: RefCell<BTreeMap<u32, Vec<u8>>>,
    adapts: bool,
    monitor: RefCell<Monitor>,
    changing_since: Cell<u64>,
    /// By source: what this worker passes on as its agent.
    relayed: RefCell<BTreeMap<u32, Relayed>>,
    /// By worker: one past the last of its frames that is known here.
    heard: RefCell<Vec<u64>>,
    /// By worker: frames taken from its agent, or it, by reference and not acknowledged.
    unacknowledged: RefCell<Vec<u64>>,
    notes: RefCell<VecDeque<Note>>,
    /// The own queue has room again.
    room: Event,
    /// Since when who has taken nothing, of those for whom something waits. The one at fault is the
    /// first: those before it in a tree are held back by it, and later.
    stalled: RefCell<BTreeMap<u32, u64>>,
    ended: Cell<bool>,
}

impl Cast {
    /// With `lists`, rows may be for some workers and not for all.
    pub(super) fn new(tag: u32, place: &Place, lists: bool) -> Self {
        let Place { worker, workers, settings, process, clock, .. } = place;
        let (worker, ranks) = (*worker, workers / process.workers().len() as u32);
        let casting = &settings.casting;
        // Less credit than a ring has slots would leave some of them empty.
        let open_max = settings.ring.slots as usize;
        let (shape, adapts) = match casting.tree {
            TreeChoice::Adaptive => (Shape::Capped(degree_max(ranks - 1)), true),
            TreeChoice::Fixed(shape) => (shape, false),
            TreeChoice::Copies => (Shape::Sequential, false),
        };
        let way = match casting.tree {
            _ if lists => Way::Lists,
            TreeChoice::Copies => Way::Copies,
            _ => Way::Tree,
        };
        let members = if way == Way::Tree { ranks } else { 1 };
        let tree_of = |rank: u32| {
            let racks: Vec<u32> = around(rank, ranks)
                .take(members as usize)
                .filter_map(|rank| casting.racks.get(rank as usize).copied())
                .collect();
            let racks = if racks.len() == members as usize { racks } else { vec![] };
            Tree::racked(shape, members - 1, &racks)
        };
        let addresses = |source: u32| -> Vec<u32> {
            let ranks = around(process.rank_of(source), ranks).take(members as usize);
            ranks.map(|rank| process.agent(rank, source)).collect()
        };
        let agents = addresses(worker);
        let by_network = if way == Way::Tree { casting.multicast } else { Multicast::Tree };
        let launches = Launches::new(by_network, &agents[1..], open_max);
        let own = Source::new(tree_of(process.rank()), agents, open_max);
        let others = (0..ranks).filter(|&rank| rank != process.rank() && way != Way::Copies);
        let relayed = others.map(|rank| {
            let source = process.agent(rank, worker);
            let member = (process.rank() + ranks - rank) % ranks;
            let children = match way {
                Way::Tree => {
                    Source::<Parcel>::first_children(&tree_of(rank), &addresses(source), member)
                }
                Way::Copies | Way::Lists => vec![],
            };
            (source, Relayed::new(children, open_max))
        });
        let thresholds = Thresholds::of_queue(casting.queue_frames);
        Self {
            tag,
            worker,
            process: process.clone(),
            ranks,
            clock: clock.clone(),
            queue_frames: casting.queue_frames.max(1) as usize,
            stall_ns: casting.stall_ns,
            open_max,
            own: RefCell::new(own),
            way,
            lists: Lists::of(*workers),
            launches: RefCell::new(launches),
            partial: RefCell::default(),
            adapts: adapts && way == Way::Tree,
            monitor: RefCell::new(Monitor::new(thresholds, ranks - 1, clock.now_ns())),
            changing_since: Cell::new(0),
            relayed: RefCell::new(relayed.collect()),
            heard: RefCell::new(vec![0; *workers as usize]),
            unacknowledged: RefCell::new(vec![0; *workers as usize]),
            notes: RefCell::default(),
            room: Event::default(),
            stalled: RefCell::default(),
            ended: Cell::new(false),
        }
    }

    /// Frames of this worker that `to` gets, of those that were given out.
    pub(super) fn given_to(&self, to: u32) -> u64 {
        match self.way {
            Way::Lists => self.lists.given_to(to),
            Way::Tree | Way::Copies => self.given_out(),
        }
    }

    fn given_out(&self) -> u64 {
        self.own.borrow().relay().next()
    }

    /// Frames of a worker that are here.
    pub(super) fn heard(&self, worker: u32) -> u64 {
        self.heard.borrow()[worker as usize]
    }

    /// Gives rows, in memory of their own, to every worker, or to those of `to`. Waits while the
    /// queue is full.
    ///
    /// # Errors
    /// When the rows cannot be taken here, or a column cannot travel.
    pub(super) async fn push(
        &self,
        member: &impl Member,
        input: usize,
        encoder: &RefCell<Encoder>,
        batch: RecordBatch,
        to: Option<&Arc<WorkerSet>>,
    ) -> Result<(), DataflowError> {
        if to.is_none_or(|to| to.contains(self.worker)) {
            member.keep(input, batch.clone(), None)?;
        }
        let input = input as u32;
        let own = self.process.workers();
        if self.ranks == 1 || to.is_some_and(|to| to.iter().all(|worker| own.contains(&worker))) {
            let parcel = Parcel::handed(input, self.given_out() + 1, batch);
            let locals = self.locals_of(to);
            self.lists.give(&locals);
            return self.enqueue(member, parcel, Some(locals), 0).await;
        }
        let prepared = encoder.borrow().prepare(&batch)?;
        let room = self.room(member.net())?;
        let mut rows = Encoder::rows_fitting(&prepared, room);
        let mut done = 0;
        while done < batch.num_rows() {
            let take = rows.min(batch.num_rows() - done);
            let some = prepared.slice(done, take);
            let (payload, encode_ns) = self.encode(member.net(), encoder, &some)?;
            if payload.len() > room && take > 1 {
                rows = take / 2;
                continue;
            }
            let batch = batch.slice(done, take);
            let encoded = (payload, encode_ns);
            match (self.way, to) {
                (Way::Copies, _) => {
                    self.push_copies(member, input, encoder, (some, batch), encoded).await?;
                }
                (Way::Lists, Some(to)) => {
                    self.push_listed(member, input, batch, encoded, to).await?;
                }
                _ => self.push_parts(member, input, batch, encoded).await?,
            }
            done += take;
        }
        Ok(())
    }

    /// A payload of these rows, and the nanoseconds that it took to make it.
    fn encode(
        &self,
        net: &Net,
        encoder: &RefCell<Encoder>,
        rows: &RecordBatch,
    ) -> Result<(Bytes, u64), DataflowError> {
        let start = self.clock.now_ns();
        let payload = encoder.borrow_mut().encode(rows)?.payload();
        let encode_ns = self.clock.now_ns().saturating_sub(start);
        net.count(|metrics| &metrics.cast_encode_ns, encode_ns);
        Ok((payload, encode_ns))
    }

    /// Gives rows out along the tree, in as many frames as they need.
    async fn push_parts(
        &self,
        member: &impl Member,
        input: u32,
        batch: RecordBatch,
        (payload, encode_ns): (Bytes, u64),
    ) -> Result<(), DataflowError> {
        let mut batch = Some(batch);
        let parts = parts_of(&payload, member.net().payload_room());
        let encode_ns = encode_ns / parts.len() as u64;
        let has_groups = member.net().aloft().is_some();
        let flies = |bytes| has_groups && self.launches.borrow().carries(bytes);
        for (payload, more) in parts {
            // The last part brings the rows to workers of this process.
            let batch = batch.take_if(|_| !more);
            let also = batch.is_some().then(|| self.locals());
            let upto = self.given_out() + 1;
            let stub = flies(payload.len()).then_some(payload.len() as u32);
            let parcel = Parcel { input, upto, more, stub, payload, owned: true, batch, to: None };
            self.enqueue(member, parcel, also, encode_ns).await?;
        }
        Ok(())
    }

    /// Gives out a frame as soon as the queue has room: to the tree, and to others beside it.
    async fn enqueue(
        &self,
        member: &impl Member,
        parcel: Parcel,
        also: Option<Vec<u32>>,
        encode_ns: u64,
    ) -> Result<(), DataflowError> {
        let flies = parcel.stub.map(|_| parcel.payload.clone());
        let has_room = || {
            let queue = self.own.borrow().relay().kept() < self.queue_frames;
            let kept = flies.is_none() || self.launches.borrow().has_room();
            (queue && kept).then_some(())
        };
        member.net().wait_for_credit(self.tag, &self.room, has_room).await;
        let seq = self.own.borrow_mut().push(parcel);
        if let Some(payload) = flies {
            member.net().count(|metrics| &metrics.cast_flown, 1);
            member.net().count(|metrics| &metrics.cast_bytes, payload.len() as u64);
            self.launches.borrow_mut().launch(seq, payload);
        }
        if let Some(others) = also {
            self.own.borrow_mut().relay_mut().also(seq, &others);
        }
        self.monitor.borrow_mut().arrived(encode_ns);
        self.adapt();
        self.pump(member.net());
        member.net().stir();
        Ok(())
    }

    /// The other workers of this process.
    fn locals(&self) -> Vec<u32> {
        self.locals_of(None)
    }

    /// Those of them whom rows are for.
    fn locals_of(&self, to: Option<&Arc<WorkerSet>>) -> Vec<u32> {
        let others = self.process.workers().filter(|&worker| worker != self.worker);
        others.filter(|&worker| to.is_none_or(|to| to.contains(worker))).collect()
    }

    /// Looks at the queue, and begins to change the tree if that is advised (W8).
    fn adapt(&self) {
        if !self.adapts || self.ranks < 3 {
            return;
        }
        let now = self.clock.now_ns();
        let mut own = self.own.borrow_mut();
        if own.is_changing() {
            if now.saturating_sub(self.changing_since.get()) > CHANGE_NS_MAX {
                own.abandon();
            }
            return;
        }
        let (waiting, cap) = (own.relay().kept() as u32, own.tree().degree());
        let Some(advice) = self.monitor.borrow_mut().look(now, waiting, cap) else { return };
        let (Advice::Lower(cap) | Advice::Raise(cap)) = advice;
        let tree = own.tree().switched(cap);
        self.changing_since.set(now);
        for Steer { to, version, children } in own.begin(tree) {
            let header = self.header(Kind::Steer, self.worker, 0, version);
            let payload = children.iter().flat_map(|child| child.to_le_bytes()).collect();
            self.notes.borrow_mut().push_back(Note { to, header, payload });
        }
    }

    /// Theorem 4: nothing would be lost if the queue could not fill while the tree changes. Here
    /// nothing is lost either way: a full queue holds the source back.
    fn report_switch(&self) {
        let own = self.own.borrow();
        let switch_ns = self.clock.now_ns().saturating_sub(self.changing_since.get());
        let left = self.queue_frames.saturating_sub(own.relay().kept());
        let per_ns = self.monitor.borrow().load().per_second / 1e9;
        let holds = (switch_ns as f64) * per_ns < left as f64;
        tracing::debug!(
            worker = self.worker,
            degree = own.tree().degree(),
            switch_us = switch_ns / 1_000,
            queue_fits = holds,
            "the multicast tree was changed"
        );
    }

    fn header(&self, kind: Kind, source: u32, input: u32, aux: u64) -> Header {
        let epoch = u64::from(source) << 32 | u64::from(input);
        Header { kind: kind as u8, tag: self.tag, epoch, aux, ..Header::default() }
    }

    /// Sends all that there is room for. True when nothing is left.
    fn pump(&self, net: &Net) -> bool {
        self.pump_notes(net);
        let mut left: Vec<u32> = self.pump_flight(net).into_iter().collect();
        {
            let mut own = self.own.borrow_mut();
            let queued = own.relay().kept();
            let mut monitor = self.monitor.borrow_mut();
            self.pump_relay(net, self.worker, own.relay_mut(), Some(&mut monitor));
            left.extend(own.relay().awaiting());
            if own.relay().kept() < queued {
                self.room.notify();
            }
        }
        for (&source, relayed) in self.relayed.borrow_mut().iter_mut() {
            self.pump_relay(net, source, &mut relayed.relay, None);
            left.extend(relayed.relay.awaiting());
            while let Some((parent, upto)) = relayed.relay.owed() {
                let header = self.header(Kind::Took, source, 0, upto);
                self.notes.borrow_mut().push_back(Note { to: parent, header, payload: vec![] });
            }
        }
        self.pump_notes(net);
        let mut stalled = self.stalled.borrow_mut();
        stalled.retain(|child, _| left.contains(child));
        if !left.is_empty() {
            let now = self.clock.now_ns();
            for child in &left {
                stalled.entry(*child).or_insert(now);
            }
        }
        left.is_empty() && self.notes.borrow().is_empty() && self.launches.borrow().is_over()
    }

    /// Sends the frames of a source to one child after the other, frame by frame.
    fn pump_relay(
        &self,
        net: &Net,
        source: u32,
        relay: &mut Relay<Parcel>,
        mut monitor: Option<&mut Monitor>,
    ) {
        loop {
            let mut moved = false;
            for child in relay.awaiting() {
                let Some(next) = relay.to_send(child) else { continue };
                let start = monitor.as_ref().map(|_| self.clock.now_ns());
                if !self.try_send(net, source, child, next) {
                    continue;
                }
                relay.sent(child);
                self.stalled.borrow_mut().remove(&child);
                moved = true;
                if let (Some(monitor), Some(start)) = (&mut monitor, start)
                    && !self.process.workers().contains(&child)
                {
                    let send_ns = self.clock.now_ns().saturating_sub(start);
                    net.count(|metrics| &metrics.cast_send_ns, send_ns);
                    monitor.sent(send_ns);
                }
            }
            if !moved {
                break;
            }
        }
        relay.settle();
    }

    fn try_send(&self, net: &Net, source: u32, child: u32, next: &Numbered<Parcel>) -> bool {
        let Parcel { input, upto, more, payload, batch, to, stub, .. } = &next.frame;
        let local = self.process.workers().contains(&child);
        let stub = stub.filter(|_| !local).map(u32::to_le_bytes);
        let payload = stub.as_ref().map_or(&payload[..], |stub| &stub[..]);
        let (kind, said) = match self.way {
            _ if local => (Kind::Handed, *upto),
            Way::Copies => (Kind::Copy, *upto),
            Way::Lists => (Kind::List, 0),
            Way::Tree => (Kind::Cast, next.version),
        };
        let list = to.as_ref().filter(|_| !local).map(|to| self.list_for(child, to));
        let seq = if list.is_some() { self.lists.number(child) } else { next.seq };
        let mut header = self.header(kind, source, *input, seq);
        header.watermark = said as i64;
        header.flags = if *more && !local { MORE } else { 0 };
        header.flags |= if stub.is_some() { STUB } else { 0 };
        let sent = match batch {
            Some(batch) if local => net.try_hand(child, header, batch),
            _ => {
                let list = list.as_deref().unwrap_or(&[]);
                net.try_send(child, Class::Data, header, &[list, payload])
            }
        };
        if sent && !local {
            let bytes = payload.len() + list.as_ref().map_or(0, Vec::len);
            net.count(|metrics| &metrics.cast_frames, 1);
            net.count(|metrics| &metrics.cast_bytes, bytes as u64);
            let rows = batch.as_ref().map_or(0, |batch| batch.num_rows());
            net.count_sent(self.tag, rows, bytes);
            if list.is_some() {
                self.lists.sent(child, next.seq);
            }
        }
        sent
    }

    /// Sends the small frames that wait, in order.
    fn pump_notes(&self, net: &Net) {
        let mut notes = self.notes.borrow_mut();
        while let Some(Note { to, header, payload }) = notes.front() {
            if !net.try_send(*to, Class::Control, *header, &[payload]) {
                break;
            }
            notes.pop_front();
        }
    }

    /// This worker gives out nothing more.
    pub(super) fn end(&self) {
        self.ended.set(true);
        self.own.borrow_mut().abandon();
    }

    /// Sends what waits, whenever something has moved, until there can be nothing more: this worker
    /// has ended, and `others` have, all of whose frames that this worker gets or passes on are
    /// here then.
    pub(super) async fn run(&self, net: &Net, others: impl Fn() -> bool) {
        net.stirred()
            .wait_for(|| (self.pump(net) && self.ended.get() && others()).then_some(()))
            .await;
        self.launches.borrow().report(self.worker);
    }

    /// Until when somebody must have taken something, if anything waits.
    ///
    /// # Errors
    /// [`DataflowError::Stalled`] when that time has come.
    pub(super) fn deadline(&self, now_ns: u64) -> Result<Option<u64>, DataflowError> {
        let stalled = self.stalled.borrow();
        let first = stalled.iter().min_by_key(|(_, since)| **since);
        let look_ns = self.look_ns(now_ns);
        let Some((&worker, &since)) = first else { return Ok(look_ns) };
        let deadline = since.saturating_add(self.stall_ns);
        match now_ns >= deadline {
            true => Err(DataflowError::Stalled { worker, after_ms: self.stall_ns / 1_000_000 }),
            false => Ok(look_ns.into_iter().chain([deadline]).min()),
        }
    }
}

impl Relayed {
    fn new(children: Vec<u32>, open_max: usize) -> Self {
        let relay = Relay::new(children, open_max);
        Self { relay, partial: vec![], landing: Landing::new(open_max) }
    }
}

impl Parcel {
    /// Rows that workers of the same process alone get.
    fn handed(input: u32, upto: u64, batch: RecordBatch) -> Self {
        let (more, stub, payload) = (false, None, Bytes::new());
        Self { input, upto, more, stub, payload, owned: true, batch: Some(batch), to: None }
    }
}

/// A payload as parts of at most `room` bytes, and of each whether another follows.
fn parts_of(payload: &Bytes, room: usize) -> Vec<(Bytes, bool)> {
    let count = payload.len().div_ceil(room).max(1);
    let part = |at: usize| {
        let end = payload.len().min((at + 1) * room);
        (payload.slice(at * room..end), at + 1 < count)
    };
    (0..count).map(part).collect()
}

/// The ranks in the order in which those of a tree around `root` are numbered.
fn around(root: u32, ranks: u32) -> impl Iterator<Item = u32> {
    (0..ranks).map(move |at| (root + at) % ranks)
}
