//! Key filters: rows of the probe side of a join by key that have no partner do not travel.
//!
//! ```text
//! build ──▶ by key ───────────────────────────────────────▶ join
//!   └─────▶ its keys, to every worker ─▶ semi-join ─▶ by key ──▲
//!                             probe ────────▲
//! ```
//!
//! The semi-join has the keys of the whole build on each worker, so that it also tells the scan of
//! the probe side which rows are needed (see [`dataflow::probed_builds`]). It is worth its price
//! where few rows of the probe side have a partner, and the keys are fewer bytes than the rows that
//! stay.

use std::sync::Arc;

use arrow::datatypes::{Field, Schema};
use dataflow::hash_join::{HashJoin, HashJoinSide, Variant};
use dataflow::job::{Distribution, Edge, Exchange, InputLabels, Labels, OperatorKind, Reason};
use dataflow::keyed::JoinKind;
use dataflow::placement::Placements;
use dataflow::size::value_bytes;
use datafusion::logical_expr as logical;
use state::NullKeys;

use super::{Form, Side, known, seen_by};
use crate::expr::own::own;
use crate::lower::broadcast;
use crate::lower::builder::JobBuilder;
use crate::lower::context::Context;
use crate::lower::join::both_of;
use crate::lower::relation::{LowerError, Relation};
use crate::lower::step;
use crate::text::units::human;

/// The share of rows with a partner at most. A row that is looked up costs a part of one that
/// travels.
const SHARE_MAX: f64 = 0.5;

/// Bytes of rows that stay, at least: a further operator has its own price.
const SAVED_MIN: u64 = 1 << 20;

/// How many times more bytes of rows stay than bytes of keys travel, at least.
const TIMES: u64 = 2;

/// A key filter that is worth its price.
struct Worth {
    why: String,
    /// The estimated rows that have a partner.
    rows: u64,
}

/// Puts a key filter in front of the probe side of a join by key, if it is worth its price.
///
/// # Errors
/// When the keys cannot be told from the rows of the build.
pub(super) fn add(
    cx: &Context<'_>,
    job: &mut JobBuilder,
    (node, form): (&logical::Join, Form),
    relations: [&Relation; 2],
    sides: &mut [Side; 2],
    build: usize,
) -> Result<(), LowerError> {
    let Some(worth) = worth(cx, job, (node, form), sides, build) else { return Ok(()) };
    let [of_probe, of_build] = [&sides[1 - build], &sides[build]];
    let all = &of_build.finished.schema;
    let keys: Vec<Field> = of_build.places.keys.iter().map(|&key| all.field(key).clone()).collect();
    let exprs: Vec<_> = keys.iter().map(|key| own(key.name())).collect();
    let schema = Arc::new(Schema::new(keys));
    let only_keys = step::compile(all, None, &exprs, schema.clone(), &[]);
    let only_keys = only_keys.map_err(|e| cx.report(&e))?;
    let narrowed = |edge: &Edge| {
        let step = dataflow::step::chain(edge.step.clone(), only_keys.clone());
        Edge { step, ..edge.clone() }
    };
    let rows = of_probe.finished.schema.clone();
    let side = |name: &str, schema, keys, distribution| HashJoinSide {
        name: name.to_owned(),
        schema,
        keys,
        distribution,
    };
    let places = (0..schema.fields().len()).collect();
    let spec = HashJoin {
        both: both_of(&rows, &schema),
        sides: [
            side(&of_probe.name, rows.clone(), of_probe.places.keys.clone(), Distribution::Local),
            side(&of_build.name, schema, places, Distribution::Broadcast),
        ],
        is_pulled: false,
        multicast: None,
        exchange: Exchange::Shuffle,
        nulls: form.nulls,
        kind: JoinKind::LeftSemi,
        variant: Variant::Plain,
        on: None,
        schema: rows,
    };
    let shown = of_probe.places.shown(relations[1 - build], &of_probe.finished);
    let of_keys = of_build.places.shown(relations[build], &of_build.finished);
    let of_keys = of_build.places.keys.iter().map(|&key| of_keys[key].clone()).collect();
    let input = |columns: Vec<String>, why: String, rows_estimate| {
        let reason = Some(Reason::Planner(why));
        InputLabels { columns, reason, costs: vec![], rows_estimate }
    };
    let stay = "rows stay, and every worker has the keys".to_owned();
    let labels = Labels {
        inputs: vec![
            input(shown.clone(), stay, of_probe.rows_estimate),
            input(of_keys, worth.why, of_build.rows_estimate),
        ],
        columns: shown,
        rows_estimate: cx.lowering.shows_rows.then_some(worth.rows),
        ..Labels::default()
    };
    let edges = vec![
        of_probe.finished.edges.clone(),
        of_build.finished.edges.iter().map(narrowed).collect(),
    ];
    let operator =
        job.add("HashJoin".into(), edges, OperatorKind::HashJoin(Box::new(spec)), labels);
    let edge = Edge { from: operator, step: None, timed: false, lateness: 0 };
    sides[1 - build].finished.edges = vec![edge];
    Ok(())
}

/// Whether a key filter is worth its price, by estimates of both sides.
fn worth(
    cx: &Context<'_>,
    job: &JobBuilder,
    (node, form): (&logical::Join, Form),
    sides: &[Side; 2],
    build: usize,
) -> Option<Worth> {
    let probe = 1 - build;
    // A row that is emitted without a partner has to reach the join.
    let drops = matches!(
        seen_by(form.kind, probe),
        JoinKind::Inner
            | JoinKind::LeftSemi
            | JoinKind::Right
            | JoinKind::RightSemi
            | JoinKind::RightAnti
    );
    if !drops || form.variant != Variant::Plain || form.nulls != NullKeys::Nothing {
        return None;
    }
    let (workers, statistics) = (cx.lowering.workers, &cx.lowering.statistics);
    let [of_probe, of_build] = [probe, build].map(|side| &sides[side]);
    let (edges, keys) = (&of_probe.finished.edges, &of_probe.places.keys);
    if Placements::of(&job.operators).fits(std::slice::from_ref(edges), &[keys]).is_some() {
        return None;
    }
    let inputs = [&node.left, &node.right];
    statistics.known_rows(inputs[probe])?;
    let rows = statistics.known_rows(inputs[build])?;
    let types = of_build.finished.schema.fields();
    let bytes = of_build.places.keys.iter().map(|&key| value_bytes(types[key].data_type()));
    let keys = (rows * bytes.sum::<u64>() as f64) as u64;
    let copied = broadcast::copied(keys, workers);
    let share = statistics.share_with_partner(node, probe);
    let moved = known(cx, job, workers, sides)[probe].moved(workers)?;
    let saved = (moved as f64 * (1.0 - share)) as u64;
    let bytes_max = cx.lowering.settings.job.state_bytes_max as u64 / 2;
    let is_worth = share <= SHARE_MAX
        && saved >= SAVED_MIN.max(copied.saturating_mul(TIMES))
        && keys <= bytes_max;
    is_worth.then(|| Worth {
        why: format!(
            "its keys, so that rows without a partner stay: {} instead of {}",
            human(copied),
            human(saved)
        ),
        rows: (of_probe.rows_estimate.unwrap_or_default() as f64 * share) as u64,
    })
}
