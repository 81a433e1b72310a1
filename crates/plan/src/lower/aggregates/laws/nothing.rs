//! The results of functions for no rows, for NULLs alone, and for one row.
//!
//! The functions are those of the engine's own registry, each with arguments of every type that it
//! takes and in every form in which it can be asked: a new one is held to this without a word here.
//! Of nothing each is NULL, but for those that count, which are 0; in whatever way a state has come
//! to have no value: nobody has asked for the group before, a filter has taken its rows, states of
//! nothing were merged, or a table was cleared. What one row gives, DataFusion says.

use arrow::array::{
    BinaryArray, Date32Array, Decimal128Array, DurationMillisecondArray, Float32Array, Int8Array,
    Int16Array, ListArray, Time64MicrosecondArray, TimestampNanosecondArray, UInt8Array,
    UInt16Array, UInt64Array, new_null_array,
};
use arrow::datatypes::Int32Type;

use super::*;

/// Functions that count: of nothing they are 0.
const COUNTS: [&str; 3] = ["approx_distinct", "count", "regr_count"];

/// Functions for which NULL is a value, so that they are something of NULLs alone.
const TAKES_NULLS: [&str; 1] = ["array_agg"];

/// Ways in which a function may be asked of a column.
const FORMS: [&str; 9] = [
    "F($)",
    "F($, $)",
    "F($, o)",
    "F($, ',')",
    "F($, 0.5)",
    "F($ ORDER BY o)",
    "F(DISTINCT $)",
    "F(0.5) WITHIN GROUP (ORDER BY $)",
    "F(1, 0.5) WITHIN GROUP (ORDER BY $)",
];

/// A column of each type with one value, and whether the value passes.
fn one_of_each() -> RecordBatch {
    let decimal = |digits, scale| {
        let value = Decimal128Array::from(vec![125]);
        Arc::new(value.with_precision_and_scale(digits, scale).expect("digits")) as ArrayRef
    };
    let list = ListArray::from_iter_primitive::<Int32Type, _, _>([Some([Some(3), None])]);
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("g", Arc::new(Int64Array::from(vec![0]))),
        ("o", Arc::new(Int64Array::from(vec![7]))),
        ("p", Arc::new(BooleanArray::from(vec![false]))),
        ("c_boolean", Arc::new(BooleanArray::from(vec![false]))),
        ("c_int8", Arc::new(Int8Array::from(vec![-3]))),
        ("c_int16", Arc::new(Int16Array::from(vec![-3]))),
        ("c_int32", Arc::new(Int32Array::from(vec![-3]))),
        ("c_int64", Arc::new(Int64Array::from(vec![-3]))),
        ("c_uint8", Arc::new(UInt8Array::from(vec![3]))),
        ("c_uint16", Arc::new(UInt16Array::from(vec![3]))),
        ("c_uint32", Arc::new(UInt32Array::from(vec![3]))),
        ("c_uint64", Arc::new(UInt64Array::from(vec![3]))),
        ("c_float32", Arc::new(Float32Array::from(vec![-1.5]))),
        ("c_float64", Arc::new(Float64Array::from(vec![-1.5]))),
        ("c_decimal", decimal(10, 2)),
        ("c_long_decimal", decimal(38, 10)),
        ("c_string", Arc::new(StringArray::from(vec!["a"]))),
        ("c_bytes", Arc::new(BinaryArray::from(vec![&b"a"[..]]))),
        ("c_date", Arc::new(Date32Array::from(vec![19_000]))),
        ("c_time", Arc::new(Time64MicrosecondArray::from(vec![1]))),
        ("c_timestamp", Arc::new(TimestampMillisecondArray::from(vec![-1]))),
        ("c_timestamp9", Arc::new(TimestampNanosecondArray::from(vec![-1]))),
        ("c_duration", Arc::new(DurationMillisecondArray::from(vec![-1]))),
        ("c_array", Arc::new(list)),
    ];
    let columns = columns.into_iter().map(|(name, column)| (name, column, true));
    RecordBatch::try_from_iter_with_nullable(columns).expect("columns of one length")
}

/// The same with NULL in all columns but the group.
fn nulls(batch: &RecordBatch) -> RecordBatch {
    let columns = batch.columns().iter().enumerate();
    let null = |(at, column): (usize, &ArrayRef)| match at {
        0 => column.clone(),
        _ => new_null_array(column.data_type(), column.len()),
    };
    RecordBatch::try_new(batch.schema(), columns.map(null).collect()).expect("the same types")
}

/// All that is asked: a call, and the function's name.
fn calls(batch: &RecordBatch) -> Vec<(String, String)> {
    let engine = Engine::new();
    let names: BTreeSet<String> =
        engine.state().aggregate_functions().values().map(|f| f.name().to_owned()).collect();
    let mut calls = vec![];
    for name in names.iter().filter(|name| REFUSED.iter().all(|(refused, _)| refused != name)) {
        let before = calls.len();
        let columns = batch.schema();
        let columns = columns.fields().iter().filter(|field| field.name().starts_with("c_"));
        for column in columns {
            let forms = FORMS.iter().map(|form| form.replace("F(", &format!("{name}(")));
            let forms = forms.map(|form| form.replace("$", column.name()));
            let takes = |text: &String| {
                let asked = asked(text, batch);
                asked.and_then(|asked| lowered(&asked.call, batch)).is_ok()
            };
            calls.extend(forms.filter(takes).map(|text| (text, name.clone())));
        }
        assert!(calls.len() > before, "no form is known in which to ask {name}");
    }
    calls
}

