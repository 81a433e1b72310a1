//! The records that a source has and its readers have not read, as readers of it know.
//!
//! A reader keeps a [`FlowBacklog`] for its split, and whoever learns of the end of the split sets
//! that, from any thread. Metrics add them up when somebody looks, so that a reader that is held
//! back is seen to fall behind.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The backlog of one split. Numbers are relaxed: each is right by itself.
#[derive(Debug, Default)]
pub struct FlowBacklog {
    read: AtomicU64,
    end: AtomicU64,
    unreachable: AtomicBool,
    pending_bytes: AtomicU64,
    retained_bytes: AtomicU64,
}

impl FlowBacklog {
    /// The records before this number are read.
    pub fn set_read(&self, before: u64) {
        self.read.store(before, Ordering::Relaxed);
    }

    /// The records before this number are there.
    pub fn set_end(&self, before: u64) {
        self.end.store(before, Ordering::Relaxed);
    }

    /// Whether the server with the records cannot be reached now.
    pub fn set_unreachable(&self, is_unreachable: bool) {
        self.unreachable.store(is_unreachable, Ordering::Relaxed);
    }

    /// Of a log without numbers of records: the bytes that are there and are not read, and those
    /// that its server keeps for the reader.
    pub fn set_log(&self, pending_bytes: u64, retained_bytes: u64) {
        self.pending_bytes.store(pending_bytes, Ordering::Relaxed);
        self.retained_bytes.store(retained_bytes, Ordering::Relaxed);
    }

    /// Records that are there and are not read.
    pub fn records(&self) -> u64 {
        let end = self.end.load(Ordering::Relaxed);
        end.saturating_sub(self.read.load(Ordering::Relaxed))
    }
}

/// The backlogs of the splits of a source that one worker reads.
#[derive(Debug, Default)]
pub struct SourceBacklog(Mutex<Vec<Weak<FlowBacklog>>>);

impl SourceBacklog {
    /// The backlog of one more split. It counts until it is dropped.
    pub fn of_flow(&self) -> Arc<FlowBacklog> {
        let flow = Arc::default();
        let mut flows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        flows.retain(|other| other.strong_count() > 0);
        flows.push(Arc::downgrade(&flow));
        flow
    }

    /// Records that are there and are not read.
    pub fn records(&self) -> u64 {
        self.sum(|flow| flow.records())
    }

    /// Splits whose server cannot be reached now.
    pub fn unreachable(&self) -> u64 {
        self.sum(|flow| flow.unreachable.load(Ordering::Relaxed).into())
    }

    /// Bytes of a log that are there and are not read.
    pub fn pending_bytes(&self) -> u64 {
        self.sum(|flow| flow.pending_bytes.load(Ordering::Relaxed))
    }

    /// Bytes of a log that a server keeps for its reader.
    pub fn retained_bytes(&self) -> u64 {
        self.sum(|flow| flow.retained_bytes.load(Ordering::Relaxed))
    }

    fn sum(&self, each: impl Fn(&FlowBacklog) -> u64) -> u64 {
        let flows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        flows.iter().filter_map(Weak::upgrade).map(|flow| each(&flow)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flows_that_are_read_count() {
        let source = SourceBacklog::default();
        let flows = [source.of_flow(), source.of_flow()];
        flows[0].set_end(7);
        flows[0].set_read(3);
        flows[1].set_read(9);
        assert_eq!((source.records(), source.unreachable()), (4, 0), "an end may not be known yet");
        flows[1].set_end(10);
        flows[1].set_unreachable(true);
        assert_eq!((source.records(), source.unreachable()), (5, 1));
        flows[0].set_log(5, 900);
        flows[1].set_log(2, 100);
        assert_eq!((source.pending_bytes(), source.retained_bytes()), (7, 1000));
        drop(flows);
        assert_eq!((source.records(), source.unreachable()), (0, 0));
        assert_eq!((source.pending_bytes(), source.retained_bytes()), (0, 0));
    }
}
