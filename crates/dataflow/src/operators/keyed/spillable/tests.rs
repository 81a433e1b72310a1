//! Operators with room for few of their rows, against the same with room for all.

use arrow::array::Int64Array;
use arrow::compute::SortOptions;
use arrow::datatypes::{DataType, Field, Fields, Schema, TimeUnit};
use state::sim::{SimDisk, SimDiskOptions};
use state::{KeyRows, aggregates};

use super::*;
use crate::job::{Distribution, Exchange, KeyedInput, KeyedOperator};
use crate::keyed::{
    FrameUnit, IntervalJoin, JoinKind, JoinSide, Over, OverCall, OverFrame, Ranking, RowSessions,
    TemporalJoin, TimedSide, WindowJoin,
};
use crate::operators::keyed::fixtures::{
    KINDS, Numbers, Row, SIDES, batch as side_batch, both, given_out, schema,
};
use crate::rows::wire::bytes_of;

const WIDTH: i64 = 100;

fn keyed(operator: impl KeyedOperator + 'static, inputs: usize) -> Keyed {
    let input = |side: &str| {
        let (keys, distribution) = (vec![0], Distribution::Hash);
        KeyedInput { schema: schema(side), keys, distribution, time: Some(2), grace: 0 }
    };
    Keyed {
        inputs: SIDES.into_iter().map(input).take(inputs).collect(),
        exchange: Exchange::Forward,
        granularity: 1,
        operator: Arc::new(operator),
    }
}

fn window_join(kind: JoinKind) -> Keyed {
    let side = |name: &str| JoinSide { schema: schema(name), keys: vec![0], window_end: 2 };
    let (sides, schema, both) = (SIDES.map(side), given_out(kind), both());
    keyed(WindowJoin { sides, kind, on: None, schema, both }, 2)
}

fn timed() -> [TimedSide; 2] {
    SIDES.map(|name| TimedSide { schema: schema(name), keys: vec![0], time: 2 })
}

/// Columns of the left side, and these.
fn and(more: &[Field]) -> Arc<Schema> {
    let left = schema("left");
    let fields = left.fields().iter().cloned().chain(more.iter().cloned().map(Arc::new));
    Arc::new(Schema::new(fields.collect::<Fields>()))
}

fn ranking(limit: Option<usize>) -> Keyed {
    let rank = Field::new("rank", DataType::UInt64, false);
    let order = vec![(1, SortOptions::default())];
    let (input, keys, window_end) = (schema("left"), vec![0], 2);
    keyed(Ranking { input, keys, window_end, order, limit, schema: and(&[rank]) }, 1)
}

/// Operators whose rows wait for a time of their own.
fn others() -> [Keyed; 4] {
    let of = DataType::Int64;
    let frame = OverFrame { unit: FrameUnit::Range, from: Some(3 * WIDTH), to: 0 };
    let aggregate = aggregates::sum(&of).unwrap();
    let sum = OverCall { text: "sum".into(), aggregate, args: vec![1], frame };
    let over = Over {
        input: schema("left"),
        keys: vec![0],
        time: 2,
        ties: vec![0, 1, 2],
        window_end: None,
        calls: vec![sum],
        schema: and(&[Field::new("sum", of, true)]),
    };
    let versions = TemporalJoin { sides: timed(), outer: true, earlier: false, schema: both() };
    [keyed(over, 1), interval(JoinKind::Full), keyed(versions, 2), sessions(2)]
}

fn interval(kind: JoinKind) -> Keyed {
    let (sides, apart, on) = (timed(), [-2 * WIDTH, WIDTH], None);
    keyed(IntervalJoin { sides, kind, apart, on, schema: given_out(kind), both: both() }, 2)
}

fn sessions(gap: i64) -> Keyed {
    let time = DataType::Timestamp(TimeUnit::Millisecond, None);
    let bounds = ["start", "end", "last"].map(|name| Field::new(name, time.clone(), true));
    let (keys, given) = (vec![0], None);
    let input = schema("left");
    keyed(RowSessions { input, keys, time: 2, gap, given, schema: and(&bounds) }, 1)
}

/// Batches by input, and the watermark behind them.
type Round = (Vec<(usize, RecordBatch)>, i64);

