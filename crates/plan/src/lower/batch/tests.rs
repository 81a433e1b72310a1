//! The batch stage by hand: parts are written and committed as workers would.

use std::sync::atomic::AtomicUsize;

use arrow::array::{AsArray, DictionaryArray, Int64Array, StringArray};
use arrow::datatypes::{DataType, Field, Int32Type, Int64Type, Schema};
use datafusion::logical_expr::{ColumnarValue, LogicalPlanBuilder, Volatility, create_udf};
use datafusion::prelude::{Expr, SessionContext, col};

use super::*;

#[derive(Default)]
struct CollectingSink(Arc<Mutex<Vec<RecordBatch>>>);

struct KeptWriter(Arc<Mutex<Vec<RecordBatch>>>, Vec<RecordBatch>);

impl Sink for CollectingSink {
    fn placement(&self) -> Placement {
        Placement::Gather
    }

    fn open(&self, _: &WriterContext) -> Result<Box<dyn SinkWriter>, ConnectorError> {
        Ok(Box::new(KeptWriter(self.0.clone(), vec![])))
    }
}

impl SinkWriter for KeptWriter {
    fn write(&mut self, batch: &RecordBatch) -> Result<(), ConnectorError> {
        self.1.push(batch.clone());
        Ok(())
    }

    fn flush(&mut self) -> Result<(), ConnectorError> {
        Ok(())
    }

    fn commit(self: Box<Self>) -> Result<(), ConnectorError> {
        self.0.lock().expect("rows").extend(self.1);
        Ok(())
    }
}

fn numbers(of: impl IntoIterator<Item = i64>) -> RecordBatch {
    let schema = Arc::new(Schema::new(vec![Field::new("c0", DataType::Int64, true)]));
    let column: ArrayRef = Arc::new(Int64Array::from_iter_values(of));
    RecordBatch::try_new(schema, vec![column]).expect("numbers")
}

/// The union of two parts, sorted.
fn stage(memory_bytes: usize) -> (Arc<BatchStage>, Arc<Mutex<Vec<RecordBatch>>>) {
    stage_until(memory_bytes, Arc::default(), col("c0"))
}

/// The same, sorted by `key` and ended by `interrupt`.
fn stage_until(
    memory_bytes: usize,
    interrupt: Arc<AtomicBool>,
    key: Expr,
) -> (Arc<BatchStage>, Arc<Mutex<Vec<RecordBatch>>>) {
    let schema = numbers([]).schema();
    let leaf = |part: usize| {
        let rows = GatheredRows { part, schema: schema.clone() };
        LogicalPlanBuilder::scan(format!("part {part}"), Arc::new(rows), None)
    };
    let second = leaf(1).and_then(LogicalPlanBuilder::build).expect("a leaf");
    let plan = leaf(0)
        .and_then(|first| first.union(second))
        .and_then(|union| union.sort(vec![key.sort(true, false)]))
        .and_then(LogicalPlanBuilder::build)
        .expect("a plan");
    let sink = CollectingSink::default();
    let written = sink.0.clone();
    let state = SessionContext::new().state();
    let stage = BatchStage::new(plan, 2, &state, Arc::new(sink), schema, memory_bytes, interrupt);
    (stage.expect("a stage"), written)
}

/// A part has all of its rows; the sink always has room.
fn ended(mut part: Box<dyn SinkWriter>) -> Result<(), ConnectorError> {
    assert_eq!(part.drain()?, Room::Ready);
    part.commit()
}

#[test]
fn an_interrupt_ends_the_rest_and_nothing_is_published() {
    let interrupt = Arc::new(AtomicBool::new(false));
    let (stage, written) = stage_until(64 << 20, interrupt.clone(), col("c0"));
    let mut parts = [0, 1].map(|part| stage.part(part).open(&WriterContext::of(0)).expect("opens"));
    parts.iter_mut().for_each(|part| part.write(&numbers([1])).expect("writes"));
    let [first, second] = parts;
    ended(first).expect("the other part goes on");
    interrupt.store(true, Ordering::Relaxed);
    let error = ended(second).expect_err("the rest was interrupted");
    assert!(error.to_string().contains("interrupted"), "{error}");
    assert!(written.lock().expect("the rows").is_empty());
}

