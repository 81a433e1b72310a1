//! Rows that one worker scatters by their keys to many, by the exchange of the engine, beside
//! `memcpy` of the same bytes (S1).
//!
//! The nodes are threads of this process, joined by shared memory. The cost is the processor time
//! of the worker that reads and scatters; what the others take is theirs.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use arrow::array::{Array, ArrayRef, Int64Array, StringArray};
use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use connectors::Blackhole;
use dataflow::checkpoint::SavedRows;
use dataflow::error::{ConnectorError, DataflowError};
use dataflow::job::{Description, KeyedOperator, KeyedState, SavedParts};
use dataflow::sink::Sink;
use dataflow::source::{Next, Position, ReaderContext, Source, Split, SplitReader};
use millstream::stream::{Stream, process};
use millstream::{FabricKind, RunOptions, Session};

use super::{Effort, bars};
use crate::reference::TableRows;
use crate::report::{ReportSection, ReportTable};
use crate::workload::{KeyDistribution, Workload, WorkloadSize};

/// Rows of a batch that is scattered again and again.
const ROWS: usize = 8_192;

/// Bytes that are scattered for each nanosecond of [`Effort::span`].
const BYTES_PER_NS: f64 = 1.0;

/// Nodes, and workers of each: peers are all of them.
const PEERS: [[u32; 2]; 3] = [[2, 1], [8, 1], [8, 8]];

/// Bytes of the slots that `memcpy` fills in turns.
const SLOT_BYTES: usize = 64 << 10;
const SLOTS: usize = 8;

/// What is asked of, of all.
const ASKED: (&str, u32) = ("8 numbers, 64 bytes", 8);

type Failed = Box<dyn std::error::Error>;

/// Rows of each kind; their first column is the key.
fn kinds() -> Result<[(&'static str, RecordBatch); 4], Failed> {
    let number = |column: i64| -> ArrayRef {
        let value = |row: i64| (row + column).wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as i64) >> 8;
        Arc::new(Int64Array::from_iter_values((0..ROWS as i64).map(value)))
    };
    let text = |column: usize| -> ArrayRef {
        let of = |row: usize| Some("a text of some length".split_at(5 + (row + column) % 16).0);
        Arc::new((0..ROWS).map(of).collect::<StringArray>())
    };
    let batch = |columns: Vec<ArrayRef>| {
        let named = (0..).map(|at: usize| format!("c{at}")).zip(columns);
        RecordBatch::try_from_iter(named)
    };
    let texts = std::iter::once(number(0)).chain((0..5).map(text)).collect();
    Ok([
        ("2 numbers, 16 bytes", batch((0..2).map(number).collect())?),
        (ASKED.0, batch((0..8).map(number).collect())?),
        ("a key and 5 texts", batch(texts)?),
        ("auctions of NB8", auctions()?),
    ])
}

fn auctions() -> Result<RecordBatch, Failed> {
    let size = WorkloadSize {
        rows_per_worker: 2 * ROWS as u64,
        workers: 1,
        keys: 1_000,
        distribution: KeyDistribution::Uniform,
        interval_ns: None,
        record_bytes: None,
    };
    let columns = ["seller", "id", "item_name", "description", "initial_bid", "category", "extra"];
    let mut rows = TableRows::open(&Workload::Nb8.sql(&size), "auctions", &columns)?;
    rows.next()?.ok_or_else(|| "the generator has no auctions".into())
}

/// Bytes of the columns.
fn bytes_of(batch: &RecordBatch) -> usize {
    let each = batch.columns().iter().map(|column| column.to_data().get_slice_memory_size());
    each.map(|bytes| bytes.unwrap_or(0)).sum()
}

/// Emits a batch so many times.
#[derive(Clone)]
struct Repeated {
    batch: RecordBatch,
    times: usize,
}

impl Source for Repeated {
    fn schema(&self) -> SchemaRef {
        self.batch.schema()
    }

    fn bounded(&self) -> bool {
        true
    }