/// Rows of either side up to so many widths ahead of a watermark that moves by one.
fn rounds(seed: u64, inputs: usize, rows: usize, exact: bool, widths: i64) -> Vec<Round> {
    let mut numbers = Numbers(seed);
    let mut next = 0;
    let mut row = |round: i64| -> Row {
        next += 1;
        let key = numbers.below(40);
        let ahead = numbers.below(widths * WIDTH);
        let time = WIDTH * round + if exact { ahead / WIDTH * WIDTH } else { ahead };
        ((key > 0).then_some(key), next, time + WIDTH)
    };
    let mut round = |round: i64| {
        let mut batches = vec![];
        for at in 0..inputs * 2 {
            let rows: Vec<Row> = (0..rows).map(|_| row(round)).collect();
            batches.push((at % inputs, side_batch(SIDES[at % inputs], &rows)));
        }
        (batches, if round == 11 { i64::MAX } else { WIDTH * round + WIDTH - 1 })
    };
    (0..12).map(&mut round).collect()
}

/// What an operator gives, in an order of its own; what it wrote; and the most that it held.
fn run(
    spec: &Keyed,
    rounds: &[Round],
    share: usize,
    disk: Option<Arc<SimDisk>>,
) -> (Vec<Vec<u8>>, Spilled, usize) {
    let mut keeping = SpillableState::new(spec, disk.clone().map(|disk| disk as Arc<dyn Disk>));
    let (mut given, mut most) = (vec![], 0);
    for (batches, watermark) in rounds {
        for (input, batch) in batches {
            keeping.push(*input, batch.clone(), share).unwrap();
            most = most.max(keeping.bytes());
        }
        while let Some(batch) = keeping.advance(*watermark, 64, share).unwrap() {
            let rows = KeyRows::exact(batch.columns()).unwrap();
            given.extend(rows.iter().map(|row| row.data().to_vec()));
            most = most.max(keeping.bytes());
        }
    }
    assert!(disk.is_none_or(|disk| disk.files() == 0), "a file is left");
    given.sort();
    (given, keeping.spilled(), most)
}

fn disk() -> Option<Arc<SimDisk>> {
    Some(SimDisk::new(SimDiskOptions::default()))
}

#[test]
fn windows_give_the_same_however_little_room_there_is() {
    let joins = KINDS.map(window_join);
    let rankings = [ranking(None), ranking(Some(2))];
    for (number, spec) in joins.iter().chain(&rankings).enumerate() {
        for exact in [true, false] {
            let rounds = rounds(number as u64, spec.inputs.len(), 40, exact, 5);
            let (expected, none, _) = run(spec, &rounds, usize::MAX, None);
            assert!(!expected.is_empty() && none.bytes == 0);
            for share in [0, 4 << 10, 1 << 30] {
                let (given, spilled, _) = run(spec, &rounds, share, disk());
                assert!(given == expected, "{}, {share} bytes", spec.operator.describe(&[]).name);
                assert_eq!(spilled.bytes > 0, share < 1 << 20, "{share} bytes");
                assert!(spilled.read_bytes >= spilled.bytes, "all is read");
            }
        }
    }
}

#[test]
fn rows_ahead_of_time_wait_without_a_difference() {
    for (number, spec) in others().iter().enumerate() {
        let rounds = rounds(100 + number as u64, spec.inputs.len(), 100, false, 5);
        let (expected, _, most) = run(spec, &rounds, usize::MAX, None);
        for share in [0, most / 3, 4 * most] {
            let (given, spilled, _) = run(spec, &rounds, share, disk());
            assert!(given == expected, "{}, {share} bytes", spec.operator.describe(&[]).name);
            assert_eq!(spilled.bytes > 0, share < most, "{share} of {most} bytes");
        }
    }
}

