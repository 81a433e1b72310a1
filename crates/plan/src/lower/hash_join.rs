//! Joins of inputs that end, by equal keys, on all workers.
//!
//! One side is the *build*: its rows are put into hash tables before rows of the other side, the
//! *probe*, look them up. The build is the smaller side, as far as sizes are known. It is
//! *replicated* (one table in each process) if that moves fewer bytes than an exchange of both
//! sides by their keys; then the rows of the probe side stay where they are. [`reach`] chooses, by
//! the [`Statistics`] of both sides ([`super::replication`]).
//!
//! A join that emits the rows of its build side with, or without, a partner is always by key: no
//! worker sees all rows that look up a replicated build.

mod key_filter;

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use dataflow::hash_join::{BUILD, HashJoin, HashJoinSide, Variant};
use dataflow::job::{
    BuildMulticast, Cost, Distribution, Edge, Exchange, InputLabels, Labels, OperatorKind, Reason,
    Scan, Statistics,
};
use dataflow::keyed::JoinKind;
use dataflow::placement::Placements;
use datafusion::common::{Column, JoinType, NullEquality};
use datafusion::logical_expr::binary::comparison_coercion;
use datafusion::logical_expr::{self as logical, Expr, ExprSchemable, cast};
use state::NullKeys;

use crate::Workers;
use crate::explain::shown_expr;
use crate::expr::own::own;
use crate::lower::aggregates;
use crate::lower::broadcast::{self, Asking, May, NO_POOL_TABLE, SideStatistics, Wish, name};
use crate::lower::builder::JobBuilder;
use crate::lower::context::Context;
use crate::lower::join::{On, Places, both_of, condition, names_of, part};
use crate::lower::pipeline::{self, FinishedPipeline, RequestedColumns};
use crate::lower::relation::{LowerError, Relation};
use crate::lower::replication::{Cheaper, Replication, cheaper, smaller, why_by_key};
use crate::text::refusal::Refusal;
use crate::text::settings::ExchangeChoice;
use crate::text::types::sql_name;

/// The rows that a join emits, and whether its NULL keys are equal.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Form {
    /// The kind, by the sides as they are written.
    pub(crate) kind: JoinKind,
    variant: Variant,
    nulls: NullKeys,
}

impl Form {
    /// The form of a join of the plan.
    pub(crate) fn of(join: &logical::Join) -> Self {
        let (kind, variant) = match join.join_type {
            JoinType::Inner => (JoinKind::Inner, Variant::Plain),
            JoinType::Left => (JoinKind::Left, Variant::Plain),
            JoinType::Right => (JoinKind::Right, Variant::Plain),
            JoinType::Full => (JoinKind::Full, Variant::Plain),
            JoinType::LeftSemi => (JoinKind::LeftSemi, Variant::Plain),
            JoinType::LeftAnti if join.null_aware => (JoinKind::LeftAnti, Variant::NullAware),
            JoinType::LeftAnti => (JoinKind::LeftAnti, Variant::Plain),
            JoinType::RightSemi => (JoinKind::RightSemi, Variant::Plain),
            JoinType::RightAnti => (JoinKind::RightAnti, Variant::Plain),
            JoinType::LeftMark => (JoinKind::LeftSemi, Variant::Mark),
            JoinType::RightMark => (JoinKind::RightSemi, Variant::Mark),
        };
        let nulls = match join.null_equality {
            NullEquality::NullEqualsNothing => NullKeys::Nothing,
            NullEquality::NullEqualsNull => NullKeys::Equal,
        };
        Self { kind, variant, nulls }
    }

    /// Whether a join that keeps rows for a limited time supports it.
    pub(crate) fn is_plain(self) -> bool {
        self.variant == Variant::Plain && self.nulls == NullKeys::Nothing
    }

    /// The side that must be the build, if one must.
    fn build(self) -> Option<usize> {
        (self.variant != Variant::Plain).then_some(usize::from(self.kind != JoinKind::RightSemi))
    }
}

/// A side of a join whose columns and keys arrive.
struct Side {
    name: String,
    places: Places,
    finished: FinishedPipeline,
    /// The estimated number of its rows.
    rows_estimate: Option<u64>,
}

