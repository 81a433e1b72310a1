//! What it costs to bring the rows of a key together, by each exchange: a model without I/O.
//!
//! A *record* is a row that comes to a grouping. Per record, on the average over `n` workers, `p`
//! in each process:
//!
//! | exchange | what travels | bytes |
//! |---|---|---|
//! | `merge` | of each delta the groups of others | (n - p) / n × group / rows of it that meet |
//! | `shuffle` | the rows of others | (n - p) / n × row |
//! | broadcast | each row to all others | (n / p - 1) × row |
//!
//! Others are workers of other processes. Of a shuffle, rows of frequent keys that are grouped in
//! front of it cost what they do by `merge`.
//!
//! Within a process nothing travels, but there are other workers all the same: groups are given
//! away and merged, and rows picked out and copied for whoever takes them. Handing the copy over in
//! place of sending it saves five per cent of the cycles (17.7 of 18.6 by `shuffle`, on two
//! workers), which the model leaves out.
//!
//! How many rows of a group meet in a delta follows from how many groups there are and how many
//! rows an epoch has ([`combine_factor`]). Keys that are all as frequent are the worst case: skew
//! makes more rows meet, so what `merge` costs is an upper bound (S14: skew makes it faster).
//! Cycles are what is done for a record, a group or a byte, and grow with the state that is
//! touched at random; their constants were measured on one machine ([`Costs::default`]), and
//! `millstream bench predict` measures them anew.
//!
//! The model decides once, before a job starts ([`decide`]), and not without a margin: see
//! `docs/decisions/0010-exchange-is-chosen-at-the-start.md`. It leaves out what it cannot know
//! then: filters, skew, how far processors are from memory, and what else runs on the network.

use arrow::datatypes::DataType;
use state::epoch::{EpochLength, LengthBounds, combine_factor, distinct};

use crate::job::{Aggregation, Exchange, Statistics};
use crate::rows::size::{INDEX_BYTES, element_bytes, row_bytes, value_bytes};

/// How many times cheaper another exchange must be to be taken: about as much as the model errs.
pub const MARGIN: f64 = 1.25;

/// State up to this size is in a cache of its worker's own.
const CACHE_BYTES: f64 = (1 << 20) as f64;
/// Bytes of a whole number in a delta, where nothing is known of it: counts and sums are small.
const NUMBER_BYTES: f64 = 4.0;

/// Rows that are grouped.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Grouped {
    /// Workers of the whole job.
    pub workers: u32,
    /// Workers of each process.
    pub beside: u32,
    /// Bytes of a row as it travels.
    pub row_bytes: f64,
    /// Bytes of a group's key and state in a delta.
    pub group_bytes: f64,
    /// Bytes that each row adds to its group's state, where values are kept one by one.
    pub kept_bytes: f64,
    /// Bytes of a group in memory.
    pub held_bytes: f64,
    /// Groups of a window.
    pub groups: f64,
    /// Rows that a worker folds between two deltas.
    pub epoch_rows: f64,
    /// Rows that a worker folds in a window; infinite where that is not known.
    pub window_rows: f64,
    /// The part of the rows whose keys are so frequent that their groups travel in a shuffle too.
    pub frequent: f64,
}

/// How many workers run a grouping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerCounts {
    /// All workers of the job.
    pub total: u32,
    /// The workers of each process.
    pub per_process: u32,
}

impl Grouped {
    /// The estimates for a grouping of `rows` before it starts; `None` where its keys are not known
    /// well enough.
    pub fn of(
        aggregation: &Aggregation,
        rows: &Statistics,
        workers: WorkerCounts,
        epoch: LengthBounds,
    ) -> Option<Self> {
        let groups = rows.values(&aggregation.keys)?.max(1) as f64;
        // The rows of a window end an epoch, if they are all read before its bytes are.
        let windows = rows.windows_max(aggregation).map(|windows| windows.saturating_sub(1).max(1));
        let of_window = rows.rows_max.zip(windows).map_or(f64::INFINITY, |(rows, windows)| {
            rows as f64 / windows as f64 / f64::from(workers.total)
        });
        Some(Self::sized(aggregation, rows, workers, epoch, groups, of_window))
    }

