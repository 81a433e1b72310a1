//! Tables whose blocks lie on several memory servers.

use std::io::Read;

use rustix::process::Signal;

use super::bed::{
    LOAD, Pool, SUMS, TABLE, WAYS, assert_ends, assert_fails, command, script, serve,
};
use crate::rig::{Dir, await_some};

/// Sales of some shops and items, in buckets, and the tables of both.
const SHOPS: &str = "
    CREATE TABLE numbers (n BIGINT) WITH (
        'connector' = 'generator', 'rows' = '100000', 'fields.n.kind' = 'sequence');
    CREATE TABLE shops WITH ('connector' = 'pool') AS
        SELECT n AS shop, n % 5 AS region FROM numbers WHERE n < 40;
    CREATE TABLE items WITH ('connector' = 'pool') AS
        SELECT n AS item, n % 3 AS brand FROM numbers WHERE n < 1000;
    CREATE TABLE sales DISTRIBUTED BY HASH(shop) INTO 4 BUCKETS, HASH(item) INTO 2 BUCKETS
    WITH ('connector' = 'pool') AS
        SELECT n % 40 AS shop, n * 7 % 1000 AS item, n AS price FROM numbers;";

const JOIN: &str = "
    CREATE TABLE shops WITH ('connector' = 'pool');
    CREATE TABLE items WITH ('connector' = 'pool');
    CREATE TABLE sales WITH ('connector' = 'pool');
    SELECT region, brand, count(*) AS sales, sum(price) AS prices
    FROM sales JOIN shops ON sales.shop = shops.shop JOIN items ON sales.item = items.item
    GROUP BY region, brand ORDER BY region, brand;";

/// The rows of [`JOIN`], by hand.
fn joined() -> String {
    let mut sums = [[(0_u64, 0_u64); 3]; 5];
    for n in 0..100_000 {
        let (shop, item) = (n % 40, n * 7 % 1000);
        let sum = &mut sums[shop % 5][item % 3];
        *sum = (sum.0 + 1, sum.1 + n as u64);
    }
    let mut rows = String::from("region,brand,sales,prices\n");
    for (region, brands) in sums.iter().enumerate() {
        for (brand, (count, sum)) in brands.iter().enumerate() {
            rows += &format!("{region},{brand},{count},{sum}\n");
        }
    }
    rows
}

#[test]
fn a_table_lies_on_all_servers_and_has_the_rows_of_one() {
    for servers in [1, 2, 3] {
        let pool = Pool::start_several("several", &["--bytes", "128MiB"], servers);
        for way in [WAYS[0], WAYS[3]] {
            pool.rows(SHOPS, way);
            pool.rows(LOAD, way);
            let stats = pool.stats();
            assert_eq!(stats.len(), servers);
            assert!(stats.iter().all(|stat| stat["extents"].as_u64() > Some(0)), "{stats:?}");
            for way in WAYS {
                assert_eq!(pool.rows(JOIN, way), joined(), "{servers} servers, {way:?}");
                assert_eq!(pool.sums(way), SUMS, "{servers} servers, {way:?}");
            }
            let stat = pool.command(&["pool", "stat", "sales"]).output().unwrap();
            assert_ends(&stat, 0);
            let text = String::from_utf8_lossy(&stat.stdout);
            assert!(text.contains("shop into 4, item into 2"), "{text}");
            for table in ["t", "sales", "shops", "items"] {
                let intact = pool.command(&["pool", "verify", table]).output().unwrap();
                assert_ends(&intact, 0);
                assert_ends(&pool.command(&["pool", "drop", table]).output().unwrap(), 0);
            }
            pool.await_stats("all is free", |stat| stat["bytes"] == 0 && stat["extents"] == 0);
        }
    }
}

