//! Where links are mended whose connection broke, while the job goes on.
//!
//! ```text
//!   worker ── Broken ─▶ node ─▶ thread: offer ─▶ note ─▶ connect ─▶ Link::renew ─▶ note ─▶ attach
//!     ▲ News::Lost ◀─── node ◀─ note about a link that is not here yet                       │
//!     └──────────────────────────────── News::Mended ◀───────────────────────────────────────┘
//! ```
//!
//! Both ends of a link say the same to each other: where to connect, then which ring is theirs and
//! what they have taken. Each says for which incarnation of the link; of two the higher one counts,
//! and whoever hears of one that is higher than his own goes there. So an attempt that failed at
//! one end only is given up by both. Notes travel over the control plane, which has connections of
//! its own and tells of a node that has died: then the job ends for that reason.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, Scope};
use std::time::{Duration, Instant};

use channel::{Link, LinkError, LinkStats};
use cluster::Control;
use dataflow::error::DataflowError;
use dataflow::mend::{Mender, News};
use dataflow::worker::Signals;
use fabric::LinkId;

use crate::links::Layout;
use crate::node::Event;
use crate::pairs::Pairs;

/// How often who waits for the other end looks whether the job still runs.
const LOOK: Duration = Duration::from_millis(50);
/// Between the first two attempts; twice as long after each.
const PAUSE_FIRST: Duration = Duration::from_millis(20);
/// Between two attempts at most.
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// A connection that stood for so long was one, even if nothing is known to have come through.
const STOOD: Duration = Duration::from_secs(60);

/// A link that a worker has given away.
pub(crate) struct Broken {
    end: LinkId,
    link: Link,
    cause: LinkError,
}

/// Where a worker gives its links away, and gets them back.
pub(crate) struct Counter {
    pub(crate) worker: u32,
    pub(crate) events: Sender<Event>,
    pub(crate) news: Receiver<News>,
}

impl Mender for Counter {
    fn mend(&mut self, worker: u32, link: Link, cause: LinkError) {
        let end = LinkId { local: self.worker, remote: worker };
        // A node that has given up on its workers drops the link.
        let _ = self.events.send(Event::Broken(Box::new(Broken { end, link, cause })));
    }

    fn decline(&mut self, worker: u32) {
        let _ = self.events.send(Event::Declined(LinkId { local: self.worker, remote: worker }));
    }

    fn news(&mut self) -> Option<News> {
        self.news.try_recv().ok()
    }
}

/// Mends the links of a node.
pub(crate) struct Workshop<'a> {
    pub(crate) pairs: &'a Pairs,
    pub(crate) control: &'a Control,
    pub(crate) layout: Layout,
    /// How long a link may take; none is mended with zero.
    pub(crate) patience: Duration,
    pub(crate) signals: &'a Signals,
    /// To the workers of this node.
    pub(crate) counters: Vec<Sender<News>>,
    pub(crate) bench: Mutex<Bench>,
}

/// What is known of links that are not whole, or were not.
#[derive(Default)]
pub(crate) struct Bench {
    /// Those that are mended, or were asked for.
    ends: HashSet<LinkId>,
    /// How long each that broke may be away.
    limits: HashMap<LinkId, Limit>,
    /// The latest incarnation of links with a node of which was said that it broke.
    said: HashMap<u32, u32>,
}

/// How long a link may be away. One over whose new connection nothing has come through has not been
/// mended, however often it was connected.
#[derive(Clone, Copy)]
struct Limit {
    /// Frames that the other end was known to have taken.
    taken: u64,
    until: Instant,
    /// When it last came back.
    back: Option<Instant>,
}

