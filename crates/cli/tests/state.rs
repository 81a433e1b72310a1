//! `millstream state`: what is shown of the checkpoints of jobs, and what is kept and dropped.

use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::Arc;

use millstream::checkpoint::chain::{
    Chain, ResumeFrom, RunDescription, record_name, store_segment,
};
use millstream::checkpoint::segment::SegmentWriter;
use millstream::checkpoint::{
    CheckpointManifest, Holder, ObjectName, OperatorEntry, SourceEntry, SplitEntry, Store,
};
use millstream::state_store;
use serde_json::{Value, json};

use crate::rig::Dir;

/// A directory with a job of four checkpoints, the second of which is kept.
struct State(Dir);

impl State {
    fn new(test: &str) -> Self {
        Self(Dir::new(&format!("state-{test}")))
    }

    fn saved(test: &str) -> Self {
        let state = Self::new(test);
        let mut chain = state.begin("clicks", Holder::this_process());
        for number in 1..=4 {
            state.save(&mut chain, number);
            if number == 2 {
                let output = state.run(&["keep", "clicks", "friday"]);
                assert_eq!(stdout(&output), "checkpoint 2 of 'clicks' is kept as 'friday'\n");
            }
        }
        state
    }

    fn store(&self) -> Arc<dyn Store> {
        state_store::open(&self.0.0.display().to_string()).unwrap()
    }

    fn begin(&self, job: &str, holder: Holder) -> Chain {
        let run = RunDescription {
            holder,
            nodes: 1,
            workers: 2,
            release: "0.1.0".into(),
            fingerprint: "f".into(),
            sql: "SELECT 1".into(),
        };
        let job = ObjectName::job(job).unwrap();
        Chain::begin(self.store(), &job, &run, &ResumeFrom::Latest).unwrap().0
    }

    fn save(&self, chain: &mut Chain, number: u64) {
        let mut segment = SegmentWriter::default();
        for part in 0..2 {
            segment.section("count", part, 1000, vec![vec![7; 500].into()]).unwrap();
        }
        let (store, at) = (self.store(), (chain.generation(), 0, number));
        let entry =
            store_segment(store.as_ref(), chain.job(), at, &segment.finish().unwrap()).unwrap();
        let split =
            |ended| SplitEntry { name: "0".into(), position: vec![], greatest: None, ended };
        chain
            .append(CheckpointManifest {
                number,
                nodes: 1,
                workers: 2,
                operators: vec![OperatorEntry {
                    id: "count".into(),
                    text: "count(*) by page".into(),
                    watermark: Some(1_000_000_000_000),
                }],
                segments: vec![entry],
                sources: vec![SourceEntry {
                    id: "clicks".into(),
                    splits: vec![split(true), split(false)],
                }],
                counters: [("late".to_owned(), 3)].into(),
                ..CheckpointManifest::default()
            })
            .unwrap();
    }

    fn run(&self, args: &[&str]) -> Output {
        let mut command = self.0.command(&[&["state"], args].concat());
        command.arg("--state").arg(&self.0.0).output().unwrap()
    }

