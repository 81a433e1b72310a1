//! The broadcast: rows for every worker are encoded once and sent once to each process (W1).
//!
//! In each process one worker, the source's *relay*, takes the frames of a source, passes them on
//! along the tree ([`channel::broadcast`]), and hands the decoded batch to the other workers of its
//! process by reference: they are children beside the tree. What stays in state is copied out of
//! the slot once for all of them.
//!
//! ```text
//!  process 0          process 1              process 2
//!  source ─ frame ──▶ relay ──── frame ────▶ relay
//!    │ batch            │ batch                │ batch      by reference
//!    ▼                  ▼                      ▼
//!  workers            workers                workers
//! ```
//!
//! Nothing here waits in order to receive. A frame that a child has no room for is copied out of
//! its slot and kept, and the parent has credit for so many; so trees of several sources over the
//! same rings do not block each other, and what is kept has a bound: for each source that a worker
//! is the relay of, as many as the ring has slots, and for a while after a change of the tree as
//! many of the parent before.
//!
//! Rows for some workers go without a tree (`lists`): straight to each process that has one of
//! them, with a list of them in front.
//!
//! Without a tree ([`TreeChoice::Copies`]) the source encodes rows anew for each worker of another
//! process and sends them there itself: what W1 is measured against.

mod copies;
mod inbound;
mod lending;
mod lists;
mod multicast;
mod outbound;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use arrow::record_batch::RecordBatch;
use bytes::Bytes;
use channel::broadcast::{
    Advice, BroadcastSource, BroadcastTree, ExpectedPayloads, Monitor, Numbered, Relay, Shape,
    Thresholds, TreeUpdate, degree_max,
};
use channel::{Class, RegionFrame};
use fabric::Clock;

use self::lists::Lists;
use self::multicast::InFlight;
use crate::error::DataflowError;
use crate::job::worker_set::WorkerSet;
use crate::job::{MulticastChoice, TreeChoice};
use crate::runtime::frame::payload::{Placeholder, encode_children};
use crate::runtime::frame::{Colour, Envelope, Frame};
use crate::runtime::net::Net;
use crate::runtime::place::WorkerContext;
use crate::runtime::process::Process;
use crate::runtime::scheduler::Event;

/// A change of the tree that is not answered after this is given up: the old tree stays.
const CHANGE_NS_MAX: u64 = 1_000_000_000;

/// What goes along the tree: a part of a batch, or all of it.
struct BroadcastFrame {
    port: u32,
    /// The round of the rows at their source.
    colour: Colour,
    /// A worker that has received this one has received all frames of the source before that one.
    complete_before: u64,
    /// The payload goes on in the next frame.
    more: bool,
    /// Bytes of a payload that goes by the network, if it does; a placeholder goes along the tree.
    placeholder: Option<u32>,
    /// Empty for a placeholder whose payload is not here.
    payload: Bytes,
    /// Whether the payload is in memory of its own, and not in a slot.
    owned: bool,
    /// The payload, where it lies in the region of this worker, from where children read it.
    lent: Option<RegionFrame>,
    /// The rows, for workers of this process; with the last part alone.
    batch: Option<RecordBatch>,
    /// For whom it is, if not for all.
    to: Option<Arc<WorkerSet>>,
}