#[test]
fn a_load_fails_when_no_server_has_room_and_not_before() {
    // The name of a table decides which of the two has it.
    for bytes in [["3MiB", "9MiB"], ["9MiB", "3MiB"]] {
        let pool = Pool::start_sized("several-sizes", bytes);
        let load = |number: usize| {
            let sql =
                LOAD.replace("200000", "40000").replace("TABLE t ", &format!("TABLE t{number} "));
            pool.run(&sql, [WAYS[0], WAYS[3]][number % 2])
        };
        let free = || -> Vec<u64> {
            pool.stats().iter().map(|stat| stat["free"].as_u64().unwrap()).collect()
        };
        let mut loaded = 0;
        let failed = loop {
            let before = free();
            let output = load(loaded);
            if output.status.code() != Some(0) {
                pool.await_stats("it has left nothing", |stat| stat["loads"] == 0);
                await_some(|| (free() == before).then_some(()), || format!("{:?}", free()));
                break output;
            }
            loaded += 1;
        };
        assert_fails(&failed, 1, "are free");
        // A strip has 8192 rows of less than 64 bytes; and the lists of blocks have a part.
        assert!(free().iter().all(|free| *free < 1 << 20), "{:?} after {loaded}", free());
        assert!(loaded > 2, "{loaded} tables");
        for number in 0..loaded {
            let sql = format!(
                "CREATE TABLE t{number} WITH ('connector' = 'pool');
                 SELECT count(*) AS c, sum(n) AS n, sum(half) AS h FROM t{number};"
            );
            let rows = pool.rows(&sql, WAYS[number % WAYS.len()]);
            assert_eq!(rows.lines().last(), Some("40000,799980000,399980000"), "t{number}");
        }
    }
}

#[test]
fn a_load_of_which_one_node_fails_ends_with_its_reason() {
    let pool = Pool::start_several("several-bad", &["--bytes", "64MiB"], 2);
    let parts = pool.dir.0.join("parts");
    std::fs::create_dir(&parts).unwrap();
    let rows = |of: std::ops::Range<u32>| of.map(|n| format!("{n}\n")).collect::<String>();
    std::fs::write(parts.join("a.csv"), format!("n\n{}", rows(0..100_000))).unwrap();
    let bad = format!("n\n{}many\n{}", rows(0..50_000), rows(0..50_000));
    std::fs::write(parts.join("b.csv"), bad).unwrap();
    let sql = format!(
        "CREATE TABLE lines (n BIGINT) WITH ('connector' = 'file', 'format' = 'csv',
             'path' = '{}/*.csv', 'on_bad' = 'fail');
         CREATE TABLE u WITH ('connector' = 'pool') AS SELECT n FROM lines;",
        parts.display()
    );
    // Either node may read the line, and either may be heard first.
    for way in WAYS.into_iter().cycle().take(12) {
        let failed = pool.run(&sql, way);
        assert_fails(&failed, 1, "b.csv:50002: column 'n': 'many' is not a valid BIGINT");
        pool.await_stats("nothing is left", |stat| stat["loads"] == 0 && stat["bytes"] == 0);
    }
}

/// A server behind the first, so that whichever has the table, the other holds extents of it.
#[test]
fn the_end_of_either_server_is_an_error_that_names_it() {
    for (way, first) in [(WAYS[0], false), (WAYS[2], false), (WAYS[2], true)] {
        let mut pool = Pool::start_several("several-killed", &["--bytes", "64MiB"], 2);
        pool.rows(LOAD, WAYS[0]);
        let mut reading = pool.reading(way);
        let (server, name) = if first {
            (&mut pool.server, "memory server 'm0' is gone")
        } else {
            (&mut pool.others[0], "memory server 'm1' is gone")
        };
        server.kill();
        reading.hears(name);
        let (rows, messages, code) = reading.end();
        assert!(code == Some(1) && rows < 200_000, "{code:?}, {rows} rows: {messages}");
        assert!(messages.contains(name), "{messages}");
        let stat = pool.command(&["pool", "stat"]).output().unwrap();
        assert_fails(&stat, 1, "no memory server answers at");
    }
}

#[test]
fn a_server_that_is_started_anew_has_none_of_what_it_held() {
    for first in [false, true] {
        let mut pool = Pool::start_several("several-anew", &["--bytes", "64MiB"], 2);
        pool.rows(LOAD, WAYS[0]);
        let addresses = pool.address.clone();
        let addresses: Vec<&str> = addresses.split(',').collect();
        let at = usize::from(!first);
        let (name, bytes) = (format!("m{at}"), ["--bytes", "64MiB", "--name"]);
        let server = if first { &mut pool.server } else { &mut pool.others[0] };
        server.kill();
        let (again, _) = serve(&pool.dir, addresses[at], &[&bytes[..], &[&name]].concat());
        *server = again;
        // The one that has the table knows what is lost, or nobody knows the table.
        let sql = format!("{TABLE} SELECT count(*) AS c FROM t;");
        let read = pool.run(&sql, WAYS[0]);
        let messages = String::from_utf8_lossy(&read.stderr).into_owned();
        let lost = format!("memory server '{name}' is gone");
        let named = messages.contains(&lost) && messages.contains("load it again");
        assert!(named || messages.contains("the pool has no table 't'"), "{messages}");
        assert!(!messages.contains("is gone: memory server"), "it is named once: {messages}");
        if named {
            // It notices within a second.
            let listed = || {
                let listed = pool.command(&["pool", "ls"]).output().unwrap();
                String::from_utf8(listed.stdout).unwrap()
            };
            await_some(|| Some(listed()).filter(|text| text.contains("damaged")), listed);
            let declared = "CREATE TABLE t (n BIGINT, half BIGINT, name STRING)
                WITH ('connector' = 'pool');";
            let into = format!("{declared} INSERT INTO t VALUES (1, 2, 'x');");
            assert_fails(&pool.run(&into, &[]), 2, "drop it, and load it again");
            // Nothing of it is read.
            let over = format!("{declared} INSERT OVERWRITE t VALUES (1, 2, 'x');");
            assert_ends(&pool.run(&over, &[]), 0);
            assert_eq!(pool.sums(WAYS[0]), "1,1,2");
            assert_ends(&pool.command(&["pool", "drop", "t"]).output().unwrap(), 0);
        }
        pool.await_stats("nothing is left", |stat| stat["extents"] == 0);
        pool.rows(LOAD, WAYS[2]);
        assert_eq!(pool.sums(WAYS[3]), SUMS);
    }
}

