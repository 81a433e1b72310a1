//! Jobs that keep checkpoints in a store that fails, and state that was damaged: a job goes on or
//! ends with an error that names the cause, and behind a restart its rows are those of a run
//! without failures.

mod store;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::{fs, process};

use bytes::Bytes;
use millstream::checkpoint::chain::ResumeFrom;
use millstream::checkpoint::{ObjectName, Store};
use millstream::{CheckpointOptions, Error, JobProgress, Observer, RunOptions, Session};
use tests::cases::cases;

use self::store::{FailingStore, Fails, HOW};

/// Failing calls that are tried by default.
const CALLS: u64 = 49;
/// The bound of the numbers of calls: a prime number, and more calls than a short job makes.
const CALLS_MAX: u64 = 67;
/// The most runs of a job until it has ended.
const RUNS_MAX: u64 = 4;

/// A directory for the output of a job, which is removed with its test.
struct Output(PathBuf);

impl Output {
    fn new() -> Self {
        static MADE: AtomicU64 = AtomicU64::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("millstream-hostile-{}-{number}", process::id());
        let path = std::env::temp_dir().join(name);
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).expect("it can be made");
        Self(path)
    }

    /// The rows of all files that are visible, sorted.
    fn rows(&self) -> Vec<String> {
        let mut rows = vec![];
        for path in files(&self.0.join("out")) {
            if !path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.')) {
                let text = fs::read_to_string(&path).expect("it is text");
                rows.extend(text.lines().skip(1).map(str::to_owned));
            }
        }
        rows.sort();
        rows
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn files(of: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(of).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

/// Groups by windows, of rows that come at `rate`, or at once if that is empty.
fn script(output: &Output, rate: &str) -> String {
    format!(
        "SET 'millstream.checkpoint' = '10 ms';
         CREATE TABLE bids (ts TIMESTAMP(3), auction BIGINT, price BIGINT,
           WATERMARK FOR ts AS ts - INTERVAL '1' SECOND) WITH (
           'connector' = 'generator', 'rows' = '3840', 'flows' = '2', {rate}
           'interval' = '10ms', 'fields.auction.max' = '9', 'fields.price.max' = '1000000');
         CREATE TABLE written (ws TIMESTAMP(3), auction BIGINT, n BIGINT, s BIGINT) WITH (
           'connector' = 'file', 'path' = '{}/out/', 'format' = 'csv');
         INSERT INTO written SELECT window_start, auction, count(*), sum(price)
           FROM TUMBLE(TABLE bids, DESCRIPTOR(ts), INTERVAL '2' SECOND)
           GROUP BY window_start, window_end, auction;",
        output.0.display()
    )
}

/// The rate at which rows come for a tenth of a second.
const RATE: &str = "'rate' = '25600',";

/// Keeps the lines that a job reports when it begins.
#[derive(Default)]
struct Lines(Mutex<Vec<String>>);

impl Observer for Lines {
    fn progress(&self, _: &JobProgress) {}

    fn recovers(&self, line: &str) {
        self.0.lock().expect("not poisoned").push(line.to_owned());
    }
}

/// Runs the job from its last checkpoint. Gives its result, and the lines that it has reported.
fn run(
    output: &Output,
    store: Arc<dyn Store>,
    rate: &str,
    cancel: &AtomicBool,
) -> (Result<(), Error>, Vec<String>) {
    let (job, from, begun) = ("j".into(), ResumeFrom::Latest, Vec::new());
    let state = CheckpointOptions { store, job, from, evolve: false, take_over: false, begun };
    let lines = Lines::default();
    let ran = (|| {
        let mut session = Session::builder().workers(2).build()?;
        let (observer, state): (Option<&dyn Observer>, _) = (Some(&lines), Some(&state));
        let cancel = Some(cancel);
        let options = RunOptions { cancel, observer, state, ..RunOptions::default() };
        session.sql(&script(output, rate))?.run(&options).map(drop)
    })();
    (ran, lines.0.into_inner().expect("not poisoned"))
}

/// Runs the job to its end.
fn run_on(output: &Output, store: Arc<dyn Store>, rate: &str) -> (Result<(), Error>, Vec<String>) {
    run(output, store, rate, &AtomicBool::new(false))
}

/// The rows of a job without failures.
fn undisturbed() -> Vec<String> {
    let (output, store) = (Output::new(), FailingStore::new(None));
    let (ran, _) = run_on(&output, store.clone(), "");
    ran.expect("nothing happens to it");
    assert!(output.rows().len() > 100, "{} rows", output.rows().len());
    output.rows()
}

/// Whether a line says that the job has ended before.
fn is_end(line: &str) -> bool {
    line.contains("ended")
}

/// Whether an error names its cause: the store, or a file of it.
fn is_named(error: &Error) -> bool {
    let text = error.to_string();
    text.contains("memory:") || matches!(error, Error::Checkpoint(_)) && text.contains("record")
}

#[test]
fn a_call_of_the_store_that_fails_loses_and_doubles_nothing() {
    let expected = undisturbed();
    let (mut failed, mut ended) = (0, 0);
    let mut cases = cases(CALLS);
    for seed in &mut cases {
        let how = HOW[seed as usize % HOW.len()];
        // Each call fails once in each way before one fails again.
        let call = seed / HOW.len() as u64 * 8 % CALLS_MAX;
        let (output, store) = (Output::new(), FailingStore::new(Some(Fails { call, how })));
        let at = format!("seed {seed}: call {call} fails by {how:?}");
        let (ran, _) = run_on(&output, store.clone(), RATE);
        failed += u64::from(store.has_failed());
        let mut failure = ran.err();
        if let Some(error) = &failure {
            assert!(store.has_failed() && is_named(error), "{at}: {error}");
            ended += 1;
        }
        let mut runs = 0;
        while let Some(error) = failure.take() {
            assert!(runs < RUNS_MAX, "{at}: {error}");
            runs += 1;
            store.heal();
            failure = run_on(&output, store.clone(), RATE).0.err();
        }
        assert!(output.rows() == expected, "{at}: {}, {} rows", store.log(), output.rows().len());
        // A further run reports that the job has ended.
        store.heal();
        let (ran, lines) = run_on(&output, store.clone(), RATE);
        ran.unwrap_or_else(|error| panic!("{at}: {error}"));
        assert!(lines.iter().any(|line| is_end(line)), "{at}: {lines:?}");
        assert!(output.rows() == expected, "{at}: after its end");
    }
    println!("{failed} calls have failed, {ended} jobs have ended by it");
    cases.met(failed > 5, &format!("{failed} calls"));
}

/// A job that was stopped behind some checkpoints: its state, and the files that it has published.
struct Stopped {
    output: Output,
    published: Vec<(PathBuf, Vec<u8>)>,
    objects: Vec<(ObjectName, Bytes)>,
}

/// The most runs until one is stopped before its end.
const STOPS_MAX: u64 = 20;
/// The rate of a job that is to be stopped before its end.
const SLOWER: &str = "'rate' = '6400',";
/// The rate of a job that goes on, by which rows come in the same blocks as by [`SLOWER`].
const FASTER: &str = "'rate' = '12799',";

impl Stopped {
    /// Stops a job when its chain has a number of records.
    fn at(records: usize) -> Self {
        for _ in 0..STOPS_MAX {
            let (output, store) = (Output::new(), FailingStore::new(None));
            let cancel = Arc::new(AtomicBool::new(false));
            store.notify(records, cancel.clone());
            let (ran, _) = run(&output, store.clone(), SLOWER, &cancel);
            ran.expect("it is stopped");
            let objects = store.objects();
            let is_over = |(_, bytes): &(ObjectName, Bytes)| {
                String::from_utf8_lossy(bytes).contains("\"kind\":\"done\"")
            };
            // On a busy machine the job may end before it is stopped.
            if !objects.iter().any(is_over) {
                let published = files(&output.0.join("out")).into_iter().map(|path| {
                    let bytes = fs::read(&path).expect("it is there");
                    (path, bytes)
                });
                let published = published.collect();
                return Self { output, published, objects };
            }
        }
        panic!("it has ended each time before it was stopped")
    }

    /// Restores the output to that of the job when it was stopped.
    fn reset(&self) {
        for path in files(&self.output.0.join("out")) {
            fs::remove_file(path).expect("it is there");
        }
        for (path, bytes) in &self.published {
            fs::write(path, bytes).expect("it can be written");
        }
    }

    /// Runs the job with other objects. It refuses and names a file, or its rows are those of a run
    /// without failures: from an older checkpoint it publishes again what was published since.
    /// Tells whether it refused.
    fn check(&self, objects: &[(ObjectName, Bytes)], expected: &[String], at: &str) -> bool {
        self.reset();
        let (ran, lines) = run_on(&self.output, FailingStore::of(objects), FASTER);
        let mut rows = self.output.rows();
        match ran {
            Err(error) => {
                let text = error.to_string();
                let names = text.contains("memory:j/");
                let tells = ["byte ", "missing", "version"].iter().any(|word| text.contains(word));
                assert!(names && tells, "{at}: {text}");
                true
            }
            Ok(()) => {
                let on =
                    lines.iter().find_map(|line| line.strip_prefix("goes on from checkpoint "));
                let number: Option<u64> = on.and_then(|line| line.split(':').next()?.parse().ok());
                let number = number.unwrap_or_else(|| panic!("{at}: it begins anew: {lines:?}"));
                if number < self.newest() {
                    rows.dedup();
                }
                assert!(rows == expected, "{at}: {} rows from {number}: {lines:?}", rows.len());
                false
            }
        }
    }

    /// The number of the last checkpoint.
    fn newest(&self) -> u64 {
        let numbers = self.objects.iter().filter_map(|(_, bytes)| {
            let text = String::from_utf8_lossy(bytes);
            let manifest = text.split_once("\"kind\":\"manifest\"")?.1.to_owned();
            let rest = manifest.split_once("\"number\":")?.1.to_owned();
            rest.split(|c: char| !c.is_ascii_digit()).next()?.parse::<u64>().ok()
        });
        numbers.max().expect("it has checkpoints")
    }
}

/// Damaged bytes that are tried by default.
const PLACES: u64 = 250;

#[test]
fn a_flipped_or_cut_file_of_the_state_gives_no_wrong_rows() {
    let (expected, stopped) = (undisturbed(), Stopped::at(5));
    assert!(!stopped.check(&stopped.objects, &expected, "as it was"));
    let bytes: usize = stopped.objects.iter().map(|(_, bytes)| bytes.len()).sum();
    let (mut refused, mut tried) = (0, 0);
    let mut cases = cases(PLACES);
    for seed in &mut cases {
        // The places are far from each other, and in all files.
        let mut at = (seed as usize * 10_007) % bytes;
        let mut objects = stopped.objects.clone();
        let of = objects.iter_mut().find(|(_, bytes)| {
            let is_here = at < bytes.len();
            at -= if is_here { 0 } else { bytes.len() };
            is_here
        });
        let (name, object) = of.expect("it is within the bytes");
        let mut flipped = object.to_vec();
        flipped[at] ^= 1 << (seed % 8);
        let is_cut = seed % 4 == 0;
        *object = if is_cut { object.slice(..at) } else { flipped.into() };
        let what = if is_cut { "cut" } else { "flipped" };
        let what = format!("seed {seed}: {name} {what} at {at}");
        refused += u64::from(stopped.check(&objects, &expected, &what));
        tried += 1;
    }
    println!("{refused} of {tried} were refused; the state has {bytes} bytes");
    // On a busy machine more of the bytes are of older checkpoints, which a run does without.
    cases.met(refused > 10, &format!("{refused} of {tried} were refused"));
}

#[test]
fn a_deleted_or_swapped_file_of_the_state_gives_no_wrong_rows() {
    let (expected, stopped) = (undisturbed(), Stopped::at(5));
    let mut refused = 0;
    for (at, (name, _)) in stopped.objects.iter().enumerate() {
        let mut without = stopped.objects.clone();
        without.remove(at);
        let what = format!("without {name}");
        refused += u64::from(stopped.check(&without, &expected, &what));
        for (other, (of, _)) in stopped.objects.iter().enumerate().skip(at + 1) {
            let mut swapped = stopped.objects.clone();
            (swapped[at].1, swapped[other].1) =
                (stopped.objects[other].1.clone(), stopped.objects[at].1.clone());
            let what = format!("{name} and {of} swapped");
            refused += u64::from(stopped.check(&swapped, &expected, &what));
        }
    }
    assert!(refused > 5, "only {refused} were refused");
}

#[test]
fn a_clock_that_jumps_by_an_hour_loses_nothing() {
    let expected = undisturbed();
    for seed in 0..4 {
        let (output, store) = (Output::new(), FailingStore::new(None));
        // The clock jumps between two calls, and so between two runs.
        store.jump(seed);
        for records in [6, 12] {
            let cancel = Arc::new(AtomicBool::new(false));
            store.notify(records, cancel.clone());
            let (ran, lines) = run(&output, store.clone(), SLOWER, &cancel);
            ran.unwrap_or_else(|error| panic!("seed {seed}: {error}: {lines:?}"));
            let goes_on = lines.iter().any(|line| line.contains("checkpoint") || is_end(line));
            assert!(goes_on || records == 6, "seed {seed}: {lines:?}");
        }
        let (ran, lines) = run_on(&output, store.clone(), FASTER);
        ran.unwrap_or_else(|error| panic!("seed {seed}: {error}: {lines:?}"));
        assert!(output.rows() == expected, "seed {seed}: {} rows", output.rows().len());
    }
}
