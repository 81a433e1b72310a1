//! The command as a user meets it: arguments, standard output and error, exit codes.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// A directory that is removed at the end.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("millstream-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_millstream"));
    command.args(args).env_remove("MILLSTREAM_LOG").stdin(Stdio::null());
    command
}

fn run_in(dir: &Path, args: &[&str]) -> Output {
    command(args).current_dir(dir).output().unwrap()
}

/// Runs SQL given on standard input.
fn run_sql(sql: &str, args: &[&str]) -> Output {
    let mut child = command(&[&["run", "-"], args].concat())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(sql.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[track_caller]
fn assert_ends(output: &Output, code: i32) {
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "stdout:\n{out}\nstderr:\n{err}");
}

const NUMBERS: &str = "CREATE TABLE numbers (k BIGINT, v BIGINT) WITH (
    'connector' = 'file', 'path' = 'numbers.csv', 'format' = 'csv');\n";

/// Rows `k,v` with k of 0 to 2 and v of 0 to 999.
fn numbers() -> String {
    let mut csv = String::from("k,v\n");
    for v in 0..1000 {
        csv.push_str(&format!("{},{v}\n", v % 3));
    }
    csv
}

#[test]
fn rows_go_to_standard_output_and_the_rest_to_standard_error() {
    let output = run_sql("SELECT 1 + 1 AS two", &["--format", "csv"]);
    assert_ends(&output, 0);
    assert_eq!(text(&output.stdout), "two\n2\n");
    assert!(text(&output.stderr).contains("1 out in "), "{}", text(&output.stderr));
    let quiet = run_sql("SELECT 1 + 1 AS two", &["--format", "json", "--quiet"]);
    assert_eq!((text(&quiet.stdout), text(&quiet.stderr)), ("{\"two\":2}\n", ""));
}

#[test]
fn several_processes_give_the_same_rows() {
    let dir = Dir::new("same");
    dir.write("numbers.csv", &numbers());
    let sql = "SELECT k, count(*) AS n, sum(v) AS s FROM numbers GROUP BY k";
    dir.write("q.sql", &format!("{NUMBERS}{sql}"));
    let mut expected = vec!["0,334,166833", "1,333,166167", "2,333,166500"];
    expected.sort_unstable();
    for fabric in ["shm", "tcp"] {
        for (nodes, workers) in [("1", "1"), ("1", "3"), ("3", "1"), ("2", "2")] {
            let layout = ["--nodes", nodes, "--workers", workers, "--fabric", fabric];
            let args = [&["run", "q.sql", "--format", "csv"], &layout[..]].concat();
            let output = run_in(&dir.0, &args);
            assert_ends(&output, 0);
            let mut lines: Vec<_> = text(&output.stdout).lines().collect();
            assert_eq!(lines.remove(0), "k,n,s");
            lines.sort_unstable();
            assert_eq!(lines, expected, "{args:?}");
            let summary = text(&output.stderr);
            assert!(summary.starts_with("1,000 rows in, 3 out in "), "{summary}");
        }
    }
}

#[test]
fn a_typo_is_pointed_at_and_nothing_starts() {
    let output = run_sql("SELECT 1;\nSELEC 2;\n", &["--nodes", "2"]);
    assert_ends(&output, 2);
    assert_eq!(text(&output.stdout), "");
    let error = text(&output.stderr);
    assert!(error.starts_with("error: "), "{error}");
    assert!(error.contains("--> <stdin>:2:1"), "{error}");
    assert!(error.contains("did you mean 'SELECT'?"), "{error}");
    assert!(!error.contains('\x1b'), "no colours where there is no terminal: {error:?}");
}

#[test]
fn zero_nodes_are_refused_with_a_hint() {
    let output = run_sql("SELECT 1", &["--nodes", "0"]);
    assert_ends(&output, 2);
    let error = text(&output.stderr);
    assert!(error.contains("--nodes") && error.contains("leave --nodes out"), "{error}");
}

