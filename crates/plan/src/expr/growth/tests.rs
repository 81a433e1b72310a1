//! Each scalar function is decided: it has a bound, or it cannot grow.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, Int64Array, ListArray, RecordBatch, RecordBatchOptions, StringArray,
};
use arrow::datatypes::{Int64Type, Schema};
use datafusion::common::DFSchema;
use datafusion::logical_expr::{ColumnarValue, Expr};

use super::estimate::{Argument, bytes_of};
use super::joined::in_expression;
use super::{Bounded, GROWING};
use crate::catalog::Catalog;
use crate::logical::engine::Engine;

/// Functions without a bound, by the reason why they need none.
const CANNOT_GROW: [(&str, &str); 7] = [
    (
        "a number or a truth",
        "abs acos acosh array_avg array_distance array_has array_has_all array_has_any \
         array_length array_ndims array_position array_product array_sum ascii asin asinh atan \
         atan2 atanh bit_length cardinality cbrt ceil character_length contains cos cosh \
         cosine_distance cot degrees empty ends_with exp factorial find_in_set floor gcd \
         inner_product isnan iszero json_exists lcm levenshtein ln log log10 log2 mod nanvl \
         octet_length pi power radians random regexp_count regexp_instr regexp_like round signum \
         sin sinh sqrt starts_with strpos tan tanh trunc",
    ),
    (
        "a time or a part of one",
        "__ceil_to __floor_to current_date current_time date_bin date_part date_trunc day \
         dayofmonth dayofweek dayofyear from_unixtime hour make_date make_time minute month now \
         quarter second timestampadd timestampdiff to_date to_local_time to_time \
         to_timestamp to_timestamp_ltz to_timestamp_micros to_timestamp_millis \
         to_timestamp_nanos to_timestamp_seconds to_unixtime week year",
    ),
    ("a text of a fixed length", "chr digest md5 sha224 sha256 sha384 sha512 to_hex uuid"),
    (
        "what is known of a type, a file or the program",
        "array_dims arrow_field arrow_metadata arrow_typeof file_row_index input_file_name \
         union_tag version",
    ),
    (
        "the value of an argument, in its type or another one, or one of its numbers",
        "array_add array_normalize array_scale array_subtract arrow_cast arrow_try_cast \
         cast_to_type get_field named_struct struct try_cast_to_type union_extract with_metadata",
    ),
    ("planned as CASE", "coalesce nvl nvl2"),
    (
        "marks that the planner takes away",
        "__as_of __called __without __without_condition current_watermark proctime",
    ),
];

#[test]
fn each_function_has_a_bound_or_cannot_grow() {
    let engine = Engine::new();
    let known: BTreeSet<&str> =
        CANNOT_GROW.iter().flat_map(|(_, names)| names.split_whitespace()).collect();
    let growing: BTreeSet<&str> = GROWING.iter().map(|(name, _)| *name).collect();
    assert_eq!(known.intersection(&growing).collect::<Vec<_>>(), Vec::<&&str>::new());
    let names = engine.scalar_functions().map(|function| function.name());
    let undecided: BTreeSet<&str> =
        names.filter(|name| !known.contains(name) && !growing.contains(name)).collect();
    assert_eq!(undecided, BTreeSet::new(), "enter each, with a bound or with a reason");
    let mut growing = engine.scalar_functions().filter(|f| growing.contains(f.name()));
    assert!(growing.all(|function| function.inner().is::<Bounded>()), "each has its bound");
}

#[test]
fn bytes_are_those_of_the_rows_asked_for() {
    let texts: ArrayRef = Arc::new(StringArray::from(vec!["a", "bcd", "", "ef"]));
    assert_eq!(bytes_of(texts.as_ref(), 1, 4), 5);
    assert_eq!(bytes_of(texts.slice(1, 2).as_ref(), 0, 1), 3);
    let numbers: ArrayRef = Arc::new(Int64Array::from(vec![1, 2, 3]));
    assert_eq!(bytes_of(numbers.as_ref(), 0, 2), 16);
    let lists = [Some(vec![Some(1)]), None, Some(vec![Some(2); 1000])];
    let lists = ListArray::from_iter_primitive::<Int64Type, _, _>(lists);
    assert_eq!(bytes_of(&lists, 0, 2), 8);
    assert_eq!(bytes_of(&lists, 2, 3), 8000);
    assert_eq!(bytes_of(&lists.slice(2, 1), 0, 1), 8000);
}

