//! Rows for every instance, in small: every way reaches every instance, and a report tells it.

use std::thread;

use bench::multicast::{Arrivals, MulticastPlan, Point, Way, report, run};
use millstream::FabricKind;
use millstream::cluster::in_process;

#[test]
fn every_way_reaches_every_instance_and_is_reported() {
    let plan = MulticastPlan {
        nodes: 3,
        workers: 2,
        instances: vec![1, 3],
        drivers: 2,
        seconds: 0.05,
        fabric: FabricKind::Shm,
        rates: vec![10e3, 20e3],
        rate_seconds: 0.1,
        arrivals: Arrivals::Poisson { seed: 1 },
        app_scale: 0.02,
        settings: vec![],
    };
    let measured = thread::scope(|scope| {
        let controls = in_process(plan.nodes).unwrap();
        let nodes: Vec<_> = controls
            .into_iter()
            .map(|control| {
                let plan = &plan;
                scope.spawn(move || {
                    let measured = run(plan, &control).unwrap();
                    control.close();
                    measured
                })
            })
            .collect();
        let all: Vec<_> = nodes.into_iter().map(|node| node.join().unwrap()).collect();
        assert!(all[1..].iter().all(Option::is_none), "node 0 alone has figures");
        all.into_iter().next().flatten().unwrap()
    });
    assert_eq!(measured.points.len(), 2 * Way::ALL.len());
    let each = |point: &Point| point.bytes as f64 / point.rows as f64;
    for points in measured.points.chunks(Way::ALL.len()) {
        for point in points {
            assert!(point.rows > 0 && point.encode_ns > 0, "{point:?}");
            assert!(point.multicast.mean_ns <= point.processing.mean_ns, "{point:?}");
            assert!(point.source_bytes <= point.bytes, "{point:?}");
        }
        // Two other processes get a frame; or all their instances do.
        let (once, copies) = (each(&points[1]), each(&points[Way::ALL.len() - 1]));
        let instances = f64::from(points[0].instances) / 3.0;
        assert!(copies > 0.7 * instances * once, "{copies} and {instances} times {once}");
    }
    let adaptive = measured.dynamic.iter().filter(|run| run.way == Way::Adaptive).count();
    assert!(adaptive > 1 && measured.dynamic.len() == 2 * adaptive, "two ways in turns");
    // Six sizes, five waits, and who moves a frame; three ways of two applications.
    assert_eq!((measured.slices.len(), measured.applications.len()), (12, 6));
    assert!(measured.applications.iter().all(|point| point.rows > 0 && point.bytes_sent > 0));
    let report = report(&plan, &measured, 5).unwrap();
    let json = report.json();
    assert_eq!(json["sections"].as_array().map(Vec::len), Some(8));
    let asked = report.bars().find(|bar| bar.needed == "at least 10 times").unwrap();
    assert_eq!(asked.met, None, "it is asked of 480 instances");
    assert!(report.html().contains("simulated"));
}
