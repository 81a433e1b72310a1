//! Which rows of two sides a join gives out.

use std::fmt;
use std::sync::Arc;

use crate::job::Property;
use crate::job::step::Step;

/// Which rows of a join are given out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JoinKind {
    /// Pairs.
    Inner,
    /// Pairs, and left rows without a partner.
    Left,
    /// Pairs, and right rows without a partner.
    Right,
    /// Pairs, and rows without a partner.
    Full,
    /// Left rows with a partner, once.
    LeftSemi,
    /// Left rows without a partner.
    LeftAnti,
    /// Right rows with a partner, once.
    RightSemi,
    /// Right rows without a partner.
    RightAnti,
}

impl JoinKind {
    /// Whether pairs are given out, rather than rows of one side.
    pub fn widens(self) -> bool {
        matches!(self, Self::Inner | Self::Left | Self::Right | Self::Full)
    }

    /// Which rows of a side are given out alone: those with a partner, or those without one.
    pub(crate) fn alone(self, side: usize) -> Option<bool> {
        match (self, side) {
            (Self::LeftSemi, 0) | (Self::RightSemi, 1) => Some(true),
            (Self::Left | Self::Full | Self::LeftAnti, 0)
            | (Self::Right | Self::Full | Self::RightAnti, 1) => Some(false),
            _ => None,
        }
    }

    /// Whether the columns of a side are given out.
    pub(crate) fn shows(self, side: usize) -> bool {
        match self {
            Self::LeftSemi | Self::LeftAnti => side == 0,
            Self::RightSemi | Self::RightAnti => side == 1,
            _ => true,
        }
    }

    /// Whether each row of the result contains a row of `side`.
    pub(crate) fn always_has(self, side: usize) -> bool {
        match self {
            Self::Left => side == 0,
            Self::Right => side == 1,
            Self::Full => false,
            _ => true,
        }
    }

    /// The column of the result that is `column` of `side`. The left side has `left` columns, which
    /// come first.
    pub(crate) fn passes_on(self, side: usize, column: usize, left: usize) -> Option<usize> {
        let before = if side == 1 && self.widens() { left } else { 0 };
        self.shows(side).then_some(before + column)
    }

    /// The properties in EXPLAIN of a join of this kind: the kind, the equal columns of both sides
    /// and the filter on pairs.
    pub(crate) fn properties(
        self,
        columns: &[Vec<String>],
        keys: [&[usize]; 2],
        on: Option<&Arc<dyn Step>>,
    ) -> Vec<Property> {
        let mut properties = vec![("type", self.to_string())];
        let [left, right] = keys;
        let name = |side: usize, at: usize| {
            columns.get(side).and_then(|of| of.get(at)).map_or_else(String::new, Clone::clone)
        };
        let equal = left.iter().zip(right);
        let equal = equal.map(|(&left, &right)| format!("{} = {}", name(0, left), name(1, right)));
        let equal: Vec<_> = equal.collect();
        if !equal.is_empty() {
            properties.push(("on", equal.join(" AND ")));
        }
        let filter = on.map(|on| on.describe()).unwrap_or_default();
        let filter = filter.into_iter().filter(|(name, _)| *name == FILTER);
        properties.extend(filter.map(|(_, text)| ("filter", text)));
        properties
    }
}

impl fmt::Display for JoinKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            JoinKind::Inner => "INNER",
            JoinKind::Left => "LEFT",
            JoinKind::Right => "RIGHT",
            JoinKind::Full => "FULL",
            JoinKind::LeftSemi => "LEFT SEMI",
            JoinKind::LeftAnti => "LEFT ANTI",
            JoinKind::RightSemi => "RIGHT SEMI",
            JoinKind::RightAnti => "RIGHT ANTI",
        })
    }
}

/// The name of a filter among what a step does.
pub const FILTER: &str = "Filter";

/// The name of a projection among what a step does.
pub const PROJECT: &str = "Project";

/// Names of columns, for EXPLAIN: those of an input, and of these the ones at `places`.
pub(crate) fn list(columns: &[String], places: &[usize]) -> String {
    let names = places.iter().filter_map(|&at| columns.get(at)).map(String::as_str);
    names.collect::<Vec<_>>().join(", ")
}
