//! The model of a cluster, without I/O.

use channel::RingConfig;
use dataflow::cost::{Grouped, decide, epoch_rows};
use dataflow::job::{Exchange, Settings};

use super::Constants;

/// Bytes of a group in memory: a key, a count, and its place in the index.
const HELD_BYTES: f64 = 24.0;
/// Bytes of a record as it is read.
const READ_BYTES: f64 = 16.0;

/// Nodes that are all alike.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PredictedCluster {
    /// How many.
    pub nodes: u32,
    /// Workers of each.
    pub workers: u32,
    /// The link of each node, in each direction.
    pub gigabits: f64,
    /// One way over a link.
    pub latency_us: f64,
}

/// The prediction for one exchange.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Foretold {
    /// Records a second, of all nodes.
    pub rate: f64,
    /// The bottleneck.
    pub limit: &'static str,
    /// Seconds from the end of a window's rows until the last delta is merged; 0 without deltas.
    pub close_s: f64,
}

/// The rows of ysb-keys on this many workers, of which this many are in each process, whose windows
/// are longer than their epochs.
pub(super) fn grouped((workers, beside): (u32, u32), keys: u64, constants: &Constants) -> Grouped {
    let groups = keys as f64;
    Grouped {
        workers,
        beside,
        row_bytes: constants.row_bytes,
        group_bytes: constants.group_bytes,
        kept_bytes: 0.0,
        held_bytes: HELD_BYTES,
        groups,
        epoch_rows: epoch_rows(Settings::default().epoch, READ_BYTES, groups),
        window_rows: f64::INFINITY,
        frequent: 0.0,
    }
}

impl PredictedCluster {
    fn all_workers(&self) -> u32 {
        self.nodes * self.workers
    }

    /// Bytes a second that leave a node, and that arrive.
    fn link(&self) -> f64 {
        self.gigabits * 1e9 / 8.0
    }

    /// Bytes a second that the slots of a worker's rings let pass: a slot comes back after the way
    /// there and back.
    fn slots(&self) -> f64 {
        let ring = RingConfig::default();
        let away = f64::from(self.all_workers() - self.workers);
        let bytes = f64::from(ring.slots) * f64::from(ring.slot_bytes) * away;
        bytes / (2e-6 * self.latency_us).max(1e-9)
    }

    /// The planner's choice.
    pub fn choice(&self, keys: u64, constants: &Constants) -> Exchange {
        let of = grouped((self.all_workers(), self.workers), keys, constants);
        let costs = &constants.costs;
        decide(Exchange::Merge, &of, costs, Settings::default().state_bytes_max).exchange
    }

    /// The least of what the processors, the link and the slots of rings allow, for records that
    /// cost a worker this many cycles and have a node send this many bytes each.
    fn held(&self, cycles: f64, bytes: f64, constants: &Constants, close_s: f64) -> Foretold {
        let nodes = f64::from(self.nodes);
        let workers = f64::from(self.workers);
        let by_processors = nodes * workers * constants.hertz / cycles;
        let per_node = |rate: f64| if bytes > 0.0 { nodes * rate / bytes } else { f64::INFINITY };
        let limits = [
            (by_processors, "processors"),
            (per_node(self.link()), "link"),
            (per_node(self.slots() * workers), "slots"),
        ];
        let [first, rest @ ..] = limits;
        let (rate, limit) =
            rest.into_iter().fold(first, |least, one| if one.0 < least.0 { one } else { least });
        Foretold { rate, limit, close_s }
    }
}

/// Predictions for merge, shuffle and broadcast.
pub fn foretell(cluster: &PredictedCluster, keys: u64, constants: &Constants) -> [Foretold; 3] {
    let workers = cluster.all_workers();
    let of = grouped((workers, cluster.workers), keys, constants);
    let by = |exchange, close_s| {
        let price = of.price(exchange, &constants.costs);
        cluster.held(price.cycles, price.bytes, constants, close_s)
    };
    // A delta at any time of an epoch has half of its rows on the average.
    let last = of.delta_groups(of.epoch_rows / 2.0);
    // Of the groups of others, this part leaves the node.
    let away = f64::from(workers - cluster.workers) / f64::from((workers - 1).max(1));
    let bytes = last * of.group_bytes * away * f64::from(cluster.workers);
    let cycles = last
        * (constants.costs.group + 2.0 * constants.costs.touch(of.state_bytes(Exchange::Merge)));
    let close_s = bytes / cluster.link() + cycles / constants.hertz + 2e-6 * cluster.latency_us;
    // Every worker takes every record, one worker of a node for all of them from afar; a tree
    // sends it on as often as there are other nodes.
    let cycles = f64::from(workers) * constants.take + constants.broadcast;
    let nodes = f64::from(cluster.nodes);
    let bytes = constants.row_bytes * (nodes - 1.0);
    let broadcast = cluster.held(cycles, bytes, constants, 0.0);
    [by(Exchange::Merge, close_s), by(Exchange::Shuffle, 0.0), broadcast]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(nodes: u32, gigabits: f64) -> PredictedCluster {
        PredictedCluster { nodes, workers: 10, gigabits, latency_us: 2.0 }
    }

    #[test]
    fn with_few_keys_merge_grows_with_the_nodes_and_broadcast_does_not() {
        let constants = Constants::default();
        let rates = |nodes| foretell(&cluster(nodes, 100.0), 10_000, &constants).map(|f| f.rate);
        let ([merge, _, broadcast], [more, _, as_much]) = (rates(2), rates(256));
        assert!(more > 100.0 * merge, "{merge} {more}");
        assert!(as_much < 1.1 * broadcast, "{broadcast} {as_much}");
    }

    #[test]
    fn a_shuffle_over_a_slow_link_is_held_by_the_link() {
        let constants = Constants::default();
        let shuffle = |gigabits| foretell(&cluster(16, gigabits), 10_000, &constants)[1];
        // By hand: 15 of 16 rows of 16 bytes leave their node, over 1 Gb/s.
        let (slow, by_hand) = (shuffle(1.0), 16.0 * 1e9 / 8.0 / (16.0 * 150.0 / 160.0));
        assert_eq!(slow.limit, "link");
        assert!((slow.rate / by_hand - 1.0).abs() < 1e-9, "{} {by_hand}", slow.rate);
        assert_eq!(shuffle(4_000.0).limit, "processors");
        assert!(shuffle(4_000.0).rate > slow.rate);
    }

    #[test]
    fn a_long_way_is_felt_where_slots_are_few() {
        let far = PredictedCluster { latency_us: 1e5, ..cluster(2, 400.0) };
        let [_, shuffle, _] = foretell(&far, 10_000, &Constants::default());
        // By hand: ten workers, each with ten rings of 8 slots of 64 KiB in a fifth of a second;
        // half of the rows of 16 bytes leave their node.
        let rate = 2.0 * 10.0 * 10.0 * 8.0 * 65_536.0 / 0.2 / (16.0 * 0.5);
        assert_eq!(shuffle.limit, "slots");
        assert!((shuffle.rate / rate - 1.0).abs() < 1e-9, "{} {rate}", shuffle.rate);
    }

    #[test]
    fn names_and_values_belong_together() {
        for (at, name) in Constants::NAMES.iter().enumerate() {
            let with = Constants::default().with(name, 77.0);
            let changed: Vec<bool> = with
                .values()
                .iter()
                .zip(Constants::default().values())
                .map(|(a, b)| *a != b)
                .collect();
            assert!(changed[at], "{name}");
            assert_eq!(changed.iter().filter(|changed| **changed).count(), 1, "{name}");
        }
    }
}
