//! Chains of joins whose rows look up several builds in one pass, as data.

use arrow::datatypes::SchemaRef;

use super::JoinKind;

/// Joins one behind another on the same worker: one pass looks up the rows of the first one in all
/// builds, as numbers of rows, and gives out what comes behind the last one.
///
/// The stages may run in another order than that of the joins. A stage comes behind those whose
/// builds have columns of its key; all others commute with it.
#[derive(Debug, Clone)]
pub struct ProbeChain {
    /// The joins by their numbers in the job, in the order of the plan.
    pub joins: Vec<usize>,
    /// The stage of each join.
    pub stages: Vec<ChainStage>,
    /// How many columns the rows have that come to the first join.
    pub width: usize,
    /// The columns behind the last join, by where they come from.
    pub columns: Vec<ChainColumn>,
    /// Their names and types.
    pub schema: SchemaRef,
}

/// The join of a chain, as its pass sees it.
#[derive(Debug, Clone)]
pub struct ChainStage {
    /// Inner, or a semi- or anti-join of the probe side.
    pub kind: JoinKind,
    /// The columns that are looked up.
    pub keys: Vec<ChainColumn>,
    /// How many columns a row of the build adds.
    pub width: usize,
}

/// A column of the rows in a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChainColumn {
    /// The build that it is a column of, by the place of its join in the chain; if it is of none,
    /// it came to the first join.
    pub build: Option<usize>,
    /// Its number there.
    pub column: usize,
}

/// Why a join is in no chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotChained {
    /// Neither the operator before it nor the one behind it is a join.
    Alone,
    /// It has a condition beside equal keys.
    Condition,
    /// It is of a kind that emits rows without a partner, or rows of the build alone.
    Kind,
    /// It emits each row with a mark.
    Mark,
    /// Rows travel to it.
    Exchange,
    /// Rows are filtered, computed or united on their way to it, or others need them too.
    Step,
    /// Its build may change while rows come.
    Changing,
}

impl ProbeChain {
    /// The places of the stages that a stage comes behind.
    pub(crate) fn needs(&self, stage: usize) -> Vec<usize> {
        let mut needs: Vec<usize> =
            self.stages[stage].keys.iter().filter_map(|key| key.build).collect();
        needs.sort_unstable();
        needs.dedup();
        needs
    }

    /// For EXPLAIN of one of the joins: the last one says it all.
    pub fn text_of(&self, join: usize) -> String {
        match self.joins.last() {
            Some(last) if *last != join => format!("that of [{last}]"),
            _ => self.text(),
        }
    }

    /// For EXPLAIN.
    pub(crate) fn text(&self) -> String {
        let joins: Vec<String> = self.joins.iter().map(|join| format!("[{join}]")).collect();
        let is_fixed = (1..self.stages.len()).all(|stage| self.needs(stage).contains(&(stage - 1)));
        let order = if is_fixed { "in this order" } else { "their order may change" };
        format!("{} look up in one pass; {order}", joins.join(", "))
    }
}

impl NotChained {
    /// For EXPLAIN, of a join behind another one.
    pub fn text(self) -> Option<&'static str> {
        Some(match self {
            Self::Alone => return None,
            Self::Condition => "none: its condition reads the columns of both sides",
            Self::Kind => "none: it emits rows without a partner, or of the build alone",
            Self::Mark => "none: it marks each row",
            Self::Exchange => "none with the join before: rows travel to this one",
            Self::Step => "none with the join before: rows change on their way",
            Self::Changing => "none: newer versions of the table are read",
        })
    }
}
