//! Checks before an operation is posted, alike on every transport.
//!
//! These checks need no look at the peer's memory: they keep a caller's mistake from becoming a
//! connection that breaks at the other end. The peer's keys are checked where its memory is.

use crate::{Atomics, Caps, PostError, RemoteRange, SlabRange, Src};

/// Bytes of the word that an atomic operation changes.
const WORD_BYTES: usize = 8;

/// An operation that is about to be posted.
#[derive(Debug, Clone, Copy)]
pub(crate) enum PostRequest<'a> {
    /// A write, with or without a notice behind it.
    Write { src: Src<'a>, dst: RemoteRange, notifies: bool },
    /// A read into a range.
    Read { dst: &'a SlabRange, src: RemoteRange },
    /// An atomic operation whose old value goes into the first word of `old`.
    Atomic { dst: RemoteRange, old: &'a SlabRange },
    /// A message of `len` bytes.
    Send { len: usize },
}

impl Caps {
    /// Whether an operation may be posted on an endpoint that is `open` and has `outstanding`
    /// operations. `has_receive` tells whether the peer has a receive for a notice or a message; it
    /// is asked last, and only for those.
    ///
    /// # Errors
    /// The first that holds of [`PostError::Closed`], [`PostError::Unsupported`],
    /// [`PostError::TooLarge`], [`PostError::OutOfBounds`] and [`PostError::Full`].
    #[inline]
    pub(crate) fn validate(
        &self,
        asked: PostRequest<'_>,
        open: bool,
        outstanding: usize,
        has_receive: impl FnOnce() -> bool,
    ) -> Result<(), PostError> {
        if !open {
            return Err(PostError::Closed);
        }
        let tells = match asked {
            PostRequest::Write { src, dst, notifies } => {
                let max = match src {
                    Src::Inline(_) => self.max_inline.min(self.max_msg),
                    _ => self.max_msg,
                };
                check_range(src.len(), max, &dst)?;
                if dst.key.is_published() && !src.is_empty() {
                    return Err(PostError::OutOfBounds);
                }
                notifies
            }
            PostRequest::Read { dst, src } => {
                check_range(dst.len(), self.max_msg, &src)?;
                if dst.slab().is_sealed() {
                    return Err(PostError::OutOfBounds);
                }
                false
            }
            PostRequest::Atomic { dst, old } => {
                if self.atomics == Atomics::None {
                    return Err(PostError::Unsupported);
                }
                check_range(WORD_BYTES, self.max_msg, &dst)?;
                let aligned = dst.key.base.wrapping_add(dst.offset).is_multiple_of(8);
                let fits = old.len() >= WORD_BYTES && old.offset().is_multiple_of(8);
                let writable = !dst.key.is_published() && !old.slab().is_sealed();
                if !aligned || !fits || !writable {
                    return Err(PostError::OutOfBounds);
                }
                false
            }
            PostRequest::Send { len } if len > self.max_send => return Err(PostError::TooLarge),
            PostRequest::Send { .. } => true,
        };
        if outstanding >= self.max_ops as usize || (tells && !has_receive()) {
            return Err(PostError::Full);
        }
        Ok(())
    }
}

/// Whether `len` bytes can travel at once and lie inside of the exported range. Where there are
/// none, the range is not looked at.
#[inline]
fn check_range(len: usize, max: usize, at: &RemoteRange) -> Result<(), PostError> {
    if len > max {
        return Err(PostError::TooLarge);
    }
    let inside = at.offset.checked_add(len as u64).is_some_and(|end| end <= at.key.len);
    if len > 0 && !inside { Err(PostError::OutOfBounds) } else { Ok(()) }
}
