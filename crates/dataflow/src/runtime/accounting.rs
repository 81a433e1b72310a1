//! The state of all operators of one worker, held to one bound.
//!
//! Where state may be spilled, each operator that can spill does so at an equal part of the bound,
//! or of half of it if others keep rows that cannot be spilled.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use state::StateError;

use crate::job::{JobGraph, StateMemory};
use crate::runtime::metrics::Metrics;

/// The bytes of state of each operator of a worker.
pub(crate) struct StateAccounting {
    held: RefCell<Vec<usize>>,
    budget: usize,
    /// Bytes at which an operator spills that can.
    spill_at: usize,
    metrics: Arc<Metrics>,
}

impl StateAccounting {
    /// Of a job's operators, which hold nothing yet.
    pub(crate) fn of(job: &JobGraph, spills: bool, metrics: Arc<Metrics>) -> Self {
        let count = |of: fn(StateMemory) -> bool| {
            job.operators.iter().filter(|operator| of(operator.spec().memory())).count()
        };
        let spilling = count(|memory| memory == StateMemory::Spillable);
        let all = count(|memory| memory != StateMemory::Stateless);
        let budget = job.settings.state_bytes_max;
        let for_spilling = if all > spilling { budget / 2 } else { budget };
        let spill_at = if spills { for_spilling / spilling.max(1) } else { budget };
        Self { spill_at, ..Self::new(job.operators.len(), budget, metrics) }
    }

    fn new(operators: usize, budget: usize, metrics: Arc<Metrics>) -> Self {
        Self { held: RefCell::new(vec![0; operators]), budget, spill_at: budget, metrics }
    }

    /// Bytes that the state of an operator may hold while the other operators hold what they do.
    pub(crate) fn share(&self, operator: u32) -> usize {
        let held = self.held.borrow();
        let others = held.iter().sum::<usize>() - held[operator as usize];
        self.budget.saturating_sub(others).min(self.spill_at)
    }

    /// Sets the bytes that an operator holds now, and publishes the sum.
    ///
    /// # Errors
    /// [`StateError::Budget`] when all of them hold more than they may.
    pub(crate) fn set(&self, operator: u32, bytes: usize) -> Result<(), StateError> {
        let mut held = self.held.borrow_mut();
        held[operator as usize] = bytes;
        if let Some(metrics) = self.metrics.operators().get(operator as usize) {
            metrics.state_bytes.store(bytes as u64, Relaxed);
        }
        let bytes: usize = held.iter().sum();
        self.metrics.state_bytes.store(bytes as u64, Relaxed);
        self.metrics.state_bytes_peak.fetch_max(bytes as u64, Relaxed);
        if bytes > self.budget {
            Err(StateError::Budget { bytes, budget: self.budget })
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_share_one_budget() {
        let metrics = Arc::new(Metrics::default());
        metrics.count_operators(3);
        let accounting = StateAccounting::new(3, 100, metrics.clone());
        accounting.set(0, 60).unwrap();
        accounting.set(2, 40).unwrap();
        let refused = accounting.set(1, 1).unwrap_err();
        assert!(matches!(refused, StateError::Budget { bytes: 101, budget: 100 }));
        accounting.set(0, 10).unwrap();
        assert_eq!(metrics.state_bytes.load(Relaxed), 51);
        assert_eq!((accounting.share(0), accounting.share(1)), (59, 50));
        assert_eq!(metrics.state_bytes_peak.load(Relaxed), 101);
        let each = metrics.operators().iter().map(|operator| operator.state_bytes.load(Relaxed));
        assert_eq!(each.collect::<Vec<_>>(), [10, 1, 40]);
    }
}
