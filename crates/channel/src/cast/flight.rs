//! Payloads beside the tree: the network's own multicast carries them to all members at once, and
//! loses some. Along the tree go stubs in their place.
//!
//! ```text
//!   source ══ payload ═══▶ every member            once, lossy
//!     └─ stub ─▶ member ── stub ──▶ member         by the tree: in order, with credit, each once
//!        ▲          └─ lacks ─┐
//!        └───────────────────◀┘  and is sent it again, alone
//! ```
//!
//! A member takes a stub, in its turn, when its payload is here. So order, credit and changes of
//! the tree are what they are without. The source keeps a payload until every member has said that
//! it had it, and gives out no more than [`Flight::has_room`] allows before: what is missing can
//! always be asked for.

use std::collections::{BTreeMap, VecDeque};

use super::relay::Breach;

/// What a source keeps of the payloads that it has given to the network.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Flight<P> {
    /// By member: the frame before which it has had all.
    had: BTreeMap<u32, u64>,
    kept_max: usize,
    kept: BTreeMap<u64, P>,
    /// Who has asked for which, in order.
    asked: VecDeque<(u32, u64)>,
}

impl<P> Flight<P> {
    /// Payloads that are kept at most, where a child has credit for `open_max` frames. More than
    /// that: one that takes nothing must be noticed by its parent.
    pub const fn kept_max(open_max: usize) -> usize {
        2 * open_max
    }

    /// Of a source with these members, each of which may have `open_max` frames open.
    pub fn new(members: &[u32], open_max: usize) -> Self {
        Self {
            had: members.iter().map(|&member| (member, 0)).collect(),
            kept_max: Self::kept_max(open_max),
            kept: BTreeMap::new(),
            asked: VecDeque::new(),
        }
    }

    /// Members that it flies to.
    pub fn members(&self) -> usize {
        self.had.len()
    }

    /// Whether one more payload can be kept.
    pub fn has_room(&self) -> bool {
        self.kept.len() < self.kept_max
    }

    /// Whether every member has had everything.
    pub fn is_over(&self) -> bool {
        self.kept.is_empty()
    }

    /// Keeps the payload of a frame.
    pub fn launch(&mut self, seq: u64, payload: P) {
        self.kept.insert(seq, payload);
    }

    /// The payloads that are kept, in order, with the numbers of their frames.
    pub fn kept_mut(&mut self) -> impl Iterator<Item = (u64, &mut P)> {
        self.kept.iter_mut().map(|(&seq, payload)| (seq, payload))
    }

    /// A member has had all payloads before `upto`.
    ///
    /// # Errors
    /// [`Breach::Payload`] of whom nothing flies to.
    pub fn had(&mut self, member: u32, upto: u64) -> Result<(), Breach> {
        let had = self.had.get_mut(&member).ok_or(Breach::Payload { seq: upto })?;
        *had = upto.max(*had);
        let all = self.had.values().copied().min().unwrap_or(u64::MAX);
        self.kept = self.kept.split_off(&all);
        let had = &self.had;
        self.asked.retain(|(member, seq)| had[member] <= *seq);
        Ok(())
    }

    /// A member asks for a payload.
    ///
    /// # Errors
    /// [`Breach::Payload`] of one that it has had or asked for, or that was never there.
    pub fn lacks(&mut self, member: u32, seq: u64) -> Result<(), Breach> {
        let waits = self.had.get(&member).is_some_and(|had| *had <= seq);
        if !waits || !self.kept.contains_key(&seq) || self.asked.contains(&(member, seq)) {
            return Err(Breach::Payload { seq });
        }
        self.asked.push_back((member, seq));
        Ok(())
    }

    /// What is to be sent again next: to whom, which, and the payload.
    pub fn to_fill(&self) -> Option<(u32, u64, &P)> {
        let &(member, seq) = self.asked.front()?;
        self.kept.get(&seq).map(|payload| (member, seq, payload))
    }

    /// What [`Flight::to_fill`] gave was sent.
    pub fn filled(&mut self) {
        self.asked.pop_front();
    }
}

