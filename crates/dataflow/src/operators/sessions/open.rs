//! Sessions that may go on, by the id of their key.
//!
//! They are found in the order of their ends by a wheel: a session lies in the bucket of the time
//! of some row of it, and moves on when that bucket has its turn and it has gone on since. So most
//! sessions are moved once, and sorted among the few of a bucket.

use std::collections::BTreeMap;

use state::prefetch;

use super::rows::{Chain, Chains, Place};

/// No session, or no key.
const NONE: u32 = u32::MAX;

/// What an entry of [`Open::before`] takes, about.
const BEFORE_BYTES: usize = 32;

/// Sessions of so many places ahead are asked for.
pub(super) const AHEAD: usize = 12;

/// The gap is so many buckets long, or up to twice as many.
const BUCKETS: i64 = 16;

/// A session as far as it is known, in a cache line.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
pub(super) struct Session {
    /// The times of its first and its last row.
    pub(super) first: i64,
    pub(super) last: i64,
    /// Those of its rows that are given out.
    pub(super) rows: Chain,
    /// The id of its key; none once it has become part of another.
    key: u32,
}

const _: () = assert!(size_of::<Session>() == 64);

/// A session and its last time as one number, which is less the later it is: sorted without a
/// branch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Due(i128);

impl Due {
    fn new(last: i64, at: u32) -> Self {
        Self(!(i128::from(last) << 32 | i128::from(at)))
    }

    /// Its last time and its place.
    fn session(self) -> (i64, u32) {
        ((!self.0 >> 32) as i64, !self.0 as u32)
    }
}

/// Sessions that may go on. No two of a key are close.
pub(super) struct Open {
    gap: i64,
    sessions: Vec<Session>,
    free: Vec<u32>,
    /// By key its newest session.
    newest: Vec<u32>,
    /// The others, of which there are few: by key and first time.
    before: BTreeMap<(u32, i64), u32>,
    /// Each session once, by the time of a row of it, shifted: it is not over before that is. Those
    /// that have become part of another stay until then.
    buckets: BTreeMap<i64, Vec<u32>>,
    /// By how many bits. A bucket is not longer than the gap: when it has its turn, no row to come
    /// belongs there.
    shift: u32,
    /// Those of the bucket that has its turn, by their last times, latest first.
    due: Vec<Due>,
    /// Keys with sessions.
    keys: usize,
}

impl Open {
    pub(super) fn new(gap: i64) -> Self {
        Self {
            gap,
            sessions: vec![],
            free: vec![],
            newest: vec![],
            before: BTreeMap::new(),
            buckets: BTreeMap::new(),
            shift: (gap / BUCKETS).max(1).ilog2(),
            due: vec![],
            keys: 0,
        }
    }

    /// From now on there are `keys` ids of keys, not fewer than there were.
    pub(super) fn grow(&mut self, keys: usize) {
        self.newest.resize(keys, NONE);
    }

    /// Asks for what [`Open::add`] will need of a key.
    #[inline]
    pub(super) fn ahead(&self, key: u32) {
        prefetch(&self.sessions, self.newest[key as usize] as usize);
    }

    /// Puts a row into its session, with its place if it is given out. It may bring others
    /// together.
    #[inline]
    pub(super) fn add(&mut self, key: u32, time: i64, place: Option<Place>, rows: &mut Chains) {
        let at = self.near(key, time).unwrap_or_else(|| self.begin(key, time));
        let session = &mut self.sessions[at as usize];
        if let Some(place) = place {
            rows.push(&mut session.rows, place);
        }
        // A newer one is not close: then the row would be in that.
        session.last = session.last.max(time);
        if time < session.first {
            self.reach_back(at, time, rows);
        }
    }

    /// The newest session of a key to which a row of this time belongs.
    #[inline]
    fn near(&self, key: u32, time: i64) -> Option<u32> {
        let newest = self.newest[key as usize];
        let session = self.sessions.get(newest as usize)?;
        if session.last.saturating_add(self.gap) < time {
            return None;
        }
        let horizon = time.saturating_add(self.gap);
        if session.first <= horizon {
            return Some(newest);
        }
        let (_, &at) = self.before.range((key, i64::MIN)..=(key, horizon)).next_back()?;
        let reaches = self.sessions[at as usize].last.saturating_add(self.gap) >= time;
        reaches.then_some(at)
    }

    fn begin(&mut self, key: u32, time: i64) -> u32 {
        let session = Session { first: time, last: time, rows: Chain::EMPTY, key };
        let at = match self.free.pop() {
            Some(at) => {
                self.sessions[at as usize] = session;
                at
            }
            None => {
                self.sessions.push(session);
                self.sessions.len() as u32 - 1
            }
        };
        self.wait(time, at);
        let newest = &mut self.newest[key as usize];
        match self.sessions.get(*newest as usize) {
            None => {
                *newest = at;
                self.keys += 1;
            }
            Some(last) if last.first < time => {
                self.before.insert((key, last.first), *newest);
                *newest = at;
            }
            Some(_) => {
                self.before.insert((key, time), at);
            }
        }
        at
    }

