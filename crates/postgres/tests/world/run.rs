//! Whole jobs, as processes: `millstream run` of SQL that writes tables.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::server::{lines, made, psql, script, url, waits_for};

/// A folder, which is removed at the end.
pub struct Dir(pub PathBuf);

impl Dir {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("millstream-postgres-{}-{next}", std::process::id());
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
    pub fn run(&self, sql: &str, arguments: &[&str]) -> (bool, String) {
        self.write("q.sql", sql);
        let arguments = [&["run", "q.sql"], arguments].concat();
        let done = self.millstream(&arguments).output().unwrap();
        let text = [done.stdout, done.stderr].concat();
        (done.status.success(), String::from_utf8_lossy(&text).into_owned())
    }

    #[track_caller]
    pub fn succeeds(&self, sql: &str, arguments: &[&str]) -> String {
        let (success, text) = self.run(sql, arguments);
        assert!(success, "{text}");
        text
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// How often something is killed.
pub fn kills() -> usize {
    std::env::var("MILLSTREAM_KILLS").map_or(6, |kills| kills.parse().unwrap())
}

/// A job that goes on until it ends or is killed.
pub struct Job(Child);

impl Job {
    pub fn start(dir: &Dir, arguments: &[&str]) -> Self {
        let log = fs::OpenOptions::new().create(true).append(true).open(dir.0.join("log")).unwrap();
        let mut command = dir.millstream(arguments);
        command.stdout(Stdio::null()).stderr(log).process_group(0);
        Self(command.spawn().unwrap())
    }

    /// Kills all its processes at once.
    pub fn kill(&mut self) {
        let group = format!("-{}", self.0.id());
        let killed = Command::new("kill").args(["-KILL", "--", &group]).output().unwrap();
        drop(killed);
        self.0.wait().unwrap();
    }

    /// Whether it has ended, and how.
    pub fn ended(&mut self) -> Option<bool> {
        self.0.try_wait().unwrap().map(|status| status.success())
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The declaration of a table.
pub fn declare(name: &str, columns: &str, options: &str) -> String {
    let url = url();
    format!(
        "CREATE TABLE {name} ({columns}) WITH ('connector' = 'postgres', 'url' = '{url}',
         'username' = 'postgres', 'table-name' = '{name}'{options});\n"
    )
}

fn file(table: &str, columns: &str) -> String {
    format!(
        "CREATE TABLE {table} ({columns}) WITH ('connector' = 'file', 'path' = '{table}.csv');\n"
    )
}

#[test]
fn rows_of_a_file_are_rows_of_a_table() {
    let dir = Dir::new();
    let mut rows: Vec<String> =
        (0..20_000).map(|n| format!("{n},t {},{}.5", n % 7, n % 100)).collect();
    rows.push("20000,\"two, and \"\"quotes\"\"\",".into());
    dir.write("given.csv", &format!("n,text,price\n{}\n", rows.join("\n")));
    let columns = "n BIGINT, text STRING, price DOUBLE";
    let key = ", CONSTRAINT k PRIMARY KEY (n) NOT ENFORCED";
    for (options, key) in [("", ""), (key, " PRIMARY KEY")] {
        let table = made("copied", &format!("n bigint{key}, text text, price double precision"));
        let sql = file("given", columns)
            + &declare(&table, &format!("{columns}{options}"), "")
            + &format!("INSERT INTO {table} SELECT * FROM given;");
        for arguments in [&["--workers", "2"][..], &["--nodes", "2"], &["--state", "state"]] {
            psql(&format!("DELETE FROM {table}"));
            let arguments = [arguments, &["--job", &table]].concat();
            let arguments =
                if arguments[0] == "--state" { &arguments[..] } else { &arguments[..2] };
            dir.succeeds(&sql, arguments);
            let sum = "count(*), count(price), sum(n), sum(price)";
            let shown = psql(&format!("SELECT {sum} FROM {table}"));
            assert_eq!(shown, "20001|20000|200010000|1000000", "{arguments:?}");
            let last = psql(&format!("SELECT text FROM {table} WHERE n = 20000"));
            assert_eq!(last, "two, and \"quotes\"");
        }
    }
}

#[test]
fn a_table_of_flink_works_as_it_is() {
    let dir = Dir::new();
    let table = made("orders", "id integer PRIMARY KEY, total numeric(10, 2), at timestamp(3)");
    dir.write(
        "given.csv",
        "id,total,at\n1,2.50,2024-05-06 07:08:09.123\n1,3.75,2024-05-06 07:08:10\n",
    );
    let url = url();
    let columns = "id INT, total DECIMAL(10, 2), at TIMESTAMP(3)";
    let keyed = columns.replace("id INT", "id INT PRIMARY KEY NOT ENFORCED");
    let sql = file("given", columns)
        + &format!(
            "CREATE TABLE sums ({keyed}) WITH (
             'connector' = 'jdbc', 'url' = 'jdbc:{url}&reWriteBatchedInserts=true',
             'table-name' = '{table}', 'username' = 'postgres', 'password' = 'x',
             'driver' = 'org.postgresql.Driver',
             'sink.buffer-flush.max-rows' = '100', 'sink.buffer-flush.interval' = '1s');
             INSERT INTO sums SELECT * FROM given;"
        );
    dir.succeeds(&sql, &[]);
    assert_eq!(lines(&format!("SELECT * FROM {table}")), ["1|3.75|2024-05-06 07:08:10"]);
}

#[test]
fn what_is_wrong_is_told_at_its_place_and_without_the_password() {
    let dir = Dir::new();
    let table = made("wrong", "n bigint, text text");
    dir.write("given.csv", "n,text\n1,a\n");
    let run = |declared: &str| {
        let insert = format!("INSERT INTO {table} SELECT * FROM given;");
        dir.run(&(file("given", "n BIGINT, text STRING") + declared + &insert), &[])
    };
    let (success, text) = run(&declare(&table, "n BIGINT, texts STRING", ", 'password' = 'hush'"));
    assert!(!success && text.contains("did you mean 'text'?"), "{text}");
    assert!(!text.contains("hush"), "{text}");
    let key = "n BIGINT, text STRING, PRIMARY KEY (m) NOT ENFORCED";
    let (success, text) = run(&declare(&table, key, ""));
    assert!(!success && text.contains("unknown column 'm'"), "{text}");
    let (success, text) = run(&declare(&table, "n BIGINT, text STRING", ", 'usernam' = 'a'"));
    assert!(!success && text.contains("username"), "{text}");
    for (key, hint) in
        [("PRIMARY KEY (n) NOT ENFORCED", "have no keys"), ("PRIMARY KEY (n)", "NOT ENFORCED")]
    {
        let sql = file("given", &format!("n BIGINT, text STRING, {key}")) + "SELECT * FROM given;";
        let (success, text) = dir.run(&sql, &[]);
        assert!(!success && text.contains(hint), "{text}");
    }
}

#[test]
fn a_password_stands_elsewhere() {
    let dir = Dir::new();
    let table = made("secret", "n bigint, text text");
    dir.write("given.csv", "n,text\n1,a\n");
    dir.write("password", "right\n");
    let _ = crate::server::try_psql("CREATE ROLE ann LOGIN SUPERUSER");
    psql("SET password_encryption = 'scram-sha-256'; ALTER ROLE ann PASSWORD 'right'");
    let path = dir.0.join("password");
    for (password, is_right) in [
        (format!("${{file:{}}}", path.display()), true),
        ("${MILLSTREAM_TEST_SECRET}".to_owned(), false),
        ("$${file:x}".to_owned(), false),
    ] {
        let declared =
            declare(&table, "n BIGINT, text STRING", &format!(", 'password' = '{password}'"));
        let sql = file("given", "n BIGINT, text STRING")
            + &declared.replace("'username' = 'postgres'", "'username' = 'ann'")
            + &format!("INSERT INTO {table} SELECT * FROM given;");
        let (success, text) = dir.run(&sql, &["--nodes", "2"]);
        assert_eq!(success, is_right, "{text}");
        assert!(!text.contains("right"), "{text}");
    }
    assert_eq!(lines(&format!("SELECT * FROM {table}")), ["1|a"]);
}

#[test]
fn nothing_is_lost_or_doubled_when_job_and_server_are_killed() {
    let kills = kills();
    let rows_each = (60_000 / kills).max(1_000);
    let dir = Dir::new();
    let table = made("killed", "n bigint, text text");
    // The rows of one file at a time: the job reads on while it is killed.
    fs::create_dir_all(dir.0.join("in")).unwrap();
    let add = |from: usize, to: usize| {
        let rows: Vec<String> = (from..to).map(|n| format!("{n},t{}", n % 13)).collect();
        let text = format!("n,text\n{}\n", rows.join("\n"));
        fs::write(dir.0.join("new"), text).unwrap();
        let name = format!("in/{from:08}.csv");
        fs::rename(dir.0.join("new"), dir.0.join(name)).unwrap();
    };
    add(0, 10);
    let sql = "SET 'millstream.checkpoint' = '100 ms';
        CREATE TABLE given (n BIGINT, text STRING) WITH ('connector' = 'file',
        'path' = 'in/*.csv', 'watch' = '50 ms', 'watch.settle' = '0 s');\n"
        .to_owned()
        + &declare(&table, "n BIGINT, text STRING", "")
        + &format!("INSERT INTO {table} SELECT n, text FROM given;");
    dir.write("q.sql", &sql);
    let arguments = ["run", "q.sql", "--state", "state", "--workers", "1", "--nodes", "2"];
    let mut job = Job::start(&dir, &arguments);
    let count = || {
        let shown = crate::server::try_psql(&format!("SELECT count(*) FROM {table}"));
        shown.ok().and_then(|count| count.parse::<usize>().ok()).unwrap_or(0)
    };
    let mut sent = 10;
    for kill in 0..kills {
        let before = sent;
        for _ in 0..10 {
            add(sent, sent + rows_each / 10);
            sent += rows_each / 10;
        }
        // Some of these rows are there, or none: each kill finds the job elsewhere.
        let least = before + kill % 6 * (sent - before) / 12;
        waits_for("rows come", || {
            let log = || fs::read_to_string(dir.0.join("log")).unwrap();
            assert_eq!(job.ended(), None, "{}", log());
            count() >= least
        });
        if kill % 2 == 0 {
            job.kill();
            job = Job::start(&dir, &arguments);
        } else {
            script("kill");
            script("restart");
        }
    }
    let log = || fs::read_to_string(dir.0.join("log")).unwrap();
    waits_for("all rows come", || {
        assert_eq!(job.ended(), None, "{}", log());
        count() >= sent
    });
    job.kill();
    let shown = psql(&format!("SELECT count(*), count(DISTINCT n), max(n) FROM {table}"));
    assert_eq!(shown, format!("{sent}|{sent}|{}", sent - 1), "{}", log());
    assert!(log().contains("goes on from checkpoint"), "{}", log());
}

/// The lines of a file that a job has written, without the first, sorted.
fn written(dir: &Dir, name: &str) -> Vec<String> {
    let text = fs::read_to_string(dir.0.join(name)).unwrap_or_default();
    let mut rows: Vec<String> = text.lines().skip(1).map(str::to_owned).collect();
    rows.sort();
    rows
}

#[test]
fn a_table_is_read_with_the_columns_that_are_needed() {
    let dir = Dir::new();
    let columns = "n bigint, text text, price numeric(10, 2), at timestamptz, tags text[], \
                   big numeric, bytes bytea, ok boolean";
    let table = made("read", columns);
    psql(&format!(
        "INSERT INTO {table} SELECT i, CASE WHEN i % 5 > 0 THEN 't\t' || i END, i * 0.25, \
         '2024-01-01 00:00:00+02'::timestamptz + i * interval '1 second', \
         ARRAY['a,b', NULL], 12345678901234567890, '\\x00ff', i % 2 = 0 \
         FROM generate_series(1, 30000) i"
    ));
    let own = "n INT, text STRING, price DECIMAL(10, 2), at TIMESTAMP_LTZ(3), tags ARRAY<STRING>, \
               bytes BYTES, ok BOOLEAN";
    let sql = declare(&table, own, "")
        + &format!(
            "CREATE TABLE sums (a BIGINT, b BIGINT, c DECIMAL(20, 2), d TIMESTAMP_LTZ(3), \
             e STRING, f BIGINT, g BIGINT) WITH ('connector' = 'file', 'path' = 'sums.csv');
             INSERT INTO sums SELECT sum(n), count(text), sum(price), max(at), max(tags[1]), \
             count(*) FILTER (WHERE ok), count(bytes) FROM {table};"
        );
    for arguments in [&["--workers", "2"][..], &["--nodes", "2"]] {
        dir.succeeds(&sql, arguments);
        let rows = written(&dir, "sums.csv");
        let expected = "450015000,24000,112503750.00,2024-01-01 06:20:00Z,\"a,b\",15000,30000";
        assert_eq!(rows.len(), 1);
        assert_eq!(rows[0].replace(".000", "").replace('T', " "), expected.replace(".000", ""));
    }
    let sql = declare(&table, "n INT, text STRING", "") + &format!("SELECT count(*) FROM {table};");
    assert!(dir.succeeds(&sql, &[]).contains("30000"));
    let sql = declare(&table, "big BIGINT", "") + &format!("SELECT max(big) FROM {table};");
    let (success, text) = dir.run(&sql, &[]);
    assert!(!success && text.contains("out of range"), "{text}");
    let sql = declare(&table, "more BIGINT", "") + &format!("SELECT max(more) FROM {table};");
    let (success, text) = dir.run(&sql, &[]);
    assert!(!success && text.contains("\"more\" does not exist"), "{text}");
}

#[test]
fn a_stream_is_joined_with_the_rows_that_the_table_has_now() {
    let dir = Dir::new();
    let table = made("names", "id integer PRIMARY KEY, name text");
    psql(&format!("INSERT INTO {table} VALUES (1, 'one'), (2, 'two')"));
    let into = made("joined", "n bigint, name text");
    fs::create_dir_all(dir.0.join("in")).unwrap();
    let add = |n: usize, id: usize| {
        fs::write(dir.0.join("new"), format!("n,id\n{n},{id}\n")).unwrap();
        fs::rename(dir.0.join("new"), dir.0.join(format!("in/{n:08}.csv"))).unwrap();
    };
    add(0, 1);
    let sql = "CREATE TABLE given (n BIGINT, id INT) WITH ('connector' = 'file',
         'path' = 'in/*.csv', 'watch' = '50 ms', 'watch.settle' = '0 s');\n"
        .to_owned()
        + &declare(&table, "id INT, name STRING", ", 'lookup.cache.ttl' = '100 ms'")
        + &declare(&into, "n BIGINT, name STRING", ", 'sink.buffer-flush.interval' = '20 ms'")
        + &format!(
            "INSERT INTO {into} SELECT n, name FROM given JOIN {table} ON given.id = {table}.id;"
        );
    dir.write("q.sql", &sql);
    let mut job = Job::start(&dir, &["run", "q.sql", "--workers", "2"]);
    let log = || fs::read_to_string(dir.0.join("log")).unwrap();
    let mut next = 1;
    let mut shows = |id: usize, name: &str| {
        waits_for(name, || {
            assert_eq!(job.ended(), None, "{}", log());
            add(next, id);
            next += 1;
            let shown = format!("SELECT count(*) FROM {into} WHERE name = '{name}'");
            crate::server::try_psql(&shown).is_ok_and(|count| count != "0")
        });
    };
    shows(1, "one");
    psql(&format!("UPDATE {table} SET name = 'uno' WHERE id = 1"));
    shows(1, "uno");
    psql(&format!("INSERT INTO {table} VALUES (3, 'three')"));
    shows(3, "three");
    // The stream goes on while the table cannot be read.
    script("kill");
    script("restart");
    shows(2, "two");
    psql(&format!("UPDATE {table} SET name = 'drei' WHERE id = 3"));
    shows(3, "drei");
    job.kill();
}
