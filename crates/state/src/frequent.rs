//! Which keys of a stream of rows are frequent.
//!
//! A table has a place for some bits of a key's hash. In each place the candidates of a sample vote
//! (the majority algorithm of Boyer and Moore): a key that comes again counts up, another counts
//! down and takes the place at zero. So a key stays that comes more often than all others of its
//! place together, and its count tells by how much. Keys are told by 44 bits of their hashes: who
//! is taken for another is treated as frequent, which costs time and no result.

/// Bits of a hash that tell its place: all tags take 32 KiB.
const PLACE_BITS: u32 = 13;

/// When keys are learnt, and which.
#[derive(Debug, Clone, Copy)]
struct Learning {
    /// Rows that are looked at to learn.
    sample_rows: usize,
    /// Rows from one sample to the next.
    period_rows: usize,
    /// A frequent key's count, at least.
    count_min: u32,
    /// The part of the sample's rows that the frequent keys must have to be worth anything.
    worth_part: usize,
}

/// A key that is found costs as much as sending its row if few of its rows meet: it should have one
/// row in four thousand.
const BY_SAMPLE: Learning =
    Learning { sample_rows: 1 << 18, period_rows: 1 << 22, count_min: 64, worth_part: 8 };

/// Each batch tells the next one its keys.
const ALWAYS: Learning =
    Learning { sample_rows: 1, period_rows: 1, count_min: 1, worth_part: usize::MAX };

/// A counter of the sample.
#[derive(Debug, Clone, Copy, Default)]
struct Candidate {
    tag: u32,
    count: u32,
}

/// Tells rows with frequent keys by the hashes of their keys.
#[derive(Debug)]
pub struct Frequent {
    learning: Learning,
    /// By place the tag of the frequent key, or 0.
    tags: Box<[u32]>,
    /// Whether there are any.
    any: bool,
    candidates: Box<[Candidate]>,
    /// Rows of this period so far.
    rows: usize,
}

impl Frequent {
    /// With keys that a sample shows to be frequent, if they have enough of its rows for so many
    /// owners; `always` with whatever keys the batch before had.
    pub fn new(owners: u32, always: bool) -> Self {
        // Half as many rows more than the others have are a burden to one owner.
        let worth_part = BY_SAMPLE.worth_part.max(2 * owners as usize);
        let by_sample = Learning { worth_part, ..BY_SAMPLE };
        Self {
            learning: if always { ALWAYS } else { by_sample },
            tags: vec![0; 1 << PLACE_BITS].into(),
            any: false,
            candidates: vec![Candidate::default(); 1 << PLACE_BITS].into(),
            rows: 0,
        }
    }

    /// Gives the rows of frequent keys to `to`, but those of which `own` is the owner; `hashes` and
    /// `owners` are of the rows of a batch.
    pub fn redirect(&mut self, hashes: &[u64], owners: &mut [u32], own: u32, to: u32) {
        if self.any {
            for (&hash, owner) in hashes.iter().zip(owners) {
                let found = self.tags[place(hash)] == tag(hash) && *owner != own;
                *owner = if found { to } else { *owner };
            }
        }
        self.learn(hashes);
    }

    /// That rows of these keys were set apart was not worth it: until the next sample none are
    /// frequent.
    pub fn forget(&mut self) {
        self.any = false;
    }

    fn learn(&mut self, hashes: &[u64]) {
        let Learning { sample_rows, period_rows, .. } = self.learning;
        let learns = self.rows < sample_rows;
        self.rows += hashes.len();
        if learns {
            hashes.iter().for_each(|&hash| self.candidates[place(hash)].vote(tag(hash)));
            if self.rows >= sample_rows {
                self.adopt();
            }
        }
        if self.rows >= period_rows {
            self.rows = 0;
            self.candidates.fill(Candidate::default());
        }
    }

    /// Takes over what the sample has come to.
    fn adopt(&mut self) {
        let Learning { count_min, worth_part, .. } = self.learning;
        let mut rows = 0;
        for (tag, candidate) in self.tags.iter_mut().zip(&self.candidates) {
            let frequent = candidate.count >= count_min;
            *tag = if frequent { candidate.tag } else { 0 };
            rows += if frequent { candidate.count as usize } else { 0 };
        }
        self.any = rows > 0 && rows >= self.rows / worth_part;
    }
}

