//! Whole jobs, as processes: `millstream run` of SQL that reads and writes topics.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::broker::{Seen, address, messages, script, send, topic, values, wait_until, widen};

/// A folder, which is removed at the end.
pub struct Dir(PathBuf);

impl Dir {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("millstream-world-{}-{next}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn write(&self, name: &str, text: &str) {
        fs::write(self.0.join(name), text).unwrap();
    }

    fn millstream(&self, arguments: &[&str]) -> Command {
        let program = std::env::var("MILLSTREAM_BIN").expect("the script builds the program");
        let mut command = Command::new(program);
        command.args(arguments).current_dir(&self.0).stdin(Stdio::null());
        command
    }

    /// Runs SQL that ends; gives what it has written to the terminal, with errors behind.
    fn run(&self, sql: &str, arguments: &[&str]) -> (bool, String) {
        self.write("q.sql", sql);
        let arguments = [&["run", "q.sql"], arguments].concat();
        let done = self.millstream(&arguments).output().unwrap();
        let text = [done.stdout, done.stderr].concat();
        (done.status.success(), String::from_utf8_lossy(&text).into_owned())
    }

    #[track_caller]
    fn succeeds(&self, sql: &str, arguments: &[&str]) -> String {
        let (success, text) = self.run(sql, arguments);
        assert!(success, "{text}");
        text
    }

    /// The standard error of a job.
    pub fn log(&self) -> String {
        fs::read_to_string(self.0.join("log")).unwrap()
    }

