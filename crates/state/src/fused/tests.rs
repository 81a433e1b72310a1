use arrow::array::Int64Array;

use super::*;

const LIMIT: u64 = 64;
const BASE: u64 = u64::MAX - 5;

/// Where something is not as expected: the row, and what of it.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Odd {
    Nothing,
    Key(usize),
    Time(usize),
    Late(usize),
}

impl Odd {
    fn all(rows: usize) -> impl Iterator<Item = Self> {
        let each = (0..rows).step_by(1 + rows / 30);
        let odd = each.flat_map(|row| [Self::Key(row), Self::Time(row), Self::Late(row)]);
        odd.chain([Self::Nothing])
    }

    /// From which row on none may be taken.
    fn row(self) -> usize {
        match self {
            Self::Nothing => usize::MAX,
            Self::Key(row) | Self::Time(row) | Self::Late(row) => row,
        }
    }

    fn times(self, rows: usize) -> Vec<i64> {
        let mut times: Vec<i64> = (0..rows as i64).map(|row| row / 3).collect();
        match self {
            // The one behind the first row of a time is before it.
            Self::Time(row) => times[row] = -1,
            Self::Late(row) => times[row..].fill(i64::from(i32::MAX) + 1),
            Self::Nothing | Self::Key(_) => {}
        }
        times
    }
}

/// Numbers without a pattern.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        self.0 >> 33
    }
}

fn lengths() -> impl Iterator<Item = usize> {
    (0..20).chain([63, 64, 65, 127, 128, 130, 333])
}

#[test]
fn groups_are_found_and_updated_up_to_the_first_row_that_is_odd() {
    for (rows, odd) in lengths().flat_map(|rows| Odd::all(rows).map(move |odd| (rows, odd))) {
        let key = |row: u64| BASE.wrapping_add(row * row % LIMIT);
        let mut words: Vec<u64> = (0..rows as u64).map(key).collect();
        if let Odd::Key(row) = odd {
            words[row] = BASE.wrapping_add(LIMIT);
        }
        let (values, times): (Vec<u64>, _) = ((0..rows as u64).collect(), odd.times(rows));
        let times = Some(Times { each: &times, last: i32::MAX.into() });
        // Nobody has to know of a first time that it is early.
        let (odd, times) = if odd == Odd::Time(0) { (Odd::Nothing, None) } else { (odd, times) };
        let rows_raw = RawRows { times, ..RawRows::of(&words) };
        let near = DenseRows { rows: rows_raw, base: BASE, limit: LIMIT };
        let mut sums = [0u64; LIMIT as usize + 1];
        let folded = scatter(&mut sums, &near, &values, |slot, v| *slot += v + 1);
        let done = folded.rows;
        assert!(done <= rows.min(odd.row()) && done + 65 > rows.min(odd.row()), "{odd:?}");
        assert_eq!(folded.passed, done);
        let (mut expected, mut most) = ([0u64; LIMIT as usize + 1], 0);
        for (row, &value) in values[..done].iter().enumerate() {
            let id = row * row % LIMIT as usize + 1;
            expected[id] += value + 1;
            most = most.max(id as u32);
        }
        assert_eq!(sums, expected, "{done} of {rows}, {odd:?}");
        assert!((most..=LIMIT as u32).contains(&folded.reach), "{most} of {}", folded.reach);
    }
}

