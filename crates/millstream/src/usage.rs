//! A thread's use of its processor: time, and hardware counters (S14).

use std::sync::atomic::Ordering;

use dataflow::metrics::Metrics;
use fabric::Clock;
use fabric::clock::MonotonicClock;
use perf_event::events::{Cache, CacheId, CacheOp, CacheResult, Event, Hardware};
use perf_event::{Builder, Counter};

/// The use of a processor by the calling thread, from when it was made.
pub(crate) struct Usage {
    since_ns: u64,
    counting: Counting,
}

impl Usage {
    /// Begins to count; with `hardware` also what the processor counts, where the kernel lets this
    /// program see that.
    pub(crate) fn begin(hardware: bool) -> Self {
        let counting = if hardware { Counting::begin() } else { Counting::default() };
        Self { since_ns: cpu_ns(), counting }
    }

    /// Writes down what the thread has used. To be called by the thread that began.
    pub(crate) fn end(self, metrics: &Metrics) {
        let cpu_ns = cpu_ns().saturating_sub(self.since_ns);
        metrics.cpu_ns.store(cpu_ns, Ordering::Relaxed);
        self.counting.end(metrics);
    }
}

/// Processor time of the calling thread so far.
fn cpu_ns() -> u64 {
    MonotonicClock::new().worked_ns()
}

/// Hardware counters of the calling thread outside the kernel. Each counter by itself: one
/// that a processor does not have, as virtual machines often have none, is missing and no more.
#[derive(Default)]
struct Counting {
    cycles: Option<Counter>,
    instructions: Option<Counter>,
    l1_misses: Option<Counter>,
    llc_misses: Option<Counter>,
    branch_misses: Option<Counter>,
}

impl Counting {
    fn begin() -> Self {
        let l1 = Cache { which: CacheId::L1D, operation: CacheOp::READ, result: CacheResult::MISS };
        Self {
            cycles: counter(Hardware::CPU_CYCLES),
            instructions: counter(Hardware::INSTRUCTIONS),
            l1_misses: counter(l1),
            llc_misses: counter(Hardware::CACHE_MISSES),
            branch_misses: counter(Hardware::BRANCH_MISSES),
        }
    }

    fn end(self, metrics: &Metrics) {
        for (counter, to) in [
            (self.cycles, &metrics.cycles),
            (self.instructions, &metrics.instructions),
            (self.l1_misses, &metrics.l1_misses),
            (self.llc_misses, &metrics.llc_misses),
            (self.branch_misses, &metrics.branch_misses),
        ] {
            to.store(counter.map_or(0, count), Ordering::Relaxed);
        }
    }
}

/// Counts an event of the calling thread from now on, if that can be had.
fn counter(event: impl Event) -> Option<Counter> {
    let mut counter = Builder::new(event).build().ok()?;
    counter.enable().ok()?;
    Some(counter)
}

/// How often it has happened. A processor that is asked for more counters than it has lets them
/// take turns: then it is what it would be, had it been counted all the time.
fn count(mut counter: Counter) -> u64 {
    let Ok(read) = counter.read_count_and_time() else { return 0 };
    match read.time_running {
        0 => 0,
        running => {
            (u128::from(read.count) * u128::from(read.time_enabled) / u128::from(running)) as u64
        }
    }
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;

    use perf_event::events::Software;

    use super::*;

    /// Something to do that takes a while.
    fn work() {
        (0..2_000_000_u64).for_each(|n| {
            black_box(n);
        });
    }

    #[test]
    fn time_is_that_of_the_thread() {
        let metrics = Metrics::default();
        let usage = Usage::begin(false);
        // However long that takes.
        while cpu_ns() == usage.since_ns {
            work();
        }
        usage.end(&metrics);
        let load = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        assert!(load(&metrics.cpu_ns) > 0);
        assert_eq!((load(&metrics.cycles), load(&metrics.instructions)), (0, 0), "not asked for");
    }

    /// The kernel counts some events itself, by the same calls, on any processor.
    #[test]
    fn an_event_is_counted_from_its_begin_to_its_end() {
        let Some(counted) = counter(Software::TASK_CLOCK) else { return };
        work();
        let [first, after] = [counter(Software::TASK_CLOCK), Some(counted)].map(|c| c.map(count));
        assert!(after > first, "{after:?} ns with the work, {first:?} without");
    }

    #[test]
    fn what_the_processor_counts_belongs_together() {
        let metrics = Metrics::default();
        let usage = Usage::begin(true);
        work();
        usage.end(&metrics);
        let load = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let (cycles, instructions) = (load(&metrics.cycles), load(&metrics.instructions));
        // Two million turns of a loop, where there are counters.
        assert!(instructions == 0 || instructions > 2_000_000, "{instructions} instructions");
        assert!(cycles == 0 || cycles > 100_000, "{cycles} cycles");
    }
}
