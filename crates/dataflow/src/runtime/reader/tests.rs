use std::cell::Cell;
use std::sync::Mutex;
use std::task::Waker;

use arrow::array::TimestampMillisecondArray;
use arrow::datatypes::DataType;
use arrow::datatypes::{Field, Schema, SchemaRef};
use fabric::Clock;

use super::*;
use crate::connector::bad::BadRows;
use crate::connector::source::{Position, Source};
use crate::error::ConnectorError;
use crate::job::{OnBad, TimeColumn, Watermark};

/// A clock that a test sets.
#[derive(Default)]
struct Hand(Mutex<u64>);

impl Clock for Hand {
    fn now_ns(&self) -> u64 {
        *self.0.lock().unwrap()
    }
}

/// The event times of each batch.
type Batches = Vec<Vec<Option<i64>>>;

/// Flows that give scripted answers and then end (bounded) or wait.
struct Script {
    bounded: bool,
    flows: Vec<(Option<i64>, Batches)>,
}

struct ScriptFlow {
    schema: SchemaRef,
    bounded: bool,
    batches: VecDeque<Vec<Option<i64>>>,
}

fn schema() -> SchemaRef {
    let time = DataType::Timestamp(TimeUnit::Millisecond, None);
    Arc::new(Schema::new(vec![Field::new("ts", time, true)]))
}

impl Source for Script {
    fn schema(&self) -> SchemaRef {
        schema()
    }

    fn bounded(&self) -> bool {
        self.bounded
    }

    fn splits(&self, _: u32, _: Option<usize>) -> Result<Vec<Split>, ConnectorError> {
        let info = |(i, (min, _)): (usize, &(Option<i64>, _))| Split {
            name: format!("flow {i}"),
            event_time_min: *min,
            ..Split::default()
        };
        let at_first = self.flows.len() - LATER.get().unwrap_or(0);
        Ok(self.flows[..at_first].iter().enumerate().map(info).collect())
    }

    fn new_splits(&self, _: Waker) -> Result<Option<Box<dyn NewSplits>>, ConnectorError> {
        Ok(LATER.get().map(|_| Box::new(ScriptGrowth) as Box<dyn NewSplits>))
    }

    fn open(
        &self,
        split: &Split,
        _: Option<&Position>,
        _: &ReaderContext,
    ) -> Result<Box<dyn SplitReader>, ConnectorError> {
        let batches = self.flows[split.number].1.clone().into();
        Ok(Box::new(ScriptFlow { schema: schema(), bounded: self.bounded, batches }))
    }
}

/// Gives the flows that have come.
struct ScriptGrowth;

impl NewSplits for ScriptGrowth {
    fn poll(&mut self) -> Result<Vec<Split>, ConnectorError> {
        Ok((0..CAME.take()).map(|_| Split { name: "new".into(), ..Split::default() }).collect())
    }
}

impl SplitReader for ScriptFlow {
    fn next(&mut self, _: usize) -> Result<Next, ConnectorError> {
        match self.batches.pop_front() {
            Some(times) => {
                let times = Arc::new(TimestampMillisecondArray::from(times));
                Ok(Next::Batch(RecordBatch::try_new(self.schema.clone(), vec![times]).unwrap()))
            }
            None if self.bounded => Ok(Next::End),
            None => Ok(Next::Wait { until_ns: 1_000_000 }),
        }
    }

    fn position(&self) -> Position {
        Position::none("t")
    }

    fn owes(&self) -> bool {
        OWES.get()
    }
}

thread_local! {
    /// Whether flows of this test know that rows are to come.
    static OWES: Cell<bool> = const { Cell::new(false) };
    /// How many flows of this test are not there at first, if flows may come.
    static LATER: Cell<Option<usize>> = const { Cell::new(None) };
    /// How many of them have come since they were asked for.
    static CAME: Cell<usize> = const { Cell::new(0) };
}

struct Bench {
    reader: Reader,
    clock: Arc<Hand>,
    bad: Arc<BadRows>,
}

