//! What an epoch brings of others: groups, or rows.

use std::ops::Range;
use std::rc::Rc;

use bytes::Bytes;
use state::GroupColumns;
use state::epoch::Ended;

use super::super::{Member, Outgoing};
use super::deltas::DeltaChunk;
use super::groups::MergedGroups;
use super::rows::MergedRows;
use crate::error::DataflowError;
use crate::rows::wire::Picks;
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
    pub(super) body: ChunkBody,
}

/// What a chunk carries.
#[derive(Debug, Clone)]
pub(super) enum ChunkBody {
    /// Nothing, or rows for a worker of this process.
    Load(Load),
    /// Groups, which lie where they are kept until they are written into a slot.
    Groups(DeltaChunk),
    /// Rows for a worker of another process, which lie where they were kept until they are written
    /// into a slot.
    Picked(PickedRows),
}

/// Some of the rows that were kept for a leader.
#[derive(Debug, Clone)]
pub(super) struct PickedRows {
    pub(super) picks: Rc<Picks>,
    pub(super) rows: Range<usize>,
    /// Bytes of their payload.
    pub(super) bytes: usize,
    /// Bytes that they take while they are kept.
    pub(super) kept_bytes: usize,
}

impl Default for Chunk {
    /// Nothing but the progress of its epoch.
    fn default() -> Self {
        Self::of(0, Load::Own(Bytes::new()))
    }
}

impl Chunk {
    /// Of the first input.
    pub(super) fn of_groups(groups: DeltaChunk) -> Self {
        Self { port: 0, body: ChunkBody::Groups(groups) }
    }

    /// Of an input.
    pub(super) fn of(port: u32, load: Load) -> Self {
        Self { port, body: ChunkBody::Load(load) }
    }

    pub(super) fn is_empty(&self) -> bool {
        matches!(&self.body, ChunkBody::Load(load) if is_nothing(load))
    }

    /// Bytes of its payload, or of its rows.
    pub(super) fn size(&self) -> usize {
        match &self.body {
            ChunkBody::Load(load) => load.size(),
            ChunkBody::Groups(groups) => groups.payload_bytes(),
            ChunkBody::Picked(picked) => picked.bytes,
        }
    }

    /// Bytes that it takes while it is kept.
    pub(super) fn kept_bytes(&self) -> usize {
        match &self.body {
            ChunkBody::Groups(groups) => groups.kept_bytes(),
            ChunkBody::Picked(picked) => picked.kept_bytes,
            ChunkBody::Load(load) => load.size(),
        }
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
        match &chunk.body {
            ChunkBody::Picked(PickedRows { picks, rows, .. }) => {
                return member.net().send_picked(to, envelope, picks, rows.clone()).await;
            }
            ChunkBody::Groups(groups) => {
                member.net().send_layout(to, envelope, &groups.layout()?).await;
            }
            ChunkBody::Load(load @ Load::Rows { .. }) => {
                member.net().hand(to, envelope, || load.clone()).await;
            }
            ChunkBody::Load(Load::Slot(payload) | Load::Own(payload)) => {
                member.net().send_payload(to, envelope, payload).await;
            }
        }
        Ok(())
    }

    /// Merges a chunk of a helper, whose epoch is complete.
    pub(super) fn merge(
        &self,
        member: &impl Member,
        from: u32,
        envelope: &Envelope,
        ReceivedChunk { port, load }: ReceivedChunk,
    ) -> Result<(), DataflowError> {
        match self {
            Content::Groups(_) => member.take_groups(from, &load.bytes()),
            Content::Rows(_) if is_nothing(&load) => Ok(()),
            Content::Rows(rows) => {
                rows.merge(member, from, envelope.colour, ReceivedChunk { port, load })
            }
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

/// A chunk of a helper.
#[derive(Debug, Clone)]
pub(super) struct ReceivedChunk {
    /// The input that it is of.
    pub(super) port: u32,
    pub(super) load: Load,
}

/// Whether there are neither groups nor rows.
fn is_nothing(load: &Load) -> bool {
    load.len() == 0 && !matches!(load, Load::Rows { .. })
}

/// By helper the chunks of an epoch that is not complete.
pub(super) struct Staged {
    chunks: Vec<Vec<ReceivedChunk>>,
    /// Bytes of all of them, their places in the lists included.
    bytes: usize,
}

/// Bytes of a chunk in a list; its payload may be empty.
fn staged_bytes(chunk: &ReceivedChunk) -> usize {
    size_of::<ReceivedChunk>() + chunk.load.size()
}

impl Staged {
    pub(super) fn new(helpers: u32) -> Self {
        Self { chunks: vec![Vec::new(); helpers as usize], bytes: 0 }
    }

    /// Adds a chunk, which must not hold slots of the ring while it waits.
    pub(super) fn push(&mut self, helper: u32, ReceivedChunk { port, load }: ReceivedChunk) {
        let chunk = ReceivedChunk { port, load: load.detached() };
        self.bytes += staged_bytes(&chunk);
        self.chunks[helper as usize].push(chunk);
    }

    pub(super) fn take(&mut self, helper: u32) -> Vec<ReceivedChunk> {
        let chunks = std::mem::take(&mut self.chunks[helper as usize]);
        self.bytes -= chunks.iter().map(staged_bytes).sum::<usize>();
        chunks
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}
