//! Reconnects links whose connection broke, while the job goes on.
//!
//! ```text
//!   worker ─ BrokenLink ─▶ node ─▶ thread: offer ─▶ message ─▶ connect ─▶ Link::renew ─▶ message
//!     ▲ Lost ◀──────────── node ◀─ message about a link that is not here yet         attach │
//!     └────────────────────────────────── Reconnected ◀──────────────────────────────────────┘
//! ```
//!
//! Both ends of a link send each other the same: the address to connect to, then the ring of the
//! sender and the position up to which it has taken frames. Each message names an incarnation of
//! the link; of two the higher one counts, and an end that receives a higher one than its own goes
//! there. So both ends give up an attempt that failed at one end only. The messages travel over the
//! control plane, which has connections of its own and reports a node that has died: then the job
//! ends for that reason.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Waker;
use std::thread::{self, Scope};
use std::time::{Duration, Instant};

use channel::protocol::StatementNumber;
use channel::{Link, LinkError, LinkStats};
use cluster::{Control, NODES_MAX};
use dataflow::error::DataflowError;
use dataflow::reconnect::{LinkEvent, Reconnector};
use dataflow::worker::Signals;
use fabric::LinkId;

use crate::links::{NodeLayout, WORKERS_MAX};
use crate::node::WorkerEvent;
use crate::pairs::Pairs;

/// How often a thread that waits for the other end checks whether the job still runs.
const LOOK: Duration = Duration::from_millis(50);
/// Between the first two attempts; twice as long after each.
const PAUSE_FIRST: Duration = Duration::from_millis(20);
/// Between two attempts at most.
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// A connection that stood for this time counts as one, even if no frame is known to have come
/// through.
const STOOD: Duration = Duration::from_secs(60);

/// A broken link that a worker has given to its node.
pub(crate) struct BrokenLink {
    end: LinkId,
    link: Link,
    cause: LinkError,
}

/// Broken links of a running job: the service that reconnects them, and the scope of its threads.
#[derive(Clone, Copy)]
pub(crate) struct Reconnects<'scope, 'env> {
    pub(crate) service: &'scope ReconnectService<'scope>,
    pub(crate) scope: &'scope Scope<'scope, 'env>,
}

impl Reconnects<'_, '_> {
    /// Begins to reconnect a link.
    pub(crate) fn start(&self, broken: BrokenLink) {
        self.service.reconnect(self.scope, broken);
    }
}

/// A worker's end: gives broken links to the node, and receives them back.
pub(crate) struct WorkerEnd {
    pub(crate) worker: u32,
    pub(crate) events: Sender<WorkerEvent>,
    pub(crate) link_events: LinkEventReceiver,
}

/// A channel for events of links from the node to a worker, which may be parked.
pub(crate) fn link_events() -> (LinkEventSender, LinkEventReceiver) {
    let (sender, receiver) = mpsc::channel();
    let waker = Arc::new(OnceLock::new());
    let to_worker = LinkEventSender { sender, waker: waker.clone() };
    (to_worker, LinkEventReceiver { receiver, waker })
}

/// The node's end of [`link_events`].
pub(crate) struct LinkEventSender {
    sender: Sender<LinkEvent>,
    waker: Arc<OnceLock<Waker>>,
}

impl LinkEventSender {
    /// Sends an event and wakes the worker, which may have ended.
    fn send(&self, event: LinkEvent) {
        if self.sender.send(event).is_ok()
            && let Some(waker) = self.waker.get()
        {
            waker.wake_by_ref();
        }
    }
}

/// The worker's end of [`link_events`].
pub(crate) struct LinkEventReceiver {
    receiver: Receiver<LinkEvent>,
    waker: Arc<OnceLock<Waker>>,
}

impl Reconnector for WorkerEnd {
    fn set_waker(&mut self, waker: Waker) {
        // Called once; a second call would be for the same worker.
        let _ = self.link_events.waker.set(waker);
    }

    fn reconnect(&mut self, worker: u32, link: Link, cause: LinkError) {
        let end = LinkId { local: self.worker, remote: worker };
        // A node that no longer waits for its workers drops the link.
        let _ =
            self.events.send(WorkerEvent::BrokenLink(Box::new(BrokenLink { end, link, cause })));
    }

