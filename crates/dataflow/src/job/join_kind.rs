//! Which rows of two sides a join gives out.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;

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

    /// Whether each row that is given out has a row of a side in it.
    pub(crate) fn always_has(self, side: usize) -> bool {
        match self {
            Self::Left => side == 0,
            Self::Right => side == 1,
            Self::Full => false,
            _ => true,
        }
    }

    /// Which of the columns that are given out is `column` of a side, where those of the left side,
    /// `left` in number, come first.
    pub(crate) fn passes_on(self, side: usize, column: usize, left: usize) -> Option<usize> {
        let before = if side == 1 && self.widens() { left } else { 0 };
        self.shows(side).then_some(before + column)
    }

    /// For EXPLAIN; `keys` are the names of either side's, `how` says which rows meet, `on` what a
    /// pair must pass besides.
    pub(crate) fn describe(
        self,
        how: &str,
        keys: [String; 2],
        on: Option<&Arc<dyn Step>>,
    ) -> String {
        let [left, right] = keys;
        let on = on.map_or(String::new(), |on| format!(", {}", on.describe()));
        format!("{self:?}{how} on ({left}) = ({right}){on}")
    }
}

/// Names of columns, for EXPLAIN.
pub(crate) fn names(schema: &SchemaRef, columns: &[usize]) -> String {
    let names = columns.iter().map(|&column| schema.field(column).name().as_str());
    names.collect::<Vec<_>>().join(", ")
}
