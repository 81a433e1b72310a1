//! Bytes between slabs, in words, and how a write falls into pieces.
//!
//! All access is by relaxed atomic words, so that the simulator needs no `unsafe` and a misuse from
//! a second thread is a wrong result at worst. A word that a piece covers in part is loaded, merged
//! and stored.

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
    if !offset.is_multiple_of(8) {
        let head = (8 - offset % 8).min(out.len());
        let word = words[offset / 8].load(Ordering::Relaxed).to_le_bytes();
        out[..head].copy_from_slice(&word[offset % 8..][..head]);
        if head < out.len() {
            load(words, offset + head, &mut out[head..]);
        }
        return;
    }
    let (whole, tail) = out.as_chunks_mut::<8>();
    let words = &words[offset / 8..];
    for (chunk, word) in whole.iter_mut().zip(words) {
        *chunk = word.load(Ordering::Relaxed).to_le_bytes();
    }
    if !tail.is_empty() {
        let word = words[whole.len()].load(Ordering::Relaxed).to_le_bytes();
        tail.copy_from_slice(&word[..tail.len()]);
    }
}

pub(super) fn store(words: &[AtomicU64], offset: usize, bytes: &[u8]) {
    if !offset.is_multiple_of(8) {
        let head = (8 - offset % 8).min(bytes.len());
        merge(&words[offset / 8], offset % 8, &bytes[..head]);
        if head < bytes.len() {
            store(words, offset + head, &bytes[head..]);
        }
        return;
    }
    let (whole, tail) = bytes.as_chunks::<8>();
    let words = &words[offset / 8..];
    for (chunk, word) in whole.iter().zip(words) {
        word.store(u64::from_le_bytes(*chunk), Ordering::Release);
    }
    if !tail.is_empty() {
        merge(&words[whole.len()], 0, tail);
    }
}

fn merge(word: &AtomicU64, at: usize, bytes: &[u8]) {
    let mut value = word.load(Ordering::Relaxed).to_le_bytes();
    value[at..at + bytes.len()].copy_from_slice(bytes);
    word.store(u64::from_le_bytes(value), Ordering::Release);
}

/// A number that changes when the bytes do.
pub(super) fn hash(words: &[AtomicU64], offset: usize, len: usize) -> u64 {
    const FACTOR: u64 = 0x9fb2_1c65_1e98_df25;
    let (mut lanes, mut buffer, mut done) = ([len as u64, 1, 2, 3], [0; PIECE], 0);
    while done < len {
        let n = PIECE.min(len - done);
        buffer[n..].fill(0);
        load(words, offset + done, &mut buffer[..n]);
        for four in buffer.as_chunks::<8>().0.as_chunks::<4>().0 {
            for (lane, word) in lanes.iter_mut().zip(four) {
                *lane = (*lane ^ u64::from_le_bytes(*word)).wrapping_mul(FACTOR).rotate_left(29);
            }
        }
        done += n;
    }
    lanes.into_iter().fold(0, |sum, lane| mix(sum ^ lane))
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
        // The bytes behind the last whole word land before it.
        out[..=i].rotate_right(1);
    }
}