fn bench(script: Script, delay: i64, idle_timeout_ns: Option<u64>) -> Bench {
    let (clock, bad) = (Arc::new(Hand::default()), Arc::new(BadRows::default()));
    let context = ReaderContext::new(clock.clone(), bad.clone());
    let time = Some(TimeColumn { column: 0, on_bad: OnBad::Show });
    let watermark = Some(Watermark { column: 0, delay, idle_timeout_ns });
    let input = Scan { time, watermark, ..Scan::new("t", Arc::new(script)) };
    let metrics = Arc::new(Metrics::default());
    Bench {
        reader: Reader::new(&input, Share { number: Some(0), of: 1 }, 100, context, metrics)
            .unwrap(),
        clock,
        bad,
    }
}

fn rows(reader: &mut Reader) -> Rows {
    loop {
        match reader.next().unwrap() {
            Read::Batch(flow, batch) => {
                if let Some(rows) = reader.take(flow, batch).unwrap() {
                    return rows;
                }
            }
            Read::Wait(at) => panic!("waits until {at:?}"),
            Read::End => panic!("has ended"),
        }
    }
}

fn some(times: &[i64]) -> Vec<Option<i64>> {
    times.iter().copied().map(Some).collect()
}

#[test]
fn a_flow_in_order_carries_no_watermarks() {
    let flows = vec![(None, vec![some(&[1, 2, 3]), some(&[3, 4])])];
    let mut bench = bench(Script { bounded: true, flows }, 0, None);
    assert_eq!(bench.reader.watermark(), i64::MIN);
    assert!(rows(&mut bench.reader).watermarks.is_none());
    assert_eq!(bench.reader.watermark(), 3);
    assert!(rows(&mut bench.reader).watermarks.is_none());
    assert!(matches!(bench.reader.next().unwrap(), Read::End));
    assert_eq!(bench.reader.watermark(), i64::MAX);
}

#[test]
fn in_front_of_rows_the_watermark_is_that_of_the_first() {
    let flows = vec![
        (None, vec![some(&[10, 20]), some(&[30, 40]), some(&[50, 60]), some(&[80, 70])]),
        (None, vec![some(&[95])]),
    ];
    let mut bench = bench(Script { bounded: false, flows }, 5, None);
    let reader = &mut bench.reader;
    let mut before = |awaited: i64| {
        let Read::Batch(flow, batch) = reader.next().unwrap() else { panic!("there are rows") };
        let announced = reader.watermark_before(flow, &batch, |watermark| watermark >= awaited);
        reader.take(flow, batch).unwrap();
        (announced, reader.watermark())
    };
    assert_eq!(before(0), (None, i64::MIN), "another flow has said nothing");
    assert_eq!(before(15), (Some(15), 15), "the other has said 90");
    assert_eq!(before(25), (Some(25), 35));
    assert_eq!(before(46), (None, 55), "45 is not awaited");
    assert_eq!(before(60), (None, 75), "80 and 70 are not in order");
}

#[test]
fn a_batch_is_cut_where_its_watermark_is_awaited() {
    let flows = vec![(None, vec![some(&[10, 20, 20, 30]), vec![Some(40), None]])];
    let mut bench = bench(Script { bounded: true, flows }, 5, None);
    let mut next = || match bench.reader.next().unwrap() {
        Read::Batch(flow, batch) => (flow, batch),
        _ => panic!("there are rows"),
    };
    let [(flow, batch), (_, nulls)] = [next(), next()];
    let cut = |from: i64| bench.reader.rows_before(flow, &batch, |watermark| watermark >= from);
    assert_eq!([5, 6, 15, 16, 25, 26].map(cut), [None, Some(1), Some(1), Some(3), Some(3), None]);
    assert_eq!(bench.reader.rows_before(flow, &nulls, |_| true), None, "times are missing");
}

#[test]
fn rows_that_lag_beyond_the_delay_carry_what_they_met() {
    let flows = vec![(None, vec![some(&[100, 95, 110, 99, 100])])];
    let mut bench = bench(Script { bounded: true, flows }, 10, None);
    let watermarks = rows(&mut bench.reader).watermarks.expect("99 lags behind 110 - 10");
    assert_eq!(watermarks.values()[1..], [90, 90, 100, 100]);
    assert!(watermarks.value(0) < 100, "nothing was reached before the first row");
}

