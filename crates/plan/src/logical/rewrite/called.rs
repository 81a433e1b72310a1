//! Casts and subqueries that DataFusion calls alike.
//!
//! It finds columns by the names of their expressions, and calls a cast as what is cast, and every
//! subquery `<subquery>`: `sum(CAST(x AS BIGINT))` and `sum(CAST(x AS DOUBLE))` are one name. Where
//! a statement is refused for two columns of one name, those within functions, and of a SELECT with
//! `GROUP BY`, are called by their text: they stand within a function that is called so, until the
//! statement is a plan.

use std::ops::ControlFlow;
use std::sync::Arc;

use arrow::datatypes::{DataType, FieldRef};
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Result, ScalarValue, internal_err};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{
    ColumnarValue, Expr, LogicalPlan, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF,
    ScalarUDFImpl, Signature, Volatility,
};
use datafusion::sql::sqlparser::ast::{
    self, GroupByExpr, Ident, Query, Select, SelectItem, SetExpr, Value, VisitMut, VisitorMut,
};

use crate::text::syntax::function_call;

const NAME: &str = "__called";

/// `__called(x, text)`: `x`, which is called by the text.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Called {
    signature: Signature,
}

/// The function, for the planner of SQL.
pub(crate) fn function() -> Arc<ScalarUDF> {
    Arc::new(ScalarUDF::from(Called { signature: Signature::any(2, Volatility::Immutable) }))
}

impl ScalarUDFImpl for Called {
    fn name(&self) -> &str {
        NAME
    }

