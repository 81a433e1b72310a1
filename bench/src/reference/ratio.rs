//! Rows of one kind for each row of another.

use std::collections::BTreeMap;

use dataflow::error::ConnectorError;

use super::{TableRows, has_word, numbers, times};
use crate::checksums::ChecksumTotals;
use crate::task::Ratio;

/// Sums over the ratios of the rows.
pub(super) fn sums(ratio: &Ratio, sql: &str) -> Result<ChecksumTotals, ConnectorError> {
    let mut rows =
        TableRows::open(sql, ratio.table, &[ratio.key.0, ratio.window.time, ratio.kind])?;
    let mut sums = ChecksumTotals::default();
    let mut window = i64::MIN;
    let mut counts = BTreeMap::<i64, [u64; 2]>::new();
    while let Some(batch) = rows.next()? {
        let (keys, times) = (numbers(batch.column(0)), times(batch.column(1)));
        let kinds = ratio.kinds.map(|kind| has_word(batch.column(2), kind));
        for row in 0..batch.num_rows() {
            let of = times[row].div_euclid(ratio.window.size_ms);
            if of != window {
                give_out(&mut counts, &mut sums);
                window = of;
            }
            let Some(kind) = kinds.iter().position(|is| is[row]) else { continue };
            counts.entry(keys[row] / ratio.key.1).or_default()[kind] += 1;
        }
    }
    give_out(&mut counts, &mut sums);
    Ok(sums)
}

fn give_out(counts: &mut BTreeMap<i64, [u64; 2]>, sums: &mut ChecksumTotals) {
    for (key, counts) in std::mem::take(counts) {
        let [counted, each] = counts;
        if counted > 0 && each > 0 {
            sums.add_real(key, counted as f64 / each as f64);
        }
    }
}
