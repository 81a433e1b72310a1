//! Counters of a reader: for the metrics of its worker and of the operator of its table.

use std::sync::atomic::Ordering;

use super::Reader;
use crate::connector::source::SkippedRows;
use crate::runtime::metrics::Metrics;

impl Reader {
    /// Adds to the metrics the rows that readers of splits have left out since the last call.
    pub(super) fn count_skipped(&self) {
        let skipped = self.context.skipped.take();
        if skipped != SkippedRows::default() {
            Metrics::add(&self.metrics.skipped_row_groups, skipped.row_groups);
            Metrics::add(&self.metrics.skipped_pages, skipped.pages);
            Metrics::add(&self.metrics.skipped_rows, skipped.rows);
            let operator = self.operator.and_then(|at| self.metrics.operators().get(at));
            if let Some(operator) = operator {
                Metrics::add(&operator.unmatched_rows, skipped.unmatched);
            }
        }
    }

    /// Adds the blocks that were read to the counters of their operator.
    pub(super) fn count_blocks(&self) {
        let Some((metrics, at)) = &self.blocks_of else { return };
        let Some(operator) = metrics.operators().get(*at) else { return };
        let leases = self.context.blocks.leases();
        let before = operator.pool_leases.swap(leases, Ordering::Relaxed);
        if leases != before {
            let all = metrics.pool_leases.load(Ordering::Relaxed);
            metrics.pool_leases.store((all + leases).saturating_sub(before), Ordering::Relaxed);
        }
        let Some(read) = self.context.blocks.take() else { return };
        for (of_operator, of_worker, count) in [
            (&operator.pool_blocks, &metrics.pool_blocks, read.blocks),
            (&operator.pool_bytes, &metrics.pool_bytes, read.bytes),
            (&operator.pool_mapped_blocks, &metrics.pool_mapped_blocks, read.mapped),
            (&operator.pool_pruned_blocks, &metrics.pool_pruned_blocks, read.pruned),
            (&operator.pool_waits, &metrics.pool_waits, read.waits),
            (&operator.pool_wait_ns, &metrics.pool_wait_ns, read.wait_ns),
        ] {
            Metrics::add(of_operator, count);
            Metrics::add(of_worker, count);
        }
    }
}