    fn decline(&mut self, worker: u32) {
        let _ =
            self.events.send(WorkerEvent::Declined(LinkId { local: self.worker, remote: worker }));
    }

    fn next_event(&mut self) -> Option<LinkEvent> {
        self.link_events.receiver.try_recv().ok()
    }
}

/// Reconnects the broken links of a node.
pub(crate) struct ReconnectService<'a> {
    pub(crate) pairs: &'a Pairs,
    pub(crate) control: &'a Control,
    pub(crate) layout: NodeLayout,
    /// Messages of other statements are not read.
    pub(crate) statement: StatementNumber,
    /// How long a link may take; with zero none is reconnected.
    pub(crate) timeout: Duration,
    pub(crate) signals: &'a Signals,
    /// To the workers of this node.
    pub(crate) workers: Vec<LinkEventSender>,
    pub(crate) repairs: Mutex<LinkRepairs>,
}

/// The state of links that are broken, or were.
#[derive(Default)]
pub(crate) struct LinkRepairs {
    /// Links under repair, or asked for.
    ends: HashSet<LinkId>,
    /// The limit of each broken link.
    limits: HashMap<LinkId, Limit>,
    /// The latest incarnation, per node, whose break was logged.
    logged: HashMap<u32, u32>,
}

/// How long a link may be away. A link over whose new connection no frame has come through does
/// not count as reconnected, however often it was connected.
#[derive(Clone, Copy)]
struct Limit {
    /// Frames that the other end was known to have taken.
    taken: u64,
    until: Instant,
    /// When it last came back.
    back: Option<Instant>,
}

impl LinkRepairs {
    /// Until when a link that breaks now may be away.
    fn limit(
        &mut self,
        end: LinkId,
        LinkStats { frames_sent, in_flight, .. }: LinkStats,
        now: Instant,
        timeout: Duration,
    ) -> Instant {
        let taken = frames_sent - in_flight;
        let fresh = Limit { taken, until: now + timeout, back: None };
        let limit = self.limits.entry(end).or_insert(fresh);
        let stood = limit.back.is_some_and(|back| now - back > STOOD.max(timeout));
        if stood || in_flight == 0 || limit.taken != taken {
            *limit = fresh;
        }
        limit.until
    }

    /// A link is away no longer.
    fn came_back(&mut self, end: LinkId, now: Instant) {
        self.ends.remove(&end);
        self.limits.entry(end).and_modify(|limit| limit.back = Some(now));
    }
}