/// A join by equal keys of two relations that end; `filter` is over the columns of both.
///
/// # Errors
/// When keys cannot be compared, or a hint cannot be obeyed.
pub(crate) fn hash_join(
    cx: &Context<'_>,
    job: &mut JobBuilder,
    node: &logical::Join,
    [left, right]: [Relation; 2],
    on: On,
) -> Result<Relation, LowerError> {
    let form = Form::of(node);
    if form.variant == Variant::NullAware && (on.len() > 1 || node.filter.is_some()) {
        let reason = "NOT IN of a subquery that reads columns of what is around it";
        return Err(Refusal::new(&["IN"], reason).hint("write NOT EXISTS").into());
    }
    let [left_keys, right_keys] = keys(cx, &left, &right, on)?;
    let mut sides =
        [arriving(cx, job, (&left, 0), &left_keys)?, arriving(cx, job, (&right, 1), &right_keys)?];
    for (side, input) in sides.iter_mut().zip([&node.left, &node.right]) {
        side.rows_estimate = cx.bounded.then(|| cx.lowering.statistics.estimate(input).rows as u64);
    }
    let reach = reach(cx, job, form, &sides)?;
    let relations = [&left, &right];
    let [probe, build] = [1 - reach.build, reach.build];
    apply(cx, job, (node, form), relations, &mut sides, &reach)?;
    let at = |side: usize| (relations[side], &sides[side]);
    let both = both_of(&at(probe).1.finished.schema, &at(build).1.finished.schema);
    let first = at(probe).1.finished.schema.fields().len();
    let kind = seen_by(form.kind, probe);
    let columns = [(probe, 0), (build, first)].map(|(side, first)| {
        let (relation, side) = at(side);
        side.places.columns(relation, &both, first)
    });
    let shown = [probe, build].map(|side| {
        let (relation, side) = at(side);
        side.places.shown(relation, &side.finished)
    });
    let texts: Vec<(String, String)> =
        both.fields().iter().map(|f| f.name().clone()).zip(shown.concat()).collect();
    let filter = node.filter.as_ref();
    let filter = filter.map(|filter| condition(cx, filter, &columns.concat(), &both, &texts));
    let mark =
        (form.variant == Variant::Mark).then(|| Field::new("mark", DataType::Boolean, false));
    let schema = match kind {
        JoinKind::LeftSemi | JoinKind::LeftAnti => part(&both, 0, first),
        JoinKind::RightSemi | JoinKind::RightAnti => part(&both, first, both.fields().len()),
        _ => both.clone(),
    };
    let schema = match &mark {
        Some(mark) => {
            let fields = schema.fields().iter().cloned().chain([Arc::new(mark.clone())]);
            Arc::new(Schema::new(fields.collect::<Vec<_>>()))
        }
        None => schema,
    };
    let on = filter.transpose()?.flatten();
    let spec = HashJoin {
        sides: [probe, build].map(|side| HashJoinSide {
            name: sides[side].name.clone(),
            schema: sides[side].finished.schema.clone(),
            keys: sides[side].places.keys.clone(),
            distribution: reach.distributions[side],
        }),
        is_pulled: reach.way == Some(Replication::Pull),
        multicast: (reach.way == Some(Replication::Multicast)).then(BuildMulticast::default),
        exchange: reach.exchange,
        nulls: form.nulls,
        kind,
        variant: form.variant,
        on,
        schema: schema.clone(),
        both: both.clone(),
    };
    let operator = add(job, spec, &sides, reach, &shown);
    relation(operator, (kind, probe), (&schema, mark), columns, node)
}

/// Changes the inputs of a join as its exchange asks: each process reads a build that is pulled,
/// and rows of the probe side without a partner stay where that is worth its price.
///
/// # Errors
/// When the keys of a build cannot be told from its rows.
fn apply(
    cx: &Context<'_>,
    job: &mut JobBuilder,
    join: (&logical::Join, Form),
    relations: [&Relation; 2],
    sides: &mut [Side; 2],
    reach: &Reach,
) -> Result<(), LowerError> {
    if reach.way == Some(Replication::Pull) {
        let from = sides[reach.build].finished.edges[0].from;
        if let Some(pulled) = pullable(job, &sides[reach.build]) {
            job.operators[from].kind = OperatorKind::Source(pulled);
        }
    }
    if reach.is_open {
        key_filter::add(cx, job, join, relations, sides, reach.build)?;
    }
    Ok(())
}

