//! How many rows a join without a condition would emit.

use datafusion::common::JoinType;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::logical_expr::{Join, LogicalPlan};
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};

use crate::lower::join_order::ScannedStatistics;
use crate::lower::local_plan::power;
use crate::planner::Planner;
use crate::text::clauses::from::NO_CONDITION;
use crate::text::diagnostics::{Diagnostic, Place};
use crate::text::syntax::is_word;

/// Fewer rows are not told: the size of a small file says little about its rows.
const TOLD_FROM: u128 = 10_000;

/// Words in front of JOIN that ask for rows without a partner, or for a side alone.
const NO_PRODUCT: [&str; 6] = ["LEFT", "RIGHT", "FULL", "OUTER", "SEMI", "ANTI"];

impl Planner {
    /// The errors of a query. The one of a join without a condition says how many rows CROSS JOIN
    /// would emit, if the sizes of its tables are known.
    pub(super) fn with_product_rows(
        &self,
        query: &[TokenWithSpan],
        mut errors: Vec<Diagnostic>,
    ) -> Vec<Diagnostic> {
        for error in errors.iter_mut().filter(|error| error.message == NO_CONDITION) {
            let place = Place { line: error.line, column: error.column, length: error.length };
            if let (Some(rows), Some(hint)) = (self.product_rows(query, place), &mut error.hint) {
                *hint += &format!("; about {} rows would come out", power(rows));
            }
        }
        errors
    }

    /// The rows of the query's only join without a condition, whose JOIN is at a place.
    fn product_rows(&self, query: &[TokenWithSpan], place: Place) -> Option<u128> {
        let at = query.iter().position(|token| Place::of(token.span) == place)?;
        let before = &query[at.checked_sub(1)?];
        if NO_PRODUCT.iter().any(|word| is_word(before, word)) {
            return None;
        }
        let inner = at - usize::from(is_word(before, "INNER"));
        let cross = TokenWithSpan { token: Token::make_word("CROSS", None), span: query[at].span };
        let tokens = [&query[..inner], &[cross], &query[at..]].concat();
        let plan = self.engine.understand(&tokens, &self.catalog).ok()?.plan;
        let statistics = ScannedStatistics::new(self.workers.total());
        let mut products = vec![];
        let visited = plan.apply_with_subqueries(|node| {
            if let LogicalPlan::Join(join) = node
                && is_product(join)
            {
                let sides = [&join.left, &join.right].map(|side| statistics.known_rows(side));
                products.push(sides);
            }
            Ok(TreeNodeRecursion::Continue)
        });
        visited.ok()?;
        let [[Some(left), Some(right)]] = products[..] else { return None };
        Some((left * right) as u128).filter(|rows| *rows >= TOLD_FROM)
    }
}

fn is_product(join: &Join) -> bool {
    join.on.is_empty() && join.filter.is_none() && join.join_type == JoinType::Inner
}