#[test]
fn what_is_kept_may_be_more_than_there_is_room_for() {
    let versions = TemporalJoin { sides: timed(), outer: true, earlier: false, schema: both() };
    let all = KINDS.map(interval).into_iter();
    let all = all.chain([keyed(versions, 2), sessions(15), sessions(60), sessions(900)]);
    for (number, spec) in all.enumerate() {
        let rounds = rounds(200 + number as u64, spec.inputs.len(), 100, false, 1);
        // It has reached all rows that have come, and none of those to come.
        let later = |(batches, watermark): Round| match watermark {
            i64::MAX => (batches, watermark),
            _ => (batches, watermark + WIDTH),
        };
        let rounds: Vec<Round> = rounds.into_iter().map(later).collect();
        let (expected, _, most) = run(&spec, &rounds, usize::MAX, None);
        assert!(!expected.is_empty());
        for share in [0, most / 4, 4 * most] {
            let (given, spilled, _) = run(&spec, &rounds, share, disk());
            assert!(given == expected, "{}, {share} bytes", spec.operator.describe(&[]).name);
            assert!(spilled.read_bytes >= spilled.bytes, "all is read");
            assert_eq!(spilled.bytes > 0, share < most, "{share} of {most} bytes");
        }
    }
}

/// Gives 500 rows of a side and a time, numbered on from call to call; one in 25,013 has each key.
fn numbered_rows() -> impl FnMut(usize, i64) -> RecordBatch {
    let mut next = 0;
    move |side, time| {
        let row = |_| {
            next += 1;
            (Some(next % 25_013), next, time)
        };
        side_batch(SIDES[side], &(0..500).map(row).collect::<Vec<Row>>())
    }
}

#[test]
fn an_interval_join_stays_within_its_room() {
    let mut rows = numbered_rows();
    let round = |time: i64| (vec![(0, rows(0, time)), (1, rows(1, time))], time);
    let mut rounds: Vec<Round> = (0..100).map(round).collect();
    rounds.push((vec![], i64::MAX));
    let spec = interval(JoinKind::Full);
    let (expected, _, all) = run(&spec, &rounds, usize::MAX, None);
    let share = all / 6;
    let (given, _, most) = run(&spec, &rounds, share, disk());
    assert!(given == expected);
    assert!(most <= share, "{most} of {share} bytes in place of {all}");
}

#[test]
fn a_window_several_times_its_room_stays_within_it() {
    let share = 256 << 10;
    let mut next = 0;
    let mut rows = |side: usize| {
        let row = |_| {
            next += 1;
            (Some(next % 30_011), next, WIDTH)
        };
        side_batch(SIDES[side], &(0..1_000).map(row).collect::<Vec<Row>>())
    };
    let batches: Vec<_> = (0..60).map(|at| (at % 2, rows(at % 2))).collect();
    let rounds = [(batches, i64::MAX)];
    let spec = window_join(JoinKind::Inner);
    let (expected, _, all) = run(&spec, &rounds, usize::MAX, None);
    let (given, _, most) = run(&spec, &rounds, share, disk());
    assert!(given == expected);
    assert!(all > 4 * share && most <= share, "{most} of {share} bytes in place of {all}");
}

/// A checkpoint of rows that do not fit holds as many of them in memory as the operator does.
#[test]
fn ten_times_the_share_is_saved_without_a_read() {
    let mut rows = numbered_rows();
    // Those of a window join wait, and those of an interval join are kept.
    for (spec, watermark) in [(window_join(JoinKind::Inner), 0), (interval(JoinKind::Full), 9)] {
        let disk = SimDisk::new(SimDiskOptions::default());
        let share = 64 << 10;
        let mut keeping = SpillableState::new(&spec, Some(disk.clone()));
        let (mut pushed, mut bytes) = (0, 0);
        while bytes < 10 * share {
            for side in 0..2 {
                let rows = rows(side, 7);
                (pushed, bytes) = (pushed + rows.num_rows(), bytes + bytes_of(&rows));
                keeping.push(side, rows, share).unwrap();
            }
            while keeping.advance(watermark, 64, share).unwrap().is_some() {}
        }
        keeping.settle();
        while keeping.advance(watermark, 64, share).unwrap().is_some() {}
        let reads = disk.reads();
        let KeptRows { held, spilled } = keeping.save().unwrap();
        assert_eq!(reads, disk.reads());
        let in_memory: usize = held.iter().map(|saved| bytes_of(&saved.rows)).sum();
        assert!(in_memory <= share, "{in_memory} bytes are in memory");
        // They can be read when the operator is through with them.
        drop(keeping);
        let of_disk = spilled.iter().map(|batch| batch.read().unwrap().num_rows());
        let in_memory = held.iter().map(|saved| saved.rows.num_rows());
        assert_eq!(of_disk.chain(in_memory).sum::<usize>(), pushed);
        drop(spilled);
        assert_eq!(disk.files(), 0);
    }
}