/// DataFusion sorts all rows, in runs of some megabytes, before it looks at anything else.
#[test]
fn an_interrupt_ends_a_sort_within_a_run_of_it() {
    let interrupt = Arc::new(AtomicBool::new(false));
    let calls = Arc::new(AtomicUsize::new(0));
    let (stops, called) = (interrupt.clone(), calls.clone());
    let stops = move |values: &[ColumnarValue]| {
        stops.store(true, Ordering::Relaxed);
        called.fetch_add(1, Ordering::Relaxed);
        Ok(values[0].clone())
    };
    let types = (vec![DataType::Int64], DataType::Int64);
    let key = create_udf("stops", types.0, types.1, Volatility::Immutable, Arc::new(stops));
    let (stage, written) = stage_until(1 << 30, interrupt, key.call(vec![col("c0")]));
    let [mut first, second] =
        [0, 1].map(|part| stage.part(part).open(&WriterContext::of(0)).unwrap());
    // More than forty runs of a megabyte.
    (0..40).for_each(|_| first.write(&numbers(0..200_000)).expect("writes"));
    ended(first).expect("the other part goes on");
    let error = ended(second).expect_err("the rest was interrupted");
    assert!(error.to_string().contains("interrupted"), "{error}");
    assert!(written.lock().expect("the rows").is_empty());
    let calls = calls.load(Ordering::Relaxed);
    assert!((1..10).contains(&calls), "{calls} runs were sorted");
}

#[test]
fn the_rest_runs_when_the_last_part_has_ended_and_may_run_again() {
    let (stage, written) = stage(64 << 20);
    for _ in 0..2 {
        let mut first = stage.part(0).open(&WriterContext::of(0)).expect("opens");
        let mut second = stage.part(1).open(&WriterContext::of(0)).expect("opens");
        first.write(&numbers([5, 1])).expect("writes");
        second.write(&numbers([4])).expect("writes");
        first.write(&numbers([3])).expect("writes");
        ended(first).expect("commits");
        assert!(written.lock().expect("rows").is_empty());
        ended(second).expect("commits");
        let batches = std::mem::take(&mut *written.lock().expect("rows"));
        let all: Vec<i64> = batches
            .iter()
            .flat_map(|b| b.column(0).as_primitive::<Int64Type>().values().to_vec())
            .collect();
        assert_eq!(all, [1, 3, 4, 5]);
    }
}

#[test]
fn a_part_that_is_dropped_takes_the_run_with_it() {
    let (stage, written) = stage(64 << 20);
    let first = stage.part(0).open(&WriterContext::of(0)).expect("opens");
    let second = stage.part(1).open(&WriterContext::of(0)).expect("opens");
    drop(first);
    assert!(ended(second).is_err());
    assert!(written.lock().expect("rows").is_empty());
}

#[test]
fn memory_has_a_bound_and_its_error_names_the_setting() {
    let (stage, _) = stage(1 << 20);
    let mut part = stage.part(0).open(&WriterContext::of(0)).expect("opens");
    let error = (0..100).find_map(|_| part.write(&numbers(0..10_000)).err());
    match error {
        Some(ConnectorError::Io { hint: Some(hint), .. }) => assert!(hint.contains("batch_bytes")),
        other => panic!("{other:?}"),
    }
}

#[test]
fn rows_that_are_kept_share_no_memory() {
    let dictionary: DictionaryArray<Int32Type> = ["x", "y", "x"].into_iter().collect();
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("n", Arc::new(Int64Array::from(vec![Some(1), None, Some(3)]))),
        ("s", Arc::new(StringArray::from(vec!["a", "", "ccc"]))),
        ("d", Arc::new(dictionary)),
    ];
    let batch = RecordBatch::try_from_iter(columns).expect("rows").slice(1, 2);
    let owned = own(&batch).expect("a copy");
    assert_eq!(owned, batch);
    for (copy, original) in owned.columns().iter().zip(batch.columns()) {
        let (copy, original) = (copy.to_data(), original.to_data());
        for (a, b) in copy.buffers().iter().zip(original.buffers()) {
            assert_ne!(a.as_ptr(), b.as_ptr());
        }
    }
}
