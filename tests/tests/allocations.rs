//! In steady state a batch allocates nothing: neither in state, whatever the keys are like, nor on
//! its way through the engine where one loop reads and folds it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use allocation_counter::{measure, opt_out};
use arrow::array::{
    ArrayRef, DictionaryArray, Int8Array, Int64Array, RecordBatch, StringArray,
    TimestampMillisecondArray,
};
use arrow::datatypes::{DataType, Schema, SchemaRef};
use dataflow::connector::{Connector, OptionSpec, Options, TableDef};
use dataflow::error::ConnectorError;
use dataflow::sink::Sink;
use dataflow::source::{Next, Position, ReaderContext, Source, Split, SplitReader};
use plan::{Planner, Workers};
use state::aggregates::{avg, count, max, sum};
use state::{GroupBy, KeyMode, Slices, StateOptions};
use tests::cluster::Cluster;
use tests::memory::Memory;

const ROWS: usize = 1_000;

/// Batches that are there before anything is counted, and whose columns are handed over as they
/// are.
#[derive(Clone)]
struct Ready {
    schema: SchemaRef,
    batches: Arc<Mutex<VecDeque<RecordBatch>>>,
}

/// What happens to advertisements, one event every millisecond.
fn events(batch: usize, words: &ArrayRef) -> RecordBatch {
    let rows = || (batch * ROWS..(batch + 1) * ROWS).map(|row| row as i64);
    let kinds = Int8Array::from_iter_values(rows().map(|row| (row % 3) as i8));
    let columns: [(&str, ArrayRef); 4] = [
        ("ad", Arc::new(rows().map(|row| row * 7 % 1_000).collect::<Int64Array>())),
        ("price", Arc::new(rows().map(|row| row * 13 % 101).collect::<Int64Array>())),
        ("kind", Arc::new(DictionaryArray::new(kinds, words.clone()))),
        ("ts", Arc::new(TimestampMillisecondArray::from_iter_values(rows()))),
    ];
    RecordBatch::try_from_iter(columns).expect("columns of one length")
}

impl Ready {
    fn new(batches: impl Iterator<Item = RecordBatch>) -> Self {
        let batches: VecDeque<RecordBatch> = batches.collect();
        let schema = batches.front().map_or(Arc::new(Schema::empty()), RecordBatch::schema);
        Self { schema, batches: Arc::new(Mutex::new(batches)) }
    }
}

impl Connector for Ready {
    fn name(&self) -> &'static str {
        "ready"
    }

    fn options(&self) -> &'static [OptionSpec] {
        &[]
    }

    fn infer(&self, _: &Options) -> Result<Option<SchemaRef>, ConnectorError> {
        Ok(Some(self.schema.clone()))
    }

    fn source(&self, _: &TableDef, columns: &[usize]) -> Result<Arc<dyn Source>, ConnectorError> {
        let project = |batch: &RecordBatch| batch.project(columns).expect("its own columns");
        let batches = self.batches.lock().expect("not poisoned").iter().map(project).collect();
        let schema = Arc::new(self.schema.project(columns).expect("its own columns"));
        Ok(Arc::new(Self { schema, batches: Arc::new(Mutex::new(batches)) }))
    }

    fn sink(&self, _: &TableDef) -> Result<Arc<dyn Sink>, ConnectorError> {
        Err(ConnectorError::Io { place: "ready".into(), message: "is read".into(), hint: None })
    }
}

impl Source for Ready {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn bounded(&self) -> bool {
        true
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

impl SplitReader for Ready {
    fn next(&mut self, _: usize) -> Result<Next, ConnectorError> {
        let batch = self.batches.lock().expect("not poisoned").pop_front();
        Ok(batch.map_or(Next::End, Next::Batch))
    }

