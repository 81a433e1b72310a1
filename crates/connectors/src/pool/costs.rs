//! Processor time of the partitions of tables, by the size that is read (I8).
//!
//! A reader measures the processor time of its thread from the first rows of a partition to the
//! first of another one: whatever the worker does with the rows in between, beside what it does for
//! other workers. A rate is that time by size, in parts of the mean of all partitions.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use dataflow::costs::{PARTS_TAKEN_MAX, PartCost, ReadCosts};
use fabric::Clock;

/// The mean rate.
pub(super) const RATE_MEAN: u64 = 1024;

/// Rates that a partition has at least and at most: a short time may be that of something else.
const RATE_MIN: u64 = RATE_MEAN / 16;
const RATE_MAX: u64 = RATE_MEAN * 16;

/// Work of a partition, in nanoseconds, from which on its rate is known. Below that it is the mean:
/// the clock is coarse, and a worker does other things, too.
const WORK_NS_MIN: u64 = 200_000;

/// Scans whose rates a session keeps: those that were measured last.
const SCANS_MAX: usize = 256;

/// A table, and the columns that are read.
type ScanKey = (String, Vec<usize>);

/// The rates of the scans of a session.
#[derive(Debug, Default)]
pub(super) struct CostBook(Mutex<Book>);

#[derive(Debug, Default)]
struct Book {
    rates: HashMap<ScanKey, Arc<Rates>>,
    /// The keys, the one that was measured last at the end.
    order: VecDeque<ScanKey>,
}

impl CostBook {
    fn get(&self, key: &ScanKey) -> Option<Arc<Rates>> {
        locked(&self.0).rates.get(key).cloned()
    }

    fn put(&self, key: &ScanKey, rates: Rates) {
        let mut book = locked(&self.0);
        book.order.retain(|other| other != key);
        book.order.push_back(key.clone());
        book.rates.insert(key.clone(), Arc::new(rates));
        if book.order.len() > SCANS_MAX
            && let Some(oldest) = book.order.pop_front()
        {
            book.rates.remove(&oldest);
        }
    }
}

/// The rates of partitions, by their numbers, which ascend. Of any other it is the mean.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct Rates(Vec<(u32, u64)>);

impl Rates {
    /// By whole numbers, so that all nodes get the same. `None` if no rate is known.
    fn of(costs: &[PartCost]) -> Option<Self> {
        let mut parts: BTreeMap<u32, [u64; 2]> = BTreeMap::new();
        for PartCost { part, size, work_ns } in costs {
            let [sizes, work] = parts.entry(*part).or_default();
            (*sizes, *work) = (sizes.saturating_add(*size), work.saturating_add(*work_ns));
        }
        parts.retain(|_, [size, work_ns]| *size > 0 && *work_ns >= WORK_NS_MIN);
        let sum = |of: usize| parts.values().map(|part| u128::from(part[of])).sum::<u128>();
        let (all_size, all_ns) = (sum(0), sum(1));
        let rate = |(part, [size, work_ns]): (&u32, &[u64; 2])| {
            let (size, work_ns) = (u128::from(*size), u128::from(*work_ns));
            // Others say these numbers, and may say any.
            let of_mean = work_ns.saturating_mul(all_size) / size;
            let rate = of_mean.saturating_mul(u128::from(RATE_MEAN)) / all_ns;
            let rate = u64::try_from(rate).unwrap_or(u64::MAX);
            (*part, rate.clamp(RATE_MIN, RATE_MAX))
        };
        let rates: Vec<(u32, u64)> = parts.iter().map(rate).collect();
        (!rates.is_empty()).then_some(Self(rates))
    }

    pub(super) fn of_partition(&self, part: u32) -> u64 {
        let found = self.0.binary_search_by_key(&part, |(of, _)| *of);
        found.map_or(RATE_MEAN, |at| self.0[at].1)
    }

    /// A number of these rates; not 0.
    fn number(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        hasher.finish().max(1)
    }
}

/// The costs of a scan.
#[derive(Debug)]
pub(super) struct ScanCosts {
    book: Arc<CostBook>,
    key: ScanKey,
    fixed: OnceLock<Option<Arc<Rates>>>,
    /// By partition: size and work.
    measured: Mutex<BTreeMap<u32, [u64; 2]>>,
}

impl ScanCosts {
    pub(super) fn new(book: &Arc<CostBook>, table: &str, columns: &[usize]) -> Self {
        let (book, key) = (Arc::clone(book), (table.to_owned(), columns.to_vec()));
        Self { book, key, fixed: OnceLock::new(), measured: Mutex::default() }
    }

    /// The rates that were fixed, if some were known.
    pub(super) fn fixed(&self) -> Option<&Rates> {
        self.fixed.get()?.as_deref()
    }

    fn add(&self, part: u32, size: u64, work_ns: u64) {
        let mut measured = locked(&self.measured);
        let [sizes, work] = measured.entry(part).or_default();
        (*sizes, *work) = (*sizes + size, *work + work_ns);
    }
}

impl ReadCosts for ScanCosts {
    fn fix(&self) -> u64 {
        let fixed = self.fixed.get_or_init(|| self.book.get(&self.key));
        fixed.as_ref().map_or(0, |rates| rates.number())
    }

    fn take(&self) -> Vec<PartCost> {
        let measured = std::mem::take(&mut *locked(&self.measured));
        let cost = |(part, [size, work_ns]): (u32, [u64; 2])| PartCost { part, size, work_ns };
        let mut costs: Vec<PartCost> = measured.into_iter().map(cost).collect();
        costs.sort_by_key(|cost| std::cmp::Reverse(cost.work_ns));
        costs.truncate(PARTS_TAKEN_MAX);
        costs
    }

