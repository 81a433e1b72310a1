//! Lowers a plan to operators.
//!
//! A [`Relation`] is what a node of the plan emits: rows of a *base* (a table, or what
//! operators emit), filtered, with each column an expression over the base's columns. Filters,
//! projections and names only change these expressions, so that they end up in one step on the edge
//! to the next operator. A node that brings rows together ends its input relations, adds an
//! operator, and begins a new relation over what that emits.
//!
//! A node of another form is refused with a reason that a user understands; whether that is an
//! error or work for the batch stage is decided in [`crate::lower`].

use std::collections::HashMap;
use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use dataflow::job::{Edge, Step};
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema};
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::utils::conjunction;
use datafusion::logical_expr::{self as logical, Expr, LogicalPlan, lit};

use crate::catalog::proctime;
use crate::catalog::watermark;
use crate::catalog::{ScannedTable, Table};
use crate::expr::own::own;
use crate::logical::windows::{RowWindows, WindowCall};
use crate::lower::aggregates;
use crate::lower::lookup::LookupJoin;
use crate::lower::rank::Rank;
use crate::lower::step::by_name;
use crate::lower::window_bounds::AttachedWindow;
use crate::text::diagnostics::Diagnostic;
use crate::text::refusal::Refusal;

/// Why a plan was not lowered.
pub(crate) enum LowerError {
    /// It does not stream.
    Refused(Refusal),
    /// It is wrong; `None` if that was reported already.
    Failed(Option<Diagnostic>),
}

impl LowerError {
    /// Says which node stops it: the innermost that is known.
    pub(crate) fn at(self, node: &LogicalPlan) -> Self {
        match self {
            LowerError::Refused(refusal) => LowerError::Refused(refusal.at(node)),
            failed => failed,
        }
    }
}

impl From<Refusal> for LowerError {
    fn from(refusal: Refusal) -> Self {
        LowerError::Refused(refusal)
    }
}

impl From<Option<Diagnostic>> for LowerError {
    fn from(failed: Option<Diagnostic>) -> Self {
        LowerError::Failed(failed)
    }
}

impl From<Diagnostic> for LowerError {
    fn from(failed: Diagnostic) -> Self {
        LowerError::Failed(Some(failed))
    }
}

/// Rows on their way, while a plan is walked from its tables upwards.
#[derive(Clone)]
pub(crate) struct Relation {
    pub(crate) base: Base,
    /// The base's columns.
    pub(crate) scan: DFSchema,
    /// Over the base's columns.
    pub(crate) filters: Vec<Expr>,
    /// Each column of the node, over the base's columns.
    pub(crate) outputs: Vec<(Column, Expr)>,
    /// The columns of the base of which its watermarks speak: most often one, or none.
    pub(crate) times: Vec<Expr>,
    /// The windows that the rows are in, and the node's columns that are bounds of them.
    pub(crate) windows: RowWindows,
    /// The one that the base's operator has attached to its rows, if it has.
    pub(crate) attached: Option<AttachedWindow>,
    /// The windows that each row stands for, if it has several and does not come once for each.
    pub(crate) multi_window: Option<WindowCall>,
    /// How long the rows of those windows may be late, if that was written.
    pub(crate) lateness_ns: Option<i64>,
    /// The column that numbers rows, if the base's operator does.
    pub(crate) rank: Option<Rank>,
    /// For EXPLAIN: columns of the base by what they are.
    pub(crate) names: Vec<(String, String)>,
}

/// The columns that expressions over a node may name.
struct Scope<'a> {
    /// Each column of the node, over the base's columns.
    outputs: HashMap<&'a Column, &'a Expr>,
    /// Whether the base has a column of the watermark, and of the time of day.
    watermark: bool,
    clock: bool,
}

/// Where rows come from.
#[derive(Clone)]
pub(crate) enum Base {
    /// A table that is read.
    Table(Arc<Table>),
    /// The outputs of operators: all of these, with the same columns.
    Operators {
        /// Each operator, and what is done with its rows to have these columns.
        from: Feeds,
        schema: SchemaRef,
    },
    /// Rows of another relation, widened by those of a table.
    Lookup(Box<LookupJoin>),
    /// The rows of all of these, with their outputs as columns of the same types.
    United { parts: Vec<Relation>, schema: SchemaRef },
}

