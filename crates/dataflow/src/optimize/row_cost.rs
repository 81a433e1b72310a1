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

use arrow::datatypes::SchemaRef;

use super::cost::{Costs, MARGIN, Price, WorkerCounts, of_others};
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
    /// Rows that a worker puts down at once: of one window and one batch for one leader.
    pub together: f64,
}

/// An exchange for rows, and what spoke for it.
#[derive(Debug, Clone, PartialEq)]
pub struct RowDecision {
    /// `merge` or `shuffle`.
    pub exchange: Exchange,
    /// By input what a row costs by merge.
    pub merge: Vec<Price>,
    /// By input what a row costs by shuffle.
    pub shuffle: Vec<Price>,
}

impl WindowRows {
    /// Rows of these columns, which come in batches of up to `batch_rows`, each of at most
    /// `windows` windows where that is known.
    #[must_use]
    pub fn of(
        schema: &SchemaRef,
        workers: WorkerCounts,
        batch_rows: usize,
        windows: Option<u64>,
    ) -> Self {
        let parts = windows.unwrap_or(1).max(1) as f64 * f64::from(workers.total.max(1));
        let together = (batch_rows as f64 / parts).max(1.0);
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

/// Whether rows of all inputs should meet by `merge` or by `shuffle`: by `merge` if that is
/// [`MARGIN`] times cheaper, for an epoch waits where a row does not.
#[must_use]
pub fn decide(inputs: &[WindowRows], costs: &Costs) -> RowDecision {
    let prices = |exchange: Exchange| -> Vec<Price> {
        inputs.iter().map(|rows| rows.price(exchange, costs)).collect()
    };
    let (merge, shuffle) = (prices(Exchange::Merge), prices(Exchange::Shuffle));
    let sum = |prices: &[Price]| prices.iter().map(|price| price.cost(costs)).sum::<f64>();
    let cheaper = sum(&shuffle) > MARGIN * sum(&merge);
    let exchange = if cheaper { Exchange::Merge } else { Exchange::Shuffle };
    RowDecision { exchange, merge, shuffle }
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

    /// Two workers of one process take as long by either, or longer by `merge`.
    #[test]
    fn within_a_process_rows_are_never_merged_unasked() {
        for together in [1.0, 100.0, 8_192.0] {
            for total in [1, 2, 4, 16] {
                let inputs = [rows(total, total, together); 2];
                let decision = decide(&inputs, &Costs::default());
                assert_eq!(decision.exchange, Exchange::Shuffle);
                assert!(total == 1 || decision.merge[0].cycles > decision.shuffle[0].cycles);
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
