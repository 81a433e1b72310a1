//! Jobs that keep checkpoints and are lost at random turns: all runs together publish the rows of a
//! run without failures.

mod queries;

use std::collections::BTreeMap;
use std::sync::Arc;

use dataflow::job::{JobGraph, OperatorKind};
use dataflow::sink::Placement;
use state::{GroupBy, StateOptions};
use tests::cases::cases;
use tests::cluster::Cluster;
use tests::memory::Memory;
use tests::random::{BESIDE_COLUMNS, COLUMNS, DELAY_MS, IDLE_MS, Random, beside};
use tests::rounds::{Ran, Restarts, run};
use tests::rows::sorted;
use tests::scenario::plan;

use self::queries::{Asked, Promise, asked};

/// Seeds, if nobody asks for more.
const SEEDS: u64 = 200;

/// Cluster sizes: nodes and workers of each.
const SIZES: [(u32, u32); 6] = [(1, 1), (2, 1), (1, 3), (3, 1), (2, 2), (4, 1)];

const EXCHANGES: [&str; 4] = ["auto", "merge", "shuffle", "uppar"];

/// A query over random streams, with the settings of its runs.
struct Case {
    seed: u64,
    asked: Asked,
    batch_rows: u32,
    multicast: &'static str,
    memory: Memory,
}

impl Case {
    fn script(&self, exchange: &str, state_bytes: &str) -> String {
        let Asked { text, idle, .. } = &self.asked;
        let idle = if *idle {
            format!("IDLE TIMEOUT INTERVAL '{}' SECOND", IDLE_MS / 1_000)
        } else {
            String::new()
        };
        format!(
            "SET millstream.exchange = {exchange}; SET millstream.epoch_bytes = 4096;
             SET millstream.batch_rows = {}; SET millstream.multicast = {};
             SET millstream.state_bytes = '{state_bytes}';
             CREATE TABLE t ({COLUMNS}, WATERMARK FOR ts AS ts - INTERVAL '{delay}' SECOND {idle})
               WITH ('connector' = 'memory');
             CREATE TABLE u ({COLUMNS}, WATERMARK FOR ts AS ts - INTERVAL '{delay}' SECOND {idle})
               WITH ('connector' = 'memory');
             CREATE TABLE b ({BESIDE_COLUMNS}) WITH ('connector' = 'memory');
             {text};",
            self.batch_rows,
            self.multicast,
            delay = DELAY_MS / 1_000,
        )
    }

    fn job(&self, exchange: &str, (nodes, workers): (u32, u32)) -> Arc<JobGraph> {
        let script = self.script(exchange, self.asked.state_bytes);
        let mut job = plan(&self.memory, &script, nodes, workers).job;
        // So small that there are many blocks, most of which do not change from round to round.
        for operator in &mut job.operators {
            if let OperatorKind::Aggregate(of) = &mut operator.kind {
                let GroupBy { keys, aggregates, options } = &*of.group_by;
                let options = StateOptions { block_ids: 4, ..options.clone() };
                let (keys, aggregates) = (keys.clone(), aggregates.clone());
                of.group_by = Arc::new(GroupBy { keys, aggregates, options });
            }
        }
        Arc::new(job)
    }

    /// The rows of the job on one worker with enough memory, without rounds or failures.
    fn undisturbed(&self, exchange: &str) -> Vec<String> {
        let job = Arc::new(plan(&self.memory, &self.script(exchange, "1 GiB"), 1, 1).job);
        Cluster::seeded(1, 1, self.seed).run(&job).expect("it runs");
        let rows = sorted(&self.memory.all_committed());
        self.memory.clear();
        rows
    }

    /// The job by an exchange, if it has the operators of the job by `as_in`, since saved state
    /// names operators by their numbers; else the job by `as_in`.
    fn job_like(&self, asked: &str, as_in: &str, size: (u32, u32)) -> Arc<JobGraph> {
        let names = |job: &JobGraph| -> Vec<String> {
            job.operators.iter().map(|operator| operator.name.clone()).collect()
        };
        let (job, like) = (self.job(asked, size), self.job(as_in, size));
        if names(&job) == names(&like) { job } else { like }
    }
}

