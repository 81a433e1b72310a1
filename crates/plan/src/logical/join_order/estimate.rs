//! Estimates of the rows that a plan emits, and of the distinct values of its columns.
//!
//! Tables report their rows and the bounds of their columns. A column without statistics is assumed
//! to be a key: it has as many values as its table has rows. The rows of a join are the number of
//! pairs of rows, divided by the number of values of its keys: see [`values_of_keys`].

use arrow::datatypes::Schema;
use dataflow::size::value_bytes;
use datafusion::common::{Column, JoinType};
use datafusion::logical_expr::utils::split_conjunction;
use datafusion::logical_expr::{
    Aggregate, Distinct, Expr, FetchType, Join, LogicalPlan, TableScan, Union,
};

use super::column_tables::{ColumnTables, relations_of};
use super::selectivity::{self, selectivity};

/// Rows of a table without statistics.
const ROWS_GUESSED: f64 = 100_000.0;

/// Rows of a table that never ends.
const ROWS_ENDLESS: f64 = 1e12;

/// A column is assumed to be a key, to which the other side of a join refers, if it has this many
/// distinct values for each row.
const KEY_SHARE: f64 = 0.9;

/// The share of rows without a partner that an anti join is assumed to emit at least.
const WITHOUT_PARTNER_MIN: f64 = 0.1;

/// The groups for each row, if the key may have as many values as there are rows.
const GROUPED: f64 = 0.1;

/// Elements of a list that become rows, on average.
const ELEMENTS: f64 = 3.0;

/// The statistics of tables.
pub(crate) trait TableStatistics {
    /// The statistics of the rows of a scan, before its filters.
    fn of(&self, scan: &TableScan) -> ScanStatistics;
}

/// The statistics of a scan.
#[derive(Debug, Clone, Default)]
pub(crate) struct ScanStatistics {
    /// The number of rows, if it is known.
    pub(crate) rows: Option<f64>,
    /// Whether the rows never end.
    pub(crate) endless: bool,
    /// The columns that are read, in their order.
    pub(crate) columns: Vec<ColumnStatistics>,
}

/// The statistics of a column.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ColumnStatistics {
    /// The least and the greatest value, as numbers of ticks.
    pub(crate) range: Option<[f64; 2]>,
    /// The distinct values at most.
    pub(crate) distinct_max: Option<f64>,
    /// The distinct values that were counted.
    pub(crate) distinct: Option<f64>,
}

/// The source of the number of values of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Knowledge {
    /// It is unknown: the number of rows is assumed.
    Guessed,
    /// It is an upper bound.
    Bounded,
    /// The values were counted.
    Counted,
}

/// An estimate of a column. Filters and joins do not change it: joins are estimated by the values
/// that may occur in the table.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ColumnEstimate {
    /// Its distinct values.
    pub(crate) distinct: f64,
    pub(crate) known: Knowledge,
    /// The rows of the table or group that has these values.
    pub(crate) of_rows: f64,
    pub(crate) range: Option<[f64; 2]>,
    /// The tables that have these values in a column of theirs, row by row.
    pub(crate) origins: ColumnTables,
}

/// An estimate of a plan.
#[derive(Debug, Clone)]
pub(crate) struct Estimate {
    pub(crate) rows: f64,
    /// Bytes of a row in memory.
    pub(crate) width: f64,
    /// By the columns of its schema.
    pub(crate) columns: Vec<ColumnEstimate>,
}

/// A pair of columns that are equal in the rows of a join. All columns of one relation together
/// have no more values than it has rows.
pub(crate) struct KeyPair {
    /// The relations of the columns.
    pub(crate) of: [usize; 2],
    pub(crate) columns: [ColumnEstimate; 2],
}

impl ColumnEstimate {
    /// A column without statistics, of a table with this number of rows.
    pub(crate) fn unknown(rows: f64) -> Self {
        let known = Knowledge::Guessed;
        Self { distinct: rows, known, of_rows: rows, range: None, origins: ColumnTables::default() }
    }

    fn of(stated: ColumnStatistics, rows: f64) -> Self {
        let (distinct, known) = match (stated.distinct, stated.distinct_max) {
            (Some(counted), _) => (counted, Knowledge::Counted),
            (None, Some(most)) => (most, Knowledge::Bounded),
            (None, None) => (rows, Knowledge::Guessed),
        };
        let distinct = distinct.min(rows).max(1.0);
        Self { distinct, known, range: stated.range, ..Self::unknown(rows) }
    }
}

