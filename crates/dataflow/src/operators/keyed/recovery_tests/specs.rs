//! The operators that are cut, with keys of a type.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Float64Array, RecordBatch};
use arrow::compute::{SortOptions, cast};
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef, TimeUnit};
use state::aggregates;

use super::WIDTH;
use crate::job::{Distribution, Exchange, Keyed, KeyedInput, KeyedOperator};
use crate::keyed::{
    FrameUnit, IntervalJoin, JoinKind, JoinSide, Over, OverCall, OverFrame, Ranking, RowSessions,
    TemporalJoin, TimedSide, WindowJoin, first_value, nth_value, times,
};
use crate::operators::keyed::fixtures::{Row, SIDES, batch, both, given_out, schema};

/// Columns with another type of key.
pub(super) fn keyed_by(schema: &Schema, key: &DataType) -> SchemaRef {
    let field = |field: &Arc<Field>| {
        let of = if field.name().ends_with("_key") { key } else { field.data_type() };
        Arc::new(Field::new(field.name(), of.clone(), true))
    };
    Arc::new(Schema::new(schema.fields().iter().map(field).collect::<Vec<_>>()))
}

/// Rows whose keys are of that type. Floats have both zeros and several NaNs.
pub(super) fn rows_of(side: &str, key: &DataType, rows: &[Row]) -> RecordBatch {
    let rows = batch(side, rows);
    let ints = rows.column(0).as_primitive::<Int64Type>();
    let keys: ArrayRef = match key {
        DataType::Float64 => {
            let float = |key: i64| match key {
                1 => 0.0,
                2 => -0.0,
                3 => f64::NAN,
                4 => -f64::NAN,
                other => other as f64 / 2.0,
            };
            Arc::new(ints.iter().map(|key| key.map(float)).collect::<Float64Array>())
        }
        DataType::Dictionary(..) => {
            cast(&cast(rows.column(0), &DataType::Utf8).unwrap(), key).unwrap()
        }
        _ => rows.column(0).clone(),
    };
    let mut columns = rows.columns().to_vec();
    columns[0] = keys;
    RecordBatch::try_new(keyed_by(&schema(side), key), columns).unwrap()
}

/// An operator led by its first column.
pub(super) fn keyed(
    operator: impl KeyedOperator + 'static,
    inputs: usize,
    key: &DataType,
) -> Keyed {
    let input = |side: &str| KeyedInput {
        schema: keyed_by(&schema(side), key),
        keys: vec![0],
        distribution: Distribution::Hash,
        time: Some(2),
        grace: 0,
    };
    Keyed {
        inputs: SIDES.into_iter().map(input).take(inputs).collect(),
        exchange: Exchange::Shuffle,
        granularity: 1,
        operator: Arc::new(operator),
    }
}

fn timed(key: &DataType) -> [TimedSide; 2] {
    SIDES.map(|name| TimedSide { schema: keyed_by(&schema(name), key), keys: vec![0], time: 2 })
}

/// Columns of the left side, and these.
fn and(key: &DataType, more: Vec<Field>) -> SchemaRef {
    let left = keyed_by(&schema("left"), key);
    let fields = left.fields().iter().map(|field| field.as_ref().clone()).chain(more);
    Arc::new(Schema::new(fields.collect::<Vec<_>>()))
}

/// A join of windows.
pub(super) fn window_join(kind: JoinKind, key: &DataType) -> Keyed {
    let side = |name: &str| JoinSide {
        schema: keyed_by(&schema(name), key),
        keys: vec![0],
        window_end: 2,
    };
    let (schema, both) = (keyed_by(&given_out(kind), key), keyed_by(&both(), key));
    keyed(WindowJoin { sides: SIDES.map(side), kind, on: None, schema, both }, 2, key)
}

/// A join of rows near in time.
pub(super) fn interval_join(kind: JoinKind, key: &DataType) -> Keyed {
    let (sides, apart, on) = (timed(key), [-2 * WIDTH, WIDTH], None);
    let (schema, both) = (keyed_by(&given_out(kind), key), keyed_by(&both(), key));
    keyed(IntervalJoin { sides, kind, apart, on, schema, both }, 2, key)
}

/// A join with versions.
pub(super) fn temporal_join(outer: bool, key: &DataType) -> Keyed {
    let schema = keyed_by(&both(), key);
    keyed(TemporalJoin { sides: timed(key), outer, earlier: !outer, schema }, 2, key)
}

/// The first rows of windows.
pub(super) fn ranking(limit: Option<usize>, key: &DataType) -> Keyed {
    let (input, order) = (keyed_by(&schema("left"), key), vec![(1, SortOptions::default())]);
    let schema = and(key, vec![Field::new("rank", DataType::UInt64, false)]);
    keyed(Ranking { input, keys: vec![0], window_end: 2, order, limit, schema }, 1, key)
}

/// Sessions, of which all rows are given or some.
pub(super) fn sessions(gap: i64, given: bool, key: &DataType) -> Keyed {
    let time = DataType::Timestamp(TimeUnit::Millisecond, None);
    let bounds = ["start", "end", "last"].map(|name| Field::new(name, time.clone(), true));
    let (mut input, schema) = (keyed_by(&schema("left"), key), and(key, bounds.to_vec()));
    if given {
        input = and(key, vec![Field::new("given", DataType::Boolean, true)]);
    }
    let given = given.then_some(3);
    let of = input.clone();
    let mut spec = keyed(RowSessions { input, keys: vec![0], time: 2, gap, given, schema }, 1, key);
    spec.inputs[0].schema = of;
    spec
}

/// Frames of all kinds.
pub(super) fn over(key: &DataType) -> Keyed {
    let of = DataType::Int64;
    let frame = |unit, from, to| OverFrame { unit, from, to };
    let range = frame(FrameUnit::Range, Some(3 * WIDTH), 0);
    let all = frame(FrameUnit::Range, None, WIDTH / 2);
    let rows = frame(FrameUnit::Rows, Some(11), 2);
    let all_rows = frame(FrameUnit::Rows, None, 3);
    let time = DataType::Timestamp(TimeUnit::Millisecond, None);
    let calls = [
        (aggregates::sum(&of).unwrap(), vec![1], range),
        (aggregates::max(&of).unwrap(), vec![1], all),
        (first_value(of.clone(), false), vec![1], rows),
        (nth_value(of.clone(), 3, false), vec![1], rows),
        (times(time), vec![2], all_rows),
        (aggregates::avg(&of).unwrap(), vec![1], all_rows),
        (aggregates::count(), vec![], range),
    ];
    let call = |(aggregate, args, frame)| OverCall { text: "".into(), aggregate, args, frame };
    let calls = calls.into_iter().map(call).collect::<Vec<_>>();
    let results = calls.iter().enumerate();
    let result = |(at, call): (usize, &OverCall)| {
        Field::new(format!("call{at}"), call.aggregate.output_type(), true)
    };
    let input = keyed_by(&schema("left"), key);
    let schema = and(key, results.map(result).collect());
    let (keys, ties) = (vec![0], vec![2, 1, 0]);
    keyed(Over { input, keys, time: 2, ties, window_end: None, calls, schema }, 1, key)
}
