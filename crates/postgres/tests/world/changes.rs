//! Changes of tables that are read by the connector.

use std::fs;

use crate::run::{Dir, Job, kills};
use crate::server::{lines, made, psql, script, try_psql, unique, url, waits_for};

/// The declaration of the changes of a table with columns n and text.
fn changes(table: &str, options: &str) -> String {
    let url = url();
    format!(
        "CREATE TABLE changes (op STRING, `before` ROW<n BIGINT, text STRING>,
           `after` ROW<n BIGINT, text STRING>, lsn BIGINT METADATA,
           at TIMESTAMP(3) METADATA FROM 'timestamp')
         WITH ('connector' = 'postgres-cdc', 'url' = '{url}', 'username' = 'postgres',
           'table-name' = 'public.{table}', 'publication.name' = '{table}'{options});\n"
    )
}

/// A table that takes them.
fn taken(columns: &str) -> (String, String) {
    let table = made("taken", columns);
    let url = url();
    let declared = columns.replace("text", "STRING");
    let sql = format!(
        "CREATE TABLE taken ({declared}) WITH ('connector' = 'postgres', 'url' = '{url}',
           'username' = 'postgres', 'table-name' = '{table}',
           'sink.buffer-flush.interval' = '20 ms');\n"
    );
    (table, sql)
}

const TAKEN: &str = "op text, a bigint, b text, c bigint, d text, at timestamp(3)";
const INSERT: &str = "INSERT INTO taken SELECT op, `before`.n, `before`.text, `after`.n, \
                      `after`.text, at FROM changes;";

fn count(table: &str) -> usize {
    let shown = try_psql(&format!("SELECT count(*) FROM {table}"));
    shown.ok().and_then(|count| count.parse().ok()).unwrap_or(0)
}

#[test]
fn rows_that_are_there_come_first_and_then_every_change() {
    let dir = Dir::new();
    let table = made("changed", "n bigint PRIMARY KEY, text text");
    psql(&format!("INSERT INTO {table} VALUES (1, 'one'), (2, E'tab\\there'), (3, NULL)"));
    let (taken, declared) = taken(TAKEN);
    dir.write("q.sql", &(changes(&table, "") + &declared + INSERT));
    let mut job = Job::start(&dir, &["run", "q.sql", "--workers", "2"]);
    let log = || fs::read_to_string(dir.0.join("log")).unwrap();
    let mut comes = |rows: usize| {
        waits_for("changes come", || {
            assert_eq!(job.ended(), None, "{}", log());
            count(&taken) >= rows
        });
    };
    comes(3);
    psql(&format!(
        "BEGIN; INSERT INTO {table} VALUES (4, 'four'); UPDATE {table} SET text = 'uno' WHERE n = 1;
         DELETE FROM {table} WHERE n = 2; COMMIT"
    ));
    psql(&format!(
        "ALTER TABLE {table} REPLICA IDENTITY FULL; UPDATE {table} SET n = 5 WHERE n = 4"
    ));
    psql(&format!("BEGIN; INSERT INTO {table} VALUES (9, 'never'); ROLLBACK"));
    psql(&format!("TRUNCATE {table}"));
    comes(8);
    let rows = lines(&format!("SELECT op, a, b, c, d FROM {taken} ORDER BY op, a, c"));
    let expected = [
        "c|||4|four",
        "d|2|||",
        "r|||1|one",
        "r|||2|tab\there",
        "r|||3|",
        "t||||",
        "u|4|four|5|four",
        "u|||1|uno",
    ];
    assert_eq!(rows, expected, "{}", log());
    let near = "abs(extract(epoch FROM at AT TIME ZONE 'UTC' - now())) < 1000";
    assert_eq!(psql(&format!("SELECT count(*) FROM {taken} WHERE {near}")), "8");
    job.kill();
    waits_for("a slot of its own ends with the job", || {
        psql("SELECT count(*) FROM pg_replication_slots WHERE temporary") == "0"
    });
}

/// Writes the job `q.sql`, which copies a table by the changes of a slot. Gives the table that has
/// the copy.
fn copied(dir: &Dir, table: &str, slot: &str) -> String {
    let (taken, declared) = taken(TAKEN);
    let sql = "SET 'millstream.checkpoint' = '100 ms';\n".to_owned()
        + &changes(table, &format!(", 'slot.name' = '{slot}'"))
        + &declared
        + INSERT;
    dir.write("q.sql", &sql);
    taken
}

