//! Rows that a subquery on the right of an `ASOF JOIN` filters are no versions.
//!
//! DataFusion moves conditions of the query around the join down to the rows of the right side,
//! where they would choose among versions; so what is found there is asked of the version that a
//! row meets. The conditions that the subquery itself has are marked before anything moves, and
//! choose among versions.

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::error::Result;
use datafusion::logical_expr::{
    ColumnarValue, Expr, Filter, LogicalPlan, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl,
    Signature, Volatility,
};

use crate::logical::as_of::is_asked;

const NAME: &str = "__of_versions";

/// Marks the conditions that choose among versions.
pub(super) fn rewrite(plan: LogicalPlan) -> Result<LogicalPlan> {
    let rewritten = plan.transform_up_with_subqueries(|node| match node {
        LogicalPlan::Join(mut join) if join.filter.as_ref().is_some_and(is_asked) => {
            let right = Arc::unwrap_or_clone(join.right).transform_down(marked)?;
            join.right = Arc::new(right.data);
            Ok(Transformed::yes(LogicalPlan::Join(join)))
        }
        other => Ok(Transformed::no(other)),
    });
    rewritten.map(|rewritten| rewritten.data)
}

fn marked(node: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    match node {
        LogicalPlan::Filter(filter) if !is_marked(&filter.predicate) => {
            let mark = Arc::new(ScalarUDF::from(OfVersions::new()));
            let predicate = mark.call(vec![filter.predicate]);
            let filter = Filter::try_new(predicate, filter.input)?;
            Ok(Transformed::yes(LogicalPlan::Filter(filter)))
        }
        other => Ok(Transformed::no(other)),
    }
}

/// Whether a condition chooses among versions.
pub(crate) fn is_marked(expr: &Expr) -> bool {
    matches!(expr, Expr::ScalarFunction(call) if call.func.name() == NAME)
}

/// `__of_versions(condition)`: the condition.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct OfVersions {
    signature: Signature,
}

impl OfVersions {
    fn new() -> Self {
        Self { signature: Signature::any(1, Volatility::Immutable) }
    }
}

impl ScalarUDFImpl for OfVersions {
    fn name(&self) -> &str {
        NAME
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Boolean)
    }

    fn invoke_with_args(&self, mut args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        Ok(args.args.swap_remove(0))
    }
}