    /// The same of so many groups in each window, and so many rows of it on each worker.
    pub fn sized(
        aggregation: &Aggregation,
        rows: &Statistics,
        workers: WorkerCounts,
        epoch: LengthBounds,
        groups: f64,
        window_rows: f64,
    ) -> Self {
        let group_by = &aggregation.group_by;
        let (lists, states): (Vec<_>, Vec<_>) =
            group_by.state_types().into_iter().partition(DataType::is_nested);
        let key = |(&at, of): (&usize, &DataType)| {
            let distinct = rows.column(at).distinct_max.unwrap_or(groups as u64);
            travelling(of, f64::from(u64::BITS - distinct.leading_zeros()) / 8.0)
        };
        let keys_bytes: f64 = aggregation.keys.iter().zip(&group_by.keys).map(key).sum();
        let row_bytes = row_bytes(&aggregation.input_schema) as f64;
        let held = group_by.keys.iter().chain(&states).map(value_bytes).sum::<u64>();
        let epoch_rows = epoch_rows(epoch, row_bytes, groups).min(window_rows).max(1.0);
        Self {
            workers: workers.total,
            beside: workers.per_process,
            row_bytes,
            group_bytes: keys_bytes
                + states.iter().map(|of| travelling(of, NUMBER_BYTES)).sum::<f64>(),
            kept_bytes: lists.iter().map(element_bytes).sum::<u64>() as f64,
            held_bytes: (INDEX_BYTES + held) as f64,
            groups,
            epoch_rows,
            window_rows,
            frequent: 0.0,
        }
    }

    /// Groups in a delta of so many rows, for all leaders together.
    pub fn delta_groups(&self, rows: f64) -> f64 {
        distinct(self.groups, rows) * self.of_others()
    }

    /// How many rows of a group meet in a delta.
    pub fn combine_factor(&self) -> f64 {
        combine_factor(self.groups, self.epoch_rows)
    }

    /// The part of what a worker reads that belongs to others.
    fn of_others(&self) -> f64 {
        of_others(self.workers)
    }

    /// The part of what a worker reads that belongs to workers of other processes.
    fn of_other_processes(&self) -> f64 {
        let workers = self.workers.max(1);
        f64::from(workers - self.beside.clamp(1, workers)) / f64::from(workers)
    }

    /// Bytes of state of a worker that leads its part of the groups, and has those of others that
    /// an epoch brings if it merges.
    pub fn state_bytes(&self, exchange: Exchange) -> f64 {
        let own = self.groups / f64::from(self.workers.max(1));
        let others = match exchange {
            Exchange::Merge => self.delta_groups(self.epoch_rows),
            _ => 0.0,
        };
        (own + others) * self.held_bytes
    }

    /// What a record costs by `merge` or `shuffle`; by any other, what it costs where it is.
    pub fn price(&self, exchange: Exchange, costs: &Costs) -> Price {
        let touch = costs.touch(self.state_bytes(exchange));
        let (others, away) = (self.of_others(), self.of_other_processes());
        let mut price = Price { bytes: 0.0, cycles: costs.fold + touch };
        if self.window_rows.is_finite() {
            let rows = self.window_rows * f64::from(self.workers);
            price.cycles += costs.open * distinct(self.groups, rows) / rows.max(1.0);
        }
        // What a row costs whose group travels, and one that travels itself.
        let combined = || {
            let (groups, sent) = (others / self.combine_factor(), away / self.combine_factor());
            let bytes = sent * self.group_bytes + away * self.kept_bytes;
            let kept = if self.kept_bytes > 0.0 { costs.row_of(self.kept_bytes) } else { 0.0 };
            Price { bytes, cycles: groups * (costs.group + 2.0 * touch) + others * kept }
        };
        let alone = || Price {
            bytes: away * self.row_bytes,
            cycles: others * costs.row_of(self.row_bytes),
        };
        let mut add = |more: Price, part: f64| {
            price.bytes += part * more.bytes;
            price.cycles += part * more.cycles;
        };
        match exchange {
            Exchange::Merge => add(combined(), 1.0),
            Exchange::Shuffle if self.workers > 1 => {
                add(combined(), self.frequent);
                add(alone(), 1.0 - self.frequent);
                price.cycles += costs.route;
            }
            _ => {}
        }
        price
    }
}