#[test]
fn a_missing_file_is_named() {
    let dir = Dir::new("missing");
    let output = run_in(&dir.0, &["run", "no.sql"]);
    assert_ends(&output, 2);
    let error = text(&output.stderr);
    assert!(error.starts_with("error: cannot read no.sql: No such file"), "{error}");
    assert!(error.contains("hint: paths are relative to the current directory"), "{error}");
    let latin = dir.0.join("latin.sql");
    std::fs::write(&latin, b"SELECT 1;\nSELECT '\xe9'").unwrap();
    let output = run_in(&dir.0, &["run", "latin.sql"]);
    assert_ends(&output, 2);
    assert!(text(&output.stderr).starts_with("error: latin.sql:2 is not UTF-8"));
}

#[test]
fn an_unknown_setting_is_refused() {
    let output = run_sql("SELECT 1", &["--set", "millstream.exchang=merge"]);
    assert_ends(&output, 2);
    let error = text(&output.stderr);
    assert!(error.contains("millstream.exchange"), "{error}");
}

#[test]
fn a_port_in_use_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap().to_string();
    let output = run_sql("SELECT 1", &["--nodes", "2", "--listen", &addr]);
    assert_ends(&output, 1);
    let error = text(&output.stderr);
    assert!(error.starts_with(&format!("error: cannot listen on {addr}: ")), "{error}");
    assert!(error.contains("hint: choose another port with --listen"), "{error}");
    assert_eq!(error.matches("error").count(), 1, "{error}");
}

#[test]
fn a_dry_run_shows_memory_and_writes_nothing() {
    let dir = Dir::new("dry");
    dir.write("numbers.csv", &numbers());
    dir.write("q.sql", &format!("{NUMBERS}SELECT k, count(*) FROM numbers GROUP BY k"));
    let args = ["run", "q.sql", "--dry-run", "--nodes", "3", "--workers", "1"];
    let output = run_in(&dir.0, &[&args[..], &["--output", "rows.csv"]].concat());
    assert_ends(&output, 0);
    let shown = text(&output.stdout);
    let first =
        "3 nodes with 1 worker each, shm (and verbs or tcp from machine to machine) between";
    assert!(shown.starts_with(first), "{shown}");
    let rings: Vec<_> =
        shown.lines().find(|line| line.starts_with("rings")).unwrap().split_whitespace().collect();
    assert_eq!(rings[..5], ["rings", "2", "MiB", "6", "MiB"]);
    assert_eq!(dir.names(), ["numbers.csv", "q.sql"]);
}

#[test]
fn explain_shows_the_exchange() {
    let dir = Dir::new("explain");
    dir.write("numbers.csv", &numbers());
    dir.write("q.sql", &format!("{NUMBERS}SELECT k, count(*) FROM numbers GROUP BY k"));
    let layout = ["--nodes", "2", "--workers", "1"];
    let shuffle = ["--set", "millstream.exchange=shuffle"];
    let output = run_in(&dir.0, &[&["explain", "q.sql"], &layout[..], &shuffle[..]].concat());
    assert_ends(&output, 0);
    assert!(text(&output.stdout).contains("└─ shuffle(k): SET "), "{}", text(&output.stdout));
}