#[test]
fn a_loader_that_dies_or_is_stopped_leaves_nothing_on_any_server() {
    let pool = Pool::start_several("several-loader", &["--bytes", "64MiB"], 2);
    for signal in [Signal::KILL, Signal::STOP] {
        let (process, rows) = pool.loading_over_all();
        process.signal(signal);
        pool.await_stats("nothing is left", |stat| stat["loads"] == 0 && stat["bytes"] == 0);
        drop((process, rows));
        let sql = "CREATE TABLE u WITH ('connector' = 'pool') AS SELECT 1 AS n;";
        assert_ends(&pool.run(sql, &[]), 0);
        assert_ends(&pool.command(&["pool", "drop", "u"]).output().unwrap(), 0);
    }
}

#[test]
fn a_loader_whose_other_server_dies_ends() {
    for first in [false, true] {
        let mut pool = Pool::start_several("several-loaded", &["--bytes", "64MiB"], 2);
        let (mut process, rows) = pool.loading_over_all();
        if first {
            pool.server.kill()
        } else {
            pool.others[0].kill()
        }
        drop(rows);
        let mut messages = String::new();
        process.0.stderr.take().unwrap().read_to_string(&mut messages).unwrap();
        assert_eq!(process.0.wait().unwrap().code(), Some(1), "{messages}");
        let name = if first { "memory server 'm0' is gone" } else { "memory server 'm1' is gone" };
        assert!(messages.contains(name), "{messages}");
    }
}

#[test]
fn a_server_with_a_directory_has_its_tables_whole() {
    let mut pool = Pool::start("several-kept", &["--bytes", "64MiB"]);
    let kept = pool.dir.0.join("kept");
    let args = ["--bytes", "64MiB", "--name", "m1", "--dir", kept.to_str().unwrap()];
    let (server, address) = serve(&pool.dir, "127.0.0.1:0", &args);
    pool.others.push(server);
    pool.address = format!("{},{address}", pool.address);
    pool.rows(LOAD, WAYS[0]);
    assert_eq!(pool.sums(WAYS[0]), SUMS);
    let with: Vec<_> = pool.stats().into_iter().filter(|stat| stat["extents"] != 0).collect();
    assert_eq!(with.len(), 1, "{with:?}");
}

