//! Real processes that read from pipes and sockets.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;

use tests::command::{Dir, Outcome, Running, run, run_piped, run_sql};

const SUMS: &str = "CREATE TABLE x (k STRING, n BIGINT) WITH ('connector' = 'stdin');
SELECT k, SUM(n) AS total, COUNT(*) AS count FROM x GROUP BY k ORDER BY k;";

/// `k,n` for 30,000 rows of three keys, and what they add up to, counted another way.
fn sample() -> (String, String) {
    let mut text = "k,n\n".to_owned();
    let mut totals = [0_u64; 3];
    for n in 0..30_000 {
        text += &format!("k{},{n}\n", n % 3);
        totals[n as usize % 3] += n;
    }
    let line = |(k, total): (usize, &u64)| format!("k{k},{total},10000\n");
    let lines: String = totals.iter().enumerate().map(line).collect();
    (text, format!("k,total,count\n{lines}"))
}

#[test]
fn what_is_piped_in_is_read_by_node_0_of_any_number() {
    let (text, expected) = sample();
    for nodes in ["1", "3"] {
        let dir = Dir::new("stdin");
        dir.write("q.sql", SUMS);
        let args = ["run", "q.sql", "--format", "csv", "--nodes", nodes];
        let outcome = run_piped(&dir, &args, text.as_bytes()).ended(0);
        assert_eq!(outcome.out, expected, "{nodes} nodes");
    }
}

#[test]
fn what_is_piped_in_can_be_read_once() {
    let dir = Dir::new("stdin-twice");
    dir.write("q.sql", format!("{SUMS}\nSELECT COUNT(*) FROM x;"));
    let outcome = run_piped(&dir, &["run", "q.sql"], b"k,n\na,1\n").ended(1);
    outcome.one_error("stdin: it was read already", "write its rows to a file first");
}

/// A shell gives a process substitution the same kind of name.
#[test]
fn a_pipe_with_the_name_of_a_descriptor_is_read_by_node_0_of_any_number() {
    let (text, expected) = sample();
    let sums = SUMS.replace("'stdin'", "'file', 'path' = '/dev/fd/0', 'format' = 'csv'");
    for layout in [["--nodes", "1", "--workers", "4"], ["--nodes", "3", "--workers", "2"]] {
        let dir = Dir::new("descriptor");
        dir.write("q.sql", &sums);
        let args = [&["run", "q.sql", "--format", "csv"], &layout[..]].concat();
        let outcome = run_piped(&dir, &args, text.as_bytes()).ended(0);
        assert_eq!(outcome.out, expected, "{layout:?}");
    }
}

#[test]
fn a_pipe_is_not_read_twice_by_a_query() {
    let dir = Dir::new("descriptor-twice");
    let table = "'connector' = 'file', 'path' = '/dev/fd/0', 'format' = 'csv'";
    let table = format!("CREATE TABLE x (k BIGINT) WITH ({table});");
    dir.write("q.sql", format!("{table}\nSELECT a.k FROM x AS a JOIN x AS b ON a.k = b.k;"));
    let outcome = run_piped(&dir, &["run", "q.sql"], b"k\n1\n").ended(1);
    let message = "/dev/fd/0: is a pipe that another scan reads";
    outcome.one_error(message, "write its rows to a file first");
}

/// Good and bad rows of a table that can be read once go different ways.
const BOTH_WAYS: &str = "BEGIN STATEMENT SET;
INSERT INTO good SELECT n FROM x;
INSERT INTO bad SELECT reason, text FROM x__bad;
END;";

const ONE_AFTER_THE_OTHER: &str = "INSERT INTO good SELECT n FROM x;
INSERT INTO bad SELECT reason, text FROM x__bad;";

/// Tables `good` and `bad`, and a script behind them.
fn sorted_out(table: &str, statements: &str) -> String {
    let sink = |name: &str, columns: &str| {
        let options = format!("'connector' = 'file', 'path' = '{name}.csv'");
        format!("CREATE TABLE {name} ({columns}) WITH ({options});")
    };
    let (good, bad) = (sink("good", "n BIGINT"), sink("bad", "reason STRING, text STRING"));
    format!(
        "CREATE TABLE x (k STRING, n BIGINT) WITH ({table}, 'on_bad' = 'table');
         {good} {bad} {statements}"
    )
}

