//! The side that makes deltas and keeps them until they are committed.

use std::collections::VecDeque;

use super::{Progress, Tag};

/// One executor towards one leader. `D` is a chunk of a delta.
///
/// Keeps each closed epoch until the leader has committed it, so that any of them can be sent
/// again.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Helper<D> {
    id: u32,
    incarnation: u64,
    /// Closed epochs that are not committed, without gaps.
    uncommitted: VecDeque<UncommittedEpoch<D>>,
    uncommitted_max: usize,
    /// The last epoch that the leader has committed.
    committed: u64,
    /// Which chunk goes out next: index into `uncommitted`, index of the chunk.
    next: (usize, usize),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct UncommittedEpoch<D> {
    progress: Progress,
    chunks: Vec<D>,
}

/// As many epochs are uncommitted as may be: the leader is behind. Go on reading into the open
/// epoch, or wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the leader is {uncommitted} epochs behind")]
pub struct TooManyEpochs {
    /// How many epochs are uncommitted.
    pub uncommitted: usize,
}

/// The leader acknowledges an epoch that was never closed. Its fault: the link must be cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("epoch {epoch} is acknowledged, but {closed} is the last one that was closed")]
pub struct AcknowledgeError {
    /// The acknowledged epoch.
    pub epoch: u64,
    /// The last epoch that was closed.
    pub closed: u64,
}

impl<D> Helper<D> {
    /// Helper `id` in life `incarnation`, whose source was put back to where epoch `committed`
    /// ended. Keeps at most `uncommitted_max` epochs, at least one.
    pub fn new(id: u32, incarnation: u64, committed: u64, uncommitted_max: usize) -> Self {
        let uncommitted_max = uncommitted_max.max(1);
        Self {
            id,
            incarnation,
            uncommitted: VecDeque::new(),
            uncommitted_max,
            committed,
            next: (0, 0),
        }
    }

    /// The open epoch, to which rows read now belong.
    pub fn epoch(&self) -> u64 {
        self.committed + self.uncommitted.len() as u64 + 1
    }

    /// The last epoch that the leader has committed.
    pub fn committed(&self) -> u64 {
        self.committed
    }

    /// How many closed epochs are uncommitted.
    pub fn uncommitted(&self) -> usize {
        self.uncommitted.len()
    }

    /// The chunks of all epochs that are uncommitted, in order.
    pub fn chunks(&self) -> impl Iterator<Item = &D> {
        self.uncommitted.iter().flat_map(|epoch| &epoch.chunks)
    }

    /// Whether another epoch may be closed.
    pub fn may_close(&self) -> bool {
        self.uncommitted.len() < self.uncommitted_max
    }

    /// Closes the open epoch with its delta: rows up to `progress`, in chunks. No chunks stand for
    /// one empty chunk, which carries the progress. Returns the number of the epoch.
    ///
    /// # Errors
    /// [`TooManyEpochs`] unless [`Helper::may_close`]; the epoch stays open and the chunks are
    /// lost, so ask before.
    pub fn close(&mut self, progress: Progress, chunks: Vec<D>) -> Result<u64, TooManyEpochs>
    where
        D: Default,
    {
        if !self.may_close() {
            return Err(TooManyEpochs { uncommitted: self.uncommitted.len() });
        }
        let chunks = if chunks.is_empty() { vec![D::default()] } else { chunks };
        self.uncommitted.push_back(UncommittedEpoch { progress, chunks });
        Ok(self.epoch() - 1)
    }

    /// The chunk to send next, in order of epochs and chunks. Call [`Helper::sent`] when it is on
    /// its way.
    pub fn to_send(&self) -> Option<(Tag, &D)> {
        let (at, chunk) = self.next;
        let uncommitted = self.uncommitted.get(at)?;
        let tag = Tag {
            helper: self.id,
            incarnation: self.incarnation,
            epoch: self.committed + at as u64 + 1,
            chunk: chunk as u32,
            last: chunk + 1 == uncommitted.chunks.len(),
            progress: uncommitted.progress,
        };
        Some((tag, &uncommitted.chunks[chunk]))
    }

    /// The chunk of [`Helper::to_send`] is on its way. It stays uncommitted.
    pub fn sent(&mut self) {
        let (at, chunk) = self.next;
        if let Some(uncommitted) = self.uncommitted.get(at) {
            self.next =
                if chunk + 1 < uncommitted.chunks.len() { (at, chunk + 1) } else { (at + 1, 0) };
        }
    }

    /// The leader has committed all epochs up to `epoch`: drops their deltas, and returns how many
    /// epochs. An acknowledgement that is older than another one says nothing.
    ///
    /// # Errors
    /// [`AcknowledgeError`] if the epoch was never closed; nothing is dropped.
    pub fn acknowledge(&mut self, epoch: u64) -> Result<usize, AcknowledgeError> {
        let closed = self.epoch() - 1;
        if epoch > closed {
            return Err(AcknowledgeError { epoch, closed });
        }
        let drop = epoch.saturating_sub(self.committed) as usize;
        self.uncommitted.drain(..drop);
        self.committed += drop as u64;
        self.next = if self.next.0 >= drop { (self.next.0 - drop, self.next.1) } else { (0, 0) };
        Ok(drop)
    }

    /// The link was made again, or the leader came back: sends everything again that is uncommitted
    /// beyond `committed`, the leader's committed epoch.
    ///
    /// # Errors
    /// As [`Helper::acknowledge`].
    pub fn resend(&mut self, committed: u64) -> Result<(), AcknowledgeError> {
        self.acknowledge(committed)?;
        self.next = (0, 0);
        Ok(())
    }
}
