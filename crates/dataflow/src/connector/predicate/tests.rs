use arrow::array::{DictionaryArray, Float64Array, Int32Array, Int64Array, StringArray};
use arrow::datatypes::Field;

use super::*;

fn number(value: i64) -> ArrayRef {
    Arc::new(Int64Array::from(vec![value]))
}

fn double(value: f64) -> ArrayRef {
    Arc::new(Float64Array::from(vec![value]))
}

fn text(value: &str) -> ArrayRef {
    Arc::new(StringArray::from(vec![value]))
}

fn end(value: ArrayRef, inclusive: bool) -> Option<RangeEnd> {
    Some(RangeEnd { value, inclusive })
}

fn between(least: ArrayRef, greatest: ArrayRef) -> ColumnSummary {
    let (least, greatest) = (Some(least), Some(greatest));
    ColumnSummary { least, greatest, nulls: Some(0), rows: Some(10), members: None }
}

fn range(from: Option<RangeEnd>, to: Option<RangeEnd>) -> ColumnPredicate {
    ColumnPredicate::Range(ColumnRange { column: 0, from, to })
}

fn may(predicate: &ColumnPredicate, summary: &ColumnSummary) -> bool {
    predicate.may_match(&|_| summary.clone())
}

fn rows(predicate: &ColumnPredicate, column: &ArrayRef) -> Vec<bool> {
    let matches = predicate.matches(&|_| column.clone(), column.len()).unwrap();
    matches.iter().collect()
}

#[test]
fn ranges_are_held_against_the_least_and_the_greatest_value() {
    let known = between(number(10), number(20));
    assert!(!may(&range(end(number(20), false), None), &known));
    assert!(may(&range(end(number(20), true), None), &known));
    assert!(!may(&range(None, end(number(10), false)), &known));
    assert!(may(&range(None, end(number(10), true)), &known));
    assert!(!may(&ColumnPredicate::Range(ColumnRange::equal(0, number(9))), &known));
    assert!(may(&ColumnPredicate::Range(ColumnRange::equal(0, number(15))), &known));
    // Without statistics, or with those of another type, nothing is left out.
    assert!(may(&range(end(number(20), false), None), &ColumnSummary::default()));
    let int = |value| Arc::new(Int32Array::from(vec![value])) as ArrayRef;
    assert!(may(&range(end(number(20), false), None), &between(int(1), int(2))));
}

#[test]
fn nulls_match_nothing_but_is_null() {
    let all_null =
        ColumnSummary { nulls: Some(10), rows: Some(10), ..between(number(1), number(1)) };
    let some_null = ColumnSummary { nulls: Some(3), ..between(number(1), number(1)) };
    let one = ColumnPredicate::Range(ColumnRange::equal(0, number(1)));
    assert!(!may(&one, &all_null) && may(&one, &some_null));
    assert!(
        may(&ColumnPredicate::Null(0), &all_null) && may(&ColumnPredicate::Null(0), &some_null)
    );
    assert!(
        !may(&ColumnPredicate::NotNull(0), &all_null)
            && may(&ColumnPredicate::NotNull(0), &some_null)
    );
    assert!(!may(&ColumnPredicate::Null(0), &between(number(1), number(1))));
    assert!(may(&ColumnPredicate::Null(0), &ColumnSummary::default()));
    let column: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None, Some(2)]));
    assert_eq!(rows(&one, &column), [true, false, false]);
    assert_eq!(rows(&ColumnPredicate::Null(0), &column), [false, true, false]);
}

#[test]
fn nan_may_be_in_any_range_but_one_with_two_ends() {
    let known = between(double(1.0), double(2.0));
    assert!(may(&range(end(double(5.0), true), None), &known), "NaN is greater");
    assert!(may(&range(None, end(double(0.0), true)), &known), "NaN may have a sign");
    assert!(!may(&range(end(double(5.0), true), end(double(6.0), true)), &known));
    assert!(may(&range(end(double(5.0), true), end(double(f64::NAN), true)), &known));
    assert!(may(
        &range(end(double(5.0), true), end(double(6.0), true)),
        &ColumnSummary { greatest: Some(double(f64::NAN)), ..known }
    ));
    // The statistics may have either zero.
    let zero = ColumnPredicate::Range(ColumnRange::equal(0, double(-0.0)));
    assert!(may(&zero, &between(double(0.0), double(1.0))));
    // Rows are compared as the filter compares them: NaN is above all numbers, whatever its sign.
    let column: ArrayRef = Arc::new(Float64Array::from(vec![f64::NAN, -f64::NAN, 5.0]));
    assert_eq!(rows(&range(end(double(5.0), true), None), &column), [true, true, true]);
    assert_eq!(rows(&range(None, end(double(5.0), true)), &column), [false, false, true]);
}

#[test]
fn texts_are_found_by_their_beginning_though_statistics_are_cut() {
    let prefix = |prefix: &str| ColumnPredicate::Prefix { column: 0, prefix: prefix.into() };
    let known = between(text("bb"), text("dd"));
    for (begins, kept) in
        [("a", false), ("b", true), ("ba", false), ("bb", true), ("bbz", true), ("c", true)]
    {
        assert_eq!(may(&prefix(begins), &known), kept, "{begins}");
    }
    for (begins, kept) in [("d", true), ("dd", true), ("dda", false), ("de", false), ("", true)] {
        assert_eq!(may(&prefix(begins), &known), kept, "{begins}");
    }
    let column: ArrayRef = Arc::new(StringArray::from(vec![Some("bbx"), None, Some("b")]));
    assert_eq!(rows(&prefix("bb"), &column), [true, false, false]);
}

