//! The whole engine over RDMA whose queue pairs break again and again: nodes of one process on the
//! simulated device, in a process of its own that finds it.

#[path = "../../crates/verbs-sim/tests/second/mod.rs"]
mod second;

mod pooled;

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::AsArray;
use arrow::datatypes::Int64Type;
use millstream::{Error, FabricKind, RowTarget, RunOptions, Session};
use second::{PART, plays_well};
use tests::memory::Memory;

/// Small slots, so that a job has many requests.
const SMALL: &str = "
    SET millstream.slots = 8;
    SET millstream.slot_bytes = '2 KiB';
    SET millstream.shuffle_bytes = '256';
    SET millstream.epoch_bytes = '4 KiB';
";

#[test]
fn queue_pairs_that_break_lose_and_double_nothing() {
    for seed in 1..=3 {
        plays_well("breaks", &format!("seed={seed},fail_every={}", 700 + 200 * seed));
    }
}

#[test]
fn without_another_connection_the_job_fails_with_the_reason() {
    plays_well("ends", "seed=4,fail_every=700");
}

/// A network on which two nodes can always meet, and that carries nothing.
#[test]
fn connections_that_carry_nothing_are_not_made_for_ever() {
    plays_well("dead", "seed=5,fail_every=1");
}

#[test]
fn tables_of_a_memory_server_are_whole_over_a_device_that_takes_every_liberty() {
    for seed in 6..=8 {
        plays_well("pool", &format!("seed={seed},in_order={}", seed % 2));
    }
}

#[test]
fn statements_over_a_memory_server_have_their_rows_or_name_it_when_queue_pairs_break() {
    plays_well("pool breaks", "seed=9,fail_every=3000");
}

/// Not a test of its own: the parts of the others.
#[test]
fn second_process() {
    match std::env::var(PART).as_deref() {
        Err(_) => {}
        Ok("breaks") => breaks(),
        Ok("ends") => ends("SET millstream.reconnect = '0 s';", "the connection ended"),
        Ok("pool") => pooled::whole(),
        Ok("pool breaks") => pooled::breaks(),
        Ok("dead") => ends("SET millstream.reconnect = '1 s';", "no other connection"),
        Ok(part) => panic!("there is no part {part}"),
    }
}

/// Windows of ten seconds, a hundred keys.
const QUERY: &str = "
    CREATE TABLE numbers (n BIGINT, ts TIMESTAMP(3), WATERMARK FOR ts AS ts) WITH (
        'connector' = 'generator', 'rows' = '200000', 'interval' = '1ms',
        'fields.n.kind' = 'sequence');
    SELECT CAST(window_start AS BIGINT), n % 100, count(*), sum(n)
    FROM TUMBLE(TABLE numbers, DESCRIPTOR(ts), INTERVAL '10' SECOND)
    GROUP BY window_start, n % 100;
";

/// What it gives, without the windows' times: ten thousand numbers in each.
fn expected() -> Vec<[i64; 3]> {
    let mut groups = BTreeMap::new();
    for n in 0..200_000 {
        let (count, sum) = groups.entry((n / 10_000, n % 100)).or_insert((0, 0));
        *count += 1;
        *sum += n;
    }
    let mut rows: Vec<_> =
        groups.into_iter().map(|((_, key), (count, sum))| [key, count, sum]).collect();
    rows.sort_unstable();
    rows
}

/// Runs it on two nodes of two workers; gives the rows and how many ends of links went on.
fn run(settings: &str) -> Result<(Vec<[i64; 3]>, u64), Error> {
    let memory = Memory::new(None);
    let mut session = Session::builder()
        .nodes(2)
        .workers(2)
        .fabric(FabricKind::Verbs)
        .connector(Arc::new(memory.clone()))
        .rows_to(RowTarget::Connector(Arc::new(memory.clone())))
        .build()?;
    let script = format!("{SMALL} {settings} {QUERY}");
    let report = session.sql(&script)?.run(&RunOptions::default())?;
    let mut rows = Vec::new();
    for batch in memory.all_committed() {
        let column = |at: usize| batch.column(at).as_primitive::<Int64Type>();
        let values = (0..batch.num_rows()).map(|row| [1, 2, 3].map(|at| column(at).value(row)));
        rows.extend(values);
    }
    rows.sort_unstable();
    Ok((rows, report.total.reconnected_links))
}

fn breaks() {
    let expected = expected();
    let mut reconnected = 0;
    for exchange in ["merge", "shuffle"] {
        for connection in ["process", "worker"] {
            for mode in ["write", "read"] {
                let settings = format!(
                    "SET millstream.exchange = '{exchange}';
                     SET millstream.connection = '{connection}';
                     SET millstream.ring_mode = '{mode}';"
                );
                let (rows, links) =
                    run(&settings).unwrap_or_else(|error| panic!("{settings}: {error}"));
                assert!(rows == expected, "{settings}: other rows");
                println!("{exchange}, {connection}, {mode}: {links} ends of links went on");
                reconnected += links;
            }
        }
    }
    assert!(reconnected > 20, "only {reconnected} ends of links went on");
}

fn ends(settings: &str, reason: &str) {
    let settings = format!("SET millstream.exchange = 'shuffle'; {settings}");
    let text = run(&settings).expect_err("it breaks").to_string();
    assert!(text.contains(reason), "{text}");
}
