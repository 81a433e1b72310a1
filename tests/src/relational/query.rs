//! Queries: projections, groupings, functions over windows, sets, orders.

use super::{Kind, Named, Query, Scope, Writer};

impl Writer<'_> {
    /// A statement.
    pub(super) fn query(&mut self) -> Query {
        self.subqueries = self.random.below(4) / 2;
        let names = self.names.len();
        let with = if self.random.chance(20) { self.with() } else { String::new() };
        let (sql, kinds) = self.select(2);
        self.names.truncate(names);
        let ordered = self.random.chance(30);
        let order = if ordered { self.order(kinds.len()) } else { String::new() };
        Query { sql: format!("{with}{sql}{order}"), ordered }
    }

    /// `WITH` and a name more for the query behind it.
    fn with(&mut self) -> String {
        let (sql, kinds) = match self.random.chance(75) {
            true => self.select(1),
            false => {
                let kinds = self.kinds();
                let row = |writer: &mut Self| {
                    let values: Vec<_> = kinds.iter().map(|kind| writer.literal(*kind)).collect();
                    format!("({})", values.join(", "))
                };
                (format!("VALUES {}, {}", row(self), row(self)), kinds)
            }
        };
        let columns: Vec<String> = (0..kinds.len()).map(|at| format!("c{at}")).collect();
        let header = columns.join(", ");
        let columns = columns.into_iter().zip(kinds).collect();
        self.names.push(Named { name: "x".into(), columns, keyed: false });
        format!("WITH x ({header}) AS ({sql}) ")
    }

    /// An order by all columns, and perhaps some rows of it.
    pub(super) fn order(&mut self, columns: usize) -> String {
        let mut by: Vec<String> = (0..columns).map(|at| format!("c{at}")).collect();
        by.rotate_left(self.random.below(columns as u64) as usize);
        let by: Vec<String> =
            by.into_iter().map(|column| format!("{column}{}", self.direction())).collect();
        let limit = match self.random.chance(50) {
            true => self.word(&[" LIMIT 3", " LIMIT 1 OFFSET 1", " LIMIT 0", " LIMIT 9 OFFSET 2"]),
            false => "",
        };
        format!(" ORDER BY {}{limit}", by.join(", "))
    }

    fn kinds(&mut self) -> Vec<Kind> {
        (0..1 + self.random.below(3)).map(|_| *self.random.one_of(&Kind::ALL)).collect()
    }

    /// A query whose columns are `c0`, `c1`, …, and their kinds.
    pub(super) fn select(&mut self, depth: u32) -> (String, Vec<Kind>) {
        let kinds = self.kinds();
        let sql = match self.random.chance(15) && depth > 0 {
            true => {
                let sets = ["UNION ALL", "UNION", "INTERSECT", "EXCEPT"];
                let (left, right) = (self.core(&kinds, depth - 1), self.core(&kinds, depth - 1));
                format!("{left} {} {right}", self.word(&sets))
            }
            false => self.core(&kinds, depth),
        };
        (sql, kinds)
    }

    /// A query without sets.
    fn core(&mut self, kinds: &[Kind], depth: u32) -> String {
        match self.random.below(10) {
            0..4 => {
                let (from, scope) = self.from(depth);
                let values = kinds.iter().map(|kind| self.value(*kind, &scope, 2)).collect();
                let distinct = if self.random.chance(25) { "DISTINCT " } else { "" };
                format!("SELECT {distinct}{} FROM {from}{}", named(values), self.wanted(&scope))
            }
            4..7 => self.grouped(kinds, depth),
            7 => {
                let (from, scope) = self.from(depth);
                let values = kinds.iter().map(|kind| self.aggregate(*kind, &scope)).collect();
                format!("SELECT {} FROM {from}{}", named(values), self.wanted(&scope))
            }
            _ => {
                let (from, alias, scope) = self.keyed();
                let value = |kind: &Kind| match self.random.chance(75) {
                    true => self.over(*kind, &scope, &alias),
                    false => self.value(*kind, &scope.flat(), 1),
                };
                let values = kinds.iter().map(value).collect();
                format!("SELECT {} FROM {from}{}", named(values), self.wanted(&scope))
            }
        }
    }

    fn wanted(&mut self, scope: &Scope) -> String {
        match self.random.chance(45) {
            true => format!(" WHERE {}", self.condition(scope, 2)),
            false => String::new(),
        }
    }

    fn grouped(&mut self, kinds: &[Kind], depth: u32) -> String {
        let (from, scope) = self.from(depth);
        let keys = 1 + self.random.below(kinds.len() as u64) as usize;
        let (of_keys, of_calls) = kinds.split_at(keys);
        let keys: Vec<String> = of_keys.iter().map(|kind| self.key(*kind, &scope)).collect();
        let calls = of_calls.iter().map(|kind| self.aggregate(*kind, &scope));
        let values = keys.iter().cloned().chain(calls).collect();
        let wanted = self.wanted(&scope);
        let having = match self.random.chance(30) {
            true => {
                let kind = *self.random.one_of(&[Kind::Int, Kind::Int, Kind::Text, Kind::Float]);
                let call = self.aggregate(kind, &scope);
                let compare = self.word(&[">", "<=", "<>", "IS DISTINCT FROM"]);
                format!(" HAVING {call} {compare} {}", self.literal(kind))
            }
            false => String::new(),
        };
        format!("SELECT {} FROM {from}{wanted} GROUP BY {}{having}", named(values), keys.join(", "))
    }
}

/// Values as the columns `c0`, `c1`, ….
fn named(values: Vec<String>) -> String {
    let named = |(at, value): (usize, String)| format!("{value} AS c{at}");
    values.into_iter().enumerate().map(named).collect::<Vec<_>>().join(", ")
}