impl Bench {
    /// Until when a link that breaks now may be away.
    fn limit(
        &mut self,
        end: LinkId,
        LinkStats { frames_sent, in_flight, .. }: LinkStats,
        now: Instant,
        patience: Duration,
    ) -> Instant {
        let taken = frames_sent - in_flight;
        let fresh = Limit { taken, until: now + patience, back: None };
        let limit = self.limits.entry(end).or_insert(fresh);
        let stood = limit.back.is_some_and(|back| now - back > STOOD.max(patience));
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

impl Workshop<'_> {
    /// Whether links are mended at all.
    pub(crate) fn mends(&self) -> bool {
        !self.patience.is_zero()
    }

    /// Mends a link on a thread of its own, and gives it back to its worker.
    pub(crate) fn mend<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>, broken: Broken) {
        let Broken { end, link, cause } = broken;
        let rank = end.remote / self.layout.per_node;
        let until = {
            let mut bench = self.bench();
            bench.ends.insert(end);
            bench.limit(end, link.stats(), Instant::now(), self.patience)
        };
        let mending = move || {
            let start = Instant::now();
            let heard = VecDeque::new();
            let repair = Repair { shop: self, end, rank, cause: cause.to_string(), until, heard };
            let worker = end.remote;
            let news = match repair.run(link) {
                Ok(Some(link)) => {
                    let LinkId { local, remote } = end;
                    let after = start.elapsed();
                    tracing::info!(
                        "the link of worker {local} with {remote} goes on after {after:?}"
                    );
                    News::Mended { worker, link: Box::new(link) }
                }
                Ok(None) => News::Declined { worker },
                Err(reason) => {
                    News::Failed(DataflowError::Unmended { worker, source: cause, reason })
                }
            };
            // In one step, so that nobody asks for a link on its way back.
            let mut bench = self.bench();
            self.tell_worker(end, news);
            bench.came_back(end, Instant::now());
        };
        let name = format!("mend-{}-{}", end.local, end.remote);
        if let Err(error) = thread::Builder::new().name(name).spawn_scoped(scope, mending) {
            let (worker, source) = (end.remote, LinkError::Closed);
            let reason = format!("there is no thread: {error}");
            let failed = DataflowError::Unmended { worker, source, reason };
            self.tell_worker(end, News::Failed(failed));
        }
    }

    /// Says once of each connection with a node that it broke: when the other node answers, for
    /// else it has died, and that is told.
    fn warn(&self, rank: u32, incarnation: u32, cause: &str) {
        let mut bench = self.bench();
        let said = bench.said.entry(rank).or_default();
        if *said < incarnation {
            *said = incarnation;
            tracing::warn!(
                "the connection with node {rank} broke ({cause}); its links go on over another"
            );
        }
    }

    /// Tells the other end that this one needs nothing more.
    pub(crate) fn decline(&self, end: LinkId) {
        let told = self.tell(end, Step::Declined, 0, &[]);
        debug_assert!(told.is_ok(), "a short note");
    }

    /// Asks workers for links that their other ends have lost.
    pub(crate) fn answer(&self) {
        if !self.mends() {
            return;
        }
        for (rank, about) in self.control.unread_notes() {
            let Some(end) = self.own_end(rank, about) else { continue };
            if self.bench().ends.insert(end) {
                self.tell_worker(end, News::Lost { worker: end.remote });
            }
        }
    }

    fn bench(&self) -> MutexGuard<'_, Bench> {
        self.bench.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell_worker(&self, end: LinkId, news: News) {
        let at = (end.local - self.layout.own().start) as usize;
        // It may have ended.
        let _ = self.counters[at].send(news);
    }

    fn tell(&self, end: LinkId, step: Step, number: u32, bytes: &[u8]) -> Result<(), String> {
        let note = [&[step as u8][..], &number.to_le_bytes(), bytes].concat();
        let rank = end.remote / self.layout.per_node;
        let told = match step {
            Step::Offer => self.control.tell_place(rank, about(end), note),
            Step::Ring | Step::Declined => self.control.tell(rank, about(end), note),
        };
        told.map_err(|error| error.to_string())
    }

    /// This node's end of what a node has said something about.
    fn own_end(&self, rank: u32, about: u64) -> Option<LinkId> {
        let (low, high) = ((about >> 32) as u32, about as u32);
        let ends = [LinkId { local: low, remote: high }, LinkId { local: high, remote: low }];
        let own = |end: &LinkId| {
            self.layout.own().contains(&end.local) && end.remote / self.layout.per_node == rank
        };
        ends.into_iter().find(own)
    }
}

/// What notes about a link are about: the same at both ends.
fn about(LinkId { local, remote }: LinkId) -> u64 {
    u64::from(local.min(remote)) << 32 | u64::from(local.max(remote))
}

/// What a note says: a byte, then the incarnation of which it speaks, then bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// Where to connect.
    Offer = 1,
    /// The ring, and what was taken.
    Ring = 2,
    /// Nothing is needed any more.
    Declined = 3,
}

fn decode(note: &[u8]) -> Result<(Step, u32, &[u8]), String> {
    let step = match note.first() {
        Some(1) => Some(Step::Offer),
        Some(2) => Some(Step::Ring),
        Some(3) => Some(Step::Declined),
        _ => None,
    };
    let number = note.get(1..).and_then(<[u8]>::split_first_chunk);
    let (step, (number, bytes)) = step.zip(number).ok_or("the other end sent a malformed note")?;
    Ok((step, u32::from_le_bytes(*number), bytes))
}

