//! Puts runs together, one pile at a time.
//!
//! A pile is merged into one slice if that stays within its room. If not, all of the pile is split
//! by the hash of its keys: what was merged already, what is still whole, and as they are the
//! sections that were split so when they were written. Each part is a pile again, with another
//! hash. A key is in one pile only, so that each is emitted once, whole.

use super::PARTS;
use super::Store;
use super::run::{Run, RunPiece};
use crate::{Slice, StateError};

use std::sync::Arc;

/// How often a pile is split: 32⁶ piles are of one key. What does not fit then never will, and is
/// merged all the same: who holds the budget says so.
const LEVELS_MAX: u32 = 6;

/// Groups of runs, and how far they are put together.
pub(crate) struct Gathering {
    /// The next is the last.
    piles: Vec<Pile>,
    /// The groups to emit.
    slice: Slice,
}

/// A pile that merges with nothing else.
struct Pile {
    /// How often it was split.
    level: u32,
    pieces: Vec<RunPiece>,
}

impl Gathering {
    /// The groups of all these runs, each of which may be in several.
    pub(crate) fn new<'a>(store: &Store, runs: impl Iterator<Item = &'a Arc<Run>>) -> Self {
        let pieces: Vec<RunPiece> = runs.flat_map(Run::pieces).collect();
        let piles = if pieces.is_empty() { vec![] } else { vec![Pile { level: 0, pieces }] };
        Self { piles, slice: Slice::new(&store.spec) }
    }

    /// The pile that is being emitted.
    pub(crate) fn slice(&mut self) -> &mut Slice {
        &mut self.slice
    }

    /// Whether there are piles to load.
    pub(crate) fn has_more(&self) -> bool {
        !self.piles.is_empty()
    }

    /// Bytes held.
    pub(crate) fn bytes(&self) -> usize {
        let pieces = self.piles.iter().map(|pile| pile.pieces.capacity()).sum::<usize>();
        self.slice.bytes() + pieces * size_of::<RunPiece>()
    }

    /// Takes a step towards the next pile that fits `room` bytes: merges one, or splits one.
    ///
    /// # Errors
    /// Those of the disk and of accumulators.
    pub(crate) fn load(&mut self, store: &Store, room: usize) -> Result<(), StateError> {
        self.slice = Slice::spilling(&store.spec);
        let Some(pile) = self.piles.pop() else { return Ok(()) };
        let bytes: usize = pile.pieces.iter().map(RunPiece::bytes).sum();
        let last = pile.level == LEVELS_MAX;
        let was_split = pile.pieces.iter().any(|piece| piece.part_at(pile.level).is_some());
        // An index takes as much again as what it finds.
        if !last && was_split && bytes.saturating_mul(2) > room {
            return self.split(store, pile, room);
        }
        let mut pieces = pile.pieces.into_iter();
        while let Some(piece) = pieces.next() {
            let held = self.slice.bytes();
            let full = held.saturating_mul(2).saturating_add(2 * piece.bytes()) > room;
            let merged = if full && !last {
                false
            } else {
                self.merge(store, &piece, room.saturating_sub(held), last)?
            };
            if !merged {
                let pieces = [piece].into_iter().chain(pieces).collect();
                return self.split(store, Pile { level: pile.level, pieces }, room);
            }
        }
        if self.slice.bytes() > room && !last {
            self.split(store, Pile { level: pile.level, pieces: vec![] }, room)
        } else {
            Ok(())
        }
    }

    /// False, and nothing has happened, if an array would have to grow by more than `room`.
    fn merge(
        &mut self,
        store: &Store,
        piece: &RunPiece,
        room: usize,
        last: bool,
    ) -> Result<bool, StateError> {
        let groups = store.read(piece)?;
        self.slice.set_room(if last { usize::MAX } else { room });
        match self.slice.merge(&groups.keys, &groups.states) {
            Err(StateError::Growth { .. }) => Ok(false),
            merged => merged.map(|()| true),
        }
    }

    /// Splits a pile, and what was merged of it.
    fn split(&mut self, store: &Store, pile: Pile, room: usize) -> Result<(), StateError> {
        let mut slice = std::mem::replace(&mut self.slice, Slice::spilling(&store.spec));
        let mut writer = store.write(Some(pile.level), room);
        while let Some(groups) = slice.take_delta()? {
            writer.add(&groups)?;
        }
        drop(slice);
        let mut parts: Vec<Vec<RunPiece>> = (0..PARTS).map(|_| Vec::new()).collect();
        for piece in pile.pieces {
            match piece.part_at(pile.level) {
                Some(part) => parts[part as usize].push(piece),
                None => writer.add(&store.read(&piece)?)?,
            }
        }
        for piece in writer.finish()?.iter().flat_map(Run::pieces) {
            let part = piece.part_at(pile.level).unwrap_or(0);
            parts[part as usize].push(piece);
        }
        let level = pile.level + 1;
        let parts = parts.into_iter().rev().filter(|pieces| !pieces.is_empty());
        self.piles.extend(parts.map(|pieces| Pile { level, pieces }));
        Ok(())
    }
}
