//! The listing of a watched directory, which the flows of one process share.
//!
//! The first flow that finds a listing due lists for all of them, and each file belongs to one
//! flow. A flow with files that are unread or still settling *owes* rows. No flow gives rows before
//! each such flow was asked twice: after the first answer the reader knows that the flow is not
//! idle, and has told the job so before it asks again.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::fs;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::super::paths::is_hidden;
use crate::format::InputVersion;

/// The next action of a flow.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing until the next list.
    List {
        /// When that is due.
        until_ns: u64,
    },
    /// Say that it is not idle, and ask again.
    Tell,
    /// Ask again soon: others have not told yet.
    Look,
    /// Go on with the file that it reads.
    GoOn,
    /// Read this file.
    Read(PathBuf),
}

/// The files, and whose they are.
#[derive(Debug, Default)]
pub(super) struct Listing {
    next_list_ns: u64,
    /// How many flows there are in the whole job.
    flows: u64,
    /// Every file that is there and of a flow of this process.
    files: HashMap<PathBuf, ListedFile>,
    /// The flows of this process, by the order in which they were opened.
    seats: BTreeMap<u64, Seat>,
    next_seat: u64,
}

/// How a file was when it was last listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Version {
    changed: Option<SystemTime>,
    bytes: u64,
}

impl Version {
    fn of(metadata: &fs::Metadata) -> Self {
        Self { changed: metadata.modified().ok(), bytes: metadata.len() }
    }

    /// The number of this version of a file, by which positions know it again.
    fn number(&self, path: &Path) -> u64 {
        let since = self.changed.and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        let (secs, nanos) = since.map_or((0, 0), |at| (at.as_secs(), at.subsec_nanos()));
        let numbers = [self.bytes, secs, u64::from(nanos)].map(u64::to_le_bytes);
        InputVersion::mark_of(numbers.as_flattened().iter().chain(path.as_os_str().as_bytes()))
    }
}

/// The number of a file as it is now; `None` if it is not there.
pub(super) fn number_of(path: &Path) -> Option<u64> {
    Some(Version::of(&fs::metadata(path).ok()?).number(path))
}

#[derive(Debug)]
struct ListedFile {
    version: Version,
    /// When it was first listed like this.
    since_ns: u64,
    queued: bool,
}

/// How long a directory is left alone.
#[derive(Debug, Clone, Copy)]
pub(super) struct ListTimes {
    /// Between two lists.
    pub(super) interval_ns: u64,
    /// A file must not have changed for as long before it is read.
    pub(super) settle_ns: u64,
}

/// A flow.
#[derive(Debug)]
struct Seat {
    flow: u64,
    queue: VecDeque<PathBuf>,
    /// Files that have not settled.
    settling: usize,
    reading: bool,
    reported: Reported,
    /// The numbers of files that were read by the run before, until the flow has been listed for.
    done: Option<HashSet<u64>>,
}

/// Whether the job knows that a flow is not idle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reported {
    No,
    /// The flow has said so, and was not asked again.
    Pending,
    Yes,
}

impl Seat {
    fn has_done(&self, number: u64) -> bool {
        self.done.as_ref().is_some_and(|done| done.contains(&number))
    }

    fn owes(&self) -> bool {
        self.reading || !self.queue.is_empty() || self.settling > 0
    }
}

impl Listing {
    /// Opens one of `flows` flows, of which the files of the numbers `done` were read before.
    pub(super) fn join(&mut self, flow: u64, flows: u64, done: HashSet<u64>) -> u64 {
        let seat = self.next_seat;
        self.next_seat += 1;
        self.flows = flows;
        let queue = VecDeque::new();
        let (reported, done) = (Reported::No, Some(done));
        let fresh = Seat { flow, queue, settling: 0, reading: false, reported, done };
        self.seats.insert(seat, fresh);
        seat
    }

    /// A flow is closed. With the last one all is forgotten.
    pub(super) fn leave(&mut self, seat: u64) {
        self.seats.remove(&seat);
        if self.seats.is_empty() {
            *self = Self::default();
        }
    }

    /// Whether it is time for a list.
    pub(super) fn is_due(&self, now_ns: u64) -> bool {
        now_ns >= self.next_list_ns
    }

