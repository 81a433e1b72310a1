//! Bits of validity and of booleans, put together 64 at a time.

use std::ops::Range;

use arrow::buffer::BooleanBuffer;

use super::rows::{ABSENT, Rows};

/// Bits of a word.
const WORD: usize = u64::BITS as usize;

/// Writes bits one behind the other, the first one into the least bit of the first byte.
pub(super) struct BitWriter<'a> {
    out: &'a mut [u8],
    word: u64,
    filled: usize,
    ones: usize,
}

impl<'a> BitWriter<'a> {
    /// Writes to `out`, which has a byte for each eight bits that will come.
    pub(super) fn new(out: &'a mut [u8]) -> Self {
        Self { out, word: 0, filled: 0, ones: 0 }
    }

    /// Writes the bits of some rows; those of absent rows are zero, and those of all others are one
    /// if there are no `bits`.
    pub(super) fn write(&mut self, bits: Option<&BooleanBuffer>, rows: &Rows<'_>) {
        match (rows, bits) {
            (Rows::Range(range), Some(bits)) => self.copy(bits, range),
            (Rows::Range(range), None) => self.fill(range.len()),
            (Rows::Numbers(numbers), _) => self.pick(bits, numbers),
        }
    }

    /// Writes what is left, and gives how many bits are one.
    pub(super) fn finish(self) -> usize {
        let bytes = self.word.to_le_bytes();
        let left = self.filled.div_ceil(8);
        self.out.copy_from_slice(&bytes[..left]);
        self.ones
    }

    fn copy(&mut self, bits: &BooleanBuffer, range: &Range<usize>) {
        let bits = bits.slice(range.start, range.len());
        let chunks = bits.bit_chunks();
        chunks.iter().for_each(|word| self.push(word, WORD));
        self.push(chunks.remainder_bits(), chunks.remainder_len());
    }

    fn fill(&mut self, mut rows: usize) {
        while rows > 0 {
            let count = rows.min(WORD);
            self.push(u64::MAX >> (WORD - count), count);
            rows -= count;
        }
    }

    fn pick(&mut self, bits: Option<&BooleanBuffer>, numbers: &[u32]) {
        for numbers in numbers.chunks(WORD) {
            let bit =
                |&row: &u32| row != ABSENT && bits.is_none_or(|bits| bits.value(row as usize));
            let word = numbers.iter().rev().fold(0, |word, row| word << 1 | u64::from(bit(row)));
            self.push(word, numbers.len());
        }
    }

    /// Writes the lowest `count` bits of `bits`, which has no others.
    fn push(&mut self, bits: u64, count: usize) {
        self.ones += bits.count_ones() as usize;
        self.word |= bits.checked_shl(self.filled as u32).unwrap_or(0);
        let free = WORD - self.filled;
        if count < free {
            self.filled += count;
            return;
        }
        let (word, rest) = std::mem::take(&mut self.out).split_at_mut(WORD / 8);
        word.copy_from_slice(&self.word.to_le_bytes());
        self.out = rest;
        self.word = bits.checked_shr(free as u32).unwrap_or(0);
        self.filled = count - free;
    }
}
