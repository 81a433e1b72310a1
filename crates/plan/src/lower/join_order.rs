//! The order of a statement's inner joins: see [`crate::logical::join_order`].
//!
//! If all input ends, a block of joins gets another order if that costs clearly less, or if the
//! hint `LEADING(a, b)` asks for it. Joins of rows with event time keep the order in which they are
//! written, as it decides whether they stream.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use dataflow::job::Statistics;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::{Join, LogicalPlan, TableScan};

use crate::catalog::{ScannedTable, Table};
use crate::explain::{OrderedJoins, OrderedSide};
use crate::logical::join_order::estimate::{
    ColumnStatistics, Estimate, Estimator, ScanStatistics, TableStatistics,
};
use crate::logical::join_order::graph::{
    EstimatedBlock, JoinBlock, is_inside, joins_of, map_relations,
};
use crate::logical::join_order::search::{self, JoinOrder, JoinTree, Relations};
use crate::logical::join_order::semi::at_relation;
use crate::lower::hints::disobeyed;
use crate::lower::{Lowering, tables_of};
use crate::text::diagnostics::{Diagnostic, Place};
use crate::text::hints::{Asked, Hint, NamedSide};
use crate::text::refusal::Refusal;

/// A block keeps its written order unless another one costs less than this share of it: estimates
/// are not more precise than that.
const CHANGED_BELOW: f64 = 0.9;

/// A semi or anti join is moved to its relation if it leaves at most this share of the rows.
const EARLY_BELOW: f64 = 0.5;

/// Bytes of a value in a text file, if only the size of the file is known.
const TEXT_BYTES: u64 = 8;

/// A plan whose joins are in order.
pub(crate) struct OrderedPlan {
    pub(crate) plan: LogicalPlan,
    /// For EXPLAIN: its blocks of joins.
    pub(crate) orders: Vec<OrderedJoins>,
}

/// The statistics of the tables of a statement, each read once.
pub(crate) struct ScannedStatistics {
    workers: u32,
    known: RefCell<HashMap<(usize, Vec<usize>), ScanStatistics>>,
}

impl ScannedStatistics {
    pub(crate) fn new(workers: u32) -> Self {
        Self { workers, known: RefCell::default() }
    }

    /// The estimated rows of a plan, and their size.
    pub(crate) fn estimate(&self, plan: &LogicalPlan) -> Estimate {
        Estimator(self).of(plan)
    }

    /// The estimated share of the rows of a side of a join whose key is a key of the other side.
    pub(crate) fn share_with_partner(&self, join: &Join, side: usize) -> f64 {
        Estimator(self).share_with_partner(join, side)
    }

    /// The estimated bytes of the sides of a join, in memory.
    pub(crate) fn sizes(&self, sides: [&LogicalPlan; 2]) -> [u64; 2] {
        sides.map(|side| {
            let Estimate { rows, width, .. } = self.estimate(side);
            (rows * width) as u64
        })
    }

    /// The estimated rows of a plan, if those of all its tables are known.
    pub(crate) fn known_rows(&self, plan: &LogicalPlan) -> Option<f64> {
        let is_unknown = |node: &LogicalPlan| {
            Ok(match node {
                LogicalPlan::TableScan(scan) => self.of(scan).rows.is_none(),
                _ => false,
            })
        };
        let is_known = !plan.exists(is_unknown).unwrap_or(true);
        is_known.then(|| self.estimate(plan).rows)
    }

    fn read(&self, table: &Table, columns: &[usize]) -> Option<ScanStatistics> {
        let all = table.columns(Place::default()).ok()?;
        let scan = table.scan(columns, Place::default()).ok()?;
        let statistics = Statistics::of_scan(&scan, self.workers);
        let schema = scan.columns();
        let read_bytes = statistics.bytes(&schema);
        let text_bytes = (all.fields().len() as u64).max(1) * TEXT_BYTES;
        let rows = statistics.rows_max.or(read_bytes.map(|bytes| bytes / text_bytes));
        let column = |at: usize| {
            let bounds = statistics.column(at);
            ColumnStatistics {
                range: bounds.range.map(|ends| ends.map(|end| end as f64)),
                distinct_max: bounds.distinct_max.map(|most| most as f64),
                // With a range, `distinct_max` is used.
                distinct: match bounds.range {
                    Some(_) => None,
                    None => scan.distinct(at).map(|distinct| distinct as f64),
                },
            }
        };
        Some(ScanStatistics {
            rows: rows.map(|rows| rows as f64),
            endless: !statistics.ends,
            columns: (0..schema.fields().len()).map(column).collect(),
        })
    }
}

impl TableStatistics for ScannedStatistics {
    fn of(&self, scan: &TableScan) -> ScanStatistics {
        let Some(source) = scan.source.downcast_ref::<ScannedTable>() else {
            return ScanStatistics::default();
        };
        let all = || (0..source.schema.fields().len()).collect();
        let columns = scan.projection.clone().unwrap_or_else(all);
        let key = (Arc::as_ptr(&source.table).addr(), columns);
        if let Some(known) = self.known.borrow().get(&key) {
            return known.clone();
        }
        // A table that cannot be read is refused when it is lowered.
        let read = self.read(&source.table, &key.1).unwrap_or_default();
        self.known.borrow_mut().insert(key, read.clone());
        read
    }
}

