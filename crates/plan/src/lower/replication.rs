//! Whether a side of a hash join is replicated, and how: its rows are broadcast, or where it lies
//! in memory that the processes share, each process pulls it (I7), or one process reads each part
//! and multicasts it (I6).

use crate::Workers;
use crate::lower::broadcast::{May, SideStatistics};
use crate::text::units::human;

/// How every process gets all of a side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Replication {
    /// Its rows go to every worker.
    Broadcast,
    /// Each process reads it.
    Pull,
    /// It lies in shared memory, and each strip is read once; its rows go to every worker.
    Multicast,
}

/// How many times as much as a process receives a server must send before others send for it: rows
/// that are passed on are encoded and decoded, and blocks are not.
const BUSIER: u64 = 2;

impl SideStatistics<'_> {
    /// Why its servers are relieved by processes that pass on what they have read, if they are:
    /// with two readers there is not much to relieve, and mapped memory does not travel.
    fn relieves_servers(&self, workers: Workers) -> Option<String> {
        let reads = self.reads.filter(|reads| !reads.is_mapped && workers.nodes > 2)?;
        let (read, moved) = (self.pulled?, self.bytes?);
        let once = read / u64::from(reads.servers.max(1));
        let sent = once.saturating_mul(u64::from(workers.nodes));
        (sent > moved.max(once).saturating_mul(BUSIER)).then(|| {
            let (nodes, sent, once) = (workers.nodes, human(sent), human(once));
            format!(
                "multicast: if {nodes} processes pulled, a server would send {sent}, not {once}"
            )
        })
    }
}

