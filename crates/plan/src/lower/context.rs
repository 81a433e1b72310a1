//! The context in which a statement is lowered, which does not change.

use datafusion::error::DataFusionError;

use crate::lower::Lowering;
use crate::lower::hints::BlockHints;
use crate::lower::relation::LowerError;
use crate::text::emit::Emit;

/// The statement that a rule lowers, and the place of its node in it.
#[derive(Clone, Copy)]
pub(crate) struct Context<'a> {
    pub(crate) lowering: &'a Lowering<'a>,
    /// Whether all tables of the statement end.
    pub(crate) bounded: bool,
    /// How the windows of the next grouping are emitted before they end: of the last one on the way
    /// to the sink, which is the first that is met from there.
    pub(crate) emit: Option<&'a Emit>,
    /// By how much the watermarks of all tables are behind what was declared: the least lateness.
    pub(crate) waits_ns: i64,
    /// The hints about the join or grouping that is lowered.
    pub(crate) hints: BlockHints<'a>,
    /// The estimated bytes of the sides of the join that is lowered, if all input ends.
    pub(crate) sizes: Option<[u64; 2]>,
}

impl Context<'_> {
    /// The context of what is in front of a grouping.
    pub(crate) fn without_emit(self) -> Self {
        Self { emit: None, ..self }
    }

    pub(crate) fn report(&self, error: &DataFusionError) -> LowerError {
        LowerError::Failed(self.lowering.around.report(error))
    }
}
