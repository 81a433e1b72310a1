//! I-Store (I4): a table that grows by many versions, whose blocks are found by a directory of each
//! version or by lists of remote pointers.
//!
//! One writer appends rows, and a reader pins each version behind it. Both are of this process, and
//! the memory servers are the caller's.

use std::sync::Arc;
use std::time::Instant;

use arrow::array::{AsArray, Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Int64Type, Schema};
use connectors::PoolConnector;
use dataflow::connector::{Connector, Options, TableDef};
use dataflow::sink::{Room, SinkWriter, WriterContext};
use dataflow::source::{Next, ReaderContext, Source};
use fabric::clock::MonotonicClock;
use millstream::pool::{At, Client, PoolAccess, PoolOptions};

use super::{at_most, cell, measured, plot, section, table};
use crate::report::{Axis, Bar, ReportSection};

/// Versions of an ordinary sweep, and the least.
const VERSIONS: f64 = 300.0;
const VERSIONS_MIN: f64 = 40.0;

/// Rows that each version adds: eight strips, whose widest blocks have 2 KiB.
const ROWS: i64 = 2048;
const STRIP_ROWS: &str = "256";
const COLUMNS: usize = 8;

/// The versions at the end of which figures are taken.
const LAST: usize = 20;

/// The bytes that tell a reader of the next version at most, against those of a directory.
const ASKED: f64 = 0.5;

type Failed = Box<dyn std::error::Error>;

/// The costs of a version.
#[derive(Debug, Clone, Copy, Default)]
struct VersionCosts {
    /// Milliseconds from its rows to the version.
    commit_ms: f64,
    /// Milliseconds until a reader that has the version before knows where its blocks lie.
    pin_ms: f64,
    /// Bytes that tell it so.
    bytes: f64,
}

/// The section of a report: both layouts, with as many versions as the scale says.
pub(super) fn lists(pool: &str, rows: f64) -> ReportSection {
    let versions = (VERSIONS * rows).clamp(VERSIONS_MIN, 10.0 * VERSIONS) as usize;
    let text = format!(
        "Measured: one worker appends {ROWS} rows of {COLUMNS} columns in strips of {STRIP_ROWS}, \
         and a version appears, {versions} times. A reader of the same process pins each one. In a \
         directory the server sends where all blocks lie; in lists it sends the heads, and the \
         reader follows remote pointers to the nodes that it does not know. Figures are medians of \
         the last {LAST} versions. All rows are read in the end, and compared."
    );
    let mut section = section("Lists", &[&text]);
    let mut all = Vec::new();
    for layout in ["directory", "lists"] {
        match grown(pool, layout, versions) {
            Ok(costs) => all.push((layout, costs)),
            Err(error) => section.text.push(format!("not measured: {layout}: {error}")),
        }
    }
    let last = |costs: &[VersionCosts], of: fn(&VersionCosts) -> f64| {
        let mut last: Vec<f64> = costs.iter().rev().take(LAST).map(of).collect();
        last.sort_by(f64::total_cmp);
        last.get(last.len() / 2).copied()
    };
    let row = |(layout, costs): &(&str, Vec<VersionCosts>)| {
        let figures = [
            cell(last(costs, |of| of.commit_ms), 2),
            cell(last(costs, |of| of.pin_ms), 2),
            cell(last(costs, |of| of.bytes / 1024.0), 1),
        ];
        [vec![layout.to_string(), costs.len().to_string()], figures.to_vec()].concat()
    };
    let rows = all.iter().map(row).collect();
    let columns = ["layout", "versions", "a version, ms", "pinned, ms", "read for that, KiB"];
    section.tables.push(table("A table that grows", &columns, rows));
    let bytes = |layout: &str| {
        let (_, costs) = all.iter().find(|(of, _)| *of == layout)?;
        last(costs, |of| of.bytes)
    };
    let ratio = bytes("lists").zip(bytes("directory")).map(|(lists, of)| lists / of);
    section.bars.push(told_bar(versions, ratio));
    let points = |costs: &[VersionCosts]| {
        let kib = costs.iter().map(|of| of.bytes / 1024.0);
        kib.enumerate().map(|(version, kib)| (version as f64 + 1.0, kib)).collect()
    };
    let series = all.iter().map(|(layout, costs)| measured(layout, points(costs))).collect();
    let (x, y) = (Axis::linear("version"), Axis::linear("KiB"));
    section.plots.push(plot("Read for a version", x, y, series));
    section
}

/// Bytes that tell of the next version, of lists in those of a directory.
fn told_bar(versions: usize, ratio: Option<f64>) -> Bar {
    let what = format!(
        "bytes that tell of the next version, lists against directory, {versions} versions"
    );
    at_most(what, ASKED, ratio)
}