/// Operators, and what is done with the rows of each.
pub(crate) type Feeds = Vec<(usize, Option<Arc<dyn Step>>)>;

impl Relation {
    /// The rows of a table.
    pub(crate) fn scan(scan: &logical::TableScan) -> Result<Self, Refusal> {
        let Some(source) = scan.source.downcast_ref::<ScannedTable>() else {
            return Err(Refusal::new(&[], "the input is no table"));
        };
        let columns = scan.projected_schema.columns();
        let table = &source.table;
        let event_time = table.event_time.as_ref().filter(|_| table.stream.is_none());
        let event_time =
            event_time.and_then(|time| watermark::column_of(&source.schema, &time.column));
        let clock = table.stream.is_none().then(|| Arc::new(proctime::column()));
        let fields =
            source.schema.fields().iter().cloned().chain(event_time.map(Arc::new)).chain(clock);
        let schema = DFSchema::try_from(Schema::new(fields.collect::<Vec<_>>()))
            .map_err(|error| Refusal::new(&[], error.to_string()))?;
        let times = source.table.event_time.iter().map(|time| own(&time.column)).collect();
        let mut relation = Self {
            windows: RowWindows::scanned(scan),
            base: Base::Table(source.table.clone()),
            scan: schema,
            filters: vec![],
            outputs: columns.iter().map(|c| (c.clone(), own(&c.name))).collect(),
            times,
            attached: None,
            multi_window: None,
            lateness_ns: None,
            rank: None,
            names: vec![],
        };
        relation.filters = relation.rewrite_all(&scan.filters)?;
        Ok(relation)
    }

    /// The output of an operator. `columns` names what the plan calls its columns, `outputs` what
    /// they are.
    pub(crate) fn of_operator(
        operator: usize,
        schema: SchemaRef,
        columns: Vec<Column>,
        outputs: Vec<Expr>,
    ) -> Result<Self, Refusal> {
        Self::of_operators(vec![(operator, None)], schema, columns, outputs)
    }

    /// The outputs of several operators together.
    pub(crate) fn of_operators(
        from: Feeds,
        schema: SchemaRef,
        columns: Vec<Column>,
        outputs: Vec<Expr>,
    ) -> Result<Self, Refusal> {
        let scan = DFSchema::try_from(schema.as_ref().clone())
            .map_err(|error| Refusal::new(&[], error.to_string()))?;
        Ok(Self {
            base: Base::Operators { from, schema },
            scan,
            filters: vec![],
            outputs: columns.into_iter().zip(outputs).collect(),
            times: vec![],
            windows: RowWindows::default(),
            attached: None,
            multi_window: None,
            lateness_ns: None,
            rank: None,
            names: vec![],
        })
    }

    /// The rows for which `predicate`, over the node's columns, holds.
    pub(crate) fn filter(mut self, predicate: &Expr) -> Result<Self, Refusal> {
        let predicate = self.rewrite(predicate)?;
        self.filters.push(predicate);
        Ok(self)
    }

    /// Whether a value would be another if it were computed again.
    pub(crate) fn is_volatile(&self) -> bool {
        let outputs = self.outputs.iter().map(|(_, expr)| expr);
        outputs.chain(&self.filters).any(Expr::is_volatile)
    }

    /// Expressions over the node's columns.
    pub(crate) fn project(mut self, projection: &logical::Projection) -> Result<Self, Refusal> {
        if self.outputs.iter().any(|(_, expr)| expr.is_volatile()) {
            return Err(Refusal::new(&[], "a random value is used more than once"));
        }
        let exprs = self.rewrite_all(&projection.expr)?;
        self.windows = self.windows.projected(projection);
        self.outputs = projection.schema.columns().into_iter().zip(exprs).collect();
        Ok(self)
    }