/// The mending of one link.
struct Repair<'s, 'a> {
    shop: &'s Workshop<'a>,
    end: LinkId,
    /// The node of the other end.
    rank: u32,
    /// What ended the connection.
    cause: String,
    until: Instant,
    /// What the other end has said and was not looked at.
    heard: VecDeque<Said>,
}

/// A note: its step, the incarnation of which it speaks, and the bytes.
type Said = (Step, u32, Vec<u8>);

/// How an attempt ended.
enum Attempt {
    /// The link is whole.
    Whole,
    /// The other end needs nothing more.
    Declined,
    /// There is to be another, for this reason; the other end may be there already, and has said
    /// where.
    Again(String, Option<(u32, Vec<u8>)>),
}

impl Repair<'_, '_> {
    /// Makes the link whole; `None` when the other end declines.
    fn run(mut self, mut link: Link) -> Result<Option<Link>, String> {
        let mut number = link.incarnation();
        let mut theirs = None;
        let mut pause = PAUSE_FIRST;
        loop {
            if Instant::now() >= self.until {
                let patience = self.shop.patience;
                return Err(format!(
                    "nothing has come through those that were made for {patience:?}"
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
        let fabric = self.shop.pairs.with(self.rank);
        let offer = match fabric.offer(self.end) {
            Ok(offer) => offer,
            Err(error) => return again(error.to_string()),
        };
        self.tell(Step::Offer, *number, &offer.address())?;
        let (theirs, address) = match theirs {
            Some(theirs) => theirs,
            None => match self.await_offer(*number)? {
                Some(theirs) => theirs,
                None => return Ok(Attempt::Declined),
            },
        };
        self.shop.warn(self.rank, link.incarnation(), &self.cause);
        if theirs > *number {
            *number = theirs;
            self.tell(Step::Offer, *number, &offer.address())?;
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
        self.tell(Step::Ring, *number, &link.descriptor())?;
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
            while let Some(said) = self.look(Duration::ZERO)? {
                self.heard.push_back(said);
            }
            if self.heard.iter().any(|(step, ..)| *step == Step::Declined) {
                return Ok(None);
            }
            let offers = |(step, at, _): &Said| *step == Step::Offer && *at >= number;
            if let Some(latest) = self.heard.iter().rposition(offers) {
                self.heard.drain(..latest);
                return Ok(self.heard.pop_front().map(|(_, at, address)| (at, address)));
            }
            // Of attempts that were given up.
            self.heard.clear();
            let said = self.read()?;
            self.heard.push_back(said);
        }
    }

    fn tell(&self, step: Step, number: u32, bytes: &[u8]) -> Result<(), String> {
        self.shop.tell(self.end, step, number, bytes)
    }

    /// The next that the other end says.
    fn read(&mut self) -> Result<Said, String> {
        if let Some(said) = self.heard.pop_front() {
            return Ok(said);
        }
        loop {
            if self.shop.signals.is_aborted() {
                return Err("the job has ended".into());
            }
            if let Some(said) = self.look(LOOK)? {
                return Ok(said);
            }
            if Instant::now() >= self.until {
                let patience = self.shop.patience;
                return Err(format!("the other end has said nothing for {patience:?}"));
            }
        }
    }

    fn look(&self, limit: Duration) -> Result<Option<Said>, String> {
        let note = self.shop.control.read_note(self.rank, about(self.end), limit);
        let Some(note) = note.map_err(|error| error.to_string())? else { return Ok(None) };
        let (step, number, bytes) = decode(&note)?;
        Ok(Some((step, number, bytes.to_vec())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_speak_about_the_same() {
        let (here, there) = (LinkId { local: 7, remote: 2 }, LinkId { local: 2, remote: 7 });
        assert_eq!(about(here), about(there));
        assert_ne!(about(here), about(LinkId { local: 7, remote: 3 }));
    }

    #[test]
    fn who_carries_nothing_has_one_limit_and_who_does_a_new_one() {
        let end = LinkId { local: 0, remote: 1 };
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let stats =
            |frames_sent, in_flight| LinkStats { frames_sent, in_flight, ..Default::default() };
        let mut bench = Bench::default();
        let mut limit = |stats, at| {
            let until = bench.limit(end, stats, start + at * second, 30 * second) - start;
            bench.came_back(end, start + at * second);
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
    fn notes_that_are_none_are_refused() {
        let note = [2, 5, 0, 0, 0, 9, 9];
        assert_eq!(decode(&note), Ok((Step::Ring, 5, &[9, 9][..])));
        for bad in [&note[..4], &[], &[0, 5, 0, 0, 0], &[4, 5, 0, 0, 0]] {
            assert!(decode(bad).is_err(), "{bad:?}");
        }
    }
}