/// The side with fewer bytes, if sizes are known; else the right one.
pub(crate) fn smaller(sides: &[SideStatistics<'_>; 2]) -> usize {
    match sides.each_ref().map(|side| side.bytes) {
        [Some(left), Some(right)] => usize::from(left >= right),
        [Some(_), None] => 0,
        _ => 1,
    }
}

/// A replication that is cheaper than an exchange of both sides by their keys.
#[derive(Debug, PartialEq)]
pub(crate) struct Cheaper {
    pub(crate) side: usize,
    pub(crate) way: Replication,
    pub(crate) why: String,
}

/// The side whose replication is cheaper than an exchange of both sides by their keys.
pub(crate) fn cheaper(
    may: &[usize],
    sides: &[SideStatistics<'_>; 2],
    workers: Workers,
    bytes_max: u64,
) -> Option<Cheaper> {
    let by_key = sides[0].moved(workers)?.saturating_add(sides[1].moved(workers)?);
    let fits = |side: usize| sides[side].bytes.is_some_and(|bytes| bytes <= bytes_max);
    let moves = may.iter().copied().filter(|&side| fits(side));
    let moves = moves.flat_map(|side| {
        let (own, other) = (&sides[side], &sides[1 - side]);
        let of = |moved: Option<u64>, way: Replication| moved.map(|bytes| (bytes, way, side));
        let pulled = of(own.pulled(other, workers), Replication::Pull);
        [of(own.to_all(other, workers), Replication::Broadcast), pulled]
    });
    let least = |(moved, way, side): &(u64, Replication, usize)| {
        (*moved, usize::MAX - side, *way == Replication::Broadcast)
    };
    let (moved, way, side) = moves.flatten().min_by_key(least)?;
    let cheaper = moved as f64 * dataflow::cost::MARGIN <= by_key as f64;
    let (moved, by_key) = (human(moved), human(by_key));
    let relieved = Some(&sides[side]).filter(|_| way == Replication::Pull);
    let relieved = relieved.and_then(|own| own.relieves_servers(workers));
    let (way, why) = match (way, relieved) {
        (_, Some(why)) => (Replication::Multicast, why),
        (Replication::Pull, None) => {
            (way, format!("pulled: the other processes read {moved}, by key {by_key} would move"))
        }
        _ => (way, format!("replicated: that moves {moved}, by key {by_key} would move")),
    };
    cheaper.then_some(Cheaper { side, way, why })
}

/// The reason why rows meet by their keys.
pub(crate) fn why_by_key(
    may: May,
    sides: &[SideStatistics<'_>; 2],
    bytes_max: u64,
) -> Option<String> {
    let [first, ..] = may.sides else { return Some(format!("by key: {}", may.why)) };
    if let Some(unknown) = sides.iter().find(|side| side.bytes.is_none()) {
        return Some(format!("by key: the size of {} is unknown", unknown.name));
    }
    let least = may.sides.iter().filter_map(|&side| sides[side].bytes).min();
    let too_large = least.is_some_and(|bytes| bytes > bytes_max);
    let name = sides[*first].name;
    Some(if too_large {
        format!("by key: {name} is too large for every process")
    } else {
        "by key: that moves less than the build to every worker".into()
    })
}

#[cfg(test)]
mod tests {
    use dataflow::source::SharedReads;

    use super::*;

    const WORKERS: Workers = Workers { nodes: 2, per_node: 2 };

    fn side(name: &str, bytes: impl Into<Option<u64>>) -> SideStatistics<'_> {
        let bytes = bytes.into();
        SideStatistics { name, bytes, ends: true, spread: true, pulled: None, reads: None }
    }

    #[test]
    fn the_smaller_side_is_the_build_and_an_unknown_one_is_not() {
        let of =
            |left: Option<u64>, right: Option<u64>| smaller(&[side("l", left), side("r", right)]);
        assert_eq!(of(Some(1), Some(2)), 0);
        assert_eq!(of(Some(2), Some(2)), 1);
        assert_eq!(of(Some(9), None), 0);
        assert_eq!(of(None, Some(9)), 1);
        assert_eq!(of(None, None), 1);
    }

    #[test]
    fn a_build_is_replicated_where_that_moves_less() {
        // By key three quarters of both move; a replicated build goes over the network once, and
        // into the state of three other workers.
        let of = |left: u64, right: u64, may: &[usize], most: u64| {
            cheaper(may, &[side("l", left), side("r", right)], WORKERS, most).map(|of| of.side)
        };
        assert_eq!(of(1_000_000, 1_000, &[0, 1], u64::MAX), Some(1));
        assert_eq!(of(1_000, 1_000_000, &[0, 1], u64::MAX), Some(0));
        assert_eq!(of(1_000, 1_000_000, &[1], u64::MAX), None, "only the larger one may");
        assert_eq!(of(1_000_000, 1_000, &[0, 1], 999), None, "it does not fit");
        assert_eq!(of(1_000, 1_000, &[0, 1], u64::MAX), None, "they are of one size");
        assert_eq!(cheaper(&[0, 1], &[side("l", None), side("r", 1)], WORKERS, 9), None);
    }

    #[test]
    fn a_build_is_pulled_where_the_other_processes_read_less() {
        // A broadcast of 1,000 bytes moves 4,000: to one other process and to three other workers.
        let of = |pulled: u64, workers: Workers| {
            let right = SideStatistics { pulled: Some(pulled), ..side("r", 1_000) };
            let found = cheaper(&[0, 1], &[side("l", 1_000_000), right], workers, u64::MAX);
            found.map(|of| (of.side, of.way == Replication::Pull))
        };
        assert_eq!(of(3_999, WORKERS), Some((1, true)));
        assert_eq!(of(4_000, WORKERS), Some((1, true)), "no row is encoded or sent");
        assert_eq!(of(4_001, WORKERS), Some((1, false)));
        let four = Workers { nodes: 4, per_node: 1 };
        assert_eq!(of(2_001, four), Some((1, false)), "three processes read 6,003");
        let filtered = SideStatistics { pulled: Some(900_000), ..side("l", 1_000) };
        let both = [filtered, side("r", 400_000)];
        let chosen = cheaper(&[0, 1], &both, WORKERS, u64::MAX);
        let chosen = chosen.map(|of| (of.side, of.way == Replication::Pull));
        assert_eq!(chosen, Some((0, false)), "filters run where it is read");
    }

    #[test]
    fn a_build_is_multicast_where_its_servers_would_send_most() {
        // Of 1,000 bytes each process pulls all: from so many servers, one of which sends its part
        // to each; by multicast a process receives 1,000 bytes.
        let of = |nodes: u32, servers: u32, is_mapped: bool| {
            let reads = Some(SharedReads { servers, is_mapped });
            let right = SideStatistics { pulled: Some(1_000), reads, ..side("r", 1_000) };
            let workers = Workers { nodes, per_node: 1 };
            cheaper(&[0, 1], &[side("l", 1_000_000), right], workers, u64::MAX).map(|of| of.way)
        };
        let (pull, multicast) = (Some(Replication::Pull), Some(Replication::Multicast));
        assert_eq!(of(2, 1, false), pull, "two processes read for themselves");
        assert_eq!(of(3, 1, false), multicast);
        assert_eq!(of(3, 1, true), pull, "nothing leaves the server");
        assert_eq!(of(4, 2, false), pull);
        assert_eq!(of(5, 2, false), multicast);
        assert_eq!(of(8, 8, false), pull, "each server sends its eighth eight times");
    }
}