impl ReconnectService<'_> {
    /// Whether links are reconnected at all.
    pub(crate) fn is_enabled(&self) -> bool {
        !self.timeout.is_zero()
    }

    /// Reconnects a link on a thread of its own, and returns it to its worker.
    pub(crate) fn reconnect<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        broken: BrokenLink,
    ) {
        let BrokenLink { end, link, cause } = broken;
        let rank = end.remote / self.layout.per_node;
        let until = {
            let mut repairs = self.repairs();
            repairs.ends.insert(end);
            repairs.limit(end, link.stats(), Instant::now(), self.timeout)
        };
        let repairing = move || {
            let start = Instant::now();
            let received = VecDeque::new();
            let repair =
                LinkRepair { service: self, end, rank, cause: cause.to_string(), until, received };
            let worker = end.remote;
            let event = match repair.run(link) {
                Ok(Some(link)) => {
                    let LinkId { local, remote } = end;
                    let after = start.elapsed();
                    tracing::info!(
                        "the link of worker {local} with {remote} goes on after {after:?}"
                    );
                    LinkEvent::Reconnected { worker, link: Box::new(link) }
                }
                Ok(None) => LinkEvent::Declined { worker },
                Err(reason) => LinkEvent::Failed(DataflowError::NotReconnected {
                    worker,
                    source: cause,
                    reason,
                }),
            };
            // In one step, so that no request for a link crosses its return.
            let mut repairs = self.repairs();
            self.notify_worker(end, event);
            repairs.came_back(end, Instant::now());
        };
        let name = format!("reconnect-{}-{}", end.local, end.remote);
        if let Err(error) = thread::Builder::new().name(name).spawn_scoped(scope, repairing) {
            let (worker, source) = (end.remote, LinkError::Closed);
            let reason = format!("there is no thread: {error}");
            let failed = DataflowError::NotReconnected { worker, source, reason };
            self.notify_worker(end, LinkEvent::Failed(failed));
        }
    }

    /// Logs each broken connection once, when the other node answers: a node that does not has
    /// died, and the job ends with that error.
    fn warn(&self, rank: u32, incarnation: u32, cause: &str) {
        let mut repairs = self.repairs();
        let logged = repairs.logged.entry(rank).or_default();
        if *logged < incarnation {
            *logged = incarnation;
            tracing::warn!(
                "the connection with node {rank} broke ({cause}); its links go on over another"
            );
        }
    }

    /// Tells the other end that this one needs no link any more.
    pub(crate) fn decline(&self, end: LinkId) {
        let sent = self.send_to(end, Step::Declined, 0, &[]);
        debug_assert!(sent.is_ok(), "a short note");
    }

    /// Asks workers for links that their other ends have lost.
    pub(crate) fn answer(&self) {
        if !self.is_enabled() {
            return;
        }
        for (rank, topic) in self.control.unread_messages() {
            let Some(end) = self.own_end(rank, topic) else { continue };
            if self.repairs().ends.insert(end) {
                self.notify_worker(end, LinkEvent::Lost { worker: end.remote });
            }
        }
    }

    fn repairs(&self) -> MutexGuard<'_, LinkRepairs> {
        self.repairs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn notify_worker(&self, end: LinkId, event: LinkEvent) {
        let at = (end.local - self.layout.own().start) as usize;
        self.workers[at].send(event);
    }

    fn send_to(&self, end: LinkId, step: Step, number: u32, bytes: &[u8]) -> Result<(), String> {
        let message = [&[step as u8][..], &number.to_le_bytes(), bytes].concat();
        let rank = end.remote / self.layout.per_node;
        let sent = match step {
            Step::Offer => self.control.send_place_to(rank, topic(self.statement, end), message),
            Step::Ring | Step::Declined => {
                self.control.send_to(rank, topic(self.statement, end), message)
            }
        };
        sent.map_err(|error| error.to_string())
    }

    /// This node's end of the link that a message is about.
    fn own_end(&self, rank: u32, topic: u64) -> Option<LinkId> {
        let (low, high) = workers_of(topic);
        let ends = [LinkId { local: low, remote: high }, LinkId { local: high, remote: low }];
        let own = |end: &LinkId| {
            self.layout.own().contains(&end.local) && end.remote / self.layout.per_node == rank
        };
        let end = ends.into_iter().find(own)?;
        (self::topic(self.statement, end) == topic).then_some(end)
    }
}

/// Bits of a worker's number in a topic.
const WORKER_BITS: u32 = (NODES_MAX * WORKERS_MAX - 1).ilog2() + 1;

/// The topic of messages about a link: the same at both ends, and another one in each statement,
/// for a message may come when the statement that it is of has ended. Statements are told apart by
/// the low bits of their numbers, and messages are discarded in between.
fn topic(statement: StatementNumber, LinkId { local, remote }: LinkId) -> u64 {
    let statement = u64::from(statement.number()) << (2 * WORKER_BITS);
    statement | u64::from(local.min(remote)) << WORKER_BITS | u64::from(local.max(remote))
}

/// The workers that a topic is about, the lower one first.
fn workers_of(topic: u64) -> (u32, u32) {
    let worker = |bits: u64| bits as u32 & ((1 << WORKER_BITS) - 1);
    (worker(topic >> WORKER_BITS), worker(topic))
}

/// The kind of a message: a byte, then the incarnation of the link, then bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// Where to connect.
    Offer = 1,
    /// The ring, and what was taken.
    Ring = 2,
    /// Nothing is needed any more.
    Declined = 3,
}

