//! The part of a plan that streams.
//!
//! A fragment is a subtree of an optimized plan of the form
//!
//! ```text
//! above: [Filter | Projection | SubqueryAlias]*
//!        Aggregate?
//! below: [Filter | Projection | SubqueryAlias]*
//!        TableScan
//! ```
//!
//! [`Fragment::of`] takes one apart: expressions below the aggregate are rewritten over the table's
//! columns, those above it over the columns that the aggregate gives out, and group keys that are
//! bounds of a `TUMBLE` become a window. What is of another form is refused with a reason that a
//! user understands; whether that is an error or work for the batch stage is decided in
//! [`crate::lower`].

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Column, DFSchema, DFSchemaRef};
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::utils::conjunction;
use datafusion::logical_expr::{self as logical, Expr, ExprSchemable, LogicalPlan};

use crate::aggregates::{self, AggregateCall};
use crate::catalog::{ScannedTable, Table};
use crate::tumble::{Bound, WindowCall};

/// A streaming part of a plan.
pub(crate) struct Fragment {
    pub(crate) table: Arc<Table>,
    /// Over the table's columns.
    pub(crate) filter: Option<Expr>,
    pub(crate) shape: Shape,
    /// The schema of the subtree that it stands for.
    pub(crate) schema: DFSchemaRef,
}

/// What is made of the rows.
pub(crate) enum Shape {
    /// Each row gives one: these expressions over the table's columns.
    Rows(Vec<Expr>),
    /// Rows are grouped.
    Groups(Box<Grouping>),
}

/// Rows brought together.
pub(crate) struct Grouping {
    pub(crate) window: Option<WindowCall>,
    /// Over the table's columns.
    pub(crate) keys: Vec<Expr>,
    pub(crate) aggregates: Vec<AggregateCall>,
    /// Over the columns that the grouping gives out: see [`key_name`], [`aggregate_name`] and
    /// [`Bound::column`].
    pub(crate) filter: Option<Expr>,
    /// Over the same columns.
    pub(crate) outputs: Vec<Expr>,
}

/// The name of a key among the columns that a grouping gives out.
pub(crate) fn key_name(key: usize) -> String {
    format!("key_{key}")
}

/// The name of an aggregate among the columns that a grouping gives out.
pub(crate) fn aggregate_name(aggregate: usize) -> String {
    format!("aggregate_{aggregate}")
}

/// Why a subtree is no fragment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// Words of the statement to point at; the first that occurs.
    pub(crate) words: Vec<String>,
    /// Why it cannot stream.
    pub(crate) reason: String,
    pub(crate) hint: Option<String>,
}

