//! The lane of notices between two processes: a ring of words with one sender and one receiver.
//!
//! ```text
//!   sender                          shared words                         receiver
//!   sent, limit seen   ──store──▶   entry[sent mod n] = lap | len | imm  ──load──▶  head
//!                      ◀──load───   limit = entries the sender may reach ◀──store── granted, head
//!                      ──store──▶   touched += 1;  asleep?               ◀──store── asleep
//! ```
//!
//! * **Entry.** An entry is valid when it carries the lap that the receiver expects at its head, so
//!   that one cache line travels per notice and there is no shared tail. `Release` of the entry
//!   pairs with the receiver's `Acquire`: whatever the sender stored before is visible with the
//!   entry (G4).
//! * **Limit.** The receiver advertises cumulative positions: receives that were posted, but never
//!   more than a ring ahead of what it has consumed. Credit is thereby also the free space, and
//!   there is no shared head. `Release` of the limit pairs with the sender's `Acquire`: an entry
//!   was read before it is overwritten.
//! * **Sleep.** The receiver declares that it sleeps and *then* looks once more; the sender
//!   publishes and *then* looks whether the receiver sleeps. Both put a sequentially consistent
//!   fence in between, so that one of the two sees the other. `touched` counts what leaves no
//!   entry: plain writes and new receives.
//!
//! The words are a trait so that loom can check the very same code (`spsc/loom.rs`). Nothing here
//! sends the wake-up itself: [`Sender::publish`] says when one is due.

#[cfg(all(test, loom))]
mod loom;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU64, Ordering};

/// A shared word.
pub(super) trait Word {
    /// See [`AtomicU64::load`].
    fn load(&self, order: Ordering) -> u64;
    /// See [`AtomicU64::store`].
    fn store(&self, value: u64, order: Ordering);
    /// See [`AtomicU64::swap`].
    fn swap(&self, value: u64, order: Ordering) -> u64;
}

impl Word for AtomicU64 {
    fn load(&self, order: Ordering) -> u64 {
        self.load(order)
    }

    fn store(&self, value: u64, order: Ordering) {
        self.store(value, order);
    }

    fn swap(&self, value: u64, order: Ordering) -> u64 {
        self.swap(value, order)
    }
}

/// The shared words of one direction. All are zero at first.
pub(super) trait SpscMemory {
    /// A word.
    type Word: Word;
    /// Entries of the ring.
    const ENTRIES: u64;

    /// Entry `index < ENTRIES`. The sender writes it.
    fn entry(&self, index: usize) -> &Self::Word;
    /// The position that the sender may not reach. The receiver writes it.
    fn limit(&self) -> &Self::Word;
    /// Counts publications. The sender writes it.
    fn touched(&self) -> &Self::Word;
    /// Not zero while the receiver sleeps. Both write it.
    fn asleep(&self) -> &Self::Word;
    /// A sequentially consistent fence.
    fn fence();
}

/// The content of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Entry {
    /// A notice with its number.
    Notice(u32),
    /// A message whose bytes lie in the arena.
    Message(u16),
}

/// Bits of an entry's number, and of its kind and length above it; the lap takes the rest.
const IMM_BITS: u32 = 32;
const LEN_BITS: u32 = 16;

impl Entry {
    fn encode(self, lap: u64) -> u64 {
        let body = match self {
            Entry::Notice(imm) => u64::from(imm),
            Entry::Message(len) => (u64::from(len) + 1) << IMM_BITS,
        };
        body | lap << (IMM_BITS + LEN_BITS)
    }

    fn decode(word: u64) -> Self {
        match (word >> IMM_BITS) as u16 {
            0 => Entry::Notice(word as u32),
            len => Entry::Message(len - 1),
        }
    }
}

/// The lap of a position as far as an entry carries it; the zeroes of a fresh ring are of no lap in
/// reach.
fn lap<L: SpscMemory>(position: u64) -> u64 {
    u64::from((position / L::ENTRIES) as u16).wrapping_add(1) & 0xffff
}

/// The sender's positions.
#[derive(Debug, Default)]
pub(super) struct Sender {
    sent: u64,
    limit: u64,
    touched: u64,
}

impl Sender {
    /// Position of the next entry.
    pub(super) fn position(&self) -> u64 {
        self.sent
    }

    /// Entries that may be pushed now.
    pub(super) fn budget<L: SpscMemory>(&self, memory: &L) -> u64 {
        memory.limit().load(Ordering::Acquire).saturating_sub(self.sent).min(L::ENTRIES)
    }

