//! Two answers that owe nothing to the engine: one row after another in a plain map, and DataFusion
//! in batch.

use std::collections::BTreeMap;

use crate::random::{Aggregate, DELAY_MS, Key, Query, Row, batch, of_b};
use crate::rows::sorted;

/// Rows that count, and how many do not because they are late: a row is late when the watermark of
/// its own flow had passed the end of its window before it came.
pub fn on_time(flows: &[Vec<Row>], query: &Query) -> (Vec<Row>, u64) {
    let (mut rows, mut late) = (Vec::new(), 0);
    for flow in flows {
        let mut watermark = i64::MIN;
        for row in flow {
            let met = watermark;
            watermark = watermark.max(row.ts - DELAY_MS);
            if !query.keeps(row) {
                continue;
            }
            match query.window_s {
                Some(size) if window_start(row.ts, size) + size * 1_000 <= met => late += 1,
                _ => rows.push(row.clone()),
            }
        }
    }
    (rows, late)
}

fn window_start(ts: i64, size_s: i64) -> i64 {
    ts.div_euclid(size_s * 1_000) * size_s * 1_000
}

/// DataFusion's rows for the query over these rows.
pub fn by_datafusion(rows: &[Row], query: &Query) -> Vec<String> {
    sorted(&::oracle::rows(&query.batch(), &[("t", batch(rows))]))
}

/// The rows of the query, folded one after another.
pub fn sequential(rows: &[Row], query: &Query) -> Vec<String> {
    let mut groups: BTreeMap<Vec<String>, Vec<&Row>> = BTreeMap::new();
    for row in rows {
        let mut key: Vec<String> = query.keys.iter().map(|key| key_text(*key, row)).collect();
        if let Some(size) = query.window_s {
            key.push(time_text(window_start(row.ts, size)));
        }
        groups.entry(key).or_default().push(row);
    }
    if query.keys.is_empty() && query.window_s.is_none() {
        groups.entry(Vec::new()).or_default();
    }
    let mut out: Vec<String> = groups
        .into_iter()
        .filter(|(_, rows)| query.more_than.is_none_or(|least| rows.len() as i64 > least))
        .map(|(key, rows)| {
            let values = query.aggregates.iter().map(|aggregate| value_text(*aggregate, &rows));
            key.into_iter().chain(values).collect::<Vec<_>>().join("|")
        })
        .collect();
    out.sort();
    out
}

fn key_text(key: Key, row: &Row) -> String {
    match key {
        Key::K => row.k.to_string(),
        Key::S => row.s.clone().unwrap_or_else(|| "NULL".into()),
        Key::KMod3 => (row.k % 3).to_string(),
        Key::KDiv3 => (row.k / 3).to_string(),
        Key::OfB => of_b(row.k).map_or("NULL".into(), |g| g.to_string()),
    }
}

fn value_text(aggregate: Aggregate, rows: &[&Row]) -> String {
    let values = || rows.iter().filter_map(|row| row.v);
    let text = |value: Option<String>| value.unwrap_or_else(|| "NULL".into());
    let float = |value: f64| format!("{value:?}");
    match aggregate {
        Aggregate::Count => rows.len().to_string(),
        Aggregate::CountV => values().count().to_string(),
        Aggregate::SumV => text((values().count() > 0).then(|| values().sum::<i64>().to_string())),
        Aggregate::MinV => text(values().min().map(|v| v.to_string())),
        Aggregate::MaxV => text(values().max().map(|v| v.to_string())),
        Aggregate::AvgV => {
            let (sum, count) = (values().sum::<i64>(), values().count());
            text((count > 0).then(|| float(sum as f64 / count as f64)))
        }
        Aggregate::SumW => {
            text((!rows.is_empty()).then(|| float(rows.iter().map(|row| row.w).sum::<f64>())))
        }
        Aggregate::MaxS => text(rows.iter().filter_map(|row| row.s.clone()).max()),
        Aggregate::MinTs => text(rows.iter().map(|row| row.ts).min().map(time_text)),
    }
}

/// Milliseconds since 1970 as Arrow prints a timestamp.
fn time_text(ms: i64) -> String {
    let (seconds, rest) = (ms.div_euclid(1_000), ms.rem_euclid(1_000));
    let (days, of_day) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Random streams stay within January 1970 and the last days of December 1969.
    let date = match days {
        0..=30 => format!("1970-01-{:02}", days + 1),
        -31..=-1 => format!("1969-12-{:02}", days + 32),
        _ => unreachable!("random streams are short"),
    };
    let time = format!("{:02}:{:02}:{:02}", of_day / 3_600, of_day / 60 % 60, of_day % 60);
    match rest {
        0 => format!("{date}T{time}"),
        _ => format!("{date}T{time}.{rest:03}"),
    }
}
