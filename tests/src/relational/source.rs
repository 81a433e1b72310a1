//! What stands in `FROM`: tables, views, queries, and joins of them.

use super::{Column, Kind, Named, Scope, Writer};

/// The columns of a named relation under an alias.
pub(super) fn columns_of(named: &Named, alias: &str) -> Vec<Column> {
    let column =
        |(name, kind): &(String, Kind)| Column { sql: format!("{alias}.{name}"), kind: *kind };
    named.columns.iter().map(column).collect()
}

/// Conditions without a column: true, false and neither.
const CONSTANTS: [&str; 5] = [
    "1 = 1",
    "2 < 1",
    "CAST(NULL AS BIGINT) > 2",
    "NULL IS NULL",
    "CAST(NULL AS BIGINT) IN (1, 2)",
];

const JOINS: [&str; 5] = ["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "LEFT JOIN"];

impl Writer<'_> {
    /// A source of rows, and the columns that it has.
    pub(super) fn from(&mut self, depth: u32) -> (String, Scope) {
        match self.random.below(10) {
            0..4 if depth > 0 => self.join(depth - 1),
            4 if depth > 0 => self.join_using(),
            _ => {
                let (text, columns) = self.single(depth);
                (text, Scope::of(columns))
            }
        }
    }

    /// A table or a query.
    fn single(&mut self, depth: u32) -> (String, Vec<Column>) {
        let alias = self.alias();
        if depth > 0 && self.random.chance(25) {
            let (sql, kinds) = self.select(depth - 1);
            let columns = kinds.iter().enumerate();
            let column =
                |(at, kind): (usize, &Kind)| Column { sql: format!("{alias}.c{at}"), kind: *kind };
            let columns = columns.map(column).collect();
            let order =
                if self.random.chance(15) { self.order(kinds.len()) } else { String::new() };
            return (format!("({sql}{order}) AS {alias}"), columns);
        }
        let named = self.random.one_of(&self.names).clone();
        (format!("{} AS {alias}", named.name), columns_of(&named, &alias))
    }

    /// A table whose rows are told apart, and its alias.
    pub(super) fn keyed(&mut self) -> (String, String, Scope) {
        let keyed: Vec<Named> = self.names.iter().filter(|named| named.keyed).cloned().collect();
        let (named, alias) = (self.random.one_of(&keyed).clone(), self.alias());
        let scope = Scope::of(columns_of(&named, &alias));
        (format!("{} AS {alias}", named.name), alias, scope)
    }

    fn join(&mut self, depth: u32) -> (String, Scope) {
        let (mut text, mut columns) = self.single(depth);
        let joins = 1 + self.random.below(2);
        for join in 1..=joins {
            let (right, more) = self.single(depth);
            if self.random.chance(8) {
                text = format!("{text} CROSS JOIN {right}");
                columns.extend(more);
                continue;
            }
            let kind = self.word(&JOINS);
            let (left, other) = (Scope::of(columns).flat(), Scope::of(more).flat());
            let mut on = vec![];
            for _ in 0..1 + self.random.below(2) {
                if let Some((one, two)) = self.pair(&left, &other) {
                    let equal = self.word(&["=", "=", "=", "=", "=", "<=", "IS NOT DISTINCT FROM"]);
                    on.push(format!("{one} {equal} {two}"));
                }
            }
            columns = left.columns;
            columns.extend(other.columns);
            // A condition of constants alone is that of the last join: behind an inner join by one,
            // SQLite loses the rows that RIGHT and FULL JOIN keep.
            if join == joins && self.random.chance(10) {
                on = vec![self.word(&CONSTANTS).to_owned()];
            } else if on.is_empty() {
                on.push("TRUE".into());
            } else if self.random.chance(30) {
                on.push(self.condition(&Scope::of(columns.clone()).flat(), 1));
            }
            text = format!("{text} {kind} {right} ON {}", on.join(" AND "));
        }
        (text, Scope::of(columns))
    }

    /// Two tables by columns of equal names, which are there once.
    fn join_using(&mut self) -> (String, Scope) {
        let (left, l, one) = self.keyed();
        let (right, r, other) = self.keyed();
        let mut names = vec![self.word(&["id", "a", "i", "t", "b", "d", "dy"])];
        names.extend(self.random.chance(30).then_some("s"));
        let kind = self.word(&JOINS);
        let is_shared = |column: &Column| {
            names.iter().any(|name| [&l, &r].iter().any(|of| column.sql == format!("{of}.{name}")))
        };
        let shared = one.columns.iter().filter(|column| is_shared(column)).map(|column| Column {
            sql: column.sql.split('.').next_back().expect("a name").to_owned(),
            kind: column.kind,
        });
        let own = one.columns.iter().chain(&other.columns).filter(|column| !is_shared(column));
        let columns = shared.chain(own.cloned()).collect();
        let text = format!("{left} {kind} {right} USING ({})", names.join(", "));
        (text, Scope::of(columns))
    }
}
