//! Expressions of the batch stage that tell which of their parts failed, and on which row.
//!
//! DataFusion's operators pass on what an expression said, and it says neither. So each expression
//! that may fail is a function of the columns that it reads, which computes it as a step does; when
//! that fails, it looks for the row, and for the part that fails on it ([`blame`]).

use std::fmt;
use std::hash::{Hash, Hasher};

use arrow::array::{RecordBatch, RecordBatchOptions};
use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Column, DFSchema, ExprSchema};
use datafusion::error::{DataFusionError, Result as DfResult};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{
    BinaryExpr, ColumnarValue, Expr, ExprSchemable, LogicalPlan, Operator, ReturnFieldArgs,
    ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};

use super::blame;
use super::compiled::Compiled;

/// A failure, and where it came about.
#[derive(Debug)]
pub(crate) struct LocatedFailure {
    pub(crate) message: String,
    pub(crate) expression: String,
    /// The columns that it reads, as the text `a = 1, b = 0`.
    pub(crate) row: Option<String>,
}

impl fmt::Display for LocatedFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for LocatedFailure {}

/// The plan, whose expressions tell what of them fails.
///
/// # Errors
/// DataFusion's, of types.
pub(crate) fn locating_failures(plan: LogicalPlan) -> DfResult<LogicalPlan> {
    let locating_failures = plan.transform_up_with_subqueries(|node| {
        let scope = merge_schema(&node.inputs());
        let names = NamePreserver::new(&node);
        let filters = matches!(node, LogicalPlan::Filter(_));
        node.map_expressions(|expr| {
            let name = names.save(&expr);
            let made = located(expr, &scope, filters)?;
            Ok(made.update_data(|expr| name.restore(expr)))
        })
    });
    locating_failures.map(|locating_failures| locating_failures.data)
}

fn located(expr: Expr, scope: &DFSchema, filters: bool) -> DfResult<Transformed<Expr>> {
    match expr {
        Expr::Alias(_) | Expr::AggregateFunction(_) | Expr::WindowFunction(_) => {
            expr.map_children(|part| located(part, scope, false))
        }
        expr if may_fail(&expr) && !looks_elsewhere(&expr) => {
            function(expr, scope, filters).map(Transformed::yes)
        }
        expr => Ok(Transformed::no(expr)),
    }
}

fn may_fail(expr: &Expr) -> bool {
    use Operator::{Divide, Minus, Modulo, Multiply, Plus};
    let fails = |part: &Expr| match part {
        Expr::BinaryExpr(BinaryExpr { op, .. }) => {
            matches!(op, Plus | Minus | Multiply | Divide | Modulo)
        }
        Expr::Cast(_) | Expr::Negative(_) | Expr::ScalarFunction(_) | Expr::SimilarTo(_) => true,
        _ => false,
    };
    expr.any_column_refs() && expr.exists(|part| Ok(fails(part))).unwrap_or(false)
}

/// Whether an expression is more than a function of the columns of a row.
fn looks_elsewhere(expr: &Expr) -> bool {
    let elsewhere = |part: &Expr| {
        matches!(
            part,
            Expr::GroupingSet(_)
                | Expr::Unnest(_)
                | Expr::OuterReferenceColumn(..)
                | Expr::ScalarSubquery(_)
                | Expr::InSubquery(_)
                | Expr::Exists(_)
                | Expr::SetComparison(_)
                | Expr::AggregateFunction(_)
                | Expr::WindowFunction(_)
                | Expr::HigherOrderFunction(_)
                | Expr::Lambda(_)
                | Expr::LambdaVariable(_)
        )
    };
    expr.exists(|part| Ok(elsewhere(part))).unwrap_or(true)
}

fn function(expr: Expr, scope: &DFSchema, filters: bool) -> DfResult<Expr> {
    let mut columns: Vec<Column> = expr.column_refs().into_iter().cloned().collect();
    columns.sort();
    // Of several tables, a column is named with its table.
    let one = columns.windows(2).all(|two| two[0].relation == two[1].relation);
    let name = |column: &Column| if one { column.name.clone() } else { column.flat_name() };
    let field = |column: &Column| {
        let (of, nullable) = scope.data_type_and_nullable(column)?;
        Ok(Field::new(name(column), of.clone(), nullable))
    };
    let fields = columns.iter().map(field).collect::<DfResult<Vec<_>>>()?;
    let schema: SchemaRef = Schema::new(fields).into();
    let own = DFSchema::try_from(schema.as_ref().clone())?;
    let expr = expr.transform(|part| match part {
        Expr::Column(column) => {
            Ok(Transformed::yes(Expr::Column(Column::new_unqualified(name(&column)))))
        }
        part => Ok(Transformed::no(part)),
    })?;
    let expr = expr.data;
    let compiled = if filters {
        Compiled::condition(&expr, &own)?
    } else {
        Compiled::expression(&expr, &own)?
    };
    let volatility = if expr.is_volatile() { Volatility::Volatile } else { Volatility::Immutable };
    let locating_failures = Telling {
        signature: Signature::any(columns.len(), volatility),
        field: Field::new(NAME, expr.get_type(&own)?, expr.nullable(&own)?).into(),
        expr,
        schema,
        compiled,
    };
    let args = columns.into_iter().map(Expr::Column).collect();
    Ok(ScalarUDF::from(locating_failures).call(args))
}

const NAME: &str = "__telling";

/// An expression as a function of the columns that it reads.
struct Telling {
    signature: Signature,
    expr: Expr,
    schema: SchemaRef,
    field: FieldRef,
    compiled: Compiled,
}

impl fmt::Debug for Telling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{NAME}({})", self.expr)
    }
}

impl PartialEq for Telling {
    fn eq(&self, other: &Self) -> bool {
        self.expr == other.expr && self.schema == other.schema
    }
}

impl Eq for Telling {}

impl Hash for Telling {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.expr.hash(state);
    }
}

impl ScalarUDFImpl for Telling {
    fn name(&self) -> &str {
        NAME
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> DfResult<DataType> {
        Ok(self.field.data_type().clone())
    }

    fn return_field_from_args(&self, _: ReturnFieldArgs<'_>) -> DfResult<FieldRef> {
        Ok(self.field.clone())
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> DfResult<ColumnarValue> {
        let rows = args.number_rows;
        let columns = args.args.iter().map(|arg| arg.to_array(rows));
        let columns = columns.collect::<DfResult<Vec<_>>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        let batch = RecordBatch::try_new_with_options(self.schema.clone(), columns, &options)?;
        self.compiled.evaluate(&batch).map_err(|error| {
            let blame = (0..rows)
                .map(|row| batch.slice(row, 1))
                .find_map(|row| blame::of(std::slice::from_ref(&self.expr), &row, &[]));
            let message = error.to_string();
            DataFusionError::External(match blame {
                Some(blame) => {
                    let reads = blame.reads.iter().map(|(name, value)| format!("{name} = {value}"));
                    let row = reads.collect::<Vec<_>>().join(", ");
                    let row = Some(row).filter(|row| !row.is_empty());
                    Box::new(LocatedFailure { message, expression: blame.expression, row })
                }
                None => message.into(),
            })
        })
    }
}
