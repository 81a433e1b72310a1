//! The vector clock of a leader (S11): how far each worker's rows are known to have arrived.

/// One entry per worker whose rows may arrive here.
pub(super) struct Clocks {
    entries: Vec<Option<Entry>>,
    least: i64,
    changes: u64,
}

struct Entry {
    watermark: i64,
    idle: bool,
    ended: bool,
}

impl Clocks {
    /// A clock of the given workers, none of which has announced anything.
    pub(super) fn new(workers: &[u32]) -> Self {
        let size = workers.iter().max().map_or(0, |&last| last as usize + 1);
        let mut entries: Vec<Option<Entry>> = (0..size).map(|_| None).collect();
        for &worker in workers {
            entries[worker as usize] =
                Some(Entry { watermark: i64::MIN, idle: false, ended: false });
        }
        Self { entries, least: i64::MIN, changes: 0 }
    }

    /// Moves a worker's entry forward. True if the least has moved.
    pub(super) fn set(&mut self, worker: u32, watermark: i64, idle: bool) -> bool {
        if let Some(Some(entry)) = self.entries.get_mut(worker as usize) {
            entry.watermark = entry.watermark.max(watermark);
            entry.idle = idle;
        }
        self.refresh()
    }

    /// A worker has no more rows; its entry stays where it is, or at the end of time.
    pub(super) fn end(&mut self, worker: u32, watermark: i64) {
        if let Some(Some(entry)) = self.entries.get_mut(worker as usize) {
            entry.ended = true;
            entry.idle = false;
        }
        self.set(worker, watermark, false);
        self.changes += 1;
    }

    /// Whether the worker has said that it has no more rows.
    pub(super) fn has_ended(&self, worker: u32) -> bool {
        matches!(self.entries.get(worker as usize), Some(Some(entry)) if entry.ended)
    }

    /// True when no worker has rows any more.
    pub(super) fn ended(&self) -> bool {
        self.entries.iter().flatten().all(|entry| entry.ended)
    }

    /// The watermark that every worker that is not idle has passed. It never goes back.
    pub(super) fn least(&self) -> i64 {
        self.least
    }

    /// Grows whenever something has changed that [`least`](Self::least) or [`ended`](Self::ended)
    /// tells.
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    fn refresh(&mut self) -> bool {
        // Who has ended completely holds nothing back; but when only idle workers are left, time
        // stands still, for they may come back.
        let complete = |entry: &&Entry| entry.ended && entry.watermark == i64::MAX;
        let entries = || self.entries.iter().flatten();
        let active = entries().filter(|entry| !entry.idle && !complete(entry));
        let all_complete = entries().all(|entry| complete(&entry));
        let least = match active.map(|entry| entry.watermark).min() {
            Some(least) => least,
            None if all_complete => i64::MAX,
            None => self.least,
        };
        let moved = least > self.least;
        if moved {
            self.least = least;
            self.changes += 1;
        }
        moved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_of_the_active_counts_and_never_goes_back() {
        let mut clocks = Clocks::new(&[0, 1, 2]);
        assert!(!clocks.set(0, 10, false));
        assert!(!clocks.set(1, 20, false));
        assert!(clocks.set(2, 30, false));
        assert_eq!(clocks.least(), 10);
        assert!(clocks.set(0, 10, true), "an idle worker holds nothing back");
        assert_eq!(clocks.least(), 20);
        assert!(!clocks.set(0, 15, false));
        assert_eq!(clocks.least(), 20, "a worker that comes back does not turn time back");
        assert!(!clocks.set(1, 25, true));
        clocks.set(0, 15, true);
        clocks.set(2, 30, true);
        assert_eq!(clocks.least(), 30);
        clocks.end(0, i64::MAX);
        clocks.end(1, i64::MAX);
        assert!(!clocks.ended());
        clocks.end(2, 40);
        assert!(clocks.ended());
        assert_eq!(clocks.least(), 40, "a stopped worker ends where it was");
    }
}
