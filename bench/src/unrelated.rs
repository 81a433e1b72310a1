//! Processes that run the same workload at the same time and have nothing to do with each other:
//! what the machine gives as many processes, against which an engine of several is held.
//!
//! Each reads rows of its own and begins when all have opened theirs; together they have ended when
//! the last has.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use millstream::cluster::{ClusterError, Control};
use millstream::{Counters, JobProgress, Observer, RunOptions, Script, Snapshot};

use crate::checksums::{ChecksumSink, ChecksumTotals};

/// The outcome of all processes together.
pub(crate) struct Unrelated {
    /// Until the last had ended.
    pub(crate) elapsed: Duration,
    /// Counters of all.
    pub(crate) total: Counters,
    /// The result of each.
    pub(crate) sums: Vec<ChecksumTotals>,
}

/// Lets no process begin before all have opened their flows.
struct Together<'a> {
    control: &'a Control,
    failed: Mutex<Option<ClusterError>>,
}

impl Observer for Together<'_> {
    fn opened(&self) {
        if let Err(error) = self.control.all_gather("opened", Vec::new()) {
            *self.failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        }
    }

    fn progress(&self, _: &JobProgress) {}
}

/// Runs the script in each process by itself; all get the outcome.
///
/// # Errors
/// The first failure of this process, or of another.
pub(crate) fn run<E: From<millstream::Error> + From<ClusterError>>(
    script: &Script,
    checksums: &ChecksumSink,
    control: &Control,
) -> Result<Unrelated, E> {
    let together = Together { control, failed: Mutex::default() };
    let options = RunOptions { observer: Some(&together), ..RunOptions::default() };
    let report = script.run(&options)?;
    if let Some(error) = together.failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(error.into());
    }
    let own = OwnRun {
        elapsed_ns: report.elapsed.as_nanos() as u64,
        total: report.total,
        sums: checksums.take(),
    };
    let all = control.all_gather("unrelated", own.encode())?;
    let all: Vec<OwnRun> = all.iter().filter_map(|bytes| OwnRun::decode(bytes)).collect();
    let elapsed_ns = all.iter().map(|one| one.elapsed_ns).max().unwrap_or(0);
    let mut total = Counters::default();
    all.iter().for_each(|one| total.add(&one.total));
    let sums = all.iter().map(|one| one.sums).collect();
    Ok(Unrelated { elapsed: Duration::from_nanos(elapsed_ns), total, sums })
}

/// The outcome of one process.
#[derive(Debug, Clone, Copy, PartialEq)]
struct OwnRun {
    elapsed_ns: u64,
    /// Of counters those that [`counted`] names.
    total: Counters,
    sums: ChecksumTotals,
}

/// The counters of which a summary tells, those of hardware apart.
fn counted(total: &mut Counters) -> [&mut u64; 10] {
    let Counters {
        rows_in,
        bytes_in,
        rows_out,
        windows,
        late,
        epochs,
        bytes_sent,
        local_bytes,
        cpu_ns,
        ..
    } = total;
    [
        rows_in,
        bytes_in,
        rows_out,
        windows,
        late,
        epochs,
        bytes_sent,
        local_bytes,
        cpu_ns,
        &mut total.state_bytes_peak,
    ]
}

impl OwnRun {
    fn encode(mut self) -> Vec<u8> {
        let counters = counted(&mut self.total).map(|count| *count);
        let words = [self.elapsed_ns].into_iter().chain(counters);
        words.flat_map(u64::to_le_bytes).chain(self.sums.encode()).collect()
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut total = Counters::default();
        let mut rest = bytes;
        let mut word = || {
            let (word, behind) = rest.split_first_chunk::<8>()?;
            rest = behind;
            Some(u64::from_le_bytes(*word))
        };
        let elapsed_ns = word()?;
        for count in counted(&mut total) {
            *count = word()?;
        }
        Some(Self { elapsed_ns, total, sums: ChecksumTotals::decode(rest)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outcome_survives_the_wire_and_pieces_of_it_do_not() {
        let mut total = Counters::default();
        (3..).zip(counted(&mut total)).for_each(|(number, count)| *count = number);
        let mut sums = ChecksumTotals::default();
        sums.add_whole(7, 9);
        let own = OwnRun { elapsed_ns: 5, total, sums };
        let bytes = own.encode();
        assert_eq!(OwnRun::decode(&bytes), Some(own));
        for end in 0..bytes.len() {
            assert_eq!(OwnRun::decode(&bytes[..end]), None, "{end}");
        }
    }
}