    /// True when one entry may be pushed; looks at the shared limit only when the one seen last is
    /// used up.
    pub(super) fn ready<L: SpscMemory>(&mut self, memory: &L) -> bool {
        if self.sent >= self.limit {
            self.limit = memory.limit().load(Ordering::Acquire);
        }
        self.sent < self.limit
    }

    /// Makes an entry visible, and with it all that this thread stored before. The caller asked
    /// [`ready`](Self::ready).
    pub(super) fn push<L: SpscMemory>(&mut self, memory: &L, entry: Entry) {
        debug_assert!(self.sent < self.limit);
        let word = entry.encode(lap::<L>(self.sent));
        memory.entry((self.sent % L::ENTRIES) as usize).store(word, Ordering::Release);
        self.sent += 1;
    }

    /// Ends a batch; returns true when the receiver sleeps and this call has to wake it.
    #[must_use]
    pub(super) fn publish<L: SpscMemory>(&mut self, memory: &L) -> bool {
        self.touched += 1;
        memory.touched().store(self.touched, Ordering::Release);
        L::fence();
        memory.asleep().load(Ordering::Relaxed) != 0
            && memory.asleep().swap(0, Ordering::AcqRel) != 0
    }
}

/// The receiver's positions.
#[derive(Debug, Default)]
pub(super) struct Receiver {
    head: u64,
    granted: u64,
    limit: u64,
    touched: u64,
    /// It has declared that it sleeps, and not taken that back.
    declared: bool,
    /// Wake-ups that the sender has decided on and that have not come.
    wakes_due: u32,
}

impl Receiver {
    /// Position of the next entry.
    pub(super) fn position(&self) -> u64 {
        self.head
    }

    /// Allows `n` entries more, as soon as the ring has room for them.
    pub(super) fn grant<L: SpscMemory>(&mut self, memory: &L, n: u32) {
        self.granted = self.granted.saturating_add(u64::from(n));
        self.advertise(memory);
    }

    /// Hands the space of popped entries back to the sender; once per batch.
    pub(super) fn advertise<L: SpscMemory>(&mut self, memory: &L) {
        let limit = self.granted.min(self.head.saturating_add(L::ENTRIES));
        if limit > self.limit {
            self.limit = limit;
            memory.limit().store(limit, Ordering::Release);
        }
    }

    /// The next entry, if it is there. An entry beyond the granted ones does not count.
    pub(super) fn pop<L: SpscMemory>(&mut self, memory: &L) -> Option<Entry> {
        let word = self.peek(memory)?;
        self.head += 1;
        Some(Entry::decode(word))
    }

    /// Whether [`pop`](Self::pop) would give one.
    pub(super) fn has_entry<L: SpscMemory>(&self, memory: &L) -> bool {
        self.peek(memory).is_some()
    }

    fn peek<L: SpscMemory>(&self, memory: &L) -> Option<u64> {
        if self.head >= self.limit {
            return None;
        }
        let word = memory.entry((self.head % L::ENTRIES) as usize).load(Ordering::Acquire);
        (word >> (IMM_BITS + LEN_BITS) == lap::<L>(self.head)).then_some(word)
    }

    /// Declares sleep; returns false when something was published since the last call, and then the
    /// receiver has to look around before it asks again. After true a publication asks for a
    /// wake-up.
    #[must_use]
    pub(super) fn sleep<L: SpscMemory>(&mut self, memory: &L) -> bool {
        self.wake(memory);
        self.declared = true;
        // The word changes by swaps alone, so that each 1 is taken once, by whoever comes first.
        memory.asleep().swap(1, Ordering::AcqRel);
        L::fence();
        let touched = memory.touched().load(Ordering::Acquire);
        if touched == self.touched && self.peek(memory).is_none() {
            return true;
        }
        self.touched = touched;
        self.wake(memory);
        false
    }

    /// Takes the declaration back, if it stands. Where the sender has taken it, a wake-up is on its
    /// way: exactly one of the two gets the 1 that [`sleep`](Self::sleep) stored.
    pub(super) fn wake<L: SpscMemory>(&mut self, memory: &L) {
        if std::mem::take(&mut self.declared) && memory.asleep().swap(0, Ordering::AcqRel) == 0 {
            self.wakes_due = self.wakes_due.saturating_add(1);
        }
    }

    /// A wake-up has come. A sender that keeps to the protocol sends none that is not due.
    pub(super) fn woken(&mut self) {
        self.wakes_due = self.wakes_due.saturating_sub(1);
    }

    /// Whether a wake-up is on its way, or lies unread.
    pub(super) fn expects_wake(&self) -> bool {
        self.wakes_due > 0
    }
}
