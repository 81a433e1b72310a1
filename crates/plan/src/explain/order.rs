//! The order of the inner joins of a statement.

use std::fmt;

use dataflow::job::Reason;
use serde_json::{Value, json};

use crate::text::units::count;

/// A block of inner joins in its order.
#[derive(Debug, Clone)]
pub(crate) struct OrderedJoins {
    pub(crate) sides: OrderedSide,
    /// Pairs of sides that were compared.
    pub(crate) looked_at: usize,
    /// Whether it is the order of the query.
    pub(crate) is_written: bool,
    /// The estimated rows of the result.
    pub(crate) rows: u64,
    /// The hint that asks for it.
    pub(crate) reason: Option<Reason>,
}

/// A side of a join of an order.
#[derive(Debug, Clone)]
pub(crate) enum OrderedSide {
    /// A relation by its name.
    Relation(String),
    /// The rows of `probe` look up `builds` one after another.
    Joined { builds: Vec<OrderedSide>, probe: Box<OrderedSide> },
}

impl fmt::Display for OrderedJoins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.sides)?;
        match &self.reason {
            Some(reason) => write!(f, "{reason}")?,
            None if self.is_written => f.write_str("as written")?,
            None => {
                let plural = if self.looked_at == 1 { "" } else { "s" };
                write!(f, "{} order{plural} looked at", self.looked_at)?;
            }
        }
        write!(f, ", about {} rows come out", count(self.rows))
    }
}

impl fmt::Display for OrderedSide {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OrderedSide::Relation(name) => f.write_str(name),
            OrderedSide::Joined { builds, probe } => {
                for (at, build) in builds.iter().enumerate() {
                    let comma = if at == 0 { "" } else { ", " };
                    match build {
                        OrderedSide::Relation(name) => write!(f, "{comma}{name}")?,
                        joined => write!(f, "{comma}({joined})")?,
                    }
                }
                write!(f, ", then {probe}")
            }
        }
    }
}

impl OrderedSide {
    fn json(&self) -> Value {
        match self {
            OrderedSide::Relation(name) => json!(name),
            OrderedSide::Joined { builds, probe } => {
                let builds: Vec<Value> = builds.iter().map(Self::json).collect();
                json!({ "builds": builds, "probe": probe.json() })
            }
        }
    }
}

impl OrderedJoins {
    pub(super) fn json(&self) -> Value {
        json!({
            "joins": self.sides.json(),
            "orders_looked_at": self.looked_at,
            "as_written": self.is_written,
            "rows_estimated": self.rows,
            "reason": self.reason.as_ref().map(ToString::to_string),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builds_come_before_the_rows_that_probe_them() {
        let of = |name: &str| OrderedSide::Relation(name.to_owned());
        let orders =
            OrderedSide::Joined { builds: vec![of("customer")], probe: of("orders").into() };
        let builds = vec![orders, of("supplier")];
        let sides = OrderedSide::Joined { builds, probe: of("lineitem").into() };
        let joins =
            OrderedJoins { sides, looked_at: 6, is_written: false, rows: 48_211, reason: None };
        let shown = "(customer, then orders), supplier, then lineitem: 6 orders looked at, about \
                     48 K rows come out";
        assert_eq!(joins.to_string(), shown);
        let written = OrderedJoins { is_written: true, ..joins };
        assert!(written.to_string().contains(": as written, about"));
    }
}