    /// Takes the listed paths: queues new files that have settled at their flows.
    pub(super) fn list(
        &mut self,
        paths: Vec<PathBuf>,
        now_ns: u64,
        ListTimes { interval_ns, settle_ns }: ListTimes,
    ) {
        self.next_list_ns = now_ns + interval_ns;
        // Flows of other processes list within an interval.
        let alone = (0..self.flows).all(|flow| self.seats.values().any(|seat| seat.flow == flow));
        let settle_ns = if alone { settle_ns } else { settle_ns.max(interval_ns) };
        let mut before = std::mem::take(&mut self.files);
        let (mut ready, mut changed) = (Vec::new(), HashSet::new());
        self.seats.values_mut().for_each(|seat| seat.settling = 0);
        for path in paths {
            let flow = flow_of(&path, self.flows);
            let is_own = self.seats.values().any(|seat| seat.flow == flow);
            if is_hidden(&path) || !is_own {
                continue;
            }
            let version = match (fs::metadata(&path), before.get(&path)) {
                (Ok(metadata), _) => Version::of(&metadata),
                // A file that cannot be looked at is as it was: it may have been read.
                (Err(error), Some(entry)) if error.kind() != ErrorKind::NotFound => entry.version,
                // Gone since it was listed: the next list will not have it.
                (Err(_), _) => continue,
            };
            let mut entry = match before.remove(&path) {
                Some(entry) if entry.version == version => entry,
                _ => {
                    changed.insert(path.clone());
                    // One that was read by the run before is known already.
                    let number = version.number(&path);
                    let queued = self.seats_of(flow).any(|seat| seat.has_done(number));
                    ListedFile { version, since_ns: now_ns, queued }
                }
            };
            if !entry.queued && now_ns - entry.since_ns >= settle_ns {
                entry.queued = true;
                ready.push((version.changed, path.clone(), flow));
            }
            let unsettled = usize::from(!entry.queued);
            self.seats_of(flow).for_each(|seat| seat.settling += unsettled);
            self.files.insert(path, entry);
        }
        // A file that is not listed is gone, and one that is listed is known.
        self.seats.values_mut().for_each(|seat| seat.done = None);
        // A file that has changed is read when it has settled again.
        self.seats.values_mut().for_each(|seat| seat.queue.retain(|path| !changed.contains(path)));
        ready.sort();
        for (_, path, flow) in ready {
            self.seats_of(flow).for_each(|seat| seat.queue.push_back(path.clone()));
        }
    }

    fn seats_of(&mut self, flow: u64) -> impl Iterator<Item = &mut Seat> {
        self.seats.values_mut().filter(move |seat| seat.flow == flow)
    }

    /// The numbers of the files of a flow that are there and were given to it, without those that
    /// it has not begun to read.
    pub(super) fn begun(&self, seat: u64) -> Vec<u64> {
        let Some(own) = self.seats.get(&seat) else { return vec![] };
        if let Some(done) = &own.done {
            return done.iter().copied().collect();
        }
        let queue: HashSet<&PathBuf> = own.queue.iter().collect();
        let files = self.files.iter().filter(|(path, file)| {
            file.queued && flow_of(path, self.flows) == own.flow && !queue.contains(path)
        });
        files.map(|(path, file)| file.version.number(path)).collect()
    }

    /// Whether a flow owes rows.
    pub(super) fn owes(&self, seat: u64) -> bool {
        self.seats.get(&seat).is_some_and(Seat::owes)
    }

    /// The next action of a flow; `reading` says whether it reads a file now.
    pub(super) fn step(&mut self, seat: u64, reading: bool) -> Step {
        let until_ns = self.next_list_ns;
        let Some(own) = self.seats.get_mut(&seat) else { return Step::List { until_ns } };
        own.reading = reading;
        if !own.owes() {
            own.reported = Reported::No;
            return Step::List { until_ns };
        }
        own.reported = match own.reported {
            Reported::No => {
                own.reported = Reported::Pending;
                return Step::Tell;
            }
            Reported::Pending | Reported::Yes => Reported::Yes,
        };
        if self.seats.values().any(|seat| seat.owes() && seat.reported != Reported::Yes) {
            return Step::Look;
        }
        let Some(own) = self.seats.get_mut(&seat).filter(|own| !own.reading) else {
            return Step::GoOn;
        };
        match own.queue.pop_front() {
            Some(path) => {
                own.reading = true;
                Step::Read(path)
            }
            None => Step::List { until_ns },
        }
    }
}