fn decode(message: &[u8]) -> Result<(Step, u32, &[u8]), String> {
    let step = match message.first() {
        Some(1) => Some(Step::Offer),
        Some(2) => Some(Step::Ring),
        Some(3) => Some(Step::Declined),
        _ => None,
    };
    let number = message.get(1..).and_then(<[u8]>::split_first_chunk);
    let (step, (number, bytes)) = step.zip(number).ok_or("the other end sent a malformed note")?;
    Ok((step, u32::from_le_bytes(*number), bytes))
}

/// The reconnection of one link.
struct LinkRepair<'s, 'a> {
    service: &'s ReconnectService<'a>,
    end: LinkId,
    /// The node of the other end.
    rank: u32,
    /// The error that ended the connection.
    cause: String,
    until: Instant,
    /// Messages of the other end that were not looked at.
    received: VecDeque<LinkMessage>,
}

/// A message: its step, the incarnation, and the bytes.
type LinkMessage = (Step, u32, Vec<u8>);

/// How an attempt ended.
enum Attempt {
    /// The link is whole.
    Whole,
    /// The other end needs nothing more.
    Declined,
    /// Another attempt follows, for this reason; the other end may be there already, with this
    /// address.
    Again(String, Option<(u32, Vec<u8>)>),
}

impl LinkRepair<'_, '_> {
    /// Reconnects the link; `None` when the other end declines.
    fn run(mut self, mut link: Link) -> Result<Option<Link>, String> {
        let mut number = link.incarnation();
        let mut theirs = None;
        let mut pause = PAUSE_FIRST;
        loop {
            if Instant::now() >= self.until {
                let timeout = self.service.timeout;
                return Err(format!(
                    "nothing has come through those that were made for {timeout:?}"
                ));
            }
            number = theirs.as_ref().map_or(number + 1, |(theirs, _)| *theirs);
            match self.attempt(&mut link, &mut number, theirs.take())? {
                Attempt::Whole => return Ok(Some(link)),
                Attempt::Declined => return Ok(None),
                Attempt::Again(reason, _) if Instant::now() + pause >= self.until => {
                    return Err(reason);
                }
                Attempt::Again(_, Some(ahead)) => theirs = Some(ahead),
                Attempt::Again(reason, None) => {
                    tracing::debug!("worker {}: {reason}; once more", self.end.remote);
                    thread::sleep(pause);
                    pause = PAUSE_MAX.min(2 * pause);
                }
            }
        }
    }

    /// Tries to connect as the incarnation `number`, or the higher one that the other end speaks
    /// of.
    fn attempt(
        &mut self,
        link: &mut Link,
        number: &mut u32,
        theirs: Option<(u32, Vec<u8>)>,
    ) -> Result<Attempt, String> {
        let again = |reason: String| Ok(Attempt::Again(reason, None));
        let fabric = self.service.pairs.with(self.rank);
        let offer = match fabric.offer(self.end) {
            Ok(offer) => offer,
            Err(error) => return again(error.to_string()),
        };
        self.send_to(Step::Offer, *number, &offer.address())?;
        let (theirs, address) = match theirs {
            Some(theirs) => theirs,
            None => match self.await_offer(*number)? {
                Some(theirs) => theirs,
                None => return Ok(Attempt::Declined),
            },
        };
        self.service.warn(self.rank, link.incarnation(), &self.cause);
        if theirs > *number {
            *number = theirs;
            self.send_to(Step::Offer, *number, &offer.address())?;
        }
        let endpoint = match offer.connect(&address) {
            Ok(endpoint) => endpoint,
            Err(error) => return again(error.to_string()),
        };
        match link.renew(fabric, endpoint, *number) {
            Ok(()) => {}
            Err(LinkError::Fabric(error)) => return again(error.to_string()),
            Err(error) => return Err(error.to_string()),
        }
        self.send_to(Step::Ring, *number, &link.descriptor())?;
        loop {
            match self.read()? {
                (Step::Ring, at, ring) if at == *number => {
                    link.attach(&ring).map_err(|error| error.to_string())?;
                    return Ok(Attempt::Whole);
                }
                (Step::Offer, at, address) if at > *number => {
                    let reason = "the other end could not connect".into();
                    return Ok(Attempt::Again(reason, Some((at, address))));
                }
                (Step::Declined, ..) => return Ok(Attempt::Declined),
                // Of an attempt that was given up.
                (Step::Offer | Step::Ring, ..) => {}
            }
        }
    }

