//! The hints of the query block that a node comes from.

use dataflow::job::{Exchange, Reason};
use datafusion::logical_expr::{Aggregate, Expr, Join, LogicalPlan};

use crate::lower::Lowering;
use crate::lower::place::Texts;
use crate::lower::relation::LowerError;
use crate::text::diagnostics::{Diagnostic, Place};
use crate::text::hints::{Asked, Hint, Hints};
use crate::text::refusal::Refusal;
use crate::text::syntax::is_word;

/// The hints of a block, if there are any.
#[derive(Clone, Copy, Default)]
pub(crate) struct BlockHints<'a> {
    block: Option<(&'a Hints, Block)>,
    /// Which sides of the join have a name in the block; a join of several has none.
    named: [bool; 2],
}

/// The script of a block, and its SELECT there.
type Block = (u64, Place);

impl<'a> BlockHints<'a> {
    fn each(&self) -> impl Iterator<Item = &'a Hint> {
        let of_block =
            |(hints, (script, select)): (&'a Hints, Block)| hints.of_block(script, select);
        self.block.into_iter().flat_map(of_block)
    }

    /// How rows of different workers shall meet.
    pub(crate) fn exchange(&self) -> Option<(Exchange, &'a Hint)> {
        self.each().find_map(|hint| match hint.asked {
            Asked::Exchange(exchange) => Some((exchange, hint)),
            _ => None,
        })
    }

    /// The exchange for which a hint asks among those that are `possible`, and the reason.
    ///
    /// # Errors
    /// When the hint is FORWARD and rows of equal keys are not `together`.
    pub(crate) fn obey_exchange(
        &self,
        possible: &[Exchange],
        together: bool,
    ) -> Result<Option<(Exchange, Reason)>, LowerError> {
        let Some((exchange, hint)) = self.exchange().filter(|(of, _)| possible.contains(of)) else {
            return Ok(None);
        };
        if exchange == Exchange::Forward && !together {
            let why = "rows of equal keys may be on several workers";
            let help = format!("leave the hint out, or write EXCHANGE('{}')", possible[0]);
            return Err(LowerError::Failed(Some(disobeyed(hint, why, &help))));
        }
        Ok(Some((exchange, hint.obey())))
    }

    /// The hint about a side of a join, which has this name.
    pub(crate) fn of_side(&self, side: usize, called: &str) -> Option<&'a Hint> {
        let mut hints = self.each().filter(|_| self.named[side]);
        hints.find(|hint| match &hint.asked {
            Asked::Broadcast(name)
            | Asked::Pull(name)
            | Asked::Multicast(name)
            | Asked::Shuffle(name) => name.eq_ignore_ascii_case(called),
            Asked::Exchange(_) | Asked::Leading(_) => false,
        })
    }
}

impl<'a> Lowering<'a> {
    /// The hints of the block of a join.
    pub(crate) fn hints_of_join(&self, join: &Join) -> BlockHints<'a> {
        let of = || Refusal::new(&["JOIN"], "").at(&LogicalPlan::Join(join.clone()));
        let named = [&join.left, &join.right].map(|side| is_named(side));
        BlockHints { named, ..self.hints_of(of) }
    }

    /// The hints of the block of a grouping.
    pub(crate) fn hints_of_grouping(&self, aggregate: &Aggregate) -> BlockHints<'a> {
        self.hints_of(|| {
            let name = |call: &'_ Expr| match call {
                Expr::AggregateFunction(call) => Some(call.func.name().to_owned()),
                _ => None,
            };
            let calls: Vec<_> = aggregate.aggr_expr.iter().map(|e| e.clone().unalias()).collect();
            let names: Vec<String> = calls.iter().filter_map(name).collect();
            let words: Vec<&str> = if aggregate.group_expr.is_empty() {
                names.iter().map(String::as_str).collect()
            } else {
                vec!["GROUP", "DISTINCT", "UNION", "INTERSECT", "EXCEPT"]
            };
            Refusal::new(&words, "").at(&LogicalPlan::Aggregate(aggregate.clone()))
        })
    }

    /// The hints of the block of a node, which is found as that of a refusal is.
    fn hints_of(&self, of: impl FnOnce() -> Refusal) -> BlockHints<'a> {
        if self.hints.is_empty() {
            return BlockHints::default();
        }
        let block = self.select_of(&of()).map(|block| (self.hints, block));
        BlockHints { block, ..BlockHints::default() }
    }

    /// The script and the place of the SELECT that a refusal is about.
    pub(crate) fn select_of(&self, refusal: &Refusal) -> Option<(u64, Place)> {
        Texts::of(self.plan, self.around.tokens, self.catalog).select(refusal)
    }

    /// Whether the join that is refused is written as CROSS JOIN. If it is not known which join of
    /// the statement it is, since their order was changed: whether any is written so.
    pub(crate) fn is_cross(&self, refusal: &Refusal) -> bool {
        let found = Texts::of(self.plan, self.around.tokens, self.catalog).is_cross(refusal);
        found.unwrap_or_else(|| self.around.tokens.iter().any(|token| is_word(token, "CROSS")))
    }
}

/// Whether a side of a join is one table, view or subquery of its block.
fn is_named(side: &LogicalPlan) -> bool {
    match (side, side.inputs().as_slice()) {
        (LogicalPlan::SubqueryAlias(_), _) => true,
        (LogicalPlan::Join(_), _) => false,
        (_, [input]) => is_named(input),
        _ => true,
    }
}

/// The error that a hint cannot be obeyed.
pub(crate) fn disobeyed(hint: &Hint, why: &str, help: &str) -> Diagnostic {
    let message = format!("the hint {} cannot be obeyed here", hint.text());
    Diagnostic::at(hint.place, message).detail(why).hint(help)
}
