//! Bytes between slabs, in words, and how a write falls into pieces.
//!
//! All access is by relaxed atomic words, so that the simulator needs no `unsafe` and a misuse from a second thread is a
//! wrong result at worst. A word that a piece covers in part is loaded, merged and stored.

use std::sync::atomic::{AtomicU64, Ordering};

use super::rng::{Rng, mix};

/// Bytes of the largest piece.
pub(super) const PIECE: usize = 64;

/// A part of an operation that lands at once.
#[derive(Debug, Clone, Copy)]
pub(super) struct Piece {
    /// First byte, counted from the operation's.
    pub at: u32,
    /// Bytes, at most [`PIECE`].
    pub len: u32,
}

pub(super) fn load(words: &[AtomicU64], offset: usize, out: &mut [u8]) {
    let mut done = 0;
    while done < out.len() {
        let at = offset + done;
        let (word, skip) = (words[at / 8].load(Ordering::Acquire).to_le_bytes(), at % 8);
        let n = (8 - skip).min(out.len() - done);
        out[done..done + n].copy_from_slice(&word[skip..skip + n]);
        done += n;
    }
}

pub(super) fn store(words: &[AtomicU64], offset: usize, bytes: &[u8]) {
    let mut done = 0;
    while done < bytes.len() {
        let at = offset + done;
        let (word, skip) = (&words[at / 8], at % 8);
        let n = (8 - skip).min(bytes.len() - done);
        let mut value = if n == 8 { [0; 8] } else { word.load(Ordering::Relaxed).to_le_bytes() };
        value[skip..skip + n].copy_from_slice(&bytes[done..done + n]);
        word.store(u64::from_le_bytes(value), Ordering::Release);
        done += n;
    }
}

/// A number that changes when the bytes do.
pub(super) fn hash(words: &[AtomicU64], offset: usize, len: usize) -> u64 {
    let (mut sum, mut buffer, mut done) = (len as u64, [0; PIECE], 0);
    while done < len {
        let n = PIECE.min(len - done);
        buffer[n..].fill(0);
        load(words, offset + done, &mut buffer[..n]);
        for word in buffer.as_chunks::<8>().0 {
            sum = (sum ^ u64::from_le_bytes(*word))
                .wrapping_mul(0x9fb2_1c65_1e98_df25)
                .rotate_left(29);
        }
        done += n;
    }
    mix(sum)
}

/// How pieces are cut and in which order they land.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cut {
    /// Ascending, and the one with the last whole word last.
    pub in_order: bool,
    /// Aligned words stay whole.
    pub whole_words: bool,
}

/// Cuts `len` bytes that land at `offset` into `out`. The last piece lands first.
pub(super) fn cut(rng: &mut Rng, offset: usize, len: usize, how: Cut, out: &mut Vec<Piece>) {
    let mut at = 0;
    while at < len {
        let size = if how.whole_words {
            8 * (1 + rng.below(8) as usize) - (offset + at) % 8
        } else {
            1 + rng.below(PIECE as u64) as usize
        };
        let size = size.min(len - at);
        out.push(Piece { at: at as u32, len: size as u32 });
        at += size;
    }
    if !how.in_order {
        for i in (1..out.len()).rev() {
            out.swap(i, rng.below(i as u64 + 1) as usize);
        }
        return;
    }
    let last_word = ((offset + len) & !7).saturating_sub(8 + offset) as u32;
    out.reverse();
    if let Some(i) = out.iter().position(|p| (p.at..p.at + p.len).contains(&last_word)) {
        // What follows the last whole word lands before it.
        out[..=i].rotate_right(1);
    }
}
