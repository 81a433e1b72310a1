//! Aggregates, and what rows are grouped by.

use super::{Kind, Scope, Writer};

impl Writer<'_> {
    /// An aggregate that gives this kind.
    pub(super) fn aggregate(&mut self, kind: Kind, scope: &Scope) -> String {
        let scope = &scope.flat();
        let call = self.aggregate_call(kind, scope);
        let filtered = match self.random.chance(20) {
            true => format!("{call} FILTER (WHERE {})", self.condition(scope, 1)),
            false => call,
        };
        match self.random.below(10) {
            0 => format!("coalesce({filtered}, {})", self.literal(kind)),
            1 => {
                let when = self.aggregate_call(Kind::Int, scope);
                format!("CASE WHEN {when} > 1 THEN {filtered} END")
            }
            _ => filtered,
        }
    }

    /// A call without `FILTER`, which may stand before `OVER` where it has no `DISTINCT`.
    pub(super) fn plain_call(&mut self, kind: Kind, scope: &Scope) -> String {
        loop {
            let call = self.aggregate_call(kind, scope);
            if !call.contains("DISTINCT") {
                break call;
            }
        }
    }

    fn aggregate_call(&mut self, kind: Kind, scope: &Scope) -> String {
        let least = self.word(&["min", "max"]);
        let any = *self.random.one_of(&Kind::ALL);
        match (kind, self.random.below(6)) {
            (Kind::Int, 0) => "count(*)".into(),
            (Kind::Int, 1) => format!("count({})", self.value(any, scope, 1)),
            (Kind::Int, 2) => format!("count(DISTINCT {})", self.value(any, scope, 1)),
            (Kind::Int, 3) => format!("sum({})", self.small(scope)),
            (Kind::Int, 4) => format!("sum(DISTINCT {})", self.small(scope)),
            (Kind::Float, 0 | 1) => format!("avg({})", self.small(scope)),
            (Kind::Float, 2) => format!("sum({})", self.small_float(scope)),
            (Kind::Float, 3) => format!("avg({})", self.small_float(scope)),
            (Kind::Bool, 0..3) => {
                let value = self.value(Kind::Bool, scope, 1);
                format!("{}({value})", self.word(&["‹bool_and|min›", "‹bool_or|max›"]))
            }
            (Kind::Decimal, 0..3) => format!("sum({})", self.leaf(Kind::Decimal, scope)),
            _ => format!("{least}({})", self.value(kind, scope, 1)),
        }
    }

    /// What rows are grouped by: never a bare number, which would be a place in `SELECT`.
    pub(super) fn key(&mut self, kind: Kind, scope: &Scope) -> String {
        let scope = &scope.flat();
        match (self.column(kind, scope), self.random.below(4)) {
            (Some(column), 0) if kind == Kind::Int => format!("({column} % 3)"),
            (Some(column), 1) => {
                format!("CASE WHEN {} THEN {column} END", self.condition(scope, 1))
            }
            (Some(column), _) => column,
            (None, _) => {
                let (one, other) = (self.literal(kind), self.literal(kind));
                format!("CASE WHEN {} THEN {one} ELSE {other} END", self.condition(scope, 1))
            }
        }
    }
}
