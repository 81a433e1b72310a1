//! Joins with a small table that every node has whole (A3): of a stream, or of another table where
//! all input ends.
//!
//! Such a join widens the rows of a relation and changes nothing else of it: its columns, among
//! them those that tell time, stay what they are, and so it may stand in front of a window or
//! behind one. The operator is made when the columns that later operators need are known, and
//! whether they need watermarks.

use std::sync::Arc;

use arrow::datatypes::{Field, Schema, SchemaRef};
use dataflow::job::{InputLabels, Labels, OperatorKind, Reason, Scan, Statistics, Step};
use dataflow::keyed::JoinKind;
use dataflow::lookup::Lookup;
use datafusion::common::{Column, DFSchema};
use datafusion::logical_expr::{Expr, ExprSchemable};

use crate::Workers;
use crate::catalog::Table;
use crate::explain::{plain, shown};
use crate::expr::own::own;
use crate::lower::broadcast;
use crate::lower::builder::JobBuilder;
use crate::lower::context::Context;
use crate::lower::join::{On, called, over};
use crate::lower::pipeline;
use crate::lower::pipeline::RequestedColumns;
use crate::lower::relation::{Base, Feeds, LowerError, Relation, check_key, columns_read};
use crate::lower::step;
use crate::text::refusal::Refusal;
use crate::text::units::human;

/// A lookup join: rows of a relation widened by rows of a table.
#[derive(Clone)]
pub(crate) struct LookupJoin {
    stream: Relation,
    /// Its base is a table.
    table: Relation,
    kind: JoinKind,
    /// Over the columns of the stream's base, and of the table.
    keys: [Vec<Expr>; 2],
    /// Over the columns of this base.
    on: Option<Expr>,
    /// The table's columns by their names in this base.
    columns: Vec<(String, Expr)>,
    /// Bytes that the table may have.
    bytes_max: usize,
    /// Why it is that side, where its size says so.
    reason: Option<Reason>,
    /// Whether each process reads the table itself, if it can.
    is_pulled: bool,
}

/// The side of a join that is the table, and the kind of join as the rows of the other side see it.
pub(crate) struct Sides {
    pub(crate) table: usize,
    pub(crate) kind: JoinKind,
    /// Bytes that the table may have.
    bytes_max: usize,
    /// Why this side is the table, where another reason than event time says so.
    reason: Option<Reason>,
}

impl LookupJoin {
    /// Whether watermarks of the stream can speak of an expression.
    pub(crate) fn tells(&self, time: &Expr) -> bool {
        self.stream.tells(time)
    }
}

/// The side of a join that can be a table that every node has whole, if one can.
///
/// Beside a stream that is any table that ends. Where all input ends, it is the side of which a
/// hint asks for the broadcast, or the side without event time if the other has one, or with equal
/// keys the smaller side, if its size is known and neither a hint nor a setting asks for a shuffle.
/// A job that goes on has the side that it had when it began.
pub(crate) fn table_side(
    cx: &Context<'_>,
    [left, right]: [&Relation; 2],
    on: &On,
    kind: JoinKind,
) -> Result<Option<Sides>, LowerError> {
    let sides = [left, right];
    let mut tables = [false; 2];
    for (side, is_table) in sides.into_iter().zip(&mut tables) {
        if let Some(table) = side.table() {
            *is_table = table.bounded(cx.lowering.place_of(table))?;
        }
    }
    let mut possible = sides_of(kind).iter().copied().filter(|(side, _)| tables[*side]);
    let bytes_max = cx.lowering.settings.table_bytes;
    let chosen = |(table, kind)| Sides { table, kind, bytes_max, reason: None };
    if !cx.bounded {
        return Ok(possible.next().map(chosen));
    }
    let possible: Vec<(usize, JoinKind)> = possible.collect();
    let find = |fits: &dyn Fn(usize) -> bool| possible.iter().copied().find(|(at, _)| fits(*at));
    if let Some(side) = find(&|side| was_table(cx, sides, side)) {
        let settings = cx.lowering.settings;
        let bytes_max = settings.table_bytes.max(settings.batch_bytes);
        let reason = "the job goes on, and this side was a table when it began".to_owned();
        return Ok(Some(Sides {
            bytes_max,
            reason: Some(Reason::Planner(reason)),
            ..chosen(side)
        }));
    }
    if let Some(side) = (0..2).find(|side| broadcast::is_pull_asked(&cx.hints, sides, *side))
        && !on.is_empty()
    {
        // A larger table is the build of a hash join.
        let asked: Vec<_> = possible.iter().copied().filter(|(at, _)| *at == side).collect();
        return by_size(cx, sides, &asked);
    }
    // A side that is multicast is the build of a hash join.
    if !on.is_empty() && (0..2).any(|side| broadcast::is_multicast_asked(&cx.hints, sides, side)) {
        return Ok(None);
    }
    if (0..2).any(|side| broadcast::is_asked_of(&cx.hints, sides, side)) {
        return Ok(find(&|side| broadcast::is_asked_of(&cx.hints, sides, side)).map(chosen));
    }
    let is_timed = |side: usize| !sides[side].times.is_empty();
    if let Some(found) = find(&|side| !is_timed(side) && is_timed(1 - side)) {
        return Ok(Some(chosen(found)));
    }
    if on.is_empty() || broadcast::is_shuffle_asked(cx, sides) {
        return Ok(None);
    }
    by_size(cx, sides, &possible)
}

