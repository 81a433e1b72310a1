//! Why a part of a plan does not stream, before a place of the statement is found for it.

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::logical_expr::{Expr, LogicalPlan};

use crate::text::diagnostics::Place;

/// Why a subtree does not stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// Why it cannot stream.
    pub(crate) reason: String,
    pub(crate) detail: Option<String>,
    pub(crate) hint: Option<String>,
    /// Whether no engine can do it, over input that ends too.
    pub(crate) always: bool,
    /// Boxed: every function of lowering returns a refusal, and few return one that is made.
    pub(crate) site: Box<RefusedSite>,
}

/// Clues to the place of a refusal in the statement.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RefusedSite {
    /// Words of the clause or call to point at, of which the first that is there is taken.
    pub(crate) words: Vec<String>,
    /// The columns that the call reads, which tell it from others of the same function.
    pub(crate) reads: Vec<String>,
    /// How many calls of the same function are in front of it.
    pub(crate) nth: usize,
    /// Places to point at, each with that of the table that it is about.
    pub(crate) among: Vec<(Place, Place)>,
    /// Where the columns of the expression at fault were written.
    pub(crate) columns: Vec<Place>,
    /// The node that is refused.
    pub(crate) node: Option<LogicalPlan>,
}

impl Refusal {
    pub(crate) fn new(words: &[&str], reason: impl Into<String>) -> Self {
        let words = words.iter().map(|word| word.to_string()).collect();
        Self {
            reason: reason.into(),
            detail: None,
            hint: None,
            always: false,
            site: Box::new(RefusedSite { words, ..RefusedSite::default() }),
        }
    }

    /// Says that it is wrong over input that ends too.
    pub(crate) fn always(mut self) -> Self {
        self.always = true;
        self
    }

    /// Says which columns the call reads.
    pub(crate) fn reading(mut self, columns: Vec<String>) -> Self {
        self.site.reads = columns;
        self
    }

    /// Says how many calls of the same function are in front of it.
    pub(crate) fn nth(mut self, nth: usize) -> Self {
        self.site.nth = nth;
        self
    }

    /// Says which places may be meant, each with that of the table that it is about.
    pub(crate) fn among(mut self, places: Vec<(Place, Place)>) -> Self {
        self.site.among = places;
        self
    }

    /// Says which expressions are at fault, if that is not known.
    pub(crate) fn about<'e>(mut self, exprs: impl IntoIterator<Item = &'e Expr>) -> Self {
        if self.site.columns.is_empty() {
            self.site.columns = exprs.into_iter().flat_map(places_of).collect();
        }
        self
    }

    /// Says which node is refused: the innermost that is known.
    pub(crate) fn at(mut self, node: &LogicalPlan) -> Self {
        if self.site.node.is_none() {
            self.site.node = Some(node.clone());
        }
        self
    }

    pub(crate) fn detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

/// Where the columns of an expression were written.
pub(crate) fn places_of(expr: &Expr) -> Vec<Place> {
    let mut places = vec![];
    // The closure never fails.
    let _ = expr.apply(|part| {
        if let Expr::Column(column) = part
            && let Some(span) = column.spans().first()
        {
            let (line, column) = (span.start.line as usize, span.start.column as usize);
            places.push(Place { line, column, length: 1 });
        }
        Ok(TreeNodeRecursion::Continue)
    });
    places
}
