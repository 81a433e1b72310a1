//! Payloads that travel as datagrams: to all agents of a source at once, in parts that may get
//! lost, come twice or in any order ([`fabric::multicast`]).
//!
//! ```text
//!   tag u32 | source u32 | number u64 | offset u32 | bytes of all parts u32 | part
//! ```
//!
//! Here they are put together, and nothing more: that a payload is missing, is known by who has
//! heard of it in another way. What is not awaited any more, or not yet, is dropped, so that what
//! waits here has a bound.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use fabric::PostError;
use fabric::multicast::GroupMember;

/// Bytes before a part.
const HEADER: usize = 24;

/// Which payload: operator, source and number.
pub(crate) type Which = (u32, u32, u64);

/// What one worker sends and gets as datagrams.
pub(crate) struct PayloadsInFlight {
    member: Box<dyn GroupMember>,
    part_max: usize,
    limits: Limits,
    windows: HashMap<(u32, u32), SourcePayloads>,
    /// A datagram on its way out.
    datagram: Vec<u8>,
}

/// What is taken from the network at most.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    /// Operators.
    pub(crate) tags: u32,
    /// Workers.
    pub(crate) workers: u32,
    /// Payloads of a source for an operator that may be on their way.
    pub(crate) kept: usize,
    /// Bytes of a payload.
    pub(crate) bytes: usize,
}

/// The payloads of one source for one operator.
#[derive(Default)]
struct SourcePayloads {
    /// All before this have been taken.
    next: u64,
    reassembly: BTreeMap<u64, Reassembly>,
}

struct Reassembly {
    bytes: Vec<u8>,
    here: Vec<bool>,
    missing: usize,
}

impl PayloadsInFlight {
    pub(crate) fn new(member: Box<dyn GroupMember>, limits: Limits) -> Self {
        let part_max = member.datagram_max().saturating_sub(HEADER).max(1);
        let datagram = Vec::with_capacity(HEADER + part_max);
        Self { member, part_max, limits, windows: HashMap::new(), datagram }
    }

    /// Sends parts of a payload, from part `sent` on, and moves that on; true when all were sent.
    pub(crate) fn send(
        &mut self,
        (tag, source, seq): Which,
        payload: &[u8],
        sent: &mut usize,
    ) -> bool {
        let datagram = &mut self.datagram;
        for (at, part) in payload.chunks(self.part_max).enumerate().skip(*sent) {
            datagram.clear();
            datagram.extend_from_slice(&tag.to_le_bytes());
            datagram.extend_from_slice(&source.to_le_bytes());
            datagram.extend_from_slice(&seq.to_le_bytes());
            datagram.extend_from_slice(&((at * self.part_max) as u32).to_le_bytes());
            datagram.extend_from_slice(&(payload.len() as u32).to_le_bytes());
            datagram.extend_from_slice(part);
            // What a device does not take is lost, as what a network drops.
            if self.member.send(datagram) == Err(PostError::Full) {
                return false;
            }
            *sent = at + 1;
        }
        true
    }

    /// Takes what has come; true if it makes a payload whole.
    pub(crate) fn poll(&mut self) -> bool {
        let Self { member, part_max, limits, windows, .. } = self;
        let mut whole = false;
        member.poll(&mut |datagram| {
            whole |= land(windows, *limits, *part_max, datagram).unwrap_or(false);
        });
        whole
    }

    /// A payload of so many bytes, if it is here.
    pub(crate) fn take(&mut self, (tag, source, seq): Which, bytes: usize) -> Option<Bytes> {
        let reassembly = self.windows.get_mut(&(tag, source))?.reassembly.get_mut(&seq)?;
        if reassembly.missing > 0 || reassembly.bytes.len() != bytes {
            return None;
        }
        Some(Bytes::from(std::mem::take(&mut reassembly.bytes)))
    }

    /// A payload and those before it are not awaited any more.
    pub(crate) fn pass(&mut self, (tag, source, seq): Which) {
        let window = self.windows.entry((tag, source)).or_default();
        window.next = window.next.max(seq + 1);
        window.reassembly = window.reassembly.split_off(&window.next);
    }
}

