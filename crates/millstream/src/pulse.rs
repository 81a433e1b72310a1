//! Who watches over connections that stand and carry nothing ([`fabric::pulse`]): the node's own
//! thread, which tells the other nodes once a second what each connection with them has taken, by
//! a note over the control plane.
//!
//! ```text
//!   note   (name of the connection, 16 bytes | bytes put in, u64)*
//! ```

use std::sync::Arc;
use std::time::Duration;

use cluster::{Control, NOTE_BYTES_MAX};
use fabric::pulse::{Name, Pulse, STILL_LOOKS, Watch};

use crate::pairs::Pairs;

/// Between two looks.
const LOOK_NS: u64 = 1_000_000_000;
/// What the notes are about: nothing that workers' numbers make.
const ABOUT: u64 = u64::MAX;
/// Bytes of a note for each connection.
const ENTRY_BYTES: usize = 24;

/// The watch of a node over its connections.
pub(crate) struct Vigil<'a> {
    control: &'a Control,
    pairs: &'a Pairs,
    watch: Watch,
    next_ns: u64,
}

impl<'a> Vigil<'a> {
    pub(crate) fn new(control: &'a Control, pairs: &'a Pairs) -> Self {
        Self { control, pairs, watch: Watch::default(), next_ns: 0 }
    }

    /// Looks, and tells the others, where it is time for that.
    pub(crate) fn turn(&mut self, now_ns: u64) {
        if now_ns < self.next_ns {
            return;
        }
        self.next_ns = now_ns + LOOK_NS;
        let pulses = self.pairs.pulses();
        for rank in (0..self.control.nodes()).filter(|rank| *rank != self.control.rank()) {
            self.listen(rank);
            let own = pulses.iter().filter(|(of, _)| *of == rank).map(|(_, pulse)| pulse);
            for note in notes(own) {
                // A node that is gone is told nothing, and the job ends for that reason.
                let told = self.control.tell(rank, ABOUT, note);
                debug_assert!(told.is_ok(), "a short note");
            }
        }
        let counts: Vec<_> = pulses.iter().map(|(_, pulse)| pulse.count()).collect();
        for (name, missing) in self.watch.look(&counts) {
            let overdue = counts.iter().zip(&pulses).find(|(count, _)| count.name == name);
            let Some((_, (rank, pulse))) = overdue else { continue };
            tracing::warn!(
                "the connection with node {rank} stands and has carried nothing for {STILL_LOOKS} \
                 s, with {missing} bytes on their way: it is given up"
            );
            pulse.give_up();
        }
    }

    /// Takes what a node has told.
    fn listen(&mut self, rank: u32) {
        // Who has failed or closed tells nothing more.
        while let Ok(Some(note)) = self.control.read_note(rank, ABOUT, Duration::ZERO) {
            for (name, sent) in entries(&note) {
                self.watch.hear(name, sent);
            }
        }
    }
}

/// What is told of connections, in notes of bounded length.
fn notes<'a>(pulses: impl Iterator<Item = &'a Arc<Pulse>>) -> Vec<Vec<u8>> {
    let entry = |pulse: &'a Arc<Pulse>| {
        let count = pulse.count();
        [&count.name[..], &count.sent.to_le_bytes()].concat()
    };
    let entries: Vec<u8> = pulses.flat_map(entry).collect();
    let most = NOTE_BYTES_MAX / ENTRY_BYTES * ENTRY_BYTES;
    entries.chunks(most).map(<[u8]>::to_vec).collect()
}

/// The inverse; what is left over is of no use.
fn entries(note: &[u8]) -> impl Iterator<Item = (Name, u64)> {
    note.as_chunks::<ENTRY_BYTES>().0.iter().filter_map(|entry| {
        let (name, sent) = entry.split_first_chunk::<16>()?;
        Some((*name, u64::from_le_bytes(sent.try_into().ok()?)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_heard_and_a_broken_rest_is_not() {
        let mut note = [[1; 16].as_slice(), &900_u64.to_le_bytes()].concat();
        note.extend_from_slice(&[[2; 16].as_slice(), &u64::MAX.to_le_bytes()].concat());
        note.extend_from_slice(&[9; ENTRY_BYTES - 1]);
        let heard: Vec<_> = entries(&note).collect();
        assert_eq!(heard, [([1; 16], 900), ([2; 16], u64::MAX)]);
        assert_eq!(entries(&[]).count(), 0);
    }
}
