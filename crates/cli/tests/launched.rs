//! `millstream run` as processes that a launcher starts, which this test plays.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::rig::{Dir, Running, set_rank};

/// Within this time a death is known everywhere.
const KNOWN: Duration = Duration::from_secs(5);
const FAMILIES: [&str; 4] = ["open", "hydra", "slurm", "own"];
const NUMBERS: &str = "CREATE TABLE numbers (k BIGINT, v BIGINT) WITH (
    'connector' = 'file', 'path' = 'numbers.csv', 'format' = 'csv');
SELECT k, count(*) AS n, sum(v) AS s FROM numbers GROUP BY k;
";
const ROWS: [&str; 3] = ["0,334,166833", "1,333,166167", "2,333,166500"];
/// Windows of 10 ms to the terminal, and a file.
const ENDLESS: &str = "
    CREATE TABLE numbers (n BIGINT, ts TIMESTAMP(3), WATERMARK FOR ts AS ts) WITH (
        'connector' = 'generator', 'rate' = '20000', 'fields.n.kind' = 'sequence');
    CREATE TABLE shown (start TIMESTAMP(3), c BIGINT)
        WITH ('connector' = 'stdout', 'format' = 'csv');
    CREATE TABLE kept (n BIGINT) WITH ('connector' = 'file', 'path' = 'kept.csv');
    BEGIN STATEMENT SET;
    INSERT INTO shown SELECT window_start, count(*)
        FROM TUMBLE(TABLE numbers, DESCRIPTOR(ts), INTERVAL '10' MILLISECOND)
        GROUP BY window_start, window_end;
    INSERT INTO kept SELECT n FROM numbers;
    END;";

/// A directory with the script of the job and its table.
fn prepared(name: &str) -> Dir {
    let dir = Dir::new(&format!("launched-{name}"));
    let rows: String = (0..1000).map(|v| format!("{},{v}\n", v % 3)).collect();
    dir.write("numbers.csv", &format!("k,v\n{rows}"));
    dir.write("q.sql", NUMBERS);
    dir
}

/// A rank that was started.
struct Rank {
    process: Running,
    out: BufReader<ChildStdout>,
}

/// How it ended.
#[derive(Debug, PartialEq)]
struct Ended {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Rank {
    fn start(dir: &Dir, family: &str, rank: usize, nodes: usize, args: &[&str]) -> Self {
        let mut command = dir.command(&[&["run"], args].concat());
        set_rank(&mut command, family, rank, nodes);
        command.env("MILLSTREAM_RENDEZVOUS", &dir.0).stdin(Stdio::piped());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = Running(command.spawn().unwrap());
        let out = BufReader::new(process.0.stdout.take().unwrap());
        Self { process, out }
    }