#[test]
fn a_plan_is_shown_to_programs_too() {
    let dir = Dir::new("formats");
    dir.write("numbers.csv", &numbers());
    dir.write("q.sql", &format!("{NUMBERS}SELECT k, count(*) AS n FROM numbers GROUP BY k"));
    let explain = |format: &str| {
        let layout = ["--nodes", "2", "--workers", "1", "--format", format];
        let output = run_in(&dir.0, &[&["explain", "q.sql"][..], &layout].concat());
        assert_ends(&output, 0);
        text(&output.stdout).to_owned()
    };
    let json: Value = serde_json::from_str(&explain("json")).expect("an object");
    assert_eq!((&json["nodes"], &json["workers_per_node"]), (&json!(2), &json!(1)));
    assert_eq!(json["statements"], json!([{ "name": "SELECT", "orders": [], "sinks": [2] }]));
    let operators = json["operators"].as_array().expect("operators");
    let names: Vec<_> = operators.iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["FusedScan", "Aggregate", "Sink"]);
    let aggregate = &operators[1];
    assert_eq!(aggregate["properties"]["group by"], json!(["k BIGINT"]));
    assert_eq!(aggregate["columns"], json!(["k", "count(*)"]));
    let edge = &aggregate["inputs"][0];
    assert_eq!((&edge["from"], &edge["exchange"]), (&json!(0), &json!("merge")));
    assert_eq!((&edge["keys"], &edge["columns"]), (&json!(["k"]), &json!(["k"])));
    assert_eq!(edge["reason"]["by"], "planner");
    assert!(json["memory"][0]["bytes_per_worker"].is_u64(), "{json}");
    let aggregate_and_edge = [("field of `operators[]`", aggregate), ("field of `inputs[]`", edge)];
    for (table, object) in [("field", &json)].into_iter().chain(aggregate_and_edge) {
        let fields = object.as_object().expect("an object").keys().cloned();
        // A plan that has run has the field `ran`, and one that was asked for it has `recovery`.
        let others = ["ran", "recovery"];
        let documented = documented(table).into_iter();
        let documented = documented.filter(|field| !others.contains(&field.as_str()));
        assert_eq!(fields.collect::<BTreeSet<_>>(), documented.collect(), "{table}");
    }
    let edge = &operators[2]["inputs"][0];
    assert_eq!((&edge["from"], &edge["exchange"]), (&json!(1), &json!("gather")));
    assert_eq!(edge["steps"][0], json!({ "name": "Project", "text": "k, count(*)" }));
    let (nodes, edges) = graph(&explain("dot"));
    assert!(nodes["o0"].starts_with("FusedScan numbers (file) [0]\n"), "{nodes:?}");
    assert_eq!(nodes.len(), 3);
    let ends: Vec<_> = edges.iter().map(|(from, to, _)| (from.as_str(), to.as_str())).collect();
    assert_eq!(ends, [("o0", "o1"), ("o1", "o2")]);
    assert!(edges[0].2.starts_with("merge(k): "), "{edges:?}");
}

/// The fields that the page of the command documents in the table of that title.
fn documented(table: &str) -> BTreeSet<String> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/cli.md");
    let page = std::fs::read_to_string(page).expect("the page");
    let title = format!("| {table} | meaning |");
    let lines = page.lines().skip_while(|line| *line != title).skip(2);
    let rows = lines.take_while(|line| line.starts_with("| `"));
    let cells = rows.filter_map(|row| row.split(" | ").next()).flat_map(|cell| cell.split('`'));
    let names = cells.map(|name| name.trim_end_matches("[]"));
    names.filter(|name| name.starts_with(char::is_alphabetic)).map(str::to_owned).collect()
}

/// An edge of a graph: the nodes that it joins, and its label.
type LabelledEdge = (String, String, String);

/// The labels of a graph's nodes, and its edges with theirs; panics where Graphviz would refuse it.
fn graph(dot: &str) -> (BTreeMap<String, String>, Vec<LabelledEdge>) {
    let body = dot.strip_prefix("digraph job {\n").and_then(|dot| dot.strip_suffix("}\n"));
    let (mut nodes, mut edges) = (BTreeMap::new(), vec![]);
    for line in body.expect("a digraph").lines() {
        let line = line.trim().strip_suffix(';').expect("the end of a statement");
        let Some((name, label)) = line.split_once(" [label=") else {
            assert!(["rankdir=BT", "node [shape=box]"].contains(&line), "{line}");
            continue;
        };
        let label = label.strip_suffix("\"]").and_then(|label| label.strip_prefix('"'));
        let mut chars = label.expect("a quoted label").chars();
        let mut text = String::new();
        while let Some(char) = chars.next() {
            assert_ne!(char, '"', "it ends the string: {line}");
            text.push(match char {
                '\\' => match chars.next() {
                    Some('n') => '\n',
                    Some(escaped @ ('"' | '\\')) => escaped,
                    other => panic!("{other:?} is no escape: {line}"),
                },
                char => char,
            });
        }
        match name.split_once(" -> ") {
            Some((from, to)) => edges.push((from.to_owned(), to.to_owned(), text)),
            None => drop(nodes.insert(name.to_owned(), text)),
        }
    }
    let known = |name: &String| assert!(nodes.contains_key(name), "{name} is no node");
    edges.iter().for_each(|(from, to, _)| [from, to].into_iter().for_each(known));
    (nodes, edges)
}

/// A table of a million rows.
const MILLION: &str = "CREATE TABLE t (n BIGINT, ts TIMESTAMP(3), WATERMARK FOR ts AS ts) WITH (
    'connector' = 'generator', 'rows' = '1000000', 'fields.n.kind' = 'sequence');\n";

