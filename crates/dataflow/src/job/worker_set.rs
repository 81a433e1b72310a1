//! Workers for whom rows are, as they stand in front of a frame (W1): as ranges or as a bitmap,
//! whichever is shorter.

use std::ops::Range;

/// Some workers, each once.
///
/// ```
/// use dataflow::worker_set::WorkerSet;
///
/// let set: WorkerSet = [7, 2, 3, 2].into_iter().collect();
/// assert_eq!(set.iter().collect::<Vec<_>>(), [2, 3, 7]);
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerSet {
    /// First and one past the last, ascending; two ranges have a gap between them.
    ranges: Vec<(u32, u32)>,
}

/// The form of a list: ranges, each as its first worker and one past its last.
const RANGES: u8 = 0;

/// The form of a list: a bit for each worker, the first in the lowest bit of the first byte.
const BITMAP: u8 = 1;

/// Bytes of a range.
const RANGE_BYTES: usize = 8;

impl WorkerSet {
    /// All workers of a range.
    pub fn all(workers: Range<u32>) -> Self {
        let ranges = if workers.is_empty() { vec![] } else { vec![(workers.start, workers.end)] };
        Self { ranges }
    }

    /// Whether it is nobody.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Whether a worker is among them.
    pub fn contains(&self, worker: u32) -> bool {
        let after = self.ranges.partition_point(|range| range.1 <= worker);
        self.ranges.get(after).is_some_and(|range| range.0 <= worker)
    }

    /// The workers, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        self.ranges.iter().flat_map(|&(first, end)| first..end)
    }

    /// One past the last worker; 0 of nobody.
    pub fn end(&self) -> u32 {
        self.ranges.last().map_or(0, |range| range.1)
    }

    /// Those of a range, counted from its start.
    pub fn within(&self, workers: Range<u32>) -> Self {
        let cut = |&(first, end): &(u32, u32)| {
            let (first, end) = (first.max(workers.start), end.min(workers.end));
            (first < end).then(|| (first - workers.start, end - workers.start))
        };
        Self { ranges: self.ranges.iter().filter_map(cut).collect() }
    }

    /// Bytes of a list of some of so many workers, at most.
    pub fn bytes_max(of: u32) -> usize {
        1 + of.div_ceil(8) as usize
    }

    /// Writes a list of some of so many workers; gives its bytes.
    ///
    /// # Panics
    /// When a worker is not one of them, or `out` is shorter than [`WorkerSet::bytes_max`].
    pub fn encode(&self, of: u32, out: &mut [u8]) -> usize {
        assert!(self.end() <= of, "workers up to {} of {of}", self.end());
        let bitmap = Self::bytes_max(of);
        let bytes = 1 + 4 + self.ranges.len() * RANGE_BYTES;
        if bytes < bitmap {
            out[0] = RANGES;
            out[1..5].copy_from_slice(&(self.ranges.len() as u32).to_le_bytes());
            for (range, to) in self.ranges.iter().zip(out[5..].chunks_exact_mut(RANGE_BYTES)) {
                to[..4].copy_from_slice(&range.0.to_le_bytes());
                to[4..].copy_from_slice(&range.1.to_le_bytes());
            }
            return bytes;
        }
        out[0] = BITMAP;
        out[1..bitmap].fill(0);
        for worker in self.iter() {
            out[1 + worker as usize / 8] |= 1 << (worker % 8);
        }
        bitmap
    }

    /// Reads a list of some of so many workers, at least one; gives its bytes too.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn decode(of: u32, bytes: &[u8]) -> Result<(Self, usize), String> {
        let cut = || "a list of workers is cut off".to_owned();
        let (form, rest) = bytes.split_first().ok_or_else(cut)?;
        let (set, used) = match *form {
            RANGES => {
                let (count, rest) = rest.split_first_chunk::<4>().ok_or_else(cut)?;
                let count = u32::from_le_bytes(*count) as usize;
                let length = count.checked_mul(RANGE_BYTES).ok_or_else(cut)?;
                let (words, _) = rest.get(..length).ok_or_else(cut)?.as_chunks::<4>();
                let words: Vec<u32> = words.iter().map(|word| u32::from_le_bytes(*word)).collect();
                if !words.is_sorted_by(|a, b| a < b) {
                    return Err("ranges of workers are empty, touch, or are not in order".into());
                }
                let ranges = words.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
                (Self { ranges }, 5 + length)
            }
            BITMAP => {
                let used = Self::bytes_max(of);
                let bits = bytes.get(1..used).ok_or_else(cut)?;
                let bit = |worker: &u32| bits[*worker as usize / 8] & (1 << (worker % 8)) != 0;
                ((0..used as u32 * 8 - 8).filter(bit).collect(), used)
            }
            form => return Err(format!("a list of workers has the form {form}")),
        };
        match set.end() {
            0 => Err("a list of workers names nobody".into()),
            end if end > of => Err(format!("a list names worker {} of {of}", end - 1)),
            _ => Ok((set, used)),
        }
    }
}

impl FromIterator<u32> for WorkerSet {
    fn from_iter<I: IntoIterator<Item = u32>>(workers: I) -> Self {
        let mut workers: Vec<u32> = workers.into_iter().collect();
        workers.sort_unstable();
        workers.dedup();
        let mut ranges: Vec<(u32, u32)> = vec![];
        for worker in workers {
            match ranges.last_mut() {
                Some(last) if last.1 == worker => last.1 += 1,
                _ => ranges.push((worker, worker + 1)),
            }
        }
        Self { ranges }
    }
}

#[cfg(test)]
mod tests;
