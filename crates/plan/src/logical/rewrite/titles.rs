//! A column that is a subquery is called by its text.
//!
//! DataFusion calls all of them `<subquery>`, so that two of them would be one name twice.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    Ident, Query, Select, SelectItem, Spanned, Visit, VisitMut, Visitor, VisitorMut,
};

/// Names the columns of a query.
pub(super) fn rewrite(query: &mut Query) {
    // It never breaks off.
    let _ = VisitMut::visit(query, &mut Selects);
}

struct Selects;

impl VisitorMut for Selects {
    type Break = ();

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<()> {
        for item in &mut select.projection {
            if let SelectItem::UnnamedExpr(expr) = item
                && Visit::visit(expr, &mut HasQuery).is_break()
            {
                let alias = Ident::with_quote_and_span('"', expr.span(), expr.to_string());
                *item = SelectItem::ExprWithAlias { expr: expr.clone(), alias };
            }
        }
        ControlFlow::Continue(())
    }
}

/// Breaks off at a query.
struct HasQuery;

impl Visitor for HasQuery {
    type Break = ();

    fn pre_visit_query(&mut self, _: &Query) -> ControlFlow<()> {
        ControlFlow::Break(())
    }
}