/// The output of EXPLAIN ANALYZE of a query over it.
fn analyzed(settings: &str, query: &str) -> String {
    let layout = ["--nodes", "1", "--workers", "2", "--format", "csv"];
    let output = run_sql(&format!("{MILLION}{settings}EXPLAIN ANALYZE {query}"), &layout);
    assert_ends(&output, 0);
    text(&output.stdout).to_owned()
}

#[test]
fn the_other_exchange_is_proposed_if_it_would_have_been_much_cheaper() {
    let all = "SELECT n, count(*) AS c FROM t GROUP BY n";
    let few = "SELECT n % 100 AS k, count(*) AS c FROM t GROUP BY n % 100";
    let windows = "SELECT window_start, count(*) AS c FROM TUMBLE(TABLE t, DESCRIPTOR(ts),
        INTERVAL '1' SECOND) GROUP BY window_start, window_end";
    let proposes = |exchange: &str, query: &str| {
        let shown = analyzed(&format!("SET millstream.exchange = '{exchange}';"), query);
        assert!(shown.contains(" rows of a group meet in a delta"), "{shown}");
        let other = if exchange == "merge" { "shuffle" } else { "merge" };
        let proposed =
            format!("{other} is likely to be cheaper: SET millstream.exchange = '{other}'");
        shown.contains(&proposed)
    };
    assert!(proposes("merge", all), "no two rows of a group");
    assert!(!proposes("shuffle", all));
    assert!(proposes("shuffle", few), "ten thousand rows of each");
    assert!(!proposes("merge", few));
    assert!(proposes("shuffle", windows), "windows of many rows");
    assert!(!proposes("merge", windows));
    let json = run_sql(
        &format!(
            "{MILLION}SET millstream.exchange = 'shuffle';EXPLAIN (ANALYZE, FORMAT JSON) {few}"
        ),
        &["--nodes", "1", "--workers", "2", "--format", "csv"],
    );
    let json = text(&json.stdout).replace("\"\"", "\"");
    for part in ["\"shuffles\": [", "\"cheaper\": \"merge\"", "\"groups\": 100"] {
        assert!(json.contains(part), "{part}: {json}");
    }
}

#[test]
fn a_key_mode_that_is_forced_is_told_and_so_is_one_that_does_not_fit() {
    let by = |mode: &str, key: &str| {
        let query = format!("SELECT {key} AS k, count(*) AS c FROM t GROUP BY {key}");
        analyzed(&format!("SET millstream.key_mode = '{mode}';"), &query)
    };
    let has = |shown: &str, line: &str| assert!(shown.contains(line), "{line}: {shown}");
    let shown = by("packed", "n % 100");
    has(&shown, "key mode: packed: SET millstream.key_mode\n");
    has(&shown, "Aggregate: groups by packed\n");
    assert!(!shown.contains("never"), "{shown}");
    let shown = by("array", "CAST(n % 100 AS STRING)");
    has(&shown, "any, for array needs one key of whole numbers, dates or times");
    has(&shown, "Aggregate: groups by wide\n");
    has(&shown, "never by array as SET millstream.key_mode asks, which needs one key of whole");
    let shown = by("tiny", "n % 100 * 1000");
    has(&shown, "tiny, which needs a range of at most 512: SET millstream.key_mode");
    has(
        &shown,
        "never by tiny as SET millstream.key_mode asks, which needs a range of at most 512",
    );
}

