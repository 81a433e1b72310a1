//! Measurements of checkpoints at a small scale: the figures are of checkpoints that were taken.

use bench::recovery::{RecoveryPart, RecoveryPlan, measure};
use bench::report::ReportSection;

fn plan() -> RecoveryPlan {
    RecoveryPlan {
        scale: 1e-3,
        seconds: 0.05,
        pairs: 6,
        stall_seconds: 0.01,
        checkpoints: 12,
        loads: 2,
        workers: 2,
        directory: std::env::temp_dir(),
    }
}

/// The numbers of a column of the only table.
fn column(section: &ReportSection, name: &str) -> Vec<f64> {
    let [table] = &section.tables[..] else { panic!("one table: {section}") };
    let at = table.columns.iter().position(|column| column == name).unwrap();
    table.rows.iter().map(|row| row[at].parse().unwrap()).collect()
}

#[test]
fn costs_are_of_equal_results_with_and_without_checkpoints() {
    let section = measure(&plan(), RecoveryPart::Cost).unwrap();
    assert_eq!(section.bars.len(), 4, "{section}");
    // At least the checkpoint of the end, with positions and groups.
    assert!(column(&section, "checkpoints").iter().all(|&count| count >= 1.0), "{section}");
    assert!(column(&section, "processor s").iter().all(|&seconds| seconds > 0.0), "{section}");
    assert!(section.bars.iter().all(|bar| bar.met.is_some()), "six pairs have an interval");
}

#[test]
fn stalls_are_of_as_many_checkpoints_as_were_asked_for() {
    let section = measure(&plan(), RecoveryPart::Stall).unwrap();
    assert_eq!(section.bars.len(), 4, "{section}");
    assert!(section.bars.iter().all(|bar| bar.met.is_some()), "{section}");
    assert!(column(&section, "checkpoints").iter().all(|&count| count >= 12.0), "{section}");
    // A key and a count of each group are stored, as distances from the least of a block.
    let [groups, bytes] = ["groups", "MB"].map(|name| column(&section, name));
    for (groups, bytes) in groups.iter().zip(&bytes).skip(2) {
        let each = bytes * 1e6 / groups;
        assert!((2.0..60.0).contains(&each), "{each} bytes of a group: {section}");
    }
}

#[test]
fn a_job_is_loaded_as_large_as_it_was_asked_for() {
    let section = measure(&plan(), RecoveryPart::Load).unwrap();
    let [bar] = &section.bars[..] else { panic!("one bar: {section}") };
    let size = bar.what.strip_prefix("load of ").and_then(|rest| rest.split(' ').next());
    let mebibytes: f64 = size.unwrap().parse().unwrap();
    assert!((0.7..1.5).contains(&mebibytes), "{}", bar.what);
    assert_eq!(bar.got.ends_with("(the greatest of 2)"), bar.met.is_some(), "{}", bar.got);
}
