//! Every workload gives the right result on every exchange, in small.

use std::thread;

use arrow::array::AsArray;
use arrow::datatypes::Int64Type;
use bench::task::WorkloadTask;
use bench::workload::WorkloadSize;
use bench::{
    BenchError, KeyDistribution, RunPlan, Timed, Workload, reference, run, sustain, write,
};
use millstream::cluster::{Control, in_process};
use millstream::{FabricKind, Session};

fn plan(workload: Workload, workers: u32, exchanges: &[&str]) -> RunPlan {
    RunPlan {
        workload,
        size: WorkloadSize {
            rows_per_worker: 100_000,
            workers: workers.into(),
            keys: 5_000,
            distribution: workload.distribution(),
            // Of so few rows, such that there are several windows or sessions.
            interval_ns: match workload {
                Workload::Nb8 => Some(1_000_000_000),
                Workload::Nb11 => Some(5_000_000),
                _ => None,
            },
            record_bytes: None,
        },
        nodes: 1,
        workers,
        fabric: FabricKind::Shm,
        exchanges: exchanges.iter().map(|exchange| exchange.to_string()).collect(),
        against_one: workers > 1,
        against_unrelated: false,
        against_loop: false,
        runs: 1,
        settings: vec![("millstream.epoch_bytes".into(), "256 KiB".into())],
    }
}

#[test]
fn results_are_right_on_every_exchange() {
    for workload in Workload::ALL {
        let control = Control::solo().unwrap();
        let plan = plan(workload, 2, &["merge", "shuffle", "uppar"]);
        let summaries = run(&plan, &control).unwrap();
        let names: Vec<&str> = summaries.iter().map(|s| s.variant.as_str()).collect();
        assert_eq!(names, ["alone", "merge", "shuffle", "uppar"]);
        for summary in &summaries {
            let rows = 100_000 * summary.size.workers * workload.reads();
            assert_eq!(summary.total.rows_in, rows, "{workload}");
            assert!(summary.total.rows_out > 0 && summary.total.late == 0, "{workload}");
        }
        for summary in &summaries[2..] {
            assert_eq!(summary.total.rows_out, summaries[1].total.rows_out, "{workload}");
        }
    }
}

/// What each node makes of a plan, with nodes as threads of this process.
fn on_nodes(plan: &RunPlan) -> Vec<Vec<bench::Summary>> {
    thread::scope(|scope| {
        let nodes: Vec<_> = in_process(plan.nodes)
            .unwrap()
            .into_iter()
            .map(|control| {
                scope.spawn(move || {
                    let summaries = run(plan, &control).unwrap();
                    control.close();
                    summaries
                })
            })
            .collect();
        nodes.into_iter().map(|node| node.join().unwrap()).collect()
    })
}

#[test]
fn unrelated_processes_have_the_result_of_one_each_and_a_share_is_of_them() {
    for (workload, workers) in [(Workload::Ysb, 1), (Workload::Ro, 2), (Workload::Nb8, 1)] {
        let own = plan(workload, workers, &["merge", "shuffle"]);
        let size = WorkloadSize { workers: 2 * u64::from(workers), ..own.size };
        let plan =
            RunPlan { size, nodes: 2, runs: 3, against_one: true, against_unrelated: true, ..own };
        let mut all = on_nodes(&plan);
        assert!(all.pop().unwrap().is_empty(), "node 0 has the figures");
        let summaries = all.pop().unwrap();
        let names: Vec<&str> = summaries.iter().map(|s| s.variant.as_str()).collect();
        assert_eq!(names, ["alone", "unrelated", "merge", "shuffle"]);
        let [alone, unrelated, together @ ..] = &summaries[..] else { panic!("{workload}") };
        assert!(alone.against.unrelated.is_none() && unrelated.against.unrelated.is_none());
        assert!(alone.against.one_worker.is_none(), "{workload}");
        assert_eq!(unrelated.size.rows(), together[0].size.rows(), "{workload}");
        assert_eq!((unrelated.runs.len(), unrelated.total.bytes_sent), (3, 0), "{workload}");
        assert_eq!(unrelated.total.rows_in, together[0].total.rows_in, "{workload}");
        for summary in together {
            let share = summary.against.unrelated.unwrap();
            assert!(share.least > 0.0 && share.least <= share.median, "{workload}: {share:?}");
            assert!(share.median <= share.greatest && share.greatest.is_finite(), "{share:?}");
            assert!(summary.against.one_worker.unwrap().least > 0.0, "{workload}");
            // Of two workers each, and of other keys, nothing is asked.
            let bars = &summary.against.bars;
            assert_eq!(bars.len(), usize::from(workload != Workload::Ro), "{workload}: {bars:?}");
        }
    }
}

#[test]
fn records_of_fixed_length_give_the_same_results() {
    use Workload::{Cm, Nb7, Ro, Swa, Ysb, YsbKeys, YsbStar};
    for workload in [Ysb, YsbKeys, YsbStar, Ro, Cm, Nb7, Swa] {
        let mut plan = plan(workload, 2, &["auto"]);
        plan.size.record_bytes = Some(78);
        // The results are checked against those of the columns.
        let summaries = run(&plan, &Control::solo().unwrap()).unwrap();
        for summary in &summaries {
            assert_eq!(summary.row_bytes(), (78 * workload.reads()) as f64, "{workload}");
        }
    }
}