#[test]
fn a_plan_is_shown_with_what_the_workers_did() {
    let dir = Dir::new("analyze");
    dir.write("numbers.csv", &numbers());
    let query = "SELECT k, count(*) AS n FROM numbers GROUP BY k";
    dir.write("q.sql", &format!("{NUMBERS}EXPLAIN ANALYZE {query}"));
    let layout = ["--nodes", "2", "--workers", "1", "--format", "csv"];
    let output = run_in(&dir.0, &[&["run", "q.sql"][..], &layout].concat());
    assert_ends(&output, 0);
    let shown = text(&output.stdout);
    // The file is one flow: node 0 reads all of it.
    let cells = |line: &str| -> Vec<String> { line.split_whitespace().map(Into::into).collect() };
    let of = |worker: &str| {
        let line = shown.lines().map(|line| line.trim_matches(['"', ' ']));
        let line = line.into_iter().find(|line| line.starts_with(worker));
        cells(line.unwrap_or_else(|| panic!("{worker}: {shown}")))
    };
    assert_eq!(of("0 of node 0")[10], "1000", "{shown}");
    assert_eq!(of("1 of node 1")[10], "0", "{shown}");
    assert_eq!(of("skew")[1], "2.00:", "{shown}");
    assert!(shown.contains("1 Aggregate: groups by tiny\n"), "{shown}");
    let hashed = "SET millstream.key_mode = 'hash';";
    let json = format!("{NUMBERS}{hashed}EXPLAIN (ANALYZE, FORMAT JSON) {query}");
    dir.write("q.sql", &json);
    let output = run_in(&dir.0, &["run", "q.sql", "--format", "csv"]);
    assert_ends(&output, 0);
    for part in ["\"\"busy_seconds\"\": ", "\"\"skew\"\": ", "\"\"hash\"\""] {
        assert!(text(&output.stdout).contains(part), "{}", text(&output.stdout));
    }
}

#[test]
fn rows_of_frequent_keys_are_grouped_in_front_of_a_shuffle() {
    let dir = Dir::new("frequent");
    let ask = |kind: &str, choice: &str, explain: &str| {
        let script = format!(
            "CREATE TABLE t (k BIGINT) WITH ('connector' = 'generator', 'rows' = '1000000',
               'fields.k.kind' = '{kind}', 'fields.k.max' = '999999');
             SET millstream.exchange = 'shuffle'; SET millstream.frequent_keys = '{choice}';
             {explain} SELECT count(*), sum(n), sum(k * n), max(n)
             FROM (SELECT k, count(*) AS n FROM t GROUP BY k)"
        );
        dir.write("q.sql", &script);
        let layout = ["--nodes", "2", "--workers", "1", "--format", "csv"];
        let output = run_in(&dir.0, &[&["run", "q.sql"][..], &layout].concat());
        assert_ends(&output, 0);
        text(&output.stdout).to_owned()
    };
    assert_eq!(ask("zipf", "auto", ""), ask("zipf", "off", ""));
    for (kind, choice, expected) in
        [("zipf", "auto", true), ("zipf", "off", false), ("uniform", "auto", false)]
    {
        let shown = ask(kind, choice, "EXPLAIN ANALYZE");
        let reported = shown.contains(" rows of frequent keys grouped where they were read, ");
        assert_eq!(reported, expected, "{kind}, {choice}: {shown}");
    }
}

#[test]
fn output_appears_under_its_name_when_all_is_well() {
    let dir = Dir::new("output");
    dir.write("q.sql", "SELECT 7 AS seven");
    let to = ["--format", "csv", "--output", "rows.csv"];
    let output = run_in(&dir.0, &[&["run", "q.sql"], &to[..]].concat());
    assert_ends(&output, 0);
    assert_eq!(text(&output.stdout), "");
    assert_eq!(std::fs::read_to_string(dir.0.join("rows.csv")).unwrap(), "seven\n7\n");
    dir.write("bad.sql", "SELECT 7 AS");
    let output = run_in(&dir.0, &[&["run", "bad.sql"], &to[..2], &["--output", "no.csv"]].concat());
    assert_ends(&output, 2);
    assert_eq!(dir.names(), ["bad.sql", "q.sql", "rows.csv"]);
    let output = run_in(&dir.0, &["run", "q.sql", "--output", "no/rows.csv"]);
    assert_ends(&output, 1);
    assert!(text(&output.stderr).contains("there is no directory"));
}

#[test]
fn broken_lines_are_counted_and_shown() {
    let dir = Dir::new("broken");
    let mut csv = numbers();
    csv.push_str("0,many\nx,1\n");
    dir.write("numbers.csv", &csv);
    dir.write("q.sql", &format!("{NUMBERS}SELECT count(*) AS n FROM numbers"));
    let args = ["run", "q.sql", "--format", "csv", "--nodes", "2", "--workers", "1"];
    let output = run_in(&dir.0, &args);
    assert_ends(&output, 0);
    assert_eq!(text(&output.stdout), "n\n1000\n");
    let summary = text(&output.stderr);
    assert!(summary.contains("2 rows could not be read"), "{summary}");
    assert!(summary.contains("numbers.csv:1002"), "{summary}");
    assert!(summary.contains("numbers.csv:1003"), "{summary}");
}