/// The part of what one of so many workers reads that belongs to the others.
pub fn of_others(workers: u32) -> f64 {
    1.0 - 1.0 / f64::from(workers.max(1))
}

/// Rows of an epoch, whose length has settled, if a row has so many bytes and there are so many
/// groups.
pub fn epoch_rows(epoch: LengthBounds, row_bytes: f64, groups: f64) -> f64 {
    let first = epoch.bytes as f64 / row_bytes.max(1.0);
    first * EpochLength::settled(epoch, first, groups) as f64 / epoch.bytes.max(1) as f64
}

/// Bytes of a value in a delta: of whole numbers `narrow` at most, for they travel narrow.
fn travelling(data_type: &DataType, narrow: f64) -> f64 {
    let whole = value_bytes(data_type) as f64;
    let word = whole == 8.0 && !data_type.is_floating();
    if word { narrow.min(whole) } else { whole }
}

/// Cycles of a processor for what is done.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Costs {
    /// To read a record and fold it into state that is in a cache.
    pub fold: f64,
    /// More for each doubling of state beyond a cache.
    pub doubling: f64,
    /// More for the first record of a group: memory that is touched for the first time.
    pub open: f64,
    /// To give a group away, send it, and merge it; beside what its state costs to touch.
    pub group: f64,
    /// To find the leader of a record.
    pub route: f64,
    /// To send a record and take it.
    pub row: f64,
    /// And for each of its bytes.
    pub row_byte: f64,
    /// For each byte that travels: what a worker waits for its part of the network.
    pub wire_byte: f64,
}

impl Default for Costs {
    /// Two processors of 2.6 GHz over shared memory, rounded; a link of 100 Gb/s for ten workers.
    fn default() -> Self {
        let (fold, doubling, open, group) = (9.0, 3.0, 30.0, 120.0);
        let (route, row, row_byte, wire_byte) = (10.0, 30.0, 1.0, 2.0);
        Self { fold, doubling, open, group, route, row, row_byte, wire_byte }
    }
}

impl Costs {
    /// More cycles for a record than in a cache.
    pub fn touch(&self, state_bytes: f64) -> f64 {
        self.doubling * (state_bytes / CACHE_BYTES).max(1.0).log2()
    }

    fn row_of(&self, bytes: f64) -> f64 {
        self.row + self.row_byte * bytes
    }
}

/// What a record costs.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Price {
    /// Bytes sent.
    pub bytes: f64,
    /// Cycles of all workers together.
    pub cycles: f64,
}

impl Price {
    /// In cycles, those included for which bytes are waited.
    pub fn cost(&self, costs: &Costs) -> f64 {
        self.cycles + self.bytes * costs.wire_byte
    }
}

/// An exchange, and what spoke for it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Decision {
    /// `merge` or `shuffle`.
    pub exchange: Exchange,
    /// Whether only the memory for state spoke for it.
    pub for_memory: bool,
    /// What a record costs by merge.
    pub merge: Price,
    /// What a record costs by shuffle.
    pub shuffle: Price,
    /// How many rows of a group meet in a delta of merge.
    pub combine_factor: f64,
}