/// A source of another process, of which this worker is the relay.
struct Relayed {
    relay: Relay<BroadcastFrame>,
    /// The parts of a payload that is not whole yet.
    partial: Vec<u8>,
    /// Payloads of placeholders.
    expected: ExpectedPayloads,
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
struct ControlFrame {
    to: u32,
    envelope: Envelope,
    payload: Vec<u8>,
}

/// The broadcasts of an operator on one worker: its own, and those that it passes on.
pub(super) struct Distributor {
    tag: u32,
    /// The input that control frames name: the first one whose rows are broadcast.
    port: u32,
    worker: u32,
    process: Arc<Process>,
    ranks: u32,
    clock: Arc<dyn Clock>,
    queue_frames: usize,
    stall_ns: u64,
    open_max: usize,
    own: RefCell<BroadcastSource<BroadcastFrame>>,
    way: Way,
    lists: Lists,
    in_flight: RefCell<InFlight>,
    /// By source: the parts of a copy that is not whole yet.
    partial: RefCell<BTreeMap<u32, Vec<u8>>>,
    adapts: bool,
    monitor: RefCell<Monitor>,
    changing_since: Cell<u64>,
    /// By source: what this worker passes on as its relay.
    relayed: RefCell<BTreeMap<u32, Relayed>>,
    /// By worker: one past the last of its frames that is known here.
    received: RefCell<Vec<u64>>,
    /// By worker: frames taken from its relay, or it, by reference and not acknowledged.
    unacknowledged: RefCell<Vec<u64>>,
    controls: RefCell<VecDeque<ControlFrame>>,
    /// The own queue has room again.
    room: Event,
    /// Since when who has taken nothing, of those for whom something waits. The one at fault is the
    /// first: those before it in a tree are held back by it, and later.
    stalled: RefCell<BTreeMap<u32, u64>>,
    ended: Cell<bool>,
}

/// The tree over processes, of which the first is the source. Without a rack of each, the tree has
/// no racks.
fn tree_over(shape: Shape, members: &[u32], racks: &[u32]) -> BroadcastTree {
    let known = members.iter().map(|&rank| racks.get(rank as usize).copied());
    let racks: Option<Vec<u32>> = known.collect();
    BroadcastTree::racked(shape, members.len() as u32 - 1, &racks.unwrap_or_default())
}

impl Distributor {
    /// With `lists`, rows may be for some workers and not for all.
    pub(super) fn new(tag: u32, port: u32, place: &WorkerContext, lists: bool) -> Self {
        let WorkerContext { worker, workers, settings, process, clock, .. } = place;
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
            let members: Vec<u32> = around(rank, ranks).take(members as usize).collect();
            tree_over(shape, &members, &casting.racks)
        };
        let addresses = |source: u32| -> Vec<u32> {
            let ranks = around(process.rank_of(source), ranks).take(members as usize);
            ranks.map(|rank| process.relay_of(rank, source)).collect()
        };
        let relays = addresses(worker);
        let by_network = if way == Way::Tree { casting.multicast } else { MulticastChoice::Tree };
        let in_flight = InFlight::new(by_network, &relays[1..], open_max);
        let tree = tree_of(process.rank());
        let monitor =
            Monitor::new(Thresholds::of_queue(casting.queue_frames), ranks - 1, clock.now_ns())
                .over_racks(tree.has_racks());
        let own = BroadcastSource::new(tree, relays, open_max);
        let others = (0..ranks).filter(|&rank| rank != process.rank() && way != Way::Copies);
        let relayed = others.map(|rank| {
            let source = process.relay_of(rank, worker);
            let member = (process.rank() + ranks - rank) % ranks;
            let (tree, relays) = (tree_of(rank), addresses(source));
            let children = match way {
                Way::Tree => {
                    BroadcastSource::<BroadcastFrame>::first_children(&tree, &relays, member)
                }
                Way::Copies | Way::Lists => vec![],
            };
            (source, Relayed::new(children, open_max))
        });
        Self {
            tag,
            port,
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
            in_flight: RefCell::new(in_flight),
            partial: RefCell::default(),
            adapts: adapts && way == Way::Tree,
            monitor: RefCell::new(monitor),
            changing_since: Cell::new(0),
            relayed: RefCell::new(relayed.collect()),
            received: RefCell::new(vec![0; *workers as usize]),
            unacknowledged: RefCell::new(vec![0; *workers as usize]),
            controls: RefCell::default(),
            room: Event::default(),
            stalled: RefCell::default(),
            ended: Cell::new(false),
        }
    }

