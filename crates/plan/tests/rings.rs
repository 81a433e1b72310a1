//! EXPLAIN says who moves rows between nodes, where the sender does not write them.

use std::sync::Arc;

use plan::{Planner, Stage, Workers};
use serde_json::Value;

use crate::support::Memory;

/// One side of the join goes everywhere, and the groups are shuffled.
const QUERY: &str = "
    CREATE TABLE a (x INT, y INT) WITH ('connector' = 'memory');
    CREATE TABLE b (x INT, z INT) WITH ('connector' = 'memory');
    SELECT /*+ BROADCAST(b), EXCHANGE('shuffle') */ y, sum(z)
    FROM a JOIN b ON a.x = b.x GROUP BY y;";

fn planned(nodes: u32, settings: &str, multicasts: bool) -> Stage {
    let memory = Arc::new(Memory::default());
    let mut planner = Planner::new(vec![memory.clone()], Workers { nodes, per_node: 2 });
    planner.set_default_sink(memory, Default::default());
    planner.set_transport_needs(vec![], u64::from(multicasts));
    match planner.plan(&[settings, QUERY].concat()) {
        Ok(mut stages) => stages.remove(0),
        Err(errors) => {
            panic!("{}", errors.iter().map(|e| e.render("", QUERY, false)).collect::<String>())
        }
    }
}

/// The exchanges of a plan with the modes of their rings.
fn modes(stage: &Stage) -> Vec<(String, Option<String>)> {
    let json = stage.explain.json();
    let inputs = json["operators"].as_array().expect("a list").iter();
    let inputs = inputs.flat_map(|operator| operator["inputs"].as_array().expect("a list"));
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let mode = |edge: &Value| (text(&edge["exchange"]).expect("a text"), text(&edge["ring_mode"]));
    let mut modes: Vec<_> = inputs.map(mode).collect();
    modes.sort();
    modes.dedup();
    modes
}

/// The lines of the text about rings, each once.
fn lines(stage: &Stage) -> Vec<String> {
    let text = stage.explain.text();
    let line = |line: &str| Some(line.split_once("ring mode: ")?.1.to_owned());
    let mut lines: Vec<_> = text.lines().filter_map(line).collect();
    lines.sort();
    lines.dedup();
    lines
}

/// Bytes of each worker that others read.
fn region_bytes(stage: &Stage) -> Option<u64> {
    stage.explain.memory().iter().find(|need| need.name == "region").map(|need| need.bytes)
}

#[test]
fn explain_says_which_exchanges_are_read_and_which_use_a_region() {
    let exchanges = ["broadcast", "forward", "gather", "shuffle"];
    let expected = |read: &[&str], mode: &str| -> Vec<_> {
        let mode = |name: &str| read.contains(&name).then(|| mode.to_owned());
        exchanges.map(|name| (name.to_owned(), mode(name))).into()
    };
    let read = "SET millstream.ring_mode = 'read';";
    let region = "SET millstream.ring_mode = 'region';";
    let copies = "SET millstream.ring_mode = 'region'; SET millstream.multicast_tree = 'copies';";
    for (settings, of, mode, bytes) in [
        ("", &[][..], "", None),
        (read, &["broadcast", "gather", "shuffle"], "read", None),
        (region, &["broadcast"], "region", Some(64 * (64 << 10))),
        (copies, &[], "", Some(64 * (64 << 10))),
    ] {
        let stage = planned(3, settings, false);
        assert_eq!(modes(&stage), expected(of, mode), "{settings}");
        assert_eq!(lines(&stage).len(), usize::from(!of.is_empty()), "{settings}");
        assert_eq!(region_bytes(&stage), bytes, "{settings}");
        // Rows of one node do not leave it.
        let alone = planned(1, settings, false);
        assert!(modes(&alone).iter().all(|(_, mode)| mode.is_none()), "{settings}");
        assert_eq!((lines(&alone), region_bytes(&alone)), (vec![], None), "{settings}");
    }
    assert_eq!(
        lines(&planned(2, read, false)),
        ["read, receivers read rows from memory of the sender"]
    );
    let by_tree = "region, written once and read by each receiver";
    assert_eq!(lines(&planned(2, region, true)), [by_tree], "two nodes need no groups");
    let by_either = [by_tree, ", unless the network copies them"].concat();
    assert_eq!(lines(&planned(4, region, true)), [by_either]);
}