/// Whether a side was the table of a lookup when the job began, which goes on now: its table is not
/// read as a stream. All joins of such a job are lookups.
fn was_table(cx: &Context<'_>, sides: [&Relation; 2], side: usize) -> bool {
    let streamed = cx.lowering.streamed;
    let is_streamed = |table: &Table| streamed.contains(&table.title());
    !streamed.is_empty() && sides[side].table().is_some_and(|table| !is_streamed(table))
}

/// How many times larger than the other side a table may be that alone can be the table: a lookup
/// moves no row of the other side, but a larger table costs more than it saves.
const LARGER: u64 = 2;

/// Bytes of a table that every process may have whatever the size of the other side.
const SMALL: u64 = 1 << 20;

/// Whether it moves less if every process has a table of `own` bytes than if rows of both sides go
/// to the workers of their keys.
fn moves_less(own: u64, other: u64, workers: Workers) -> bool {
    let everywhere = own.saturating_mul(u64::from(workers.nodes - 1));
    let by_key = broadcast::moved(own.saturating_add(other), workers);
    own <= SMALL || everywhere as f64 * dataflow::cost::MARGIN <= by_key as f64
}

/// The smaller side of a join of tables that end, if its size is known and small enough.
fn by_size(
    cx: &Context<'_>,
    sides: [&Relation; 2],
    possible: &[(usize, JoinKind)],
) -> Result<Option<Sides>, LowerError> {
    let settings = cx.lowering.settings;
    let small = settings.table_bytes.min(settings.job.state_bytes_max / 2) as u64;
    let mut smallest: Option<(u64, usize, JoinKind)> = None;
    let about = |side: usize| cx.sizes.map(|sizes| sizes[side]);
    for &(table, kind) in possible {
        let Some(bytes) = table_bytes(cx, sides[table])? else { continue };
        let is_less = |&(least, other, _): &(u64, usize, JoinKind)| {
            about(table).zip(about(other)).map_or(bytes < least, |(own, other)| own < other)
        };
        // Filters and joins may make the other side the smaller one, though it cannot be the table.
        let only = possible.iter().all(|(side, _)| *side == table);
        let much = |bytes: u64| bytes.saturating_mul(LARGER);
        let larger = only && about(table) > about(1 - table).map(much);
        let is_moved_less = about(table)
            .zip(about(1 - table))
            .is_none_or(|(own, other)| moves_less(own, other, cx.lowering.workers));
        if bytes <= small && !larger && is_moved_less && smallest.as_ref().is_none_or(is_less) {
            smallest = Some((bytes, table, kind));
        }
    }
    Ok(smallest.map(|(bytes, table, kind)| {
        let most = human(bytes);
        let reason = format!("all input ends, and this side has at most {most}");
        // The batch stage would have had as much room for it.
        let bytes_max = settings.table_bytes.max(settings.batch_bytes);
        Sides { table, kind, bytes_max, reason: Some(Reason::Planner(reason)) }
    }))
}

