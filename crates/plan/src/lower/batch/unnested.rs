//! Rows that are unnested: each once for every element of its list, which may be gigabytes of a
//! megabyte.
//!
//! DataFusion makes some thousand rows at a time, however wide they are, and all rows of one list
//! at once. So it is given fewer rows at a time where they are wide, and what one row would become
//! has a bound.

use std::fmt;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::compute::kernels::length::length;
use arrow::datatypes::{DataType, UInt64Type};
use datafusion::common::exec_err;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::error::Result as DfResult;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::unnest::UnnestExec;
use datafusion::physical_plan::{
    ChildrenPropertiesMode, DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties,
    ReplaceChildrenOptions,
};
use futures::{StreamExt, TryStreamExt, stream};

use crate::expr::growth::{CALL_BYTES_MAX, bytes_of};
use crate::text::units::human;

/// Bytes that rows which are unnested together become, unless it is one of them.
const TOGETHER_BYTES_MAX: u64 = 32 << 20;

/// The plan, whose lists are unnested within bounds.
pub(super) fn bounded(plan: Arc<dyn ExecutionPlan>) -> DfResult<Arc<dyn ExecutionPlan>> {
    let bounded = plan.transform_up(|node| {
        let Some(unnest) = node.downcast_ref::<UnnestExec>() else {
            return Ok(Transformed::no(node));
        };
        let lists = unnest.list_column_indices().iter().map(|list| list.index_in_input_schema);
        let apart = Apart { input: unnest.input().clone(), lists: lists.collect() };
        let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Keep);
        node.replace_children(vec![Arc::new(apart)], options).map(Transformed::yes)
    })?;
    Ok(bounded.data)
}

/// The rows of a plan, some of each batch at a time.
#[derive(Debug)]
struct Apart {
    input: Arc<dyn ExecutionPlan>,
    /// The columns that are unnested.
    lists: Vec<usize>,
}

impl DisplayAs for Apart {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl ExecutionPlan for Apart {
    fn name(&self) -> &str {
        "Apart"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.input.properties()
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> DfResult<TreeNodeRecursion>,
    ) -> DfResult<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        _: ReplaceChildrenOptions,
    ) -> DfResult<Arc<dyn ExecutionPlan>> {
        let input = children.into_iter().next().unwrap_or_else(|| self.input.clone());
        Ok(Arc::new(Self { input, lists: self.lists.clone() }))
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> DfResult<Arc<dyn ExecutionPlan>> {
        self.replace_children(
            children,
            ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute),
        )
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> DfResult<SendableRecordBatchStream> {
        let rows = self.input.execute(partition, context)?;
        let (schema, lists) = (rows.schema(), self.lists.clone());
        let apart = rows.map(move |batch| cut(&batch?, &lists).map(stream::iter));
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, apart.try_flatten())))
    }
}

/// The parts of a batch.
fn cut(batch: &RecordBatch, lists: &[usize]) -> DfResult<Vec<DfResult<RecordBatch>>> {
    let mut from = 0;
    let part = |to| {
        let part = batch.slice(from, to - from);
        from = to;
        Ok(part)
    };
    Ok(parts(batch, lists)?.into_iter().map(part).collect())
}

/// Where to cut a batch, so that the rows of each part become no more than bytes of the bound.
fn parts(batch: &RecordBatch, lists: &[usize]) -> DfResult<Vec<usize>> {
    let lengths = lists.iter().map(|&at| lengths(batch.column(at)));
    let lengths = lengths.collect::<DfResult<Vec<_>>>()?;
    let others = (0..batch.num_columns()).filter(|at| !lists.contains(at));
    let others: Vec<&ArrayRef> = others.map(|at| batch.column(at)).collect();
    let (mut ends, mut together) = (vec![], 0_u64);
    for row in 0..batch.num_rows() {
        let copies = lengths.iter().map(|lengths| lengths[row]).max().unwrap_or(1);
        let wide = others.iter().map(|column| bytes_of(column.as_ref(), row, row + 1));
        let becomes = copies.saturating_mul(wide.sum());
        if becomes > CALL_BYTES_MAX {
            let (made, most) = (human(becomes), human(CALL_BYTES_MAX));
            return exec_err!(
                "UNNEST would make {copies} rows of one, which are {made} with its other columns; \
                 {most} are the most"
            );
        }
        if together > 0 && together.saturating_add(becomes) > TOGETHER_BYTES_MAX {
            ends.push(row);
            together = 0;
        }
        together = together.saturating_add(becomes);
    }
    ends.push(batch.num_rows());
    Ok(ends)
}

/// How many elements each list has.
fn lengths(lists: &ArrayRef) -> DfResult<Vec<u64>> {
    if !matches!(
        lists.data_type(),
        DataType::List(_) | DataType::LargeList(_) | DataType::FixedSizeList(..)
    ) {
        return Ok(vec![1; lists.len()]);
    }
    let lengths = cast(&length(lists)?, &DataType::UInt64)?;
    let lengths = lengths.as_primitive::<UInt64Type>().iter();
    Ok(lengths.map(Option::unwrap_or_default).collect())
}
