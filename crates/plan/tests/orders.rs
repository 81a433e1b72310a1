//! The order of inner joins, by the statistics of tables.

use plan::Stage;

use crate::support;

/// The tables of the star schema benchmark and of TPC-H at scale factor 1, as far as the queries
/// here read them.
pub(crate) const TABLES: &str = "
    CREATE TABLE lineorder (lo_custkey INT, lo_partkey INT, lo_suppkey INT, lo_orderdate INT,
      lo_discount INT, lo_revenue INT)
    WITH ('connector' = 'memory', 'rows' = '6000000', 'values' = 'lo_custkey 1 30000,
      lo_partkey 1 200000, lo_suppkey 1 2000, lo_orderdate 2556, lo_discount 0 10');
    CREATE TABLE dates (d_datekey INT, d_year INT)
    WITH ('connector' = 'memory', 'rows' = '2556', 'values' = 'd_datekey 2556, d_year 1992 1998');
    CREATE TABLE supplier (s_suppkey INT, s_region STRING, s_nation STRING)
    WITH ('connector' = 'memory', 'rows' = '2000', 'values' = 's_suppkey 1 2000, s_region 5,
      s_nation 25');
    CREATE TABLE customer (c_custkey INT, c_region STRING, c_nation STRING)
    WITH ('connector' = 'memory', 'rows' = '30000', 'values' = 'c_custkey 1 30000, c_region 5,
      c_nation 25');
    CREATE TABLE part (p_partkey INT, p_category STRING, p_brand STRING)
    WITH ('connector' = 'memory', 'rows' = '200000', 'values' = 'p_partkey 1 200000,
      p_category 25, p_brand 1000');

    CREATE TABLE l (orderkey BIGINT, partkey INT, suppkey INT, price INT, shipped INT)
    WITH ('connector' = 'memory', 'rows' = '6000000', 'values' = 'orderkey 1 6000000,
      partkey 1 200000, suppkey 1 10000, shipped 0 2525');
    CREATE TABLE o (orderkey BIGINT, custkey INT, ordered INT)
    WITH ('connector' = 'memory', 'rows' = '1500000', 'values' = 'orderkey 1 6000000,
      custkey 1 150000, ordered 0 2405');
    CREATE TABLE c (custkey INT, nationkey INT)
    WITH ('connector' = 'memory', 'rows' = '150000', 'values' = 'custkey 1 150000,
      nationkey 0 24');
    CREATE TABLE s (suppkey INT, nationkey INT)
    WITH ('connector' = 'memory', 'rows' = '10000', 'values' = 'suppkey 1 10000,
      nationkey 0 24');
    CREATE TABLE ps (partkey INT, suppkey INT, cost INT)
    WITH ('connector' = 'memory', 'rows' = '800000', 'values' = 'partkey 1 200000,
      suppkey 1 10000');
    CREATE TABLE p (partkey INT, name STRING)
    WITH ('connector' = 'memory', 'rows' = '200000', 'values' = 'partkey 1 200000');
    CREATE TABLE n (nationkey INT, regionkey INT, name STRING)
    WITH ('connector' = 'memory', 'rows' = '25', 'values' = 'nationkey 0 24, regionkey 0 4,
      name 25');
    CREATE TABLE r (regionkey INT, name STRING)
    WITH ('connector' = 'memory', 'rows' = '5', 'values' = 'regionkey 0 4, name 5');
    CREATE TABLE endless (k INT) WITH ('connector' = 'memory', 'bounded' = 'false');";

fn planned(sql: &str) -> Stage {
    let (mut planner, _) = support::planner(1);
    planner.plan(TABLES).expect("the tables");
    match planner.plan(sql) {
        Ok(mut stages) => stages.remove(0),
        Err(errors) => {
            panic!("{}", errors.iter().map(|e| e.render("", sql, false)).collect::<String>())
        }
    }
}

/// The orders of a query as EXPLAIN shows them.
fn orders(sql: &str) -> Vec<String> {
    let text = planned(sql).explain.text();
    let orders = text.lines().filter_map(|line| line.trim().strip_prefix("order: "));
    orders.map(str::to_owned).collect()
}

/// The relations of the only order of a query.
fn order(sql: &str) -> String {
    let orders = orders(sql);
    let [order] = &orders[..] else { panic!("{orders:?}") };
    order.split(':').next().expect("a part").to_owned()
}

#[test]
fn facts_are_probed_and_the_dimension_that_drops_most_rows_comes_first() {
    // The filters leave 1 of 25 parts, 1 of 5 suppliers, and all days.
    let sql = "SELECT sum(lo_revenue), d_year, p_brand FROM lineorder, dates, part, supplier
        WHERE lo_orderdate = d_datekey AND lo_partkey = p_partkey AND lo_suppkey = s_suppkey
          AND p_category = 'MFGR#12' AND s_region = 'AMERICA' GROUP BY d_year, p_brand";
    let expected = "part, supplier, dates, then lineorder: 12 orders looked at, about 48 K rows \
                    come out";
    assert_eq!(orders(sql), [expected]);
    // 1 of 25 customers comes before 1 of 5 suppliers, and 6 of 7 years are last.
    let sql = "SELECT sum(lo_revenue), d_year FROM dates, lineorder, customer, supplier
        WHERE lo_custkey = c_custkey AND lo_suppkey = s_suppkey AND lo_orderdate = d_datekey
          AND c_nation = 'CHINA' AND s_region = 'ASIA' AND d_year >= 1992 AND d_year <= 1997
        GROUP BY d_year";
    assert_eq!(order(sql), "customer, supplier, dates, then lineorder");
}

#[test]
fn small_sides_are_joined_before_they_are_built() {
    // First the five nations of a region, and the orders of their customers in a year; suppliers of
    // the same nation follow by both keys.
    let sql = "SELECT n.name, sum(l.price) FROM c, o, l, s, n, r
        WHERE c.custkey = o.custkey AND l.orderkey = o.orderkey AND l.suppkey = s.suppkey
          AND c.nationkey = s.nationkey AND s.nationkey = n.nationkey
          AND n.regionkey = r.regionkey AND r.name = 'ASIA' AND ordered BETWEEN 731 AND 1095
        GROUP BY n.name";
    assert_eq!(order(sql), "(((r, then n), then c), then o), s, then l");
    // A tenth of the parts are left, and a tenth of the supplies; the join by two columns refers to
    // the key of supplies.
    let sql = "SELECT n.name, sum(l.price - ps.cost) FROM p, s, l, ps, o, n
        WHERE s.suppkey = l.suppkey AND ps.suppkey = l.suppkey AND ps.partkey = l.partkey
          AND p.partkey = l.partkey AND o.orderkey = l.orderkey AND s.nationkey = n.nationkey
          AND p.name LIKE '%green%' GROUP BY n.name";
    let shown = orders(sql);
    assert!(shown[0].ends_with("about 600 K rows come out"), "{shown:?}");
}

#[test]
fn of_a_chain_of_equalities_each_pair_can_be_joined() {
    // No condition compares c with n; few of c are left.
    let sql = "SELECT /*+ LEADING(c, n) */ count(*) FROM c, s, n
        WHERE c.nationkey = s.nationkey AND s.nationkey = n.nationkey AND n.name = 'CHINA'";
    assert_eq!(order(sql), "(n, then c), then s");
    // Both columns of one side that are equal to a third are equal to each other.
    let sql = "SELECT /*+ LEADING(n, c) */ count(*) FROM ps, c, n
        WHERE ps.partkey = c.custkey AND ps.suppkey = c.custkey AND n.nationkey = c.nationkey
          AND n.name = 'CHINA'";
    let text = planned(sql).explain.text();
    assert!(text.contains("Filter partkey = suppkey"), "{text}");
}

#[test]
fn a_block_without_reason_keeps_its_order() {
    // Without statistics all tables are alike.
    let sql = "SELECT count(*) FROM (SELECT * FROM n AS x) x JOIN n AS y ON x.name = y.name
        JOIN n AS z ON y.nationkey = z.nationkey";
    assert!(orders(sql)[0].contains("as written, about 25 rows come out"), "{:?}", orders(sql));
    // Two sides have no order; the join itself chooses its build.
    assert!(orders("SELECT count(*) FROM c JOIN o ON c.custkey = o.custkey").is_empty());
}

#[test]
fn outer_semi_and_anti_joins_are_borders() {
    let sql = "SELECT count(*) FROM (SELECT l.orderkey AS k, l.suppkey FROM l LEFT JOIN p
          ON l.partkey = p.partkey) AS x
        JOIN o ON x.k = o.orderkey JOIN c ON c.custkey = o.custkey JOIN n
          ON n.nationkey = c.nationkey
        WHERE n.name = 'CHINA' AND NOT EXISTS (SELECT 1 FROM s WHERE s.suppkey = x.suppkey)";
    let shown = orders(sql);
    assert!(shown[0].starts_with("((n, then c), then o), then "), "{shown:?}");
}

#[test]
fn a_semi_join_that_drops_most_rows_comes_before_the_joins() {
    let sql = "SELECT c.custkey, sum(l.price) FROM c, o, l
        WHERE o.orderkey IN (SELECT orderkey FROM l GROUP BY orderkey HAVING sum(price) > 300)
          AND c.custkey = o.custkey AND o.orderkey = l.orderkey GROUP BY c.custkey";
    let shown = orders(sql);
    assert!(shown[0].ends_with("about 2.0 M rows come out"), "of six millions: {shown:?}");
    // Most customers have orders, so that this one stays above the joins.
    let sql = "SELECT count(*) FROM c, n, r WHERE c.nationkey = n.nationkey
        AND n.regionkey = r.regionkey AND EXISTS (SELECT 1 FROM o WHERE o.custkey = c.custkey)";
    assert!(orders(sql)[0].ends_with("about 150 K rows come out"), "{:?}", orders(sql));
}

#[test]
fn a_hint_says_which_sides_come_first() {
    let sql =
        "SELECT /*+ LEADING(dates, lineorder) */ count(*) FROM lineorder, dates, part, supplier
        WHERE lo_orderdate = d_datekey AND lo_partkey = p_partkey AND lo_suppkey = s_suppkey
          AND p_category = 'MFGR#12' AND s_region = 'AMERICA'";
    let expected = "dates, part, supplier, then lineorder: hint LEADING(dates, lineorder) at 1:12, \
                    about 48 K rows come out";
    assert_eq!(orders(sql), [expected]);
    // Two sides alone, and a block of a subquery.
    planned("SELECT /*+ LEADING(c, o) */ count(*) FROM o JOIN c ON c.custkey = o.custkey");
    let sql = "SELECT count(*) FROM n JOIN (SELECT /*+ LEADING(l, o) */ c.nationkey FROM c
        JOIN o ON c.custkey = o.custkey JOIN l ON l.orderkey = o.orderkey) AS x
        ON x.nationkey = n.nationkey";
    assert!(orders(sql)[0].contains("hint LEADING(l, o) at 1:"), "{:?}", orders(sql));
}

#[test]
fn a_hint_that_cannot_be_obeyed_is_an_error_at_its_side() {
    for (hint, column, message) in [
        ("c, x", 23, "no inner join of this query has a side 'x'"),
        ("c, l, o", 23, "the hint LEADING(c, l, o) cannot be obeyed here"),
        ("c, o, c", 26, "the hint LEADING(c, o, c) cannot be obeyed here"),
        ("c", 12, "LEADING needs two or more sides of joins: LEADING(t, u)"),
    ] {
        let sql = format!(
            "SELECT /*+ LEADING({hint}) */ count(*) FROM c
             JOIN o ON c.custkey = o.custkey JOIN l ON l.orderkey = o.orderkey"
        );
        let (mut planner, _) = support::planner(1);
        planner.plan(TABLES).expect("the tables");
        let errors = planner.plan(&sql).err().unwrap_or_else(|| panic!("{hint}"));
        let found: Vec<_> = errors.iter().map(|e| (e.column, e.message.as_str())).collect();
        assert_eq!(found, [(column, message)], "{hint}");
    }
}

#[test]
fn other_printers_show_the_order_too() {
    let stage = planned(
        "SELECT count(*) FROM l JOIN o ON l.orderkey = o.orderkey JOIN c ON o.custkey = c.custkey
         WHERE c.nationkey = 7",
    );
    let json = stage.explain.json();
    let order = &json["statements"][0]["orders"][0];
    assert_eq!(order["joins"]["probe"], "l");
    assert_eq!(order["joins"]["builds"][0]["probe"], "o");
    assert_eq!(order["as_written"], false);
    assert_eq!(order["rows_estimated"], 240_000);
}
