//! Payloads beside the tree: the network's own multicast carries them to all members at once, and
//! loses some. Along the tree go placeholders in their place.
//!
//! ```text
//!   source ══ payload ═══▶ every member            once, lossy
//!     └─ placeholder ─▶ member ── placeholder ─▶ member   by the tree: in order, each once
//!        ▲          └─ lacks ─┐
//!        └───────────────────◀┘  and is sent it again, alone
//! ```
//!
//! A member takes a placeholder, in its turn, when its payload is here. So order, credit and
//! changes of the tree are what they are without. The source keeps a payload until every member has
//! said that it had it, and sends no more than [`InFlightPayloads::has_room`] allows before: what
//! is missing can always be asked for.

use std::collections::{BTreeMap, VecDeque};

use super::relay::RelayBreach;

/// The payloads that a source has given to the network and retains.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct InFlightPayloads<P> {
    /// By member: the frame before which it has had all.
    acknowledged_payloads: BTreeMap<u32, u64>,
    retained_max: usize,
    retained: BTreeMap<u64, P>,
    /// Requests for payloads, in order.
    asked: VecDeque<(u32, u64)>,
}

impl<P> InFlightPayloads<P> {
    /// Payloads that are kept at most, where a child has credit for `open_max` frames. More than
    /// that: one that takes nothing must be noticed by its parent.
    pub const fn retained_max(open_max: usize) -> usize {
        2 * open_max
    }

    /// Of a source with these members, each of which may have `open_max` frames open.
    pub fn new(members: &[u32], open_max: usize) -> Self {
        Self {
            acknowledged_payloads: members.iter().map(|&member| (member, 0)).collect(),
            retained_max: Self::retained_max(open_max),
            retained: BTreeMap::new(),
            asked: VecDeque::new(),
        }
    }

    /// Members that it flies to.
    pub fn members(&self) -> usize {
        self.acknowledged_payloads.len()
    }

    /// Whether one more payload can be kept.
    pub fn has_room(&self) -> bool {
        self.retained.len() < self.retained_max
    }

    /// Whether every member has had everything.
    pub fn is_over(&self) -> bool {
        self.retained.is_empty()
    }

    /// Keeps the payload of a frame.
    pub fn add(&mut self, seq: u64, payload: P) {
        self.retained.insert(seq, payload);
    }

    /// The payloads that are kept, in order, with the numbers of their frames.
    pub fn retained_mut(&mut self) -> impl Iterator<Item = (u64, &mut P)> {
        self.retained.iter_mut().map(|(&seq, payload)| (seq, payload))
    }

    /// A member has had all payloads before `upto`.
    ///
    /// # Errors
    /// [`RelayBreach::Payload`] of a member to which nothing is in flight.
    pub fn acknowledged_payloads(&mut self, member: u32, upto: u64) -> Result<(), RelayBreach> {
        let acknowledged_payloads = self
            .acknowledged_payloads
            .get_mut(&member)
            .ok_or(RelayBreach::Payload { seq: upto })?;
        *acknowledged_payloads = upto.max(*acknowledged_payloads);
        let all = self.acknowledged_payloads.values().copied().min().unwrap_or(u64::MAX);
        self.retained = self.retained.split_off(&all);
        let acknowledged_payloads = &self.acknowledged_payloads;
        self.asked.retain(|(member, seq)| acknowledged_payloads[member] <= *seq);
        Ok(())
    }

    /// A member asks for a payload.
    ///
    /// # Errors
    /// [`RelayBreach::Payload`] of one that it has had or asked for, or that was never there.
    pub fn reports_missing(&mut self, member: u32, seq: u64) -> Result<(), RelayBreach> {
        let waits = self
            .acknowledged_payloads
            .get(&member)
            .is_some_and(|acknowledged_payloads| *acknowledged_payloads <= seq);
        if !waits || !self.retained.contains_key(&seq) || self.asked.contains(&(member, seq)) {
            return Err(RelayBreach::Payload { seq });
        }
        self.asked.push_back((member, seq));
        Ok(())
    }

    /// The next repair: the member, the number, and the payload.
    pub fn next_repair(&self) -> Option<(u32, u64, &P)> {
        let &(member, seq) = self.asked.front()?;
        self.retained.get(&seq).map(|payload| (member, seq, payload))
    }

