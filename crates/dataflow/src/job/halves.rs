//! Workers of two kinds (S13): those of odd number read tables, those of even number lead keys.
//!
//! Neighbours are of different kinds, so that each node has both if it has two workers, and worker
//! 0 leads what has no key. A single worker does both.

/// How many of so many workers read.
pub(crate) fn readers(workers: u32) -> u32 {
    (workers / 2).max(1)
}

/// A worker's number among those that read, if it does.
pub(crate) fn reader(worker: u32, workers: u32) -> Option<u32> {
    (workers == 1 || worker % 2 == 1).then_some(worker / 2)
}

/// How many of so many workers lead.
pub(crate) fn leaders(workers: u32) -> u32 {
    workers.div_ceil(2)
}

/// The worker that is the leader of this number.
pub(crate) fn leader(number: u32) -> u32 {
    2 * number
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_worker_is_of_one_kind_and_a_single_one_of_both() {
        assert_eq!((readers(1), reader(0, 1), leaders(1), leader(0)), (1, Some(0), 1, 0));
        for workers in 2..9 {
            let read: Vec<u32> = (0..workers).filter_map(|w| reader(w, workers)).collect();
            assert_eq!(read, (0..readers(workers)).collect::<Vec<_>>(), "{workers}");
            let lead: Vec<u32> = (0..leaders(workers)).map(leader).collect();
            let rest = (0..workers).filter(|&w| reader(w, workers).is_none());
            assert_eq!(lead, rest.collect::<Vec<_>>(), "{workers}");
        }
    }
}
