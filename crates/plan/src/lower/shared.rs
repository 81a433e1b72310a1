//! Sessions that a query names more than once, as of a view, are found once.
//!
//! Such parts are looked for in a query as it was understood: the optimizer makes something else of
//! each, since it leaves out what is not read there. A scan of [`SharedRows`] takes the place of
//! each; the part itself is optimized apart, for the columns and the rows that any of the scans
//! asks for. It becomes operators when the first scan is met, and all others go on behind these.
//!
//! Parts whose sessions only group rows are left alone: who groups finds sessions itself, and keeps
//! no rows for it.

use std::sync::Arc;

use arrow::datatypes::{Field, Schema, SchemaRef};
use datafusion::common::Column;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::utils::{conjunction, disjunction};
use datafusion::logical_expr::{
    self as logical, Expr, LogicalPlan, LogicalPlanBuilder, TableProviderFilterPushDown,
    TableSource,
};

use crate::logical::engine::Engine;
use crate::logical::windows::{WindowAssign, WindowShape};
use crate::lower::builder::JobBuilder;
use crate::lower::context::Context;
use crate::lower::pipeline;
use crate::lower::relation::{Base, LowerError, Relation};
use crate::lower::session;

/// A query whose repeated parts are apart.
pub(crate) struct Sharing {
    /// The rest of the plan, optimized.
    pub(crate) plan: LogicalPlan,
    pub(crate) parts: Vec<SharedPart>,
}

/// A part that a query has more than once.
#[derive(Clone)]
pub(crate) struct SharedPart {
    /// Optimized.
    plan: LogicalPlan,
    /// Which columns of the [`SharedRows`] it gives.
    columns: Vec<usize>,
    /// The relation of its first scan.
    lowered: Option<Relation>,
}

/// A leaf of a query: the rows of a part of it.
#[derive(Debug)]
struct SharedRows {
    part: usize,
    schema: SchemaRef,
}

impl TableSource for SharedRows {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    /// A filter stays where it is, and is known here.
    fn supports_filters_pushdown(
        &self,
        filters: &[&Expr],
    ) -> DfResult<Vec<TableProviderFilterPushDown>> {
        Ok(vec![TableProviderFilterPushDown::Inexact; filters.len()])
    }
}

impl Engine {
    /// The query with its repeated parts apart, if there are any that can be.
    pub(crate) fn shared(&self, understood: &LogicalPlan) -> Option<Sharing> {
        let parts = repeated(understood);
        if parts.is_empty() {
            None
        } else {
            // Errors are about the query as it was written.
            self.apart(understood, parts).ok()
        }
    }

    fn apart(&self, understood: &LogicalPlan, parts: Vec<LogicalPlan>) -> DfResult<Sharing> {
        let plan = understood.clone().transform_down(|node| {
            Ok(match parts.iter().position(|part| *part == node) {
                Some(part) => Transformed::new(scan(&node, part)?, true, TreeNodeRecursion::Jump),
                None => Transformed::no(node),
            })
        });
        let plan = self.optimize(&plan?.data)?;
        let part = |(at, part)| {
            let (plan, columns) = asked(part, &scans_of(&plan, at))?;
            Ok(SharedPart { plan: self.optimize(&plan)?, columns, lowered: None })
        };
        let parts = parts.into_iter().enumerate().map(part).collect::<DfResult<_>>()?;
        Ok(Sharing { plan, parts })
    }
}

/// The rows of a part, if that is what is scanned.
pub(crate) fn shared(
    cx: &Context<'_>,
    job: &mut JobBuilder,
    scan: &logical::TableScan,
) -> Result<Option<Relation>, LowerError> {
    let Some(rows) = scan.source.downcast_ref::<SharedRows>() else { return Ok(None) };
    let SharedPart { plan, columns, lowered } = job.shared[rows.part].clone();
    let mut relation = match lowered {
        Some(relation) => relation,
        None => {
            let relation = pipeline::relation(cx, job, &plan)?;
            let relation = session::materialized(cx, job, relation)?;
            // Steps without an operator yet would be made anew behind each scan.
            if matches!(relation.base, Base::Operators { .. }) {
                job.shared[rows.part].lowered = Some(relation.clone());
            }
            relation
        }
    };
    let all: Vec<usize> = (0..rows.schema.fields().len()).collect();
    let read = scan.projection.as_ref().unwrap_or(&all).iter();
    let outputs = read.map(|column| {
        let at = columns.iter().position(|known| known == column)?;
        relation.outputs.get(at).cloned()
    });
    let outputs: Option<Vec<(Column, Expr)>> = outputs.collect();
    let (before, outputs): (Vec<Column>, Vec<Expr>) =
        outputs.ok_or(LowerError::Failed(None))?.into_iter().unzip();
    let before: Vec<Expr> = before.into_iter().map(Expr::Column).collect();
    relation.windows = relation.windows.selected(scan.projected_schema.columns(), &before);
    relation.outputs = scan.projected_schema.columns().into_iter().zip(outputs).collect();
    Ok(Some(relation))
}

