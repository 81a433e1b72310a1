//! Assignment of strips to readers (I8): runs of strips are divided so that the reader with the
//! highest cost has little.
//!
//! That is number partitioning. Largest differencing (Karmarkar and Karp, 1982) begins with a
//! solution for each number alone, and joins the two solutions whose parts differ most, the largest
//! part of one with the smallest of the other, until one is left. Every node computes the same:
//! nothing but the costs decides, and equal ones go by their number.
//!
//! A partition that is too large for one reader is cut into runs of its strips, and small ones
//! beside each other become one run, so that a reader has few runs of touching blocks.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::ops::Range;

/// Into how many runs the strips of a reader are cut, about: the more there are, the less the
/// readers differ, and the shorter are the runs.
const RUNS: u64 = 16;

/// Cuts strips, which cost so much, into runs that cost at most a sixteenth of the mean of `parts`
/// readers, or are one strip. A run that is half as long ends with a partition; `ends` says whether
/// a strip is the last one of its partition.
pub(super) fn runs(costs: &[u64], parts: usize, ends: impl Fn(usize) -> bool) -> Vec<Range<usize>> {
    let all: u64 = costs.iter().sum();
    let most = all / (parts.max(1) as u64 * RUNS).max(1);
    let (mut runs, mut from, mut cost) = (vec![], 0, 0);
    for (at, own) in costs.iter().enumerate() {
        if at > from && cost + own > most {
            runs.push(from..at);
            (from, cost) = (at, 0);
        }
        cost += own;
        if ends(at) && cost > most / 2 {
            runs.push(from..at + 1);
            (from, cost) = (at + 1, 0);
        }
    }
    if from < costs.len() {
        runs.push(from..costs.len());
    }
    runs
}

/// The numbers of the items of each part; there are fewer parts if there are fewer items.
pub(super) fn assigned(costs: &[u64], parts: usize) -> Vec<Vec<usize>> {
    let parts = parts.max(1);
    let alone = |(number, &cost): (usize, &u64)| Solution {
        parts,
        number,
        bins: vec![Bin { cost, items: vec![number] }],
    };
    let mut heap: BinaryHeap<Solution> = costs.iter().enumerate().map(alone).collect();
    let mut made = costs.len();
    while heap.len() > 1 {
        let two = heap.pop().zip(heap.pop());
        heap.extend(two.map(|(first, second)| first.joined(second, made)));
        made += 1;
    }
    let bins = heap.pop().map_or(vec![], |solution| solution.bins);
    let sorted = |mut bin: Bin| {
        bin.items.sort_unstable();
        bin.items
    };
    bins.into_iter().map(sorted).collect()
}

/// Some items, divided among the parts.
struct Solution {
    parts: usize,
    /// Its number, in the order in which solutions are made.
    number: usize,
    /// The parts that have items, the one that costs most first.
    bins: Vec<Bin>,
}

struct Bin {
    cost: u64,
    items: Vec<usize>,
}

impl Solution {
    /// How much more the part costs that costs most than the one that costs least.
    fn difference(&self) -> u64 {
        let most = self.bins.first().map_or(0, |bin| bin.cost);
        let least = if self.bins.len() < self.parts { None } else { self.bins.last() };
        most - least.map_or(0, |bin| bin.cost)
    }

    /// The items of both: the largest part of one with the smallest of the other, and so on.
    fn joined(self, other: Self, number: usize) -> Self {
        let Self { parts, mut bins, .. } = self;
        let mut alone = vec![];
        for (from_end, bin) in other.bins.into_iter().enumerate() {
            // Parts without items are the last ones.
            match bins.get_mut(parts - 1 - from_end) {
                Some(own) => {
                    own.cost += bin.cost;
                    own.items.extend(bin.items);
                }
                None => alone.push(bin),
            }
        }
        bins.extend(alone);
        bins.sort_by(|a, b| b.cost.cmp(&a.cost).then(a.items[0].cmp(&b.items[0])));
        Self { parts, number, bins }
    }
}

