//! The conditions of a filter that are joined by AND, in order of their cost.
//!
//! A condition over texts costs many times as much as one over numbers. So the cheap ones are asked
//! first, and the others for the rows that are left, once these are few enough to be worth copying.
//! A filter with a condition that is not known to have a value for each row is asked as it is
//! written: what stands before that condition may protect it.

use std::sync::Arc;

use arrow::array::{Array, AsArray, BooleanArray, RecordBatch, RecordBatchOptions};
use arrow::buffer::BooleanBuffer;
use arrow::compute::{FilterBuilder, prep_null_mask_filter};
use arrow::datatypes::{DataType, SchemaRef};
use arrow::error::ArrowError;
use dataflow::error::DataflowError;
use datafusion::common::DFSchema;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::utils::split_conjunction;
use datafusion::logical_expr::{Expr, ExprSchemable};

use super::by_name;
use super::compiled::Compiled;
use crate::expr::equality;

/// A condition is computed for the remaining rows alone where they are at most a quarter of the
/// batch: their columns are copied for that.
const FEW: usize = 4;

/// The costs of what a condition does for a row; a comparison of numbers is one.
mod cost {
    pub(super) const NUMBER: usize = 1;
    pub(super) const DECIMAL: usize = 2;
    pub(super) const TEXT: usize = 8;
    pub(super) const CALL: usize = 16;
}

/// A filter as conditions that are all true of a row that passes.
pub(super) struct Conjuncts {
    conditions: Vec<Condition>,
}

/// A condition over some columns of the input.
struct Condition {
    compiled: Compiled,
    columns: Vec<usize>,
    /// Of these columns.
    schema: SchemaRef,
}

impl Conjuncts {
    /// Compiles a filter over the columns of `input`.
    ///
    /// # Errors
    /// DataFusion's, of types.
    pub(super) fn new(input: &SchemaRef, filter: &Expr) -> DfResult<Self> {
        let scope = DFSchema::try_from(input.as_ref().clone())?;
        let mut conjuncts = split_conjunction(filter);
        if !has_a_value(filter, &scope) {
            conjuncts = vec![filter];
        }
        conjuncts.sort_by_cached_key(|expr| cost_of(expr, &scope));
        let places = by_name(input);
        let condition = |expr: &Expr| {
            let columns = expr.column_refs().into_iter();
            let mut columns: Vec<usize> =
                columns.filter_map(|column| places.get(column.name.as_str()).copied()).collect();
            columns.sort_unstable();
            columns.dedup();
            let schema = Arc::new(input.project(&columns)?);
            let own = DFSchema::try_from(schema.as_ref().clone())?;
            Ok(Condition { compiled: Compiled::condition(expr, &own)?, columns, schema })
        };
        let conditions = conjuncts.into_iter().map(condition).collect::<DfResult<_>>()?;
        Ok(Self { conditions })
    }

    /// The rows of which all conditions are true; it has no nulls.
    ///
    /// # Errors
    /// As [`Compiled::evaluate`].
    pub(super) fn mask(&self, batch: &RecordBatch) -> Result<BooleanArray, DataflowError> {
        let mut left: Option<BooleanArray> = None;
        for condition in &self.conditions {
            left = Some(match left {
                None => condition.of(batch, None)?,
                Some(left) if left.true_count() == 0 => return Ok(left),
                Some(left) if left.true_count() > batch.num_rows() / FEW => {
                    let passing = condition.of(batch, None)?;
                    BooleanArray::new(left.values() & passing.values(), None)
                }
                Some(left) => {
                    let passing = condition.of(batch, Some(&left))?;
                    let mut rows = left.values().set_indices();
                    let mut bits = vec![0_u8; left.len().div_ceil(8)];
                    for passes in passing.values() {
                        if let (Some(row), true) = (rows.next(), passes) {
                            bits[row / 8] |= 1 << (row % 8);
                        }
                    }
                    BooleanArray::new(BooleanBuffer::new(bits.into(), 0, left.len()), None)
                }
            });
        }
        Ok(left.unwrap_or_else(|| BooleanArray::from(vec![true; batch.num_rows()])))
    }
}