    /// The lines of a file without the first, sorted.
    fn rows(&self, name: &str) -> Vec<String> {
        let text = fs::read_to_string(self.0.join(name)).unwrap();
        let mut rows: Vec<String> = text.lines().skip(1).map(str::to_owned).collect();
        rows.sort();
        rows
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A job that goes on until it is killed.
pub struct Job(Child);

impl Job {
    pub fn start(dir: &Dir, arguments: &[&str]) -> Self {
        let log = fs::OpenOptions::new().create(true).append(true).open(dir.0.join("log")).unwrap();
        let mut command = dir.millstream(arguments);
        command.stdout(Stdio::null()).stderr(log).process_group(0);
        Self(command.spawn().unwrap())
    }

    /// How it has ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().unwrap()
    }

    /// Kills all its processes at once.
    pub fn kill(&mut self) {
        let group = format!("-{}", self.0.id());
        let killed = Command::new("kill").args(["-KILL", "--", &group]).output().unwrap();
        drop(killed);
        self.0.wait().unwrap();
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The declaration of a topic.
pub fn declare(table: &str, topic: &str, columns: &str, options: &str) -> String {
    let servers = address();
    format!(
        "CREATE TABLE {table} ({columns}) WITH ('connector' = 'kafka', 'topic' = '{topic}',
         'properties.bootstrap.servers' = '{servers}', 'format' = 'json'{options});\n"
    )
}

/// How often something is killed.
pub fn kills() -> usize {
    std::env::var("MILLSTREAM_KILLS").map_or(6, |kills| kills.parse().unwrap())
}

const COLUMNS: &str = "n BIGINT, text STRING, price DOUBLE";

fn file(table: &str, name: &str) -> String {
    format!("CREATE TABLE {table} ({COLUMNS}) WITH ('connector' = 'file', 'path' = '{name}');\n")
}

#[test]
fn rows_in_are_rows_out() {
    let dir = Dir::new();
    let mut lines = vec!["n,text,price".to_owned()];
    for n in 0..20_000 {
        let text = if n % 11 == 0 { String::new() } else { format!("t {n}") };
        let price = if n % 5 == 0 { String::new() } else { format!("{}.5", n % 100) };
        lines.push(format!("{n},{text},{price}"));
    }
    lines.push("20000,\"two, and \"\"quotes\"\"\",".into());
    dir.write("in.csv", &lines.join("\n"));
    let there = topic("there", 4, &[]);
    let to = file("given", "in.csv")
        + &declare("there", &there, COLUMNS, ", 'key.fields' = 'text'")
        + "INSERT INTO there SELECT * FROM given;";
    dir.succeeds(&to, &["--workers", "2"]);
    assert_eq!(messages(&there, true).len(), 20_001);
    let expected = {
        let mut rows: Vec<String> = lines[1..].to_vec();
        rows.sort();
        rows
    };
    for arguments in [&["--workers", "1"][..], &["--workers", "3"], &["--nodes", "2"]] {
        let from = declare("there", &there, COLUMNS, ", 'scan.bounded.mode' = 'latest-offset'")
            + &file("back", "out.csv")
            + "INSERT INTO back SELECT * FROM there;";
        dir.succeeds(&from, arguments);
        assert_eq!(dir.rows("out.csv"), expected, "{arguments:?}");
    }
}

/// The columns that Flink's connector writes beside the value.
#[test]
fn metadata_of_messages_is_written_unless_it_is_virtual() {
    let dir = Dir::new();
    let columns = "at TIMESTAMP(3) METADATA FROM 'timestamp', n BIGINT, key STRING METADATA,
                   headers MAP<STRING, BYTES> METADATA, place BIGINT METADATA FROM 'offset'";
    let rows = "INSERT INTO there SELECT to_timestamp_millis(1700000000000 + n), n,
                       CASE WHEN n < 3 THEN 'k' || n END,
                       CASE WHEN n > 1 THEN MAP(['trace'], [arrow_cast('t' || n, 'Binary')]) END
                FROM (VALUES (1), (2), (3)) AS v(n);";
    for exactly_once in [false, true] {
        // Messages of years ago would be deleted.
        let there = topic("noted", 1, &[("retention.ms", "-1")]);
        let (guarantee, state) = if exactly_once {
            let id = format!(
                ", 'sink.delivery-guarantee' = 'exactly-once',
                   'sink.transactional-id-prefix' = '{there}'"
            );
            (id, &["--state", "state"][..])
        } else {
            (String::new(), &[][..])
        };
        dir.succeeds(&(declare("there", &there, columns, &guarantee) + rows), state);
        assert_eq!(values(&there, true), [r#"{"n":1}"#, r#"{"n":2}"#, r#"{"n":3}"#]);
        let back = declare("there", &there, columns, ", 'scan.bounded.mode' = 'latest-offset'")
            + "CREATE TABLE back (at TIMESTAMP(3), n BIGINT, key STRING, trace STRING)
               WITH ('connector' = 'file', 'path' = 'out.csv');
               INSERT INTO back
               SELECT at, n, key, CAST(element_at(headers, 'trace')[1] AS STRING) FROM there;";
        dir.succeeds(&back, &[]);
        let expected = [
            "2023-11-14 22:13:20.001,1,k1,",
            "2023-11-14 22:13:20.002,2,k2,t2",
            "2023-11-14 22:13:20.003,3,,t3",
        ];
        assert_eq!(dir.rows("out.csv"), expected, "exactly once: {exactly_once}");
    }
    let read_only =
        columns.replace("METADATA FROM 'timestamp'", "METADATA FROM 'timestamp' VIRTUAL");
    let refused = declare("there", "noted", &read_only, "") + rows;
    let (success, text) = dir.run(&refused, &[]);
    assert!(!success && text.contains("columns"), "{text}");
}

#[test]
fn windows_over_partitions_are_those_of_the_rows() {
    let dir = Dir::new();
    let topic = topic("windows", 3, &[]);
    // A partition that is far behind the others holds the watermark back.
    for partition in 0..3 {
        let rows: Vec<String> = (0..600)
            .map(|n| format!(r#"{{"at": "2024-01-01 00:{:02}:{:02}", "n": {n}}}"#, n / 60, n % 60))
            .collect();
        send(&topic, partition, rows.iter().map(String::as_str));
    }
    let columns = "at TIMESTAMP(3), n BIGINT, partition BIGINT METADATA, \
                   WATERMARK FOR at AS at - INTERVAL '0' SECOND";
    let sql = declare("events", &topic, columns, ", 'scan.bounded.mode' = 'latest-offset'")
        + "CREATE TABLE counts (at TIMESTAMP(3), rows BIGINT, partitions BIGINT)
           WITH ('connector' = 'file', 'path' = 'out.csv');
           INSERT INTO counts SELECT window_start, count(*), count(DISTINCT partition)
           FROM TABLE(TUMBLE(TABLE events, DESCRIPTOR(at), INTERVAL '1' MINUTE))
           GROUP BY window_start, window_end;";
    for arguments in [&["--workers", "1"][..], &["--workers", "2"], &["--nodes", "2"]] {
        dir.succeeds(&sql, arguments);
        let rows = dir.rows("out.csv");
        let expected: Vec<String> =
            (0..10).map(|minute| format!("2024-01-01 00:{minute:02}:00,180,3")).collect();
        assert_eq!(rows, expected, "{arguments:?}");
    }
}

/// Workers of several processes share the partitions of topics of which each makes its own list.
#[test]
fn each_message_of_several_topics_is_read_once_by_all_nodes() {
    let dir = Dir::new();
    let topics = [1, 3, 2].map(|partitions| topic("several", partitions, &[]));
    let mut expected = vec![];
    for (at, (name, partitions)) in topics.iter().zip([1, 3, 2]).enumerate() {
        for partition in 0..partitions {
            let from = 1000 * at + 100 * partition as usize;
            let values: Vec<String> =
                (from..from + 50).map(|n| format!(r#"{{"n": {n}}}"#)).collect();
            send(name, partition, values.iter().map(String::as_str));
            expected.extend((from..from + 50).map(|n| format!("{n},{name}")));
        }
    }
    expected.sort();
    let (columns, ends) =
        ("n BIGINT, topic STRING METADATA", "'scan.bounded.mode' = 'latest-offset'");
    let list = declare("t", &topics.join(";"), columns, &format!(", {ends}"));
    // The names of topics of this test have the number of the process in them.
    let pattern = format!("several-{}-.*", std::process::id());
    let pattern = declare("t", &pattern, columns, &format!(", {ends}"))
        .replace("'topic' =", "'topic-pattern' =");
    for from in [list, pattern] {
        let sql = from
            + "CREATE TABLE back (n BIGINT, topic STRING)
               WITH ('connector' = 'file', 'path' = 'out.csv');
               INSERT INTO back SELECT * FROM t;";
        for arguments in [&["--workers", "1"][..], &["--workers", "3"], &["--nodes", "3"]] {
            dir.succeeds(&sql, arguments);
            assert_eq!(dir.rows("out.csv"), expected, "{arguments:?}");
        }
    }
}

/// A job goes on behind a kill, and finds a topic that came meanwhile.
#[test]
fn a_job_over_a_pattern_goes_on_and_finds_what_came() {
    let dir = Dir::new();
    let first = topic("grows", 2, &[]);
    let to = topic("grown", 1, &[]);
    let pattern = format!("grows-{}-.*", std::process::id());
    let options = ", 'scan.topic-partition-discovery.interval' = '100 ms'";
    let exact = format!(
        ", 'sink.delivery-guarantee' = 'exactly-once', 'sink.transactional-id-prefix' = '{to}'"
    );
    let sql = "SET 'millstream.checkpoint' = '100 ms';\n".to_owned()
        + &declare("t", &pattern, "n BIGINT", options).replace("'topic' =", "'topic-pattern' =")
        + &declare("back", &to, "n BIGINT", &exact)
        + "INSERT INTO back SELECT n FROM t;";
    dir.write("q.sql", &sql);
    let arguments = ["run", "q.sql", "--state", "state", "--nodes", "2", "--workers", "1"];
    let value = |n: usize| format!(r#"{{"n":{n}}}"#);
    let mut sent = 0;
    let mut send_to = |topic: &str, partition: i32| {
        let values: Vec<String> = (sent..sent + 40).map(value).collect();
        send(topic, partition, values.iter().map(String::as_str));
        sent += 40;
        let mut all: Vec<String> = (0..sent).map(value).collect();
        all.sort();
        all
    };
    let mut job = Job::start(&dir, &arguments);
    let expected = send_to(&first, 0);
    wait_until("the first topic is read", || values(&to, true) == expected);
    let second = topic("grows", 3, &[]);
    send_to(&second, 2);
    let expected = send_to(&first, 1);
    wait_until("a topic that came is read", || values(&to, true) == expected);
    job.kill();
    let third = topic("grows", 1, &[]);
    send_to(&third, 0);
    let expected = send_to(&second, 1);
    let _job = Job::start(&dir, &arguments);
    wait_until("it goes on", || values(&to, true) == expected);
}

#[test]
fn a_thousand_broken_messages_of_a_million_are_rows_of_the_table_of_bad_rows() {
    const ROWS: usize = 1_000_000;
    let is_broken = |n: &usize| n % 1_000 == 3;
    let dir = Dir::new();
    let topic = topic("bad", 2, &[]);
    let value = |n| if is_broken(&n) { format!("broken {n}") } else { format!(r#"{{"n": {n}}}"#) };
    let values: Vec<String> = (0..ROWS).map(value).collect();
    for (partition, values) in (0..).zip(values.chunks(ROWS / 2)) {
        send(&topic, partition, values.iter().map(String::as_str));
    }
    let options = ", 'scan.bounded.mode' = 'latest-offset', 'on_bad' = 'table'";
    let sql = declare("t", &topic, "n BIGINT", options)
        + "CREATE TABLE good (rows BIGINT, sum BIGINT)
           WITH ('connector' = 'file', 'path' = 'good.csv');
           INSERT INTO good SELECT count(*), sum(n) FROM t;
           CREATE TABLE bad (place STRING) WITH ('connector' = 'file', 'path' = 'bad.csv');
           INSERT INTO bad SELECT place FROM t__bad;";
    dir.succeeds(&sql, &[]);
    let sum: usize = (0..ROWS).filter(|n| !is_broken(n)).sum();
    assert_eq!(dir.rows("good.csv"), [format!("{},{sum}", ROWS - ROWS / 1_000)]);
    let place = |n: usize| format!("{topic}[{}]:{}", n / (ROWS / 2), n % (ROWS / 2));
    let mut expected: Vec<String> = (0..ROWS).filter(is_broken).map(place).collect();
    expected.sort();
    assert_eq!(dir.rows("bad.csv"), expected);
}

/// Options as tables of Flink have them.
#[test]
fn the_names_of_flink_do_what_they_do_there() {
    let dir = Dir::new();
    let (from, to) = (topic("flink", 2, &[]), topic("flink-out", 1, &[]));
    send(&from, 0, ["1;'a;b'", "two;c", "3;none"]);
    send(&from, 1, ["4;d"]);
    let flink = |table: &str, topic: &str, options: &str| {
        format!(
            "CREATE TABLE {table} (n BIGINT, text STRING) WITH ('connector' = 'kafka',
             'topic' = '{topic}', 'properties.bootstrap.servers' = '{}', 'key.format' = 'json',
             'scan.startup.mode' = 'earliest-offset', {options});\n",
            address()
        )
    };
    let sql = |ignores: &str| {
        let csv = format!(
            "'value.format' = 'csv', 'csv.field-delimiter' = ';', 'csv.quote-character' = '''',
             'csv.null-literal' = 'none', 'csv.ignore-parse-errors' = '{ignores}',
             'scan.parallelism' = '3', 'scan.bounded.mode' = 'latest-offset'"
        );
        let json = "'key.fields' = 'n', 'value.format' = 'json', 'sink.parallelism' = '1',
                    'json.fail-on-missing-field' = 'false',
                    'json.timestamp-format.standard' = 'ISO-8601'";
        flink("t", &from, &csv) + &flink("u", &to, json) + "INSERT INTO u SELECT * FROM t;"
    };
    let (success, text) = dir.run(&sql("false"), &[]);
    assert!(!success && text.contains(&format!("{from}[0]:1")), "{text}");
    dir.succeeds(&sql("true"), &["--workers", "2"]);
    let mut written = values(&to, true);
    // Rows of the job that failed may have been sent before it did.
    written.dedup();
    let expected = [r#"{"n":1,"text":"a;b"}"#, r#"{"n":3,"text":null}"#, r#"{"n":4,"text":"d"}"#];
    assert_eq!(written, expected);
}

#[test]
fn a_broker_that_is_not_there_is_an_error_at_once() {
    let dir = Dir::new();
    let sql = "CREATE TABLE t (n BIGINT) WITH ('connector' = 'kafka', 'topic' = 't', \
               'properties.bootstrap.servers' = '127.0.0.1:1', 'format' = 'json', \
               'retry.timeout' = '1 s'); SELECT * FROM t;";
    let (success, text) = dir.run(sql, &[]);
    assert!(!success && text.contains("no broker can be reached"), "{text}");
    assert!(text.contains("127.0.0.1:1"), "{text}");
    let sql =
        declare("t", "t", "n BIGINT", ", 'properties.fetch.wibble' = '1'") + "SELECT * FROM t;";
    let (success, text) = dir.run(&sql, &[]);
    assert!(!success && text.contains("fetch.wibble"), "{text}");
}

#[test]
fn two_inserts_by_one_transactional_id_are_refused() {
    let dir = Dir::new();
    let topics = [topic("one-id", 1, &[]), topic("one-id", 1, &[])];
    dir.write("in.csv", "n\n1\n2\n3\n");
    let exactly = |name: &str, topic: &str| {
        let id = &topics[0];
        let exactly = format!(
            ", 'sink.delivery-guarantee' = 'exactly-once', 'sink.transactional-id-prefix' = '{id}'"
        );
        declare(name, topic, "n BIGINT", &exactly)
    };
    let tables = exactly("a", &topics[0])
        + &exactly("b", &topics[1])
        + "CREATE TABLE given (n BIGINT) WITH ('connector' = 'file', 'path' = 'in.csv');\n";
    // Equal rows: by the checksum alone the second publication is the first.
    for tables_of_inserts in [["a", "a"], ["a", "b"]] {
        let [first, second] =
            tables_of_inserts.map(|to| format!("INSERT INTO {to} SELECT n FROM given;\n"));
        let set = format!("{tables}EXECUTE STATEMENT SET BEGIN\n{first}{second}END;\n");
        let (success, text) = dir.run(&set, &["--state", "state"]);
        let seen = topics.each_ref().map(|topic| values(topic, true));
        assert!(!success && seen.iter().all(Vec::is_empty), "{text}\n{seen:?}");
        assert!(text.contains("two INSERTs of a statement set write to the same place"), "{text}");
        assert!(text.contains("has the 'sink.transactional-id-prefix' of the one in"), "{text}");
    }
    let both = "INSERT INTO a SELECT n FROM given UNION ALL SELECT n FROM given;";
    dir.succeeds(&(tables + both), &["--state", "state"]);
    let expected = [1, 1, 2, 2, 3, 3].map(|n| format!("{{\"n\":{n}}}"));
    assert_eq!(values(&topics[0], true), expected);
}

/// The values that a copy of the rows has.
fn copied(rows: usize) -> Vec<String> {
    let mut all: Vec<String> = (0..rows).map(|n| format!("{{\"n\":{n}}}")).collect();
    all.sort();
    all
}

#[test]
fn the_example_of_the_documentation_works_as_it_stands() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/connectors.md");
    let page = fs::read_to_string(page).unwrap();
    let section = page.split_once("\n## `kafka`\n").unwrap().1;
    let example = section.split_once("```sql\n").unwrap().1.split_once("```").unwrap().0;
    let (clicks, counts) = (topic("clicks", 2, &[]), topic("counts", 1, &[]));
    let mut sql = format!("SET 'millstream.checkpoint' = '100 ms';\n{example}");
    for (there, here) in [
        ("localhost:9092", address()),
        ("'topic' = 'clicks'", format!("'topic' = '{clicks}'")),
        ("'topic' = 'counts'", format!("'topic' = '{counts}'")),
    ] {
        assert!(sql.contains(there), "{there}: {sql}");
        sql = sql.replace(there, &here);
    }
    let dir = Dir::new();
    dir.write("clicks.sql", &sql);
    let row = |second: usize, page: &str| {
        format!(r#"{{"at": "2024-01-01 00:00:{second:02}", "page": "{page}", "price": 1.5}}"#)
    };
    let end = r#"{"at": "2024-01-01 00:05:00", "page": "c", "price": 2}"#;
    for partition in 0..2 {
        let rows: Vec<String> =
            (0..60).map(|second| row(second, ["a", "b"][usize::from(second % 3 == 0)])).collect();
        send(&clicks, partition, rows.iter().map(String::as_str).chain([end]));
    }
    let mut job = Job::start(&dir, &["run", "clicks.sql", "--state", "state"]);
    wait_until("the counts come", || {
        assert_eq!(job.ended(), None, "the job ended: {}", dir.log());
        values(&counts, true).len() >= 2
    });
    let count = |page: &str, clicks: usize| Seen {
        partition: 0,
        key: Some(page.into()),
        value: Some(format!(
            r#"{{"minute":"2024-01-01T00:00:00","page":"{page}","clicks":{clicks}}}"#
        )),
    };
    let mut seen = messages(&counts, true);
    seen.sort();
    assert_eq!(seen, [count("a", 80), count("b", 40)]);
    job.kill();
}

#[test]
fn partitions_that_a_topic_gets_are_read_from_their_beginning_and_once() {
    let dir = Dir::new();
    let (from, to) = (topic("grows", 1, &[]), topic("grown", 1, &[]));
    let given = ", 'scan.startup.mode' = 'latest-offset', \
                 'scan.topic-partition-discovery.interval' = '200 ms'";
    let exactly = format!(
        ", 'sink.delivery-guarantee' = 'exactly-once', 'sink.transactional-id-prefix' = '{to}'"
    );
    let sql = "SET 'millstream.checkpoint' = '100 ms';\n".to_owned()
        + &declare("given", &from, "n BIGINT", given)
        + &declare("copied", &to, "n BIGINT", &exactly)
        + "INSERT INTO copied SELECT n FROM given;";
    dir.write("q.sql", &sql);
    send(&from, 0, ["{\"n\": -2}"]);
    // More workers than partitions: those without any wait for some.
    let arguments = ["run", "q.sql", "--state", "state", "--workers", "2", "--nodes", "2"];
    let mut job = Job::start(&dir, &arguments);
    let seen = || {
        let is_row = |value: &String| *value != "{\"n\":-1}";
        values(&to, true).into_iter().filter(is_row).collect::<Vec<_>>()
    };
    wait_until("the job begins", || {
        send(&from, 0, ["{\"n\": -1}"]);
        !values(&to, true).is_empty()
    });
    let mut sent = 0;
    let mut more = |partition: i32| {
        let rows: Vec<String> = (sent..sent + 50).map(|n| format!("{{\"n\": {n}}}")).collect();
        send(&from, partition, rows.iter().map(String::as_str));
        sent += 50;
        sent
    };
    let comes = |rows: usize| {
        wait_until("the rows come", || seen().len() >= rows);
        assert_eq!(seen(), copied(rows), "{}", dir.log());
    };
    // They have messages before the job knows of them.
    widen(&from, 3);
    more(1);
    comes(more(2));
    comes(more(0));
    job.kill();
    widen(&from, 4);
    more(3);
    more(2);
    job = Job::start(&dir, &arguments);
    comes(more(0));
    widen(&from, 5);
    comes(more(4));
    job.kill();
    comes(more(4) - 50);
    assert!(dir.log().contains("goes on from checkpoint"), "{}", dir.log());
}

#[test]
fn nothing_is_lost_or_doubled_when_job_and_broker_are_killed() {
    let kills = kills();
    let rows_each = (12_000 / kills).max(20);
    let dir = Dir::new();
    let (from, to) = (topic("from", 3, &[]), topic("to", 2, &[]));
    let exactly = format!(
        ", 'sink.delivery-guarantee' = 'exactly-once', 'sink.transactional-id-prefix' = '{to}'"
    );
    let sql = "SET 'millstream.checkpoint' = '100 ms';\n".to_owned()
        + &declare("given", &from, "n BIGINT", "")
        + &declare("copied", &to, "n BIGINT", &exactly)
        + "INSERT INTO copied SELECT n FROM given;";
    dir.write("q.sql", &sql);
    let arguments = ["run", "q.sql", "--state", "state", "--workers", "1"];
    let mut job = Job::start(&dir, &[&arguments[..], &["--nodes", "2"]].concat());
    let mut sent = 0;
    for kill in 0..kills {
        for partition in 0..3 {
            let rows: Vec<String> =
                (sent..sent + rows_each).map(|n| format!("{{\"n\": {n}}}")).collect();
            send(&from, partition, rows.iter().map(String::as_str));
            sent += rows_each;
        }
        // Some rows of the last ones are there, or none: each kill finds the job elsewhere.
        let least = sent - 3 * rows_each + kill % 6 * rows_each / 2;
        wait_until("rows come", || {
            assert_eq!(job.ended(), None, "the job ended: {}", dir.log());
            values(&to, true).len() >= least
        });
        if kill % 2 == 0 {
            job.kill();
            job = Job::start(&dir, &[&arguments[..], &["--nodes", "2"]].concat());
        } else {
            script("kill");
            script("restart");
        }
    }
    wait_until("all rows come", || values(&to, true).len() >= sent);
    let log = dir.log();
    assert_eq!(values(&to, true), copied(sent), "{log}");
    job.kill();
    assert_eq!(values(&to, true), copied(sent), "{log}");
    assert!(log.contains("goes on from checkpoint"), "{log}");
}
