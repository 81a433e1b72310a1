//! EXPLAIN: the job of a stage as a tree, and its memory.
//!
//! There is one structure, [`PlanTree`], which is made of the operators of the job and of the
//! labels that lowering has attached to them. It has three printers: `text`, `json` and `dot`.

mod analyze;
pub(crate) mod cost;
mod counters_json;
mod describe;
mod dot;
mod estimate;
mod json;
mod literals;
pub(crate) mod memory;
mod modes;
mod order;
mod plain;
mod ran;
mod recovery;
mod rings;
mod text;
mod tree;

use std::ops::Range;

use dataflow::job::{Operator, readers};
use state::epoch::LengthBounds;

use crate::Workers;
use crate::expr::given::GivenFunction;
use crate::text::statements::{ExplainFormat, ExplainOptions};

pub use self::analyze::Analyzed;
pub(crate) use self::analyze::Discard;
pub use self::counters_json::{counters_from_json, counters_to_json};
pub(crate) use self::describe::window_text;
pub(crate) use self::literals::{as_name, shown_expr};
pub use self::memory::{EndNeed, Need};
pub(crate) use self::modes::text as key_mode_text;
pub(crate) use self::order::{OrderedJoins, OrderedSide};
pub(crate) use self::plain::{plain, shown};
pub use self::ran::Ran;
pub(crate) use self::recovery::RecoveryAsked;
pub(crate) use self::rings::RingMode;
use self::tree::PlanTree;

/// The plan of a stage, for a reader.
#[derive(Clone)]
pub struct Explain {
    pub(crate) statements: Vec<Explained>,
    pub(crate) operators: Vec<Operator>,
    pub(crate) needs: Vec<Need>,
    pub(crate) workers: Workers,
    /// Workers that only read.
    pub(crate) only_readers: u32,
    /// Whether rows are written, read, or lie in a region, for each exchange between nodes.
    pub(crate) ring_mode: RingMode,
    /// How long epochs may be.
    pub(crate) epoch: LengthBounds,
    pub(crate) recovery: RecoveryAsked,
    /// The functions of the program that it calls.
    pub(crate) functions: Vec<GivenFunction>,
}

/// A statement of a plan.
#[derive(Clone)]
pub(crate) struct Explained {
    /// `INSERT INTO t`.
    pub(crate) name: String,
    /// Its operators.
    pub(crate) operators: Range<usize>,
    /// The batch stage behind its operators, which runs when all input has been read.
    pub(crate) batch: Option<ExplainedBatch>,
    /// The orders of its blocks of inner joins.
    pub(crate) orders: Vec<OrderedJoins>,
}

/// A batch stage, whose inputs are the sinks among a statement's operators.
#[derive(Clone)]
pub(crate) struct ExplainedBatch {
    /// Why the statement needs one.
    pub(crate) reason: String,
    /// The lines of its plan.
    pub(crate) plan: Vec<String>,
    /// The table that it writes, with its connector.
    pub(crate) table: String,
    /// Bytes of memory that it may have.
    pub(crate) memory_bytes: usize,
}

impl Explain {
    /// The plan in a format, with an end of line. Sources are asked for their flows: files may be
    /// opened for it.
    pub fn show(&self, format: ExplainFormat) -> String {
        match format {
            ExplainFormat::Text => self.text(),
            ExplainFormat::Json => format!("{:#}\n", self.json()),
            ExplainFormat::Dot => self.dot(),
        }
    }

    /// The plan as somebody asks for it.
    pub(crate) fn asked(mut self, options: ExplainOptions) -> String {
        self.recovery.shown |= options.recovery;
        self.show(options.format)
    }

    /// The names of the operators, in the order in which a run counts them.
    pub fn operators(&self) -> Vec<String> {
        self.operators.iter().enumerate().map(|(id, operator)| tree::title(id, operator)).collect()
    }

    /// The operators as a tree. Sources are asked for their flows.
    fn tree(&self) -> PlanTree {
        PlanTree::of(self)
    }

    /// How many workers read tables.
    fn readers(&self) -> u32 {
        readers(&self.operators, self.only_readers, self.workers.total())
    }
}