    fn end(mut self) -> Ended {
        drop(self.process.0.stdin.take());
        let mut stderr = self.process.0.stderr.take().unwrap();
        std::thread::scope(|scope| {
            let err = scope.spawn(move || {
                let mut err = String::new();
                stderr.read_to_string(&mut err).unwrap();
                err
            });
            let mut out = String::new();
            self.out.read_to_string(&mut out).unwrap();
            let err = err.join().unwrap();
            Ended { code: self.process.0.wait().unwrap().code(), out, err }
        })
    }
}

fn end(ranks: Vec<Rank>) -> Vec<Ended> {
    // All at once: none may wait for a reader.
    std::thread::scope(|scope| {
        let ending: Vec<_> = ranks.into_iter().map(|rank| scope.spawn(|| rank.end())).collect();
        ending.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn start(dir: &Dir, family: &str, nodes: usize, args: &[&str]) -> Vec<Rank> {
    (0..nodes).map(|rank| Rank::start(dir, family, rank, nodes, args)).collect()
}

fn run(dir: &Dir, family: &str, nodes: usize, args: &[&str]) -> Vec<Ended> {
    end(start(dir, family, nodes, args))
}

#[track_caller]
fn rows_of_rank_0(ended: &[Ended]) {
    let first = &ended[0];
    assert_eq!(first.code, Some(0), "{}", first.err);
    let mut lines: Vec<_> = first.out.lines().collect();
    assert_eq!(lines.remove(0), "k,n,s");
    lines.sort_unstable();
    assert_eq!(lines, ROWS);
    assert!(first.err.starts_with("1,000 rows in, 3 out in "), "{}", first.err);
    for other in &ended[1..] {
        assert_eq!(other, &Ended { code: Some(0), out: String::new(), err: String::new() });
    }
}

/// Every rank says the same one thing.
#[track_caller]
fn all_say(ended: &[Ended], code: i32, message: &str) {
    for one in ended {
        assert_eq!(one.code, Some(code), "{one:?}");
        assert!(one.err.starts_with(&format!("error: {message}")), "{message:?}:\n{}", one.err);
        assert_eq!(one.err.matches("error").count(), 1, "{}", one.err);
        assert_eq!(one.out, "");
    }
}

/// Rank 0 says it, and the others end without a word.
#[track_caller]
fn first_says(ended: &[Ended], code: i32, message: &str) {
    all_say(&ended[..1], code, message);
    for other in &ended[1..] {
        assert_eq!(other, &Ended { code: Some(code), out: String::new(), err: String::new() });
    }
}

#[test]
fn each_family_of_launchers_starts_a_job_with_the_same_rows() {
    for (family, fabric) in FAMILIES.iter().zip(["shm", "tcp", "auto", "tcp"]) {
        let dir = prepared(family);
        let ended = run(&dir, family, 4, &["q.sql", "--format", "csv", "--fabric", fabric]);
        rows_of_rank_0(&ended);
        assert_eq!(dir.names("."), ["numbers.csv", "q.sql"], "{family}: nothing is left behind");
    }
}

#[test]
fn options_may_repeat_what_the_launcher_says_and_no_other() {
    let dir = prepared("repeat");
    let csv = ["q.sql", "--format", "csv", "--workers", "2", "--nodes"];
    rows_of_rank_0(&run(&dir, "slurm", 2, &[&csv[..], &["2"]].concat()));
    let ended = run(&dir, "slurm", 2, &[&csv[..], &["3"]].concat());
    first_says(&ended, 2, "--nodes 3, but srun started 2 processes");
    assert!(ended[0].err.contains("hint: leave --nodes out"), "{}", ended[0].err);
}

#[test]
fn a_script_may_be_piped_into_rank_0() {
    let dir = prepared("piped");
    let mut ranks = start(&dir, "open", 3, &["-", "--format", "csv"]);
    ranks[0].process.0.stdin.take().unwrap().write_all(NUMBERS.as_bytes()).unwrap();
    rows_of_rank_0(&end(ranks));
}

#[test]
fn a_dry_run_meets_nobody() {
    let dir = prepared("dry");
    let ended = end(vec![Rank::start(&dir, "open", 0, 4, &["q.sql", "--dry-run"])]);
    assert_eq!((ended[0].code, ended[0].err.as_str()), (Some(0), ""));
    assert!(ended[0].out.starts_with("4 nodes with "), "{}", ended[0].out);
    let ended = end(vec![Rank::start(&dir, "open", 3, 4, &["q.sql", "--dry-run"])]);
    assert_eq!((ended[0].code, ended[0].out.as_str(), ended[0].err.as_str()), (Some(0), "", ""));
}

#[test]
fn ranks_that_were_given_something_else_are_refused_by_all() {
    let dir = prepared("else");
    dir.write("other.sql", &NUMBERS.replace("sum(v)", "max(v)"));
    let args = ["q.sql", "--format", "csv"];
    let unlike = |rank: usize, other: &[&str]| -> Vec<Ended> {
        let own = |at| if at == rank { other } else { &args[..] };
        end((0..3).map(|at| Rank::start(&dir, "slurm", at, 3, own(at))).collect())
    };
    let message =
        "node 2 differs from node 0 in line 3 of the SQL: 'SELECT k, count(*) AS n, max(v)";
    all_say(&unlike(2, &["other.sql", "--format", "csv"]), 1, message);
    let message = "node 1 differs from node 0 in --fabric: 'tcp', not 'auto'";
    all_say(&unlike(1, &["q.sql", "--format", "csv", "--fabric", "tcp"]), 1, message);
    let message = "node 1 differs from node 0 in --set: 'millstream.slots=4', not nothing";
    all_say(&unlike(1, &["q.sql", "--format", "csv", "--set", "millstream.slots=4"]), 1, message);
}

#[test]
fn wrong_sql_is_told_once() {
    let dir = prepared("wrong");
    dir.write("q.sql", "SELEC 1;");
    let ended = run(&dir, "own", 3, &["q.sql"]);
    first_says(&ended, 2, "");
    assert!(ended[0].err.contains("--> q.sql:1:1"), "{}", ended[0].err);
}

#[test]
fn a_rank_that_never_comes_is_named_by_all() {
    let dir = prepared("missing");
    let args = ["q.sql", "--join-timeout", "1"];
    let ranks = [0, 1, 3].map(|rank| Rank::start(&dir, "slurm", rank, 4, &args));
    all_say(&end(ranks.into()), 1, "node 2 did not join: ");
}

#[test]
fn a_size_without_a_rank_is_refused() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_millstream"));
    set_rank(&mut command, "open", 0, 4);
    command.env_remove("OMPI_COMM_WORLD_RANK").args(["run", "q.sql"]);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let err = String::from_utf8(output.stderr).unwrap();
    let detail = "OMPI_COMM_WORLD_SIZE is 4, but OMPI_COMM_WORLD_RANK is not set";
    assert!(err.contains(detail), "{err}");
}

#[test]
fn beyond_loopback_nobody_listens_unasked() {
    let dir = prepared("beyond");
    let args = ["q.sql", "--listen", "192.0.2.1:0"];
    let ended = run(&dir, "own", 2, &args);
    all_say(&ended, 1, "cannot listen on 192.0.2.1:0: ");
    assert!(ended[0].err.contains("--insecure"), "{}", ended[0].err);
}

#[test]
fn ranks_with_certificates_meet_and_others_do_not() {
    let dir = prepared("certs");
    let make = |args: &[&str], code: i32| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_millstream"));
        let output = command.arg("cert").args(args).current_dir(&dir.0).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    make(&["init", "ca"], 0);
    make(&["issue", "ca", "node"], 0);
    assert!(make(&["issue", "ca", "node"], 1).contains("node/node.key: File exists"));
    assert!(make(&["issue", "nowhere", "other"], 1).contains("nowhere/ca.key: No such file"));
    let args = ["q.sql", "--format", "csv", "--certs", "node", "--join-timeout", "3"];
    rows_of_rank_0(&run(&dir, "slurm", 3, &args));
    make(&["init", "theirs"], 0);
    make(&["issue", "theirs", "stranger"], 0);
    let other = args.map(|arg| if arg == "node" { "stranger" } else { arg });
    let own = |rank| if rank == 1 { &other } else { &args };
    let ended = end((0..2).map(|rank| Rank::start(&dir, "slurm", rank, 2, own(rank))).collect());
    // Besides, each refusal is logged.
    let refused = "error: node 1 did not join: a connection was refused within 3 s";
    assert_eq!(ended[0].code, Some(1), "{ended:?}");
    assert!(ended[0].err.contains(refused), "{}", ended[0].err);
    all_say(&ended[1..], 1, "node 0 at 127.0.0.1:");
    assert!(ended[1].err.contains("its certificate is not of this cluster"), "{ended:?}");
}

/// Starts the endless job and waits until rank 0 has printed rows.
fn start_endless(dir: &Dir) -> Vec<Rank> {
    dir.write("q.sql", ENDLESS);
    let args = ["q.sql", "--workers", "1", "--progress", "none"];
    let mut ranks = start(dir, "open", 3, &args);
    for _ in 0..20 {
        assert!(ranks[0].out.read_line(&mut String::new()).unwrap() > 0, "it ended early");
    }
    ranks
}

#[test]
fn a_killed_rank_is_named_by_all_and_nothing_is_published() {
    for victim in [0, 2] {
        let dir = prepared("killed");
        let mut ranks = start_endless(&dir);
        let process = ranks[victim].process.id();
        let began = Instant::now();
        ranks[victim].process.signal(Signal::KILL);
        let dead = ranks.remove(victim);
        let mut ended = end(ranks);
        assert!(began.elapsed() < KNOWN, "{:?}", began.elapsed());
        assert_eq!(dead.end().code, None);
        ended.iter_mut().for_each(|one| one.out.clear());
        all_say(&ended, 1, &format!("node {victim} (process {process}) closed its connection"));
        assert!(!dir.names(".").contains(&"kept.csv".into()), "{:?}", dir.names("."));
    }
}

#[test]
fn a_signal_to_any_rank_ends_all_in_good_order() {
    for (rank, signal) in [(2, Signal::TERM), (0, Signal::INT)] {
        let dir = prepared("signal");
        let ranks = start_endless(&dir);
        ranks[rank].process.signal(signal);
        let ended = end(ranks);
        assert!(ended.iter().all(|one| one.code == Some(130)), "{ended:?}");
        assert!(ended[0].err.contains("; ended early, as asked"), "{}", ended[0].err);
        assert!(ended.iter().all(|one| !one.err.contains("error")), "{ended:?}");
        let retained = std::fs::read_to_string(dir.0.join("kept.csv")).unwrap();
        assert!(retained.starts_with("n\n") && retained.lines().count() > 1);
    }
}