    /// The latest offer of the other end, of this incarnation or a higher one; `None` when it
    /// declines.
    fn await_offer(&mut self, number: u32) -> Result<Option<(u32, Vec<u8>)>, String> {
        loop {
            while let Some(message) = self.look(Duration::ZERO)? {
                self.received.push_back(message);
            }
            if self.received.iter().any(|(step, ..)| *step == Step::Declined) {
                return Ok(None);
            }
            let offers = |(step, at, _): &LinkMessage| *step == Step::Offer && *at >= number;
            if let Some(latest) = self.received.iter().rposition(offers) {
                self.received.drain(..latest);
                return Ok(self.received.pop_front().map(|(_, at, address)| (at, address)));
            }
            // Of attempts that were given up.
            self.received.clear();
            let message = self.read()?;
            self.received.push_back(message);
        }
    }

    fn send_to(&self, step: Step, number: u32, bytes: &[u8]) -> Result<(), String> {
        self.service.send_to(self.end, step, number, bytes)
    }

    /// The other end's next message.
    fn read(&mut self) -> Result<LinkMessage, String> {
        if let Some(message) = self.received.pop_front() {
            return Ok(message);
        }
        loop {
            if self.service.signals.is_aborted() {
                return Err("the job has ended".into());
            }
            if let Some(message) = self.look(LOOK)? {
                return Ok(message);
            }
            if Instant::now() >= self.until {
                let timeout = self.service.timeout;
                return Err(format!("the other end has sent nothing for {timeout:?}"));
            }
        }
    }

    fn look(&self, limit: Duration) -> Result<Option<LinkMessage>, String> {
        let message = self.service.control.receive_message(
            self.rank,
            topic(self.service.statement, self.end),
            limit,
        );
        let Some(message) = message.map_err(|error| error.to_string())? else { return Ok(None) };
        let (step, number, bytes) = decode(&message)?;
        Ok(Some((step, number, bytes.to_vec())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_have_one_topic() {
        let (here, there) = (LinkId { local: 7, remote: 2 }, LinkId { local: 2, remote: 7 });
        let (first, second) = (StatementNumber::new(1), StatementNumber::new(2));
        assert_eq!(topic(first, here), topic(first, there));
        assert_ne!(topic(first, here), topic(first, LinkId { local: 7, remote: 3 }));
        assert_ne!(topic(first, here), topic(second, here));
        let last = NODES_MAX * WORKERS_MAX - 1;
        let highest =
            topic(StatementNumber::new(u32::MAX), LinkId { local: last, remote: last - 1 });
        assert_eq!(workers_of(highest), (last - 1, last));
        assert_ne!(highest, u64::MAX, "the topic of the watch over connections");
    }

    #[test]
    fn an_idle_link_has_one_limit_and_a_used_one_a_new_one() {
        let end = LinkId { local: 0, remote: 1 };
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let stats =
            |frames_sent, in_flight| LinkStats { frames_sent, in_flight, ..Default::default() };
        let mut repairs = LinkRepairs::default();
        let mut limit = |stats, at| {
            let until = repairs.limit(end, stats, start + at * second, 30 * second) - start;
            repairs.came_back(end, start + at * second);
            until.as_secs()
        };
        assert_eq!(limit(stats(7, 2), 0), 30);
        assert_eq!(limit(stats(9, 4), 10), 30, "nothing was taken");
        assert_eq!(limit(stats(9, 3), 11), 41);
        assert_eq!(limit(stats(9, 3), 40), 41);
        assert_eq!(limit(stats(9, 3), 101), 131, "it stood for a minute");
        assert_eq!(limit(stats(9, 0), 102), 132, "there was nothing to take");
    }

    #[test]
    fn malformed_messages_are_refused() {
        let message = [2, 5, 0, 0, 0, 9, 9];
        assert_eq!(decode(&message), Ok((Step::Ring, 5, &[9, 9][..])));
        for bad in [&message[..4], &[], &[0, 5, 0, 0, 0], &[4, 5, 0, 0, 0]] {
            assert!(decode(bad).is_err(), "{bad:?}");
        }
    }
}
