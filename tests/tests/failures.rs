//! The message of the command when a statement fails while it runs, on one node and on several.

use tests::command::{Dir, Outcome, run, run_sql};

/// Two files, so that each of two workers reads one; the second has a zero at its third line.
fn shares() -> Dir {
    let dir = Dir::new("failures");
    dir.write("shares-1.csv", "part,whole\n1,4\n2,5\n");
    dir.write("shares-2.csv", "part,whole\n1,4\n3,0\n5,2\n");
    dir
}

const TABLE: &str = "CREATE TABLE shares (part INT, whole INT) WITH (
  'connector' = 'file', 'path' = 'shares-*.csv');";

const LAYOUTS: [[&str; 4]; 3] = [
    ["--nodes", "1", "--workers", "1"],
    ["--nodes", "1", "--workers", "2"],
    ["--nodes", "2", "--workers", "1"],
];

#[track_caller]
fn says(outcome: Outcome, code: i32, parts: &[&str]) {
    let outcome = outcome.ended(code);
    for part in parts {
        assert!(outcome.err.contains(part), "{part:?} expected:\n{}", outcome.err);
    }
    assert_eq!(outcome.err.matches("error: ").count(), 1, "{}", outcome.err);
}

#[test]
fn a_row_at_fault_is_named_with_its_file_and_the_expression() {
    let dir = shares();
    let sql = format!("{TABLE}\n\nSELECT part, 100 *part/whole AS percent\nFROM shares;");
    let place = " --> q.sql:4:14\n  |\n4 | SELECT part, 100 *part/whole AS percent\n  \
                 |              ^^^^^^^^^^^^^^^\n";
    for layout in LAYOUTS {
        let parts = ["division by zero", place, "at shares-2.csv:3\n", "whole = 0"];
        says(run_sql(&dir, &sql, &layout), 1, &parts);
    }
}

#[test]
fn a_subquery_with_too_many_rows_is_underlined() {
    let dir = shares();
    let sql = format!("{TABLE}\n\nSELECT part, (SELECT whole FROM shares) AS whole\nFROM shares;");
    let place = " --> q.sql:4:14\n  |\n4 | SELECT part, (SELECT whole FROM shares) AS whole\n  \
                 |              ^^^^^^^\n";
    for layout in LAYOUTS {
        says(run_sql(&dir, &sql, &layout), 1, &["more than one row", place]);
    }
}

#[test]
fn a_group_at_fault_is_named_by_its_key() {
    let dir = shares();
    let sql = format!("{TABLE}\nSELECT whole, 8 / sum(part - 3) AS q FROM shares GROUP BY whole");
    let parts = ["division by zero", "q.sql:3:", "in 8 / sum(", "= 0"];
    for layout in LAYOUTS {
        says(run_sql(&dir, &sql, &layout), 1, &parts);
    }
}

#[test]
fn an_expression_behind_a_join_or_in_a_sort_is_named_with_its_row() {
    let dir = shares();
    for (select, parts) in [
        (
            "SELECT 7 % b.whole AS x FROM shares AS a, shares AS b ORDER BY x",
            ["division by zero", "in 7 % whole, where whole = 0"],
        ),
        (
            "SELECT sum(a.part / b.whole)
             FROM shares AS a FULL JOIN shares AS b ON a.part = b.part",
            ["division by zero", "in a.part / whole, where whole = 0"],
        ),
        (
            "SELECT part FROM shares ORDER BY CAST(whole || 'x' AS INT)",
            ["x' is no INT", "in CAST(whole || 'x' AS INT), where whole = "],
        ),
    ] {
        for layout in LAYOUTS {
            says(run_sql(&dir, &format!("{TABLE}\n{select}"), &layout), 1, &parts);
        }
    }
}

#[test]
fn of_several_statements_the_one_at_fault_is_named() {
    let dir = shares();
    let sql = format!(
        "{TABLE}
         CREATE TABLE a (n INT) WITH ('connector' = 'blackhole');
         CREATE TABLE b (n BIGINT) WITH ('connector' = 'blackhole');
         BEGIN STATEMENT SET;
         INSERT INTO a SELECT part FROM shares;
         INSERT INTO b
           SELECT 7 % whole FROM shares;
         END;"
    );
    for layout in LAYOUTS {
        says(
            run_sql(&dir, &sql, &layout),
            1,
            &["--> q.sql:8:19\n", "in 7 % whole, where whole = 0"],
        );
    }
}

#[test]
fn the_hint_of_a_connector_comes_from_every_node() {
    let dir = shares();
    dir.write("shares-2.csv", "part,whole\n1,4\n3,x\n5,2\n");
    let sql = TABLE.replace("'file',", "'file', 'on_bad' = 'fail',") + "\nSELECT * FROM shares;";
    for layout in LAYOUTS {
        let parts = ["shares-2.csv:3: ", "'x' is not a valid INT", "hint: with 'on_bad' = 'skip'"];
        says(run_sql(&dir, &sql, &layout), 1, &parts);
    }
}

#[test]
fn a_statement_of_the_shell_is_found_in_its_line() {
    let dir = shares();
    let sql = format!("{TABLE} SELECT 1 AS one; SELECT 7 % whole AS seven FROM shares;");
    let outcome = run(&dir, &["sql", "--workers", "1", "-c", &sql]).ended(1);
    assert_eq!(outcome.out, "one\n1\n");
    let line = outcome.err.lines().position(|line| line.contains("SELECT 7 % whole"));
    let (text, carets) = {
        let mut lines = outcome.err.lines().skip(line.expect("the line of the statement"));
        (lines.next().unwrap_or_default(), lines.next().unwrap_or_default())
    };
    let at = text.find("7 % whole").expect("the expression");
    assert_eq!(carets.find("^^^^^^^^^"), Some(at), "{}", outcome.err);
}

#[test]
fn rows_out_are_those_that_reach_the_sink() {
    let dir = shares();
    for select in ["SELECT part FROM shares ORDER BY part LIMIT 1", "SELECT count(*) FROM shares"] {
        let outcome = run_sql(&dir, &format!("{TABLE} {select}"), &["--workers", "2"]).ended(0);
        assert!(outcome.err.starts_with("5 rows in, 1 out in "), "{select}: {}", outcome.err);
    }
    let all = run_sql(&dir, &format!("{TABLE} SELECT part FROM shares"), &[]).ended(0);
    assert!(all.err.starts_with("5 rows in, 5 out in "), "{}", all.err);
}

/// A pipe gets all rows, and its reader may go away.
#[test]
fn a_pipe_gets_all_rows() {
    let dir = Dir::new("pipe");
    let sql = "CREATE TABLE n (n BIGINT) WITH (
        'connector' = 'generator', 'rows' = '10000', 'fields.n.kind' = 'sequence');
      CREATE TABLE shown (n BIGINT) WITH ('connector' = 'stdout');
      SELECT n FROM n; INSERT INTO shown SELECT n FROM n WHERE n < 2; SELECT n FROM n LIMIT 0;";
    let lines: Vec<String> = (0..10_000).map(|n| n.to_string()).collect();
    let whole = format!("n\n{}\n\nn\n0\n1\n\nn\n", lines.join("\n"));
    dir.write("q.sql", sql);
    for args in [&["run", "q.sql", "--workers", "1"][..], &["sql", "-f", "q.sql", "--workers", "1"]]
    {
        assert!(run(&dir, args).ended(0).out == whole, "{args:?}");
    }
    let table = run(&dir, &["run", "q.sql", "--format", "table"]).ended(0).out;
    assert!(table.contains("10000 rows (40 shown)"), "{table}");
}