#[test]
fn an_input_of_broken_lines_alone_is_told_even_in_quiet() {
    let dir = Dir::new("nothing");
    dir.write("numbers.csv", "k,v\n0,many\nx,1\n");
    dir.write("q.sql", &format!("{NUMBERS}SELECT count(*) AS n FROM numbers"));
    let output = run_in(&dir.0, &["run", "q.sql", "--format", "csv", "--quiet"]);
    assert_ends(&output, 0);
    assert_eq!(text(&output.stdout), "n\n0\n");
    let expected = "warning: none of 2 rows of the input could be read\n";
    assert_eq!(text(&output.stderr), expected);
}

#[test]
fn now_is_the_same_instant_on_all_nodes() {
    let dir = Dir::new("now");
    dir.write("numbers.csv", &numbers());
    dir.write("q.sql", &format!("{NUMBERS}SELECT v, now() AS t FROM numbers"));
    let args = ["run", "q.sql", "--format", "csv", "--nodes", "3", "--workers", "1"];
    let output = run_in(&dir.0, &args);
    assert_ends(&output, 0);
    let rows = text(&output.stdout).lines().skip(1).filter_map(|line| line.split_once(','));
    let (rows, instants): (Vec<_>, HashSet<_>) = rows.unzip();
    assert_eq!((rows.len(), instants.len()), (1000, 1), "{instants:?}");
}

#[test]
fn help_and_version_name_the_program() {
    for (args, word) in [
        (&["--help"][..], "Examples:"),
        (&["run", "--help"], "Exit codes:"),
        (&["explain", "--help"], "Examples:"),
        (&["--version"], env!("CARGO_PKG_VERSION")),
    ] {
        let output = command(args).output().unwrap();
        assert_ends(&output, 0);
        assert!(text(&output.stdout).contains(word), "{args:?}");
    }
    assert_ends(&command(&["frobnicate"]).output().unwrap(), 2);
}

#[test]
fn what_is_piped_in_is_a_table_for_every_worker() {
    let dir = Dir::new("piped");
    let sql = "CREATE TABLE names (k BIGINT, name STRING)
        WITH ('connector' = 'stdin', 'format' = 'csv');
        CREATE TABLE numbers (ts TIMESTAMP(3), k BIGINT, WATERMARK FOR ts AS ts) WITH (
        'connector' = 'generator', 'rows' = '1000', 'fields.k.kind' = 'sequence');
        SELECT k, name FROM numbers JOIN names USING (k)";
    dir.write("names.sql", sql);
    for layout in [["--nodes", "1", "--workers", "3"], ["--nodes", "2", "--workers", "2"]] {
        let args = [&["run", "names.sql", "--format", "csv", "--quiet"][..], &layout].concat();
        let mut child = command(&args)
            .current_dir(&dir.0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(b"k,name\n7,seven\n900,many\n").unwrap();
        let output = child.wait_with_output().unwrap();
        assert_ends(&output, 0);
        let mut rows: Vec<&str> = text(&output.stdout).lines().skip(1).collect();
        rows.sort_unstable();
        assert_eq!(rows, ["7,seven", "900,many"], "{layout:?}");
    }
}

const ENDLESS: &str = "CREATE TABLE endless (k BIGINT) WITH (
    'connector' = 'generator', 'rate' = '1000');
    SELECT k FROM endless";

/// Starts a query without end, and waits for its first row.
fn endless(args: &[&str]) -> (Child, BufReader<ChildStdout>) {
    begun(ENDLESS, args)
}

fn begun(sql: &str, args: &[&str]) -> (Child, BufReader<ChildStdout>) {
    let mut child = command(&[&["run", "-", "--format", "csv"], args].concat())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(sql.as_bytes()).unwrap();
    let mut rows = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    for _ in 0..2 {
        line.clear();
        rows.read_line(&mut line).unwrap();
    }
    line.trim().parse::<i64>().unwrap_or_else(|error| panic!("{line:?}: {error}"));
    (child, rows)
}

fn interrupt(child: &Child) {
    kill_process(Pid::from_child(child), Signal::INT).unwrap();
}

