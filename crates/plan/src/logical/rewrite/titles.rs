//! A column that is a subquery is called by its text.
//!
//! DataFusion calls all of them `<subquery>`, so that two of them would be one name twice.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    Expr, Function, Ident, NamedWindowDefinition, Query, Select, SelectItem, Spanned, Visit,
    VisitMut, Visitor, VisitorMut, WindowType,
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
        let mut windows = Vec::new();
        for NamedWindowDefinition(name, window) in &select.named_window {
            if Visit::visit(window, &mut HasQuery(&[])).is_break() {
                windows.push(name.value.clone());
            }
        }
        for item in &mut select.projection {
            if let SelectItem::UnnamedExpr(expr) = item
                && Visit::visit(expr, &mut HasQuery(&windows)).is_break()
            {
                let alias = Ident::with_quote_and_span('"', expr.span(), expr.to_string());
                *item = SelectItem::ExprWithAlias { expr: expr.clone(), alias };
            }
        }
        ControlFlow::Continue(())
    }
}

/// Breaks off at a query, and at one of these windows.
struct HasQuery<'a>(&'a [String]);

impl Visitor for HasQuery<'_> {
    type Break = ();

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
        match expr {
            Expr::Function(Function { over: Some(WindowType::NamedWindow(name)), .. })
                if self.0.contains(&name.value) =>
            {
                ControlFlow::Break(())
            }
            _ => ControlFlow::Continue(()),
        }
    }

    fn pre_visit_query(&mut self, _: &Query) -> ControlFlow<()> {
        ControlFlow::Break(())
    }
}
