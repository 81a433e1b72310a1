//! State that earlier releases have saved: each directory of `tests/compat` holds a job that was
//! stopped, and this release goes on with it. `UPDATE_COMPAT=1` stops a job of this release and
//! puts it beside those that are there.

use std::fs;
use std::path::{Path, PathBuf};

use millstream::checkpoint::record::{Record, RecordBody};

use crate::rig::{Dir, files};

/// The outputs of the jobs, directories and a file; the first of them had no `many`.
const OUTPUTS: [&str; 7] =
    ["merged", "shuffled", "sessions", "joined", "framed", "top.csv", "many"];
/// The options by which streams last for two seconds, and the jobs are stopped in their midst.
const RATES: [&str; 2] = ["'rate' = '300', ", "'rate' = '15000', "];

/// Every kind of state that is saved, in one job. It reads and writes below its own directory.
const SQL: &str = "SET 'millstream.checkpoint' = '300 ms';
CREATE TABLE made (ts TIMESTAMP(3), n BIGINT, WATERMARK FOR ts AS ts - INTERVAL '1' SECOND) WITH (
  'connector' = 'generator', 'rows' = '600', 'rate' = '300', 'interval' = '100ms', 'flows' = '1',
  'fields.n.kind' = 'sequence');
CREATE TABLE keys (ts TIMESTAMP(3), n BIGINT, WATERMARK FOR ts AS ts - INTERVAL '1' SECOND) WITH (
  'connector' = 'generator', 'rows' = '30000', 'rate' = '15000', 'interval' = '1ms', 'flows' = '1',
  'fields.n.kind' = 'sequence');
CREATE VIEW bids AS SELECT ts, n % 4 AS auction, n AS price FROM made;
CREATE VIEW pauses AS SELECT * FROM bids WHERE price % 100 < 80;
CREATE TABLE merged (ws TIMESTAMP(3), auction BIGINT, n BIGINT, s BIGINT, a DOUBLE, d BIGINT) WITH (
  'connector' = 'file', 'path' = 'merged/', 'format' = 'csv');
CREATE TABLE shuffled (ws TIMESTAMP(3), auction BIGINT, hi BIGINT, lo BIGINT) WITH (
  'connector' = 'file', 'path' = 'shuffled/', 'format' = 'csv');
CREATE TABLE sessions (ws TIMESTAMP(3), auction BIGINT, n BIGINT) WITH (
  'connector' = 'file', 'path' = 'sessions/', 'format' = 'csv');
CREATE TABLE joined (auction BIGINT, l BIGINT, r BIGINT) WITH (
  'connector' = 'file', 'path' = 'joined/', 'format' = 'csv');
CREATE TABLE framed (auction BIGINT, price BIGINT, s BIGINT) WITH (
  'connector' = 'file', 'path' = 'framed/', 'format' = 'csv');
CREATE TABLE many (ws TIMESTAMP(3), k BIGINT, n BIGINT, s BIGINT) WITH (
  'connector' = 'file', 'path' = 'many/', 'format' = 'csv');
CREATE TABLE top (ws TIMESTAMP(3), auction BIGINT, price BIGINT, nth BIGINT) WITH (
  'connector' = 'file', 'path' = 'top.csv');
BEGIN STATEMENT SET;
INSERT INTO merged SELECT /*+ EXCHANGE('merge') */ window_start, auction, count(*), sum(price),
    avg(price), count(DISTINCT price % 3)
  FROM TUMBLE(TABLE bids, DESCRIPTOR(ts), INTERVAL '10' SECOND)
  GROUP BY window_start, window_end, auction;
INSERT INTO shuffled SELECT /*+ EXCHANGE('shuffle') */ window_start, auction, max(price), min(price)
  FROM TUMBLE(TABLE bids, DESCRIPTOR(ts), INTERVAL '10' SECOND)
  GROUP BY window_start, window_end, auction;
INSERT INTO sessions SELECT window_start, auction, count(*)
  FROM SESSION(TABLE pauses PARTITION BY auction, DESCRIPTOR(ts), INTERVAL '1' SECOND)
  GROUP BY window_start, window_end, auction;
INSERT INTO joined SELECT l.auction, l.price, r.price FROM bids AS l
  JOIN pauses AS r ON l.auction = r.auction
   AND l.ts BETWEEN r.ts AND r.ts + INTERVAL '2' SECOND;
INSERT INTO framed SELECT auction, price, sum(price) OVER (
    PARTITION BY auction ORDER BY ts ROWS BETWEEN 5 PRECEDING AND CURRENT ROW) FROM bids;
INSERT INTO many SELECT window_start, n % 25000, count(*), sum(n * 1000003)
  FROM TUMBLE(TABLE keys, DESCRIPTOR(ts), INTERVAL '1' DAY)
  GROUP BY window_start, window_end, n % 25000;
INSERT INTO top SELECT window_start, auction, price, CAST(nth AS BIGINT) FROM (
    SELECT *, ROW_NUMBER() OVER (PARTITION BY window_start, window_end, auction
                                 ORDER BY price DESC) AS nth
    FROM TUMBLE(TABLE bids, DESCRIPTOR(ts), INTERVAL '10' SECOND)) WHERE nth <= 3;
END;
";

/// The jobs that were saved.
fn saved() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/compat")
}

