//! The state of all operators of one worker, held to one bound.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use state::StateError;

use crate::metrics::Metrics;

/// What each operator of a worker holds.
pub(crate) struct Ledger {
    held: RefCell<Vec<usize>>,
    budget: usize,
    metrics: Arc<Metrics>,
}

impl Ledger {
    /// A ledger of operators that hold nothing, and may hold `budget` bytes together.
    pub(crate) fn new(operators: usize, budget: usize, metrics: Arc<Metrics>) -> Self {
        Self { held: RefCell::new(vec![0; operators]), budget, metrics }
    }

    /// Bytes that an operator may hold while the others hold what they do.
    pub(crate) fn share(&self, operator: u32) -> usize {
        let held = self.held.borrow();
        let others = held.iter().sum::<usize>() - held[operator as usize];
        self.budget.saturating_sub(others)
    }

    /// Writes down what an operator holds now, and publishes the sum.
    ///
    /// # Errors
    /// [`StateError::Budget`] when all of them hold more than they may.
    pub(crate) fn set(&self, operator: u32, bytes: usize) -> Result<(), StateError> {
        let mut held = self.held.borrow_mut();
        held[operator as usize] = bytes;
        let bytes: usize = held.iter().sum();
        self.metrics.state_bytes.store(bytes as u64, Relaxed);
        self.metrics.state_bytes_peak.fetch_max(bytes as u64, Relaxed);
        match bytes > self.budget {
            true => Err(StateError::Budget { bytes, budget: self.budget }),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_share_one_budget() {
        let metrics = Arc::new(Metrics::default());
        let ledger = Ledger::new(3, 100, metrics.clone());
        ledger.set(0, 60).unwrap();
        ledger.set(2, 40).unwrap();
        let refused = ledger.set(1, 1).unwrap_err();
        assert!(matches!(refused, StateError::Budget { bytes: 101, budget: 100 }));
        ledger.set(0, 10).unwrap();
        assert_eq!(metrics.state_bytes.load(Relaxed), 51);
        assert_eq!((ledger.share(0), ledger.share(1)), (59, 50));
        assert_eq!(metrics.state_bytes_peak.load(Relaxed), 101);
    }
}