/// Rows of a shared input are used before they are saved, also those that are ahead of time.
#[test]
fn rows_ahead_of_time_are_settled_within_the_share() {
    let mut spec = interval(JoinKind::Inner);
    spec.inputs[1].distribution = Distribution::Broadcast;
    let share = 256 << 10;
    let mut keeping = SpillableState::new(&spec, disk().map(|disk| disk as Arc<dyn Disk>));
    let (mut next, mut bytes, mut most) = (0, 0, 0);
    while bytes < 4 * share {
        let row = |_| {
            next += 1;
            (Some(next % 25_013), next, 50 * WIDTH + next % WIDTH)
        };
        let rows: Vec<Row> = (0..500).map(row).collect();
        let rows = side_batch(SIDES[next as usize / 500 % 2], &rows);
        bytes += bytes_of(&rows);
        keeping.push(next as usize / 500 % 2, rows, share).unwrap();
        most = most.max(keeping.bytes());
    }
    keeping.settle();
    let mut pairs = 0;
    while let Some(batch) = keeping.advance(0, 64, share).unwrap() {
        pairs += batch.num_rows();
        most = most.max(keeping.bytes());
    }
    assert!(pairs > 0 && most <= share, "{pairs} pairs, {most} of {share} bytes");
    let KeptRows { held, spilled } = keeping.save().unwrap();
    let held = held.iter().map(|saved| saved.rows.num_rows());
    let spilled = spilled.iter().map(|batch| batch.read().unwrap().num_rows());
    assert_eq!(held.chain(spilled).sum::<usize>(), next as usize);
}

#[test]
fn a_key_that_has_no_room_is_given_all_the_same() {
    let row = |at: i64| (Some(7), at, WIDTH);
    let many: Vec<Row> = (0..3_000).map(row).collect();
    let batches = vec![(0, side_batch("left", &many)), (1, side_batch("right", &many[..2]))];
    let rounds = [(batches, i64::MAX)];
    let spec = window_join(JoinKind::Inner);
    let (given, spilled, _) = run(&spec, &rounds, 4 << 10, disk());
    assert_eq!((given.len(), spilled.bytes > 0), (6_000, true));
}

#[test]
fn a_disk_that_fails_is_an_error() {
    let options = [
        SimDiskOptions { bytes_max: Some(10_000), ..SimDiskOptions::default() },
        SimDiskOptions { fails_at: Some(3), ..SimDiskOptions::default() },
        SimDiskOptions { damages_at: Some(3), ..SimDiskOptions::default() },
    ];
    for options in options {
        let disk: Arc<dyn Disk> = SimDisk::new(options);
        let mut keeping = SpillableState::new(&window_join(JoinKind::Inner), Some(disk));
        let mut all = || -> Result<(), DataflowError> {
            for (batches, watermark) in rounds(1, 2, 60, true, 5) {
                for (input, batch) in batches {
                    keeping.push(input, batch, 4 << 10)?;
                }
                while keeping.advance(watermark, 64, 4 << 10)?.is_some() {}
            }
            Ok(())
        };
        assert!(matches!(all(), Err(DataflowError::State(_))));
    }
}

#[test]
fn spans_are_of_whole_windows() {
    let rows: Vec<Row> = (0..1_000).map(|at| (None, at, at / 7)).collect();
    let run = Run::new(side_batch("left", &rows), 2).unwrap();
    let spans = run.spans(500);
    let numbers = |batch: &RecordBatch| {
        let column = batch.column(1).as_any().downcast_ref::<Int64Array>().unwrap();
        column.values().to_vec()
    };
    let all: Vec<i64> = spans.iter().flat_map(|(_, rows)| numbers(rows)).collect();
    assert_eq!(all, (0..1_000).collect::<Vec<_>>());
    for (first, rows) in &spans[..spans.len() - 1] {
        let numbers = numbers(rows);
        assert_eq!((numbers[0] / 7, numbers[0] % 7, numbers.len() % 7), (*first, 0, 0));
        assert!(bytes_of(rows) >= 500);
    }
}