    /// The same columns under the names of an alias.
    pub(crate) fn rename(mut self, alias: &logical::SubqueryAlias) -> Self {
        self.windows = self.windows.renamed(alias);
        let outputs = std::mem::take(&mut self.outputs).into_iter().map(|(_, expr)| expr);
        self.outputs = alias.schema.columns().into_iter().zip(outputs).collect();
        self
    }

    /// The table, if the rows come from one as they are.
    pub(crate) fn table(&self) -> Option<&Arc<Table>> {
        match &self.base {
            Base::Table(table) => Some(table),
            _ => None,
        }
    }

    /// Whether watermarks can speak of an expression over the base's columns.
    pub(crate) fn tells(&self, time: &Expr) -> bool {
        let clock = || match &self.base {
            Base::Table(_) => proctime::is_column(time),
            Base::Lookup(join) => join.tells(time),
            Base::Operators { .. } | Base::United { .. } => false,
        };
        self.times.contains(time) || clock()
    }

    /// The node's columns.
    pub(crate) fn exprs(&self) -> Vec<Expr> {
        self.outputs.iter().map(|(_, expr)| expr.clone()).collect()
    }

    /// The column by which rows are counted if no other is read: a column of the base, if it has
    /// one.
    pub(crate) fn counted_by(&self) -> Expr {
        let first = self.scan.fields().first();
        first.map_or_else(|| lit(true), |field| own(field.name()))
    }

    /// The filter over the base's columns.
    pub(crate) fn predicate(&self) -> Option<Expr> {
        conjunction(self.filters.clone())
    }

    /// Whether an expression reads columns of the node, and no others.
    pub(crate) fn names_all(&self, expr: &Expr) -> bool {
        let columns = expr.column_refs();
        let own = |column: &&Column| self.outputs.iter().any(|(known, _)| known == *column);
        !columns.is_empty() && columns.iter().all(own)
    }

    pub(crate) fn rewrite_all(&self, exprs: &[Expr]) -> Result<Vec<Expr>, Refusal> {
        let known = self.known();
        exprs.iter().map(|expr| self.rewrite_with(expr, &known)).collect()
    }

    fn known(&self) -> Scope<'_> {
        let has = |name: &str| self.scan.fields().iter().any(|field| field.name() == name);
        Scope {
            outputs: self.outputs.iter().map(|(column, expr)| (column, expr)).collect(),
            watermark: has(watermark::COLUMN),
            clock: has(proctime::COLUMN),
        }
    }

    /// An expression over the node's columns, written over what they are; aliases disappear.
    pub(crate) fn rewrite(&self, expr: &Expr) -> Result<Expr, Refusal> {
        self.rewrite_with(expr, &self.known())
    }

    fn rewrite_with(&self, expr: &Expr, known: &Scope<'_>) -> Result<Expr, Refusal> {
        if let Some(refusal) = of_all_rows(expr) {
            return Err(refusal);
        }
        let Scope { outputs: known, watermark, clock } = known;
        let mut refused = None;
        let replaced: DfResult<Transformed<Expr>> = expr.clone().transform_up(|node| {
            match watermark::rewritten(&node, &self.times, *watermark) {
                Some(Ok(column)) => return Ok(Transformed::yes(column)),
                Some(Err(refusal)) => refused = Some(refusal),
                None => {}
            }
            if let Some(column) = proctime::rewritten(&node).filter(|_| *clock) {
                return Ok(Transformed::yes(column));
            }
            Ok(match node {
                Expr::Column(column) => match known.get(&column) {
                    Some(known) => Transformed::yes((*known).clone()),
                    None => Transformed::no(Expr::Column(column)),
                },
                Expr::Alias(alias) => Transformed::yes(*alias.expr),
                other => Transformed::no(other),
            })
        });
        match refused {
            Some(refusal) => Err(refusal),
            None => replaced.map(|t| t.data).map_err(|e| Refusal::new(&[], e.to_string())),
        }
    }
}

