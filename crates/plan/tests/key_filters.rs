//! Rows of a probe side that have no partner stay where they are read, where that moves less.

use dataflow::job::{Distribution, OperatorKind};
use dataflow::keyed::JoinKind;

use crate::orders::TABLES;
use crate::support;

/// The hash joins of a query on four workers, in their order: the kind, and whether the build is
/// replicated; and what EXPLAIN says.
fn joins(sql: &str) -> (Vec<(JoinKind, bool)>, String) {
    let (mut planner, _) = support::planner(4);
    planner.plan(TABLES).expect("the tables");
    let stages = planner.plan(sql).unwrap_or_else(|errors| {
        panic!("{}", errors.iter().map(|e| e.render("", sql, false)).collect::<String>())
    });
    let joins = stages[0].job.operators.iter().filter_map(|one| match &one.kind {
        OperatorKind::HashJoin(join) => {
            Some((join.kind, join.sides[1].distribution == Distribution::Broadcast))
        }
        _ => None,
    });
    (joins.collect(), stages[0].explain.text())
}

const FEW: &str = "(SELECT * FROM o WHERE ordered < 24) AS f";

#[test]
fn rows_without_a_partner_stay() {
    // One of a hundred orders is left, by which lines are looked up.
    let key_filter = (JoinKind::LeftSemi, true);
    let exists = format!(
        "SELECT f.orderkey FROM {FEW} WHERE EXISTS (SELECT 1 FROM l WHERE l.orderkey = f.orderkey)"
    );
    let (found, text) = joins(&exists);
    assert_eq!(found, [key_filter, (JoinKind::RightSemi, false)], "{text}");
    assert!(text.contains("its keys, so that rows without a partner stay: "), "{text}");
    assert!(text.contains("rows stay, and every worker has the keys"), "{text}");
    assert!(text.contains("join filters: orderkey in the build of"), "{text}");
    let (found, text) = joins(&exists.replace("EXISTS", "NOT EXISTS"));
    assert_eq!(found, [key_filter, (JoinKind::RightAnti, false)], "{text}");
    // A row of the probe side that is emitted without a partner has to travel.
    let outer = format!("SELECT l.price, f.ordered FROM l FULL JOIN {FEW} USING (orderkey)");
    assert_eq!(joins(&outer).0, [(JoinKind::Full, false)]);
    // A setting or a hint is obeyed, and nothing is added.
    let set = format!("SET millstream.exchange = 'shuffle'; {exists}");
    assert_eq!(joins(&set).0, [(JoinKind::RightSemi, false)]);
    // Half of the lines have a partner, or more: they may as well travel.
    let many = exists.replace("ordered < 24", "ordered < 2400");
    assert!(!joins(&many).0.contains(&key_filter), "{}", joins(&many).1);
    // NOT IN asks about all rows.
    let not_in =
        format!("SELECT f.ordered FROM {FEW} WHERE f.orderkey NOT IN (SELECT orderkey FROM l)");
    assert!(!joins(&not_in).0.contains(&key_filter), "{}", joins(&not_in).1);
}

#[test]
fn columns_that_are_equal_to_those_of_one_table_are_estimated_as_its_columns() {
    // A part and a supplier have a supply together, of which a tenth are left: by each alone, lines
    // would find two thousand times fewer.
    let sql = "SELECT /*+ LEADING(p, ps, s, l) */ count(*) FROM p, s, l, ps
        WHERE s.suppkey = l.suppkey AND ps.suppkey = s.suppkey AND ps.partkey = p.partkey
          AND p.partkey = l.partkey AND p.name LIKE '%green%'";
    let (_, text) = joins(sql);
    assert!(text.contains("emits: about 600 K rows"), "{text}");
}
