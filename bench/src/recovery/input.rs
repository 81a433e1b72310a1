//! The connector `generator` for jobs that keep checkpoints: its rows are made once and kept from
//! run to run, its readers go on at positions, and what happens between two reads is noted.
//!
//! ```text
//! next() ── rows ─▶ the worker computes ─▶ next() ── rows ─▶ position()  …  ─▶ next()
//!         ◀────── a usual gap ───────▶           ◀─── a gap with a mark ───▶
//! ```
//!
//! A worker asks a reader for its position when it marks a round, and for nothing else: so the gap
//! in which that happens, and those right behind it, have what a checkpoint does to the worker.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arrow::array::{ArrayRef, AsArray};
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, SchemaRef, TimestampMillisecondType};
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use connectors::Generator;
use dataflow::connector::{Connector, OptionSpec, Options, TableDef};
use dataflow::error::ConnectorError;
use dataflow::sink::Sink;
use dataflow::source::{ColumnBounds, Next, Position, ReaderContext, Source, Split, SplitReader};
use fabric::Clock;

use super::cpu::process_ns;
use crate::paced::lap_ms;

/// Rows of a batch that is kept.
const CHUNK_ROWS: usize = 1 << 20;
/// Gaps behind a mark in which its work may lie: the rows of the first reads behind it meet state
/// that is shared with the checkpoint.
const GAPS_OF_MARK: u32 = 4;
/// Gaps of a reader that are kept, for their median.
const USUAL_MAX: usize = 1 << 20;

/// The name of positions: lap and row in it.
const FORMAT: &str = "kept generator";
const VERSION: u32 = 1;

/// A mark that a reader has seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeenMark {
    /// When its position was asked for.
    pub at: Instant,
    /// The longest gaps between two reads that may have work of the checkpoint.
    pub gap: Gap,
}

/// The time between two reads of a worker, or the longest of several.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Gap {
    /// By the clock.
    pub passed: Duration,
    /// Processor time of the worker's thread: without what others have taken from it.
    pub worked: Duration,
}

impl Gap {
    fn or_longer(self, other: Self) -> Self {
        let passed = self.passed.max(other.passed);
        Self { passed, worked: self.worked.max(other.worked) }
    }
}

/// The observations of a run.
#[derive(Debug, Default)]
pub struct Observed {
    /// When the first row was read, and the processor time of this process until then, in
    /// nanoseconds.
    pub first_read: Option<(Instant, u64)>,
    /// The marks of all readers, in no order.
    pub marks: Vec<SeenMark>,
    /// Gaps without a mark near them.
    pub usual: Vec<Gap>,
}

/// The connector. Clones share the rows and what was observed.
#[derive(Debug, Clone, Default)]
pub struct KeptInput(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    observed: Mutex<Observed>,
    /// By table, options and columns.
    kept: Mutex<HashMap<String, Arc<[RecordBatch]>>>,
}

impl KeptInput {
    /// What was observed since the last call.
    pub fn take(&self) -> Observed {
        std::mem::take(&mut locked(&self.0.observed))
    }

    /// How long ago the first row was read since the last call of [`take`](Self::take).
    pub fn reads_since(&self) -> Option<Duration> {
        locked(&self.0.observed).first_read.map(|(at, _)| at.elapsed())
    }
}

impl Connector for KeptInput {
    fn name(&self) -> &'static str {
        "generator"
    }

    fn options(&self) -> &'static [OptionSpec] {
        Generator.options()
    }

    fn infer(&self, options: &Options) -> Result<Option<SchemaRef>, ConnectorError> {
        Generator.infer(options)
    }

    fn source(
        &self,
        table: &TableDef,
        projection: &[usize],
    ) -> Result<Arc<dyn Source>, ConnectorError> {
        let mut once = table.clone();
        let laps = once.options.remove("repeat").and_then(|laps| laps.parse().ok()).unwrap_or(1);
        once.options.remove("preload");
        let source = Generator.source(&once, projection)?;
        let interval = once.options.get("interval").and_then(|text| text.strip_suffix("ns"));
        let Some(interval_ns) = interval.and_then(|ns| ns.parse().ok()) else {
            // A table that is no stream is there from the first.
            return Ok(source);
        };
        let rows: u64 = once.options.get("rows").and_then(|rows| rows.parse().ok()).unwrap_or(0);
        let name = format!("{:?}{projection:?}", once.options);
        let shared = Arc::clone(&self.0);
        let lap = lap_ms(rows, interval_ns);
        Ok(Arc::new(KeptSource { name, source, laps, lap_ms: lap, shared }))
    }

    fn sink(&self, table: &TableDef) -> Result<Arc<dyn Sink>, ConnectorError> {
        Generator.sink(table)
    }
}