/// The relation that a join emits. `columns` are the columns of the probe side and of the build
/// side, each with its expression over the rows of the join.
fn relation(
    operator: usize,
    (kind, probe): (JoinKind, usize),
    (schema, mark): (&SchemaRef, Option<Field>),
    columns: [Vec<(Column, Expr)>; 2],
    node: &logical::Join,
) -> Result<Relation, LowerError> {
    let names = names_of(&columns.concat());
    let [of_probe, of_build] = columns;
    let mut outputs = match kind {
        JoinKind::LeftSemi | JoinKind::LeftAnti => of_probe,
        JoinKind::RightSemi | JoinKind::RightAnti => of_build,
        _ if probe == 0 => [of_probe, of_build].concat(),
        _ => [of_build, of_probe].concat(),
    };
    let column = node.schema.columns().pop();
    outputs.extend(column.zip(mark).map(|(column, mark)| (column, own(mark.name()))));
    let (columns, exprs): (Vec<Column>, Vec<Expr>) = outputs.into_iter().unzip();
    let mut relation = Relation::of_operator(operator, schema.clone(), columns, exprs)?;
    relation.names = names;
    Ok(relation)
}

/// Adds the operator of a join.
fn add(
    job: &mut JobBuilder,
    mut spec: HashJoin,
    sides: &[Side; 2],
    reach: Reach,
    shown: &[Vec<String>; 2],
) -> usize {
    let [probe, build] = [1 - reach.build, reach.build];
    let mut labels = Labels::default();
    for (side, columns) in [probe, build].into_iter().zip(shown) {
        let (reason, costs) = (reach.reasons[side].clone(), reach.costs[side].clone());
        let rows_estimate = sides[side].rows_estimate;
        labels.inputs.push(InputLabels { columns: columns.clone(), reason, costs, rows_estimate });
    }
    let shown = spec.both.fields().iter().zip(shown.concat());
    let emitted = shown.filter(|(field, _)| spec.schema.index_of(field.name()).is_ok());
    labels.columns = emitted.map(|(_, name)| name).collect();
    labels.columns.extend((spec.variant == Variant::Mark).then(|| "mark".to_owned()));
    let edges: Vec<Vec<Edge>> =
        [probe, build].iter().map(|&side| sides[side].finished.edges.clone()).collect();
    if reach.is_open && spec.exchange == Exchange::Shuffle && !spec.is_replicated() {
        let stay = Placements::of(&job.operators).stay(&edges, &spec);
        for (side, stays) in stay.into_iter().enumerate() {
            // `NOT IN` asks about all rows of the build, so the workers exchange its status.
            if stays && !(side == BUILD && spec.variant == Variant::NullAware) {
                spec.sides[side].distribution = Distribution::Local;
                labels.inputs[side].reason = Some(Reason::together());
            }
        }
    }
    job.add("HashJoin".into(), edges, OperatorKind::HashJoin(Box::new(spec)), labels)
}

/// The kind of a join if its probe side were the left one.
fn seen_by(kind: JoinKind, probe: usize) -> JoinKind {
    use JoinKind::{Full, Inner, Left, LeftAnti, LeftSemi, Right, RightAnti, RightSemi};
    match kind {
        kind if probe == 0 => kind,
        Inner => Inner,
        Full => Full,
        Left => Right,
        Right => Left,
        LeftSemi => RightSemi,
        RightSemi => LeftSemi,
        LeftAnti => RightAnti,
        RightAnti => LeftAnti,
    }
}

/// Whether rows can be joined by values of a type.
fn is_key(data_type: &DataType) -> bool {
    aggregates::is_key(data_type)
        || matches!(data_type, DataType::LargeBinary | DataType::BinaryView)
}

/// The keys of both sides, of the same types.
fn keys(
    cx: &Context<'_>,
    left: &Relation,
    right: &Relation,
    on: On,
) -> Result<[Vec<Expr>; 2], LowerError> {
    let mut keys = [vec![], vec![]];
    for (l, r) in on {
        let of_left = l.get_type(&left.scan).map_err(|e| cx.report(&e))?;
        let of_right = r.get_type(&right.scan).map_err(|e| cx.report(&e))?;
        if let Some(of) = [&of_left, &of_right].into_iter().find(|of| !is_key(of)) {
            let reason = format!("rows cannot be joined by values of {}", sql_name(of));
            return Err(Refusal::new(&["JOIN", "IN"], reason).into());
        }
        let common = if of_left == of_right {
            Some(of_left.clone())
        } else {
            comparison_coercion(&of_left, &of_right)
        };
        let Some(common) = common else {
            let (of_left, of_right) = (sql_name(&of_left), sql_name(&of_right));
            let (l, r) = (shown_expr(&l), shown_expr(&r));
            let reason = format!("{l} is {of_left}, and {r} is {of_right}: they cannot be equal");
            return Err(Refusal::new(&["JOIN", "IN"], reason).hint("CAST one of them").into());
        };
        let cast_to = |key: Expr, from: DataType| {
            if from == common { key } else { cast(key, common.clone()) }
        };
        keys[0].push(cast_to(l, of_left));
        keys[1].push(cast_to(r, of_right));
    }
    Ok(keys)
}