impl Condition {
    /// Whether the condition is true, of each row or of each in `rows`; without nulls.
    fn of(
        &self,
        batch: &RecordBatch,
        rows: Option<&BooleanArray>,
    ) -> Result<BooleanArray, DataflowError> {
        let mask = self.compiled.array(&self.columns(batch, rows)?)?;
        let Some(mask) = mask.as_boolean_opt() else {
            return Err(DataflowError::Expression("a filter is not BOOLEAN".into()));
        };
        Ok(if mask.null_count() == 0 { mask.clone() } else { prep_null_mask_filter(mask) })
    }

    /// What the condition reads, of all rows or of those in `rows`.
    fn columns(
        &self,
        batch: &RecordBatch,
        rows: Option<&BooleanArray>,
    ) -> Result<RecordBatch, ArrowError> {
        let read = self.columns.iter().map(|&at| batch.column(at));
        let (columns, count) = match rows {
            None => (read.cloned().collect(), batch.num_rows()),
            Some(rows) => {
                let filter = FilterBuilder::new(rows).optimize().build();
                let kept = read.map(|column| filter.filter(column)).collect::<Result<_, _>>()?;
                (kept, rows.true_count())
            }
        };
        let options = RecordBatchOptions::new().with_row_count(Some(count));
        RecordBatch::try_new_with_options(self.schema.clone(), columns, &options)
    }
}

/// Functions of any text or number that have a value.
const TOTAL: [&str; 12] = [
    "lower",
    "upper",
    "btrim",
    "ltrim",
    "rtrim",
    "character_length",
    "octet_length",
    "starts_with",
    "ends_with",
    "contains",
    "strpos",
    "coalesce",
];

/// Whether an expression is known to have a value, or NULL, for each row: it has no part that may
/// fail.
fn has_a_value(expr: &Expr, scope: &DFSchema) -> bool {
    let is_total = |part: &Expr| match part {
        Expr::Column(_)
        | Expr::Literal(..)
        | Expr::Alias(_)
        | Expr::Not(_)
        | Expr::IsNull(_)
        | Expr::IsNotNull(_)
        | Expr::IsTrue(_)
        | Expr::IsFalse(_)
        | Expr::IsUnknown(_)
        | Expr::IsNotTrue(_)
        | Expr::IsNotFalse(_)
        | Expr::IsNotUnknown(_)
        | Expr::Between(_)
        | Expr::InList(_) => true,
        Expr::Like(like) => matches!(*like.pattern, Expr::Literal(..)),
        Expr::BinaryExpr(binary) => {
            binary.op.is_logic_operator()
                || equality::compares(binary.op)
                || binary.op.is_numerical_operators()
                    && part.get_type(scope).is_ok_and(|of| of.is_floating())
        }
        Expr::ScalarFunction(call) => TOTAL.contains(&call.func.name()),
        Expr::Cast(cast) => cast.expr.get_type(scope).is_ok_and(|of| {
            let to = cast.field.data_type();
            let widens = |of: &DataType, to: &DataType| {
                of.primitive_width().zip(to.primitive_width()).is_some_and(|(of, to)| of < to)
            };
            of == *to
                || of.is_signed_integer() && to.is_signed_integer() && widens(&of, to)
                || of.is_integer() && to.is_floating()
                || of == DataType::Float32 && *to == DataType::Float64
        }),
        _ => false,
    };
    !expr.exists(|part| Ok(!is_total(part))).unwrap_or(true)
}

/// What an expression costs for a row, compared with others. The greatest of its operands' types
/// says what an operator costs.
fn cost_of(expr: &Expr, scope: &DFSchema) -> usize {
    let operands = |part: &Expr| {
        let mut most = cost::NUMBER;
        let _ = part.apply_children(|child| {
            most = most.max(child.get_type(scope).map_or(cost::CALL, |of| cost_of_type(&of)));
            Ok(TreeNodeRecursion::Continue)
        });
        most
    };
    let mut all = 0;
    let _ = expr.apply(|part| {
        all += match part {
            Expr::Column(_) | Expr::Literal(..) => 0,
            Expr::IsNull(_) | Expr::IsNotNull(_) => cost::NUMBER,
            Expr::InList(list) => operands(part) * list.list.len().clamp(1, 4),
            Expr::BinaryExpr(_) | Expr::Between(_) | Expr::Not(_) | Expr::Negative(_) => {
                operands(part)
            }
            _ => cost::CALL + operands(part),
        };
        Ok(TreeNodeRecursion::Continue)
    });
    all
}

