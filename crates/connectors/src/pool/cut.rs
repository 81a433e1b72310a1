//! How the strips of a scan are divided among readers (I8): by what they cost, or by the bucket
//! that decides.

use std::sync::Arc;

use dataflow::error::ConnectorError;
use dataflow::source::{BucketPart, Split};

use super::assign::{assigned, runs};
use super::costs::{RATE_MEAN, Rates, SplitMeter};
use super::partition::bucket_in;
use super::source::{Placed, PoolSource};
use super::version::Version;

/// The name of a split, which says how it was cut.
#[derive(Debug, Clone, Copy)]
struct SplitName {
    part: usize,
    parts: usize,
    /// By measured costs, and not by sizes alone.
    by_cost: bool,
}

impl SplitName {
    fn name(self, table: &str) -> String {
        let Self { part, parts, by_cost } = self;
        let by = if by_cost { "by cost " } else { "" };
        format!("part {part} of {parts} {by}of '{table}'")
    }

    /// The inverse of [`name`](Self::name).
    fn of(name: &str) -> Option<Self> {
        let mut words = name.strip_prefix("part ")?.split(' ');
        let part = words.next()?.parse().ok()?;
        let parts = words.nth(1)?.parse().ok()?;
        Some(Self { part, parts, by_cost: words.next() == Some("by") })
    }
}

impl PoolSource {
    pub(super) fn strips(&self, version: &Version) -> Arc<[u32]> {
        let strips: Arc<[u32]> = match &self.pruned {
            Some(pruned) if pruned.within_splits => Arc::clone(&pruned.kept),
            _ => (0..version.manifest().strips.len() as u32).collect(),
        };
        if self.cell.is_empty() {
            return strips;
        }
        let buckets = &version.manifest().definition.buckets;
        let partitions = partitions_of(version, &strips);
        let is_within = |partition: u32| {
            self.cell.iter().all(|&(by, BucketPart { part, parts, .. })| {
                let bucket = u64::from(bucket_in(partition, buckets, by));
                (bucket * u64::from(parts)) >> buckets[by].bits == u64::from(part)
            })
        };
        let own = strips.iter().zip(partitions).filter(|(_, partition)| is_within(*partition));
        own.map(|(strip, _)| *strip).collect()
    }

    /// Bytes of a strip that are read.
    pub(super) fn bytes(&self, version: &Version, strip: u32) -> u64 {
        let blocks = &version.manifest().strips[strip as usize].blocks;
        self.projection.iter().map(|&column| u64::from(blocks[column].bytes)).sum()
    }

    /// The cost of a strip, which is not 0 even if none of its bytes are read.
    pub(super) fn cost(&self, version: &Version, strip: u32) -> u64 {
        let rows = u64::from(version.manifest().strips[strip as usize].rows);
        self.bytes(version, strip) + rows.max(1)
    }

    /// The costs of strips, which ascend: by the rates of their partitions, if they are given.
    fn costs_of(&self, version: &Version, strips: &[u32], rates: Option<&Rates>) -> Vec<u64> {
        let sizes = strips.iter().map(|strip| self.cost(version, *strip));
        let Some(rates) = rates else { return sizes.collect() };
        let parts = partitions_of(version, strips);
        let cost = |(size, part): (u64, u32)| (size * rates.of_partition(part) / RATE_MEAN).max(1);
        sizes.zip(parts).map(cost).collect()
    }

    /// The strips of each of `parts` splits, by the rates of partitions if they are given.
    pub(super) fn parts(
        &self,
        version: &Version,
        parts: usize,
        rates: Option<&Rates>,
    ) -> Vec<Vec<u32>> {
        let strips = self.strips(version);
        let Some(Placed { by, workers }) = self.placed else {
            return self.assigned(version, &strips, parts, rates);
        };
        let mut own = vec![vec![]; workers as usize];
        let buckets = &version.manifest().definition.buckets;
        for (&strip, partition) in strips.iter().zip(partitions_of(version, &strips)) {
            let bucket = u64::from(bucket_in(partition, buckets, by));
            own[((bucket * u64::from(workers)) >> buckets[by].bits) as usize].push(strip);
        }
        own
    }

