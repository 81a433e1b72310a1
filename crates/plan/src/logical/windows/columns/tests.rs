use datafusion::logical_expr::LogicalPlan;

use super::*;
use crate::catalog::Catalog;
use crate::logical::engine::Engine;
use crate::text::syntax::split;

/// Streams `x`, `y` and `z` of windows, of which those of `z` are shorter, and sessions `s`.
const WINDOWS: &str = "WITH t AS (SELECT * FROM (VALUES (1, TIMESTAMP '2024-01-01 00:00:01'))
    AS v (k, ts)),
  x AS (SELECT * FROM TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '10' SECOND)),
  y AS (SELECT * FROM TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '10' SECOND)),
  z AS (SELECT * FROM TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '5' SECOND)),
  c AS (SELECT * FROM CUMULATE(TABLE t, DESCRIPTOR(ts), INTERVAL '5' SECOND, INTERVAL '10' SECOND)),
  s AS (SELECT * FROM SESSION(TABLE t PARTITION BY k, DESCRIPTOR(ts), INTERVAL '5' SECOND)) ";

/// The windows of a plan's rows.
fn of(plan: &LogicalPlan) -> RowWindows {
    let inputs: Vec<RowWindows> = plan.inputs().into_iter().map(of).collect();
    match (plan, &inputs[..]) {
        (LogicalPlan::TableScan(scan), _) => RowWindows::scanned(scan),
        (LogicalPlan::Projection(projection), [input]) => input.projected(projection),
        (LogicalPlan::SubqueryAlias(alias), [input]) => input.renamed(alias),
        (LogicalPlan::Aggregate(aggregate), [input]) => input.grouped(aggregate),
        (LogicalPlan::Join(join), [left, right]) => RowWindows::joined(join, left, right),
        (LogicalPlan::Union(union), parts) => RowWindows::united(union, &Vec::from_iter(parts)),
        (other, [input]) => match WindowAssign::of(other) {
            Some(assign) => input.clone().assigned(assign),
            None => input.clone(),
        },
        _ => RowWindows::default(),
    }
}

/// Each column of a query that is a bound: its name, the bound, the window's number; `?` where it
/// may be NULL, `!` where it tells a window from those that end at another time.
fn bounds(sql: &str) -> String {
    let tokens = split(&format!("{WINDOWS}{sql}")).expect("tokens").swap_remove(0);
    let engine = Engine::new();
    let understood = engine.understand(&tokens, &Catalog::default());
    let understood = understood.unwrap_or_else(|errors| panic!("{sql}: {errors:?}"));
    let plan = engine.optimize(&understood.plan).expect("a plan");
    let windows = of(&plan);
    let shown = plan.schema().columns().into_iter().filter_map(|column| {
        let of = windows.bound(&Expr::Column(column.clone()))?;
        let mark = match (of.is_total(), windows.tells(&of)) {
            (false, _) => "?",
            (true, true) => "!",
            (true, false) => "",
        };
        let bound = of.bound.column().trim_start_matches("window_");
        Some(format!("{}:{bound}{}{mark}", column.name, of.window))
    });
    shown.collect::<Vec<_>>().join(" ")
}

#[test]
fn bounds_stay_bounds_under_other_names_and_in_groups() {
    assert_eq!(bounds("SELECT k, window_end AS e, window_start AS s FROM x"), "e:end0! s:start0!");
    assert_eq!(bounds("SELECT window_end + INTERVAL '1' SECOND AS e FROM x"), "");
    assert_eq!(bounds("SELECT window_time AS t, count(*) FROM x GROUP BY window_time"), "t:time0!");
    assert_eq!(bounds("SELECT DISTINCT k, window_start AS b FROM c"), "b:start0");
    assert_eq!(bounds("SELECT window_start AS b, window_end AS e FROM s"), "b:start0 e:end0!");
    let sets =
        "SELECT window_end AS e, k FROM x GROUP BY GROUPING SETS ((window_end, k), (window_end))";
    assert_eq!(bounds(sets), "e:end0!");
}

#[test]
fn windows_of_both_sides_are_one_if_their_ends_are_equal() {
    let join = |kind: &str, of: &str, on: &str| {
        bounds(&format!(
            "SELECT x.window_start AS a, x.window_end AS b, {of}.window_start AS c,
               {of}.window_end AS d FROM x {kind} JOIN {of} ON {on}"
        ))
    };
    let ends = |of: &str| format!("x.window_end = {of}.window_end");
    assert_eq!(join("", "y", &ends("y")), "a:start0! b:end0! c:start0! d:end0!");
    assert_eq!(join("LEFT", "y", &ends("y")), "a:start0! b:end0! c:start0? d:end0?");
    assert_eq!(join("RIGHT", "y", &ends("y")), "a:start0? b:end0? c:start0! d:end0!");
    assert_eq!(join("FULL", "y", &ends("y")), "a:start0? b:end0? c:start0? d:end0?");
    // Windows of two lengths may end together, and begin apart.
    assert_eq!(join("", "z", &ends("z")), "a:start0! b:end0! d:end0!");
    assert_eq!(join("RIGHT", "z", &ends("z")), "b:end0? c:start0! d:end0!");
    assert_eq!(join("FULL", "z", &ends("z")), "b:end0? d:end0?");
    assert_eq!(join("", "y", "x.k = y.k"), "a:start0! b:end0! c:start1! d:end1!");
    assert_eq!(join("", "y", "x.window_start = y.window_start"), join("", "y", &ends("y")));
}

#[test]
fn the_bound_that_is_there_is_one_of_every_row() {
    let either = |kind: &str, first: &str, second: &str| {
        bounds(&format!(
            "SELECT coalesce({first}.window_end, {second}.window_end) AS e
             FROM x {kind} JOIN y ON x.window_end = y.window_end"
        ))
    };
    for kind in ["LEFT", "RIGHT", "FULL"] {
        assert_eq!(either(kind, "x", "y"), "e:end0!");
        assert_eq!(either(kind, "y", "x"), "e:end0!");
    }
    let three = |columns: &str| {
        bounds(&format!(
            "SELECT coalesce({columns}) AS e FROM x FULL JOIN y ON x.window_end = y.window_end
             FULL JOIN z ON coalesce(x.window_end, y.window_end) = z.window_end"
        ))
    };
    assert_eq!(three("z.window_end, x.window_end, y.window_end"), "e:end0!");
    assert_eq!(three("z.window_end, x.window_end"), "e:end0?");
    assert_eq!(three("x.window_end, y.window_end"), "e:end0?");
}

#[test]
fn parts_of_a_union_are_in_one_window_by_the_same_columns() {
    let union = |left: &str, right: &str| bounds(&format!("{left} UNION ALL {right}"));
    let x = "SELECT window_end AS e, window_start AS b, k FROM x";
    let of = |bounds: &str, table: &str| format!("SELECT {bounds}, k FROM {table}");
    assert_eq!(union(x, &of("window_end, window_start", "y")), "e:end0! b:start0!");
    assert_eq!(union(x, &of("window_end, window_start", "z")), "e:end0! b:start0");
    assert_eq!(union(x, &of("window_start, window_end", "y")), "");
}

#[test]
fn a_row_may_be_in_a_window_within_another() {
    let outer = ", v AS (SELECT ts, window_end AS h FROM x)";
    let within = "TUMBLE(TABLE v, DESCRIPTOR(ts), INTERVAL '1' SECOND)";
    let both = format!("{outer} SELECT h, window_start AS b FROM {within}");
    assert_eq!(bounds(&both), "h:end0! b:start1!");
}
