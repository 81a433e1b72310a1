//! What an epoch brings of others: groups, or rows.

use arrow::record_batch::RecordBatch;
use bytes::Bytes;
use state::GroupColumns;
use state::epoch::Ended;

use super::super::{Member, Outgoing};
use super::groups::MergedGroups;
use super::rows::MergedRows;
use crate::error::DataflowError;
use crate::runtime::frame::Envelope;
use crate::runtime::local_exchange::Load;

/// What a helper keeps of others until an epoch ends, and what a leader merges.
pub(super) enum Content {
    Groups(MergedGroups),
    Rows(MergedRows),
}

/// A part of a delta: the payload of one frame.
#[derive(Debug, Clone)]
pub(super) struct Chunk {
    /// The input that it is of.
    pub(super) port: u32,
    /// Encoded groups; or rows, which are encoded when they are sent.
    pub(super) load: Load,
}

impl Default for Chunk {
    /// Nothing but the progress of its epoch.
    fn default() -> Self {
        Self::encoded(Bytes::new())
    }
}

impl Chunk {
    /// Of the first input.
    pub(super) fn encoded(payload: Bytes) -> Self {
        Self { port: 0, load: Load::Own(payload) }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.load.size() == 0 && !matches!(self.load, Load::Rows { .. })
    }
}

/// By leader what an epoch has brought of others.
pub(super) struct Cut {
    /// By leader.
    pub(super) chunks: Vec<Vec<Chunk>>,
    /// Groups or rows of others.
    pub(super) given: u64,
    /// Groups that stayed.
    pub(super) stayed: u64,
}

/// Calls a method of either.
macro_rules! dispatch {
    ($content:expr, $of:ident => $call:expr) => {
        match $content {
            Content::Groups($of) => $call,
            Content::Rows($of) => $call,
        }
    };
}

impl Content {
    /// Takes rows of this worker: what belongs here is the operator's.
    pub(super) fn push(
        &self,
        member: &impl Member,
        rows: Outgoing<'_>,
    ) -> Result<(), DataflowError> {
        dispatch!(self, of => of.push(member, rows))
    }

    /// Whether an epoch is over that has read so many bytes, and to which so many rows have come.
    pub(super) fn is_long(&self, member: &impl Member, bytes: u64, rows: u64) -> bool {
        dispatch!(self, of => of.is_long(member, bytes, rows))
    }

    /// Takes out what others lead.
    pub(super) fn cut(&self, member: &impl Member) -> Result<Cut, DataflowError> {
        dispatch!(self, of => of.cut(member))
    }

    /// Sends a chunk, which is not empty.
    pub(super) async fn send(
        &self,
        member: &impl Member,
        to: u32,
        envelope: Envelope,
        chunk: &Chunk,
    ) -> Result<(), DataflowError> {
        match (self, &chunk.load) {
            (Content::Rows(_), Load::Rows { batch, .. }) => {
                member.net().send_chunk(to, envelope, batch).await
            }
            (_, load) => {
                member.net().send_payload(to, envelope, &load.clone().bytes()).await;
                Ok(())
            }
        }
    }

    /// Merges a chunk of a helper, whose epoch is complete.
    pub(super) fn merge(
        &self,
        member: &impl Member,
        from: u32,
        envelope: &Envelope,
        chunk: Chunk,
    ) -> Result<(), DataflowError> {
        match self {
            Content::Groups(_) => member.take_groups(from, &chunk.load.bytes()),
            Content::Rows(_) if chunk.is_empty() => Ok(()),
            Content::Rows(rows) => rows.merge(member, from, envelope.colour, chunk),
        }
    }

    /// Learns from an epoch how long the next one should be.
    pub(super) fn ended(&self, member: &impl Member, ended: &Ended, delta_bytes: u64) {
        dispatch!(self, of => of.ended(member, ended, delta_bytes));
    }

    /// Bytes after which an epoch ends.
    pub(super) fn length(&self, member: &impl Member) -> u64 {
        dispatch!(self, of => of.length(member))
    }

    /// Bytes that are kept for the end of the epoch, beside the operator's own state.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Content::Groups(_) => 0,
            Content::Rows(rows) => rows.bytes(),
        }
    }

    /// Of some groups in this worker's state those that it leads.
    pub(super) fn led_here(
        &self,
        member: &impl Member,
        groups: GroupColumns,
    ) -> Result<GroupColumns, DataflowError> {
        match self {
            Content::Groups(of) => of.led_here(member, groups),
            Content::Rows(_) => Ok(groups),
        }
    }
}

/// By helper the chunks of an epoch that is not complete.
pub(super) struct Staged {
    chunks: Vec<Vec<Chunk>>,
    /// Bytes of all of them, their places in the lists included.
    bytes: usize,
}

/// Bytes of a chunk in a list; its payload may be empty.
fn staged_bytes(chunk: &Chunk) -> usize {
    size_of::<Chunk>() + chunk.load.size()
}

impl Staged {
    pub(super) fn new(helpers: u32) -> Self {
        Self { chunks: vec![Vec::new(); helpers as usize], bytes: 0 }
    }

    /// Adds a chunk, which must not hold slots of the ring while it waits.
    pub(super) fn push(&mut self, helper: u32, Chunk { port, load }: Chunk) {
        let chunk = Chunk { port, load: load.detached() };
        self.bytes += staged_bytes(&chunk);
        self.chunks[helper as usize].push(chunk);
    }

    pub(super) fn take(&mut self, helper: u32) -> Vec<Chunk> {
        let chunks = std::mem::take(&mut self.chunks[helper as usize]);
        self.bytes -= chunks.iter().map(staged_bytes).sum::<usize>();
        chunks
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Rows of a batch as a chunk of an input.
pub(super) fn chunk_of(port: u32, batch: &RecordBatch) -> Chunk {
    Chunk { port, load: Load::of_rows(batch) }
}