    fn repeats(&self) -> bool {
        false
    }

    fn splits(&self, _: u32, _: Option<usize>) -> Result<Vec<Split>, ConnectorError> {
        Ok(vec![Split::default()])
    }

    fn open(
        &self,
        _: &Split,
        _: Option<&Position>,
        _: &ReaderContext,
    ) -> Result<Box<dyn SplitReader>, ConnectorError> {
        Ok(Box::new(self.clone()))
    }
}

impl SplitReader for Repeated {
    fn next(&mut self, _: usize) -> Result<Next, ConnectorError> {
        let left = self.times.checked_sub(1);
        self.times = left.unwrap_or(0);
        Ok(left.map_or(Next::End, |_| Next::Batch(self.batch.clone())))
    }

    fn position(&self) -> Position {
        Position::none("t")
    }
}

/// Takes rows, and emits none.
struct Dropping(SchemaRef);

struct Dropped;

impl KeyedOperator for Dropping {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.0)
    }

    fn create(&self) -> Box<dyn KeyedState> {
        Box::new(Dropped)
    }

    fn saved(&self) -> Option<SavedParts> {
        None
    }

    fn describe(&self, _: &[Vec<String>]) -> Description {
        Description { name: "Dropping", properties: vec![] }
    }
}

impl KeyedState for Dropped {
    fn push(&mut self, _: usize, _: RecordBatch) -> Result<(), DataflowError> {
        Ok(())
    }

    fn save(&mut self) -> Result<Vec<SavedRows>, DataflowError> {
        Ok(vec![])
    }

    fn load(&mut self, _: SavedRows) -> Result<(), DataflowError> {
        Ok(())
    }

    fn advance(&mut self, _: i64, _: usize) -> Result<Option<RecordBatch>, DataflowError> {
        Ok(None)
    }

    fn bytes(&self) -> usize {
        0
    }
}

/// Processor seconds in which one of `nodes` times `workers` workers scatters a batch so often.
fn scattered(batch: &RecordBatch, times: usize, [nodes, workers]: [u32; 2]) -> Result<f64, Failed> {
    let session = Session::builder().nodes(nodes).workers(workers).fabric(FabricKind::Shm);
    let mut session = session.set("millstream.frequent_keys", "off").build()?;
    let source = Repeated { batch: batch.clone(), times };
    let schema = batch.schema();
    let key = schema.field(0).name().clone();
    let input = Stream::read("rows", Arc::new(source), None)?.key_by(&[&key])?;
    let dropping = process("dropping", &[input], Arc::new(Dropping(schema)), None)?;
    let sink: Arc<dyn Sink> = Arc::new(Blackhole::default());
    let report = session.job(&[dropping.into_sink("nothing", sink)])?.run(&RunOptions::default())?;
    let rows = (times * batch.num_rows()) as u64;
    if report.total.rows_in != rows {
        return Err(format!("{} of {rows} rows were read", report.total.rows_in).into());
    }
    let sender = report.workers.iter().max_by_key(|worker| worker.counters.bytes_sent);
    let sender = sender.filter(|worker| worker.counters.bytes_sent > 0);
    let sender = sender.ok_or("no rows were sent")?;
    Ok(sender.counters.cpu_ns as f64 / 1e9)
}

/// Seconds in which so many bytes are copied from as much memory as a batch has into slots.
fn copied(batch_bytes: usize, bytes: usize) -> f64 {
    let (from, mut to) = (vec![1_u8; batch_bytes.max(1)], vec![0_u8; SLOTS * SLOT_BYTES]);
    let begins = Instant::now();
    let mut left = bytes;
    let (mut source, mut slot) = (0, 0);
    while left > 0 {
        let some = left.min(SLOT_BYTES).min(from.len() - source);
        to[slot..slot + some].copy_from_slice(&from[source..source + some]);
        black_box(&mut to);
        left -= some;
        source = (source + some) % from.len();
        slot = (slot + SLOT_BYTES) % to.len();
    }
    begins.elapsed().as_secs_f64()
}