struct KeptSource {
    name: String,
    /// The rows of one lap.
    source: Arc<dyn Source>,
    laps: u64,
    /// Milliseconds by which a lap is later than the one before.
    lap_ms: i64,
    shared: Arc<Shared>,
}

impl KeptSource {
    /// The rows of a lap, made by who asks first.
    fn kept(&self, context: &ReaderContext) -> Result<Arc<[RecordBatch]>, ConnectorError> {
        let mut kept = locked(&self.shared.kept);
        if let Some(rows) = kept.get(&self.name) {
            return Ok(Arc::clone(rows));
        }
        let splits = self.source.splits(1, None)?;
        let mut flow = self.source.open(&splits[0], None, context)?;
        let (mut chunks, mut parts, mut rows) = (Vec::new(), Vec::new(), 0);
        let schema = self.source.schema();
        let joined = |parts: &[RecordBatch]| concat_batches(&schema, parts).map_err(unfit);
        while let Next::Batch(batch) = flow.next(CHUNK_ROWS - rows)? {
            rows += batch.num_rows();
            parts.push(batch);
            if rows == CHUNK_ROWS {
                chunks.push(joined(&std::mem::take(&mut parts))?);
                rows = 0;
            }
        }
        if rows > 0 {
            chunks.push(joined(&parts)?);
        }
        let chunks: Arc<[RecordBatch]> = chunks.into();
        kept.insert(self.name.clone(), Arc::clone(&chunks));
        Ok(chunks)
    }
}

/// The name of a split of all.
fn split_name(number: u32, all: u32) -> String {
    format!("kept {number} of {all}")
}

impl Source for KeptSource {
    fn schema(&self) -> SchemaRef {
        self.source.schema()
    }

    fn bounded(&self) -> bool {
        self.source.bounded()
    }

    fn splits(&self, workers: u32, _: Option<usize>) -> Result<Vec<Split>, ConnectorError> {
        let all = workers.max(1);
        let named = |number| Split { name: split_name(number, all), ..Split::default() };
        Ok((0..all).map(named).collect())
    }

    fn bounds(&self, column: usize) -> ColumnBounds {
        match self.schema().field(column).data_type() {
            // Laps are later than the first one, which is all that the generator knows of.
            DataType::Timestamp(..) => ColumnBounds::default(),
            _ => self.source.bounds(column),
        }
    }

    fn distinct(&self, column: usize) -> Option<u64> {
        self.source.distinct(column)
    }

    fn open(
        &self,
        split: &Split,
        from: Option<&Position>,
        context: &ReaderContext,
    ) -> Result<Box<dyn SplitReader>, ConnectorError> {
        let kept = self.kept(context)?;
        // Whole chunks are dealt out, so that nothing is copied.
        let all = split.name.rsplit(' ').next().and_then(|all| all.parse().ok()).unwrap_or(1);
        let own: Vec<RecordBatch> = kept.iter().skip(split.number).step_by(all).cloned().collect();
        let [lap, row] = match from {
            Some(from) => from.numbers(FORMAT, VERSION, &split.name)?,
            None => [0, 0],
        };
        let rows = own.iter().map(|chunk| chunk.num_rows() as u64).sum();
        let laps = if rows == 0 { 0 } else { self.laps };
        Ok(Box::new(KeptReader {
            split: split.name.clone(),
            schema: self.schema(),
            own,
            rows,
            laps,
            lap_ms: self.lap_ms,
            at: (lap, row),
            gaps: Gaps::new(Arc::clone(&self.shared), Arc::clone(&context.clock)),
        }))
    }
}

