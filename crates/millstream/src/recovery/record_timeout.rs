//! The record of a checkpoint whose outcome is unknown, for the store does not answer.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use checkpoint::chain::Chain;
use checkpoint::{CheckpointError, CheckpointManifest};

/// How long the thread of the leader asks for the outcome of a record that it may have written: as
/// long as the job goes on, and for [`UNKNOWN_MAX`] when it is to end.
#[derive(Debug, Default)]
pub(super) struct RecordTimeout {
    hurries: AtomicBool,
    closed: AtomicBool,
}

impl RecordTimeout {
    /// The input has ended, or the user asks for the job's end. Relaxed: nothing else is ordered
    /// by it.
    pub(super) fn hurry(&self) {
        self.hurries.store(true, Ordering::Relaxed);
    }

    /// Whether to ask once more; `since` is when the job was first seen to end.
    fn lasts(&self, since: &mut Option<Instant>) -> bool {
        if self.hurries.load(Ordering::Relaxed) {
            since.get_or_insert_with(Instant::now);
        }
        let is_over = since.is_some_and(|since| since.elapsed() > UNKNOWN_MAX);
        !is_over && !self.closed.load(Ordering::Relaxed)
    }

    /// The node leaves: nothing is asked for any more. Relaxed, as [`hurry`](Self::hurry).
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }
}

/// How long the outcome of a record may stay unknown when the user ends the job.
const UNKNOWN_MAX: Duration = Duration::from_secs(120);

/// Writes the record of a checkpoint. While its outcome is unknown, for the store does not answer,
/// no other round ends, and the job goes on without checkpoints.
pub(super) fn append(
    chain: &mut Chain,
    manifest: CheckpointManifest,
    record_timeout: &RecordTimeout,
) -> Result<(), CheckpointError> {
    let (mut since, mut has_said) = (None, false);
    let mut appended = chain.append(manifest).map(drop);
    while let Err(error @ CheckpointError::Pending { .. }) = &appended {
        if !record_timeout.lasts(&mut since) {
            break;
        }
        if !std::mem::replace(&mut has_said, true) {
            tracing::warn!(%error, "no further checkpoint is taken until the store answers");
        }
        appended = chain.settle_pending().map(drop);
    }
    appended
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_record_is_asked_for_as_long_as_the_job_goes_on() {
        let (record_timeout, mut since) = (RecordTimeout::default(), None);
        assert!(record_timeout.lasts(&mut since) && since.is_none());
        record_timeout.hurry();
        assert!(record_timeout.lasts(&mut since) && since.is_some());
        let mut long_ago = Instant::now().checked_sub(2 * UNKNOWN_MAX);
        assert!(long_ago.is_none() || !record_timeout.lasts(&mut long_ago));
        let closed = RecordTimeout::default();
        closed.close();
        assert!(!closed.lasts(&mut None));
    }
}