    /// The strips of a split. A table with fewer strips than splits has none for some of them.
    pub(super) fn strips_of(&self, version: &Version, split: &Split) -> Vec<u32> {
        let own = SplitName::of(&split.name).and_then(|SplitName { part, parts, by_cost }| {
            self.parts(version, parts, self.rates(by_cost)).into_iter().nth(part)
        });
        own.unwrap_or_default()
    }

    /// Divides strips among at most `parts` readers, so that they cost about the same (I8).
    fn assigned(
        &self,
        version: &Version,
        strips: &[u32],
        parts: usize,
        rates: Option<&Rates>,
    ) -> Vec<Vec<u32>> {
        let costs = self.costs_of(version, strips, rates);
        let ends = &version.manifest().partitions;
        let ends = |at: usize| ends.binary_search(&(strips[at] + 1)).is_ok();
        let runs = runs(&costs, parts, ends);
        let of_runs: Vec<u64> = runs.iter().map(|run| costs[run.clone()].iter().sum()).collect();
        let strips_of = |own: Vec<usize>| -> Vec<u32> {
            own.into_iter().flat_map(|run| &strips[runs[run].clone()]).copied().collect()
        };
        assigned(&of_runs, parts).into_iter().map(strips_of).collect()
    }

    /// The rates of partitions that splits are cut by.
    pub(super) fn rates(&self, by_cost: bool) -> Option<&Rates> {
        self.costs.as_ref().filter(|_| by_cost)?.fixed()
    }

    /// Measures the partitions of a split, where there are several.
    pub(super) fn meter(&self, version: &Version, strips: &[u32]) -> Option<SplitMeter> {
        let costs = self.costs.as_ref().filter(|_| version.manifest().partitions.len() > 2)?;
        let sizes = self.costs_of(version, strips, None);
        let strips = partitions_of(version, strips).into_iter().zip(sizes);
        Some(SplitMeter::new(costs, strips.collect()))
    }

    /// The splits, by the rates of partitions or by sizes alone.
    pub(super) fn cut(
        &self,
        workers: u32,
        time_column: Option<usize>,
        by_cost: bool,
    ) -> Result<Vec<Split>, ConnectorError> {
        let parts = workers.max(1) as usize;
        let named = |part: usize| Split {
            number: part,
            name: SplitName { part, parts, by_cost }.name(&self.table.name),
            ..Split::default()
        };
        if !self.table.early {
            return Ok((0..parts).map(named).collect());
        }
        if let Some(Placed { workers: planned, .. }) = self.placed.filter(|p| p.workers != workers)
        {
            let message = format!("it was planned for {planned} readers, and has {workers}");
            return Err(ConnectorError::Io {
                place: format!("pool table '{}'", self.table.name),
                message,
                hint: Some("leave the exchange UPPAR out".into()),
            });
        }
        let version = self.table.version()?;
        let kept = self.pruned.as_ref().map(|pruned| &*pruned.kept);
        let is_read = |own: &[u32]| {
            let is_kept = |strip| kept.is_none_or(|kept| kept.binary_search(strip).is_ok());
            self.placed.is_some() || own.iter().any(is_kept)
        };
        let split = |(at, own): (usize, Vec<u32>)| {
            let strip = |at: &u32| &version.manifest().strips[*at as usize];
            let least = |column: usize| {
                let block = |at| strip(at).blocks[self.projection[column]];
                own.iter().map(|at| block(at).least).min().filter(|least| *least != i64::MIN)
            };
            Split {
                rows: Some(own.iter().map(|at| u64::from(strip(at).rows)).sum()),
                bytes: Some(own.iter().map(|at| self.bytes(version, *at)).sum()),
                event_time_min: time_column.and_then(least),
                ..named(at)
            }
        };
        let parts = self.parts(version, parts, self.rates(by_cost)).into_iter().enumerate();
        Ok(parts.filter(|(_, own)| is_read(own)).map(split).collect())
    }
}

/// The partition of each of some strips, which ascend.
fn partitions_of(version: &Version, strips: &[u32]) -> Vec<u32> {
    let ends = &version.manifest().partitions;
    let mut partition = 0;
    let of = |strip: &u32| {
        while ends[partition + 1] <= *strip {
            partition += 1;
        }
        partition as u32
    };
    strips.iter().map(of).collect()
}