/// What a member knows of the payloads of a source: it waits for the one of the next frame alone.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Landing {
    quarter: u64,
    /// Payloads that came, of which the source was not told.
    untold: u64,
    awaited: Option<Awaited>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Awaited {
    seq: u64,
    since_ns: u64,
    asked: bool,
}

impl Landing {
    /// Of a member that may have `open_max` frames open.
    pub fn new(open_max: usize) -> Self {
        Self { quarter: (open_max as u64 / 4).max(1), untold: 0, awaited: None }
    }

    /// The payload of the next frame, `seq`, is not here.
    pub fn awaits(&mut self, seq: u64, now_ns: u64) {
        self.awaited.get_or_insert(Awaited { seq, since_ns: now_ns, asked: false });
    }

    /// The payload of the next frame is here.
    pub fn landed(&mut self) {
        self.awaited = None;
        self.untold += 1;
    }

    /// Whether a payload is awaited.
    pub fn is_awaiting(&self) -> bool {
        self.awaited.is_some()
    }

    /// Whether one is awaited for which nobody was asked yet.
    pub fn is_patient(&self) -> bool {
        self.awaited.is_some_and(|awaited| !awaited.asked)
    }

    /// The payload to ask the source for, once for each: one that was awaited for `patience_ns`.
    pub fn to_ask(&mut self, now_ns: u64, patience_ns: u64) -> Option<u64> {
        let awaited = self.awaited.as_mut().filter(|awaited| !awaited.asked)?;
        let due = now_ns.saturating_sub(awaited.since_ns) >= patience_ns;
        awaited.asked = due;
        due.then_some(awaited.seq)
    }

    /// Whether the source is to be told now how far it is: a quarter of the credit at a time, or
    /// when the next frame is not here or lacks its payload (`is_idle`). What is given counts as
    /// told.
    pub fn to_tell(&mut self, is_idle: bool) -> bool {
        let tells = self.untold >= self.quarter || (self.untold > 0 && is_idle);
        self.untold = if tells { 0 } else { self.untold };
        tells
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_is_kept_until_all_have_had_it() {
        let mut flight = Flight::new(&[3, 5], 1);
        flight.launch(0, 'a');
        assert!(flight.has_room());
        flight.launch(2, 'b');
        assert!(!flight.has_room());
        assert_eq!(flight.lacks(5, 0), Ok(()));
        assert_eq!(flight.lacks(5, 0), Err(Breach::Payload { seq: 0 }), "once is enough");
        assert_eq!(flight.lacks(5, 1), Err(Breach::Payload { seq: 1 }), "it went by the tree");
        assert_eq!(flight.lacks(4, 0), Err(Breach::Payload { seq: 0 }), "no member");
        assert_eq!(flight.to_fill(), Some((5, 0, &'a')));
        flight.had(3, 3).unwrap();
        assert_eq!(flight.lacks(3, 2), Err(Breach::Payload { seq: 2 }), "it has had it");
        assert_eq!(flight.kept_mut().map(|(seq, _)| seq).collect::<Vec<_>>(), [0, 2]);
        flight.had(5, 1).unwrap();
        assert_eq!((flight.to_fill(), flight.has_room()), (None, true));
        flight.had(5, 3).unwrap();
        assert!(flight.is_over());
        assert_eq!(flight.had(4, 1), Err(Breach::Payload { seq: 1 }));
    }

    #[test]
    fn a_member_asks_once_and_tells_a_quarter_at_a_time_or_when_it_has_to_wait() {
        let mut landing = Landing::new(8);
        assert_eq!(landing.to_ask(9, 0), None);
        landing.awaits(4, 10);
        landing.awaits(4, 20);
        assert_eq!(landing.to_ask(14, 5), None);
        assert!(landing.is_patient());
        assert_eq!(landing.to_ask(15, 5), Some(4));
        assert_eq!(landing.to_ask(30, 5), None);
        assert!(landing.is_awaiting() && !landing.is_patient());
        assert!(!landing.to_tell(true), "there is nothing to tell");
        landing.landed();
        assert!(!landing.is_awaiting() && !landing.to_tell(false));
        landing.landed();
        assert!(landing.to_tell(false) && !landing.to_tell(true));
        landing.landed();
        assert!(landing.to_tell(true));
    }
}