/// The number of values `n` of all keys of a join together: one pair of rows in `n` has equal keys.
///
/// A key usually refers to another table that has each value once: then `n` is the number of rows
/// of that table. If both sides may have each value once, the smaller one is assumed to be that
/// table. If neither side does, the side with fewer values is assumed to have a subset of the
/// values of the other.
pub(crate) fn values_of_keys(pairs: &[KeyPair]) -> f64 {
    let mut of: Vec<[usize; 2]> = vec![];
    for pair in pairs {
        if !of.contains(&pair.of) {
            of.push(pair.of);
        }
    }
    let each = of.into_iter().map(|of| {
        let same = pairs.iter().filter(|pair| pair.of == of);
        let [left, right] = [0, 1]
            .map(|side| together(&same.clone().map(|pair| pair.columns[side]).collect::<Vec<_>>()));
        values_of_key(left, right)
    });
    each.product::<f64>().max(1.0)
}

/// Columns of one relation as one column.
fn together(columns: &[ColumnEstimate]) -> ColumnEstimate {
    let rows = columns.iter().map(|column| column.of_rows).fold(1.0, f64::max);
    let distinct = columns.iter().map(|column| column.distinct).product::<f64>();
    let is_counted = distinct <= rows && columns.iter().all(|c| c.known == Knowledge::Counted);
    let known = if is_counted { Knowledge::Counted } else { Knowledge::Bounded };
    ColumnEstimate { distinct: distinct.min(rows), known, ..ColumnEstimate::unknown(rows) }
}

fn values_of_key(left: ColumnEstimate, right: ColumnEstimate) -> f64 {
    let is_key = |side: &ColumnEstimate| side.distinct >= KEY_SHARE * side.of_rows;
    let counted = |side: &ColumnEstimate| {
        if side.known == Knowledge::Counted { side.distinct } else { 1.0 }
    };
    let values = match (is_key(&left), is_key(&right)) {
        (true, true) if left.of_rows <= right.of_rows => left.distinct.max(counted(&right)),
        (true, false) => left.distinct.max(counted(&right)),
        (true, true) | (false, true) => right.distinct.max(counted(&left)),
        (false, false) => left.distinct.max(right.distinct),
    };
    values.max(1.0)
}

/// The bytes of a row in memory.
fn width_of(schema: &Schema) -> f64 {
    schema.fields().iter().map(|field| value_bytes(field.data_type()) as f64).sum()
}

/// Estimates plans by the statistics of their tables.
pub(crate) struct Estimator<'a>(pub(crate) &'a dyn TableStatistics);

