//! Builds that are multicast: a strip leaves its memory server once, however many processes need
//! its rows.

use super::bed::Pool;

/// Lines of orders, customers and parts, which have buckets of their keys, and people, who are the
/// customers with their names: a large table without buckets. A third of the lines have no part.
const LOAD: &str = "
    CREATE TABLE numbers (n BIGINT) WITH (
        'connector' = 'generator', 'rows' = '60000', 'fields.n.kind' = 'sequence');
    CREATE TABLE people WITH ('connector' = 'pool') AS
        SELECT n AS customer, n % 7 AS region, 'customer number ' || CAST(n AS STRING) AS name
        FROM numbers WHERE n < 30000;
    CREATE TABLE customers DISTRIBUTED BY HASH(customer) INTO 4 BUCKETS
    WITH ('connector' = 'pool') AS SELECT customer, region FROM people;
    CREATE TABLE parts DISTRIBUTED BY HASH(part) INTO 8 BUCKETS WITH ('connector' = 'pool') AS
        SELECT n AS part, n % 5 AS brand FROM numbers WHERE n < 20000;
    CREATE TABLE lines DISTRIBUTED BY HASH(customer) INTO 8 BUCKETS, HASH(part) INTO 4 BUCKETS
    WITH ('connector' = 'pool') AS
        SELECT n * 7 % 30000 AS customer, n % 30000 AS part, n AS price FROM numbers;";

const TABLES: &str = "
    CREATE TABLE people WITH ('connector' = 'pool');
    CREATE TABLE customers WITH ('connector' = 'pool');
    CREATE TABLE parts WITH ('connector' = 'pool');
    CREATE TABLE lines WITH ('connector' = 'pool');";

/// A build that each process needs, with a condition that reads its names.
fn one_join(hint: &str) -> String {
    format!(
        "SELECT /*+ {hint}(people) */ region, count(*) AS lines, sum(price) AS prices
         FROM lines JOIN people ON lines.customer = people.customer
         WHERE name LIKE 'customer%' GROUP BY region ORDER BY region;"
    )
}

fn two_joins(hint: &str) -> String {
    format!(
        "SELECT /*+ {hint}(customers), {hint}(parts) */
            region, brand, count(*) AS lines, sum(price) AS prices
         FROM lines JOIN customers ON lines.customer = customers.customer
            JOIN parts ON lines.part = parts.part
         GROUP BY region, brand ORDER BY region, brand;"
    )
}

/// The rows of [`one_join`], by hand.
fn one_joined() -> String {
    let mut sums = [(0_u64, 0_u64); 7];
    for n in 0..60_000_usize {
        let sum = &mut sums[n * 7 % 30_000 % 7];
        *sum = (sum.0 + 1, sum.1 + n as u64);
    }
    let rows = sums.iter().enumerate();
    let rows = rows.map(|(region, (count, sum))| format!("{region},{count},{sum}\n"));
    "region,lines,prices\n".to_owned() + &rows.collect::<String>()
}

/// The rows of [`two_joins`], by hand.
fn two_joined() -> String {
    let mut sums = [[(0_u64, 0_u64); 5]; 7];
    for n in (0..60_000_usize).filter(|n| n % 30_000 < 20_000) {
        let sum = &mut sums[n * 7 % 30_000 % 7][n % 30_000 % 5];
        *sum = (sum.0 + 1, sum.1 + n as u64);
    }
    let mut rows = String::from("region,brand,lines,prices\n");
    for (region, brands) in sums.iter().enumerate() {
        let brands = brands.iter().enumerate().filter(|(_, (count, _))| *count > 0);
        for (brand, (count, sum)) in brands {
            rows += &format!("{region},{brand},{count},{sum}\n");
        }
    }
    rows
}

/// Bytes that have left the servers, whose processors send them.
fn sent(pool: &Pool) -> u64 {
    pool.stats().iter().map(|stat| stat["read_bytes"].as_u64().unwrap()).sum()
}

fn nodes_of<'a>(nodes: &'a str, workers: &'a str) -> [&'a str; 6] {
    ["--nodes", nodes, "--workers", workers, "--pool-fabric", "tcp"]
}