#[test]
fn a_list_is_searched_however_long_it_is() {
    for length in [2, 40] {
        let values: ArrayRef =
            Arc::new((0..length).map(|at| Some(at * 10)).collect::<Int64Array>());
        let list = ColumnPredicate::In { column: 0, values: in_order(&values).unwrap() };
        assert!(may(&list, &between(number(5), number(10))));
        assert!(!may(&list, &between(number(3), number(7))));
        let column: ArrayRef = Arc::new(Int64Array::from(vec![Some(10), Some(11), None, Some(0)]));
        assert_eq!(rows(&list, &column), [true, false, false, true]);
    }
    let values: ArrayRef = Arc::new(Int64Array::from(vec![Some(3), None, Some(1), Some(3)]));
    assert_eq!(in_order(&values).unwrap().as_ref(), &Int64Array::from(vec![1, 3]) as &dyn Array);
    assert!(in_order(&double(1.0)).is_none());
}

#[test]
fn a_part_over_a_column_without_a_place_counts_as_true() {
    let of = |column| ColumnPredicate::NotNull(column);
    let only_0 = |column: usize| (column == 0).then_some(7);
    let all = ColumnPredicate::All(vec![of(0), of(1)]).over(&only_0).unwrap();
    assert_eq!(all.columns().into_iter().collect::<Vec<_>>(), [7]);
    assert!(ColumnPredicate::Any(vec![of(0), of(1)]).over(&only_0).is_none());
    assert!(ColumnPredicate::All(vec![of(1)]).over(&only_0).is_none());
}

#[test]
fn a_predicate_is_shown_as_sql() {
    let schema = Schema::new(vec![
        Field::new("n", DataType::Int64, true),
        Field::new("s", DataType::Utf8, true),
    ]);
    let values: ArrayRef = Arc::new(StringArray::from(vec!["a", "b"]));
    let predicate = ColumnPredicate::All(vec![
        range(end(number(1), true), end(number(5), false)),
        ColumnPredicate::Any(vec![
            ColumnPredicate::In { column: 1, values },
            ColumnPredicate::Prefix { column: 1, prefix: "x".into() },
            ColumnPredicate::Null(1),
        ]),
    ]);
    let shown = "n >= 1 AND n < 5 AND (s IN ('a', 'b') OR s LIKE 'x%' OR s IS NULL)";
    assert_eq!(predicate.describe(&schema), shown);
}

#[test]
fn filters_of_several_builds_apply_together() {
    let numbers = |of: Vec<i64>| Arc::new(Int64Array::from(of)) as ArrayRef;
    let texts = |of: Vec<&str>| Arc::new(StringArray::from(of)) as ArrayRef;
    let filters = JoinFilters::default();
    assert!(filters.predicate().is_none());
    for (column, keys) in [(0, numbers(vec![1, 2])), (1, texts(vec!["a", "b"]))] {
        filters.add(column, Arc::new(JoinFilter::new(&[keys]).unwrap().unwrap()));
    }
    let columns = [numbers(vec![1, 2, 3]), texts(vec!["b", "c", "a"])];
    let predicate = filters.predicate().unwrap();
    let matches = predicate.matches(&|column| columns[column].clone(), 3).unwrap();
    assert_eq!(matches.iter().collect::<Vec<_>>(), [true, false, false]);
    assert!(!predicate.may_match(&|_| between(number(3), number(9))));
    let empty = JoinFilter::new(&[numbers(vec![])]).unwrap().unwrap();
    let none = ColumnPredicate::Member { column: 0, filter: Arc::new(empty) };
    assert!(!none.may_match(&|_| ColumnSummary::default()));
}

#[test]
fn a_dictionary_matches_as_its_rows_do() {
    let values: ArrayRef = Arc::new(StringArray::from(vec![Some("b"), None, Some("a"), Some("c")]));
    let keys = Int32Array::from(vec![Some(0), Some(1), None, Some(2), Some(2), Some(3), Some(0)]);
    let dictionary: ArrayRef = Arc::new(DictionaryArray::new(keys, values));
    let texts = |of: Vec<&str>| Arc::new(StringArray::from(of)) as ArrayRef;
    let list = |values| ColumnPredicate::In { column: 0, values };
    let build = Arc::new(JoinFilter::new(&[texts(vec!["c", "x"])]).unwrap().unwrap());
    let predicates = [
        ColumnPredicate::Range(ColumnRange::equal(0, text("a"))),
        ColumnPredicate::Range(ColumnRange::equal(0, text("z"))),
        range(end(text("a"), false), None),
        range(end(text("a"), true), end(text("b"), true)),
        list(texts(vec!["a", "c"])),
        list(texts(vec!["0", "1", "2", "a", "b"])),
        ColumnPredicate::Prefix { column: 0, prefix: "b".into() },
        ColumnPredicate::Member { column: 0, filter: build },
        ColumnPredicate::Null(0),
        ColumnPredicate::NotNull(0),
    ];
    // All rows, few rows of many values, no row, and rows without a value.
    let none: ArrayRef = Arc::new(DictionaryArray::new(
        Int32Array::from(vec![None, None]),
        Arc::new(StringArray::new_null(0)) as ArrayRef,
    ));
    let columns = [dictionary.clone(), dictionary.slice(1, 5), dictionary.slice(3, 2)];
    for column in columns.into_iter().chain([dictionary.slice(7, 0), none]) {
        let plain = cast(&column, &DataType::Utf8).unwrap();
        for predicate in &predicates {
            let shown = format!("{predicate:?} on {column:?}");
            assert_eq!(rows(predicate, &column), rows(predicate, &plain), "{shown}");
        }
    }
}
