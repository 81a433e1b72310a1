//! Random joins of three to seven tables, in the order of the planner and in orders of hints,
//! against SQLite.

use std::sync::Arc;

use millstream::Session;
use tests::cases::cases;
use tests::memory::Memory;
use tests::random::Random;
use tests::relational::{Query, Relation, Sqlite, ours, relations};

/// The number of random joins.
const CASES: u64 = 60;

/// Inner joins of tables, in which each has an equality with one before it.
struct Joins {
    /// The table of each alias.
    tables: Vec<usize>,
    /// Equalities: two aliases, and a column of each.
    equalities: Vec<(usize, usize, &'static str, &'static str)>,
    /// Conditions on one table or on several.
    conditions: Vec<String>,
}

impl Joins {
    fn new(random: &mut Random, tables: usize) -> Self {
        let count = 3 + random.below(5) as usize;
        // The first two tables have no row and one; a join with them seldom has any.
        let one = |_| match random.below(20) {
            0 => random.below(tables as u64) as usize,
            _ => 2 + random.below(tables as u64 - 2) as usize,
        };
        let of = (0..count).map(one).collect();
        // Chains, stars, and trees; some have cycles.
        let is_chain = random.chance(30);
        let mut equalities = vec![];
        for at in 1..count {
            let other = if is_chain { at - 1 } else { random.below(at as u64) as usize };
            // Unique keys, and some of few values.
            let keys = [("id", "id"), ("id", "i"), ("i", "id"), ("i", "i"), ("i", "i")];
            let (one, two) = *random.one_of(&keys);
            equalities.push((other, at, one, two));
            if random.chance(25) {
                let other = random.below(at as u64) as usize;
                equalities.push((other, at, "id", "id"));
            }
        }
        let conditions = (0..random.below(2)).map(|_| {
            let [one, other] = [0; 2].map(|_| random.below(count as u64));
            match random.below(5) {
                0 => format!("r{one}.i >= 0"),
                1 => format!("r{one}.t IN ('a', 'b', 'ab')"),
                2 => format!("r{one}.id <= r{other}.id + 3"),
                3 => format!("(r{one}.id = 1 OR r{other}.i = 2)"),
                _ => format!("r{one}.id + 1 <= r{other}.id + 4"),
            }
        });
        Self { tables: of, equalities, conditions: conditions.collect() }
    }

    /// A query of them, with a hint or without.
    fn query(&self, random: &mut Random, hint: &str) -> Query {
        let mut sql = format!("SELECT {hint} ");
        let columns: Vec<String> =
            (0..self.tables.len()).map(|at| format!("r{at}.id AS c{at}")).collect();
        let grouped = random.chance(30);
        sql += &if grouped { "r0.id, count(*) AS n".into() } else { columns.join(", ") };
        // By commas and WHERE, by JOIN and ON, or through a subquery.
        let from = |at: usize| format!("t{} AS r{at}", self.tables[at]);
        let equal =
            |&(one, other, a, b): &(usize, usize, &str, &str)| format!("r{one}.{a} = r{other}.{b}");
        let mut conditions = self.conditions.clone();
        if random.chance(50) {
            let tables: Vec<String> = (0..self.tables.len()).map(from).collect();
            sql += &format!(" FROM {}", tables.join(", "));
            conditions.extend(self.equalities.iter().map(equal));
        } else {
            sql += &format!(" FROM {}", from(0));
            for at in 1..self.tables.len() {
                let own = self.equalities.iter().filter(|(_, other, ..)| *other == at);
                let own: Vec<String> = own.map(equal).collect();
                sql += &format!(" JOIN {} ON {}", from(at), own.join(" AND "));
            }
        }
        if !conditions.is_empty() {
            sql += &format!(" WHERE {}", conditions.join(" AND "));
        }
        if grouped {
            sql += " GROUP BY r0.id";
        }
        if random.chance(30) {
            let keys = if grouped { "x.id, x.n" } else { "x.c0, x.c1 + x.c2" };
            sql = format!("SELECT {keys} FROM ({sql}) AS x");
        }
        Query { sql, ordered: false }
    }

    /// A hint for a random order without a cross product.
    fn hint(&self, random: &mut Random) -> String {
        let count = self.tables.len();
        let mut order = vec![random.below(count as u64) as usize];
        let most = 2 + random.below(count as u64 - 1) as usize;
        while order.len() < most {
            let beside = |&(one, other, ..): &(usize, usize, &str, &str)| match (
                order.contains(&one),
                order.contains(&other),
            ) {
                (true, false) => Some(other),
                (false, true) => Some(one),
                _ => None,
            };
            let next: Vec<usize> = self.equalities.iter().filter_map(beside).collect();
            if next.is_empty() {
                break;
            }
            order.push(*random.one_of(&next));
        }
        let names: Vec<String> = order.iter().map(|at| format!("r{at}")).collect();
        format!("/*+ LEADING({}) */", names.join(", "))
    }
}

fn session(tables: &[Relation], workers: u32) -> Session {
    let memory = Memory::new(None);
    let builder = Session::builder().workers(workers).connector(Arc::new(memory.clone()));
    let mut session = builder.build().expect("it fits");
    for table in tables {
        memory.add(&table.name, table.table.clone());
        session.sql(&table.declared()).expect("a table");
    }
    session
}

#[test]
fn an_order_of_joins_changes_no_row() {
    let (mut rows, mut changed) = (0, 0);
    let mut cases = cases(CASES);
    for seed in &mut cases {
        let random = &mut Random::new(seed);
        let tables: Vec<Relation> = relations(random).into_iter().map(Relation::untimed).collect();
        let sqlite = Sqlite::new(&tables);
        let joins = Joins::new(random, tables.len());
        let mut session = session(&tables, 1 + random.below(2) as u32);
        for hint in [String::new(), joins.hint(random), joins.hint(random)] {
            let query = joins.query(random, &hint);
            let theirs = sqlite.rows(&query).unwrap_or_else(|e| panic!("{}: {e}", query.sql));
            let found = session.collect(&query.sql);
            let found = found.unwrap_or_else(|error| panic!("{}: {error}", query.sql));
            assert_eq!(ours(&found, &query), theirs, "{}", query.sql);
            rows += theirs.len();
            let shown = session.collect(&format!("EXPLAIN {}", query.sql)).expect("a plan");
            let shown = ours(&shown, &query).join("\n");
            changed += usize::from(shown.contains("orders looked at"));
        }
    }
    cases.met(rows > 100, &format!("{rows} rows"));
    cases.met(changed > 3, &format!("{changed} queries without a hint are put in another order"));
}