/// Both files must hold what there is in the sample with two bad rows.
#[track_caller]
fn were_sorted_out(dir: &Dir, outcome: &Outcome) {
    assert_eq!(dir.read("good.csv"), "n\n1\n3\n4\n");
    // Bad rows have no order.
    let mut bad: Vec<String> = dir.read("bad.csv").lines().map(str::to_owned).collect();
    bad[1..].sort();
    let fields = "\"expected 2 fields, found 3\",\"e,5,6\"";
    assert_eq!(bad, ["reason,text", fields, "column 'n': 'two' is not a valid BIGINT,\"b,two\""]);
    assert!(outcome.err.contains("2 rows could not be read"), "{}", outcome.err);
    assert!(!outcome.err.contains("bad row"), "they are shown: {}", outcome.err);
}

#[test]
fn bad_rows_of_what_is_piped_in_are_left_to_their_table() {
    for (nodes, statements) in [("1", BOTH_WAYS), ("2", BOTH_WAYS), ("1", ONE_AFTER_THE_OTHER)] {
        let dir = Dir::new("stdin-bad");
        dir.write("q.sql", sorted_out("'connector' = 'stdin'", statements));
        let piped = b"k,n\na,1\nb,two\nc,3\ne,5,6\nd,4\n";
        let outcome = run_piped(&dir, &["run", "q.sql", "--nodes", nodes], piped).ended(0);
        were_sorted_out(&dir, &outcome);
    }
}

#[test]
fn bad_rows_of_a_socket_are_left_to_their_table() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its address");
    let server = std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().expect("a connection");
        socket.write_all(b"a,1\nb,two\nc,3\ne,5,6\nd,4\n").expect("some lines");
    });
    let dir = Dir::new("socket-bad");
    let table = format!("'connector' = 'socket', 'address' = '{address}'");
    let outcome = run_sql(&dir, &sorted_out(&table, BOTH_WAYS), &["--workers", "2"]).ended(0);
    server.join().expect("the server");
    were_sorted_out(&dir, &outcome);
}

#[test]
fn a_socket_gives_windows_while_it_goes_on_and_ctrl_c_ends_it() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its address");
    let server = std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().expect("a connection");
        for second in 0..4 {
            writeln!(socket, "1970-01-01 00:00:0{second},{second}").expect("a line");
        }
        // Silent, until the other side hangs up.
        let mut rest = Vec::new();
        let _ = socket.read_to_end(&mut rest);
    });
    let sql = format!(
        "CREATE TABLE s (at TIMESTAMP(3), n BIGINT, WATERMARK FOR at AS at)
         WITH ('connector' = 'socket', 'address' = '{address}');
         SELECT window_end, SUM(n) AS n FROM TABLE(
           TUMBLE(TABLE s, DESCRIPTOR(at), INTERVAL '1' SECOND)) GROUP BY window_start, window_end;"
    );
    let dir = Dir::new("socket");
    // The header and three windows: the fourth is open.
    let running = Running::start(&dir, &sql, &["--format", "csv", "--workers", "1"], 4);
    running.interrupt();
    let outcome = running.end().ended(130);
    assert!(!outcome.err.contains("error"), "{}", outcome.err);
    assert_eq!(outcome.out, "", "a window that is open is not given out");
    server.join().expect("the peer was hung up on");
}

#[test]
fn secrets_are_in_no_output() {
    let port = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("it");
    let dir = Dir::new("secrets");
    let sql = format!(
        "CREATE TABLE s (n BIGINT) WITH (
           'connector' = 'file',
           'path' = 's3://bucket/t.csv',
           's3.endpoint' = 'http://{port}',
           's3.access_key_id' = 'me',
           's3.secret_access_key' = 'hush',
           'retry.timeout' = '0'
         );
         SELECT * FROM s;"
    );
    let outcome = run_sql(&dir, &sql, &[]).ended(2);
    outcome.one_error("table 's': s3://bucket/t.csv: ", "check 'path'");
    assert!(!outcome.err.contains("hush"), "{}", outcome.err);

    let sql = "CREATE TABLE h (n BIGINT) WITH (
      'connector' = 'http', 'header.authorization' = 'hush',
      'url' = 'http://me:hush@127.0.0.1:1/x?token=hush', 'retry.timeout' = '0');
      EXPLAIN SELECT * FROM h;";
    let outcome = run_sql(&dir, sql, &[]).ended(0);
    assert!(outcome.out.contains("h") && !outcome.out.contains("hush"), "{}", outcome.out);
    fs::write(dir.path().join("q.sql"), sql.replace("EXPLAIN ", "")).expect("a file");
    let outcome = run(&dir, &["run", "q.sql"]).ended(1);
    assert!(outcome.err.contains("http://127.0.0.1:1/x?…: cannot be reached"), "{}", outcome.err);
    assert!(!outcome.err.contains("hush"), "{}", outcome.err);
}