    /// Frames of this worker that `to` gets, of those that were given out.
    pub(super) fn given_to(&self, to: u32) -> u64 {
        match self.way {
            Way::Lists => self.lists.given_to(to),
            Way::Tree | Way::Copies => self.next_number(),
        }
    }

    fn next_number(&self) -> u64 {
        self.own.borrow().relay().next()
    }

    /// Frames of a worker that are here.
    pub(super) fn received(&self, worker: u32) -> u64 {
        self.received.borrow()[worker as usize]
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
        let (waiting, cap) = (own.relay().retained() as u32, own.tree().degree());
        let Some(advice) = self.monitor.borrow_mut().look(now, waiting, cap) else { return };
        let (Advice::Lower(cap) | Advice::Raise(cap)) = advice;
        let tree = own.tree().switched(cap);
        self.changing_since.set(now);
        for TreeUpdate { to, version, children } in own.begin(tree) {
            let envelope = self.envelope(Frame::TreeUpdate { version });
            let payload = encode_children(&children);
            self.controls.borrow_mut().push_back(ControlFrame { to, envelope, payload });
        }
    }

    /// Theorem 4: nothing would be lost if the queue could not fill while the tree changes. Here
    /// nothing is lost either way: a full queue holds the source back.
    fn report_switch(&self) {
        let own = self.own.borrow();
        let switch_ns = self.clock.now_ns().saturating_sub(self.changing_since.get());
        let left = self.queue_frames.saturating_sub(own.relay().retained());
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

    /// The envelope of a control frame.
    fn envelope(&self, frame: Frame) -> Envelope {
        let colour = Colour::default();
        Envelope { operator: self.tag, port: self.port, colour, more: false, frame }
    }

    /// Sends a control frame as soon as there is room.
    fn control(&self, to: u32, frame: Frame) {
        let envelope = self.envelope(frame);
        self.controls.borrow_mut().push_back(ControlFrame { to, envelope, payload: vec![] });
    }

    /// Sends all that there is room for. True when nothing is left.
    fn pump(&self, net: &Net) -> bool {
        self.pump_controls(net);
        let mut left: Vec<u32> = self.pump_in_flight(net).into_iter().collect();
        {
            let mut own = self.own.borrow_mut();
            let queued = own.relay().retained();
            let mut monitor = self.monitor.borrow_mut();
            self.pump_relay(net, self.worker, own.relay_mut(), Some(&mut monitor));
            left.extend(own.relay().awaiting());
            if own.relay().retained() < queued {
                self.room.notify();
            }
        }
        for (&source, relayed) in self.relayed.borrow_mut().iter_mut() {
            self.pump_relay(net, source, &mut relayed.relay, None);
            left.extend(relayed.relay.awaiting());
            while let Some((parent, before)) = relayed.relay.ack_due() {
                self.control(parent, Frame::BroadcastAck { source, before });
            }
        }
        self.pump_controls(net);
        let mut stalled = self.stalled.borrow_mut();
        stalled.retain(|child, _| left.contains(child));
        if !left.is_empty() {
            let now = self.clock.now_ns();
            for child in &left {
                stalled.entry(*child).or_insert(now);
            }
        }
        left.is_empty() && self.controls.borrow().is_empty() && self.in_flight.borrow().is_over()
    }

    /// Sends the frames of a source to one child after the other, frame by frame.
    fn pump_relay(
        &self,
        net: &Net,
        source: u32,
        relay: &mut Relay<BroadcastFrame>,
        mut monitor: Option<&mut Monitor>,
    ) {
        loop {
            let mut moved = false;
            for child in relay.awaiting() {
                let Some(next) = relay.to_send(child) else { continue };
                let seq = next.seq;
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
                    let now_ns = self.clock.now_ns();
                    let send_ns = now_ns.saturating_sub(start);
                    net.count(|metrics| &metrics.broadcast_send_ns, send_ns);
                    monitor.sent(child, seq, now_ns, send_ns);
                }
            }
            if !moved {
                break;
            }
        }
        relay.settle();
    }