#[test]
fn nothing_is_lost_or_doubled_when_job_and_server_are_killed() {
    let kills = kills();
    let rows_each = (18_000 / kills).max(90);
    let dir = Dir::new();
    let table = made("followed", "n bigint PRIMARY KEY, text text");
    let slot = unique("slot");
    psql(&format!("INSERT INTO {table} SELECT i, 't' || i FROM generate_series(1, 500) i"));
    let taken = copied(&dir, &table, &slot);
    let arguments = ["run", "q.sql", "--state", "state", "--workers", "1", "--nodes", "2"];
    let mut job = Job::start(&dir, &arguments);
    let log = || fs::read_to_string(dir.0.join("log")).unwrap();
    waits_for("the first rows come", || {
        assert_eq!(job.ended(), None, "{}", log());
        count(&taken) >= 500
    });
    // The snapshot is behind the job when a checkpoint has what follows it.
    let mut sent = 500;
    let confirmed = || {
        psql(&format!(
            "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = '{slot}'"
        ))
    };
    let first = confirmed();
    psql(&format!("INSERT INTO {table} VALUES (501, 't501')"));
    sent += 1;
    waits_for("a checkpoint is confirmed", || confirmed() != first);
    for kill in 0..kills {
        // Transactions of many rows: a job ends within one.
        for _ in 0..3 {
            let to = sent + rows_each / 3;
            psql(&format!(
                "INSERT INTO {table} SELECT i, 't' || i FROM generate_series({}, {to}) i",
                sent + 1
            ));
            sent = to;
        }
        let least = sent - rows_each + kill % 6 * rows_each / 6;
        waits_for("changes come", || {
            assert_eq!(job.ended(), None, "{}", log());
            count(&taken) >= least
        });
        if kill % 2 == 0 {
            job.kill();
            job = Job::start(&dir, &arguments);
        } else {
            script("kill");
            script("restart");
        }
    }
    waits_for("all changes come", || {
        assert_eq!(job.ended(), None, "{}", log());
        count(&taken) >= sent
    });
    job.kill();
    let shown = psql(&format!("SELECT count(*), count(DISTINCT c), max(c) FROM {taken}"));
    assert_eq!(shown, format!("{sent}|{sent}|{sent}"), "{}", log());
    assert!(log().contains("goes on from checkpoint"), "{}", log());
    // A slot that is gone is one error.
    psql(&format!("SELECT pg_drop_replication_slot('{slot}')"));
    job = Job::start(&dir, &arguments);
    waits_for("the job ends", || job.ended() == Some(false));
    let log = log();
    let message = format!("the slot '{slot}' was dropped");
    assert_eq!(log.matches(&message).count(), 1, "{log}");
    assert!(log.contains("--from none"), "{log}");
}

#[test]
fn a_job_that_is_killed_within_the_rows_that_are_there_goes_on() {
    const KILLS: usize = 4;
    const ROWS: usize = 200_000;
    let dir = Dir::new();
    let table = made("filled", "n bigint PRIMARY KEY, text text");
    let slot = unique("slot");
    psql(&format!("INSERT INTO {table} SELECT i, 't' || i FROM generate_series(1, {ROWS}) i"));
    let taken = copied(&dir, &table, &slot);
    let log = || fs::read_to_string(dir.0.join("log")).unwrap();
    let mut sent = ROWS;
    for kill in 0..=KILLS {
        // Another number of nodes reads on, too.
        let nodes = if kill % 2 == 0 { "2" } else { "1" };
        let arguments = ["run", "q.sql", "--state", "state", "--workers", "1", "--nodes", nodes];
        let mut job = Job::start(&dir, &arguments);
        let least = if kill < KILLS { 1 + kill * ROWS / KILLS / 4 } else { sent };
        waits_for("rows come", || {
            assert_eq!(job.ended(), None, "{}", log());
            count(&taken) >= least
        });
        job.kill();
        // Rows come and change in the part that is read, and in the one that is not.
        if kill < KILLS {
            psql(&format!(
                "INSERT INTO {table} SELECT {kill} - 10 * i, 'x' FROM generate_series(1, 50) i;
                 INSERT INTO {table} SELECT {ROWS} * 2 + {kill} + 10 * i, 'x'
                 FROM generate_series(1, 50) i"
            ));
            sent += 100;
        }
    }
    let shown = psql(&format!(
        "SELECT count(*), count(DISTINCT c), sum(c) FROM {taken} WHERE op IN ('r', 'c')"
    ));
    assert_eq!(
        shown,
        psql(&format!("SELECT count(*), count(*), sum(n) FROM {table}")),
        "{}",
        log()
    );
    assert_eq!(count(&taken), sent, "{}", log());
    assert!(log().contains("goes on from checkpoint"), "{}", log());
    waits_for("the slot is dropped", || {
        psql(&format!(
            "SELECT count(pg_drop_replication_slot(slot_name)) FROM pg_replication_slots WHERE \
             slot_name = '{slot}' AND NOT active"
        )) == "1"
    });
}

#[test]
fn what_cannot_be_followed_is_told_at_the_start() {
    let dir = Dir::new();
    let table = made("unfit", "n bigint PRIMARY KEY, texts text");
    let (success, text) =
        dir.run(&(changes(&table, "") + "SELECT `after`.text FROM changes;"), &[]);
    assert!(!success && text.contains("did you mean 'texts'?"), "{text}");
    let url = url();
    let plain = format!(
        "CREATE TABLE changes (n BIGINT) WITH ('connector' = 'postgres-cdc', 'url' = '{url}',
         'username' = 'postgres', 'table-name' = '{table}'); SELECT * FROM changes;"
    );
    let (success, text) = dir.run(&plain, &[]);
    assert!(!success && text.contains("op STRING"), "{text}");
}
