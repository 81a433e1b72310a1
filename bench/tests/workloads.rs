//! Every workload gives the right result on every exchange, in small.

use bench::workload::Size;
use bench::{Distribution, Plan, Workload, reference, run};
use millstream::FabricKind;
use millstream::cluster::Control;

fn plan(workload: Workload, workers: u32, exchanges: &[&str]) -> Plan {
    Plan {
        workload,
        size: Size {
            rows_per_worker: 100_000,
            workers: workers.into(),
            keys: 5_000,
            distribution: workload.distribution(),
        },
        nodes: 1,
        workers,
        fabric: FabricKind::Shm,
        exchanges: exchanges.iter().map(|exchange| exchange.to_string()).collect(),
        against_one: workers > 1,
        runs: 1,
        settings: vec![("millstream.epoch_bytes".into(), "256 KiB".into())],
    }
}

#[test]
fn results_are_right_on_every_exchange() {
    use Workload::{Cm, Nb7, Ro, Ysb, YsbKeys};
    for workload in [Ysb, YsbKeys, Ro, Cm, Nb7] {
        let control = Control::solo().unwrap();
        let plan = plan(workload, 2, &["merge", "shuffle"]);
        let summaries = run(&plan, &control).unwrap();
        let names: Vec<&str> = summaries.iter().map(|s| s.variant.as_str()).collect();
        assert_eq!(names, ["alone", "merge", "shuffle"]);
        for summary in &summaries {
            assert_eq!(summary.total.rows_in, 100_000 * summary.size.workers, "{workload}");
            assert!(summary.total.rows_out > 0 && summary.total.late == 0, "{workload}");
        }
        assert_eq!(summaries[1].total.rows_out, summaries[2].total.rows_out, "{workload}");
    }
}

#[test]
fn the_reference_depends_on_what_it_should() {
    let size = plan(Workload::Ro, 1, &[]).size;
    let right = reference::sums(Workload::Ro, &size).unwrap();
    assert_eq!(right.rows, 5_000, "all keys came");
    for other in [
        Size { keys: 4_999, ..size },
        Size { rows_per_worker: 99_999, ..size },
        Size { distribution: Distribution::Zipf, ..size },
    ] {
        let sums = reference::sums(Workload::Ro, &other).unwrap();
        assert!(!right.agrees(&sums), "{other:?}");
    }
    let dealt = Size { rows_per_worker: 50_000, workers: 2, ..size };
    assert!(right.agrees(&reference::sums(Workload::Ro, &dealt).unwrap()), "the same rows");
}