impl Base {
    /// Edges from operators, with one more step behind what they have.
    pub(crate) fn edges(from: &Feeds, step: &Option<Arc<dyn Step>>, timed: bool) -> Vec<Edge> {
        let edge = |(from, before): &(usize, Option<Arc<dyn Step>>)| Edge {
            from: *from,
            step: dataflow::step::chain(before.clone(), step.clone()),
            timed,
            lateness: 0,
        };
        from.iter().map(edge).collect()
    }
}

/// Whether rows can be grouped or led by the values of an expression.
pub(crate) fn check_key(key: &Expr, schema: &DFSchema) -> Result<(), Refusal> {
    use datafusion::logical_expr::ExprSchemable;
    let data_type = key.get_type(schema).map_err(|e| Refusal::new(&[], e.to_string()))?;
    if aggregates::is_key(&data_type) {
        return Ok(());
    }
    let shown = crate::text::types::sql_name(&data_type);
    Err(Refusal::new(
        &["GROUP", "DISTINCT"],
        format!("rows cannot be grouped by values of {shown}"),
    )
    .hint("CAST the key to STRING or BIGINT"))
}

/// Why an expression does not stream that asks a subquery or other rows.
fn of_all_rows(expr: &Expr) -> Option<Refusal> {
    let mut found = None;
    // The closure never fails.
    let _ = expr.apply(|part| {
        let subquery = match part {
            Expr::Exists(exists) => Some(&exists.subquery),
            Expr::InSubquery(asked) => Some(&asked.subquery),
            Expr::SetComparison(asked) => Some(&asked.subquery),
            Expr::ScalarSubquery(subquery) => Some(subquery),
            _ => None,
        };
        found = match (subquery, part) {
            (Some(asked), _) => {
                let reason = "a subquery in an expression needs all rows";
                Some(Refusal::new(&["SELECT"], reason).at(&asked.subquery))
            }
            (None, Expr::OuterReferenceColumn(..)) => {
                Some(Refusal::new(&["SELECT"], "a subquery in an expression needs all rows"))
            }
            (None, Expr::Unnest(_)) => {
                Some(Refusal::new(&["UNNEST"], "UNNEST does not stream yet"))
            }
            (None, Expr::WindowFunction(_)) => {
                Some(Refusal::new(&["OVER"], "OVER does not stream in an expression"))
            }
            _ => return Ok(TreeNodeRecursion::Continue),
        };
        Ok(TreeNodeRecursion::Stop)
    });
    found
}

/// Why a node does not stream.
pub(crate) fn refusal(plan: &LogicalPlan) -> Refusal {
    match plan {
        LogicalPlan::Sort(_) => Refusal::new(&["ORDER"], "ORDER BY needs all rows"),
        LogicalPlan::Limit(_) => {
            Refusal::new(&["LIMIT", "OFFSET", "FETCH"], "LIMIT needs all rows")
        }
        LogicalPlan::Distinct(_) => Refusal::new(&["DISTINCT"], "DISTINCT needs all rows"),
        LogicalPlan::Unnest(_) => Refusal::new(&["UNNEST"], "UNNEST does not stream yet"),
        LogicalPlan::RecursiveQuery(_) => Refusal::new(&["RECURSIVE"], "recursion does not stream"),
        other => {
            let name = other.display().to_string();
            let name = name.split([':', ' ']).next().unwrap_or_default().to_string();
            Refusal::new(&[], format!("{name} does not stream"))
        }
    }
}

/// The columns of a table that expressions read, in the table's order. At least one: rows are
/// counted by it.
pub(crate) fn columns_read<'a>(
    exprs: impl Iterator<Item = &'a Expr>,
    schema: &Schema,
) -> Vec<usize> {
    let places = by_name(schema);
    let mut read: Vec<usize> = exprs
        .flat_map(|expr| expr.column_refs())
        .filter_map(|column| places.get(column.name.as_str()).copied())
        .collect();
    read.sort_unstable();
    read.dedup();
    if read.is_empty() {
        let fixed = schema.fields().iter().position(|field| field.data_type().is_primitive());
        read.push(fixed.unwrap_or(0));
    }
    read
}