struct KeptReader {
    split: String,
    schema: SchemaRef,
    own: Vec<RecordBatch>,
    /// Rows of a lap.
    rows: u64,
    laps: u64,
    lap_ms: i64,
    /// Lap, and row in it, of the next batch.
    at: (u64, u64),
    gaps: Gaps,
}

impl SplitReader for KeptReader {
    fn next(&mut self, rows_max: usize) -> Result<Next, ConnectorError> {
        self.gaps.begin_read();
        if self.at.1 >= self.rows {
            self.at = (self.at.0 + 1, 0);
        }
        let (lap, row) = self.at;
        if lap >= self.laps {
            return Ok(Next::End);
        }
        let (chunk, within) = (row as usize / CHUNK_ROWS, row as usize % CHUNK_ROWS);
        let chunk = &self.own[chunk];
        let rows = rows_max.min(chunk.num_rows() - within);
        self.at.1 += rows as u64;
        let batch = self.moved(chunk.slice(within, rows), lap)?;
        self.gaps.end_read();
        Ok(Next::Batch(batch))
    }

    fn position(&self) -> Position {
        self.gaps.mark();
        Position::new(FORMAT, VERSION, &self.split, &[self.at.0, self.at.1])
    }
}

impl KeptReader {
    /// The rows as a later lap has them.
    fn moved(&self, batch: RecordBatch, lap: u64) -> Result<RecordBatch, ConnectorError> {
        if lap == 0 {
            return Ok(batch);
        }
        let by_ms = self.lap_ms.saturating_mul(lap as i64);
        let moved = |column: &ArrayRef| match column.data_type() {
            DataType::Timestamp(..) => {
                let times = column.as_primitive::<TimestampMillisecondType>();
                Arc::new(times.unary::<_, TimestampMillisecondType>(|time| time + by_ms))
            }
            _ => Arc::clone(column),
        };
        let columns = batch.columns().iter().map(moved).collect();
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options)
            .map_err(unfit)
    }
}

/// The gaps between the reads of a reader.
struct Gaps {
    shared: Arc<Shared>,
    clock: Arc<dyn Clock>,
    /// Behind a lock since a position is asked for by a shared reference; nobody else takes it.
    state: Mutex<GapState>,
}

#[derive(Default)]
struct GapState {
    /// When the last read ended, by the clock and by that of the thread.
    read: Option<(Instant, u64)>,
    /// The mark whose work may lie in the gap, and how many gaps may still have some.
    mark: Option<(SeenMark, u32)>,
    marks: Vec<SeenMark>,
    usual: Vec<Gap>,
}

impl Gaps {
    fn new(shared: Arc<Shared>, clock: Arc<dyn Clock>) -> Self {
        Self { shared, clock, state: Mutex::default() }
    }

    fn begin_read(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let Some((read, worked_ns)) = state.read.take() else {
            let mut observed = locked(&self.shared.observed);
            observed.first_read.get_or_insert_with(|| (Instant::now(), process_ns()));
            return;
        };
        let worked_ns = self.clock.worked_ns().saturating_sub(worked_ns);
        let gap = Gap { passed: read.elapsed(), worked: Duration::from_nanos(worked_ns) };
        match &mut state.mark {
            Some((mark, left)) => {
                mark.gap = mark.gap.or_longer(gap);
                *left -= 1;
                if *left == 0 {
                    state.marks.extend(state.mark.take().map(|(mark, _)| mark));
                }
            }
            None if state.usual.len() < USUAL_MAX => state.usual.push(gap),
            None => {}
        }
    }

    fn end_read(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        state.read = Some((Instant::now(), self.clock.worked_ns()));
    }

    fn mark(&self) {
        let mut state = locked(&self.state);
        let mark = SeenMark { at: Instant::now(), gap: Gap::default() };
        let before = state.mark.replace((mark, GAPS_OF_MARK));
        state.marks.extend(before.map(|(mark, _)| mark));
    }
}