/// Ends one side: its columns and keys arrive.
fn arriving(
    cx: &Context<'_>,
    job: &mut JobBuilder,
    (relation, side): (&Relation, usize),
    keys: &[Expr],
) -> Result<Side, LowerError> {
    let mut requested = RequestedColumns::default();
    let outputs: Vec<usize> =
        relation.outputs.iter().map(|(_, expr)| requested.index(expr)).collect();
    let keys: Vec<usize> = keys.iter().map(|key| requested.index(key)).collect();
    let finished = pipeline::finish(cx, job, relation, &requested.0, None)?;
    let all = |places: Vec<usize>| places.into_iter().map(|at| finished.places[at]).collect();
    let (outputs, keys): (Vec<usize>, Vec<usize>) = (all(outputs), all(keys));
    let places = Places { outputs, at: keys.first().copied().unwrap_or_default(), keys };
    let named = name(relation, side);
    // DataFusion has named a subquery of a condition.
    let name = if named.starts_with("__") { "subquery".into() } else { named };
    Ok(Side { name, places, finished, rows_estimate: None })
}

/// How the rows of both sides meet.
struct Reach {
    /// The side that is looked up.
    build: usize,
    /// By side: the distribution of its rows, the reason, and the costs of the alternatives.
    distributions: [Distribution; 2],
    reasons: [Option<Reason>; 2],
    costs: [Vec<Cost>; 2],
    exchange: Exchange,
    /// How the build gets to each process, if it is replicated.
    way: Option<Replication>,
    /// Whether neither a setting nor a hint decides how rows meet.
    is_open: bool,
}

impl Reach {
    /// By key, for these reasons.
    fn by_key(build: usize, exchange: Exchange, reasons: [Option<Reason>; 2]) -> Self {
        let distributions = [Distribution::Hash; 2];
        let costs = [vec![], vec![]];
        let (way, is_open) = (None, false);
        Self { build, distributions, reasons, costs, exchange, way, is_open }
    }

    /// Replicated; the rows of the other side stay, or go to all workers in turn if one worker has
    /// all of them.
    fn replicated(
        (build, way): (usize, Replication),
        reason: Option<Reason>,
        probe: &SideStatistics<'_>,
    ) -> Self {
        let (distribution, why) = if probe.spread {
            (Distribution::Local, "rows stay, and every worker has the build")
        } else {
            let why = "one worker has all rows; they are spread, and every worker has the build";
            (Distribution::RoundRobin, why)
        };
        let mut distributions = [distribution; 2];
        distributions[build] = Distribution::Broadcast;
        let mut reasons = [None, None];
        reasons[1 - build] = Some(Reason::Planner(why.into()));
        reasons[build] = reason;
        let (exchange, costs) = (Exchange::Shuffle, [vec![], vec![]]);
        let (way, is_open) = (Some(way), false);
        Self { build, distributions, reasons, costs, exchange, way, is_open }
    }
}

/// The scan of a side as each process reads all of it, where that is possible: the side is a scan
/// of shared memory, which no other operator reads.
fn pullable(job: &JobBuilder, side: &Side) -> Option<Scan> {
    let [edge] = side.finished.edges.as_slice() else { return None };
    match &job.operators[edge.from].kind {
        OperatorKind::Source(scan) => scan.pulled(),
        _ => None,
    }
}