/// The result of a call for one group.
struct Held {
    call: AggregateCall,
    accumulator: Box<dyn Accumulator>,
}

impl Held {
    fn of(call: &AggregateCall) -> Self {
        Self { call: call.clone(), accumulator: call.aggregate.create() }
    }

    fn with(mut self, batch: &RecordBatch, total: usize) -> Self {
        let args = arguments(&self.call, batch);
        let ids = vec![0; batch.num_rows()];
        self.accumulator.update(&args, &Groups::each(&ids), total).expect("it updates");
        self
    }

    fn merged(mut self, mut others: Vec<Self>) -> Self {
        for other in &mut others {
            let state = other.accumulator.state(&Part::all(0..1, 1)).expect("a state");
            let types: Vec<DataType> = state.iter().map(|s| s.data_type().clone()).collect();
            assert_eq!(types, self.call.aggregate.state_types(), "{}", self.call.text);
            self.accumulator.merge(&state, &Groups::each(&[0]), 1).expect("it merges");
        }
        self
    }

    /// The result of group `at` of `total`.
    fn result(mut self, at: usize, total: usize) -> ArrayRef {
        let value = self.accumulator.values(&Part::all(at..at + 1, total)).expect("a result");
        assert_eq!(value.data_type(), &self.call.aggregate.output_type(), "{}", self.call.text);
        value
    }
}

/// Each way to no value at all, and what it gives.
fn ways_to_nothing(
    call: &AggregateCall,
    filtered: &AggregateCall,
    one: &RecordBatch,
) -> Vec<(&'static str, ArrayRef)> {
    let empty = one.slice(0, 0);
    let mut cleared = Held::of(call).with(one, 1);
    cleared.accumulator.clear(1);
    let mut read = Held::of(call).with(one, 1);
    read.accumulator.values(&Part::all(0..1, 1)).expect("a result");
    read.accumulator.clear(1);
    let nothing = || Held::of(call);
    vec![
        ("nobody has come", nothing().result(0, 1)),
        ("batches without rows", nothing().with(&empty, 1).with(&empty, 1).result(0, 1)),
        ("states of nothing", nothing().merged(vec![nothing(), nothing()]).result(0, 1)),
        ("a state of no groups", nothing().with(&empty, 0).result(0, 1)),
        ("the filter takes all", Held::of(filtered).with(one, 1).result(0, 1)),
        (
            "states that the filter has left",
            Held::of(filtered).merged(vec![Held::of(filtered).with(one, 1)]).result(0, 1),
        ),
        ("a neighbour of a value", nothing().with(one, 1).result(1, 2)),
        ("a neighbour of a state", nothing().merged(vec![nothing().with(one, 1)]).result(1, 2)),
        ("cleared", cleared.result(0, 1)),
        ("read and cleared", read.result(0, 1)),
    ]
}

fn shown(column: &ArrayRef) -> String {
    if column.is_null(0) {
        "NULL".into()
    } else {
        array_value_to_string(column, 0).expect("a value")
    }
}

/// The fault of a call.
fn faults(text: &str, name: &str, one: &RecordBatch) -> Vec<String> {
    let ask = |text: &str| {
        let asked = asked(text, one).unwrap_or_else(|error| panic!("{text}: {error}"));
        let call = lowered(&asked.call, one).unwrap_or_else(|error| panic!("{text}: {error}"));
        (asked, call)
    };
    let (by_datafusion, call) = ask(text);
    let (_, filtered) = ask(&format!("{text} FILTER (WHERE p)"));
    let nothing = if COUNTS.contains(&name) { "0" } else { "NULL" };
    let mut faults = vec![];
    let mut expect = |way: &str, found: &ArrayRef, expected: &str| {
        if shown(found) != expected {
            faults.push(format!("{text}, {way}: {} and not {expected}", shown(found)));
        }
    };
    for (way, found) in ways_to_nothing(&call, &filtered, one) {
        expect(way, &found, nothing);
    }
    let nulls = nulls(one);
    if !TAKES_NULLS.contains(&name) {
        expect("NULL alone", &Held::of(&call).with(&nulls, 1).result(0, 1), nothing);
        let merged = Held::of(&call).merged(vec![Held::of(&call).with(&nulls, 1)]);
        expect("a state of NULL alone", &merged.result(0, 1), nothing);
    }
    let batches = crate::lower::batch::collect(&by_datafusion.plan, &by_datafusion.context.state())
        .expect("rows");
    let expected = shown(batches[0].column(1));
    let held = || Held::of(&call).with(one, 1);
    expect("one row", &held().result(0, 1), &expected);
    let around = vec![Held::of(&call), held(), Held::of(&call)];
    expect(
        "one row between states of nothing",
        &Held::of(&call).merged(around).result(0, 1),
        &expected,
    );
    faults
}

#[test]
fn of_nothing_each_function_is_null_or_counts_to_zero() {
    let one = one_of_each();
    let calls = calls(&one);
    assert!(calls.len() > 300, "{} calls", calls.len());
    let faults = calls.iter().flat_map(|(text, name)| {
        std::panic::catch_unwind(|| faults(text, name, &one_of_each()))
            .unwrap_or_else(|_| vec![format!("{text} panics")])
    });
    let faults: Vec<String> = faults.collect();
    assert!(faults.is_empty(), "{faults:#?}");
}