#[test]
fn what_leaves_the_servers_does_not_grow_with_those_that_need_it() {
    let pool = Pool::start_several("multicast", &["--bytes", "64MiB"], 2);
    pool.rows(LOAD, &[]);
    let bytes = |hint: &str, nodes: &str| {
        let before = sent(&pool);
        let rows = pool.rows(&(TABLES.to_owned() + &one_join(hint)), &nodes_of(nodes, "1"));
        assert_eq!(rows, one_joined(), "{hint}, {nodes} nodes");
        sent(&pool) - before
    };
    let (once, pulled) = (bytes("PULL", "1"), bytes("PULL", "4"));
    // People have more bytes than the lines.
    assert!(pulled > 2 * once, "{pulled} bytes for four processes, {once} for one");
    for nodes in ["1", "2", "3", "4"] {
        let multicast = bytes("MULTICAST", nodes);
        let (least, most) = (once * 98 / 100, once * 102 / 100);
        assert!((least..=most).contains(&multicast), "{nodes} nodes: {multicast}, and {once}");
    }
}

#[test]
fn each_process_gets_the_partitions_that_it_needs() {
    let pool = Pool::start_several("multicast-cells", &["--bytes", "64MiB"], 2);
    pool.rows(LOAD, &[]);
    let of = |sql: &str, way: &[&str]| pool.rows(&format!("{TABLES} {sql}"), way);
    for (nodes, workers) in [("1", "2"), ("2", "1"), ("2", "2"), ("3", "1"), ("4", "1")] {
        let way = nodes_of(nodes, workers);
        for hint in ["MULTICAST", "PULL"] {
            assert_eq!(of(&two_joins(hint), &way), two_joined(), "{hint} by {way:?}");
            assert_eq!(of(&one_join(hint), &way), one_joined(), "{hint} by {way:?}");
        }
    }
    let way = nodes_of("4", "1");
    let plan = of(&format!("EXPLAIN {}", two_joins("MULTICAST")), &way);
    assert_eq!(plan.matches("1 of 2 parts by ").count(), 4, "{plan}");
    assert!(plan.contains("multicast"), "{plan}");
}

#[test]
fn a_build_is_multicast_where_a_server_would_send_most() {
    let pool = Pool::start("multicast-cost", &["--bytes", "64MiB"]);
    // As many bytes as rows have in memory.
    let points = "
        CREATE TABLE points WITH ('connector' = 'pool') AS
            SELECT n AS customer, CAST(n AS DOUBLE) / 2 AS a, CAST(n AS DOUBLE) / 4 AS b,
                CAST(n AS DOUBLE) / 8 AS c, CAST(n AS DOUBLE) * 1.5 AS d
            FROM numbers WHERE n < 5000;";
    pool.rows(&(LOAD.to_owned() + points), &[]);
    let query = "SELECT max(a) AS a, max(b) AS b, max(c) AS c, max(d) AS d, sum(price) AS prices
        FROM lines JOIN points ON lines.customer = points.customer;";
    let with = |what: &str, way: &[&str]| {
        let tables = "CREATE TABLE points WITH ('connector' = 'pool');
            CREATE TABLE lines WITH ('connector' = 'pool');";
        pool.rows(&format!("SET millstream.table_bytes = '1'; {tables} {what} {query}"), way)
    };
    let plan = with("EXPLAIN", &nodes_of("4", "1"));
    assert!(plan.contains("if 4 processes pulled, a server would send 664.1 KiB"), "{plan}");
    // Two read for themselves, and mapped memory does not travel.
    for way in [&nodes_of("2", "1")[..], &["--nodes", "4", "--workers", "1"]] {
        let plan = with("EXPLAIN", way);
        assert!(plan.contains("pull: pulled: the other processes read"), "{way:?}: {plan}");
    }
    let prices: u64 = (0..60_000).filter(|n| n * 7 % 30_000 < 5_000).sum();
    let rows = format!("a,b,c,d,prices\n2499.5,1249.75,624.875,7498.5,{prices}\n");
    assert_eq!(with("", &nodes_of("4", "1")), rows);
}