impl Refusal {
    pub(crate) fn new(words: &[&str], reason: impl Into<String>) -> Self {
        let words = words.iter().map(|word| word.to_string()).collect();
        Self { words, reason: reason.into(), hint: None }
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl Fragment {
    /// Takes a subtree apart.
    ///
    /// # Errors
    /// Why it is of another form.
    pub(crate) fn of(plan: &LogicalPlan) -> Result<Self, Refusal> {
        let relation = Relation::of(plan)?;
        let outputs: Vec<Expr> = relation.outputs.into_iter().map(|(_, expr)| expr).collect();
        let shape = match relation.grouped {
            None => Shape::Rows(outputs),
            Some(grouped) => Shape::Groups(Box::new(Grouping {
                window: grouped.window,
                keys: grouped.keys,
                aggregates: grouped.aggregates,
                filter: conjunction(grouped.filters),
                outputs,
            })),
        };
        Ok(Self {
            table: relation.table,
            filter: conjunction(relation.filters),
            shape,
            schema: plan.schema().clone(),
        })
    }

    /// Whether rows are grouped without a window.
    pub(crate) fn groups_for_ever(&self) -> bool {
        matches!(&self.shape, Shape::Groups(grouping) if grouping.window.is_none())
    }
}

/// A fragment while it is walked from the table upwards.
struct Relation {
    table: Arc<Table>,
    scan: DFSchema,
    filters: Vec<Expr>,
    grouped: Option<Grouped>,
    /// What each column of the node is: over the table's columns, or over the grouping's.
    outputs: Vec<(Column, Expr)>,
}

struct Grouped {
    window: Option<WindowCall>,
    keys: Vec<Expr>,
    aggregates: Vec<AggregateCall>,
    filters: Vec<Expr>,
}

impl Relation {
    fn of(plan: &LogicalPlan) -> Result<Self, Refusal> {
        match plan {
            LogicalPlan::TableScan(scan) => Self::scan(scan),
            LogicalPlan::SubqueryAlias(alias) => {
                let mut relation = Self::of(&alias.input)?;
                relation.rename(&alias.schema);
                Ok(relation)
            }
            LogicalPlan::Projection(projection) => {
                let mut relation = Self::of(&projection.input)?;
                if relation.outputs.iter().any(|(_, expr)| expr.is_volatile()) {
                    return Err(Refusal::new(&[], "a random value is used more than once"));
                }
                let exprs = relation.rewrite_all(&projection.expr)?;
                relation.outputs = projection.schema.columns().into_iter().zip(exprs).collect();
                Ok(relation)
            }
            LogicalPlan::Filter(filter) => {
                let mut relation = Self::of(&filter.input)?;
                let predicate = relation.rewrite(&filter.predicate)?;
                match &mut relation.grouped {
                    Some(grouped) => grouped.filters.push(predicate),
                    None => relation.filters.push(predicate),
                }
                Ok(relation)
            }
            LogicalPlan::Aggregate(aggregate) => Self::aggregate(aggregate),
            other => Err(refusal(other)),
        }
    }

    fn scan(scan: &logical::TableScan) -> Result<Self, Refusal> {
        let Some(source) = scan.source.downcast_ref::<ScannedTable>() else {
            return Err(Refusal::new(&[], "the input is no table"));
        };
        let own = |column: &Column| Expr::Column(Column::new_unqualified(column.name.clone()));
        let columns = scan.projected_schema.columns();
        let schema = DFSchema::try_from(source.schema.as_ref().clone())
            .map_err(|error| Refusal::new(&[], error.to_string()))?;
        let mut relation = Self {
            table: source.table.clone(),
            scan: schema,
            filters: vec![],
            grouped: None,
            outputs: columns.iter().map(|column| (column.clone(), own(column))).collect(),
        };
        relation.filters = relation.rewrite_all(&scan.filters)?;
        Ok(relation)
    }

    fn aggregate(aggregate: &logical::Aggregate) -> Result<Self, Refusal> {
        let mut relation = Self::of(&aggregate.input)?;
        if relation.grouped.is_some() {
            return Err(Refusal::new(&["GROUP", "DISTINCT"], "groups are grouped again")
                .hint("INSERT the inner query INTO a table first"));
        }
        let groups = relation.rewrite_all(&aggregate.group_expr)?;
        if groups.iter().any(|group| matches!(group, Expr::GroupingSet(_))) {
            let words = ["ROLLUP", "CUBE", "GROUPING"];
            return Err(Refusal::new(&words, "GROUPING SETS, ROLLUP and CUBE do not stream"));
        }
        let calls = relation.rewrite_all(&aggregate.aggr_expr)?;
        let aggregates = calls
            .iter()
            .map(|call| aggregates::lower(call, &relation.scan))
            .collect::<Result<Vec<_>, _>>()?;
        let mut grouped = Grouped { window: None, keys: vec![], aggregates, filters: vec![] };
        let mut outputs = vec![];
        for group in groups {
            outputs.push(match WindowCall::of(&group) {
                Some(call) => {
                    let bound = call.bound;
                    let window = grouped.window.get_or_insert_with(|| call.clone());
                    if !window.same_window(&call) {
                        let reason = "rows are grouped by two different windows";
                        return Err(Refusal::new(&["GROUP"], reason));
                    }
                    bound.column().to_string()
                }
                None => {
                    check_key(&group, &relation.scan)?;
                    grouped.keys.push(group);
                    key_name(grouped.keys.len() - 1)
                }
            });
        }
        outputs.extend((0..calls.len()).map(aggregate_name));
        let columns = aggregate.schema.columns();
        let outputs = outputs.into_iter().map(|name| Expr::Column(Column::new_unqualified(name)));
        relation.outputs = columns.into_iter().zip(outputs).collect();
        relation.grouped = Some(grouped);
        Ok(relation)
    }

    /// Takes over the names of a schema of the same columns.
    fn rename(&mut self, schema: &DFSchema) {
        let outputs = std::mem::take(&mut self.outputs);
        self.outputs =
            schema.columns().into_iter().zip(outputs.into_iter().map(|(_, expr)| expr)).collect();
    }

    fn rewrite_all(&self, exprs: &[Expr]) -> Result<Vec<Expr>, Refusal> {
        exprs.iter().map(|expr| self.rewrite(expr)).collect()
    }

    /// An expression over the node's columns, written over what they are; aliases disappear.
    fn rewrite(&self, expr: &Expr) -> Result<Expr, Refusal> {
        if has_subquery(expr) {
            return Err(Refusal::new(&["EXISTS", "IN", "SELECT"], "a subquery in an expression"));
        }
        let own: HashMap<&Column, &Expr> =
            self.outputs.iter().map(|(column, expr)| (column, expr)).collect();
        let replaced: DfResult<Transformed<Expr>> = expr.clone().transform_up(|node| {
            Ok(match node {
                Expr::Column(column) => match own.get(&column) {
                    Some(known) => Transformed::yes((*known).clone()),
                    None => Transformed::no(Expr::Column(column)),
                },
                Expr::Alias(alias) => Transformed::yes(*alias.expr),
                other => Transformed::no(other),
            })
        });
        replaced.map(|t| t.data).map_err(|error| Refusal::new(&[], error.to_string()))
    }
}

/// Whether rows can be grouped by the values of an expression.
fn check_key(key: &Expr, schema: &DFSchema) -> Result<(), Refusal> {
    let data_type = key.get_type(schema).map_err(|e| Refusal::new(&[], e.to_string()))?;
    if aggregates::is_key(&data_type) {
        return Ok(());
    }
    let shown = crate::types::sql_name(&data_type);
    Err(Refusal::new(
        &["GROUP", "DISTINCT"],
        format!("rows cannot be grouped by values of {shown}"),
    )
    .hint("CAST the key to STRING or BIGINT"))
}

fn has_subquery(expr: &Expr) -> bool {
    expr.exists(|node| {
        Ok(matches!(
            node,
            Expr::Exists(_)
                | Expr::InSubquery(_)
                | Expr::ScalarSubquery(_)
                | Expr::SetComparison(_)
                | Expr::OuterReferenceColumn(..)
                | Expr::Unnest(_)
                | Expr::WindowFunction(_)
        ))
    })
    .unwrap_or(true)
}

/// Why a node is not part of a fragment.
fn refusal(plan: &LogicalPlan) -> Refusal {
    match plan {
        LogicalPlan::Sort(_) => Refusal::new(&["ORDER"], "ORDER BY needs all rows"),
        LogicalPlan::Limit(_) => {
            Refusal::new(&["LIMIT", "OFFSET", "FETCH"], "LIMIT needs all rows")
        }
        LogicalPlan::Join(_) => Refusal::new(&["JOIN", "IN", "EXISTS"], "joins do not stream yet"),
        LogicalPlan::Union(_) => Refusal::new(&["UNION"], "UNION does not stream yet")
            .hint("write an INSERT for each part"),
        LogicalPlan::Distinct(_) => Refusal::new(&["DISTINCT"], "DISTINCT needs all rows"),
        LogicalPlan::Window(_) => Refusal::new(&["OVER"], "OVER needs all rows"),
        LogicalPlan::Unnest(_) => Refusal::new(&["UNNEST"], "UNNEST does not stream yet"),
        LogicalPlan::RecursiveQuery(_) => Refusal::new(&["RECURSIVE"], "recursion does not stream"),
        other => {
            let name = other.display().to_string();
            let name = name.split([':', ' ']).next().unwrap_or_default().to_string();
            Refusal::new(&[], format!("{name} does not stream"))
        }
    }
}

impl Bound {
    /// In the order in which a grouping gives them out.
    pub(crate) const GIVEN_OUT: [Bound; 3] = [Bound::Start, Bound::End, Bound::Time];
}