fn copy(from: &Path, to: &Path) {
    for file in files(from) {
        let target = to.join(file.strip_prefix(from).unwrap());
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        fs::copy(&file, target).unwrap();
    }
}

/// Takes the name of this machine out of the record that begins a run.
fn forget_machine(file: &Path) {
    let mut record = Record::decode("begin", &fs::read(file).unwrap()).unwrap();
    let RecordBody::Begin(begin) = &mut record.body else { panic!("{record:?}") };
    (begin.holder.host, begin.holder.machine) = ("host".into(), "machine".into());
    fs::write(file, record.encode().unwrap()).unwrap();
}

/// Stops a job of this release when it has rows of all kinds, and puts it beside the others.
fn save_one() {
    let dir = Dir::new("saved");
    dir.write("q.sql", SQL);
    let run = ["run", "q.sql", "--state", "state", "--workers", "2"];
    let mut job = dir.start(dir.command(&run));
    dir.await_that(|| !dir.names("merged").is_empty() || job.has_ended());
    let (code, message) = dir.run(&["stop", "q", "--state", "state"]);
    assert_eq!(code, Some(0), "{message}");
    assert_eq!(job.ends(), Some(130), "{}", dir.log());
    fs::remove_file(dir.0.join("log")).unwrap();
    // The last checkpoint is enough.
    let segments: Vec<PathBuf> = files(&dir.0.join("state/q/seg"));
    let older = &segments[..segments.len() - 1];
    older.iter().for_each(|older| fs::remove_file(older).unwrap());
    forget_machine(&files(&dir.0.join("state/q/chain"))[0]);
    let release = env!("CARGO_PKG_VERSION");
    let free = (1..).map(|nth| saved().join(format!("{release}-{nth}"))).find(|to| !to.exists());
    copy(&dir.0, &free.unwrap());
}

#[test]
fn jobs_that_earlier_releases_have_saved_go_on() {
    if std::env::var_os("UPDATE_COMPAT").is_some() {
        save_one();
    }
    let jobs: Vec<PathBuf> = fs::read_dir(saved()).unwrap().map(|of| of.unwrap().path()).collect();
    assert!(!jobs.is_empty());
    for job in jobs {
        let whole = Dir::new("whole");
        let sql = fs::read_to_string(job.join("q.sql")).unwrap();
        let fast = RATES.iter().fold(sql.clone(), |sql, rate| sql.replace(rate, ""));
        whole.write("q.sql", &fast);
        let (code, message) = whole.run(&["run", "q.sql", "--workers", "1"]);
        assert_eq!(code, Some(0), "{message}");

        let dir = Dir::new("goes-on");
        copy(&job, &dir.0);
        let (code, message) = dir.run(&["run", "q.sql", "--state", "state", "--workers", "3"]);
        assert_eq!(code, Some(0), "{}: {message}", job.display());
        assert!(message.contains("goes on from checkpoint"), "{message}");
        for output in OUTPUTS.iter().filter(|output| sql.contains(*output)) {
            let expected = whole.rows(output);
            assert!(!expected.is_empty(), "{output}");
            assert!(dir.rows(output) == expected, "{output} of {}", job.display());
        }
    }
}

/// Changes the last file of a directory of the state, and gives back what a run says to that.
fn refused(of: &str, change: &dyn Fn(&mut Vec<u8>)) -> String {
    let dir = Dir::new("refused");
    let mut jobs: Vec<PathBuf> =
        fs::read_dir(saved()).unwrap().map(|of| of.unwrap().path()).collect();
    jobs.sort();
    copy(jobs.last().unwrap(), &dir.0);
    let before = dir.rows("merged");
    // The record of the checkpoint lies before that of the stop.
    let all = files(&dir.0.join("state/q").join(of));
    let file = all.last().unwrap();
    let mut bytes = fs::read(file).unwrap();
    change(&mut bytes);
    fs::write(file, bytes).unwrap();
    let (code, message) = dir.run(&["run", "q.sql", "--state", "state", "--workers", "1"]);
    assert_eq!(code, Some(1), "{message}");
    assert_eq!(dir.rows("merged"), before);
    let name = file.file_name().unwrap().to_string_lossy().into_owned();
    assert!(message.contains(&name), "{name}: {message}");
    message
}

#[test]
fn state_of_a_later_release_or_of_another_program_is_refused() {
    let later: fn(&mut Vec<u8>) = |record| {
        assert_eq!(record[..19], *b"millstream-chain 1 ");
        record[17] = b'2';
    };
    let later_segment: fn(&mut Vec<u8>) = |segment| {
        assert_eq!(segment[..8], *b"MSSEG\0\x01\0");
        let end = segment.len();
        segment[6] = 2;
        segment[end - 8] = 2;
    };
    for (of, change) in [("chain", later), ("seg", later_segment)] {
        let reported = refused(of, &change);
        for part in ["version 2", "reads up to 1", "a later release of millstream reads it"] {
            assert!(reported.contains(part), "{part}: {reported}");
        }
    }
    for of in ["chain", "seg"] {
        let reported = refused(of, &|bytes| {
            let length = bytes.len();
            *bytes = b"SQLite format 3\0".repeat(length / 16 + 1);
            bytes.truncate(length);
        });
        for part in ["byte", "--from"] {
            assert!(reported.contains(part), "{of}, {part}: {reported}");
        }
    }
}