/// Chooses the build side of a join, and the exchange of both sides.
///
/// # Errors
/// When a hint cannot be obeyed.
fn reach(
    cx: &Context<'_>,
    job: &JobBuilder,
    form: Form,
    sides: &[Side; 2],
) -> Result<Reach, LowerError> {
    let (workers, settings) = (cx.lowering.workers, cx.lowering.settings);
    let may = May::of(form.kind);
    let names = sides.each_ref().map(|side| side.name.clone());
    let not_pulled = sides.each_ref().map(|side| match pullable(job, side) {
        Some(_) => None,
        None => Some(NO_POOL_TABLE),
    });
    let asking = Asking { names: &names, keyless: false, may, not_pulled };
    let wish = broadcast::asked_for(&cx.hints, &asking)?;
    let known = known(cx, job, workers, sides);
    let build = form.build().unwrap_or_else(|| smaller(&known));
    if let Some(Wish::Replicate { side, way, reason }) = wish {
        return Ok(match workers.total() {
            1 => Reach::by_key(side, Exchange::Forward, of_side(side, Some(reason))),
            _ => {
                let costs = broadcast::costs(&known, workers, false);
                let reach = Reach::replicated((side, way), Some(reason), &known[1 - side]);
                Reach { costs, ..reach }
            }
        });
    }
    let reasons = match wish {
        Some(Wish::Shuffle(reasons)) => Some(reasons),
        _ => None,
    };
    let edges = sides.each_ref().map(|side| side.finished.edges.clone());
    let keys = sides.each_ref().map(|side| side.places.keys.as_slice());
    let together = workers.total() > 1 && form.variant != Variant::NullAware && {
        Placements::of(&job.operators).fits(&edges, &keys).is_some()
    };
    let possible = [Exchange::Shuffle, Exchange::UpPar, Exchange::Forward];
    let hinted = cx.hints.obey_exchange(&possible, workers.total() == 1 || together)?;
    if workers.total() == 1 {
        return Ok(Reach::by_key(build, Exchange::Forward, reasons.unwrap_or([None, None])));
    }
    if let Some((exchange, reason)) = hinted {
        return Ok(Reach::by_key(build, exchange, [Some(reason.clone()), Some(reason)]));
    }
    if let Some(reasons) = reasons {
        return Ok(Reach::by_key(build, Exchange::Shuffle, reasons));
    }
    if let ExchangeChoice::Fixed(exchange @ (Exchange::Shuffle | Exchange::UpPar)) =
        settings.exchange
    {
        let reason = Some(Reason::Setting(format!("millstream.exchange = '{exchange}'")));
        return Ok(Reach::by_key(build, exchange, [reason.clone(), reason]));
    }
    if together {
        let reason = Some(Reason::together());
        return Ok(Reach::by_key(build, Exchange::Forward, [reason.clone(), reason]));
    }
    let costs = broadcast::costs(&known, workers, false);
    let bytes_max = settings.job.state_bytes_max as u64 / 2;
    Ok(match cheaper(may.sides, &known, workers, bytes_max) {
        Some(Cheaper { side, way, why }) => {
            let reason = Some(Reason::Planner(why));
            Reach { costs, ..Reach::replicated((side, way), reason, &known[1 - side]) }
        }
        None => {
            let why = why_by_key(may, &known, bytes_max);
            let reasons = of_side(build, why.map(Reason::Planner));
            Reach { costs, is_open: true, ..Reach::by_key(build, Exchange::Shuffle, reasons) }
        }
    })
}

/// The reasons of both sides, of which one has any.
fn of_side(side: usize, reason: Option<Reason>) -> [Option<Reason>; 2] {
    let mut reasons = [None, None];
    reasons[side] = reason;
    reasons
}

/// The statistics of both sides.
fn known<'a>(
    cx: &Context<'_>,
    job: &JobBuilder,
    workers: Workers,
    sides: &'a [Side; 2],
) -> [SideStatistics<'a>; 2] {
    let given = Statistics::of(&job.operators, workers.total());
    let bytes_max = cx.lowering.settings.job.state_bytes_max as u64 / 2;
    [0, 1].map(|at| {
        let side = &sides[at];
        let rows = Statistics::along(&side.finished.edges, &given);
        let measured = rows.bytes_estimate(&side.finished.schema);
        let bytes = cx.sizes.map(|sizes| sizes[at]).or(measured);
        let pulled = pullable(job, side).filter(|_| workers.nodes > 1);
        // A pulled build is not written to a disk: it fits even if no filter drops a row.
        let most = rows.bytes(&side.finished.schema).unwrap_or(u64::MAX);
        let fits = |read: &u64| most.max(*read) <= bytes_max;
        let reads = pulled.as_ref().and_then(|scan| scan.source.shared_reads());
        let pulled = pulled.and_then(|scan| read_bytes(&scan)).filter(fits);
        let (name, spread) = (&side.name, rows.spread);
        SideStatistics { name, bytes, ends: true, spread, pulled, reads }
    })
}

/// Bytes that are read of a scan, if they are known.
fn read_bytes(scan: &Scan) -> Option<u64> {
    scan.splits(1).ok()?.iter().map(|split| split.bytes).sum()
}