/// Puts a part into its place; `None` for what has none.
fn land(
    windows: &mut HashMap<(u32, u32), SourcePayloads>,
    limits: Limits,
    part_max: usize,
    datagram: &[u8],
) -> Option<bool> {
    let (header, part) = datagram.split_first_chunk::<HEADER>()?;
    let word = |at: usize| header[at..at + 4].iter().rfold(0, |high, b| high << 8 | u32::from(*b));
    let (tag, source) = (word(0), word(4));
    let seq = u64::from(word(12)) << 32 | u64::from(word(8));
    let (offset, bytes) = (word(16) as usize, word(20) as usize);
    let end = offset.checked_add(part.len())?;
    let is_a_part = offset.is_multiple_of(part_max)
        && (end == bytes || (part.len() == part_max && end < bytes))
        && !part.is_empty();
    let known = tag < limits.tags && source < limits.workers && bytes <= limits.bytes;
    if !is_a_part || !known {
        return None;
    }
    let window = windows.entry((tag, source)).or_default();
    let full = window.reassembly.len() >= limits.kept && !window.reassembly.contains_key(&seq);
    if seq < window.next || full {
        return None;
    }
    let reassembly = window.reassembly.entry(seq).or_insert_with(|| {
        let parts = bytes.div_ceil(part_max);
        Reassembly { bytes: vec![0; bytes], here: vec![false; parts], missing: parts }
    });
    let here =
        reassembly.here.get_mut(offset / part_max).filter(|_| reassembly.bytes.len() == bytes)?;
    if std::mem::replace(here, true) {
        return Some(false);
    }
    reassembly.bytes[offset..end].copy_from_slice(part);
    reassembly.missing -= 1;
    Some(reassembly.missing == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives back what was sent, the last first, and again what it is told to.
    struct Echo {
        sent: Vec<Vec<u8>>,
        more: Vec<Vec<u8>>,
    }

    impl GroupMember for Echo {
        fn datagram_max(&self) -> usize {
            HEADER + 10
        }

        fn send(&mut self, bytes: &[u8]) -> Result<(), PostError> {
            if self.sent.len() == 3 {
                return Err(PostError::Full);
            }
            self.sent.push(bytes.to_vec());
            Ok(())
        }

        fn poll(&mut self, take: &mut dyn FnMut(&[u8])) -> usize {
            let all = [std::mem::take(&mut self.sent), std::mem::take(&mut self.more)].concat();
            all.iter().rev().for_each(|bytes| take(bytes));
            all.len()
        }
    }

    fn in_flight(more: Vec<Vec<u8>>) -> PayloadsInFlight {
        let limits = Limits { tags: 3, workers: 4, kept: 2, bytes: 100 };
        PayloadsInFlight::new(Box::new(Echo { sent: vec![], more }), limits)
    }

    #[test]
    fn parts_in_any_order_make_a_payload() {
        let mut in_flight = in_flight(vec![]);
        let payload: Vec<u8> = (0..45).collect();
        let which = (2, 3, 7);
        let mut sent = 0;
        assert!(!in_flight.send(which, &payload, &mut sent));
        assert_eq!(sent, 3, "there is room for three");
        assert!(!in_flight.poll());
        assert_eq!(in_flight.take(which, 45), None);
        assert!(in_flight.send(which, &payload, &mut sent));
        assert_eq!(sent, 5);
        assert!(in_flight.poll());
        assert_eq!(in_flight.take(which, 44), None, "of another length");
        assert_eq!(in_flight.take(which, 45).as_deref(), Some(&payload[..]));
        in_flight.pass(which);
        assert!(in_flight.send(which, &payload, &mut 2));
        assert!(
            !in_flight.poll() && in_flight.windows[&(2, 3)].reassembly.is_empty(),
            "it was passed"
        );
    }

    #[test]
    fn what_is_not_awaited_or_no_part_is_dropped() {
        let part = |tag: u32, source: u32, seq: u64, offset: u32, bytes: u32, len: usize| {
            let words = [&tag.to_le_bytes()[..], &source.to_le_bytes(), &seq.to_le_bytes()];
            let rest = [&offset.to_le_bytes()[..], &bytes.to_le_bytes(), &vec![1; len]];
            [words.concat(), rest.concat()].concat()
        };
        let bad = vec![
            part(3, 0, 0, 0, 10, 10),
            part(0, 4, 0, 0, 10, 10),
            part(0, 0, 0, 0, 101, 10),
            part(0, 0, 0, 5, 15, 10),
            part(0, 0, 0, 0, 20, 9),
            part(0, 0, 0, 10, 15, 6),
            part(0, 0, 0, 0, 0, 0),
            part(0, 0, 0, u32::MAX, 15, 10),
            vec![1; HEADER - 1],
        ];
        let mut in_flight = in_flight(bad);
        assert!(!in_flight.poll());
        assert!(in_flight.windows.values().all(|window| window.reassembly.is_empty()));
        in_flight.pass((0, 0, 3));
        assert!(in_flight.send((0, 0, 3), &[1; 10], &mut 0));
        assert!(!in_flight.poll(), "passed");
        assert!(in_flight.send((0, 0, 4), &[1; 10], &mut 0));
        assert!(in_flight.poll());
        for seq in [6, 7] {
            assert!(in_flight.send((0, 0, seq), &[1; 10], &mut 0));
            assert_eq!(in_flight.poll(), seq == 6, "two may be on their way");
        }
    }
}