/// Runs a random query with rounds and failures, and compares its rows with those of a run without.
fn case(seed: u64) -> Ran {
    let mut random = Random::new(seed + 90_000);
    let asked = asked(seed, &mut random);
    // Each worker writes its rows, or one worker those of all.
    let memory = Memory::new(random.chance(50).then_some(Placement::Everywhere));
    memory.add("t", asked.t.clone());
    memory.add("u", asked.u.clone());
    memory.add("b", beside());
    let exchange = *random.one_of(&EXCHANGES);
    let batch_rows = *random.one_of(&[7, 100, 8_192]);
    // All pairs of a window at once would take long in batches of seven rows.
    let batch_rows = if asked.pairs { batch_rows.max(100) } else { batch_rows };
    let multicast = *random.one_of(&["tree", "hardware"]);
    let case = Case { seed, asked, batch_rows, multicast, memory };
    let expected = case.undisturbed(exchange);
    let runs = 1 + random.below(5);
    let sizes: Vec<(u32, u32)> = (0..runs).map(|_| *random.one_of(&SIZES)).collect();
    let others: Vec<&str> = sizes.iter().map(|_| *random.one_of(&EXCHANGES)).collect();
    let at = format!(
        "seed {seed}, {sizes:?} {others:?}: {}",
        case.script(exchange, case.asked.state_bytes)
    );
    // Printed for a run that fails without a message of its own.
    println!("{at}");
    let job = |attempt: usize| case.job_like(others[attempt], exchange, sizes[attempt]);
    let spills = case.asked.spills;
    let ran = run(job, Restarts { sizes: &sizes, spills, seed });
    let ran = ran.unwrap_or_else(|error| panic!("{at}: {error}"));
    compare(&case, &at, &sorted(&case.memory.all_committed()), &expected, &ran);
    ran
}

fn compare(case: &Case, at: &str, got: &[String], expected: &[String], ran: &Ran) {
    let beside = |these: &[String], others: &[String]| -> Vec<String> {
        these.iter().filter(|row| !others.contains(row)).take(5).cloned().collect()
    };
    match &case.asked.promise {
        Promise::Equal => assert!(
            got == expected,
            "{at}: {} rows and not {}: without {:?}, with {:?}; {ran:?}",
            got.len(),
            expected.len(),
            beside(expected, got),
            beside(got, expected)
        ),
        Promise::SomeOf(all) => {
            let all = on_one_worker(case, all);
            assert_eq!(got.len(), expected.len(), "{at}; {ran:?}");
            assert!(is_part(got, &all), "{at}: {:?}; {ran:?}", beside(got, &all));
        }
        Promise::EarlyToo => early(at, got, expected),
        Promise::Accounted(rows) => accounted(at, got, rows, ran),
    }
}

/// The rows of another query over the same tables, on one worker.
fn on_one_worker(case: &Case, text: &str) -> Vec<String> {
    let asked = Asked { text: text.into(), ..case.asked.clone() };
    let memory = Memory::new(None);
    memory.add("t", asked.t.clone());
    Case { asked, memory, ..*case }.undisturbed("auto")
}

/// Whether sorted rows are among others, as often as they are there.
fn is_part(rows: &[String], of: &[String]) -> bool {
    let mut of = of.iter();
    rows.iter().all(|row| of.any(|other| other == row))
}

/// Compares final rows, and early ones with the final ones of their window and key: a count never
/// exceeds the final one.
fn early(at: &str, got: &[String], expected: &[String]) {
    let cut = |row: &String| -> (String, u64, bool) {
        let fields: Vec<&str> = row.rsplitn(3, '|').collect();
        (fields[2].to_owned(), fields[1].parse().expect("a count"), fields[0] == "final")
    };
    let finals = |rows: &[String]| -> Vec<(String, u64)> {
        let of = rows.iter().map(cut).filter(|(.., is_final)| *is_final);
        of.map(|(group, count, _)| (group, count)).collect()
    };
    assert_eq!(finals(got), finals(expected), "{at}");
    let most: BTreeMap<String, u64> = finals(expected).into_iter().collect();
    for (group, count, _) in got.iter().map(cut) {
        assert!(most.get(&group).is_some_and(|most| count <= *most), "{at}: {group} {count}");
    }
}

/// Checks that every row is in a group or was late. The silences of flows decide which rows are.
fn accounted(at: &str, got: &[String], rows: &BTreeMap<String, u64>, ran: &Ran) {
    let mut counted = 0;
    for row in got {
        let (group, count) = row.rsplit_once('|').expect("a count");
        let count: u64 = count.parse().expect("a number");
        assert!(rows.get(group).is_some_and(|all| count <= *all), "{at}: {row}; {ran:?}");
        counted += count;
    }
    let groups: Vec<&str> = got.iter().filter_map(|row| Some(row.rsplit_once('|')?.0)).collect();
    assert!(groups.windows(2).all(|two| two[0] != two[1]), "{at}: a group came twice");
    let all: u64 = rows.values().sum();
    assert_eq!(counted + ran.late, all, "{at}: {counted} rows in groups; {ran:?}");
}

#[test]
fn rows_of_a_job_that_is_lost_again_and_again_are_those_of_one_that_is_not() {
    let mut all = Ran::default();
    let mut cases = cases(SEEDS);
    for seed in &mut cases {
        all.add(&case(seed));
    }
    println!("{all:?}");
    let met = all.saved > 500
        && all.crashes > 150
        && all.restored > 30
        && all.rows > 10_000
        && all.published_again > 5
        && all.unchanged > 100
        && all.referred > 100
        && all.disk_reads > 0;
    cases.met(met, &format!("{all:?}"));
}