/// Results of calls with small arguments are no longer than estimated.
#[test]
fn no_estimate_is_too_small() {
    let list = "make_array('a', 'bcd', NULL, 'e')";
    let calls = [
        "array_append(make_array('a'), 'bcd')",
        "array_concat(make_array(1, 2), make_array(3))",
        "array_positions(make_array(true, true, true), true)",
        "array_repeat('ab', 7)",
        "array_repeat(make_array(1, 2, 3), 7)",
        "array_replace(make_array('a', 'a'), 'a', 'bcdef')",
        "array_replace_all(make_array('a', 'a'), 'a', 'bcdef')",
        "array_replace_n(make_array('a', 'a', 'a'), 'a', 'bcdef', 2)",
        "array_resize(make_array('a'), 9, 'bcd')",
        "array_to_string(LIST, '--', 'null')",
        "array_to_string(make_array(1.23456789012345, -1.5e300), ', ')",
        "array_to_string(make_array(make_array(-9223372036854775807, 1)), ', ')",
        "arrays_zip(make_array(1, 2, 3, 4), make_array('a'))",
        "concat('a', 'bc', NULL)",
        "concat_ws(', ', 'a', 'bc', 'd')",
        "date_format(TIMESTAMP '2024-09-25 11:12:13', 'EEEE, d MMMM yyyy')",
        "encode(CAST('abc' AS BYTEA), 'hex')",
        "initcap('ŉa ŉa')",
        "json_query('[1e15,1e15]', '$')",
        "json_value('1e15', '$')",
        "lower('İȺ')",
        "lpad('a', 9, 'ü')",
        "map(make_array('a', 'b'), make_array(1, 2))",
        "overlay('abc' PLACING 'defgh' FROM 2)",
        "generate_series(DATE '2024-01-01', DATE '2024-03-01', INTERVAL '1' MONTH)",
        "generate_series(TIMESTAMP '2024-01-01 00:00:00', TIMESTAMP '2024-01-02 00:00:00', \
         INTERVAL '1' HOUR)",
        "range(5, -5, -2)",
        "regexp_match('abcabc', '((((abc)abc)))')",
        "regexp_replace('abcabc', '(b)(c)', '[\\2\\1\\2]')",
        "regexp_replace('abc', '', 'xyz')",
        "repeat('abc', 5)",
        "replace('abcabc', 'b', 'xyz')",
        "replace('abc', '', 'xyz')",
        "string_to_array('a,b,,c', ',')",
        "string_to_array('abcdef', NULL)",
        "to_char(TIMESTAMP '2024-09-25 11:12:13', '%c%A%B')",
        "translate('abc', 'ab', 'üê')",
        "upper('ŉΐ')",
        "'abc' || 'de'",
    ];
    let calls = calls.map(|call| call.replace("LIST", list));
    let wrong = calls.map(|call| (estimated_and_made(&call), call)).into_iter();
    let wrong: Vec<_> = wrong.filter(|((stated, made), _)| *made == 0 || made > stated).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
}

/// Bytes of a call's result, as they are estimated, and as they are.
fn estimated_and_made(call: &str) -> (u64, u64) {
    let engine = Engine::new();
    let tokens =
        crate::text::syntax::split(&format!("SELECT {call}")).expect("it is SQL").swap_remove(0);
    let understood = engine.understand(&tokens, &Catalog::default()).expect("it is known");
    let expr = understood.plan.expressions().swap_remove(0).unalias();
    let Expr::ScalarFunction(call) = in_expression(expr).expect("it has a bound") else {
        panic!("{call} is no call")
    };
    let bounded = call.func.inner().downcast_ref::<Bounded>().expect("it has a bound");
    let one = RecordBatch::try_new_with_options(
        Arc::new(Schema::empty()),
        vec![],
        &RecordBatchOptions::new().with_row_count(Some(1)),
    );
    let one = one.expect("a row without columns");
    let value = |expr: &Expr| {
        let compiled = engine.state().create_physical_expr(expr.clone(), &DFSchema::empty());
        let array = compiled.and_then(|compiled| compiled.evaluate(&one)?.into_array(1));
        array.expect("it can be computed")
    };
    let args: Vec<Argument> = call
        .args
        .iter()
        .map(|arg| Argument::new(&ColumnarValue::Array(value(arg))).expect("an argument"))
        .collect();
    let estimate = bounded.growth.of_row(&args, 0);
    let made = value(&Expr::ScalarFunction(call));
    (estimate, bytes_of(made.as_ref(), 0, 1))
}
