//! From a topic into a table of Postgres, whose server `scripts/test-world.sh` starts beside the
//! broker.

use std::process::{Command, Stdio};

use crate::broker::{script, send, topic, wait_until};
use crate::run::{Dir, Job, declare, kills};

/// Where the server listens: `host:port`.
fn server() -> String {
    std::env::var("MILLSTREAM_POSTGRES").expect("scripts/test-world.sh starts a server")
}

/// Has the script of the server do something to it.
fn server_script(what: &str) {
    let script = std::env::var("MILLSTREAM_POSTGRES_SCRIPT").expect("the script names itself");
    let mut done = Command::new(script);
    // The server inherits no pipe, whose end somebody would wait for.
    done.arg(what).stdin(Stdio::null()).stdout(Stdio::null());
    assert!(done.status().unwrap().success(), "{what}");
}

/// The output of psql; `None` where it fails.
fn psql(sql: &str) -> Option<String> {
    let server = server();
    let (host, port) = server.split_once(':').unwrap();
    let mut psql = Command::new("psql");
    psql.args(["-h", host, "-p", port, "-U", "postgres", "-qAtX", "-v", "ON_ERROR_STOP=1"]);
    let done = psql.args(["-c", sql]).output().unwrap();
    done.status.success().then(|| String::from_utf8_lossy(&done.stdout).trim_end().to_owned())
}

#[test]
fn nothing_is_lost_or_doubled_when_job_broker_and_server_are_killed() {
    let kills = kills();
    let rows_each = (12_000 / kills).max(20);
    let (dir, from) = (Dir::new(), topic("from", 3, &[]));
    let (table, server) = (format!("copied_{}", std::process::id()), server());
    psql(&format!("CREATE TABLE {table} (n bigint)")).unwrap();
    let sql = "SET 'millstream.checkpoint' = '100 ms';\n".to_owned()
        + &declare("given", &from, "n BIGINT", "")
        + &format!(
            "CREATE TABLE {table} (n BIGINT) WITH ('connector' = 'postgres',
             'url' = 'postgresql://{server}/postgres?sslmode=disable', 'username' = 'postgres',
             'table-name' = '{table}');
             INSERT INTO {table} SELECT n FROM given;"
        );
    dir.write("q.sql", &sql);
    let arguments = ["run", "q.sql", "--state", "state", "--workers", "1", "--nodes", "2"];
    let mut job = Job::start(&dir, &arguments);
    let rows = || {
        let count = psql(&format!("SELECT count(*) FROM {table}"));
        count.and_then(|count| count.parse::<usize>().ok()).unwrap_or(0)
    };
    let mut sent = 0;
    for kill in 0..kills {
        for partition in 0..3 {
            let values: Vec<String> =
                (sent..sent + rows_each).map(|n| format!("{{\"n\": {n}}}")).collect();
            send(&from, partition, values.iter().map(String::as_str));
            sent += rows_each;
        }
        // Some rows of the last ones are there, or none: each kill finds the job elsewhere.
        let least = sent - 3 * rows_each + kill % 6 * rows_each / 2;
        wait_until("rows come", || {
            assert_eq!(job.ended(), None, "the job ended: {}", dir.log());
            rows() >= least
        });
        match kill % 3 {
            0 => {
                job.kill();
                job = Job::start(&dir, &arguments);
            }
            1 => ["kill", "restart"].into_iter().for_each(script),
            _ => ["kill", "restart"].into_iter().for_each(server_script),
        }
    }
    wait_until("all rows come", || {
        assert_eq!(job.ended(), None, "the job ended: {}", dir.log());
        rows() >= sent
    });
    job.kill();
    let found = psql(&format!("SELECT count(*), count(DISTINCT n), max(n) FROM {table}"));
    assert_eq!(found, Some(format!("{sent}|{sent}|{}", sent - 1)), "{}", dir.log());
    assert!(dir.log().contains("goes on from checkpoint"), "{}", dir.log());
}
