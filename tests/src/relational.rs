//! Random relational queries, and the answers of two engines that owe each other nothing: ours and
//! SQLite.
//!
//! A query is one text for both. Where the dialects differ it holds `‹ours|theirs›`, as for a
//! decimal, which SQLite keeps as a count of hundredths, and for a time, which is text there; so
//! [`Dialect::of`] is all that tells them apart. What the engines mean differently is not asked:
//! sums beyond 64 bits, divisions by zero, lower case of letters beyond ASCII, integers against
//! floats that cannot tell them apart. Every expression has a [`Kind`], because SQLite has no types
//! that would say whether a query makes sense.

mod aggregate;
mod answer;
mod condition;
mod over;
mod query;
mod source;
mod tables;
mod value;

pub use answer::{Rows, Sqlite, ours};
pub use tables::{Relation, relations};

use crate::random::Random;

/// Queries over the tables of one case.
pub const QUERIES: usize = 10;

/// Tables, views over them, and queries over both: a function of a seed.
#[derive(Debug)]
pub struct Case {
    /// The tables.
    pub tables: Vec<Relation>,
    /// Views by name; one may read those before it.
    pub views: Vec<(String, String)>,
    /// What is asked.
    pub queries: Vec<Query>,
}

/// A query in both dialects.
#[derive(Debug, Clone)]
pub struct Query {
    /// The text, with marks where the dialects differ.
    pub sql: String,
    /// Whether its rows come in an order that tells all of them apart.
    pub ordered: bool,
}

/// Whose SQL it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// Ours.
    Ours,
    /// SQLite's.
    Theirs,
}

impl Dialect {
    /// The text in this dialect.
    pub fn of(self, sql: &str) -> String {
        let mut out = String::with_capacity(sql.len());
        let mut rest = sql;
        while let Some((before, marked)) = rest.split_once('‹') {
            let (both, behind) = marked.split_once('›').expect("a mark is closed");
            let (ours, theirs) = both.split_once('|').expect("a mark has two sides");
            out.push_str(before);
            out.push_str(if self == Dialect::Ours { ours } else { theirs });
            rest = behind;
        }
        out.push_str(rest);
        out
    }
}

/// What an expression gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Int,
    Float,
    Text,
    Bool,
    Decimal,
    Date,
    Time,
}

impl Kind {
    const ALL: [Kind; 7] =
        [Kind::Int, Kind::Float, Kind::Text, Kind::Bool, Kind::Decimal, Kind::Date, Kind::Time];

    /// The type in SQL.
    fn sql(self) -> &'static str {
        match self {
            Kind::Int => "BIGINT",
            Kind::Float => "DOUBLE",
            Kind::Text => "VARCHAR",
            Kind::Bool => "BOOLEAN",
            Kind::Decimal => "DECIMAL(9, 2)",
            Kind::Date => "DATE",
            Kind::Time => "TIMESTAMP(3)",
        }
    }
}

/// An expression that a query may use.
#[derive(Debug, Clone)]
struct Column {
    sql: String,
    kind: Kind,
}

/// What an expression may be made of.
#[derive(Debug, Clone)]
struct Scope {
    columns: Vec<Column>,
    /// Whether subqueries may stand in it.
    nested: bool,
}

impl Scope {
    fn of(columns: Vec<Column>) -> Self {
        Self { columns, nested: true }
    }

    /// The same without subqueries.
    fn flat(&self) -> Self {
        Self { nested: false, ..self.clone() }
    }

    fn of_kind(&self, kind: Kind) -> Vec<&Column> {
        self.columns.iter().filter(|column| column.kind == kind).collect()
    }
}

/// What a name in `FROM` stands for.
#[derive(Debug, Clone)]
struct Named {
    name: String,
    columns: Vec<(String, Kind)>,
    /// Whether `id` and `ts` tell its rows apart.
    keyed: bool,
}

/// Writes queries.
struct Writer<'a> {
    random: &'a mut Random,
    names: Vec<Named>,
    aliases: usize,
    /// Subqueries in expressions that this query may still have.
    subqueries: u64,
}

impl Writer<'_> {
    fn alias(&mut self) -> String {
        self.aliases += 1;
        format!("r{}", self.aliases)
    }

    /// One of these texts.
    fn word(&mut self, words: &[&'static str]) -> &'static str {
        let word: &&'static str = self.random.one_of(words);
        word
    }
}

impl Case {
    /// The case of a seed.
    pub fn new(seed: u64) -> Self {
        // Sequences of seeds that follow each other are one another's, but for the first number.
        let mut random = Random::new(Random::new(seed + 90_000).number());
        let tables = relations(&mut random);
        let names = tables.iter().map(Relation::named).collect();
        let mut writer = Writer { random: &mut random, names, aliases: 0, subqueries: 0 };
        let mut views = vec![];
        for at in 0..writer.random.below(3) {
            let (sql, kinds) = writer.select(2);
            let name = format!("v{at}");
            let columns = (0..).map(|at| format!("c{at}")).zip(kinds).collect();
            writer.names.push(Named { name: name.clone(), columns, keyed: false });
            views.push((name, sql));
        }
        let queries = (0..QUERIES).map(|_| writer.query()).collect();
        Self { tables, views, queries }
    }
}
