//! Functions that stand for another expression, as `coalesce` does for a `CASE`.
//!
//! In a query the optimizer replaces them. An expression that is compiled without it has them
//! replaced here: they cannot be computed themselves.

use std::sync::Arc;

use datafusion::common::DFSchema;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::logical_expr::Expr;
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::simplify::{ExprSimplifyResult, SimplifyContext};

/// The same expression over columns of `scope` without such functions.
///
/// # Errors
/// That of a function whose arguments are none of its own.
pub(crate) fn out(expr: Expr, scope: &DFSchema, options: &Arc<ConfigOptions>) -> Result<Expr> {
    let context = SimplifyContext::builder()
        .with_schema(Arc::new(scope.clone()))
        .with_config_options(Arc::clone(options))
        .build();
    let written = expr.transform_up(|expr| {
        let Expr::ScalarFunction(ScalarFunction { func, args }) = expr else {
            return Ok(Transformed::no(expr));
        };
        Ok(match func.simplify(args, &context)? {
            ExprSimplifyResult::Simplified(expr) => Transformed::yes(expr),
            ExprSimplifyResult::Original(args) => {
                Transformed::no(Expr::ScalarFunction(ScalarFunction { func, args }))
            }
        })
    });
    Ok(written?.data)
}
