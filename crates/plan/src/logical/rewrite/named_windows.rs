//! `OVER (w ORDER BY x)` is the window `w`, in an order.
//!
//! DataFusion passes over the name in brackets, and knows `OVER w` among the columns of a SELECT
//! only, not in QUALIFY and ORDER BY. Named windows are written out here. One that builds on
//! another one takes its partitions, by the rules of SQL, and gives an order and a frame where the
//! other has none.

use std::ops::ControlFlow;

use datafusion::error::{DataFusionError, Result};
use datafusion::sql::sqlparser::ast::{
    Expr, Ident, NamedWindowExpr, Query, Select, SetExpr, VisitMut, VisitorMut, WindowSpec,
    WindowType,
};

use super::refused;

/// Writes out all windows of a query that have a name or build on another one.
pub(super) fn rewrite(query: &mut Query) -> Result<()> {
    match VisitMut::visit(query, &mut Selects) {
        ControlFlow::Continue(()) => {}
        ControlFlow::Break(error) => return Err(error),
    }
    match VisitMut::visit(query, &mut Calls(&[])) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(error) => Err(error),
    }
}

type NamedWindow = (Ident, WindowSpec);

/// Each SELECT, those within it first.
struct Selects;

impl VisitorMut for Selects {
    type Break = DataFusionError;

    fn post_visit_query(&mut self, query: &mut Query) -> ControlFlow<DataFusionError> {
        let SetExpr::Select(select) = &*query.body else { return ControlFlow::Continue(()) };
        let known = select.named_window.iter().filter_map(|definition| match &definition.1 {
            NamedWindowExpr::WindowSpec(spec) => Some((definition.0.clone(), spec.clone())),
            NamedWindowExpr::NamedWindow(_) => None,
        });
        let known: Vec<NamedWindow> = known.collect();
        if known.is_empty() {
            ControlFlow::Continue(())
        } else {
            VisitMut::visit(&mut query.order_by, &mut Calls(&known))
        }
    }

    fn post_visit_select(&mut self, select: &mut Select) -> ControlFlow<DataFusionError> {
        let mut known: Vec<NamedWindow> = vec![];
        for definition in &mut select.named_window {
            let whole = match &definition.1 {
                NamedWindowExpr::NamedWindow(name) => base(name, &known).cloned(),
                NamedWindowExpr::WindowSpec(spec) => written_out(spec, &known),
            };
            match whole {
                Ok(whole) => {
                    known.push((definition.0.clone(), whole.clone()));
                    definition.1 = NamedWindowExpr::WindowSpec(whole);
                }
                Err(error) => return ControlFlow::Break(error),
            }
        }
        if known.is_empty() {
            ControlFlow::Continue(())
        } else {
            VisitMut::visit(select, &mut Calls(&known))
        }
    }
}

/// Each call over a window.
struct Calls<'a>(&'a [NamedWindow]);

impl VisitorMut for Calls<'_> {
    type Break = DataFusionError;

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<DataFusionError> {
        let Expr::Function(call) = expr else { return ControlFlow::Continue(()) };
        let whole = match &call.over {
            Some(WindowType::WindowSpec(spec)) => written_out(spec, self.0),
            Some(WindowType::NamedWindow(name)) => base(name, self.0).cloned(),
            None => return ControlFlow::Continue(()),
        };
        match whole {
            Ok(whole) => call.over = Some(WindowType::WindowSpec(whole)),
            Err(error) => return ControlFlow::Break(error),
        }
        ControlFlow::Continue(())
    }
}

fn base<'a>(name: &Ident, known: &'a [NamedWindow]) -> Result<&'a WindowSpec> {
    let found = known.iter().find(|(known, _)| known.value == name.value);
    let error = || {
        let message = format!("there is no window '{}'", name.value);
        let hint = "define it behind the query: WINDOW w AS (PARTITION BY k), and name no window \
                    before it is defined";
        refused(&["OVER", "WINDOW"], &message, hint)
    };
    found.map(|(_, spec)| spec).ok_or_else(error)
}

/// A window with what the one that it builds on gives.
fn written_out(spec: &WindowSpec, known: &[NamedWindow]) -> Result<WindowSpec> {
    let Some(name) = &spec.window_name else { return Ok(spec.clone()) };
    let base = base(name, known)?;
    let name = &name.value;
    let wrong = if !spec.partition_by.is_empty() {
        format!("the window '{name}' has said how rows are partitioned")
    } else if !spec.order_by.is_empty() && !base.order_by.is_empty() {
        format!("the window '{name}' has an ORDER BY already")
    } else if base.window_frame.is_some() {
        format!("the window '{name}' has a frame, and nothing builds on it")
    } else {
        let order = if base.order_by.is_empty() { &spec.order_by } else { &base.order_by };
        return Ok(WindowSpec {
            window_name: None,
            partition_by: base.partition_by.clone(),
            order_by: order.clone(),
            window_frame: spec.window_frame.clone(),
        });
    };
    let hint = "write the window out: OVER (PARTITION BY k ORDER BY x ROWS 1 PRECEDING)";
    Err(refused(&["OVER", "WINDOW"], &wrong, hint))
}
