//! Limits of the machine and the fabric, to compare the figures of workloads with.

use std::fmt;
use std::time::Duration;

use channel::LinkError;
use millstream::FabricKind;

use crate::memory::{StreamBuffers, random_updates};
use crate::run::BenchError;
use crate::summary::MedianRange;
use crate::tsc::Tsc;
use crate::wire;
use crate::wire::run::{LinkSetup, ping, stream};

/// Tables of random updates, in bytes.
const TABLES: [usize; 3] = [32 << 20, 128 << 20, 1 << 30];

/// How long a stream is sent.
const SPAN: Duration = Duration::from_millis(300);

/// The measurements.
#[derive(Debug, Clone)]
pub struct HostLimits {
    /// Cycles a second of the time stamp counter.
    pub hertz: Option<f64>,
    /// Threads, and bytes a second that they read together.
    pub read: Vec<(u32, MedianRange)>,
    /// Bytes of a table, and additions a second to random words of it on one thread.
    pub updates: Vec<(usize, MedianRange)>,
    /// Fabric, bytes of a slot, and bytes a second over a link.
    pub throughput: Vec<(FabricKind, u32, MedianRange)>,
    /// Fabric, and seconds that a small frame takes, polled.
    pub one_way: Vec<(FabricKind, MedianRange)>,
}

/// Measures everything, each thing this many times, all in turns.
///
/// # Errors
/// When memory or connections are refused.
pub fn limits(workers: u32, runs: usize) -> Result<HostLimits, BenchError> {
    let mut counts = vec![1, workers.max(1)];
    counts.dedup();
    let streams: Vec<(u32, StreamBuffers)> = counts
        .iter()
        .map(|&threads| Ok((threads, StreamBuffers::new(threads as usize)?)))
        .collect::<Result<_, std::io::Error>>()
        .map_err(BenchError::Memory)?;
    let slots =
        [(FabricKind::Shm, 4 << 10), (FabricKind::Shm, 64 << 10), (FabricKind::Tcp, 64 << 10)];
    let ways = [(FabricKind::Shm, 100_000), (FabricKind::Tcp, 5_000)];
    let mut read = vec![Vec::new(); streams.len()];
    let mut updates = vec![Vec::new(); TABLES.len()];
    let mut throughput = vec![Vec::new(); slots.len()];
    let mut one_way = vec![Vec::new(); ways.len()];
    for _ in 0..runs.max(1) {
        for (rates, (threads, streams)) in read.iter_mut().zip(&streams) {
            rates.push(streams.read(*threads as usize));
        }
        for (rates, &bytes) in updates.iter_mut().zip(&TABLES) {
            rates.push(random_updates(bytes).map_err(BenchError::Memory)?);
        }
        for (rates, &(kind, bytes)) in throughput.iter_mut().zip(&slots) {
            let fabric = wire::open(kind, None).map_err(LinkError::from)?;
            let setup = LinkSetup::of_slots(bytes, 8);
            rates.push(stream(&*fabric, &setup, SPAN)?.rate());
        }
        for (times, &(kind, rounds)) in one_way.iter_mut().zip(&ways) {
            let fabric = wire::open(kind, None).map_err(LinkError::from)?;
            times.push(ping(&*fabric, &LinkSetup::of(64), rounds)?.p50() / 1e9);
        }
    }
    Ok(HostLimits {
        hertz: Tsc::default().hertz(),
        read: streams
            .iter()
            .map(|(threads, _)| *threads)
            .zip(read.iter().map(MedianRange::of))
            .collect(),
        updates: TABLES.into_iter().zip(updates.iter().map(MedianRange::of)).collect(),
        throughput: slots
            .iter()
            .zip(&throughput)
            .map(|(&(kind, bytes), rates)| (kind, bytes, MedianRange::of(rates)))
            .collect(),
        one_way: ways.iter().map(|way| way.0).zip(one_way.iter().map(MedianRange::of)).collect(),
    })
}

impl fmt::Display for HostLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = |name: String, unit: &str, range: MedianRange| {
            writeln!(f, "{name:<44}{range:>9.2}  {:<12}({})", unit, range.range(2))
        };
        if let Some(hertz) = self.hertz {
            line("time stamp counter".into(), "GHz", MedianRange::of(&vec![hertz / 1e9]))?;
        }
        for &(threads, rate) in &self.read {
            let name = format!("memory, streaming read, {threads} thread(s)");
            line(name, "GB/s", rate.times(1e-9))?;
        }
        for &(bytes, rate) in &self.updates {
            let name = format!("memory, random 8-byte updates in {} MiB", bytes >> 20);
            line(name, "M/s", rate.times(1e-6))?;
        }
        for &(kind, bytes, rate) in &self.throughput {
            let name = format!("link over {kind}, slots of {} KiB", bytes >> 10);
            line(name, "GB/s", rate.times(1e-9))?;
        }
        for &(kind, time) in &self.one_way {
            line(format!("link over {kind}, one way of 64 bytes"), "us", time.times(1e6))?;
        }
        Ok(())
    }
}

impl HostLimits {
    /// As one JSON object.
    pub fn json(&self) -> String {
        let mut fields = vec![format!("\"hertz\":{:.0}", self.hertz.unwrap_or(0.0))];
        let mut add = |name: String, range: MedianRange| {
            fields.push(format!("\"{name}\":{}", range.json()));
        };
        self.read.iter().for_each(|(n, s)| add(format!("read_bytes_per_s_{n}"), *s));
        self.updates.iter().for_each(|(n, s)| add(format!("updates_per_s_{}_mib", n >> 20), *s));
        for (kind, bytes, range) in &self.throughput {
            add(format!("{kind}_bytes_per_s_{}_kib", bytes >> 10), *range);
        }
        self.one_way.iter().for_each(|(kind, s)| add(format!("{kind}_one_way_s"), *s));
        format!("{{{}}}", fields.join(","))
    }
}
