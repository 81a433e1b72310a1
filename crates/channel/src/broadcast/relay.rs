//! A member of a tree: takes frames in order, keeps them until its children have been sent them.

use std::collections::{BTreeMap, VecDeque};

use thiserror::Error;

/// Versions of which a member may be told before frames of them come.
const PREPARED_MAX: usize = 64;

/// How a peer broke the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Error)]
pub enum RelayBreach {
    /// A frame that was here before.
    #[error("frame {seq} came twice")]
    Twice {
        /// Its number.
        seq: u64,
    },
    /// More frames than a parent has credit for.
    #[error(
        "frame {seq} came beyond its sender's credit of {open_max} frames, while {next} is awaited"
    )]
    Credit {
        /// Its number.
        seq: u64,
        /// The next in order.
        next: u64,
        /// Frames that a parent may have open.
        open_max: usize,
    },
    /// A frame of a tree that was left before.
    #[error("frame {seq} of version {version}, behind a frame of version {after}")]
    Version {
        /// Its number.
        seq: u64,
        /// Its version.
        version: u64,
        /// The version before it.
        after: u64,
    },
    /// An acknowledgement of who was sent nothing, or not so much.
    #[error("an acknowledgement of all frames before {upto}, which were not sent")]
    Acknowledged {
        /// The announced position.
        upto: u64,
    },
    /// Talk of a payload that is not kept for who speaks of it.
    #[error("it speaks of payload {seq}, which is not kept for it")]
    Payload {
        /// The number of its frame.
        seq: u64,
    },
    /// An answer to a change that was not asked for.
    #[error("an answer to the change to version {version}, which is not under way")]
    Answered {
        /// The version of the answer.
        version: u64,
    },
}

/// A frame with its number and the version of the tree by which it goes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Numbered<F> {
    /// Counted from 0 by the source.
    pub seq: u64,
    /// The tree, counted from 0.
    pub version: u64,
    /// The payload.
    pub frame: F,
}

/// A frame that is here, and to how many it is still to be sent.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Retained<F> {
    numbered: Numbered<F>,
    /// Nobody for a frame of the source's own.
    from: Option<u32>,
    left: usize,
}

/// A frame that came before its turn.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Early<F> {
    version: u64,
    from: u32,
    frame: F,
}

/// The senders of our frames.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Parent {
    address: u32,
    /// One past the last frame that came from it.
    last: u64,
    /// All before this are acknowledged to it.
    announced: u64,
}

/// The state of a member of a tree. Peers are named by addresses of the caller's choice.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Relay<F> {
    open_max: usize,
    /// The next frame in order.
    next: u64,
    /// The tree of the last frame taken, or the one that the source has turned to.
    version: u64,
    /// At the source: the first frame of that tree.
    first: u64,
    children: Vec<u32>,
    /// The children in versions that no frame has come of: of the next, and of those behind it, of
    /// which we were told before its frames have come; and of such as were given up.
    prepared: BTreeMap<u64, Vec<u32>>,
    /// Frames that a new parent sent before the old one had sent those before them.
    early: BTreeMap<u64, Early<F>>,
    retained: VecDeque<Retained<F>>,
    /// By child: frames that it is still to be sent, of those that are kept.
    queues: BTreeMap<u32, VecDeque<u64>>,
    /// By child: frames sent that it has not acknowledged.
    open: BTreeMap<u32, VecDeque<u64>>,
    parents: Vec<Parent>,
}

impl<F> Relay<F> {
    /// A member that passes frames on to `children`. No child has more than `open_max` frames that
    /// it has not acknowledged.
    ///
    /// # Panics
    /// When `open_max` is 0.
    pub fn new(children: Vec<u32>, open_max: usize) -> Self {
        assert!(open_max > 0, "nothing could ever be sent");
        Self {
            open_max,
            next: 0,
            version: 0,
            first: 0,
            children,
            prepared: BTreeMap::new(),
            early: BTreeMap::new(),
            retained: VecDeque::new(),
            queues: BTreeMap::new(),
            open: BTreeMap::new(),
            parents: vec![],
        }
    }

    /// Frames of a parent that may be here and not passed on.
    pub fn open_max(&self) -> usize {
        self.open_max
    }

    /// One past the last frame taken.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// The version of the last frame taken.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Frames that are here because some child has not been sent them.
    pub fn retained(&self) -> usize {
        self.retained.len()
    }

