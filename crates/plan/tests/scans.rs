//! Columns that a table has beside its data are steps of its scan, and EXPLAIN names them.

use crate::support;

const TABLES: &str = "CREATE TABLE t (
    ts TIMESTAMP(3), price BIGINT, total AS price * 2, WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
  ) WITH ('connector' = 'memory')";

/// The steps of the only scan of a query, as EXPLAIN has them.
fn steps(sql: &str) -> String {
    let (mut planner, _) = support::planner(2);
    planner.plan(TABLES).expect("the table");
    let stage = match planner.plan(sql) {
        Ok(mut stages) => stages.remove(0),
        Err(errors) => {
            panic!("{}", errors.iter().map(|e| e.render("", sql, false)).collect::<String>())
        }
    };
    let [scan] = stage.job.inputs().collect::<Vec<_>>()[..] else { panic!("one scan: {sql}") };
    let described: Vec<String> = scan.steps.iter().map(|step| step.describe()).collect();
    let text = stage.explain.text();
    let lines = text.lines().map(|line| line.trim_start_matches([' ', '│']).trim_end());
    let shown = lines.filter_map(|line| line.strip_prefix("steps: ")).next();
    assert_eq!(shown.unwrap_or_default(), described.join(", "), "{text}");
    described.join(", ")
}

#[test]
fn columns_that_are_not_in_the_data_are_steps() {
    assert_eq!(steps("SELECT ts, price FROM t"), "");
    assert_eq!(steps("SELECT total FROM t"), "compute total");
    assert_eq!(steps("SELECT price, CURRENT_WATERMARK(ts) AS w FROM t"), "CURRENT_WATERMARK()");
    assert_eq!(steps("SELECT price, PROCTIME() AS p FROM t"), "PROCTIME()");
    let all = "SELECT total, CURRENT_WATERMARK(ts) AS w, PROCTIME() AS p FROM t";
    assert_eq!(steps(all), "compute total, CURRENT_WATERMARK(), PROCTIME()");
}

#[test]
fn side_outputs_are_steps_of_the_table_that_they_are_of() {
    assert_eq!(steps("SELECT price, watermark FROM t__late"), "late rows");
    assert_eq!(steps("SELECT total FROM t__late"), "compute total, late rows");
    assert_eq!(steps("SELECT reason FROM t__bad"), "bad rows");
}
