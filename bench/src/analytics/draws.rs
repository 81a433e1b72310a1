//! Random values that are functions of the number of a row, so that every process generates the
//! same row.

/// Letters and digits of meaningless texts.
const LETTERS: &[u8; 62] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";

/// The values of one column, independent of the values of other columns.
#[derive(Debug, Clone, Copy)]
pub(super) struct Draws(u64);

impl Draws {
    /// The values of the column with this number, among all columns of a suite.
    pub(super) const fn column(number: u64) -> Self {
        Self(mixed(number))
    }

    /// A random word for a row.
    pub(super) fn word(self, row: u64) -> u64 {
        mixed(self.0.wrapping_add(mixed(row)))
    }

    /// A whole number between two, inclusive.
    pub(super) fn between(self, row: u64, least: i64, most: i64) -> i64 {
        let span = (most - least + 1) as u128;
        least + ((u128::from(self.word(row)) * span) >> 64) as i64
    }

    /// One of some values.
    pub(super) fn of<T: Copy>(self, row: u64, all: &[T]) -> T {
        all[self.between(row, 0, all.len() as i64 - 1) as usize]
    }

    /// Letters and digits; their number is between two, inclusive.
    pub(super) fn text(self, row: u64, least: i64, most: i64) -> String {
        let length = self.between(row, least, most) as u64;
        let letters = Self(self.word(row));
        (0..length).map(|at| letters.of(at, LETTERS) as char).collect()
    }
}

/// The finalizer of SplitMix64: each bit of the result depends on each bit of the number.
const fn mixed(number: u64) -> u64 {
    let word = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_of_a_range_comes_as_often() {
        let draws = Draws::column(3);
        let mut counts = [0; 11];
        for row in 0..110_000 {
            counts[(draws.between(row, -5, 5) + 5) as usize] += 1;
        }
        assert!(counts.iter().all(|count| (9_500..10_500).contains(count)), "{counts:?}");
    }
}