#[test]
fn lagging_rows_are_found_in_any_block() {
    for at in [1, 63, 64, 65, 200] {
        let mut times: Vec<i64> = (0..300).collect();
        times[at] = -50;
        let (greatest, watermarks) = row_watermarks(&times, i64::MIN, 5);
        assert_eq!(greatest, 299);
        assert_eq!(watermarks.expect("one row lags").value(at), at as i64 - 1 - 5);
        times[at] = (at as i64 - 5).max(0);
        assert!(row_watermarks(&times, i64::MIN, 5).1.is_none());
    }
}

#[test]
fn a_batch_in_order_is_known_without_a_look_at_the_running_maximum() {
    let mut batches: Vec<Vec<i64>> = vec![
        vec![7],
        vec![7, 7, 9],
        vec![7, 9, 8],
        vec![i64::MIN, i64::MIN, 0],
        vec![i64::MAX, i64::MIN],
        vec![i64::MAX - 1, i64::MIN + 1, i64::MAX - 1],
        (0..200).collect(),
    ];
    batches.extend((0..200).map(|at| (0..200).map(|t| if t == at { 100 } else { t }).collect()));
    for times in &batches {
        for (reached, delay) in [(i64::MIN, 0), (8, 0), (8, 5), (150, 20), (i64::MAX, 0)] {
            let Some((first, last)) = in_order(times, reached, delay) else { continue };
            assert!(times.is_sorted(), "{times:?}");
            assert_eq!((first, last), (times[0], times[times.len() - 1]));
            let (greatest, watermarks) = row_watermarks(times, reached, delay);
            assert_eq!((greatest, watermarks), (reached.max(last), None), "{times:?}");
        }
    }
    assert_eq!(in_order(&batches[6], 0, 0), Some((0, 199)));
    assert_eq!(in_order(&batches[6], 1, 0), None, "the first row lags");
    assert_eq!(in_order(&[], 1, 0), None);
}

#[test]
fn unread_flows_hold_the_watermark_back_as_far_as_they_must() {
    let flows =
        vec![(Some(0), vec![some(&[0, 50])]), (Some(40), vec![some(&[60])]), (None, vec![])];
    let mut bench = bench(Script { bounded: true, flows: flows.clone() }, 0, None);
    rows(&mut bench.reader);
    assert_eq!(bench.reader.watermark(), i64::MIN, "nothing is known of the last flow");

    let flows = flows[..2].to_vec();
    let mut bench = self::bench(Script { bounded: true, flows }, 0, None);
    rows(&mut bench.reader);
    assert_eq!(bench.reader.watermark(), 40, "the second flow begins at 40");
    rows(&mut bench.reader);
    assert_eq!(bench.reader.watermark(), 60);
}

#[test]
fn an_idle_flow_holds_nothing_back_and_its_rows_meet_what_was_announced() {
    let flows = vec![(None, vec![some(&[10])]), (None, vec![some(&[500])])];
    let mut bench = bench(Script { bounded: false, flows }, 0, Some(1_000));
    rows(&mut bench.reader);
    rows(&mut bench.reader);
    assert_eq!(bench.reader.watermark(), 10);
    assert!(
        matches!(bench.reader.next().unwrap(), Read::Wait(Some(1_000))),
        "the flows fall idle then"
    );
    *bench.clock.0.lock().unwrap() = 1_000;
    assert!(!bench.reader.is_idle(), "nobody has asked them");
    assert_eq!(bench.reader.watermark(), 10);
    assert!(matches!(bench.reader.next().unwrap(), Read::Wait(_)));
    assert!(bench.reader.is_idle());
    assert_eq!(bench.reader.watermark(), 10, "time does not pass when all are idle");
    bench.reader.catch_up(400);
    let batch = RecordBatch::try_new(
        schema(),
        vec![Arc::new(TimestampMillisecondArray::from(vec![20, 401]))],
    );
    let rows = bench.reader.take(0, batch.unwrap()).unwrap().unwrap();
    assert_eq!(rows.watermarks.expect("20 lies before what was announced").value(0), 400);
    assert!(!bench.reader.is_idle());
}