/// The blocks of a statement while they are put in order.
struct Ordering<'a> {
    lowering: &'a Lowering<'a>,
    orders: Vec<OrderedJoins>,
    /// The names of the relations of all blocks.
    names: Vec<String>,
    failed: Option<Diagnostic>,
}

impl Lowering<'_> {
    /// The plan with its joins in order, if all of its input ends.
    ///
    /// # Errors
    /// When a hint asks for an order that is not possible.
    pub(crate) fn ordered(&self) -> Result<OrderedPlan, Option<Diagnostic>> {
        let mut ordering = Ordering { lowering: self, orders: vec![], names: vec![], failed: None };
        let is_bounded = |table: &Arc<Table>| table.bounded(Place::default()).unwrap_or(false);
        let plan = if self.emit.is_none() && tables_of(self.plan).iter().all(is_bounded) {
            ordering.order(self.plan).map_err(|error| self.around.report(&error))?
        } else {
            self.plan.clone()
        };
        if let Some(failed) = ordering.failed.take() {
            return Err(Some(failed));
        }
        if let Some(error) = ordering.unknown_side() {
            return Err(Some(error));
        }
        Ok(OrderedPlan { plan, orders: ordering.orders })
    }
}

impl Lowering<'_> {
    /// The order of the relations of a block in a job that goes on: the one that was read as a
    /// stream, and then the tables of its lookups. Empty where statistics decide.
    fn resumed_order(
        &self,
        relations: &[LogicalPlan],
        estimated: &EstimatedBlock<'_>,
    ) -> Vec<usize> {
        let is_streamed = |plan: &LogicalPlan| {
            tables_of(plan).iter().any(|table| self.streamed.contains(&table.title()))
        };
        let Some(first) = relations.iter().position(is_streamed) else { return vec![] };
        let (mut order, mut set) = (vec![first], 1 << first);
        let all = 0..relations.len();
        while let Some(next) =
            all.clone().find(|at| set & (1 << at) == 0 && estimated.beside(set) & (1 << at) != 0)
        {
            order.push(next);
            set |= 1 << next;
        }
        order
    }
}

impl<'a> Ordering<'a> {
    /// The plan with its blocks in order.
    fn order(&mut self, plan: &LogicalPlan) -> DfResult<LogicalPlan> {
        let hints = self.lowering.hints;
        let keeps = |node: &LogicalPlan| match node {
            LogicalPlan::SubqueryAlias(alias) => hints.names_side(alias.alias.table()),
            _ => false,
        };
        if let Some(early) = self.filtered_early(plan, &keeps) {
            return self.order(&early);
        }
        if !is_inside(plan, &keeps) {
            let inside = plan.clone().map_children(|node| self.order(&node).map(Transformed::yes));
            let inside = inside?.data;
            let all = inside.map_subqueries(|node| self.order(&node).map(Transformed::yes));
            return Ok(all?.data);
        }
        let plan = map_relations(plan, &keeps, &mut |relation| self.order(relation))?;
        let Some(block) = JoinBlock::of(&plan, &keeps) else { return Ok(plan) };
        let names: Vec<String> = block.relations.iter().map(name_of).collect();
        let hint = self.hint_of(&plan, &keeps, &names);
        let is_open = block.relations.len() > 2 && !is_timed(&plan);
        self.names.extend(names.iter().cloned());
        if !is_open && hint.is_none() {
            return Ok(plan);
        }
        let estimator = Estimator(&self.lowering.statistics);
        let estimated = block.estimated(&estimator, self.lowering.workers.total());
        let leading = match hint.map(|hint| leading(hint, &names, &estimated)) {
            Some(Err(error)) => {
                self.failed = self.failed.take().or(Some(error));
                return Ok(plan);
            }
            Some(Ok(leading)) => leading,
            None => self.lowering.resumed_order(&block.relations, &estimated),
        };
        let Some(best) = search::best(&estimated, &leading) else { return Ok(plan) };
        let keeps_written = leading.is_empty() && is_kept(&estimated, &block.written, &best);
        let tree = if keeps_written { &block.written } else { &best.tree };
        self.orders.push(OrderedJoins {
            sides: sides_of(&search::oriented(&estimated, tree), &names),
            looked_at: best.looked_at,
            is_written: keeps_written,
            rows: estimated.rows(tree.set()) as u64,
            reason: hint.map(Hint::obey),
        });
        if keeps_written { Ok(plan) } else { block.plan(&best.tree) }
    }

    /// The plan with its topmost semi or anti join at a relation, if it drops many of its rows.
    fn filtered_early(
        &self,
        plan: &LogicalPlan,
        keeps: &dyn Fn(&LogicalPlan) -> bool,
    ) -> Option<LogicalPlan> {
        let early = at_relation(plan, keeps).filter(|_| !is_timed(plan))?;
        let statistics = &self.lowering.statistics;
        let [all, left] = [&early.before, &early.filtered].map(|of| statistics.estimate(of).rows);
        (left <= EARLY_BELOW * all).then_some(early.plan)
    }