fn cost_of_type(of: &DataType) -> usize {
    match of {
        DataType::Decimal128(..) => cost::DECIMAL,
        of if of.is_primitive() || *of == DataType::Boolean => cost::NUMBER,
        DataType::Dictionary(..) => cost::TEXT / 2,
        _ => cost::TEXT,
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, Int64Array, StringArray};
    use datafusion::functions::expr_fn::random;
    use datafusion::prelude::{cast, col, lit};

    use super::*;

    fn batch(rows: i64) -> RecordBatch {
        let numbers = (0..rows).map(|row| (row % 7 != 0).then_some(row % 100));
        let texts = (0..rows).map(|row| (row % 5 != 0).then(|| format!("text {}", row % 11)));
        let columns: [(&str, ArrayRef); 2] = [
            ("text", Arc::new(StringArray::from_iter(texts))),
            ("number", Arc::new(Int64Array::from_iter(numbers))),
        ];
        RecordBatch::try_from_iter_with_nullable(columns.map(|(name, of)| (name, of, true)))
            .unwrap()
    }

    #[test]
    fn cheap_conditions_are_asked_first() {
        let batch = batch(10);
        let like = col("text").like(lit("%xt%"));
        let filter = like.and(col("text").eq(lit("text 3"))).and(col("number").lt(lit(5_i64)));
        let conjuncts = Conjuncts::new(&batch.schema(), &filter).unwrap();
        let shown = conjuncts.conditions.iter().map(|one| one.compiled.to_string());
        let shown: Vec<String> = shown.collect();
        assert!(shown[0].starts_with("number") && shown[2].contains("LIKE"), "{shown:?}");
    }

    #[test]
    fn a_filter_that_may_fail_stays_whole() {
        let batch = batch(10);
        let guard = col("text").like(lit("text 3"));
        let divided = (lit(1_i64) / col("number")).gt(lit(0_i64));
        let narrow = cast(col("number"), DataType::Int8).gt(lit(0_i8));
        let date = cast(col("text"), DataType::Date32).is_not_null();
        let sum = (col("number") + lit(1_i64)).gt(lit(0_i64));
        for fails in [divided, narrow, date, sum, random().gt(lit(0.5))] {
            let filter = guard.clone().and(fails);
            let conjuncts = Conjuncts::new(&batch.schema(), &filter).unwrap();
            assert_eq!(conjuncts.conditions.len(), 1, "{filter}");
        }
        let wide = cast(col("number"), DataType::Float64).gt(lit(0.5));
        let filter = guard.and(wide);
        let conjuncts = Conjuncts::new(&batch.schema(), &filter).unwrap();
        assert_eq!(conjuncts.conditions.len(), 2);
        assert_eq!(conjuncts.mask(&batch).unwrap().null_count(), 0);
    }

    /// Rows that pass are those of the whole filter, whether few or many rows are left for the next
    /// condition.
    #[test]
    fn rows_are_those_of_the_whole_filter() {
        for rows in [0, 1, 9, 1000] {
            let batch = batch(rows);
            for below in [-1_i64, 0, 3, 60, 200] {
                let text = col("text").not_eq(lit("text 3"));
                let filter = text
                    .and(col("number").lt(lit(below)))
                    .and(col("text").like(lit("%t 1%")).or(col("number").is_null()));
                let conjuncts = Conjuncts::new(&batch.schema(), &filter).unwrap();
                assert_eq!(conjuncts.conditions.len(), 3);
                let scope = DFSchema::try_from(batch.schema().as_ref().clone()).unwrap();
                let whole = Compiled::condition(&filter, &scope).unwrap().array(&batch).unwrap();
                let expected = whole.as_boolean().iter().map(|passes| Some(passes == Some(true)));
                let found = conjuncts.mask(&batch).unwrap();
                assert_eq!(found.iter().collect::<Vec<_>>(), expected.collect::<Vec<_>>());
            }
        }
    }
}