#[test]
fn a_flow_that_comes_later_is_read_and_moves_no_watermark_back() {
    LATER.set(Some(2));
    let flows = [&[10_i64, 20][..], &[5, 21], &[30]];
    let flows = flows.map(|times| (None, times.iter().map(|time| some(&[*time])).collect()));
    let mut bench = bench(Script { bounded: false, flows: flows.into() }, 0, None);
    rows(&mut bench.reader);
    rows(&mut bench.reader);
    assert!(matches!(bench.reader.next().unwrap(), Read::Wait(_)));
    assert_eq!((bench.reader.watermark(), bench.reader.snapshot().len()), (20, 1));
    CAME.set(1);
    assert!(rows(&mut bench.reader).watermarks.is_some(), "5 is late");
    assert_eq!((bench.reader.watermark(), bench.reader.snapshot().len()), (20, 2));
    CAME.set(1);
    rows(&mut bench.reader);
    rows(&mut bench.reader);
    assert_eq!(bench.reader.watermark(), 20, "the first flow has come to 20 alone");
    assert_eq!(bench.reader.snapshot().len(), 3);
}

#[test]
fn a_worker_without_flows_waits_for_some_and_holds_nothing_back() {
    LATER.set(Some(1));
    let flows = vec![(None, vec![some(&[10])])];
    let mut bench = bench(Script { bounded: false, flows }, 0, None);
    assert!(matches!(bench.reader.next().unwrap(), Read::Wait(None)));
    assert!(bench.reader.is_idle());
    assert_eq!(bench.reader.watermark(), i64::MIN);
    bench.reader.catch_up(7);
    CAME.set(1);
    assert!(rows(&mut bench.reader).watermarks.is_none());
    assert_eq!((bench.reader.is_idle(), bench.reader.watermark()), (false, 10));
}

#[test]
fn what_was_announced_is_saved_with_each_split() {
    let flows = vec![(None, vec![some(&[10])]), (None, vec![some(&[500])])];
    let mut bench = bench(Script { bounded: false, flows }, 7, Some(1_000));
    rows(&mut bench.reader);
    rows(&mut bench.reader);
    bench.reader.catch_up(400);
    // A reader that goes on from there meets 400 in all of them, as this one does.
    let greatest = bench.reader.snapshot().into_iter().map(|split| split.greatest);
    assert_eq!(greatest.collect::<Vec<_>>(), [Some(407), Some(500)]);
}

#[test]
fn a_flow_that_has_found_rows_is_not_idle_and_holds_the_watermark() {
    let flows = vec![(None, vec![some(&[10])])];
    let mut bench = bench(Script { bounded: false, flows }, 0, Some(1_000));
    rows(&mut bench.reader);
    let mut asked_at = |now: u64, owes: bool| {
        *bench.clock.0.lock().unwrap() = now;
        OWES.set(owes);
        assert!(matches!(bench.reader.next().unwrap(), Read::Wait(_)));
        bench.reader.is_idle()
    };
    assert!(!asked_at(999, false));
    assert!(asked_at(1_000, false));
    assert!(!asked_at(5_000, true), "rows were found");
    assert!(!asked_at(5_999, false), "it is idle a while after it had some");
    assert!(asked_at(6_000, false));
}

#[test]
fn rows_without_event_time_are_bad() {
    let flows = vec![(None, vec![vec![Some(1), None, Some(2)], vec![None]])];
    let mut bench = bench(Script { bounded: true, flows }, 0, None);
    assert_eq!(rows(&mut bench.reader).batch.num_rows(), 2);
    let Read::Batch(flow, batch) = bench.reader.next().unwrap() else { panic!("a batch is left") };
    assert!(bench.reader.take(flow, batch).unwrap().is_none(), "no row of it is");
    assert!(matches!(bench.reader.next().unwrap(), Read::End));
    assert_eq!(bench.bad.count(), 2);
    let kept = bench.bad.kept();
    assert_eq!((kept[0].place.as_str(), kept[1].place.as_str()), ("flow 0:2", "flow 0:4"));
}

