//! Random relational queries over tables of no rows, of one and of many, against SQLite.
//!
//! A query that is refused as it is planned counts as refused, and few may be. A panic, and an
//! error at run time, are faults: SQLite answers all of these queries.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use arrow::util::pretty::pretty_format_batches;
use millstream::{Error, Session};
use tests::cases::cases;
use tests::memory::Memory;
use tests::relational::{Case, Dialect, QUERIES, Query, Sqlite, ours};

/// With [`QUERIES`] of each, two thousand queries.
const CASES: u64 = 200;

/// Of a hundred queries so many may be refused.
const REFUSED_MAX: usize = 8;

/// What became of our answer.
enum Answer {
    Rows(Vec<String>),
    Refused(String),
    Failed(String),
}

fn asked(session: &mut Session, query: &Query) -> Answer {
    let sql = Dialect::Ours.of(&query.sql);
    match catch_unwind(AssertUnwindSafe(|| session.collect(&sql))) {
        Ok(Ok(batches)) => Answer::Rows(ours(&batches, query)),
        Ok(Err(Error::Sql(all))) => {
            let told: Vec<String> =
                all.iter().map(|error| error.render("query.sql", &sql, false)).collect();
            Answer::Refused(told.join("\n"))
        }
        Ok(Err(error)) => Answer::Failed(error.to_string()),
        Err(_) => Answer::Failed("a panic".into()),
    }
}

/// A session with the tables of a case, and the views that it does not refuse.
fn session(case: &Case, workers: u32) -> Session {
    let memory = Memory::new(None);
    let mut session = Session::builder()
        .workers(workers)
        .connector(Arc::new(memory.clone()))
        .build()
        .expect("it fits");
    for table in &case.tables {
        memory.add(&table.name, table.table.clone());
        session.sql(&table.declared()).expect("a table");
    }
    for (name, sql) in &case.views {
        // Queries that read one that is refused are refused as well, and counted.
        if let Err(error) =
            session.sql(&format!("CREATE VIEW {name} AS {};", Dialect::Ours.of(sql)))
        {
            assert!(is_clear(&error.to_string()), "{sql}: {error}");
        }
    }
    session
}

/// Whether a refusal speaks of the query, and not of what went wrong within.
fn is_clear(why: &str) -> bool {
    !why.contains("bug") && !why.contains("nternal")
}

/// The tables and views of a case, for who wants to see a fault again.
fn tables(case: &Case) -> String {
    let tables = case.tables.iter().map(|table| {
        let rows = pretty_format_batches(std::slice::from_ref(&table.rows)).expect("they print");
        format!("{}\n{rows}\n", table.declared())
    });
    let view = |(name, sql): &(String, String)| {
        format!("CREATE VIEW {name} AS {};\n", Dialect::Ours.of(sql))
    };
    tables.chain(case.views.iter().map(view)).collect()
}

/// A query and both answers.
fn told(query: &Query, ours: &str, theirs: &[String]) -> String {
    let [sql, there] = [Dialect::Ours, Dialect::Theirs].map(|dialect| dialect.of(&query.sql));
    let theirs = theirs.join("\n");
    format!("{sql};\nin SQLite: {there}\nours:\n{ours}\nSQLite:\n{theirs}")
}

#[test]
fn answers_are_those_of_sqlite() {
    let (mut asked_for, mut refused, mut rows) = (0, vec![], 0);
    let mut cases = cases(CASES);
    for seed in &mut cases {
        let case = Case::new(seed);
        let sqlite = Sqlite::new(&case.tables);
        for (name, sql) in &case.views {
            sqlite.view(name, sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
        }
        let mut sessions = [1, 2].map(|workers| session(&case, workers));
        let mut wrong = vec![];
        for (at, query) in case.queries.iter().enumerate() {
            let theirs = sqlite.rows(query);
            let theirs = theirs.unwrap_or_else(|error| panic!("{}: {error}", query.sql));
            asked_for += 1;
            rows += theirs.len();
            match asked(&mut sessions[at % 2], query) {
                Answer::Rows(ours) if ours == theirs => {}
                Answer::Rows(ours) => wrong.push(told(query, &ours.join("\n"), &theirs)),
                Answer::Refused(why) if is_clear(&why) => refused.push(why),
                Answer::Refused(why) | Answer::Failed(why) => {
                    wrong.push(told(query, &why, &theirs));
                }
            }
        }
        assert!(wrong.is_empty(), "{}\n{}", tables(&case), wrong.join("\n\n"));
    }
    let few = refused.len() * 100 <= asked_for * REFUSED_MAX;
    let count = refused.len();
    cases.met(few, &format!("{count} of {asked_for} are refused:\n{}", refused.join("\n")));
    cases.met(rows > QUERIES * 300, &format!("{rows} rows"));
}