impl Drop for Gaps {
    /// A mark with nothing read behind it is that of the end of the input, and no checkpoint.
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let mut observed = locked(&self.shared.observed);
        observed.marks.append(&mut state.marks);
        let open = state.mark.take().filter(|(_, left)| *left < GAPS_OF_MARK);
        observed.marks.extend(open.map(|(mark, _)| mark));
        observed.usual.append(&mut state.usual);
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn unfit(error: arrow::error::ArrowError) -> ConnectorError {
    ConnectorError::Io { place: "generator".into(), message: error.to_string(), hint: None }
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::Int64Type;
    use fabric::clock::MonotonicClock;

    use super::*;

    const ROWS: u64 = 2500;

    fn source(input: &KeptInput, laps: u64) -> Arc<dyn Source> {
        let options = [
            ("kind", "ro".to_owned()),
            ("keys", "1000".to_owned()),
            ("rows", ROWS.to_string()),
            ("interval", "1000000ns".to_owned()),
            ("repeat", laps.to_string()),
        ];
        let options: Options = options.into_iter().map(|(k, v)| (k.to_owned(), v)).collect();
        let schema = Generator.infer(&options).unwrap().unwrap();
        let metadata = Default::default();
        let table = TableDef { name: "t".into(), schema, options, metadata, buckets: vec![] };
        input.source(&table, &[0, 1]).unwrap()
    }

    fn open(source: &dyn Source, from: Option<&Position>) -> Box<dyn SplitReader> {
        let context = ReaderContext::new(Arc::new(MonotonicClock::new()), Arc::default());
        source.open(&source.splits(1, None).unwrap()[0], from, &context).unwrap()
    }

    fn rest(reader: &mut dyn SplitReader, rows_max: usize) -> Vec<(i64, i64)> {
        let mut rows = Vec::new();
        while let Next::Batch(batch) = reader.next(rows_max).unwrap() {
            let keys = batch.column(0).as_primitive::<Int64Type>().values().to_vec();
            let times = batch.column(1).as_primitive::<TimestampMillisecondType>();
            rows.extend(keys.into_iter().zip(times.values().to_vec()));
        }
        rows
    }

    #[test]
    fn a_reader_goes_on_behind_the_rows_that_it_has_given() {
        let input = KeptInput::default();
        let source = source(&input, 3);
        let all = rest(&mut *open(&*source, None), 1000);
        assert_eq!(all.len() as u64, 3 * ROWS);
        let later = all[..ROWS as usize].iter().map(|(key, at)| (*key, at + ROWS as i64));
        assert_eq!(all[ROWS as usize..2 * ROWS as usize], later.collect::<Vec<_>>());
        for reads in 0..9 {
            let mut reader = open(&*source, None);
            let mut given = 0;
            for _ in 0..reads {
                let Next::Batch(batch) = reader.next(1000).unwrap() else { panic!("an end") };
                given += batch.num_rows();
            }
            let mut again = open(&*source, Some(&reader.position()));
            assert_eq!(rest(&mut *again, 777), all[given..], "behind {reads} reads");
        }
    }

    #[test]
    fn the_reads_behind_a_mark_are_told_from_the_usual_ones() {
        let input = KeptInput::default();
        let source = source(&input, 1000);
        let mut reader = open(&*source, None);
        let read = |reader: &mut dyn SplitReader, times| {
            (0..times).for_each(|_| drop(reader.next(1000).unwrap()));
        };
        read(&mut *reader, 10);
        reader.position();
        let pause = Duration::from_millis(20);
        std::thread::sleep(pause);
        read(&mut *reader, 10);
        // The end of the input asks for a position, too.
        reader.position();
        drop(reader);
        let observed = input.take();
        let [mark] = observed.marks[..] else { panic!("{observed:?}") };
        assert!(mark.gap.passed >= pause, "{mark:?}");
        assert!(mark.gap.worked < mark.gap.passed, "nothing was computed: {mark:?}");
        assert_eq!(observed.usual.len() as u32, 9 + 10 - GAPS_OF_MARK);
        assert!(observed.first_read.is_some() && input.reads_since().is_none());
    }
}