    fn json(&self, args: &[&str]) -> Vec<Value> {
        let output = self.run(&[args, &["--json"]].concat());
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        stdout(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn segment(&self, number: u64) -> PathBuf {
        self.0.0.join(format!("clicks/seg/g1-n0-{number:06}.seg"))
    }
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// The end of a command that fails with this code, and says this.
#[track_caller]
fn assert_fails(output: &Output, code: i32, message: &str) {
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{error}");
    assert!(error.contains(message), "{error}");
}

fn flip(path: &Path, at: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[at] ^= 1;
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn jobs_are_listed_with_their_last_checkpoint() {
    let state = State::saved("list");
    let dead = Holder { started: 1, ..Holder::this_process() };
    drop(state.begin("other", dead));
    let text = stdout(&state.run(&["list"]));
    let words: Vec<Vec<&str>> =
        text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(words[0], ["job", "checkpoint", "generation", "kept", "bytes", "status"]);
    assert_eq!(words[1][..4], ["clicks", "4", "1", "1"]);
    assert!(text.contains(&format!("runs as process {}", std::process::id())), "{text}");
    assert_eq!(words[2][..4], ["other", "-", "1", "0"]);
    assert!(words[2].ends_with(&["ended"]), "{text}");
    let values = state.json(&["list"]);
    assert_eq!((&values[0]["job"], &values[0]["checkpoint"]), (&json!("clicks"), &json!(4)));
    assert_eq!((&values[1]["status"], &values[1]["checkpoint"]), (&json!("ended"), &Value::Null));
}

#[test]
fn a_job_is_shown_with_its_operators_and_sources() {
    let state = State::saved("show");
    let text = stdout(&state.run(&["show", "clicks"]));
    let has = |line: &str| text.lines().any(|of| of.split_whitespace().eq(line.split_whitespace()));
    for line in [
        "job clicks",
        "checkpoints 4, 3, 2",
        "kept friday",
        "checkpoint 4",
        "layout 1 node, 2 workers",
        "late 3",
        "count(*) by page 2,000 1000 B 2001-09-09 01:46:40",
        "clicks 2 1",
    ] {
        assert!(has(line), "{line}:\n{text}");
    }
    assert!(stdout(&state.run(&["show", "clicks", "friday"])).contains("2, kept as 'friday'"));
    let value = &state.json(&["show", "clicks", "3"])[0];
    assert_eq!(value["checkpoint"]["number"], 3);
    assert_eq!(value["checkpoint"]["operators"][0]["rows"], 2000);
    assert_eq!(value["checkpoints"], json!([4, 3, 2]));
    assert_fails(&state.run(&["show", "clicks", "9"]), 1, "checkpoint '9' of job 'clicks'");
    assert_fails(&state.run(&["show", "cliks"]), 1, "job 'cliks' in");
    assert_fails(&state.run(&["show", "../x"]), 1, "cannot name a job");
}

#[test]
fn damage_is_told_with_its_file_and_byte() {
    let state = State::saved("verify");
    let output = state.run(&["verify"]);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(stdout(&output).lines().filter(|line| line.contains(" is intact, ")).count(), 4);

    flip(&state.segment(3), 100);
    std::fs::remove_file(state.segment(2)).unwrap();
    let output = state.run(&["verify", "clicks"]);
    assert_fails(&output, 1, "3 of 4 are damaged");
    let text = stdout(&output);
    let segment = state.segment(3).display().to_string();
    assert!(text.contains(&format!("checkpoint 3 is damaged: {segment}, byte 64: ")), "{text}");
    let missing = state.segment(2).display().to_string();
    assert!(text.contains(&format!("'friday' is damaged: {missing} is missing")), "{text}");
    assert!(text.contains("checkpoint 4 is intact"), "{text}");

    // Records 1 to 5: begin, and four checkpoints.
    let job = ObjectName::job("clicks").unwrap();
    let record = |number| self::record(&state, &job, number);
    flip(&record(5), 70);
    let output = state.run(&["show", "clicks"]);
    assert_fails(&output, 1, &format!("{}, byte ", record(5).display()));
    assert_fails(&output, 1, "`millstream state verify`");
    assert!(stdout(&state.run(&["list"])).contains("its checksum is another one"));
    let text = stdout(&state.run(&["verify", "clicks"]));
    assert!(text.contains("record 5 is damaged"), "{text}");
    flip(&record(5), 70);
    std::fs::remove_file(record(4)).unwrap();
    let text = stdout(&state.run(&["verify", "clicks"]));
    assert!(text.contains("checkpoint 4 is intact"), "{text}");
}

fn record(state: &State, job: &ObjectName, number: u64) -> PathBuf {
    state.0.0.join(record_name(job, number).as_str())
}

#[test]
fn what_is_kept_and_dropped_is_gone_afterwards() {
    let state = State::saved("drop");
    assert_fails(&state.run(&["keep", "clicks", "friday"]), 1, "another checkpoint with the name");
    assert_fails(
        &state.run(&["keep", "clicks", "x", "--checkpoint", "1"]),
        1,
        "checkpoint 1 of job 'clicks' (it has 4, 3, 2)",
    );
    let kept = state.json(&["keep", "clicks", "x", "--checkpoint", "3"]);
    assert_eq!(kept, [json!({ "job": "clicks", "kept": "x", "checkpoint": 3 })]);
    assert_eq!(state.run(&["drop", "clicks", "x"]).status.code(), Some(0));
    assert_fails(&state.run(&["drop", "clicks", "x"]), 1, "is not there");

    // This process holds it, and runs.
    assert_fails(&state.run(&["drop", "clicks"]), 1, "job 'clicks' may run");
    let dropped = state.json(&["drop", "clicks", "--force"]);
    // A kept record, those of the chain and a copy of the first, segments.
    assert_eq!(dropped[0]["files"], 1 + 4 + 1 + 4 + 1);
    assert_eq!(std::fs::read_dir(&state.0.0).unwrap().count(), 0);
    assert_fails(&state.run(&["drop", "clicks"]), 1, "job 'clicks' in");
}

#[test]
fn a_place_without_checkpoints_is_named() {
    let state = State::new("none");
    assert_eq!(state.json(&["list"]), Vec::<Value>::new());
    let list =
        |place: &str| state.0.command(&["state", "list", "--state", place]).output().unwrap();
    assert_fails(&list("gone"), 1, "gone: there is no such directory");
    assert_fails(&list("https://example.org/x"), 1, "a web server cannot hold checkpoints");
}