/// The parts that a plan has more than once.
fn repeated(plan: &LogicalPlan) -> Vec<LogicalPlan> {
    let mut known: Vec<(&LogicalPlan, usize)> = vec![];
    visit(plan, false, &mut |part| match known.iter_mut().find(|(known, _)| *known == part) {
        Some((_, times)) => *times += 1,
        None => known.push((part, 1)),
    });
    let repeated = known.into_iter().filter(|(part, times)| *times > 1 && !is_volatile(part));
    repeated.map(|(part, _)| part.clone()).collect()
}

/// Visits the sessions of a plan, but for those that are `grouped`.
fn visit<'a>(plan: &'a LogicalPlan, grouped: bool, visitor: &mut impl FnMut(&'a LogicalPlan)) {
    let is_session = |assign: &WindowAssign| assign.of.shape == WindowShape::Session;
    let grouped = match plan {
        LogicalPlan::Extension(_) if WindowAssign::of(plan).is_some_and(is_session) => {
            if !grouped {
                visitor(plan);
            }
            false
        }
        LogicalPlan::Aggregate(_) | LogicalPlan::Distinct(_) => true,
        LogicalPlan::Projection(_) | LogicalPlan::Filter(_) | LogicalPlan::SubqueryAlias(_) => {
            grouped
        }
        // It may read columns of what is around it.
        LogicalPlan::Subquery(_) => return,
        _ => false,
    };
    plan.inputs().into_iter().for_each(|input| visit(input, grouped, visitor));
}

/// Whether a part would be another if it were computed again.
fn is_volatile(part: &LogicalPlan) -> bool {
    let is_volatile = |node: &LogicalPlan| Ok(node.expressions().iter().any(Expr::is_volatile));
    part.exists(is_volatile).unwrap_or(true)
}

/// The node that stands for a part in the rest of a plan.
fn scan(node: &LogicalPlan, part: usize) -> DfResult<LogicalPlan> {
    let fields = node.schema().as_arrow().fields().iter().enumerate();
    let plain: Vec<Field> = fields.map(|(at, f)| f.as_ref().clone().with_name(name(at))).collect();
    let rows = SharedRows { part, schema: Arc::new(Schema::new(plain)) };
    let table = format!("shared {}", part + 1);
    let scan = LogicalPlanBuilder::scan(table.clone(), Arc::new(rows), None)?;
    let columns = node.schema().iter().enumerate().map(|(at, (qualifier, field))| {
        let column = Expr::Column(Column::new(Some(table.clone()), name(at)));
        column.alias_qualified(qualifier.cloned(), field.name())
    });
    scan.project(columns.collect::<Vec<_>>())?.build()
}

/// The name of a column of [`SharedRows`].
fn name(at: usize) -> String {
    format!("c{at}")
}

/// The scans of a part in an optimized plan.
fn scans_of(plan: &LogicalPlan, part: usize) -> Vec<logical::TableScan> {
    let mut scans = vec![];
    // The closure never fails, so neither does the walk.
    let _ = plan.apply_with_subqueries(|node| {
        if let LogicalPlan::TableScan(scan) = node
            && scan.source.downcast_ref::<SharedRows>().is_some_and(|rows| rows.part == part)
        {
            scans.push(scan.clone());
        }
        Ok(TreeNodeRecursion::Continue)
    });
    scans
}

/// Of a part the rows and columns that some scan asks for, and which columns these are.
fn asked(part: LogicalPlan, scans: &[logical::TableScan]) -> DfResult<(LogicalPlan, Vec<usize>)> {
    let own = part.schema().columns();
    let reads = |at: &usize| {
        let reads =
            |scan: &logical::TableScan| scan.projection.as_ref().is_none_or(|p| p.contains(at));
        scans.iter().any(reads)
    };
    let columns: Vec<usize> = (0..own.len()).filter(reads).collect();
    let filters: Option<Vec<Expr>> =
        scans.iter().map(|scan| conjunction(scan.filters.clone())).collect();
    let mut builder = LogicalPlanBuilder::from(part);
    if let Some(any) = filters.and_then(disjunction) {
        let any = any.transform(|expr| {
            let at = |column: &Column| (0..own.len()).find(|&at| name(at) == column.name);
            Ok(match &expr {
                Expr::Column(column) => match at(column) {
                    Some(at) => Transformed::yes(Expr::Column(own[at].clone())),
                    None => Transformed::no(expr),
                },
                _ => Transformed::no(expr),
            })
        })?;
        builder = builder.filter(any.data)?;
    }
    let exprs = columns.iter().map(|&at| Expr::Column(own[at].clone()));
    Ok((builder.project(exprs.collect::<Vec<_>>())?.build()?, columns))
}
