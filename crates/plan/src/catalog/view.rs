//! Views: queries by name.

use std::borrow::Cow;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, TableSource};
use datafusion::sql::sqlparser::tokenizer::TokenWithSpan;

use crate::text::bounds::Extent;
use crate::text::diagnostics::{Diagnostic, Place};
use crate::text::syntax::Ident;

/// A query by name.
pub(crate) struct View {
    pub(crate) plan: LogicalPlan,
    pub(crate) extent: Extent,
    /// The script in which it was defined, and its text there.
    pub(crate) script: u64,
    pub(crate) tokens: Vec<TokenWithSpan>,
    schema: SchemaRef,
}

impl View {
    /// A view that the script of that number defines by `tokens`.
    pub(crate) fn new(
        plan: LogicalPlan,
        extent: Extent,
        script: u64,
        tokens: &[TokenWithSpan],
    ) -> Self {
        let schema = Arc::new(plan.schema().as_arrow().clone());
        Self { plan, extent, script, tokens: tokens.to_vec(), schema }
    }

    /// A plan whose columns have the names of `CREATE VIEW v (a, b) AS …`.
    pub(crate) fn renamed(
        plan: LogicalPlan,
        names: &[Ident],
    ) -> Result<DfResult<LogicalPlan>, Diagnostic> {
        let columns = plan.schema().columns();
        if columns.len() != names.len() {
            let place = names.first().map_or(Place::default(), |name| name.place);
            let (named, given) = (names.len(), columns.len());
            let message = format!("{named} columns are named, and the query has {given}");
            return Err(Diagnostic::at(place, message));
        }
        let renamed =
            columns.into_iter().zip(names).map(|(c, name)| Expr::Column(c).alias(&name.text));
        let renamed: Vec<Expr> = renamed.collect();
        Ok(LogicalPlanBuilder::from(plan).project(renamed).and_then(LogicalPlanBuilder::build))
    }

    pub(crate) fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }
}

/// A view as DataFusion sees it: its plan takes its place.
pub(crate) struct InlinedView(pub(crate) Arc<View>);

impl TableSource for InlinedView {
    fn schema(&self) -> SchemaRef {
        self.0.schema.clone()
    }

    fn get_logical_plan(&self) -> Option<Cow<'_, LogicalPlan>> {
        Some(Cow::Borrowed(&self.0.plan))
    }
}