    /// The repair of [`InFlightPayloads::next_repair`] was sent.
    pub fn repaired(&mut self) {
        self.asked.pop_front();
    }
}

/// A member's view of the payloads of a source: it waits for the one of the next frame alone.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ExpectedPayloads {
    quarter: u64,
    /// Payloads that came and are not yet acknowledged.
    untold: u64,
    awaited: Option<Awaited>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Awaited {
    seq: u64,
    since_ns: u64,
    asked: bool,
}

impl ExpectedPayloads {
    /// Of a member that may have `open_max` frames open.
    pub fn new(open_max: usize) -> Self {
        Self { quarter: (open_max as u64 / 4).max(1), untold: 0, awaited: None }
    }

    /// The payload of the next frame, `seq`, is not here.
    pub fn awaits(&mut self, seq: u64, now_ns: u64) {
        self.awaited.get_or_insert(Awaited { seq, since_ns: now_ns, asked: false });
    }

    /// The payload of the next frame is here.
    pub fn payload_arrived(&mut self) {
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

    /// The payload to ask the source for, once for each: one that was awaited for `timeout_ns`.
    pub fn next_request(&mut self, now_ns: u64, timeout_ns: u64) -> Option<u64> {
        let awaited = self.awaited.as_mut().filter(|awaited| !awaited.asked)?;
        let due = now_ns.saturating_sub(awaited.since_ns) >= timeout_ns;
        awaited.asked = due;
        due.then_some(awaited.seq)
    }

    /// Whether an acknowledgement is due: a quarter of the credit at a time, or
    /// when the next frame is not here or lacks its payload (`is_idle`). What is given counts as
    /// told.
    pub fn ack_due(&mut self, is_idle: bool) -> bool {
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
        let mut flight = InFlightPayloads::new(&[3, 5], 1);
        flight.add(0, 'a');
        assert!(flight.has_room());
        flight.add(2, 'b');
        assert!(!flight.has_room());
        assert_eq!(flight.reports_missing(5, 0), Ok(()));
        assert_eq!(
            flight.reports_missing(5, 0),
            Err(RelayBreach::Payload { seq: 0 }),
            "once is enough"
        );
        assert_eq!(
            flight.reports_missing(5, 1),
            Err(RelayBreach::Payload { seq: 1 }),
            "it went by the tree"
        );
        assert_eq!(flight.reports_missing(4, 0), Err(RelayBreach::Payload { seq: 0 }), "no member");
        assert_eq!(flight.next_repair(), Some((5, 0, &'a')));
        flight.acknowledged_payloads(3, 3).unwrap();
        assert_eq!(
            flight.reports_missing(3, 2),
            Err(RelayBreach::Payload { seq: 2 }),
            "it has had it"
        );
        assert_eq!(flight.retained_mut().map(|(seq, _)| seq).collect::<Vec<_>>(), [0, 2]);
        flight.acknowledged_payloads(5, 1).unwrap();
        assert_eq!((flight.next_repair(), flight.has_room()), (None, true));
        flight.acknowledged_payloads(5, 3).unwrap();
        assert!(flight.is_over());
        assert_eq!(flight.acknowledged_payloads(4, 1), Err(RelayBreach::Payload { seq: 1 }));
    }

    #[test]
    fn a_member_asks_once_and_tells_a_quarter_at_a_time_or_when_it_has_to_wait() {
        let mut expected = ExpectedPayloads::new(8);
        assert_eq!(expected.next_request(9, 0), None);
        expected.awaits(4, 10);
        expected.awaits(4, 20);
        assert_eq!(expected.next_request(14, 5), None);
        assert!(expected.is_patient());
        assert_eq!(expected.next_request(15, 5), Some(4));
        assert_eq!(expected.next_request(30, 5), None);
        assert!(expected.is_awaiting() && !expected.is_patient());
        assert!(!expected.ack_due(true), "there is nothing to tell");
        expected.payload_arrived();
        assert!(!expected.is_awaiting() && !expected.ack_due(false));
        expected.payload_arrived();
        assert!(expected.ack_due(false) && !expected.ack_due(true));
        expected.payload_arrived();
        assert!(expected.ack_due(true));
    }
}
