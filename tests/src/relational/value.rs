//! Expressions that give a value.

use super::{Column, Kind, Scope, Writer};

impl Writer<'_> {
    /// An expression of this kind.
    pub(super) fn value(&mut self, kind: Kind, scope: &Scope, depth: u32) -> String {
        if depth == 0 || self.random.chance(35) {
            return self.leaf(kind, scope);
        }
        match self.random.below(10) {
            0 => {
                let (when, then) = (self.condition(scope, depth - 1), self.leaf(kind, scope));
                match self.random.chance(70) {
                    true => {
                        let other = self.value(kind, scope, depth - 1);
                        format!("CASE WHEN {when} THEN {then} ELSE {other} END")
                    }
                    false => format!("CASE WHEN {when} THEN {then} END"),
                }
            }
            1 => {
                let (of, when) = (self.leaf(Kind::Int, scope), self.literal(Kind::Int));
                let then = self.leaf(kind, scope);
                let other = self.value(kind, scope, depth - 1);
                format!("CASE {of} WHEN {when} THEN {then} ELSE {other} END")
            }
            2 => {
                let first = self.value(kind, scope, depth - 1);
                format!("coalesce({first}, {})", self.leaf(kind, scope))
            }
            3 => {
                let first = self.value(kind, scope, depth - 1);
                format!("nullif({first}, {})", self.leaf(kind, scope))
            }
            4 if scope.nested && self.subqueries > 0 => {
                self.subqueries -= 1;
                self.scalar_subquery(kind, scope)
            }
            _ => self.computed(kind, scope, depth - 1),
        }
    }

    fn computed(&mut self, kind: Kind, scope: &Scope, depth: u32) -> String {
        match kind {
            Kind::Int => match self.random.below(7) {
                0 => format!("length({})", self.value(Kind::Text, scope, depth)),
                1 => {
                    let number = self.small(scope);
                    format!("({number} / {})", self.word(&["2", "-3", "10"]))
                }
                2 => format!("abs({})", self.small(scope)),
                3 => format!("CAST({} AS BIGINT)", self.value(Kind::Bool, scope, depth)),
                4 => format!("(- {})", self.small(scope)),
                _ => {
                    let (left, right) = (self.small(scope), self.small(scope));
                    format!("({left} {} {right})", self.word(&["+", "-", "*"]))
                }
            },
            Kind::Float => match self.random.below(4) {
                0 => format!("CAST({} AS DOUBLE)", self.small(scope)),
                1 => {
                    let number = self.small_float(scope);
                    format!("({number} / {})", self.word(&["2.0", "-0.5", "3.0"]))
                }
                _ => {
                    let (left, right) = (self.small_float(scope), self.small_float(scope));
                    format!("({left} {} {right})", self.word(&["+", "-", "*"]))
                }
            },
            Kind::Text => {
                let text = self.value(Kind::Text, scope, depth);
                match self.random.below(6) {
                    0 => format!("substr({text}, {})", self.word(&["1, 1", "2", "1, 0", "3, 9"])),
                    1 => format!("replace({text}, 'a', {})", self.word(&["''", "'xy'", "'a'"])),
                    2 => format!("CAST({} AS VARCHAR)", self.value(Kind::Int, scope, depth)),
                    3 => format!("trim({text})"),
                    _ => format!("({text} || {})", self.leaf(Kind::Text, scope)),
                }
            }
            Kind::Bool => self.condition(scope, depth),
            Kind::Decimal => {
                let left = self.leaf(Kind::Decimal, scope);
                format!("({left} {} {})", self.word(&["+", "-"]), self.leaf(Kind::Decimal, scope))
            }
            Kind::Date | Kind::Time => self.leaf(kind, scope),
        }
    }

    /// A column or a literal.
    pub(super) fn leaf(&mut self, kind: Kind, scope: &Scope) -> String {
        match (self.column(kind, scope), self.random.below(100)) {
            (Some(column), 0..80) => column,
            (_, 80..86) => format!("CAST(NULL AS {})", kind.sql()),
            _ => self.literal(kind),
        }
    }

    pub(super) fn column(&mut self, kind: Kind, scope: &Scope) -> Option<String> {
        let columns: Vec<&Column> = scope.of_kind(kind);
        (!columns.is_empty()).then(|| self.random.one_of(&columns).sql.clone())
    }

    /// An integer whose products are far from overflowing.
    pub(super) fn small(&mut self, scope: &Scope) -> String {
        match self.column(Kind::Int, scope) {
            Some(column) => format!("({column} % {})", self.word(&["2", "10", "1000"])),
            None => self.word(&["1", "(-2)", "30"]).to_owned(),
        }
    }

    /// A float whose sums are exact.
    pub(super) fn small_float(&mut self, scope: &Scope) -> String {
        match self.column(Kind::Float, scope).filter(|column| !column.contains('(')) {
            // Quotients of subqueries are no multiples of a quarter.
            Some(column) if column.ends_with(".f") => {
                format!(
                    "CASE WHEN ({column} BETWEEN -1000.0 AND 1000.0) AND ({column} = 0.0 \
                         OR abs({column}) >= 0.25) THEN {column} END"
                )
            }
            _ => self.word(&["0.25", "1.5", "(-2.0)"]).to_owned(),
        }
    }

    pub(super) fn literal(&mut self, kind: Kind) -> String {
        let literals: &[&str] = match kind {
            Kind::Int => &["0", "1", "2", "(-1)", "7", "9223372036854775807"],
            Kind::Float => &["0.0", "0.25", "(-1.5)", "100.75"],
            Kind::Text => &["''", "'a'", "'b'", "'ab'", "'é'", "'日本'"],
            Kind::Bool => &["TRUE", "FALSE"],
            Kind::Decimal => {
                &["‹CAST(1.00 AS DECIMAL(9, 2))|100›", "‹CAST(-0.5 AS DECIMAL(9, 2))|(-50)›"]
            }
            Kind::Date => &["‹DATE |›'2024-01-01'", "‹DATE |›'2024-02-29'", "‹DATE |›'1970-01-01'"],
            Kind::Time => &[
                "‹CAST(TIMESTAMP '2024-01-01 00:00:00' AS TIMESTAMP(3))|'2024-01-01 00:00:00.000'›",
                "‹CAST(TIMESTAMP '1970-01-01 00:00:00' AS TIMESTAMP(3))|'1970-01-01 00:00:00.000'›",
            ],
        };
        (*self.random.one_of(literals)).to_owned()
    }
}
