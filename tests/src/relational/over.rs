//! Functions over windows of rows, in orders that leave no choice.

use super::{Kind, Scope, Writer};

impl Writer<'_> {
    /// A function over rows of the table `alias`, whose `id` and `ts` tell them apart.
    pub(super) fn over(&mut self, kind: Kind, scope: &Scope, alias: &str) -> String {
        let scope = &scope.flat();
        let partition = match self.random.chance(60) {
            true => {
                let by = *self.random.one_of(&Kind::ALL);
                format!("PARTITION BY {} ", self.key(by, scope))
            }
            false => String::new(),
        };
        let mut order = vec![];
        if self.random.chance(40) {
            let by = *self.random.one_of(&Kind::ALL);
            order.push(format!("{}{}", self.key(by, scope), self.direction()));
        }
        // Peers are together in a frame of values, and are told apart in one of rows.
        let by_peers = !order.is_empty() && self.random.chance(40);
        if !by_peers {
            let last = self.word(&["id", "ts", "ts"]);
            order.push(format!("{alias}.{last}"));
        }
        let order = format!("{partition}ORDER BY {}", order.join(", "));
        match (kind, self.random.below(4)) {
            (Kind::Int, 0) => {
                let numbers: &[&'static str] = match by_peers {
                    true => &["rank()", "dense_rank()"],
                    false => &["rank()", "dense_rank()", "row_number()", "ntile(3)"],
                };
                format!("{} OVER ({order})", self.word(numbers))
            }
            (Kind::Float, 0) => {
                format!("{} OVER ({order})", self.word(&["percent_rank()", "cume_dist()"]))
            }
            (_, 1) if !by_peers => {
                let value = self.value(kind, scope, 1);
                let more = match self.random.below(3) {
                    0 => String::new(),
                    1 => ", 2".into(),
                    _ => format!(", 1, {}", self.literal(kind)),
                };
                format!("{}({value}{more}) OVER ({order})", self.word(&["lag", "lead"]))
            }
            (_, 2) if !by_peers => {
                let (value, frame) = (self.value(kind, scope, 1), self.frame());
                let call = match self.random.below(3) {
                    0 => format!("first_value({value})"),
                    1 => format!("last_value({value})"),
                    _ => format!("nth_value({value}, 2)"),
                };
                format!("{call} OVER ({order} {frame})")
            }
            _ => {
                let call = self.plain_call(kind, scope);
                let filter = match self.random.chance(20) {
                    true => format!(" FILTER (WHERE {})", self.condition(scope, 1)),
                    false => String::new(),
                };
                let frame = if by_peers { "" } else { self.frame() };
                format!("{call}{filter} OVER ({order} {frame})")
            }
        }
    }

    /// Some frames are empty for some rows.
    fn frame(&mut self) -> &'static str {
        self.word(&[
            "",
            "ROWS BETWEEN 1 PRECEDING AND CURRENT ROW",
            "ROWS BETWEEN 3 PRECEDING AND 1 PRECEDING",
            "ROWS BETWEEN 2 PRECEDING AND 2 PRECEDING",
            "ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING",
            "ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING",
            "ROWS BETWEEN 1 FOLLOWING AND 2 FOLLOWING",
            "ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING",
            "ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING",
        ])
    }

    pub(super) fn direction(&mut self) -> &'static str {
        self.word(&[" NULLS FIRST", " NULLS LAST", " DESC NULLS FIRST", " DESC NULLS LAST"])
    }
}