#[test]
fn ctrl_c_ends_a_query_without_end() {
    for layout in [["--nodes", "1"], ["--nodes", "2"]] {
        let (child, mut rows) = endless(&[&layout[..], &["--workers", "1"]].concat());
        interrupt(&child);
        let mut rest = String::new();
        rows.read_to_string(&mut rest).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_ends(&output, 130);
        let summary = text(&output.stderr);
        assert!(summary.contains("; ended early, as asked"), "{summary}");
        assert!(rest.is_empty() || rest.ends_with('\n'), "the last row is whole");
    }
}

/// A query that waits for a writer of its pipe holds no worker: it ends in good order.
#[test]
fn ctrl_c_ends_a_query_whose_pipe_nobody_writes() {
    let dir = Dir::new("unwritten");
    let path = dir.0.join("pipe");
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    let pipe = "CREATE TABLE pipe (n BIGINT) WITH (
        'connector' = 'file', 'path' = 'pipe', 'format' = 'csv');";
    dir.write("q.sql", &format!("{pipe} SELECT count(*) FROM pipe;"));
    let mut child = command(&["run", "q.sql"])
        .current_dir(&dir.0)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Opened when the query reads it, and never written to.
    let writer = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    interrupt(&child);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    drop(writer);
}

/// A query that waits for a reader of its pipe does not end in good order.
#[test]
fn a_second_ctrl_c_leaves_nothing_half_written() {
    let dir = Dir::new("twice");
    assert!(Command::new("mkfifo").arg(dir.0.join("pipe")).status().unwrap().success());
    let pipe = "CREATE TABLE pipe (n BIGINT) WITH (
        'connector' = 'file', 'path' = 'pipe', 'format' = 'csv');";
    dir.write("q.sql", &format!("{pipe} INSERT INTO pipe SELECT 1; SELECT 2;"));
    let args = ["run", "q.sql", "--workers", "1", "--output", "rows.csv"];
    let mut child = command(&args).current_dir(&dir.0).spawn().unwrap();
    let tasks = format!("/proc/{}/task", child.id());
    let listens = || {
        let tasks = std::fs::read_dir(&tasks).unwrap().flatten();
        let names = tasks.map(|task| std::fs::read_to_string(task.path().join("comm")));
        names.flatten().any(|name| name == "signals\n")
    };
    while !listens() {
        std::thread::yield_now();
    }
    let status = loop {
        interrupt(&child);
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
    };
    assert_eq!(status.code(), Some(130));
    assert_eq!(dir.names(), ["pipe", "q.sql"]);
}

#[test]
fn one_signal_ends_a_job_whose_reader_takes_nothing() {
    const FAST: &str = "CREATE TABLE endless (k BIGINT) WITH ('connector' = 'generator');
        SELECT k FROM endless";
    for signal in [Signal::INT, Signal::TERM] {
        let (mut child, rows) = begun(FAST, &["--workers", "1"]);
        // Until its pipe has no room: the job waits for its reader, or will in a moment.
        let pipe = format!("/proc/{}/fd/1", child.id());
        let pipe = std::fs::OpenOptions::new().write(true).open(pipe).unwrap();
        let now = Timespec::default();
        while poll(&mut [PollFd::new(&pipe, PollFlags::OUT)], Some(&now)).unwrap() > 0 {
            assert!(child.try_wait().unwrap().is_none(), "the job has ended");
            std::thread::yield_now();
        }
        kill_process(Pid::from_child(&child), signal).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(130));
        drop(rows);
    }
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let (child, rows) = endless(&["--workers", "1"]);
    drop(rows);
    let output = child.wait_with_output().unwrap();
    assert_ends(&output, 0);
    assert!(!text(&output.stderr).contains("error"), "{}", text(&output.stderr));
}

#[test]
fn a_killed_node_ends_the_job_with_one_error() {
    let (child, mut rows) = endless(&["--nodes", "3", "--workers", "1"]);
    let children = format!("/proc/{0}/task", child.id());
    let mut nodes: Vec<i32> = std::fs::read_dir(children)
        .unwrap()
        .flat_map(|task| {
            let list = task.unwrap().path().join("children");
            let text = std::fs::read_to_string(list).unwrap();
            text.split_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<i32>>()
        })
        .collect();
    nodes.sort_unstable();
    assert_eq!(nodes.len(), 2);
    kill_process(Pid::from_raw(nodes[1]).unwrap(), Signal::KILL).unwrap();
    let mut rest = String::new();
    rows.read_to_string(&mut rest).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_ends(&output, 1);
    let error = text(&output.stderr);
    let named = format!("error: node 2 (process {}) was killed by signal 9\n", nodes[1]);
    assert!(error.starts_with(&named), "{error}");
    assert_eq!(error.matches("error").count(), 1, "{error}");
}

