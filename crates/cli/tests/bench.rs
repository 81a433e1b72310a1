//! `millstream bench` as a user meets it: what it prints, and what it refuses.

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

fn assert_refused(args: &[&str], why: &str) {
    let output = bench(args);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
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
fn a_page_that_cannot_be_written_is_told_before_anything_is_measured() {
    let page = "/dev/null/page.html";
    assert_refused(&["predict", "--report", page], "cannot be written");
    assert_refused(&["paper", "air", "--out", page], "cannot be written");
    assert_refused(&["wire", "--report", page], "cannot be written");
}
