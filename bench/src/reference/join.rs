//! Rows of two tables with equal keys that are in one window.

use std::collections::HashMap;

use dataflow::error::ConnectorError;

use super::{TableRows, numbers, times};
use crate::checksums::ChecksumTotals;
use crate::task::{WorkloadInput, WorkloadJoin, WorkloadSpan};

/// Sums over the pairs.
pub(super) fn sums(join: &WorkloadJoin, sql: &str) -> Result<ChecksumTotals, ConnectorError> {
    // By key, the times of its rows, with the value of those on the left.
    let mut rows = HashMap::<i64, Vec<(i64, Option<i64>)>>::new();
    let WorkloadJoin { left, value, right, span } = join;
    read(sql, right, None, |key, time, _| rows.entry(key).or_default().push((time, None)))?;
    read(sql, left, Some(value), |key, time, value| {
        rows.entry(key).or_default().push((time, value));
    })?;
    let mut sums = ChecksumTotals::default();
    for (key, mut rows) in rows {
        rows.sort_unstable();
        let together = |a: &(i64, Option<i64>), b: &(i64, Option<i64>)| match span {
            WorkloadSpan::Tumble(size) => a.0.div_euclid(*size) == b.0.div_euclid(*size),
            WorkloadSpan::Session(gap) => b.0 - a.0 <= *gap,
        };
        for matched in rows.chunk_by(together) {
            let others = matched.iter().filter(|(_, value)| value.is_none()).count();
            for value in matched.iter().filter_map(|(_, value)| *value) {
                (0..others).for_each(|_| sums.add_whole(key, value));
            }
        }
    }
    Ok(sums)
}

/// Reads key, time and value of each row.
fn read(
    sql: &str,
    side: &WorkloadInput,
    value: Option<&'static str>,
    mut each: impl FnMut(i64, i64, Option<i64>),
) -> Result<(), ConnectorError> {
    let columns: Vec<&str> = [side.key, side.time].into_iter().chain(value).collect();
    let mut rows = TableRows::open(sql, side.table, &columns)?;
    while let Some(batch) = rows.next()? {
        let (keys, times) = (numbers(batch.column(0)), times(batch.column(1)));
        let values = value.map(|_| numbers(batch.column(2)));
        for row in 0..batch.num_rows() {
            each(keys[row], times[row], values.map(|values| values[row]));
        }
    }
    Ok(())
}