    /// A session begins earlier than it did: those before it may be close now.
    fn reach_back(&mut self, at: u32, time: i64, rows: &mut Chains) {
        let Session { first: was, key, .. } = self.sessions[at as usize];
        self.sessions[at as usize].first = time;
        if self.before.is_empty() {
            return;
        }
        let is_newest = self.newest[key as usize] == at;
        if !is_newest {
            self.before.remove(&(key, was));
        }
        let mut first = time;
        // Only the last of them: what is before that is not close to it.
        if let Some((&entry, &close)) = self.before.range((key, i64::MIN)..(key, time)).next_back()
            && self.sessions[close as usize].last.saturating_add(self.gap) >= time
        {
            self.before.remove(&entry);
            let older = &mut self.sessions[close as usize];
            first = older.first;
            older.key = NONE;
            let chain = std::mem::replace(&mut older.rows, Chain::EMPTY);
            rows.append(&mut self.sessions[at as usize].rows, chain);
        }
        self.sessions[at as usize].first = first;
        if !is_newest {
            self.before.insert((key, first), at);
        }
    }

    /// Ends the session that ends first, if it is over when all rows to come are at `horizon` or
    /// later. Its rows are to be taken: its place is free.
    #[inline]
    pub(super) fn over(&mut self, horizon: i64) -> Option<&mut Session> {
        let at = self.first(horizon)?;
        self.free.push(at);
        let session = &mut self.sessions[at as usize];
        let key = std::mem::replace(&mut session.key, NONE);
        let newest = &mut self.newest[key as usize];
        if *newest == at {
            // Those before it were over before.
            *newest = NONE;
            self.keys -= 1;
        } else {
            self.before.remove(&(key, session.first));
        }
        Some(session)
    }

    fn first(&mut self, horizon: i64) -> Option<u32> {
        loop {
            let Some((time, at)) = self.due.last().map(|due| due.session()) else {
                self.turn(horizon)?;
                continue;
            };
            if !self.is_over(time, horizon) {
                return None;
            }
            self.due.pop();
            if let Some(ahead) = self.due.len().checked_sub(AHEAD) {
                prefetch(&self.sessions, self.due[ahead].session().1 as usize);
            }
            let Session { key, last, .. } = self.sessions[at as usize];
            match key {
                NONE => self.free.push(at),
                _ if last > time => self.wait(last, at),
                _ => return Some(at),
            }
        }
    }

    /// Whether a session whose last row was then is over.
    fn is_over(&self, last: i64, horizon: i64) -> bool {
        last.saturating_add(self.gap) < horizon || horizon == i64::MAX
    }

    /// Puts a session where it is found when it may be over.
    fn wait(&mut self, time: i64, at: u32) {
        self.buckets.entry(time >> self.shift).or_default().push(at);
    }

    /// Gives the next bucket its turn, if sessions of it may be over.
    fn turn(&mut self, horizon: i64) -> Option<()> {
        let (&bucket, _) = self.buckets.first_key_value()?;
        if !self.is_over(bucket << self.shift, horizon) {
            return None;
        }
        let sessions = self.buckets.remove(&bucket)?;
        for (number, &at) in sessions.iter().enumerate() {
            if let Some(&next) = sessions.get(number + AHEAD) {
                prefetch(&self.sessions, next as usize);
            }
            let Session { key, last, .. } = self.sessions[at as usize];
            match key {
                NONE => self.free.push(at),
                _ if last >> self.shift > bucket => self.wait(last, at),
                _ => self.due.push(Due::new(last, at)),
            }
        }
        self.due.sort_unstable();
        Some(())
    }

    /// Keys with sessions.
    pub(super) fn keys(&self) -> usize {
        self.keys
    }

    /// Gives the keys with sessions new ids, in the order of the old ones, which it gives.
    pub(super) fn rename(&mut self) -> Vec<u32> {
        let mut old = Vec::with_capacity(self.keys);
        let mut newest = Vec::with_capacity(self.keys);
        for (key, at) in self.newest.iter_mut().enumerate().filter(|(_, at)| **at != NONE) {
            newest.push(std::mem::replace(at, old.len() as u32));
            old.push(key as u32);
        }
        let names = std::mem::replace(&mut self.newest, newest);
        for session in self.sessions.iter_mut().filter(|session| session.key != NONE) {
            session.key = names[session.key as usize];
        }
        let before = std::mem::take(&mut self.before).into_iter();
        self.before = before.map(|((key, first), at)| ((names[key as usize], first), at)).collect();
        old
    }

    /// Adds a session that is close to no other of its key.
    pub(super) fn add_span(&mut self, key: u32, first: i64, last: i64) {
        let at = self.begin(key, first);
        self.sessions[at as usize].last = last.max(first);
    }

    /// All sessions, with the ids of their keys.
    pub(super) fn sessions(&self) -> impl Iterator<Item = (u32, &Session)> {
        let open = self.sessions.iter().filter(|session| session.key != NONE);
        open.map(|session| (session.key, session))
    }

    /// The rows of all sessions.
    pub(super) fn chains(&mut self) -> impl Iterator<Item = &mut Chain> {
        self.sessions.iter_mut().map(|session| &mut session.rows)
    }

    pub(super) fn bytes(&self) -> usize {
        self.sessions.capacity() * size_of::<Session>()
            + (self.free.capacity() + self.newest.capacity()) * size_of::<u32>()
            + self.before.len() * BEFORE_BYTES
            + self.sessions.len() * size_of::<u32>()
            + self.due.capacity() * size_of::<Due>()
    }
}