/// The sides of a join that can be the table, the right one first, with the kind of join as the
/// rows of the other side see it.
fn sides_of(kind: JoinKind) -> &'static [(usize, JoinKind)] {
    match kind {
        JoinKind::Inner => &[(1, JoinKind::Inner), (0, JoinKind::Inner)],
        JoinKind::Left => &[(1, JoinKind::Left)],
        JoinKind::LeftSemi => &[(1, JoinKind::LeftSemi)],
        JoinKind::LeftAnti => &[(1, JoinKind::LeftAnti)],
        JoinKind::Right => &[(0, JoinKind::Left)],
        JoinKind::RightSemi => &[(0, JoinKind::LeftSemi)],
        JoinKind::RightAnti => &[(0, JoinKind::LeftAnti)],
        JoinKind::Full => &[],
    }
}

/// Bytes of the columns of a relation that is a table, or of its files, if that is known.
fn table_bytes(cx: &Context<'_>, relation: &Relation) -> Result<Option<u64>, LowerError> {
    let Some(table) = relation.table() else { return Ok(None) };
    let place = cx.lowering.place_of(table);
    let predicate = relation.predicate();
    let exprs = relation.outputs.iter().map(|(_, expr)| expr).chain(&predicate);
    let read = columns_read(exprs, table.columns(place)?.as_ref());
    let scan = table.scan(&read, place)?;
    let statistics = Statistics::of_scan(&scan, cx.lowering.workers.total());
    Ok(statistics.bytes(&scan.columns()))
}

/// Whether a table lies in memory that several processes share, so that each can read all of it.
fn is_shared(cx: &Context<'_>, relation: &Relation) -> Result<bool, LowerError> {
    let Some(table) = relation.table() else { return Ok(false) };
    let place = cx.lowering.place_of(table);
    Ok(table.scan(&[0], place)?.is_shared())
}

/// Whether a lookup join of both sides by these keys is possible.
pub(crate) fn can(left: &Relation, right: &Relation, on: &On) -> bool {
    let is_key = |(l, r): &(Expr, Expr)| {
        check_key(l, &left.scan).is_ok() && check_key(r, &right.scan).is_ok()
    };
    !left.is_volatile() && !right.is_volatile() && on.iter().all(is_key)
}

/// A relation widened by the rows of a table.
pub(crate) fn lookup_join(
    cx: &Context<'_>,
    job: &mut JobBuilder,
    sides: Sides,
    [left, right]: [Relation; 2],
    on: On,
    filter: Option<&Expr>,
) -> Result<Relation, LowerError> {
    let Sides { table: at, kind, bytes_max, reason } = sides;
    let (hinted, is_pulled) = everywhere(cx, [&left, &right], at)?;
    let reason = hinted.or(reason);
    if left.is_volatile() || right.is_volatile() {
        let reason = "a random value would be another for each row that it is joined with";
        return Err(Refusal::new(&["JOIN"], reason).into());
    }
    for (l, r) in &on {
        check_key(l, &left.scan)?;
        check_key(r, &right.scan)?;
    }
    let (left_keys, right_keys): (Vec<_>, Vec<_>) = on.into_iter().unzip();
    let (stream, table, keys) = match at {
        0 => (right, left, [right_keys, left_keys]),
        _ => (left, right, [left_keys, right_keys]),
    };
    job.lookups += 1;
    let mut kept = RequestedColumns::default();
    let named = |place: usize| format!("__lookup_{}_{place}", job.lookups);
    let beside: Vec<(Column, Expr)> = table
        .outputs
        .iter()
        .map(|(column, expr)| (column.clone(), own(&named(kept.index(expr)))))
        .collect();
    let columns = kept.0.into_iter().enumerate().map(|(at, expr)| (named(at), expr));
    let columns: Vec<(String, Expr)> = columns.collect();
    let mut fields: Vec<_> = stream.scan.fields().iter().cloned().collect();
    let mut names = stream.names.clone();
    let mut outputs = stream.outputs.clone();
    let known: Vec<_> = outputs.iter().chain(&beside).cloned().collect();
    if kind.widens() {
        for (name, expr) in &columns {
            let data_type = expr.get_type(&table.scan).map_err(|e| cx.report(&e))?;
            fields.push(Arc::new(Field::new(name, data_type, true)));
        }
        let named = beside.iter().map(|(column, expr)| match expr {
            Expr::Column(own) => (own.name.clone(), column.name.clone()),
            _ => (String::new(), String::new()),
        });
        names.extend(named.filter(|(own, _)| !own.is_empty()));
        match at {
            0 => drop(outputs.splice(0..0, beside)),
            _ => outputs.extend(beside),
        }
    }
    let on = filter.map(|filter| over(filter, &known).map_err(|e| cx.report(&e)));
    let scan = DFSchema::try_from(Schema::new(fields)).map_err(|e| cx.report(&e))?;
    let (times, attached) = (stream.times.clone(), stream.attached.clone());
    let windows = stream.windows.clone();
    let (multi_window, lateness_ns) = (stream.multi_window.clone(), stream.lateness_ns);
    let on = on.transpose()?;
    let join = LookupJoin { stream, table, kind, keys, on, columns, bytes_max, reason, is_pulled };
    let base = Base::Lookup(Box::new(join));
    let (filters, rank) = (vec![], None);
    Ok(Relation {
        base,
        scan,
        filters,
        outputs,
        times,
        windows,
        attached,
        multi_window,
        lateness_ns,
        rank,
        names,
    })
}