    fn position(&self) -> Position {
        Position::none("t")
    }
}

/// How often a query over so many batches allocates when it runs.
fn allocations(query: &str, batches: usize) -> u64 {
    let words: ArrayRef = Arc::new(StringArray::from(vec!["view", "click", "purchase"]));
    let source = Arc::new(Ready::new((0..batches).map(|batch| events(batch, &words))));
    let memory = Memory::new(None);
    memory.add("ads", tests::random::beside());
    let sink = Arc::new(memory.clone());
    let script = format!(
        "CREATE TABLE events (WATERMARK FOR ts AS ts) WITH ('connector' = 'ready');
         CREATE TABLE ads (id BIGINT, g BIGINT) WITH ('connector' = 'memory');
         {query};"
    );
    let workers = Workers { nodes: 1, per_node: 1 };
    let mut planner = Planner::new(vec![source, sink.clone()], workers);
    planner.set_default_sink(sink, Default::default());
    let stage = planner.plan(&script).expect("a valid script").remove(0);
    let job = Arc::new(stage.job);
    let mut count = 0;
    let counted = measure(|| {
        let run = Cluster::seeded(1, 1, 1).run(&job).expect("a run");
        opt_out(|| count = run.sum(|metrics| &metrics.rows_in));
    });
    assert_eq!(count, (batches * ROWS) as u64, "{query}");
    assert!(!memory.all_committed().is_empty(), "{query}");
    counted.count_total
}

/// Whether groups by these keys, found in this mode, are updated without allocating.
fn updates_allocate_nothing(mode: KeyMode, keys: &[ArrayRef]) {
    let of = DataType::Int64;
    let all = [sum(&of), max(&of), avg(&of)];
    // With arguments rows do not wait.
    let more = all.into_iter().filter(|_| mode != KeyMode::Ranges);
    let aggregates = [Some(count())].into_iter().chain(more);
    let options = StateOptions { key_mode: Some(mode), ..Default::default() };
    let types = keys.iter().map(|key| key.data_type().clone()).collect();
    let aggregates: Vec<_> = aggregates.collect::<Option<_>>().expect("BIGINT is folded");
    let spec = Arc::new(GroupBy { keys: types, aggregates, options });
    let mut slices = Slices::new(&spec);
    let values: ArrayRef = Arc::new((0..ROWS as i64).collect::<Int64Array>());
    let args = [vec![], vec![values.clone()], vec![values.clone()], vec![values]];
    let args = &args[..spec.aggregates.len()];
    let mut update = || slices.update(0, ROWS, keys, args).expect("an update");
    (0..700).for_each(|_| update());
    let counted = measure(|| (0..700).for_each(|_| update()));
    assert_eq!(counted.count_total, 0, "{}", mode.name());
    assert_eq!(slices.get(0).map(state::Slice::key_mode), Some(mode));
}

#[test]
fn an_update_of_state_allocates_nothing() {
    let numbers = |of: i64| -> ArrayRef {
        Arc::new((0..ROWS as i64).map(|row| row * 7 % of).collect::<Int64Array>())
    };
    let texts: ArrayRef =
        Arc::new((0..ROWS).map(|row| Some(format!("text {}", row % 99))).collect::<StringArray>());
    let far: ArrayRef =
        Arc::new((0..ROWS as i64).map(|row| row * 2_003 % 2_000_000).collect::<Int64Array>());
    updates_allocate_nothing(KeyMode::One, &[]);
    updates_allocate_nothing(KeyMode::Tiny, &[numbers(500)]);
    updates_allocate_nothing(KeyMode::Array, &[numbers(500)]);
    updates_allocate_nothing(KeyMode::Ranges, &[far]);
    updates_allocate_nothing(KeyMode::Hash, &[numbers(500)]);
    updates_allocate_nothing(KeyMode::Packed, &[numbers(30), numbers(17)]);
    updates_allocate_nothing(KeyMode::Wide, &[texts]);
}

#[test]
fn a_batch_that_one_loop_folds_allocates_nothing() {
    let windowed = "FROM TUMBLE(TABLE events, DESCRIPTOR(ts), INTERVAL '1' HOUR)";
    for (key, value, more) in [
        ("ad", "count(*)", ""),
        ("ad / 10", "count(*)", "WHERE kind = 'view'"),
        ("ad", "count(*)", "WHERE kind <> 'view'"),
        ("g", "count(*)", "JOIN ads ON ad = id WHERE kind = 'view'"),
        ("ad", "max(price)", ""),
        ("ad", "avg(price)", ""),
    ] {
        for (from, windows) in [(windowed, "window_start, window_end,"), ("FROM events", "")] {
            let query = format!("SELECT {key}, {value} {from} {more} GROUP BY {windows} {key}");
            // A thread keeps memory from run to run: each may allocate less than the one before.
            let [some, twice] = [100, 200].map(|batches| allocations(&query, batches));
            assert!(some > 0, "somebody counts");
            assert!(twice <= some, "{query}: {twice}, and {some} for half as many batches");
        }
    }
}
