//! What it costs to bring rows together that are kept until their window ends: a model without
//! I/O, beside that of groups ([`cost`](super::cost)).
//!
//! Per row, on the average over `n` workers, `p` in each process:
//!
//! | exchange | what travels | bytes |
//! |---|---|---|
//! | `merge` | of each epoch the rows of others | (n - p) / n × row |
//! | `shuffle` | the rows of others | (n - p) / n × row |
//!
//! Rows do not combine, so that both send the same bytes. By `merge` rows of others are kept by
//! leader and window before they are put together, and each batch that is kept so costs what a
//! group of a delta does. Within a process a shuffle copies a row once; by `merge` its bytes are
//! gone through [`MERGE_PASSES`] times. Between processes both go through them as often: rows are
//! picked out, put together, encoded and copied out of their slot.
//!
//! So `merge` is never cheaper, and only a hint or the setting chooses it: leaders take the rows of
//! others by epochs then, and not as they come.

use arrow::datatypes::SchemaRef;

use super::cost::{Costs, Price, WorkerCounts, of_others};
use crate::job::Exchange;
use crate::rows::size::row_bytes;

/// How often `merge` goes through the bytes of a row that another worker of the process leads, for
/// once by `shuffle`.
pub const MERGE_PASSES: f64 = 3.0;

/// Rows of an input that are kept until their window ends.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WindowRows {
    /// The workers.
    pub workers: WorkerCounts,
    /// Bytes of a row as it travels.
    pub row_bytes: f64,
    /// Rows that a worker puts down at once: of one batch for one leader, where the batch is of one
    /// window; of several, each has fewer.
    pub together: f64,
}

impl WindowRows {
    /// Rows of these columns, which come in batches of up to `batch_rows`.
    #[must_use]
    pub fn of(schema: &SchemaRef, workers: WorkerCounts, batch_rows: usize) -> Self {
        let together = (batch_rows as f64 / f64::from(workers.total.max(1))).max(1.0);
        Self { workers, row_bytes: row_bytes(schema) as f64, together }
    }

    /// What a row costs by `merge` or `shuffle`; nothing by any other.
    #[must_use]
    pub fn price(&self, exchange: Exchange, costs: &Costs) -> Price {
        let all = self.workers.total.max(1);
        let others = of_others(all);
        let beside = self.workers.per_process.clamp(1, all);
        let away = f64::from(all - beside) / f64::from(all);
        let near = others - away;
        let bytes = away * self.row_bytes;
        let row = |passes: f64| costs.row + passes * costs.row_byte * self.row_bytes;
        let cycles = match exchange {
            _ if all == 1 => return Price::default(),
            Exchange::Shuffle => costs.route + others * row(1.0),
            Exchange::Merge => {
                let kept = costs.group / self.together;
                costs.route + others * kept + away * row(1.0) + near * row(MERGE_PASSES)
            }
            Exchange::Forward | Exchange::UpPar => return Price::default(),
        };
        Price { bytes, cycles }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(total: u32, per_process: u32, together: f64) -> WindowRows {
        WindowRows { workers: WorkerCounts { total, per_process }, row_bytes: 64.0, together }
    }

    #[test]
    fn both_send_the_rows_of_other_processes() {
        for (total, per_process, away) in
            [(1, 1, 0.0), (2, 2, 0.0), (2, 1, 0.5), (4, 2, 0.5), (8, 1, 0.875), (3, 7, 0.0)]
        {
            let of = rows(total, per_process, 1_000.0);
            let costs = Costs::default();
            let [merge, shuffle] =
                [Exchange::Merge, Exchange::Shuffle].map(|exchange| of.price(exchange, &costs));
            assert_eq!((merge.bytes, shuffle.bytes), (64.0 * away, 64.0 * away), "{of:?}");
        }
    }

    /// No layout, width of rows and number of rows that come together has `merge` cheaper, so the
    /// planner chooses it unasked nowhere.
    #[test]
    fn shuffle_is_cheaper_for_rows_everywhere() {
        let costs = Costs::default();
        for (total, per_process) in
            (1..=64).flat_map(|total| (1..=total).map(move |of| (total, of)))
        {
            for (row_bytes, together) in
                [(1.0, 1.0), (16.0, 100.0), (64.0, 8_192.0), (4_096.0, 1e9)]
            {
                let of = WindowRows { row_bytes, ..rows(total, per_process, together) };
                let [merge, shuffle] = [Exchange::Merge, Exchange::Shuffle]
                    .map(|exchange| of.price(exchange, &costs).cost(&costs));
                assert!(total == 1 || merge > shuffle, "{of:?}: {merge} {shuffle}");
            }
        }
    }

    #[test]
    fn the_fewer_rows_of_a_window_and_leader_are_together_the_more_a_row_costs() {
        let costs = Costs::default();
        let cycles = |together| rows(4, 1, together).price(Exchange::Merge, &costs).cycles;
        assert!(cycles(1.0) > cycles(10.0) && cycles(10.0) > cycles(1_000.0));
        let shuffle = rows(4, 1, 1.0).price(Exchange::Shuffle, &costs).cycles;
        assert!(cycles(1e9) - shuffle < 1e-3, "between processes only that makes a difference");
    }
}