/// The section of a report: each kind of rows to each number of peers, in turns with `memcpy`.
pub(super) fn section(effort: Effort) -> ReportSection {
    let text = "One worker scatters rows by their key to all workers, itself among them; nodes are \
                threads of this process over shared memory. GB/s are bytes of columns by the \
                processor time of that worker, which reads batches that are there already. memcpy \
                copies as many bytes into slots of 64 KiB, in turns.";
    let mut section = ReportSection {
        title: "Rows scattered to peers".into(),
        text: vec![text.into()],
        ..ReportSection::default()
    };
    let mut rows = Vec::new();
    let mut asked = None;
    let kinds = match kinds() {
        Ok(kinds) => kinds.to_vec(),
        Err(error) => {
            section.text.push(format!("NOT MEASURED: {error}"));
            vec![]
        }
    };
    let peers = PEERS.into_iter().filter(|[nodes, workers]| nodes * workers <= effort.peers_max);
    for (peers, (name, batch)) in peers.flat_map(|peers| kinds.iter().map(move |k| (peers, k))) {
        let batch_bytes = bytes_of(batch);
        let wanted = effort.span.as_nanos() as f64 * BYTES_PER_NS;
        let times = ((wanted / batch_bytes as f64) as usize).max(1);
        let bytes = times * batch_bytes;
        let (mut rates, mut bare, mut shares) = (vec![], vec![], vec![]);
        for _ in 0..effort.runs.max(1) {
            let copied = bytes as f64 / copied(batch_bytes, bytes) / 1e9;
            match scattered(batch, times, peers) {
                Ok(seconds) => {
                    let rate = bytes as f64 / seconds.max(1e-9) / 1e9;
                    rates.push(rate);
                    bare.push(copied);
                    shares.push(rate / copied);
                }
                Err(error) => section.text.push(format!("{name}: NOT MEASURED: {error}")),
            }
        }
        let median = |values: &[f64]| {
            let mut sorted = values.to_vec();
            sorted.sort_by(f64::total_cmp);
            sorted.get(sorted.len() / 2).copied()
        };
        let count = peers[0] * peers[1];
        if (*name, count) == ASKED {
            asked = median(&shares);
        }
        let cell = |value: Option<f64>, factor: f64| {
            value.map_or("–".into(), |value| format!("{:.2}", value * factor))
        };
        rows.push(vec![
            name.to_string(),
            count.to_string(),
            format!("{:.0}", batch_bytes as f64 / batch.num_rows() as f64),
            cell(median(&rates), 1.0),
            cell(median(&bare), 1.0),
            cell(median(&shares), 100.0),
        ]);
    }
    section.bars.push(bars::scattered(asked));
    let columns = ["rows", "peers", "bytes of a row", "GB/s", "memcpy, GB/s", "share, %"];
    section.tables.push(ReportTable {
        title: "Scattered by one worker".into(),
        columns: columns.map(String::from).to_vec(),
        rows,
    });
    section
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn rows_of_each_kind_are_scattered_beside_memcpy() {
        let effort = Effort { span: Duration::from_micros(500), runs: 1, peers_max: 2 };
        let section = section(effort);
        assert_eq!(section.text.len(), 1, "{section}");
        let rows = &section.tables[0].rows;
        assert_eq!(rows.len(), 4, "{section}");
        assert!(rows.iter().flatten().all(|cell| cell != "–"), "{section}");
        assert_eq!(section.bars[0].met, None, "it is asked of eight peers");
    }

    #[test]
    fn as_many_bytes_are_copied_as_were_asked_for() {
        assert!(copied(100, 1_000_000) > 0.0 && copied(1 << 20, 10) >= 0.0);
        let sizes = kinds().unwrap().map(|(_, batch)| bytes_of(&batch) / batch.num_rows());
        assert_eq!(sizes[..2], [16, 64]);
        assert!(sizes[2] > 60 && sizes[3] > 150, "{sizes:?}");
    }
}