/// Why every process has a side whole, if a hint says so, and whether each reads it itself, if it
/// can.
fn everywhere(
    cx: &Context<'_>,
    sides: [&Relation; 2],
    table: usize,
) -> Result<(Option<Reason>, bool), LowerError> {
    // A scan is made for the answer, so only where it is asked for.
    let is_asked = broadcast::is_pull_asked(&cx.hints, sides, table);
    let can_pull = !is_asked || is_shared(cx, sides[table])?;
    broadcast::is_everywhere(&cx.hints, sides, table, can_pull)
}

/// Makes the operator of a relation that a table widens. It emits the columns that `exprs` name.
pub(crate) fn lowered<'e>(
    cx: &Context<'_>,
    job: &mut JobBuilder,
    join: &'e LookupJoin,
    exprs: impl Iterator<Item = &'e Expr>,
    time: Option<&Expr>,
) -> Result<(Feeds, SchemaRef), LowerError> {
    let LookupJoin { stream, kind, keys, on, .. } = join;
    let asked: Vec<&str> = exprs
        .chain(on)
        .flat_map(|expr| expr.column_refs())
        .map(|column| column.name.as_str())
        .collect();
    let asked = |name: &str| asked.contains(&name);

    let mut passed = RequestedColumns::default();
    for field in stream.scan.fields().iter().filter(|field| asked(field.name())) {
        passed.index(&own(field.name()));
    }
    let stream_keys: Vec<usize> = keys[0].iter().map(|key| passed.index(key)).collect();
    let mut finished = pipeline::finish_without_lateness(cx, job, stream, &passed.0, time)?;
    call_columns(&mut finished.columns, stream, &passed.0, &finished.places);
    let stream_keys = stream_keys.into_iter().map(|at| finished.places[at]).collect();

    let side = table_beside(cx, join, &asked)?;
    let both = beside(&finished.schema, &side.schema, &side.named);
    let schema: SchemaRef = if kind.widens() {
        both.clone()
    } else {
        let stream = both.fields()[..finished.schema.fields().len()].to_vec();
        Arc::new(Schema::new(stream))
    };
    let names = names_of(join);
    let on = on.as_ref().map(|on| {
        let all: Vec<Expr> = both.fields().iter().map(|field| own(field.name())).collect();
        step::compile(&both, Some(on), &all, both.clone(), &names).map_err(|e| cx.report(&e))
    });
    // A statement over input that ends reads one version.
    let refresh_ns = side.input.source.refresh_ns().filter(|_| !cx.bounded);
    let lookup = Lookup {
        is_pulled: join.is_pulled && side.input.is_shared(),
        refresh_ns,
        table: side.input,
        step: side.step,
        bytes_max: join.bytes_max,
        keys: [stream_keys, side.keys],
        kind: *kind,
        on: on.transpose()?.flatten(),
        schema: schema.clone(),
        both,
    };
    let mut inputs = [&finished.columns, &side.columns].map(|of| InputLabels::of_columns(of));
    inputs[1].reason = join.reason.clone();
    let labels = Labels {
        table: Some(side.table.title()),
        inputs: inputs.into(),
        columns: shown(&schema, &names),
        ..Labels::default()
    };
    let kind = OperatorKind::Lookup(Box::new(lookup));
    let name = format!("LookupJoin {}", side.table.name);
    let operator = job.add(name, vec![finished.edges], kind, labels);
    Ok((vec![(operator, None)], schema))
}

