//! Bytes changed at random, in the same way each time: what replays do with the seeds of a corpus.

/// What the bytes of a length, a count or a mark become.
const TELLING: [u32; 8] = [0, 1, 0x7f, 0xff, 0x7fff_ffff, 0x8000_0000, u32::MAX - 7, u32::MAX];

/// Calls `read` with so many changed seeds, which come by turns.
pub fn each<R>(seeds: &[Vec<u8>], count: usize, mut read: impl FnMut(&[u8]) -> R) {
    for number in 0..count {
        let case = Case(number);
        let mut random = Random(number as u64);
        let mut bytes = seeds[number % seeds.len()].clone();
        for _ in 0..1 + random.below(4) {
            let other = &seeds[random.below(seeds.len())];
            change(&mut bytes, other, &mut random);
        }
        read(&bytes);
        drop(case);
    }
}

/// Tells which one it was, where reading it panics.
struct Case(usize);

impl Drop for Case {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("it was the changed seed {}", self.0);
        }
    }
}

/// Makes one change of `bytes`.
fn change(bytes: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    let at = random.below(bytes.len() + 1);
    let end = (at + 1 + random.below(16)).min(bytes.len());
    match random.below(7) {
        0 => bytes.truncate(at),
        1 => drop(bytes.drain(at..end)),
        2 => bytes.extend_from_within(at..end),
        3 => {
            let from = random.below(other.len() + 1);
            let to = (from + random.below(64)).min(other.len());
            bytes.splice(at..end, other[from..to].iter().copied());
        }
        4 => {
            let word = TELLING[random.below(TELLING.len())].to_le_bytes();
            bytes[at..end].iter_mut().zip(word).for_each(|(byte, telling)| *byte = telling);
        }
        5 => bytes[at..end].iter_mut().take(1).for_each(|byte| *byte = random.next() as u8),
        _ => bytes[at..end].iter_mut().take(1).for_each(|byte| *byte ^= 1 << random.below(8)),
    }
}

/// Numbers that look like chance: splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let word = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    }

    /// A number below another one, which is not zero.
    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}