    fn schema_name(&self, args: &[Expr]) -> Result<String> {
        match args.get(1) {
            Some(Expr::Literal(ScalarValue::Utf8(Some(text)), _)) => Ok(text.clone()),
            _ => internal_err!("{NAME} takes a text"),
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        Ok(types.first().cloned().unwrap_or(DataType::Null))
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        Ok(args.arg_fields[0].clone())
    }

    fn invoke_with_args(&self, _: ScalarFunctionArgs) -> Result<ColumnarValue> {
        internal_err!("{NAME} is never computed")
    }
}

/// Takes the functions away again; columns are called as before.
pub(super) fn rewrite(plan: LogicalPlan) -> Result<LogicalPlan> {
    let called = |expr: &Expr| matches!(expr, Expr::ScalarFunction(f) if f.func.name() == NAME);
    let rewritten = plan.transform_up_with_subqueries(|node| {
        let any = |expr: &Expr| expr.exists(|part| Ok(called(part))).unwrap_or(true);
        if !node.expressions().iter().any(any) {
            return Ok(Transformed::no(node));
        }
        let names = NamePreserver::new(&node);
        let bare = node.map_expressions(|expr| {
            let name = names.save(&expr);
            let bare = expr.transform_up(|part| match part {
                Expr::ScalarFunction(mut call) if call.func.name() == NAME => {
                    Ok(Transformed::yes(call.args.swap_remove(0)))
                }
                other => Ok(Transformed::no(other)),
            })?;
            Ok(bare.update_data(|expr| name.restore(expr)))
        })?;
        bare.map_data(LogicalPlan::recompute_schema)
    })?;
    Ok(rewritten.data)
}

/// Whether a SELECT groups by something and by a cast of it, which DataFusion would take for one.
pub(crate) fn clashes(query: &mut Query) -> bool {
    VisitMut::visit(query, &mut Clashes).is_break()
}

/// Breaks off at such a SELECT.
struct Clashes;

impl VisitorMut for Clashes {
    type Break = ();

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<()> {
        let GroupByExpr::Expressions(keys, _) = &select.group_by else {
            return ControlFlow::Continue(());
        };
        let items = &select.projection;
        let keys: Vec<&ast::Expr> = keys.iter().map(|key| meant(key, items)).collect();
        let bare = |expr: &ast::Expr| of_cast(expr).to_string();
        let clash = keys.iter().enumerate().any(|(at, key)| {
            let others = keys.iter().enumerate().filter(|(other, _)| *other != at);
            matches!(key, ast::Expr::Cast { .. })
                && others.into_iter().any(|(_, other)| bare(other) == bare(key))
        });
        if clash { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

/// The expression of a key of GROUP BY, if it is the number or the name of a column.
fn meant<'a>(key: &'a ast::Expr, items: &'a [SelectItem]) -> &'a ast::Expr {
    let of = |item: &'a SelectItem| match item {
        SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. } => Some(expr),
        _ => None,
    };
    let found = match key {
        ast::Expr::Value(value) => match &value.value {
            Value::Number(text, _) => {
                let at = text.parse::<usize>().ok().and_then(|number| number.checked_sub(1));
                at.and_then(|at| items.get(at)).and_then(of)
            }
            _ => None,
        },
        ast::Expr::Identifier(name) => items.iter().find_map(|item| match item {
            SelectItem::ExprWithAlias { expr, alias } if alias.value == name.value => Some(expr),
            _ => None,
        }),
        _ => None,
    };
    found.unwrap_or(key)
}

/// The value that is cast.
fn of_cast(expr: &ast::Expr) -> &ast::Expr {
    match expr {
        ast::Expr::Cast { expr, .. } | ast::Expr::Nested(expr) => of_cast(expr),
        other => other,
    }
}

/// Calls casts and subqueries by their texts; tells whether there are any.
pub(crate) fn by_text(query: &mut Query) -> bool {
    // Columns are called by the text that the user wrote.
    super::titles::rewrite(query);
    let mut texts = Texts { grouped: vec![], functions: 0, within: vec![], any: false };
    // It never breaks off.
    let _ = VisitMut::visit(query, &mut texts);
    texts.any
}

struct Texts {
    /// Of the queries and SELECTs around, whether each groups.
    grouped: Vec<bool>,
    /// How many functions stand around.
    functions: usize,
    /// The text of the outermost such expression around, and how many stand around.
    within: Vec<String>,
    any: bool,
}

fn groups(select: &Select) -> bool {
    !matches!(&select.group_by, GroupByExpr::Expressions(keys, _) if keys.is_empty())
}

fn is_called_alike(expr: &ast::Expr) -> bool {
    matches!(
        expr,
        ast::Expr::Cast { .. }
            | ast::Expr::Subquery(_)
            | ast::Expr::Exists { .. }
            | ast::Expr::InSubquery { .. }
    )
}

impl VisitorMut for Texts {
    type Break = ();

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<()> {
        self.grouped.push(matches!(&*query.body, SetExpr::Select(select) if groups(select)));
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _: &mut Query) -> ControlFlow<()> {
        self.grouped.pop();
        ControlFlow::Continue(())
    }

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<()> {
        self.grouped.push(groups(select));
        ControlFlow::Continue(())
    }

    fn post_visit_select(&mut self, _: &mut Select) -> ControlFlow<()> {
        self.grouped.pop();
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &mut ast::Expr) -> ControlFlow<()> {
        self.functions += usize::from(matches!(expr, ast::Expr::Function(_)));
        let here = self.functions > 0 || self.grouped.last() == Some(&true);
        if is_called_alike(expr) && (here || !self.within.is_empty()) {
            self.within.push(expr.to_string());
        }
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expr: &mut ast::Expr) -> ControlFlow<()> {
        self.functions -= usize::from(matches!(expr, ast::Expr::Function(_)));
        if is_called_alike(expr)
            && let Some(text) = self.within.pop()
            && self.within.is_empty()
        {
            let inner = std::mem::replace(expr, ast::Expr::Tuple(vec![]));
            *expr = called(inner, text);
            self.any = true;
        }
        ControlFlow::Continue(())
    }
}

fn called(expr: ast::Expr, text: String) -> ast::Expr {
    let text = ast::Expr::Value(Value::SingleQuotedString(text).into());
    function_call(Ident::new(NAME), vec![expr, text])
}