impl Estimator<'_> {
    /// The estimate of a plan.
    pub(crate) fn of(&self, plan: &LogicalPlan) -> Estimate {
        let mut estimate = self.of_node(plan);
        let fields = plan.schema().fields().len();
        let unknown = ColumnEstimate::unknown(estimate.rows);
        estimate.columns.resize(fields, unknown);
        estimate.width = width_of(plan.schema().as_arrow()).max(1.0);
        estimate
    }

    fn of_node(&self, plan: &LogicalPlan) -> Estimate {
        let rows_of = |rows: f64| Estimate { rows, width: 0.0, columns: vec![] };
        match plan {
            LogicalPlan::TableScan(scan) => self.of_scan(scan),
            LogicalPlan::Filter(filter) => {
                let input = self.of(&filter.input);
                // A filter that the scan applies already was counted there.
                let pushed: &[Expr] = match filter.input.as_ref() {
                    LogicalPlan::TableScan(scan) => &scan.filters,
                    _ => &[],
                };
                let parts = split_conjunction(&filter.predicate);
                let parts = parts.into_iter().filter(|part| !pushed.contains(part));
                let predicate = parts.cloned().reduce(Expr::and);
                filtered(input, &filter.input, predicate.as_ref())
            }
            LogicalPlan::Projection(projection) => {
                let input = self.of(&projection.input);
                let columns = columns_of(&projection.expr, &input, &projection.input);
                Estimate { columns, ..input }
            }
            LogicalPlan::Join(join) => self.of_join(join),
            LogicalPlan::Aggregate(aggregate) => self.of_aggregate(aggregate),
            LogicalPlan::Distinct(Distinct::All(input)) => {
                let all = self.of(input);
                let rows = distinct_of(&all.columns, all.rows);
                Estimate { rows, ..all }
            }
            LogicalPlan::Distinct(Distinct::On(on)) => self.of(&on.input),
            LogicalPlan::Sort(sort) => limited(self.of(&sort.input), sort.fetch),
            LogicalPlan::Limit(limit) => {
                let fetch = match limit.get_fetch_type() {
                    Ok(FetchType::Literal(fetch)) => fetch,
                    _ => None,
                };
                limited(self.of(&limit.input), fetch)
            }
            LogicalPlan::Union(union) => self.of_union(union),
            LogicalPlan::SubqueryAlias(alias) => {
                let mut input = self.of(&alias.input);
                let name = alias.alias.to_string();
                input.columns.iter_mut().for_each(|column| column.origins.rename(&name));
                input
            }
            LogicalPlan::Unnest(unnest) => {
                let input = self.of(&unnest.input);
                rows_of(input.rows * ELEMENTS)
            }
            LogicalPlan::EmptyRelation(empty) => rows_of(f64::from(empty.produce_one_row)),
            LogicalPlan::Values(values) => rows_of(values.values.len() as f64),
            other => match other.inputs()[..] {
                // The columns of the input come first, if the node emits them.
                [input] => {
                    let input = self.of(input);
                    let keeps = input.columns.len() <= other.schema().fields().len();
                    if keeps { input } else { rows_of(input.rows) }
                }
                _ => rows_of(ROWS_GUESSED),
            },
        }
    }

    fn of_scan(&self, scan: &TableScan) -> Estimate {
        let stated = self.0.of(scan);
        let rows = stated.rows.unwrap_or(if stated.endless { ROWS_ENDLESS } else { ROWS_GUESSED });
        let columns = stated.columns.into_iter().map(|column| ColumnEstimate::of(column, rows));
        let mut columns: Vec<ColumnEstimate> = columns.collect();
        columns.resize(scan.projected_schema.fields().len(), ColumnEstimate::unknown(rows));
        let origins = ColumnTables::of(&scan.table_name.to_string(), rows);
        columns.iter_mut().for_each(|column| column.origins = origins);
        let read = Estimate { rows, width: 0.0, columns };
        let filters = scan.filters.iter().cloned().reduce(Expr::and);
        let columns = |column: &Column| {
            let at = scan.projected_schema.maybe_index_of_column(column)?;
            read.columns.get(at).copied()
        };
        let share = filters.map_or(1.0, |filters| selectivity(&filters, &columns));
        limited(Estimate { rows: less(rows, share), ..read }, scan.fetch)
    }

    fn of_join(&self, join: &Join) -> Estimate {
        let sides = [self.of(&join.left), self.of(&join.right)];
        let values = self.values_of_join(join, &sides);
        let [left, right] = sides;
        let columns: Vec<_> = left.columns.iter().chain(&right.columns).copied().collect();
        let lookup = |column: &Column| {
            let sides = [(&join.left, 0), (&join.right, left.columns.len())];
            let mut found = sides.into_iter().filter_map(|(side, first)| {
                Some(first + side.schema().maybe_index_of_column(column)?)
            });
            columns.get(found.next()?).copied()
        };
        let share = join.filter.as_ref().map_or(1.0, |filter| selectivity(filter, &lookup));
        let inner = less(left.rows * right.rows / values, share);
        let has_partner = |other: f64| (other / values * share).min(1.0);
        let semi = |own: &Estimate, other: f64| less(own.rows, has_partner(other));
        let anti = |own: &Estimate, other: f64| {
            less(own.rows, (1.0 - has_partner(other)).max(WITHOUT_PARTNER_MIN))
        };
        let rows = match join.join_type {
            JoinType::Inner => inner,
            JoinType::Left => inner.max(left.rows),
            JoinType::Right => inner.max(right.rows),
            JoinType::Full => inner.max(left.rows + right.rows),
            JoinType::LeftSemi => semi(&left, right.rows),
            JoinType::RightSemi => semi(&right, left.rows),
            JoinType::LeftAnti => anti(&left, right.rows),
            JoinType::RightAnti => anti(&right, left.rows),
            JoinType::LeftMark => left.rows,
            JoinType::RightMark => right.rows,
        };
        let columns = match join.join_type {
            JoinType::Inner => with_equal_keys(join, columns, left.columns.len()),
            JoinType::LeftSemi | JoinType::LeftAnti | JoinType::LeftMark => left.columns,
            JoinType::RightSemi | JoinType::RightAnti | JoinType::RightMark => right.columns,
            _ => columns,
        };
        Estimate { rows, width: 0.0, columns }
    }

    /// The number of values of all keys of a join together.
    fn values_of_join(&self, join: &Join, sides: &[Estimate; 2]) -> f64 {
        if join.on.is_empty() {
            return 1.0;
        }
        let column = |expr: &Expr, input: &LogicalPlan, of: &Estimate| {
            let at = selectivity::column(expr)
                .and_then(|column| input.schema().maybe_index_of_column(column));
            at.map_or(ColumnEstimate::unknown(of.rows), |at| of.columns[at])
        };
        let keys = join.on.iter();
        let left = keys.clone().map(|(left, _)| column(left, &join.left, &sides[0])).collect();
        let right = keys.map(|(_, right)| column(right, &join.right, &sides[1])).collect();
        let [left, right] = [left, right].map(relations_of);
        let pair = |(left, right): ((usize, ColumnEstimate), (usize, ColumnEstimate))| KeyPair {
            of: [left.0, right.0],
            columns: [left.1, right.1],
        };
        values_of_keys(&left.into_iter().zip(right).map(pair).collect::<Vec<_>>())
    }

    /// The share of the rows of a side of a join, the left one first, whose key is a key of the
    /// other side.
    pub(crate) fn share_with_partner(&self, join: &Join, side: usize) -> f64 {
        let sides = [self.of(&join.left), self.of(&join.right)];
        (sides[1 - side].rows / self.values_of_join(join, &sides)).min(1.0)
    }

    fn of_aggregate(&self, aggregate: &Aggregate) -> Estimate {
        let input = self.of(&aggregate.input);
        if aggregate.group_expr.is_empty() {
            return Estimate { rows: 1.0, width: 0.0, columns: vec![] };
        }
        let keys = columns_of(&aggregate.group_expr, &input, &aggregate.input);
        let rows = distinct_of(&keys, input.rows);
        // The groups of a single key have each of its values once.
        let known = Knowledge::Counted;
        let named: String = aggregate.group_expr.iter().map(ToString::to_string).collect();
        let origins = ColumnTables::of(&named, rows);
        let grouped = keys.iter().map(|key| {
            let distinct = if keys.len() == 1 { rows } else { key.distinct.min(rows) };
            ColumnEstimate { distinct, known, of_rows: rows, origins, ..*key }
        });
        Estimate { rows, width: 0.0, columns: grouped.collect() }
    }

    fn of_union(&self, union: &Union) -> Estimate {
        let inputs: Vec<Estimate> = union.inputs.iter().map(|input| self.of(input)).collect();
        let rows = inputs.iter().map(|input| input.rows).sum();
        let column = |at: usize| {
            let of = inputs.iter().map(|input| input.columns[at]);
            of.reduce(|a, b| ColumnEstimate {
                distinct: a.distinct + b.distinct,
                of_rows: a.of_rows + b.of_rows,
                known: if a.known == b.known { a.known } else { Knowledge::Bounded },
                range: a.range.zip(b.range).map(|([a, b], [c, d])| [a.min(c), b.max(d)]),
                origins: ColumnTables::default(),
            })
        };
        let columns = (0..union.schema.fields().len()).filter_map(column).collect();
        Estimate { rows, width: 0.0, columns }
    }
}