#[test]
fn servers_with_directories_have_their_tables_again() {
    let mut pool = Pool::start_several("several-dirs", &["--bytes", "64MiB"], 1);
    let args = |name: &str, dir: &str| -> Vec<String> {
        ["--bytes", "64MiB", "--name", name, "--dir", dir].map(str::to_owned).into()
    };
    let served = |pool: &Pool, at: &str, name: &str| {
        let dir = pool.dir.0.join(format!("kept-{name}"));
        let args = args(name, dir.to_str().unwrap());
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        serve(&pool.dir, at, &args)
    };
    for name in ["m1", "m2"] {
        let (server, address) = served(&pool, "127.0.0.1:0", name);
        pool.others.push(server);
        pool.address = format!("{},{address}", pool.address);
    }
    // So many that each server has some.
    let tables: Vec<String> = (0..16).map(|number| format!("t{number}")).collect();
    let rows = "CREATE TABLE numbers (n BIGINT) WITH (
        'connector' = 'generator', 'rows' = '1000', 'fields.n.kind' = 'sequence');";
    let load = |name: &String| {
        format!("CREATE TABLE {name} WITH ('connector' = 'pool') AS SELECT n FROM numbers;")
    };
    pool.rows(&(rows.to_owned() + &tables.iter().map(load).collect::<String>()), WAYS[0]);
    let of = |server: usize, stats: &[serde_json::Value]| stats[server]["tables"].as_u64().unwrap();
    let before = pool.stats();
    assert!((0..3).all(|server| of(server, &before) > 0), "{before:?}");
    let listed = |pool: &Pool| -> Vec<String> {
        let listed = pool.command(&["pool", "ls", "--json"]).output().unwrap();
        assert_ends(&listed, 0);
        let text = String::from_utf8(listed.stdout).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
        lines.map(|of: serde_json::Value| of["table"].as_str().unwrap().to_owned()).collect()
    };
    let all = listed(&pool);
    assert_eq!(all.len(), 16);
    let addresses = pool.address.clone();
    let addresses: Vec<&str> = addresses.split(',').collect();
    for at in [1, 2] {
        pool.others[at - 1].kill();
        let read = pool.command(&["pool", "ls"]).output().unwrap();
        assert_fails(&read, 1, "no memory server answers at");
        let (again, _) = served(&pool, addresses[at], &format!("m{at}"));
        pool.others[at - 1] = again;
        assert_eq!(listed(&pool), all, "each table is there again");
    }
    for name in &tables {
        let sql = format!(
            "CREATE TABLE {name} WITH ('connector' = 'pool');
             SELECT count(*) AS c, sum(n) AS n FROM {name};"
        );
        assert_eq!(pool.rows(&sql, WAYS[0]), "c,n\n1000,499500\n", "{name}");
        assert_ends(&pool.command(&["pool", "verify", name]).output().unwrap(), 0);
    }
}

#[test]
fn servers_show_each_other_their_certificates() {
    let dir = Dir::new("pool-several-certs");
    for args in [["cert", "init", "ca"].as_slice(), &["cert", "issue", "ca", "node"]] {
        assert_ends(&command(&dir, args).output().unwrap(), 0);
    }
    let args = |name| ["--bytes", "64MiB", "--certs", "node", "--name", name];
    let servers = ["m0", "m1"].map(|name| serve(&dir, "127.0.0.1:0", &args(name)));
    let pool = servers.each_ref().map(|(_, address)| address.as_str()).join(",");
    let ask = |args: &[&str]| {
        let args = [args, &["--pool", &pool, "--pool-certs", "node"]].concat();
        let output = command(&dir, &args).output().unwrap();
        assert_ends(&output, 0);
        String::from_utf8(output.stdout).unwrap()
    };
    let load = script(&dir, LOAD);
    ask(&["run", load.to_str().unwrap(), "-q"]);
    let stat = ask(&["pool", "stat", "--json"]);
    let has_extents = |line: &str| !line.contains("\"extents\":0,");
    assert!(stat.lines().count() == 2 && stat.lines().all(has_extents), "{stat}");
    assert!(ask(&["pool", "verify", "t"]).contains("is intact"));
}

#[test]
fn a_pool_that_is_named_in_part_is_an_error() {
    let pool = Pool::start_several("several-part", &["--bytes", "64MiB"], 2);
    pool.rows(LOAD, WAYS[0]);
    let mut errors = String::new();
    for address in pool.address.split(',') {
        let args = ["pool", "verify", "t", "--pool", address];
        let output = command(&pool.dir, &args).output().unwrap();
        assert_ends(&output, 1);
        errors += &String::from_utf8_lossy(&output.stderr);
    }
    assert!(errors.contains("too: name all servers"), "{errors}");
    assert!(errors.contains("names each server of the pool once"), "{errors}");
    assert!(errors.contains("the pool has no table 't'"), "{errors}");
}

#[test]
fn a_server_that_is_named_twice_is_an_error() {
    let pool = Pool::start("several-twice", &["--bytes", "64MiB"]);
    let (_other, other) = serve(&pool.dir, "127.0.0.1:0", &["--bytes", "64MiB"]);
    let own = &pool.address;
    for (second, is) in [(own, "are one memory server, 'm0'"), (&other, "are both called 'm0'")] {
        let args = ["pool", "ls", "--pool", &format!("{own},{second}")];
        let output = command(&pool.dir, &args).output().unwrap();
        assert_fails(&output, 1, is);
        assert_fails(&output, 1, "names each server of the pool once");
        let messages = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!messages.contains("refuses"), "{messages}");
    }
}
