//! The content of a frame, and how it comes into a slot.

use bytes::Bytes;
use channel::RegionFrame;

use crate::rows::wire::RowsLayout;

/// The content that is written into a slot.
pub(super) enum Content<'a> {
    /// Bytes, one part after the other.
    Parts(&'a [&'a [u8]]),
    /// Rows, from where they lie.
    Rows(&'a RowsLayout<'a>),
    /// A payload in the region, which the peer reads there if its link can.
    Lent(&'a RegionFrame),
}

impl Content<'_> {
    /// Writes it to the beginning of `out`, which is large enough; gives its length.
    pub(super) fn write_to(&self, out: &mut [u8]) -> usize {
        match self {
            Content::Parts(parts) => {
                let mut end = 0;
                for part in *parts {
                    out[end..end + part.len()].copy_from_slice(part);
                    end += part.len();
                }
                end
            }
            Content::Rows(layout) => {
                layout.write_to(out);
                layout.len()
            }
            Content::Lent(payload) => {
                let payload = payload.as_ref();
                out[..payload.len()].copy_from_slice(payload);
                payload.len()
            }
        }
    }

    /// The same in memory of its own.
    pub(super) fn payload(&self) -> Bytes {
        match self {
            Content::Parts([]) => Bytes::new(),
            Content::Parts(parts) => parts.concat().into(),
            Content::Rows(layout) => layout.payload(),
            Content::Lent(payload) => Bytes::from_owner((*payload).clone()),
        }
    }
}
