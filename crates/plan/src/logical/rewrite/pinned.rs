//! Conditions of subqueries alone stay where they are written.
//!
//! DataFusion moves a condition beneath an aggregate if all of its columns are grouped by: one that
//! has no column, `(SELECT count(*) FROM b) > 5`, too. Beneath an aggregate without groups it
//! keeps its one row, whatever the condition says. So such a condition is given a column of the
//! rows that it is about.

use std::sync::{Arc, LazyLock};

use arrow::datatypes::DataType;
use datafusion::common::internal_err;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::error::Result;
use datafusion::logical_expr::utils::{conjunction, split_conjunction, split_conjunction_owned};
use datafusion::logical_expr::{
    ColumnarValue, Expr, Filter, LogicalPlan, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl,
    Signature, Volatility,
};

/// Pins such conditions.
pub(super) fn rewrite(plan: LogicalPlan) -> Result<LogicalPlan> {
    let pinned = plan.transform_up_with_subqueries(|node| {
        let LogicalPlan::Filter(filter) = node else { return Ok(Transformed::no(node)) };
        let column = filter.input.schema().columns().into_iter().next();
        let (Some(column), true) =
            (column, split_conjunction(&filter.predicate).into_iter().any(floats))
        else {
            return Ok(Transformed::no(LogicalPlan::Filter(filter)));
        };
        let pin = |condition: Expr| {
            if floats(&condition) {
                PINNED.call(vec![condition, Expr::Column(column.clone())])
            } else {
                condition
            }
        };
        let conditions = split_conjunction_owned(filter.predicate).into_iter().map(pin);
        let Some(predicate) = conjunction(conditions) else {
            return internal_err!("a filter has a condition");
        };
        let filter = Filter::try_new(predicate, filter.input)?;
        Ok(Transformed::yes(LogicalPlan::Filter(filter)))
    });
    pinned.map(|pinned| pinned.data)
}

/// Whether a condition has a subquery and no column.
fn floats(condition: &Expr) -> bool {
    let scalar = |part: &Expr| matches!(part, Expr::ScalarSubquery(_));
    !condition.any_column_refs() && condition.exists(|part| Ok(scalar(part))).unwrap_or(false)
}

static PINNED: LazyLock<Arc<ScalarUDF>> = LazyLock::new(|| {
    let signature = Signature::any(2, Volatility::Immutable);
    Arc::new(ScalarUDF::from(Pinned { signature }))
});

/// `__pinned(condition, column)`: the condition.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Pinned {
    signature: Signature,
}

impl ScalarUDFImpl for Pinned {
    fn name(&self) -> &str {
        "__pinned"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Boolean)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        match args.args.into_iter().next() {
            Some(condition) => Ok(condition),
            None => internal_err!("there is a condition"),
        }
    }
}