/// The columns of an inner join, in which those of an equal pair have the origins of both.
fn with_equal_keys(
    join: &Join,
    mut columns: Vec<ColumnEstimate>,
    left: usize,
) -> Vec<ColumnEstimate> {
    for (of_left, of_right) in &join.on {
        let at = |expr: &Expr, input: &LogicalPlan| {
            input.schema().maybe_index_of_column(selectivity::column(expr)?)
        };
        if let (Some(l), Some(r)) = (at(of_left, &join.left), at(of_right, &join.right)) {
            let both = columns[l].origins.with(columns[left + r].origins);
            (columns[l].origins, columns[left + r].origins) = (both, both);
        }
    }
    columns
}

/// The rows that are left by a share; one at least, since with an estimate of no rows all later
/// joins would cost nothing.
fn less(rows: f64, share: f64) -> f64 {
    (rows * share).max(rows.min(1.0))
}

fn limited(rows: Estimate, fetch: Option<usize>) -> Estimate {
    let most = fetch.map_or(f64::MAX, |fetch| fetch as f64);
    Estimate { rows: rows.rows.min(most), ..rows }
}

/// The estimate of a plan with a filter.
pub(crate) fn filtered(rows: Estimate, plan: &LogicalPlan, predicate: Option<&Expr>) -> Estimate {
    let lookup = |column: &Column| {
        let at = plan.schema().maybe_index_of_column(column)?;
        rows.columns.get(at).copied()
    };
    let share = predicate.map_or(1.0, |predicate| selectivity(predicate, &lookup));
    Estimate { rows: less(rows.rows, share), ..rows }
}

