//! Operations that wait at this side, with all that they need to start later.

use crate::{RemoteRange, SlabRange, Src};

/// An operation as the caller described it.
pub(crate) enum PostedOperation {
    Write { src: PostedSource, dst: RemoteRange, notice: Option<u32> },
    Read { dst: SlabRange, src: RemoteRange },
    Add { dst: RemoteRange, add: u64, old: SlabRange },
    Swap { dst: RemoteRange, expect: u64, swap: u64, old: SlabRange },
    Send(Vec<u8>),
}

/// Bytes of a write.
pub(crate) enum PostedSource {
    Slab(SlabRange),
    Copied(Vec<u8>),
    Empty,
}

impl PostedSource {
    /// PostedOperation a caller has given; inline bytes are copied.
    pub(crate) fn of(src: Src<'_>) -> Self {
        match src {
            Src::Slab(range) if !range.is_empty() => PostedSource::Slab(range.clone()),
            Src::Inline(bytes) if !bytes.is_empty() => PostedSource::Copied(bytes.to_vec()),
            Src::Slab(_) | Src::Inline(_) | Src::Empty => PostedSource::Empty,
        }
    }

    pub(crate) fn get(&self) -> Src<'_> {
        match self {
            PostedSource::Slab(range) => Src::Slab(range),
            PostedSource::Copied(bytes) => Src::Inline(bytes),
            PostedSource::Empty => Src::Empty,
        }
    }
}