    /// A frame has come.
    ///
    /// # Errors
    /// [`RelayBreach`] when it cannot have.
    pub fn receive(&mut self, from: u32, numbered: Numbered<F>) -> Result<(), RelayBreach> {
        let Numbered { seq, version, frame } = numbered;
        if seq < self.next || self.early.contains_key(&seq) {
            return Err(RelayBreach::Twice { seq });
        }
        let early = self.early.values().filter(|early| early.from == from).count();
        let retained = self.retained.iter().filter(|retained| retained.from == Some(from)).count();
        if early + retained >= self.open_max {
            return Err(RelayBreach::Credit { seq, next: self.next, open_max: self.open_max });
        }
        match self.parents.iter_mut().find(|parent| parent.address == from) {
            Some(parent) => parent.last = parent.last.max(seq + 1),
            None => self.parents.push(Parent { address: from, last: seq + 1, announced: 0 }),
        }
        self.early.insert(seq, Early { version, from, frame });
        Ok(())
    }

    /// The next frame in order, if it is here, before it is taken; and its number.
    pub fn upcoming(&mut self) -> Option<(u64, &mut F)> {
        self.early.get_mut(&self.next).map(|early| (self.next, &mut early.frame))
    }

    /// Takes the next frame in order, if it is here; gives its number. It is kept for the children
    /// of its version, and dropped by [`Relay::settle`].
    ///
    /// # Errors
    /// [`RelayBreach::Version`].
    pub fn take(&mut self) -> Result<Option<u64>, RelayBreach> {
        let Some(early) = self.early.remove(&self.next) else { return Ok(None) };
        let Early { version, from, frame } = early;
        let seq = self.next;
        if version < self.version {
            return Err(RelayBreach::Version { seq, version, after: self.version });
        }
        self.keep(Numbered { seq, version, frame }, Some(from));
        Ok(Some(seq))
    }

    /// Keeps the next frame for the children of its version.
    fn keep(&mut self, numbered: Numbered<F>, from: Option<u32>) {
        if numbered.version > self.version {
            // Who was not told of a version has the same children in it; those before it were given
            // up.
            let later = self.prepared.split_off(&(numbered.version + 1));
            let before = std::mem::replace(&mut self.prepared, later);
            if let Some((&version, children)) = before.last_key_value()
                && version == numbered.version
            {
                self.children = children.clone();
            }
            self.version = numbered.version;
        }
        let seq = numbered.seq;
        self.next = seq + 1;
        self.retained.push_back(Retained { numbered, from, left: 0 });
        let children = std::mem::take(&mut self.children);
        self.also(seq, &children);
        self.children = children;
    }

    /// A frame of the source's own.
    pub(super) fn append(&mut self, version: u64, frame: F) -> u64 {
        let seq = self.next;
        self.keep(Numbered { seq, version, frame }, None);
        seq
    }

    /// The source goes over to a new tree: frames of the one before that wait behind the last that
    /// some child was sent go to `children` instead.
    pub(super) fn turn(&mut self, version: u64, children: Vec<u32>) {
        let old = std::mem::replace(&mut self.children, children);
        self.version = version;
        // Frames of a tree that was left earlier are on their way to others.
        let unsent = old.iter().map(|&child| self.unsent(child)).max().unwrap_or(self.next);
        let first = unsent.max(self.first);
        self.first = first;
        for child in &old {
            if let Some(queue) = self.queues.get_mut(child) {
                queue.retain(|&seq| seq < first);
            }
        }
        for retained in self.retained.iter_mut().filter(|retained| retained.numbered.seq >= first) {
            retained.numbered.version = version;
            retained.left = retained.left - old.len() + self.children.len();
            for &child in &self.children {
                self.queues.entry(child).or_default().push_back(retained.numbered.seq);
            }
        }
        self.queues.retain(|_, queue| !queue.is_empty());
    }

    /// The first frame that a child is still to be sent.
    fn unsent(&self, child: u32) -> u64 {
        let queue = self.queues.get(&child);
        queue.and_then(|queue| queue.front()).copied().unwrap_or(self.next)
    }

    /// Whether the source has sent a frame by the tree that it has turned to: then all members will
    /// see one.
    pub(super) fn has_sent_of_version(&self) -> bool {
        self.children.iter().any(|&child| self.unsent(child) > self.first)
    }

    /// Sends the frame that was kept last to others as well: to those beside the tree.
    pub fn also(&mut self, seq: u64, others: &[u32]) {
        if let Some(retained) = self.find(seq) {
            retained.left += others.len();
            for &other in others {
                self.queues.entry(other).or_default().push_back(seq);
            }
        }
    }

    /// A frame that is kept.
    pub fn frame_mut(&mut self, seq: u64) -> Option<&mut F> {
        self.find(seq).map(|retained| &mut retained.numbered.frame)
    }

    fn find(&mut self, seq: u64) -> Option<&mut Retained<F>> {
        let at = self.retained.partition_point(|retained| retained.numbered.seq < seq);
        self.retained.get_mut(at).filter(|retained| retained.numbered.seq == seq)
    }