impl Ord for Solution {
    /// The one whose parts differ most, and of equal ones the first.
    fn cmp(&self, other: &Self) -> Ordering {
        self.difference().cmp(&other.difference()).then(other.number.cmp(&self.number))
    }
}

impl PartialOrd for Solution {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Solution {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Solution {}

#[cfg(test)]
mod tests {
    use super::*;

    fn loads(costs: &[u64], parts: usize) -> Vec<u64> {
        let assigned = assigned(costs, parts);
        let mut all: Vec<usize> = assigned.concat();
        all.sort_unstable();
        assert!(all.iter().copied().eq(0..costs.len()), "each once: {assigned:?}");
        assert!(assigned.len() <= parts);
        assigned.iter().map(|own| own.iter().map(|at| costs[*at]).sum()).collect()
    }

    /// The least cost of the part that costs most, by trying all.
    fn best(costs: &[u64], parts: usize) -> u64 {
        fn go(costs: &[u64], loads: &mut Vec<u64>, best: &mut u64) {
            let Some((first, rest)) = costs.split_first() else {
                *best = (*best).min(loads.iter().copied().max().unwrap_or(0));
                return;
            };
            for part in 0..loads.len() {
                if loads[..part].contains(&loads[part]) {
                    continue;
                }
                loads[part] += first;
                if loads[part] < *best {
                    go(rest, loads, best);
                }
                loads[part] -= first;
            }
        }
        let mut best = u64::MAX;
        go(costs, &mut vec![0; parts], &mut best);
        best
    }

    #[test]
    fn parts_are_within_the_bound_of_the_best() {
        let mut state = 7u64;
        let mut draw = |below: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % below
        };
        for _ in 0..3_000 {
            let parts = 2 + draw(3) as usize;
            let costs: Vec<u64> = (0..parts + draw(6) as usize).map(|_| 1 + draw(100)).collect();
            let most = loads(&costs, parts).into_iter().max().expect("a part");
            let best = best(&costs, parts);
            // 4/3 - 1/(3k) of the best.
            let bound = best * (4 * parts as u64 - 1) / (3 * parts as u64);
            assert!(most <= bound, "{costs:?} in {parts}: {most} of {best}");
        }
    }

    #[test]
    fn known_numbers_are_divided_as_by_hand() {
        // 8 and 7 differ most, then 6 and 5: 8 + 6 and 7 + 5 + 4 is what is left of the
        // differences.
        let mut halves = loads(&[8, 7, 6, 5, 4], 2);
        halves.sort_unstable();
        assert_eq!(halves, [14, 16]);
        assert_eq!(loads(&[5], 3), [5]);
        assert!(loads(&[], 3).is_empty());
        assert_eq!(loads(&[3, 3, 3, 3], 4), [3; 4]);
    }

    #[test]
    fn skewed_partitions_are_cut_so_that_readers_have_about_the_same() {
        // Zipf 1.0 over 256 partitions; a strip costs 1,000 at most.
        let mut costs = vec![];
        let mut ends = vec![];
        for partition in 1..=256_u64 {
            let mut left = 1_000_000 / partition;
            while left > 0 {
                costs.push(left.min(1_000));
                left -= left.min(1_000);
                ends.push(left == 0);
            }
        }
        for parts in [1, 2, 3, 4, 8, 16] {
            let runs = runs(&costs, parts, |at| ends[at]);
            let covered: Vec<usize> = runs.iter().cloned().flatten().collect();
            assert!(covered.into_iter().eq(0..costs.len()));
            assert!(runs.len() <= 3 * parts * RUNS as usize, "{} runs", runs.len());
            let of_runs: Vec<u64> =
                runs.iter().map(|run| costs[run.clone()].iter().sum()).collect();
            let loads = loads(&of_runs, parts);
            let (most, all) = (loads.iter().max().expect("a part"), loads.iter().sum::<u64>());
            let of_mean = *most as f64 * parts as f64 / all as f64;
            // The rest at the end is less than a run.
            assert!(of_mean <= 1.0 + 1.0 / RUNS as f64, "{parts} readers: {of_mean}");
        }
    }
}
