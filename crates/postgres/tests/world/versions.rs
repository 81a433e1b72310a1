//! Changes of a table as the versions that rows of a stream meet.

use std::collections::BTreeMap;
use std::fs;

use crate::run::{Dir, Job};
use crate::server::{lines, made, psql, try_psql, url, waits_for};

/// The declaration of the changes of a table, by the columns that are read of it.
fn changes(name: &str, table: &str, [fields, computed]: [&str; 2]) -> String {
    let url = url();
    format!(
        "CREATE TABLE {name} (lsn BIGINT METADATA, sequence BIGINT METADATA,
           committed TIMESTAMP(3) METADATA FROM 'timestamp',
           op STRING, `before` ROW<{fields}>, `after` ROW<{fields}>, {computed},
           WATERMARK FOR committed AS committed - INTERVAL '0.1' SECOND)
         WITH ('connector' = 'postgres-cdc', 'url' = '{url}', 'username' = 'postgres',
           'table-name' = 'public.{table}', 'publication.name' = '{table}');\n"
    )
}

/// A table that takes what each order has met.
fn taken() -> (String, String) {
    let columns = "id bigint, op text, rate double precision, lsn bigint, sequence bigint";
    let table = made("met", columns);
    let declared = columns.replace("text", "STRING").replace("double precision", "DOUBLE");
    let url = url();
    let sql = format!(
        "CREATE TABLE met ({declared}) WITH ('connector' = 'postgres', 'url' = '{url}',
           'username' = 'postgres', 'table-name' = '{table}',
           'sink.buffer-flush.interval' = '20 ms');\n"
    );
    (table, sql)
}

/// The tables of the server, and what the rates are by what was done to them.
struct World {
    orders: String,
    rates: String,
    /// The operation and the rate that a currency has had last.
    last: BTreeMap<&'static str, (&'static str, &'static str)>,
    /// The version that each order is to meet.
    expected: Vec<String>,
}

impl World {
    /// Does something to the rates, in one transaction. `{}` stands for the table.
    fn change(&mut self, sql: &str, currency: &'static str, last: (&'static str, &'static str)) {
        psql(&sql.replace("{}", &self.rates));
        self.last.insert(currency, last);
        next_millisecond();
    }

    /// Adds an order, and what it is to meet.
    fn order(&mut self, currency: Option<&str>) {
        let id = self.expected.len() + 1;
        let text = currency.map_or("NULL".to_owned(), |currency| format!("'{currency}'"));
        psql(&format!("INSERT INTO {} VALUES ({id}, {text})", self.orders));
        let met = currency.and_then(|currency| self.last.get(currency));
        let (op, rate) = met.copied().unwrap_or_default();
        self.expected.push(format!("{id}|{op}|{rate}"));
        next_millisecond();
    }

    /// Changes both tables, so that time goes on: by rows that count for nothing.
    fn tick(&self) {
        psql(&format!("INSERT INTO {} VALUES (0, 'none')", self.orders));
        psql(&format!("INSERT INTO {} VALUES ('tick', 0)", self.rates));
    }
}

/// What is committed from here on has another time than what was before.
fn next_millisecond() {
    psql("SELECT pg_sleep(0.002)");
}

#[test]
fn a_row_of_a_stream_meets_the_row_of_a_table_as_it_was_at_its_time() {
    for arguments in [["--workers", "2"], ["--nodes", "2"]] {
        let dir = Dir::new();
        let orders = made("orders", "id bigint, currency text");
        let rates = made("rates", "currency text, rate double precision");
        psql(&format!("ALTER TABLE {rates} REPLICA IDENTITY FULL"));
        psql(&format!("INSERT INTO {rates} VALUES ('EUR', 1), ('GBP', 8)"));
        let last = [("EUR", ("r", "1")), ("GBP", ("r", "8"))].into();
        let mut world = World { orders, rates, last, expected: vec![] };
        let (met, declared) = taken();
        let order = "id AS `after`.id, currency AS `after`.currency";
        let rate = "currency AS coalesce(`after`.currency, `before`.currency), \
                    rate AS `after`.rate";
        let sql = changes("orders", &world.orders, ["id BIGINT, currency STRING", order])
            + &changes("rates", &world.rates, ["currency STRING, rate DOUBLE", rate])
            + &declared
            + "INSERT INTO met SELECT o.id, r.op, r.rate, r.lsn, r.sequence
               FROM orders AS o LEFT JOIN rates FOR SYSTEM_TIME AS OF o.committed AS r
               ON o.currency = r.currency;";
        dir.write("q.sql", &sql);
        let mut job = Job::start(&dir, &[&["run", "q.sql"], &arguments[..]].concat());
        let log = || fs::read_to_string(dir.0.join("log")).unwrap();
        let comes = |job: &mut Job, world: &World, what: &str, rows: usize| {
            waits_for(what, || {
                assert_eq!(job.ended(), None, "{}", log());
                world.tick();
                let least = usize::from(rows > 0);
                let count = try_psql(&format!("SELECT count(*) FROM {met} WHERE id >= {least}"));
                count.is_ok_and(|count| count.parse::<usize>().unwrap() >= rows.max(1))
            });
        };
        comes(&mut job, &world, "both tables are followed", 0);

        world.order(Some("EUR"));
        world.order(Some("CHF"));
        world.change("UPDATE {} SET rate = 2 WHERE currency = 'EUR'", "EUR", ("u", "2"));
        world.order(Some("EUR"));
        world.order(Some("GBP"));
        world.change("INSERT INTO {} VALUES ('CHF', 5)", "CHF", ("c", "5"));
        world.order(Some("CHF"));
        // Of changes of one transaction the last one counts, not the greatest.
        world.change(
            "BEGIN; UPDATE {} SET rate = 9 WHERE currency = 'EUR';
             UPDATE {} SET rate = 3 WHERE currency = 'EUR'; COMMIT",
            "EUR",
            ("u", "3"),
        );
        world.order(Some("EUR"));
        world.change("DELETE FROM {} WHERE currency = 'EUR'", "EUR", ("d", ""));
        world.order(Some("EUR"));
        world.change(
            "BEGIN; DELETE FROM {} WHERE currency = 'GBP';
             INSERT INTO {} VALUES ('GBP', 4); COMMIT",
            "GBP",
            ("c", "4"),
        );
        world.order(Some("GBP"));
        // NULL is the key of no version.
        psql(&format!("INSERT INTO {} VALUES (NULL, 7)", world.rates));
        world.order(None);
        world.change("INSERT INTO {} VALUES ('EUR', 6)", "EUR", ("c", "6"));
        world.order(Some("EUR"));
        world.change("UPDATE {} SET rate = NULL WHERE currency = 'CHF'", "CHF", ("u", ""));
        world.order(Some("CHF"));

        comes(&mut job, &world, "each order has met its rate", world.expected.len());
        let rows = lines(&format!("SELECT id, op, rate FROM {met} WHERE id > 0 ORDER BY id"));
        assert_eq!(rows, world.expected, "{arguments:?} {}", log());
    }
}