/// The estimates of expressions over the columns of a plan.
fn columns_of(exprs: &[Expr], input: &Estimate, plan: &LogicalPlan) -> Vec<ColumnEstimate> {
    let find = |column: &Column| {
        let at = plan.schema().maybe_index_of_column(column)?;
        input.columns.get(at).copied()
    };
    let of = |expr: &Expr| {
        if let Some(column) = selectivity::column(expr).and_then(find) {
            return column;
        }
        // Equal inputs have equal results.
        let mut read: Vec<&Column> = expr.column_refs().into_iter().collect();
        // In one order on every node, or the last bit of the product differs.
        read.sort_unstable();
        let values = read.iter().map(|column| find(column).map(|column| column.distinct));
        let values: Option<f64> = values.product();
        let origins = read.iter().filter_map(|column| find(column).map(|column| column.origins));
        let origins = origins.reduce(ColumnTables::shared).unwrap_or_default();
        let unknown = ColumnEstimate { origins, ..ColumnEstimate::unknown(input.rows) };
        match values.filter(|_| !expr.is_volatile()) {
            Some(values) if values < input.rows => {
                ColumnEstimate { distinct: values, known: Knowledge::Bounded, ..unknown }
            }
            _ => unknown,
        }
    };
    exprs.iter().map(of).collect()
}

/// The estimated number of distinct rows among `rows` rows of these columns.
fn distinct_of(columns: &[ColumnEstimate], rows: f64) -> f64 {
    let values = columns.iter().map(|column| {
        // A query rarely groups by a column with another value in each row, whatever its range.
        let is_key = column.distinct >= KEY_SHARE * column.of_rows;
        let counted = column.known == Knowledge::Counted;
        if is_key && !counted { column.distinct * GROUPED } else { column.distinct }
    });
    values.product::<f64>().max(1.0).min(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(distinct: f64, of_rows: f64, known: Knowledge) -> ColumnEstimate {
        ColumnEstimate { distinct, known, ..ColumnEstimate::unknown(of_rows) }
    }

    fn values(pairs: &[[ColumnEstimate; 2]]) -> f64 {
        let pairs = pairs.iter().map(|columns| KeyPair { of: [0, 1], columns: *columns });
        values_of_keys(&pairs.collect::<Vec<_>>())
    }

    #[test]
    fn a_key_is_found_once_in_the_table_that_it_refers_to() {
        use Knowledge::{Bounded, Counted, Guessed};
        let customers = column(150_000.0, 150_000.0, Bounded);
        assert_eq!(values(&[[column(150_000.0, 1.5e6, Bounded), customers]]), 150_000.0);
        // Order numbers have gaps: by their range, each line could have another one.
        let orders = column(1.5e6, 1.5e6, Bounded);
        let lines = column(6e6, 6e6, Bounded);
        assert_eq!(values(&[[lines, orders]]), 1.5e6);
        assert_eq!(values(&[[orders, lines]]), 1.5e6);
        // Names have no statistics.
        assert_eq!(values(&[[column(1e6, 1e6, Guessed), column(25.0, 25.0, Guessed)]]), 25.0);
        // More values of the facts were counted than the dimension has rows.
        let days = column(100.0, 100.0, Bounded);
        assert_eq!(values(&[[column(1_000.0, 1e6, Counted), days]]), 1_000.0);
        // No key on either side.
        assert_eq!(values(&[[column(25.0, 1e4, Counted), column(5.0, 1e5, Counted)]]), 25.0);
    }

    #[test]
    fn columns_of_one_relation_have_no_more_values_than_it_has_rows() {
        use Knowledge::Bounded;
        let lines = |distinct| column(distinct, 6e6, Bounded);
        let supplies = |distinct| column(distinct, 8e5, Bounded);
        let pairs = [[lines(2e5), supplies(2e5)], [lines(1e4), supplies(1e4)]];
        assert_eq!(values(&pairs), 8e5);
        // Columns of two relations are independent.
        let nations = column(25.0, 150_000.0, Bounded);
        let suppliers = |distinct| column(distinct, 1e4, Bounded);
        let pairs = [
            KeyPair { of: [0, 2], columns: [lines(1e4), suppliers(1e4)] },
            KeyPair { of: [1, 2], columns: [nations, suppliers(25.0)] },
        ];
        assert_eq!(values_of_keys(&pairs), 250_000.0);
    }
}