fn definition(name: &str, layout: &str) -> TableDef {
    let fields = (0..COLUMNS).map(|at| Field::new(format!("c{at}"), DataType::Int64, false));
    let options = [
        ("strip.rows", STRIP_ROWS),
        ("commit.interval", "1 h"),
        ("commit.bytes", "1"),
        ("layout", layout),
    ];
    let options: Options = options.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    TableDef {
        name: name.to_owned(),
        schema: Arc::new(Schema::new(fields.collect::<Vec<_>>())),
        options,
        metadata: Default::default(),
        buckets: vec![],
    }
}

/// Lets a table grow by `versions` versions, and drops it.
fn grown(pool: &str, layout: &str, versions: usize) -> Result<Vec<VersionCosts>, Failed> {
    let addresses: Vec<String> = pool.split(',').map(str::to_owned).collect();
    let client = || Client::new(PoolOptions::new(addresses.clone())).map(Arc::new);
    let (loader, follower) = (client()?, client()?);
    let name = format!("istore-{layout}-{}", std::process::id());
    let def = definition(&name, layout);
    let costs = (|| {
        let writer = PoolConnector::new(Arc::clone(&loader) as _);
        let writer = writer.sink(&def)?.open(&WriterContext::of(0))?;
        follow(writer, &follower, &def, versions)
    })();
    // A failed measurement leaves no table behind either.
    let _ = loader.drop_table(&name);
    costs
}

fn follow(
    mut writer: Box<dyn SinkWriter>,
    follower: &Arc<Client>,
    def: &TableDef,
    versions: usize,
) -> Result<Vec<VersionCosts>, Failed> {
    let reader = PoolConnector::new(Arc::clone(follower) as _);
    let (mut costs, mut held): (_, Option<Arc<dyn Source>>) = (Vec::with_capacity(versions), None);
    for version in 0..versions {
        let from = version as i64 * ROWS;
        let batch = batch(def, from)?;
        while writer.room() == Room::Full {
            std::thread::yield_now();
        }
        let begins = Instant::now();
        writer.write(&batch)?;
        while follower
            .tables()?
            .iter()
            .all(|of| of.name != def.name || of.version <= version as u64)
        {
            writer.flush()?;
            writer.room();
        }
        let commit_ms = begins.elapsed().as_secs_f64() * 1e3;
        // A statement gets the version that it has pinned before.
        drop(held.take());
        let (before, begins) = (reader.list_reads().bytes, Instant::now());
        let source = reader.source(def, &(0..COLUMNS).collect::<Vec<_>>())?;
        let pin_ms = begins.elapsed().as_secs_f64() * 1e3;
        let nodes = reader.list_reads().bytes - before;
        let manifest = follower.pin(&def.name, At::Newest)?.manifest.encode().len() as u64;
        costs.push(VersionCosts { commit_ms, pin_ms, bytes: (nodes + manifest) as f64 });
        held = Some(source);
    }
    while writer.drain()? == Room::Full {
        std::thread::yield_now();
    }
    writer.commit()?;
    let source = held.ok_or("no version")?;
    let numbers = versions as i64 * ROWS;
    let got = sums(&*source)?;
    let expected = (numbers, COLUMNS as i64 * (numbers * (numbers - 1) / 2));
    if got != expected {
        return Err(format!("{got:?} was read, and not {expected:?}").into());
    }
    Ok(costs)
}

fn batch(def: &TableDef, from: i64) -> Result<RecordBatch, Failed> {
    let numbers = Arc::new(Int64Array::from_iter_values(from..from + ROWS));
    Ok(RecordBatch::try_new(Arc::clone(&def.schema), vec![numbers as _; COLUMNS])?)
}

/// How many rows a source has, and the sum of all of their values.
fn sums(source: &dyn Source) -> Result<(i64, i64), Failed> {
    let clock = Arc::new(MonotonicClock::default());
    let context = ReaderContext::new(clock, Arc::default());
    let (mut rows, mut sum) = (0, 0);
    for split in source.splits(1, None)? {
        let mut reader = source.open(&split, None, &context)?;
        loop {
            match reader.next(usize::MAX)? {
                Next::Batch(batch) => {
                    rows += batch.num_rows() as i64;
                    let columns = batch.columns().iter();
                    let columns = columns.map(|of| of.as_primitive::<Int64Type>().values());
                    sum += columns.flat_map(|values| values.iter()).sum::<i64>();
                }
                Next::Pending | Next::Wait { .. } => std::thread::yield_now(),
                Next::End => break,
            }
        }
    }
    Ok((rows, sum))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_tell_of_a_version_in_few_bytes_or_do_not() {
        let met = |ratio| told_bar(300, ratio).met;
        let all = [met(Some(ASKED)), met(Some(ASKED + 0.01)), met(None)];
        assert_eq!(all, [Some(true), Some(false), None]);
    }
}
