//! `millstream bench` as a user meets it: its output, and its errors.

use std::process::{Command, Output};

use serde_json::Value;

fn bench(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_millstream"));
    command.arg("bench").args(args).env_remove("MILLSTREAM_LOG").output().unwrap()
}

/// The JSON that it prints, line by line.
fn values(args: &[&str]) -> Vec<Value> {
    let output = bench(args);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{error}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn assert_refused(args: &[&str], code: i32, why: &str) {
    let output = bench(args);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{error}");
    assert!(error.contains(why) && output.stdout.is_empty(), "{error}");
}

#[test]
fn three_processes_have_figures_as_two_have() {
    for nodes in ["2", "3"] {
        let args =
            ["ysb", "--rows", "100000", "--runs", "1", "--nodes", nodes, "--against-one", "--json"];
        let found = values(&args);
        assert_eq!(found.len(), 2, "one worker, and all");
        for one in found {
            let share = one["share_of_bandwidth"]["median"].as_f64().unwrap();
            assert!(share > 0.0 && one["rows_per_s"]["median"].as_f64().unwrap() > 0.0, "{one}");
        }
    }
}

#[test]
fn two_processes_are_held_to_two_that_are_unrelated() {
    let args = "ro --rows 100000 --keys 1000 --runs 3 --nodes 2 --against-two --json";
    let found = values(&args.split(' ').collect::<Vec<_>>());
    let [unrelated, both] = &found[..] else { panic!("{found:?}") };
    assert_eq!((&unrelated["variant"], &both["variant"]), (&"unrelated".into(), &"auto".into()));
    assert_eq!(unrelated["rows"], both["rows"]);
    assert!(unrelated["share_of_unrelated"].is_null(), "{unrelated}");
    assert!(both["bars"].is_null(), "of fewer keys nothing is asked: {both}");
    let share = &both["share_of_unrelated"];
    let [least, median, greatest] =
        ["least", "median", "greatest"].map(|name| share[name].as_f64().unwrap());
    assert!(0.0 < least && least <= median && median <= greatest, "{share}");
}

#[test]
fn two_processes_are_held_to_one_worker_and_a_check_fails_where_they_are_slower() {
    // Whether so few rows are met or missed is the machine's; what follows of either is not.
    let args = "nb11 --rows 500 --runs 3 --nodes 2 --against-one";
    let args: Vec<&str> = args.split(' ').collect();
    let found = values(&[&args[..], &["--json"]].concat());
    let [alone, both] = &found[..] else { panic!("{found:?}") };
    assert!(alone["times_one_worker"].is_null() && alone["bars"].is_null(), "{alone}");
    let times = both["times_one_worker"]["median"].as_f64().unwrap();
    let [bar] = &both["bars"].as_array().unwrap()[..] else { panic!("{both}") };
    assert_eq!(bar["what"], "NB11: two processes against one worker");
    assert_eq!(bar["met"], times >= 1.6, "{both}");
    let output = bench(&[&args[..], &["--check"]].concat());
    let text = String::from_utf8_lossy(&output.stdout);
    let error = String::from_utf8_lossy(&output.stderr);
    let is_met = text.contains("  met: NB11: two processes against one worker ≥ 1.6 times, got ");
    let is_missed = text.contains("  NOT MET: NB11: two processes against one worker");
    assert!(is_met != is_missed && text.contains("times one worker"), "{text}");
    assert_eq!(output.status.code(), Some(i32::from(is_missed)), "{error}");
    assert_eq!(error.contains("1 targets are not met: NB11: two processes"), is_missed, "{error}");
}

#[test]
fn a_workload_has_the_size_of_its_paper() {
    let args = "cm --paper-size --rows 1e5 --runs 1 --json";
    let [cm] = &values(&args.split(' ').collect::<Vec<_>>())[..] else { panic!("one line") };
    assert_eq!((&cm["record_bytes"], &cm["rows"]), (&64.into(), &100_000.into()), "{cm}");
    let args = "ysb --keys 1000 --paper-size --rows 1e5 --runs 1 --json";
    let [ysb] = &values(&args.split(' ').collect::<Vec<_>>())[..] else { panic!("one line") };
    assert_eq!((&ysb["record_bytes"], &ysb["keys"]), (&78.into(), &1_000.into()), "{ysb}");
}

#[test]
fn what_is_foretold_is_held_to_runs() {
    let args = ["predict", "--rows", "1000000", "--runs", "1", "--nodes", "3", "--json"];
    let [report] = &values(&args)[..] else { panic!("one report") };
    assert_eq!(report["about"].as_array().unwrap().len(), 1, "every run came about: {report}");
    let sections = report["sections"].as_array().unwrap();
    let runs = sections.iter().find(|one| one["title"] == "Predicted and measured").unwrap();
    let bars = runs["bars"].as_array().unwrap();
    assert!(bars.iter().any(|bar| bar["met"].is_boolean()), "{runs}");
    let rows = runs["tables"][0]["rows"].as_array().unwrap();
    let count = |name: &str, nodes: &str| {
        rows.iter().filter(|row| row[0] == name && row[2] == nodes).count()
    };
    for nodes in ["2", "3"] {
        let counts = ["merge", "shuffle", "broadcast"].map(|name| count(name, nodes));
        assert_eq!(counts, [3, 3, 1], "by {nodes} processes: {runs}");
    }
}

#[test]
fn joins_over_memory_servers_are_run_checked_and_shown() {
    let directory = std::env::temp_dir().join(format!("millstream-istore-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let page = directory.join("istore.html");
    let args = ["paper", "istore", "--rows", "0.02", "--runs", "1", "--nodes", "2", "--out"];
    let output = bench(&[&args[..], &[page.to_str().unwrap()]].concat());
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{error}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("Pull against shuffle") && text.contains("simulated"), "{text}");
    let json = std::fs::read_to_string(page.with_extension("json")).unwrap();
    std::fs::remove_dir_all(&directory).unwrap();
    let report: Value = serde_json::from_str(&json).unwrap();
    let [joins, ahead, multicast, lists, star, skew, streams] =
        &report["sections"].as_array().unwrap()[..]
    else {
        panic!("{report}")
    };
    // Three joins on two processes, six numbers of requests ahead, five of receivers, two layouts,
    // three times the star schema, three numbers of readers, and two fabrics.
    let sections = [(joins, 3), (ahead, 6), (multicast, 5), (lists, 2)];
    for (section, rows) in sections.into_iter().chain([(star, 3), (skew, 3), (streams, 2)]) {
        let found = section["tables"][0]["rows"].as_array().unwrap();
        assert_eq!(found.len(), rows, "{section}");
        let text = section["text"].as_array().unwrap();
        let is_failure = |line: &Value| line.as_str().unwrap().starts_with("not measured");
        assert!(!text.iter().any(is_failure), "nothing failed: {section}");
        let cells = found.iter().flat_map(|row| row.as_array().unwrap());
        let none = cells.filter(|cell| *cell == "–").count();
        // On a busy machine a short stream may take as long as a longer one: there is no rate then,
        // and a line says so.
        let of_section = if std::ptr::eq(section, skew) { 2 } else { 1 };
        assert_eq!(text.len(), of_section + none, "each was run: {section}");
        assert!(none == 0 || std::ptr::eq(section, streams), "{section}");
    }
    // Bytes do not depend on how fast the machine is.
    let bars = multicast["bars"].as_array().unwrap();
    assert_eq!(bars.len(), 2, "{multicast}");
    assert!(bars.iter().all(|bar| bar["met"] == true), "{multicast}");
    assert_eq!(lists["bars"][0]["met"], true, "{lists}");
    // Bytes are divided evenly; processor time is measured.
    let most = |row: &Value| row[1].as_str().unwrap().parse::<f64>().unwrap();
    let shares = skew["tables"][0]["rows"].as_array().unwrap();
    assert!(shares.iter().all(|row| most(row) < 1.1), "{skew}");
    assert_eq!(skew["tables"][1]["rows"].as_array().unwrap().len(), 6, "{skew}");
    assert!(skew["bars"][0]["met"].is_boolean(), "{skew}");
    assert_eq!(star["bars"].as_array().unwrap().len(), 2, "{star}");
    assert_eq!(streams["bars"].as_array().unwrap().len(), 2, "{streams}");
}

#[test]
fn a_job_goes_on_behind_killed_nodes_and_on_more_of_them() {
    let args = "recovery --only failure --kills 3 --silences 0 --rescales 1 --scale 0.0001 --json";
    let [report] = &values(&args.split(' ').collect::<Vec<_>>())[..] else { panic!("one report") };
    let [section] = &report["sections"].as_array().unwrap()[..] else { panic!("{report}") };
    let times: Vec<&Value> = section["tables"][0]["rows"].as_array().unwrap().iter().collect();
    let times: Vec<&str> = times.iter().map(|row| row[1].as_str().unwrap()).collect();
    assert_eq!(times, ["3", "0", "1"], "{section}");
    let met = |bar: &Value| bar["met"].is_boolean();
    let bars: Vec<bool> = section["bars"].as_array().unwrap().iter().map(met).collect();
    assert_eq!(bars, [true, true, false, true], "no node was silent: {section}");
}

#[test]
fn a_target_that_is_not_reached_or_not_measured_fails_a_check() {
    let part = "recovery --scale 0.0001 --seconds 0.01 --only cost --pairs 1";
    let args: Vec<&str> = part.split(' ').collect();
    let output = bench(&args);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(text.matches("1 pairs, which are too few for an interval").count(), 4, "{text}");
    let output = bench(&[&args[..], &["--check"]].concat());
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("4 targets are not met: processor time of checkpoints"), "{error}");
}

#[test]
fn statements_of_a_session_are_held_to_their_target_by_a_check() {
    let args = "session --nodes 2 --workers 1 --fabric shm --runs 1 --check --json";
    let output = bench(&args.split(' ').collect::<Vec<_>>());
    let error = String::from_utf8_lossy(&output.stderr);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let [bar] = &report["sections"][0]["bars"].as_array().unwrap()[..] else { panic!("{report}") };
    // Whether it is met is the machine's.
    let is_missed = bar["met"] == false;
    assert_eq!(output.status.code(), Some(i32::from(is_missed)), "{error}");
    assert_eq!(error.contains("1 targets are not met: a second statement"), is_missed, "{error}");
}

#[test]
fn flink_that_cannot_be_started_is_skipped_with_the_reason() {
    let output = bench(&["recovery", "--only", "flink", "--flink", "/nowhere/java -cp x"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && text.contains("Skipped: rocksdb: /nowhere/java"), "{text}");
    assert_refused(&["recovery", "--scale", "0"], 2, "write a number from 0.0001 to 10");
    assert_refused(&["recovery", "--kills", "10001"], 2, "write a number from 0 to 10000");
    assert_refused(&["recovery", "--directory", "/dev/null"], 1, "/dev/null");
    assert_refused(&["recovery", "--report", "/dev/null/a.html"], 1, "cannot be written");
}

#[test]
fn a_page_that_cannot_be_written_is_told_before_anything_is_measured() {
    let page = "/dev/null/page.html";
    assert_refused(&["predict", "--report", page], 1, "cannot be written");
    assert_refused(&["paper", "air", "--out", page], 1, "cannot be written");
    assert_refused(&["wire", "--report", page], 1, "cannot be written");
}

#[test]
fn a_flag_that_would_change_nothing_is_refused() {
    for (args, why) in [
        ("limits --nodes 2", "--nodes is not of 'bench limits'"),
        ("wire --keys 7", "it takes --fabric, --runs, --check, --report"),
        ("ysb --report a.html", "--report is of 'bench wire', 'bench shuffle' and 'bench session'"),
        ("cm --latency 1e6 --runs 3", "--runs is not of runs by the clock"),
        ("cm --sustainable --rows 1e6", "--rows is not of runs by the clock"),
        ("cm --seconds 3", "--seconds is of runs by the clock"),
        ("cm --write a.parquet --set a=b", "--set is not of the rows that --write writes"),
        ("cm --set millstream.exchange=shuffle", "use --exchange"),
        ("cm --credits 8 --set millstream.slots=4", "say the same"),
        ("limits --write a.parquet", "--write is not of 'bench limits'"),
        ("session --keys 8", "--keys is not of 'bench session'"),
        ("shuffle --latency 1e6", "--latency is not of 'bench shuffle'"),
        ("shuffle --nodes 1", "use --nodes 2"),
        ("cm --against-one", "use --workers 2 or --nodes 2"),
        ("cm --nodes 2 --against-one --check", "nothing is asked of this run"),
        ("ysb --nodes 2 --against-one --check", "use --nodes 2 over shared memory"),
        ("limits --check", "--check is not of 'bench limits'"),
        ("cm --workers 2 --against-two", "use --nodes 2"),
        ("nb8 --paper-size", "leave out --paper-size"),
        ("cm --paper-size --record-bytes 78", "cannot be used with"),
        ("cm --exchange merge,uppar", "use --workers 2 or --nodes 2"),
        ("cm --rows 1.5", "such as 1000000 or 1e6"),
    ] {
        assert_refused(&args.split(' ').collect::<Vec<_>>(), 2, why);
    }
}

#[test]
fn rows_are_written_as_powers_of_ten_too() {
    let found = values(&["ro", "--rows", "1e5", "--keys", "2e3", "--runs", "1", "--json"]);
    assert_eq!((&found[0]["rows"], &found[0]["keys"]), (&100_000.into(), &2_000.into()));
}

/// Beside rows of the result, one worker gets less than a hundredth of the rows that are scanned.
fn assert_few_are_gathered(query: &Value) {
    let number = |key: &str| query[key].as_u64().unwrap();
    let (gathered, bytes) = (number("gathered_rows"), number("gathered_bytes"));
    assert!(gathered <= number("rows").max(number("scanned_rows") / 100), "{query}");
    assert_eq!(gathered > 0, bytes > 0, "{query}");
}

#[test]
fn suites_are_right_by_answers_of_another_engine() {
    for (suite, queries) in [("tpch", 22), ("ssb", 13), ("tpcc", 3)] {
        let args = [suite, "--scale", "0.01", "--repeat", "1", "--check", "--json"];
        let found = values(&[&args[..], &["--nodes", "2"]].concat());
        assert_eq!(found.len(), queries + 1, "each query, and their sum");
        for query in &found[..queries] {
            assert!(query["seconds"]["median"].as_f64().unwrap() > 0.0, "{query}");
            assert_few_are_gathered(query);
        }
        let sum = &found[queries];
        assert_eq!((&sum["right"], &sum["checked_against"]), (&queries.into(), &"DuckDB".into()));
    }
}

#[test]
fn a_suite_runs_by_layouts_and_transports_in_turns() {
    let args = ["ssb", "--scale", "0.01", "--queries", "q2.1,q4.1", "--repeat", "2", "--check"];
    let ways = ["--layouts", "2x2,1x1,2x1", "--fabric", "shm,tcp"];
    let found = values(&[&args[..], &ways, &["--json"]].concat());
    let way = |of: &Value| {
        let number = |key: &str| of[key].as_u64().unwrap();
        (number("nodes"), number("workers"), of["fabric"].as_str().unwrap().to_owned())
    };
    let expected: Vec<_> = [(2, 2), (1, 1), (2, 1)]
        .iter()
        .flat_map(|(nodes, workers)| ["shm", "tcp"].map(|by| (*nodes, *workers, by.to_owned())))
        .collect();
    assert_eq!(found.len(), 3 * expected.len(), "two queries and a sum in each way");
    for name in ["q2.1", "q4.1"] {
        let of: Vec<_> = found.iter().filter(|one| one["query"] == name).collect();
        assert_eq!(of.iter().map(|one| way(one)).collect::<Vec<_>>(), expected);
        for one in of {
            let several = one["nodes"] == 2;
            assert_eq!(one["sent_bytes"].as_u64().unwrap() > 0, several, "{one}");
            assert!(one["cpu_seconds"]["median"].as_f64().unwrap() > 0.0, "{one}");
        }
    }
    let sums: Vec<_> = found.iter().filter(|one| one["right"].is_number()).collect();
    assert_eq!(sums.iter().map(|one| way(one)).collect::<Vec<_>>(), expected);
    assert!(sums.iter().all(|one| one["right"] == 12 && one["queries"] == 2), "{sums:?}");
    let output = bench(&[&args[..], &["--layouts", "1x2,2x1"]].concat());
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    for part in ["1 process(es) of 2 worker(s) over shm", "1x2 auto", "2x1 auto", "4 of 4 results"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_refused(&["ssb", "--layouts", "2"], 2, "such as 2x4");
    assert_refused(&["ssb", "--layouts", "0x1"], 2, "a job has 1 to ");
    assert_refused(&["ssb", "--layouts", "2x1", "--nodes", "2"], 2, "cannot be used with");
}

#[test]
fn suites_from_files_and_at_other_scales_are_checked() {
    let directory = std::env::temp_dir().join(format!("suites-{}", std::process::id()));
    let path = directory.to_str().unwrap();
    let files = ["--scale", "0.002", "--from", "file", "--directory", path, "--repeat", "1"];
    let args = [&["ssb", "--check", "--json", "--queries", "q1.1,Q4.1"], &files[..]].concat();
    // The second time the files are there.
    for _ in 0..2 {
        let sum = values(&args).pop().unwrap();
        assert_eq!((&sum["queries"], &sum["right"]), (&2.into(), &2.into()), "{sum}");
        let against = sum["checked_against"].as_str().unwrap();
        assert!(against.starts_with("DataFusion"), "{against}");
        assert!(directory.join("ssb-0.002/lineorder.parquet").exists());
    }
    // Another result than that of the answers.
    let scaled = directory.join("ssb-0.01");
    std::fs::rename(directory.join("ssb-0.002"), scaled).unwrap();
    let args = [&["ssb", "--check", "--queries", "q1.1"], &files[2..]].concat();
    let output = bench(&[&args[..], &["--scale", "0.01"]].concat());
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("q1.1 (auto): row 1, revenue: "), "{error}");
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn a_query_over_written_files_runs_on_four_processes() {
    let directory = std::env::temp_dir().join(format!("written-{}", std::process::id()));
    let data = directory.join("data");
    let written = bench(&["tpch", "--scale", "0.01", "--write", data.to_str().unwrap()]);
    assert_eq!(written.status.code(), Some(0), "{}", String::from_utf8_lossy(&written.stderr));
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/tpch-q5.sql");
    let mut command = Command::new(env!("CARGO_BIN_EXE_millstream"));
    command.args(["run", script, "--nodes", "4", "--workers", "1", "--format", "csv"]);
    let output = command.env_remove("MILLSTREAM_LOG").current_dir(&directory).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    // By DuckDB.
    let revenue = "n_name,revenue\n\
        VIETNAM,1000926.6999\nCHINA,740210.7570\nJAPAN,660651.2425\nINDONESIA,566379.5276\n\
        INDIA,422874.6844\n";
    assert_eq!(String::from_utf8_lossy(&output.stdout), revenue);
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn what_suites_cannot_do_is_refused() {
    for (args, code, why) in [
        ("tpch --queries q23", 2, "tpch has no query 'q23'"),
        ("ssb --scale 0", 2, "write a number from 0.001 to 100"),
        ("ssb --scale -1", 2, "write a number from 0.001 to 100"),
        ("ssb --scale 1e6", 2, "write a number from 0.001 to 100"),
        ("tpcc --directory x", 2, "add --from file"),
        ("tpcc --from file --directory /dev/null/x", 1, "/dev/null/x"),
        ("tpcc --write /dev/null/x", 1, "/dev/null/x"),
        ("tpcc --set millstream.exchange=merge", 2, "use --exchange"),
        ("tpcc --scale 0.001 --exchange nobody", 2, "is no value of 'millstream.exchange'"),
    ] {
        assert_refused(&args.split(' ').collect::<Vec<_>>(), code, why);
    }
}