/// The number of the flow that reads a file: the same in each version of the program, for a job may
/// go on under another one.
fn flow_of(path: &Path, flows: u64) -> u64 {
    InputVersion::mark_of(path.as_os_str().as_bytes().iter()) % flows.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A listing with `flows` flows; each flow in `found` has a file in its queue.
    fn listing(flows: u64, found: &[u64]) -> Listing {
        let mut listing = Listing { next_list_ns: 9, ..Listing::default() };
        for flow in 0..flows {
            listing.join(flow, flows, HashSet::new());
        }
        for seat in found {
            find(&mut listing, *seat, "a");
        }
        listing
    }

    fn find(listing: &mut Listing, seat: u64, name: &str) {
        listing.seats.get_mut(&seat).unwrap().queue.push_back(name.into());
    }

    const LIST: Step = Step::List { until_ns: 9 };

    fn read(name: &str) -> Step {
        Step::Read(name.into())
    }

    #[test]
    fn no_file_is_read_before_all_that_have_one_have_told() {
        let mut listing = listing(3, &[0, 1]);
        assert_eq!(listing.step(0, false), Step::Tell);
        assert_eq!(listing.step(0, false), Step::Look);
        assert_eq!(listing.step(2, false), LIST, "it has none, and nobody waits for it");
        assert_eq!(listing.step(1, false), Step::Tell);
        assert_eq!(listing.step(0, false), Step::Look, "told, and perhaps not heard");
        assert_eq!(listing.step(1, false), read("a"));
        assert_eq!(listing.step(0, false), read("a"));
        assert_eq!(listing.step(0, true), Step::GoOn);
        // Another finds one: a flow that reads waits until all know.
        find(&mut listing, 2, "b");
        assert_eq!(listing.step(0, true), Step::Look);
        assert_eq!(listing.step(2, false), Step::Tell);
        assert_eq!(listing.step(2, false), read("b"));
        assert_eq!(listing.step(0, true), Step::GoOn);
        assert_eq!(listing.step(0, false), LIST);
        // Having read all, it may have been idle since: it tells again.
        find(&mut listing, 0, "c");
        assert_eq!(listing.step(0, false), Step::Tell);
    }

    #[test]
    fn a_flow_that_is_closed_is_waited_for_by_nobody() {
        let mut listing = listing(2, &[0, 1]);
        assert_eq!(listing.step(0, false), Step::Tell);
        assert_eq!(listing.step(0, false), Step::Look);
        listing.leave(1);
        assert_eq!(listing.step(0, false), read("a"));
        listing.leave(0);
        assert!(listing.seats.is_empty() && listing.next_list_ns == 0, "all is forgotten");
    }

    #[test]
    fn a_file_that_changes_before_it_is_read_is_read_once() {
        let name = format!("millstream-listing-{}.csv", std::process::id());
        let path = std::env::temp_dir().join(name);
        let mut listing = listing(1, &[]);
        let times = ListTimes { interval_ns: 1, settle_ns: 0 };
        for (now_ns, text) in [(1, "a"), (2, "longer")] {
            fs::write(&path, text).unwrap();
            listing.list(vec![path.clone()], now_ns, times);
        }
        assert_eq!(listing.step(0, false), Step::Tell);
        assert_eq!(listing.step(0, false), Step::Read(path.clone()));
        assert_eq!(listing.begun(0).len(), 1);
        assert_eq!(listing.step(0, false), Step::List { until_ns: 3 });
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_file_that_has_not_settled_is_owed() {
        let mut listing = listing(1, &[]);
        listing.seats.get_mut(&0).unwrap().settling = 1;
        assert!(listing.owes(0));
        assert_eq!([listing.step(0, false), listing.step(0, false)], [Step::Tell, LIST]);
    }
}