    /// The hint about the order of a block whose relations have these names.
    fn hint_of(
        &self,
        plan: &LogicalPlan,
        keeps: &dyn Fn(&LogicalPlan) -> bool,
        names: &[String],
    ) -> Option<&'a Hint> {
        let lowering = self.lowering;
        let is_of_block = |hint: &Hint| match &hint.asked {
            Asked::Leading(sides) => sides.iter().all(|side| place_of(side, names).is_some()),
            _ => false,
        };
        let hints = || lowering.hints.all().filter(|hint| is_of_block(hint));
        hints().next()?;
        // The joins of a block may be of several SELECTs.
        let words = ["JOIN", "FROM"];
        let select = |join| lowering.select_of(&Refusal::new(&words, "").at(join));
        let blocks: Vec<(u64, Place)> =
            joins_of(plan, keeps).into_iter().filter_map(select).collect();
        hints().find(|hint| blocks.contains(&(hint.script, hint.select)))
    }

    /// The error about a hint of the statement that names no relation of its joins.
    fn unknown_side(&self) -> Option<Diagnostic> {
        let tokens = self.lowering.around.tokens;
        let is_here = |hint: &&Hint| {
            let script = hint.script == self.lowering.catalog.script;
            script && tokens.iter().any(|token| Place::of(token.span) == hint.select)
        };
        for hint in self.lowering.hints.all().filter(is_here) {
            let Asked::Leading(sides) = &hint.asked else { continue };
            let unknown = sides.iter().find(|side| place_of(side, &self.names).is_none());
            if let Some(side) = unknown {
                let message = format!("no inner join of this query has a side '{}'", side.name);
                let names = self.names.iter().map(String::as_str);
                let error = Diagnostic::at(side.place, message);
                return Some(error.nearest("sides of inner joins", &side.name, names));
            }
        }
        None
    }
}

/// Whether a block keeps the order in which it is written.
fn is_kept(relations: &EstimatedBlock<'_>, written: &JoinTree, best: &JoinOrder) -> bool {
    let cost = search::cost(relations, written);
    written.is_connected(relations) && best.cost >= CHANGED_BELOW * cost
}

/// The relations that a hint names, in its order.
///
/// # Errors
/// When one has no equality with the relations before it, or is named twice.
fn leading(
    hint: &Hint,
    names: &[String],
    relations: &EstimatedBlock<'_>,
) -> Result<Vec<usize>, Diagnostic> {
    let Asked::Leading(sides) = &hint.asked else { return Ok(vec![]) };
    let mut found: Vec<usize> = vec![];
    for side in sides {
        let Some(at) = place_of(side, names) else { continue };
        let before = found.iter().fold(0, |set, at| set | 1 << at);
        let why = if found.contains(&at) {
            format!("'{}' is named twice", side.name)
        } else if before != 0 && relations.beside(before) & (1 << at) == 0 {
            format!("'{}' is joined with no side before it by an equality", side.name)
        } else {
            found.push(at);
            continue;
        };
        let error = disobeyed(hint, &why, "name the sides in an order in which each has one");
        let Place { line, column, length } = side.place;
        return Err(Diagnostic { line, column, length, ..error });
    }
    Ok(found)
}

fn place_of(side: &NamedSide, names: &[String]) -> Option<usize> {
    names.iter().position(|name| name.eq_ignore_ascii_case(&side.name))
}

/// The name of a relation of a block, for EXPLAIN and hints.
fn name_of(relation: &LogicalPlan) -> String {
    let mut names: Vec<String> = vec![];
    for (qualifier, _) in relation.schema().iter() {
        let name = qualifier.map(|name| name.table().to_owned());
        let name = name.filter(|name| !name.starts_with("__"));
        let name = name.unwrap_or_else(|| "a subquery".into());
        if !names.contains(&name) {
            names.push(name);
        }
    }
    if names.is_empty() { "a subquery".into() } else { names.join(" with ") }
}

/// The sides of an order by their names.
fn sides_of(tree: &JoinTree, names: &[String]) -> OrderedSide {
    match tree {
        JoinTree::Relation(at) => OrderedSide::Relation(names[*at].clone()),
        JoinTree::Join(probe, build) => {
            let build = sides_of(build, names);
            match sides_of(probe, names) {
                OrderedSide::Joined { mut builds, probe } => {
                    builds.push(build);
                    OrderedSide::Joined { builds, probe }
                }
                probe => OrderedSide::Joined { builds: vec![build], probe: Box::new(probe) },
            }
        }
    }
}

/// Whether some rows of a plan have event time or windows.
fn is_timed(plan: &LogicalPlan) -> bool {
    let is_timed = |node: &LogicalPlan| {
        Ok(match node {
            LogicalPlan::Extension(_) => true,
            LogicalPlan::TableScan(scan) => {
                let source = scan.source.downcast_ref::<ScannedTable>();
                source.is_some_and(|source| source.table.event_time.is_some())
            }
            _ => false,
        })
    };
    plan.exists(is_timed).unwrap_or(true)
}
