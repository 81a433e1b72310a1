//! Where errors point: the statements of `places/*.txt`, each with two of a kind of clause, of
//! which one is wrong.
//!
//! A case is a script, the error and its hint. `«` and `»` stand around what is underlined:
//!
//! ```text
//! SELECT abs(k), «abs»(s) FROM t
//! error: there is no function abs(STRING)
//! hint: CAST the arguments to types that have something in common
//! ```
//!
//! The places were chosen by reading the statements. Cases are written by hand, not recorded.

use std::fs;
use std::path::Path;

use plan::Diagnostic;

use crate::support;

/// The tables that all cases know. `t` and `u` end; `e` and `f` never do.
const TABLES: &str = "
CREATE TABLE t (k INT, v BIGINT, s STRING, d DOUBLE, b BOOLEAN, ts TIMESTAMP(3), l ARRAY<INT>,
  r ROW<x INT, y STRING>) WITH ('connector' = 'memory');
CREATE TABLE u (k INT, w BIGINT, s STRING, ts TIMESTAMP(3)) WITH ('connector' = 'memory');
CREATE TABLE e (k INT, v BIGINT, s STRING, ts TIMESTAMP(3),
  WATERMARK FOR ts AS ts - INTERVAL '1' SECOND)
  WITH ('connector' = 'memory', 'bounded' = 'false');
CREATE TABLE f (k INT, w BIGINT, s STRING, ts TIMESTAMP(3),
  WATERMARK FOR ts AS ts - INTERVAL '1' SECOND)
  WITH ('connector' = 'memory', 'bounded' = 'false');
CREATE TABLE n (k INT, v BIGINT, ts TIMESTAMP(3))
  WITH ('connector' = 'memory', 'bounded' = 'false');
CREATE TABLE o (k INT, v BIGINT, s STRING) WITH ('connector' = 'memory');";

/// A script with its expected errors.
#[derive(Debug, PartialEq, Eq)]
struct Case {
    /// The script with its marks.
    script: String,
    message: String,
    hint: Option<String>,
}

impl Case {
    fn parse(text: &str) -> Self {
        let mut case = Self { script: String::new(), message: String::new(), hint: None };
        for line in text.lines() {
            if let Some(message) = line.strip_prefix("error: ") {
                case.message = message.to_owned();
            } else if let Some(hint) = line.strip_prefix("hint: ") {
                case.hint = Some(hint.to_owned());
            } else {
                case.script.extend([line, "\n"]);
            }
        }
        let marks = |mark| case.script.matches(mark).count();
        assert_eq!((marks('«'), marks('»')), (1, 1), "marks of a case:\n{text}");
        case
    }

    /// The script as it is planned.
    fn sql(&self) -> String {
        self.script.replace(['«', '»'], "")
    }

    /// The case as the planner answers it.
    fn planned(&self) -> Self {
        let (mut planner, _) = support::planner(4);
        assert!(planner.plan(TABLES).is_ok(), "the tables of all cases");
        let sql = self.sql();
        let Err(errors) = planner.plan(&sql) else {
            return Self { script: sql, message: "none".into(), hint: None };
        };
        let [error] = &errors[..] else {
            let all = errors.iter().map(|error| error.render("x", &sql, false));
            return Self { script: sql.clone(), message: all.collect(), hint: None };
        };
        let script = marked(&sql, error);
        Self { script, message: error.message.clone(), hint: error.hint.clone() }
    }

    fn shown(&self) -> String {
        let hint = self.hint.as_ref().map(|hint| format!("hint: {hint}\n")).unwrap_or_default();
        format!("{}error: {}\n{hint}", self.script, self.message)
    }
}

/// A script with marks around what an error underlines.
fn marked(sql: &str, error: &Diagnostic) -> String {
    let lines = sql.lines().enumerate().map(|(at, line)| {
        let mut line: Vec<char> = line.chars().collect();
        if at + 1 == error.line {
            line.insert((error.column - 1 + error.length).min(line.len()), '»');
            line.insert((error.column - 1).min(line.len()), '«');
        }
        line.into_iter().chain(['\n']).collect::<String>()
    });
    lines.collect()
}

fn cases() -> Vec<Case> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/places");
    let entries = fs::read_dir(folder).expect("the folder of cases");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let mut paths: Vec<_> = paths.collect();
    paths.sort();
    let texts = paths.iter().map(|path| fs::read_to_string(path).expect("a page of cases"));
    let texts: Vec<String> = texts.collect();
    let blocks = texts.iter().flat_map(|text| text.split("\n\n"));
    let blocks = blocks.map(str::trim).filter(|block| !block.is_empty());
    blocks.filter(|block| !block.starts_with('#')).map(Case::parse).collect()
}

#[test]
fn each_error_points_at_its_own_clause() {
    let cases = cases();
    let wrong: Vec<String> = cases
        .iter()
        .map(|case| (case, case.planned()))
        .filter(|(case, planned)| *case != planned)
        .map(|(case, planned)| format!("{}--- but is\n{}", case.shown(), planned.shown()))
        .collect();
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
    assert!(cases.len() >= 120, "only {} cases", cases.len());
}