/// The table of a lookup join, as it is kept.
struct TableSide<'a> {
    table: &'a Table,
    input: Scan,
    step: Option<Arc<dyn Step>>,
    schema: SchemaRef,
    /// The columns that must be equal to the stream's.
    keys: Vec<usize>,
    /// Those that are asked for, with their names in the base of the join.
    named: Vec<(usize, String)>,
    /// The columns, in the words of the user.
    columns: Vec<String>,
}

/// The table of a lookup join, with its keys and the columns that are `asked` for.
fn table_beside<'a>(
    cx: &Context<'_>,
    join: &'a LookupJoin,
    asked: &dyn Fn(&str) -> bool,
) -> Result<TableSide<'a>, LowerError> {
    let table = &join.table;
    let mut kept = RequestedColumns::default();
    let named = join.columns.iter().filter(|(name, _)| asked(name));
    let named: Vec<(usize, &String)> = named.map(|(name, expr)| (kept.index(expr), name)).collect();
    let keys: Vec<usize> = join.keys[1].iter().map(|key| kept.index(key)).collect();
    if kept.0.is_empty() {
        // Rows need a column to be counted by.
        kept.index(&table.counted_by());
    }
    let Base::Table(source) = &table.base else {
        return Err(Refusal::new(&["JOIN"], "a table is not read as it is").into());
    };
    let predicate = table.predicate();
    let (input, read) = pipeline::scan(cx, source, kept.0.iter().chain(&predicate), None)?;
    let input = pipeline::pruned(cx, source, input, predicate.as_ref(), &read)?;
    let (step, schema, places) = pipeline::narrow(cx, table, &kept.0, read)?;
    let mut columns = shown(&schema, &table.names);
    call_columns(&mut columns, table, &kept.0, &places);
    Ok(TableSide {
        table: source,
        input,
        step,
        schema,
        keys: keys.into_iter().map(|at| places[at]).collect(),
        named: named.into_iter().map(|(at, name)| (places[at], name.clone())).collect(),
        columns,
    })
}

/// Calls the columns at `places`, which are `exprs` over the base of a side, as the user does.
fn call_columns(columns: &mut [String], side: &Relation, exprs: &[Expr], places: &[usize]) {
    for (expr, &place) in exprs.iter().zip(places) {
        if let Some(name) = called(side, expr) {
            columns[place] = name;
        }
    }
}

/// The columns of both sides, in the words of the user.
fn names_of(LookupJoin { stream, table, columns, .. }: &LookupJoin) -> Vec<(String, String)> {
    let of_table = columns.iter().map(|(name, expr)| {
        let text = || plain(&expr.human_display().to_string(), &table.names);
        (name.clone(), called(table, expr).unwrap_or_else(text))
    });
    let of_stream = stream
        .scan
        .fields()
        .iter()
        .filter_map(|field| Some((field.name().clone(), called(stream, &own(field.name()))?)));
    of_stream.chain(stream.names.iter().cloned()).chain(of_table).collect()
}

/// The columns of a stream beside those of a table, under names that are all different. `named`
/// names those of the table that are asked for.
fn beside(stream: &Schema, table: &Schema, named: &[(usize, String)]) -> SchemaRef {
    let count = stream.fields().len();
    let stream = stream.fields().iter().map(|field| field.as_ref().clone().with_nullable(true));
    let table = table.fields().iter().enumerate().map(|(at, field)| {
        let name = named.iter().find(|(place, _)| *place == at).map(|(_, name)| name.clone());
        let name = name.unwrap_or_else(|| format!("__kept_{}", count + at));
        Field::new(name, field.data_type().clone(), true)
    });
    Arc::new(Schema::new(stream.chain(table).collect::<Vec<_>>()))
}