/// The counts of rows by a version.
fn counted(
    near: &DenseRows<'_>,
    count: fn(&mut [u32], usize, &DenseRows<'_>) -> ConsumedRows,
) -> (Vec<u32>, ConsumedRows) {
    let width = 2 * LIMIT as usize;
    let mut one = vec![0; width];
    let folded = count(&mut one, 1, near);
    let mut four = vec![0; 4 * width];
    assert_eq!(count(&mut four, 4, near), folded);
    let sum = |id: usize| (0..4).map(|lane| four[lane * width + id]).sum::<u32>();
    assert_eq!((0..width).map(sum).collect::<Vec<_>>(), one);
    (one, folded)
}

/// Whether the other versions have counted the same.
fn all_count_so(near: &DenseRows<'_>, expected: (Vec<u32>, ConsumedRows)) {
    assert_eq!(counted(near, count_by::<Each>), expected);
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("popcnt") {
        assert_eq!(counted(near, count_by::<Four>), expected);
    }
}

/// A bit for each row.
fn bits(passes: &[bool]) -> Vec<u64> {
    let word = |passes: &[bool]| {
        let passes = passes.iter().enumerate();
        passes.fold(0, |bits, (at, &passes)| bits | u64::from(passes) << at)
    };
    passes.chunks(64).map(word).collect()
}

/// Words of which keys are in reach, but for the odd one and those of rows that do not count.
fn words(random: &mut Random, passes: &[bool], scale: Option<Scale>, odd: Odd) -> Vec<u64> {
    let mut word = |(row, &passes): (usize, &bool)| match (scale, passes) {
        (Some(_), _) if odd == Odd::Key(row) => [1 << 31, u64::MAX, 10 * LIMIT][row % 3],
        (None, _) if odd == Odd::Key(row) => BASE.wrapping_add(LIMIT << (row % 40)),
        (_, false) => random.next() << (row % 31),
        (None, true) => BASE.wrapping_add(random.next() % LIMIT),
        (Some(_), true) => random.next() % (10 * LIMIT),
    };
    passes.iter().enumerate().map(&mut word).collect()
}

#[test]
fn rows_that_pass_are_counted_up_to_the_first_that_is_odd() {
    let ten = Scale { factor: 3_435_973_837, shift: 35 };
    let mut random = Random(1);
    for (rows, odd) in lengths().flat_map(|rows| Odd::all(rows).map(move |odd| (rows, odd))) {
        for (scale, sieve) in [(None, 1), (None, 2), (Some(ten), 1), (Some(ten), 3)] {
            let mut pass =
                |row| sieve == 1 || odd.row() == row || random.next().is_multiple_of(sieve);
            let passes: Vec<bool> = (0..rows).map(&mut pass).collect();
            let words = words(&mut random, &passes, scale, odd);
            let base = if scale.is_some() { 0 } else { BASE };
            let times = odd.times(rows);
            let mask = bits(&passes);
            let times = Times { each: &times, last: i32::MAX.into() };
            let checked = odd != Odd::Time(0);
            let near = DenseRows {
                rows: RawRows {
                    words: &words,
                    key: &scale.map_or(KeyOf::Word, KeyOf::Scaled),
                    passes: (sieve > 1).then_some(&mask),
                    times: checked.then_some(times),
                },
                base,
                limit: LIMIT,
            };
            let (counts, folded) = counted(&near, count);
            let end = if checked { rows.min(odd.row()) } else { rows };
            assert!(folded.rows <= end && folded.rows + 65 > end, "{} of {end}", folded.rows);
            let (mut expected, mut most) = (vec![0; counts.len()], 0);
            let key = |word: u64| scale.map_or(word, |scale| scale.of(word));
            for (&word, _) in words[..folded.rows].iter().zip(&passes).filter(|row| *row.1) {
                let id = key(word).wrapping_sub(base) + 1;
                (expected[id as usize], most) = (expected[id as usize] + 1, most.max(id));
            }
            assert_eq!(counts, expected, "{odd:?} of {rows}, {scale:?}, {sieve}");
            assert_eq!(folded.passed, counts.iter().sum::<u32>() as usize);
            assert!(most <= folded.reach.into() && u64::from(folded.reach) <= LIMIT);
            all_count_so(&near, (counts, folded));
        }
    }
}

#[test]
fn rows_count_by_the_key_that_a_table_has_beside_their_word() {
    const WORDS: u64 = 50;
    let mut random = Random(2);
    for (rows, odd) in lengths().flat_map(|rows| Odd::all(rows).map(move |odd| (rows, odd))) {
        if matches!(odd, Odd::Key(_) | Odd::Time(0)) {
            continue;
        }
        let sieve = 1 + random.next() % 3;
        // Words around zero, of which a fourth has no key, and keys behind the base.
        let word = |number: u64| number.wrapping_sub(WORDS / 2);
        let has_key = |number: u64| number % 4 != 1 && number < WORDS;
        let key = |number: u64| 7 + number * 7 % 31;
        let numbers: Vec<u64> = (0..WORDS).rev().filter(|&number| has_key(number)).collect();
        let column = |values: Vec<u64>| -> ArrayRef {
            Arc::new(values.into_iter().map(|value| value as i64).collect::<Int64Array>())
        };
        let from = column(numbers.iter().map(|&number| word(number)).collect());
        let to = column(numbers.iter().map(|&number| BASE.wrapping_add(key(number))).collect());
        let map = KeyMap::of(&from, &to).expect("equal lengths").expect("a map");
        let look = KeyOf::Mapped(Arc::new(map));

        let drawn: Vec<u64> = (0..rows).map(|_| random.next() % (2 * WORDS)).collect();
        let words: Vec<u64> = drawn.iter().map(|&number| word(number)).collect();
        let passes: Vec<bool> = (0..rows).map(|_| random.next().is_multiple_of(sieve)).collect();
        let mask = bits(&passes);
        let times = odd.times(rows);
        let times = Times { each: &times, last: i32::MAX.into() };
        let rows_raw = RawRows {
            words: &words,
            key: &look,
            passes: (sieve > 1).then_some(&mask),
            times: Some(times),
        };
        let near = DenseRows { rows: rows_raw, base: BASE, limit: LIMIT };
        let (counts, folded) = counted(&near, count);
        let end = rows.min(odd.row());
        assert!(folded.rows <= end && folded.rows + 65 > end, "{} of {end}", folded.rows);
        let (mut expected, mut missed) = (vec![0; counts.len()], 0);
        for (&number, _) in drawn[..folded.rows].iter().zip(&passes).filter(|row| *row.1) {
            if has_key(number) { expected[key(number) as usize + 1] += 1 } else { missed += 1 }
        }
        assert_eq!(counts, expected, "{odd:?} of {rows}, {sieve}");
        assert_eq!(folded.passed, counts.iter().sum::<u32>() as usize);
        assert_eq!(folded.missed, missed);
        let most = expected.iter().rposition(|&count| count > 0).unwrap_or(0);
        assert!((most..=LIMIT as usize).contains(&(folded.reach as usize)));
        all_count_so(&near, (counts, folded));

        // A slot for misses may be another key's, and counters need not begin at zero.
        let mut before = vec![5; 2 * LIMIT as usize];
        assert_eq!(count(&mut before, 1, &near), folded);
        assert!(before.iter().zip(&expected).all(|(&counted, &count)| counted == 5 + count));

        let short = DenseRows { limit: LIMIT / 2, ..near };
        let nothing = (vec![0; 2 * LIMIT as usize], ConsumedRows::default());
        assert_eq!(counted(&short, count), nothing, "not all keys of the table are covered");
    }
}