    /// Frames that are here, taken or not.
    pub fn frames_mut(&mut self) -> impl Iterator<Item = &mut F> {
        let retained = self.retained.iter_mut().map(|retained| &mut retained.numbered.frame);
        retained.chain(self.early.values_mut().map(|early| &mut early.frame))
    }

    /// Those who are still to be sent something, with credit or without.
    pub fn awaiting(&self) -> Vec<u32> {
        self.queues.keys().copied().collect()
    }

    /// The next frame for a child, if there is one and the child has credit.
    pub fn to_send(&self, child: u32) -> Option<&Numbered<F>> {
        if self.open.get(&child).is_some_and(|open| open.len() >= self.open_max) {
            return None;
        }
        let &seq = self.queues.get(&child)?.front()?;
        let at = self.retained.partition_point(|retained| retained.numbered.seq < seq);
        self.retained.get(at).map(|retained| &retained.numbered)
    }

    /// The frame that [`to_send`](Self::to_send) gave was sent.
    pub fn sent(&mut self, child: u32) {
        let Some(queue) = self.queues.get_mut(&child) else { return };
        let Some(seq) = queue.pop_front() else { return };
        if queue.is_empty() {
            self.queues.remove(&child);
        }
        if let Some(retained) = self.find(seq) {
            retained.left -= 1;
        }
        self.open.entry(child).or_default().push_back(seq);
    }

    /// Drops the frames that everybody was sent, in order.
    pub fn settle(&mut self) {
        while self.retained.front().is_some_and(|retained| retained.left == 0) {
            self.retained.pop_front();
        }
    }

    /// A child has passed on all frames before `upto`.
    ///
    /// # Errors
    /// [`RelayBreach::Acknowledged`] when they were not sent to it.
    pub fn acknowledged(&mut self, child: u32, upto: u64) -> Result<(), RelayBreach> {
        let open = self.open.get_mut(&child).filter(|_| upto <= self.next);
        let open = open.ok_or(RelayBreach::Acknowledged { upto })?;
        while open.front().is_some_and(|&seq| seq < upto) {
            open.pop_front();
        }
        Ok(())
    }

    /// Who is to be told that frames were passed on: a parent, and before which frame all are. What
    /// is given counts as told.
    pub fn ack_due(&mut self) -> Option<(u32, u64)> {
        let passed = self.retained.front().map_or(self.next, |retained| retained.numbered.seq);
        let quarter = (self.open_max as u64 / 4).max(1);
        let newest = self.parents.iter().map(|parent| parent.last).max()?;
        let at = self.parents.iter().position(|parent| {
            let upto = passed.min(parent.last);
            // A parent that was left hears of its last frames, though they are few.
            let left = parent.last < newest && upto == parent.last;
            upto > parent.announced && (upto - parent.announced >= quarter || left)
        })?;
        let parent = &mut self.parents[at];
        parent.announced = passed.min(parent.last);
        let announced = (parent.address, parent.announced);
        if parent.last < newest && parent.announced == parent.last {
            self.parents.remove(at);
        }
        Some(announced)
    }