#[test]
fn a_ctrl_c_ends_the_shell_while_it_waits_for_a_script() {
    for args in [&["sql", "--workers", "1"][..], &["sql", "--workers", "1", "-f", "-"]] {
        let mut child = command(args).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        // More than a pipe holds: when all is written, the shell has begun to read.
        let line = format!("-- {}\n", "x".repeat(1 << 20));
        child.stdin.as_mut().unwrap().write_all(line.as_bytes()).unwrap();
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        // The pipe stays open, or the end of the script would end it.
        let pipe = child.stdin.take();
        assert!(!child.wait().unwrap().success(), "{args:?}");
        drop(pipe);
    }
}

#[test]
fn a_secret_is_resolved_by_the_connector_and_shown_nowhere() {
    let dir = Dir::new("secret");
    dir.write("token", "hush-of-a-file\n");
    dir.write("hush-of-the-environment.csv", "n\n1\n2\n");
    let table = |path: &str| {
        format!("CREATE TABLE t (n INT) WITH ('connector' = 'file', 'path' = '{path}');\n")
    };
    let run = |sql: &str, secret: Option<&str>, state: &[&str]| {
        dir.write("q.sql", sql);
        let mut run = command(&[&["run", "q.sql", "--format", "csv"], state].concat());
        run.env("MILLSTREAM_LOG", "debug").env_remove("HUSH").current_dir(&dir.0);
        secret.map(|secret| run.env("HUSH", secret));
        run.output().unwrap()
    };
    let hides = |output: &Output| {
        let shown = [text(&output.stdout), text(&output.stderr)].concat();
        assert!(!shown.contains("hush-of"), "{shown}");
        shown
    };

    // The rows come, whoever shows what is read.
    let query = table("${HUSH}.csv") + "EXPLAIN SELECT * FROM t; SELECT sum(n) AS n FROM t;";
    let output = run(&query, Some("hush-of-the-environment"), &[]);
    assert_ends(&output, 0);
    assert!(text(&output.stdout).ends_with("n\n3\n"), "{}", text(&output.stdout));
    hides(&output);

    // Errors name the place with a mask, when planned and when run.
    let missing = table("${file:token}.csv") + "SELECT * FROM t;";
    let output = run(&missing, None, &[]);
    assert_ends(&output, 2);
    assert!(hides(&output).contains("…"), "{}", text(&output.stderr));
    dir.write("hush-of-a-file.csv", "n\n1\nx\n");
    let failing = missing.replace(");\nSELECT", ", 'on_bad' = 'fail');\nSELECT");
    let output = run(&failing, None, &[]);
    assert_ends(&output, 1);
    assert!(hides(&output).contains("….csv"), "{}", text(&output.stderr));
    let output = run(&missing, None, &[]);
    assert_ends(&output, 0);
    assert!(hides(&output).contains("bad row ….csv"), "{}", text(&output.stderr));
    let divided = missing.replace("SELECT *", "SELECT 1 / (n - 1)");
    let output = run(&divided, None, &[]);
    assert_ends(&output, 1);
    assert!(hides(&output).contains("….csv"), "{}", text(&output.stderr));

    // The state does not have it.
    let stored = table("hush.csv").replace(");", ", 'csv.null' = '${file:token}');")
        + "CREATE TABLE o (n BIGINT) WITH ('connector' = 'file', 'path' = 'out/', 'format' = 'csv');
           INSERT INTO o SELECT sum(n) AS n FROM t;";
    dir.write("hush.csv", "n\n1\nhush-of-a-file\n3\n");
    let output = run(&stored, None, &["--state", "state"]);
    assert_ends(&output, 0);
    let found =
        Command::new("grep").args(["-rl", "INSERT INTO o"]).arg(dir.0.join("state")).output();
    assert_ne!(text(&found.unwrap().stdout), "");
    let found = Command::new("grep").args(["-rl", "hush-of"]).arg(dir.0.join("state")).output();
    assert_eq!(text(&found.unwrap().stdout), "");
}