/// Whether rows should meet by `merge` or by `shuffle`, if they would else meet by `now`. The other
/// is taken if it is [`MARGIN`] times cheaper, or if state of `state_bytes_max` for each worker is
/// only enough for it.
pub fn decide(now: Exchange, grouped: &Grouped, costs: &Costs, state_bytes_max: usize) -> Decision {
    let [merge, shuffle] =
        [Exchange::Merge, Exchange::Shuffle].map(|exchange| grouped.price(exchange, costs));
    let [by_merge, by_shuffle] = [merge, shuffle].map(|price| price.cost(costs));
    let cheaper = match now {
        Exchange::Shuffle if by_shuffle > MARGIN * by_merge => Exchange::Merge,
        Exchange::Shuffle => Exchange::Shuffle,
        _ if by_merge > MARGIN * by_shuffle => Exchange::Shuffle,
        _ => Exchange::Merge,
    };
    let fits = |exchange| grouped.state_bytes(exchange) <= state_bytes_max as f64;
    let for_memory =
        cheaper == Exchange::Merge && !fits(Exchange::Merge) && fits(Exchange::Shuffle);
    let exchange = if for_memory { Exchange::Shuffle } else { cheaper };
    let combine_factor = grouped.combine_factor();
    Decision { exchange, for_memory, merge, shuffle, combine_factor }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    const COSTS: Costs = Costs {
        fold: 1.0,
        doubling: 0.0,
        open: 0.0,
        group: 0.0,
        route: 0.0,
        row: 0.0,
        row_byte: 0.0,
        wire_byte: 1.0,
    };

    fn grouped(workers: u32, groups: u64, epoch_rows: u64) -> Grouped {
        Grouped {
            workers,
            beside: 1,
            row_bytes: 16.0,
            group_bytes: 12.0,
            kept_bytes: 0.0,
            held_bytes: 24.0,
            groups: groups as f64,
            epoch_rows: epoch_rows as f64,
            window_rows: epoch_rows as f64,
            frequent: 0.0,
        }
    }

    /// Draws keys for every worker's epochs, counts what travels, and what memory is taken.
    fn drawn(of: &Grouped, epochs: u64) -> [f64; 3] {
        let (workers, groups) = (u64::from(of.workers), of.groups as u64);
        let mut state = 3u64;
        let mut draw = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % groups
        };
        let beside = u64::from(of.beside);
        let (mut by_merge, mut by_shuffle, mut given) = (0, 0, 0);
        for worker in 0..workers {
            for _ in 0..epochs {
                let mut of_others = HashSet::new();
                for _ in 0..of.epoch_rows as u64 {
                    let key = draw();
                    let leader = key % workers;
                    if leader / beside != worker / beside {
                        by_shuffle += 1;
                    }
                    if leader != worker {
                        of_others.insert(key);
                    }
                }
                given += of_others.len();
                let away = |key: &&u64| **key % workers / beside != worker / beside;
                by_merge += of_others.iter().filter(away).count();
            }
        }
        let records = (workers * epochs) as f64 * of.epoch_rows;
        let state = groups as f64 / workers as f64 + given as f64 / (workers * epochs) as f64;
        [
            by_merge as f64 * of.group_bytes / records,
            by_shuffle as f64 * of.row_bytes / records,
            state * of.held_bytes,
        ]
    }

    #[test]
    fn bytes_and_memory_are_those_that_are_counted() {
        for (workers, beside, groups, rows) in [
            (1, 1, 100, 1_000),
            (2, 1, 1_000, 500),
            (2, 2, 1_000, 500),
            (4, 2, 40, 4_000),
            (7, 1, 70_000, 20_000),
            (16, 4, 16, 10),
        ] {
            let of = Grouped { beside, ..grouped(workers, groups, rows) };
            let [merge, shuffle, state] = drawn(&of, 40_000 / rows.min(20_000));
            let near = |a: f64, b: f64, by: f64| (a - b).abs() <= by * b.max(a) + 1e-9;
            let price = |exchange| of.price(exchange, &COSTS).bytes;
            let (by_merge, by_shuffle) = (price(Exchange::Merge), price(Exchange::Shuffle));
            assert!(near(by_merge, merge, 0.04), "{of:?}: {by_merge} {merge}");
            assert!(near(by_shuffle, shuffle, 0.04), "{of:?}: {by_shuffle} {shuffle}");
            let modelled = of.state_bytes(Exchange::Merge);
            assert!(near(modelled, state, 0.04), "{of:?}: {modelled} {state}");
        }
    }

    #[test]
    fn over_all_inputs_the_cheaper_one_is_taken_if_the_margin_is_exceeded() {
        let costs = Costs::default();
        let mut taken = HashSet::new();
        for workers in [2, 3, 8, 100, 4096] {
            for groups in [1, 10, 10_000, 1_000_000, 1 << 32] {
                for rows in [1, 1_000, 1_000_000, 1 << 30] {
                    for row_bytes in [1.0, 16.0, 300.0] {
                        let of = Grouped { row_bytes, ..grouped(workers, groups, rows) };
                        let of_merge = decide(Exchange::Merge, &of, &costs, usize::MAX);
                        let of_shuffle = decide(Exchange::Shuffle, &of, &costs, usize::MAX);
                        let ratio = of_merge.merge.cost(&costs) / of_merge.shuffle.cost(&costs);
                        let right = match ratio {
                            r if r > MARGIN => [Exchange::Shuffle; 2],
                            r if r < 1.0 / MARGIN => [Exchange::Merge; 2],
                            _ => [Exchange::Merge, Exchange::Shuffle],
                        };
                        assert_eq!([of_merge.exchange, of_shuffle.exchange], right, "{of:?}");
                        taken.insert(of_merge.exchange);
                    }
                }
            }
        }
        assert_eq!(taken.len(), 2, "each is the cheaper one somewhere");
    }

    #[test]
    fn rows_of_frequent_keys_cost_what_they_do_by_merge() {
        let costs = Costs { route: 0.0, doubling: 0.0, ..Costs::default() };
        let price = |exchange, frequent| {
            let of = Grouped { frequent, ..grouped(4, 100, 1_000_000) };
            of.price(exchange, &costs)
        };
        let [none, half, all] = [0.0, 0.5, 1.0].map(|part| price(Exchange::Shuffle, part));
        assert_eq!(all, price(Exchange::Merge, 0.0));
        assert!(all.cycles < half.cycles && half.cycles < none.cycles, "{all:?} {half:?} {none:?}");
        assert_eq!(half.bytes, (none.bytes + all.bytes) / 2.0);
    }

    #[test]
    fn what_was_measured_is_chosen() {
        // ysb-keys on two workers, 8 bytes of key and 8 of time: see docs/benchmarks.md.
        let chosen = |groups, rows| {
            decide(Exchange::Merge, &grouped(2, groups, rows), &Costs::default(), usize::MAX)
                .exchange
        };
        assert_eq!(chosen(100_000, 4 << 20), Exchange::Merge);
        assert_eq!(chosen(10_000_000, 16_000_000), Exchange::Merge);
        assert_eq!(chosen(40_000_000, 8_000_000), Exchange::Shuffle);
        assert_eq!(chosen(400_000_000, 8_000_000), Exchange::Shuffle);
    }

    #[test]
    fn state_that_fits_by_shuffle_alone_is_shuffled() {
        let of = grouped(4, 1_000_000, 100_000_000);
        let decision = |bytes| {
            let decision = decide(Exchange::Merge, &of, &Costs::default(), bytes);
            (decision.exchange, decision.for_memory)
        };
        assert_eq!(decision(30_000_000), (Exchange::Merge, false));
        assert_eq!(decision(10_000_000), (Exchange::Shuffle, true));
        assert_eq!(decision(1_000_000), (Exchange::Merge, false), "it fits by neither");
    }
}