    /// The children in a version that is to come; of one that is here already it comes too late and
    /// changes nothing. False when more was said than can be kept: then it must not be answered.
    pub fn prepare(&mut self, version: u64, children: Vec<u32>) -> bool {
        if self.prepared.len() >= PREPARED_MAX {
            return false;
        }
        if version > self.version {
            self.prepared.insert(version, children);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbered(seq: u64, version: u64) -> Numbered<()> {
        Numbered { seq, version, frame: () }
    }

    /// Takes all that is in order and sends it on to whom there is credit for.
    fn pass_on(relay: &mut Relay<()>) -> Vec<(u32, u64)> {
        let mut sent = vec![];
        while relay.take().unwrap().is_some() {}
        for child in relay.awaiting() {
            while let Some(seq) = relay.to_send(child).map(|next| next.seq) {
                relay.sent(child);
                sent.push((child, seq));
            }
        }
        relay.settle();
        sent
    }

    #[test]
    fn frames_are_taken_in_order_whichever_parent_they_come_from() {
        let mut relay = Relay::new(vec![7], 4);
        relay.receive(2, numbered(1, 1)).unwrap();
        assert_eq!(relay.take(), Ok(None));
        relay.receive(1, numbered(0, 0)).unwrap();
        assert_eq!(pass_on(&mut relay), [(7, 0), (7, 1)]);
        assert_eq!(relay.receive(1, numbered(0, 0)), Err(RelayBreach::Twice { seq: 0 }));
        assert_eq!(relay.receive(2, numbered(1, 1)), Err(RelayBreach::Twice { seq: 1 }));
    }

    #[test]
    fn a_frame_goes_to_the_children_of_its_version() {
        let mut relay = Relay::new(vec![7], 4);
        relay.prepare(1, vec![8, 9]);
        relay.receive(1, numbered(0, 0)).unwrap();
        assert_eq!(pass_on(&mut relay), [(7, 0)]);
        relay.receive(1, numbered(1, 1)).unwrap();
        relay.receive(1, numbered(2, 2)).unwrap();
        assert_eq!(pass_on(&mut relay), [(8, 1), (8, 2), (9, 1), (9, 2)], "as it is in version 2");
        relay.receive(1, numbered(3, 1)).unwrap();
        assert!(matches!(relay.take(), Err(RelayBreach::Version { seq: 3, .. })));
    }

    #[test]
    fn a_version_that_was_given_up_is_forgotten() {
        let mut relay = Relay::new(vec![7], 4);
        relay.prepare(1, vec![8]);
        relay.receive(1, numbered(0, 2)).unwrap();
        assert_eq!(pass_on(&mut relay), [(7, 0)], "of version 2 nothing was said");
        relay.prepare(1, vec![8]);
        relay.prepare(4, vec![5]);
        relay.receive(1, numbered(1, 3)).unwrap();
        relay.receive(1, numbered(2, 4)).unwrap();
        assert_eq!(pass_on(&mut relay), [(5, 2), (7, 1)]);
    }

    #[test]
    fn what_is_said_of_a_version_overtakes_the_frames_of_the_one_before() {
        let mut relay = Relay::new(vec![7], 4);
        assert!(relay.prepare(1, vec![8]));
        assert!(relay.prepare(2, vec![9]));
        relay.receive(1, numbered(0, 1)).unwrap();
        relay.receive(1, numbered(1, 2)).unwrap();
        assert_eq!(pass_on(&mut relay), [(8, 0), (9, 1)]);
        let announced = (3..).take_while(|&version| relay.prepare(version, vec![])).count();
        assert_eq!(announced, PREPARED_MAX);
    }

    #[test]
    fn a_child_without_credit_waits_and_the_others_do_not() {
        let mut relay = Relay::new(vec![7, 8], 2);
        for seq in 0..2 {
            relay.receive(1, numbered(seq, 0)).unwrap();
        }
        assert_eq!(pass_on(&mut relay).len(), 4);
        assert_eq!(relay.retained(), 0);
        relay.acknowledged(8, 1).unwrap();
        relay.receive(1, numbered(2, 0)).unwrap();
        relay.receive(1, numbered(3, 0)).unwrap();
        assert_eq!(pass_on(&mut relay), [(8, 2)]);
        assert_eq!(relay.retained(), 2);
        relay.acknowledged(7, 2).unwrap();
        relay.acknowledged(8, 3).unwrap();
        assert_eq!(pass_on(&mut relay), [(7, 2), (7, 3), (8, 3)]);
        let breach = Err(RelayBreach::Acknowledged { upto: 5 });
        assert_eq!(relay.acknowledged(7, 5), breach);
        assert_eq!(relay.acknowledged(3, 1), Err(RelayBreach::Acknowledged { upto: 1 }));
    }

    #[test]
    fn a_parent_beyond_its_credit_is_refused() {
        let mut relay = Relay::new(vec![7], 2);
        for seq in 1..3 {
            relay.receive(1, numbered(seq, 0)).unwrap();
        }
        assert!(matches!(
            relay.receive(1, numbered(3, 0)),
            Err(RelayBreach::Credit { seq: 3, .. })
        ));
        relay.receive(2, numbered(3, 0)).unwrap();
    }

    #[test]
    fn parents_hear_of_what_was_passed_on() {
        let mut relay = Relay::new(vec![7], 8);
        relay.receive(1, numbered(0, 0)).unwrap();
        assert_eq!(relay.ack_due(), None, "it was not even taken");
        pass_on(&mut relay);
        assert_eq!(relay.ack_due(), None, "a quarter of the credit at a time");
        relay.receive(1, numbered(1, 0)).unwrap();
        pass_on(&mut relay);
        assert_eq!(relay.ack_due(), Some((1, 2)));
        assert_eq!(relay.ack_due(), None);
        relay.receive(1, numbered(2, 0)).unwrap();
        relay.receive(2, numbered(3, 1)).unwrap();
        pass_on(&mut relay);
        let announced = [relay.ack_due(), relay.ack_due(), relay.ack_due()];
        assert!(
            announced.contains(&Some((1, 3))),
            "the old parent hears of its last: {announced:?}"
        );
    }

    #[test]
    fn others_beside_the_tree_get_it_too() {
        let mut relay = Relay::new(vec![], 8);
        relay.receive(1, numbered(0, 0)).unwrap();
        assert_eq!(relay.take(), Ok(Some(0)));
        relay.also(0, &[3]);
        assert_eq!(relay.awaiting(), [3]);
        relay.sent(3);
        relay.settle();
        assert_eq!(relay.retained(), 0);
    }
}