#[test]
fn rows_that_went_ahead_count_as_read_and_the_others_are_left() {
    let flows = vec![(None, vec![some(&[1, 2, 9, 5, 3]), some(&[10, 12])])];
    let mut bench = bench(Script { bounded: true, flows }, 1, None);
    let Read::Batch(flow, batch) = bench.reader.next().unwrap() else { panic!("a batch is left") };
    let times = bench.reader.fusible(flow, &batch).expect("by its ends it may be in order").times;
    assert_eq!(times.and_then(|times| times.span()), Some((1, 3)));
    let rest = bench.reader.consumed(flow, batch, 2).expect("three rows are left");
    assert_eq!(bench.reader.watermark(), 2 - 1);
    let rows = bench.reader.take(flow, rest).unwrap().expect("nothing is bad");
    assert_eq!(rows.watermarks.expect("5 and 3 lag behind 9 - 1").values()[..], [1, 8, 8]);
    let Read::Batch(flow, batch) = bench.reader.next().unwrap() else { panic!("a batch is left") };
    assert!(bench.reader.consumed(flow, batch, 2).is_none());
    assert_eq!(bench.reader.watermark(), 12 - 1);
    assert_eq!(bench.reader.metrics.rows_in.load(Ordering::Relaxed), 7);
}

#[test]
fn rows_go_ahead_where_none_can_lag_or_be_without_a_time() {
    let may = |times: Vec<Option<i64>>, delay| {
        let flows = vec![(None, vec![some(&[10]), times])];
        let mut bench = bench(Script { bounded: true, flows }, delay, None);
        rows(&mut bench.reader);
        let Read::Batch(flow, batch) = bench.reader.next().unwrap() else { panic!("one is left") };
        bench.reader.fusible(flow, &batch).is_some()
    };
    assert!(may(some(&[10, 11]), 0));
    assert!(may(some(&[10, 99, 11]), 0), "who folds them finds out");
    assert!(!may(some(&[9, 11]), 0), "the first lags");
    assert!(may(some(&[9, 11]), 1));
    assert!(!may(some(&[12, 11]), 1), "the last is before the first");
    assert!(!may(vec![Some(10), None, Some(11)], 0));
    assert!(!may(vec![], 0));
}

/// Two processes whose lists differ: each split is read by one of two readers, that which it names.
#[test]
fn a_split_with_an_owner_is_read_by_that_reader_whatever_else_is_listed() {
    let split = |number: usize, owner: Option<u64>| Split { number, owner, ..Split::default() };
    let readers = [0, 1].map(|number| Share { number: Some(number), of: 2 });
    for owner in [0, 1, 7, u64::MAX] {
        // The number that the split has in the list of each process.
        for [first, second] in [[0, 0], [0, 1], [5, 2]] {
            let has = [
                readers[0].has(&split(first, Some(owner))),
                readers[1].has(&split(second, Some(owner))),
            ];
            assert_eq!(has, [owner % 2 == 0, owner % 2 == 1], "{owner}: {first}, {second}");
        }
    }
    let by_number = [0, 1, 2, 3].map(|number| readers[1].has(&split(number, None)));
    assert_eq!(by_number, [false, true, false, true]);
    assert!(!Share { number: None, of: 2 }.has(&split(1, Some(1))));
}

/// A process whose broker has not heard of a topic goes on, if another one reads it.
#[test]
fn a_saved_split_that_is_not_listed_is_missed_by_its_reader_alone() {
    let saved = |name: &str, ended: bool| {
        let position = Position::new("t", 1, name, &[7]);
        SplitSnapshot { operator: 0, position, greatest: None, ended, readers: 2 }
    };
    let splits = [Split { name: "a".into(), owner: Some(0), ..Split::default() }];
    let all = [saved("a", false), saved("b", false), saved("c", true)];
    // The owner of 'b' is 1.
    let placed = |number: Option<u32>, owner: Option<u64>| {
        let share = Share { number, of: 2 };
        let is_elsewhere = |_: &str| owner.is_some_and(|owner| !share.owns(owner));
        let own = |split: usize| share.has(&splits[split]);
        let places = places(&splits, &all, own, is_elsewhere);
        places.map(|(open, ended)| [open.len(), ended.len()]).map_err(|error| error.to_string())
    };
    assert_eq!(placed(Some(0), Some(1)).unwrap(), [1, 0]);
    assert_eq!(placed(None, Some(1)).unwrap(), [0, 0]);
    for [number, owner] in [[Some(1), Some(1)], [Some(0), None], [Some(1), None]] {
        let error = placed(number, owner.map(u64::from)).unwrap_err();
        assert!(error.contains("'b'") || error.contains("b:"), "{error}");
        assert!(error.contains("it is not there any more"), "{error}");
    }
}
