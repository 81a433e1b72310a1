//! Conditions, of three values, and the subqueries that stand in expressions.

use super::{Kind, Named, Scope, Writer};

impl Writer<'_> {
    /// A condition; in parentheses where it is made of several.
    pub(super) fn condition(&mut self, scope: &Scope, depth: u32) -> String {
        if depth > 0 && self.random.chance(35) {
            let (left, right) =
                (self.condition(scope, depth - 1), self.condition(scope, depth - 1));
            return match self.random.below(5) {
                0 => format!("(NOT {left})"),
                1 => format!("({left} {})", self.word(&["IS TRUE", "IS NOT TRUE", "IS NOT FALSE"])),
                2 => format!("({left} OR {right})"),
                _ => format!("({left} AND {right})"),
            };
        }
        if depth > 0 && scope.nested && self.subqueries > 0 && self.random.chance(50) {
            self.subqueries -= 1;
            return self.about_subquery(scope);
        }
        self.predicate(scope, depth.saturating_sub(1))
    }

    fn predicate(&mut self, scope: &Scope, depth: u32) -> String {
        let kind = *self.random.one_of(&Kind::ALL);
        let value = self.value(kind, scope, depth);
        let other = |writer: &mut Self| match writer.random.chance(40) {
            true => writer.literal(kind),
            false => writer.leaf(kind, scope),
        };
        match self.random.below(10) {
            0 => format!("({value} {})", self.word(&["IS NULL", "IS NOT NULL"])),
            1 => {
                let not = self.word(&["", "NOT "]);
                format!("({value} IS {not}DISTINCT FROM {})", other(self))
            }
            2 if kind != Kind::Bool => {
                let not = self.word(&["", "NOT "]);
                format!("({value} {not}BETWEEN {} AND {})", other(self), other(self))
            }
            3 => {
                let not = self.word(&["", "NOT "]);
                let (first, second) = (self.literal(kind), other(self));
                format!("({value} {not}IN ({first}, {second}))")
            }
            4 | 5 if kind == Kind::Text => {
                let not = self.word(&["", "NOT "]);
                let like = self.word(&["'a%'", "'%b'", "'_'", "'%'", "''", "'%é%'", "'a__%'"]);
                format!("({value} {not}LIKE {like})")
            }
            4 if kind == Kind::Bool => value,
            _ => {
                let comparison = self.word(&["=", "=", "<>", "<", "<=", ">", ">="]);
                format!("({value} {comparison} {})", other(self))
            }
        }
    }

    /// `FROM … WHERE …` of a subquery, which may ask for the row around it; and what is in it.
    fn inside(&mut self, around: &Scope) -> (String, Scope) {
        let named: Named = self.random.one_of(&self.names).clone();
        let alias = self.alias();
        let inner = Scope::of(super::source::columns_of(&named, &alias)).flat();
        let mut wanted = vec![];
        if self.random.chance(60)
            && let Some((left, right)) = self.pair(&inner, around)
        {
            let comparison = if self.random.chance(85) { "=" } else { "<" };
            wanted.push(format!("{left} {comparison} {right}"));
        }
        if wanted.is_empty() || self.random.chance(40) {
            wanted.push(self.condition(&inner, 1));
        }
        (format!("FROM {} AS {alias} WHERE {}", named.name, wanted.join(" AND ")), inner)
    }

    /// Two columns of one kind, one from each.
    pub(super) fn pair(&mut self, left: &Scope, right: &Scope) -> Option<(String, String)> {
        let both =
            |kind: &&Kind| !left.of_kind(**kind).is_empty() && !right.of_kind(**kind).is_empty();
        let kinds: Vec<Kind> = Kind::ALL.iter().filter(both).copied().collect();
        if kinds.is_empty() {
            return None;
        }
        let kind = *self.random.one_of(&kinds);
        Some((self.column(kind, left)?, self.column(kind, right)?))
    }

    fn about_subquery(&mut self, scope: &Scope) -> String {
        let (from, inner) = self.inside(scope);
        let not = self.word(&["", "NOT "]);
        if self.random.chance(50) {
            return format!("({not}EXISTS (SELECT 1 {from}))");
        }
        let kinds: Vec<Kind> =
            Kind::ALL.into_iter().filter(|kind| !inner.of_kind(*kind).is_empty()).collect();
        let kind = *self.random.one_of(&kinds);
        let (value, of) = (self.leaf(kind, scope), self.value(kind, &inner, 1));
        format!("({value} {not}IN (SELECT {of} {from}))")
    }

    /// A subquery of one row at most.
    pub(super) fn scalar_subquery(&mut self, kind: Kind, scope: &Scope) -> String {
        let (from, inner) = self.inside(scope);
        let value = self.aggregate(kind, &inner);
        format!("(SELECT {value} {from})")
    }
}