impl Candidate {
    #[inline]
    fn vote(&mut self, tag: u32) {
        match self.count {
            0 => *self = Self { tag, count: 1 },
            count if self.tag == tag => self.count = count.saturating_add(1),
            count => self.count = count - 1,
        }
    }
}

/// By the upper bits: the lower ones tell the owner.
#[inline]
fn place(hash: u64) -> usize {
    (hash >> (u64::BITS - PLACE_BITS)) as usize
}

/// Never 0.
#[inline]
fn tag(hash: u64) -> u32 {
    hash as u32 | 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash;

    const OWN: u32 = 0;
    const TO: u32 = 9;

    /// The owners of rows with these keys, of whom 1 has all but the multiples of 5, and how many
    /// were redirected.
    fn redirect(frequent: &mut Frequent, keys: impl Iterator<Item = u64>) -> (Vec<u32>, usize) {
        let keys: Vec<u64> = keys.collect();
        let hashes: Vec<u64> = keys.iter().map(|&key| hash::word(key)).collect();
        let mut owners: Vec<u32> = keys.iter().map(|key| u32::from(key % 5 > 0)).collect();
        frequent.redirect(&hashes, &mut owners, OWN, TO);
        let redirected = owners.iter().filter(|&&owner| owner == TO).count();
        (owners, redirected)
    }

    /// Every other row has one of 100 keys, the others have keys of their own.
    fn half_frequent(from: u64) -> impl Iterator<Item = u64> {
        (from..from + 8_192).map(|n| if n % 2 == 0 { n / 2 % 100 } else { n + 1_000 })
    }

    #[test]
    fn keys_that_a_sample_shows_are_frequent_behind_it() {
        let mut frequent = Frequent::new(2, false);
        let (sample, batch) = (BY_SAMPLE.sample_rows as u64, 8_192);
        for from in (0..sample).step_by(batch) {
            assert_eq!(redirect(&mut frequent, half_frequent(from)).1, 0, "at {from}");
        }
        let (owners, redirected) = redirect(&mut frequent, half_frequent(sample));
        // Of the keys below 100 a fifth is the own.
        let expected = batch / 2 * 4 / 5;
        assert!(redirected.abs_diff(expected) < 50, "{redirected}");
        let mut rest = half_frequent(sample).zip(owners).filter(|&(_, owner)| owner != TO);
        assert!(rest.all(|(key, owner)| owner == u32::from(key % 5 > 0)));
        frequent.forget();
        assert_eq!(redirect(&mut frequent, half_frequent(sample)).1, 0);
        // The next sample tells them again.
        for from in (0..BY_SAMPLE.period_rows as u64).step_by(batch) {
            redirect(&mut frequent, half_frequent(from));
        }
        assert!(redirect(&mut frequent, half_frequent(sample)).1 > 0);
    }

    #[test]
    fn where_all_keys_are_as_frequent_none_is() {
        let mut frequent = Frequent::new(2, false);
        let mut key = 1u64;
        let mut next = || {
            key = key.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (key >> 33) % 1_000_000
        };
        for _ in 0..2 * BY_SAMPLE.period_rows / 8_192 {
            let keys: Vec<u64> = (0..8_192).map(|_| next()).collect();
            assert_eq!(redirect(&mut frequent, keys.into_iter()).1, 0);
        }
    }

    #[test]
    fn a_key_that_burdens_one_of_many_owners_is_frequent() {
        let of = |owners| {
            let mut frequent = Frequent::new(owners, false);
            let one_of_twenty = |n: u64| if n.is_multiple_of(20) { 1 } else { n };
            for from in (0..=BY_SAMPLE.sample_rows as u64).step_by(8_192) {
                redirect(&mut frequent, (from..from + 8_192).map(one_of_twenty));
            }
            redirect(&mut frequent, (1_000..1_200).map(one_of_twenty)).1
        };
        assert_eq!((of(2), of(64)), (0, 10));
    }

    #[test]
    fn when_asked_for_the_keys_of_the_batch_before_are() {
        let mut frequent = Frequent::new(2, true);
        assert_eq!(redirect(&mut frequent, 0..50).1, 0);
        assert_eq!(redirect(&mut frequent, 0..100).1, 40);
        assert_eq!(redirect(&mut frequent, 100..150).1, 0);
        assert_eq!(redirect(&mut frequent, 100..150).1, 40);
        assert_eq!(redirect(&mut frequent, std::iter::empty()).1, 0);
    }
}