    fn keep(&self, costs: &[PartCost]) {
        if let Some(rates) = Rates::of(costs) {
            self.book.put(&self.key, rates);
        }
    }
}

/// Measures the partitions of a split for its reader.
pub(super) struct SplitMeter {
    costs: Arc<ScanCosts>,
    /// Of each strip of the split its partition and its size.
    strips: Vec<(u32, u64)>,
    /// The one that is measured, its size so far, and when it began by the thread's processor time.
    now: Option<(u32, u64, u64)>,
}

impl SplitMeter {
    pub(super) fn new(costs: &Arc<ScanCosts>, strips: Vec<(u32, u64)>) -> Self {
        Self { costs: Arc::clone(costs), strips, now: None }
    }

    /// The rows of a strip are processed from now on.
    pub(super) fn begin(&mut self, strip: usize, clock: &dyn Clock) {
        let Some(&(part, size)) = self.strips.get(strip) else { return };
        match &mut self.now {
            Some((of, sizes, _)) if *of == part => *sizes += size,
            _ => {
                let now_ns = self.end(clock);
                self.now = Some((part, size, now_ns));
            }
        }
    }

    /// The rows of the last strip were processed. Gives the time.
    pub(super) fn end(&mut self, clock: &dyn Clock) -> u64 {
        let now_ns = clock.worked_ns();
        if let Some((part, size, since_ns)) = self.now.take() {
            self.costs.add(part, size, now_ns.saturating_sub(since_ns));
        }
        now_ns
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(part: u32, size: u64, work_ns: u64) -> PartCost {
        PartCost { part, size, work_ns }
    }

    fn scan(book: &Arc<CostBook>, table: &str) -> ScanCosts {
        ScanCosts::new(book, table, &[0, 1])
    }

    #[test]
    fn rates_are_times_by_size_in_parts_of_the_mean() {
        // 1 takes 1 ns for each byte, 2 takes 3, 3 too little to tell: 2 ns is the mean.
        let ms = 1_000_000;
        let costs = [cost(1, ms, ms), cost(2, ms, ms), cost(2, 0, 2 * ms), cost(3, 10, 99)];
        let rates = Rates::of(&costs).unwrap();
        let of = [1, 2, 3, 4].map(|part| rates.of_partition(part));
        assert_eq!(of, [RATE_MEAN / 2, RATE_MEAN * 3 / 2, RATE_MEAN, RATE_MEAN]);
        // Others may claim anything.
        let wild = [cost(1, u64::MAX, u64::MAX), cost(2, 1, u64::MAX), cost(3, u64::MAX, ms)];
        let rates = Rates::of(&[wild, wild].concat()).unwrap();
        assert_eq!(rates.of_partition(2), RATE_MAX);
        assert_eq!(rates.of_partition(3), RATE_MIN);
        assert_eq!(Rates::of(&[]), None);
        assert_eq!(Rates::of(&[cost(1, 0, ms), cost(2, 5, 0)]), None);
    }

    #[test]
    fn costs_are_fixed_once_and_kept_for_later_scans() {
        let book = Arc::default();
        let (first, other) = (scan(&book, "t"), scan(&book, "u"));
        assert_eq!(first.fix(), 0, "nothing is known");
        first.keep(&[cost(0, 10, 1_000_000), cost(1, 10, 3_000_000)]);
        assert_eq!((first.fix(), first.fixed()), (0, None), "they do not change any more");
        assert_eq!(other.fix(), 0, "they are of another table");
        let second = scan(&book, "t");
        assert_ne!(second.fix(), 0);
        assert_eq!(second.fixed().map(|rates| rates.of_partition(1)), Some(RATE_MEAN * 3 / 2));
        assert_eq!(scan(&book, "t").fix(), second.fix(), "the same for the same");
        second.keep(&[cost(0, 10, 1_000_000)]);
        assert_ne!(scan(&book, "t").fix(), second.fix());
        for n in 0..2 * SCANS_MAX {
            scan(&book, &format!("t{n}")).keep(&[cost(0, 10, 1_000_000)]);
        }
        assert_eq!(locked(&book.0).rates.len(), SCANS_MAX);
        assert_eq!(scan(&book, "t").fix(), 0, "it was measured first");
    }

    #[test]
    fn what_was_measured_is_taken_once_and_of_the_parts_with_most_work() {
        let costs = scan(&Arc::default(), "t");
        for part in 0..2 * PARTS_TAKEN_MAX as u32 {
            costs.add(part, 1, u64::from(part));
            costs.add(part, 1, 1);
        }
        let taken = costs.take();
        assert_eq!(taken.len(), PARTS_TAKEN_MAX);
        assert!(taken.iter().all(|cost| cost.part >= PARTS_TAKEN_MAX as u32 && cost.size == 2));
        assert!(costs.take().is_empty());
    }

    /// Each look takes a nanosecond.
    struct Looks(std::sync::atomic::AtomicU64);

    impl Clock for Looks {
        fn now_ns(&self) -> u64 {
            self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
        }
    }

    #[test]
    fn the_clock_is_read_between_two_partitions_alone() {
        let costs = Arc::new(scan(&Arc::default(), "t"));
        let mut meter = SplitMeter::new(&costs, [5, 5, 5, 7].map(|part| (part, 10)).to_vec());
        let clock = Looks(0.into());
        (0..4).for_each(|strip| meter.begin(strip, &clock));
        meter.end(&clock);
        let mut taken = costs.take();
        taken.sort_by_key(|cost| cost.part);
        assert_eq!(taken, [cost(5, 30, 1), cost(7, 10, 1)]);
    }
}