    fn try_send(
        &self,
        net: &Net,
        source: u32,
        child: u32,
        next: &Numbered<BroadcastFrame>,
    ) -> bool {
        let BroadcastFrame { port, colour, complete_before, more, payload, batch, to, .. } =
            &next.frame;
        let lent = next.frame.lent.as_ref();
        let local = self.process.workers().contains(&child);
        let placeholder = next.frame.placeholder.filter(|_| !local);
        let placeholder = placeholder.map(|bytes| Placeholder { bytes }.encode());
        let payload = placeholder.as_ref().map_or(&payload[..], |bytes| &bytes[..]);
        let list = to.as_ref().filter(|_| !local).map(|to| self.list_for(child, to));
        let (number, complete_before) = (next.seq, *complete_before);
        let frame = match self.way {
            _ if local => Frame::BroadcastReference { source, number, complete_before },
            Way::Copies => Frame::BroadcastCopy { number, complete_before },
            Way::Lists => Frame::BroadcastList { number: self.lists.number(child) },
            Way::Tree => {
                let (version, placeholder) = (next.version, placeholder.is_some());
                Frame::Broadcast { source, number, version, placeholder }
            }
        };
        let (operator, more) = (self.tag, *more && !local);
        let envelope = Envelope { operator, port: *port, colour: *colour, more, frame };
        let sent = match batch {
            Some(batch) if local => net.try_hand(child, envelope, batch),
            _ if let Some(lent) = lent
                && placeholder.is_none() =>
            {
                net.try_lend(child, envelope, lent)
            }
            _ => {
                let list = list.as_deref().unwrap_or(&[]);
                net.try_send(child, Class::Data, envelope, &[list, payload])
            }
        };
        if sent && !local {
            let bytes = payload.len() + list.as_ref().map_or(0, Vec::len);
            net.count(|metrics| &metrics.broadcast_frames, 1);
            net.count(|metrics| &metrics.broadcast_bytes, bytes as u64);
            let rows = batch.as_ref().map_or(0, |batch| batch.num_rows());
            net.count_sent(self.tag, rows, bytes);
            if list.is_some() {
                self.lists.sent(child, next.seq);
            }
        }
        sent
    }

    /// Sends the small frames that wait, in order.
    fn pump_controls(&self, net: &Net) {
        let mut controls = self.controls.borrow_mut();
        while let Some(ControlFrame { to, envelope, payload }) = controls.front() {
            if !net.try_send(*to, Class::Control, *envelope, &[payload]) {
                break;
            }
            controls.pop_front();
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
        net.any_moved()
            .wait_for(|| (self.pump(net) && self.ended.get() && others()).then_some(()))
            .await;
        self.in_flight.borrow().report(self.worker);
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
        if now_ns >= deadline {
            Err(DataflowError::Stalled { worker, after_ms: self.stall_ns / 1_000_000 })
        } else {
            Ok(look_ns.into_iter().chain([deadline]).min())
        }
    }
}

impl Relayed {
    fn new(children: Vec<u32>, open_max: usize) -> Self {
        let relay = Relay::new(children, open_max);
        Self { relay, partial: vec![], expected: ExpectedPayloads::new(open_max) }
    }
}

impl BroadcastFrame {
    /// Rows that workers of the same process alone get.
    fn local(port: u32, colour: Colour, complete_before: u64, batch: RecordBatch) -> Self {
        Self {
            port,
            colour,
            complete_before,
            more: false,
            placeholder: None,
            payload: Bytes::new(),
            owned: true,
            lent: None,
            batch: Some(batch),
            to: None,
        }
    }
}

/// The ranks in the order in which those of a tree around `root` are numbered.
fn around(root: u32, ranks: u32) -> impl Iterator<Item = u32> {
    (0..ranks).map(move |at| (root + at) % ranks)
}