#[test]
fn a_loop_gives_the_same_sums() {
    use Workload::{Cm, Nb7, Ro, Ysb, YsbKeys};
    for workload in [Ysb, YsbKeys, Ro, Cm, Nb7] {
        let plan = RunPlan { against_loop: true, ..plan(workload, 1, &[]) };
        // Its results are checked as all others.
        let summaries = run(&plan, &Control::solo().unwrap()).unwrap();
        assert_eq!(summaries[1].variant, "loop");
        assert_eq!(summaries[1].total.rows_out, summaries[0].total.rows_out, "{workload}");
    }
    let none = RunPlan { against_loop: true, ..plan(Workload::Nb8, 1, &[]) };
    assert!(matches!(run(&none, &Control::solo().unwrap()), Err(BenchError::NoLoop(_))));
}

#[test]
fn latency_is_counted_at_a_rate_and_the_results_are_right() {
    for (workload, workers) in [(Workload::Cm, 2), (Workload::Swa, 1), (Workload::YsbStar, 2)] {
        let plan = plan(workload, workers, &["merge"]);
        let timed = Timed { plan, rate: Some(2e5), seconds: 0.5, every_s: 0.05 };
        let outcomes = sustain::run(&timed, &Control::solo().unwrap()).unwrap();
        let [outcome] = &outcomes[..] else { panic!("one exchange") };
        let [trial] = &outcome.at[..] else { panic!("one rate") };
        assert!((trial.every_s / 0.05 - 1.0).abs() < 0.01, "{workload}: {outcome}");
        let all = trial.latencies.all();
        assert!(all.count() > 0 && trial.latencies.late.count() > 0, "{workload}: {outcome}");
        assert!(all.quantile(0.5) > 0.0 && all.quantile(0.5) <= all.quantile(1.0), "{outcome}");
        assert!(outcome.search.is_none() && outcome.json().contains("\"p99\""));
    }
    let plan = plan(Workload::Ro, 1, &[]);
    let timed = Timed { plan, rate: None, seconds: 0.5, every_s: 0.05 };
    let refused = sustain::run(&timed, &Control::solo().unwrap());
    assert!(matches!(refused, Err(BenchError::NoLatency(Workload::Ro))));
}

#[test]
fn the_reference_depends_on_what_it_should() {
    let size = plan(Workload::Ro, 1, &[]).size;
    let right = reference::sums(Workload::Ro, &size).unwrap();
    assert_eq!(right.rows, 5_000, "all keys came");
    for other in [
        WorkloadSize { keys: 4_999, ..size },
        WorkloadSize { rows_per_worker: 99_999, ..size },
        WorkloadSize { distribution: KeyDistribution::Zipf(1.0), ..size },
        WorkloadSize { distribution: KeyDistribution::Zipf(0.5), ..size },
    ] {
        let sums = reference::sums(Workload::Ro, &other).unwrap();
        assert!(!right.agrees(&sums), "{other:?}");
    }
    let dealt = WorkloadSize { rows_per_worker: 50_000, workers: 2, ..size };
    assert!(right.agrees(&reference::sums(Workload::Ro, &dealt).unwrap()), "the same rows");
}

#[cfg(target_os = "linux")]
#[test]
fn keys_that_no_memory_holds_are_known_beforehand() {
    let size = plan(Workload::Ro, 1, &[]).size;
    assert_eq!(reference::beyond_memory(Workload::Ro, &size), None);
    let size = WorkloadSize { keys: 1 << 48, ..size };
    let [needed, free] = reference::beyond_memory(Workload::Ro, &size).unwrap();
    assert!(needed >= size.keys && free < needed, "{needed} {free}");
}

#[test]
fn rows_are_written_as_they_are_measured() {
    let directory = std::env::temp_dir().join(format!("millstream-bench-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    for workload in [Workload::Ysb, Workload::Ro, Workload::Cm, Workload::Nb7, Workload::Swa] {
        let size = plan(workload, 1, &[]).size;
        let path = directory.join(format!("{workload}.parquet"));
        let written = write(workload, &size, &path).unwrap();
        assert_eq!(written.rows, 100_000, "{workload}");
        let WorkloadTask::Groups(shape) = workload.task() else { panic!("{workload} groups rows") };
        // Of fewer rows than fill a window, groups are keys; the batch stage counts them.
        let filter = shape.filter.map(|(name, word)| format!("WHERE {name} = '{word}'"));
        let sql = format!(
            "CREATE TABLE written WITH ('connector' = 'file', 'path' = '{}');
             SELECT count(DISTINCT {} / {}) AS groups FROM written {};",
            path.display(),
            shape.key.0,
            shape.key.1,
            filter.unwrap_or_default()
        );
        let batches = Session::builder().workers(1).build().unwrap().collect(&sql).unwrap();
        let groups = batches[0].column(0).as_primitive::<Int64Type>().value(0);
        let windows = shape.window.map_or(1, |window| window.size_ms / window.slide_ms);
        assert_eq!((groups * windows) as u64, written.result.rows, "{workload}");
    }
    std::fs::remove_dir_all(directory).unwrap();
}
