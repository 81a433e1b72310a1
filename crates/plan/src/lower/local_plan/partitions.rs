//! Functions over whole partitions, some partitions at a time.
//!
//! If a frame reaches to the end of its partition, DataFusion's operator holds all rows of its
//! input before it computes anything, and reserves no memory for them. Its input is sorted by
//! partition, so here the functions are computed over some whole partitions at a time: about
//! [`TOGETHER_BYTES`] of rows, or one partition that is larger. The rows held are reserved.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, RecordBatch};
use arrow::compute::{concat, concat_batches};
use arrow::datatypes::SchemaRef;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::utils::evaluate_partition_ranges;
use datafusion::error::Result as DfResult;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::window::WindowExpr;
use datafusion::physical_expr::{PhysicalExpr, PhysicalSortExpr};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::windows::WindowAggExec;
use datafusion::physical_plan::{
    ChildrenPropertiesMode, DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties,
    ReplaceChildrenOptions,
};
use futures::{StreamExt, stream};

/// Bytes of held rows from which on the functions of all whole partitions are computed.
const TOGETHER_BYTES: usize = 4 << 20;

/// The plan, in which functions over whole partitions hold some partitions at a time.
pub(super) fn some_at_a_time(plan: Arc<dyn ExecutionPlan>) -> DfResult<Arc<dyn ExecutionPlan>> {
    let made = plan.transform_up(|node| {
        if !node.is::<WindowAggExec>() {
            return Ok(Transformed::no(node));
        }
        Ok(Transformed::yes(Arc::new(SomePartitions { window: node }) as _))
    })?;
    Ok(made.data)
}

/// A [`WindowAggExec`] that computes some partitions at a time.
#[derive(Debug)]
struct SomePartitions {
    window: Arc<dyn ExecutionPlan>,
}

impl DisplayAs for SomePartitions {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl ExecutionPlan for SomePartitions {
    fn name(&self) -> &str {
        self.window.name()
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.window.properties()
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        self.window.maintains_input_order()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        self.window.children()
    }

    fn apply_expressions(
        &self,
        with: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> DfResult<TreeNodeRecursion>,
    ) -> DfResult<TreeNodeRecursion> {
        self.window.apply_expressions(with)
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        options: ReplaceChildrenOptions,
    ) -> DfResult<Arc<dyn ExecutionPlan>> {
        let window = self.window.clone().replace_children(children, options)?;
        Ok(Arc::new(Self { window }))
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
        let Some(window) = self.window.downcast_ref::<WindowAggExec>() else {
            return self.window.execute(partition, context);
        };
        let schema = self.window.schema();
        let consumer = MemoryConsumer::new("rows of partitions");
        let run = Partitions {
            input: Some(window.input().execute(partition, context.clone())?),
            functions: window.window_expr().to_vec(),
            keys: window.partition_by_sort_keys()?,
            schema: schema.clone(),
            rows: vec![],
            bytes: 0,
            held: consumer.register(context.memory_pool()),
            batch_rows: context.session_config().batch_size(),
            made: VecDeque::new(),
        };
        let rows = stream::try_unfold(run, Partitions::next);
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, rows)))
    }
}

/// A run over the partitions of the input, some at a time.
struct Partitions {
    /// `None` once it has ended.
    input: Option<SendableRecordBatchStream>,
    functions: Vec<Arc<dyn WindowExpr>>,
    keys: Vec<PhysicalSortExpr>,
    schema: SchemaRef,
    /// The rows held; the last partition of them may be incomplete.
    rows: Vec<RecordBatch>,
    bytes: usize,
    held: MemoryReservation,
    batch_rows: usize,
    /// Results to be emitted next.
    made: VecDeque<RecordBatch>,
}

impl Partitions {
    async fn next(mut self) -> DfResult<Option<(RecordBatch, Self)>> {
        loop {
            if let Some(batch) = self.made.pop_front() {
                return Ok(Some((batch, self)));
            }
            let Some(input) = &mut self.input else { return Ok(None) };
            match input.next().await.transpose()? {
                Some(batch) => self.take(batch)?,
                None => {
                    self.input = None;
                    self.compute()?;
                }
            }
        }
    }

    /// Holds rows. If enough are held, or these do not fit, the partitions that are complete are
    /// computed first.
    fn take(&mut self, mut batch: RecordBatch) -> DfResult<()> {
        let mut bytes = batch.get_array_memory_size();
        if self.bytes >= TOGETHER_BYTES || self.held.try_grow(bytes).is_err() {
            let start = self.ranges(&batch)?.last().map_or(0, |last| last.start);
            if start > 0 {
                let rest = batch.slice(start, batch.num_rows() - start);
                bytes = bytes * rest.num_rows() / batch.num_rows();
                self.rows.push(batch.slice(0, start));
                self.compute()?;
                batch = rest;
            }
            self.held.try_grow(bytes)?;
        }
        self.bytes += bytes;
        self.rows.push(batch);
        Ok(())
    }

    /// The partitions of a batch.
    fn ranges(&self, batch: &RecordBatch) -> DfResult<Vec<Range<usize>>> {
        let keys = self.keys.iter().map(|key| key.evaluate_to_sort_column(batch));
        evaluate_partition_ranges(batch.num_rows(), &keys.collect::<DfResult<Vec<_>>>()?)
    }

    /// Computes the functions over the rows that are held.
    fn compute(&mut self) -> DfResult<()> {
        let Some(first) = self.rows.first() else { return Ok(()) };
        let whole = concat_batches(&first.schema(), &self.rows)?;
        self.rows.clear();
        if whole.num_rows() > 0 {
            let mut results = vec![vec![]; self.functions.len()];
            for Range { start, end } in self.ranges(&whole)? {
                let partition = whole.slice(start, end - start);
                for (function, to) in self.functions.iter().zip(&mut results) {
                    to.push(function.evaluate(&partition)?);
                }
            }
            let mut columns = whole.columns().to_vec();
            for parts in results {
                let parts: Vec<&dyn Array> = parts.iter().map(|part| part.as_ref()).collect();
                columns.push(concat(&parts)?);
            }
            let batch = RecordBatch::try_new(self.schema.clone(), columns)?;
            let starts = (0..batch.num_rows()).step_by(self.batch_rows.max(1));
            let part = |from| batch.slice(from, self.batch_rows.min(batch.num_rows() - from));
            self.made.extend(starts.map(part));
        }
        self.held.free();
        self.bytes = 0;
        Ok(())
    }
}
