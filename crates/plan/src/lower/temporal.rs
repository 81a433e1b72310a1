//! Temporal joins: each row of a stream with the version of a table at its time.
//!
//! [`crate::logical::as_of`] has made a condition of what the user wrote, and here it is
//! recognised.
//!
//! A condition on the table alone speaks of the version that a row meets. DataFusion moves it in
//! front of the join, where it would choose among versions; it is moved back. What a subquery on
//! the right filters stays there ([`crate::logical::rewrite::versions`]).

use std::sync::Arc;

use arrow::datatypes::{DataType, SchemaRef, TimeUnit};
use dataflow::keyed::{JoinKind, TemporalJoin, TimedSide};
use datafusion::common::Column;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::logical_expr::utils::split_conjunction;
use datafusion::logical_expr::{Expr, ExprSchemable};

use crate::expr::own::own;
use crate::logical::as_of::{FORM, asof, is_asked, times};
use crate::logical::rewrite::versions::is_marked;
use crate::lower::broadcast::May;
use crate::lower::builder::JobBuilder;
use crate::lower::context::Context;
use crate::lower::join;
use crate::lower::join::{On, Places};
use crate::lower::relation::{LowerError, Relation};
use crate::text::interval::tick_ns;
use crate::text::refusal::Refusal;
use crate::text::syntax::is_word;

/// The prefix of columns that a condition on the versions needs behind the join.
const HIDDEN: &str = "__as_of_";

/// The condition of a temporal join.
struct Asked {
    row: Expr,
    version: Expr,
    /// Whether the version must be earlier than the row.
    earlier: bool,
    rest: Vec<Expr>,
}

/// A join with versions.
pub(crate) fn versioned(
    cx: &Context<'_>,
    job: &mut JobBuilder,
    kind: JoinKind,
    [left, mut right]: [Relation; 2],
    on: On,
    filter: &Expr,
) -> Result<Relation, LowerError> {
    let Asked { row, version, earlier, rest } = asked(filter)?;
    if !matches!(kind, JoinKind::Inner | JoinKind::Left) {
        let message = "only JOIN and LEFT JOIN take the version at a row's time";
        return Err(no_versions(message, form(cx)));
    }
    if on.is_empty() {
        let message = "which version a row meets is not said by a key";
        return Err(no_versions(message, form(cx)));
    }
    if right.names_all(&row) && left.names_all(&version) {
        let message = "a row meets the latest version up to its time, not the next one";
        return Err(no_versions(message, form(cx)));
    }
    let moved = behind(&mut right, &on);
    if kind == JoinKind::Left && !(moved.is_empty() && rest.is_empty()) {
        let message = "a LEFT JOIN with versions takes equal keys and nothing else";
        return Err(no_versions(message, "filter with WHERE, or in the SELECT with CASE"));
    }
    let at = [left.rewrite(&row)?, right.rewrite(&version)?];
    let unit = unit_of(cx, &at, &left, &right, [&row, &version])?;
    for name in columns_of(&moved) {
        let hidden = Column::new_unqualified(format!("{HIDDEN}{name}"));
        right.outputs.push((hidden, own(&name)));
    }

    let [row, version] = at;
    let at = [(row.clone(), Some(row)), (version.clone(), Some(version))];
    let mut spec = join::join_spec(cx, job, JoinKind::Inner, &[left, right], on, at, None)?;
    spec.may = May::versions();
    let side = |(places, schema): &(Places, SchemaRef)| TimedSide {
        schema: schema.clone(),
        keys: places.keys.clone(),
        time: places.at,
    };
    let [l, r] = &spec.sides;
    let operator = TemporalJoin {
        sides: [side(l), side(r)],
        outer: kind == JoinKind::Left,
        earlier,
        schema: spec.both.clone(),
    };
    let time = own(spec.both.field(l.0.at).name());
    let often = (100_000_000 / tick_ns(unit)).max(1);
    let mut relation = join::met(cx, job, spec, Arc::new(operator), often, 1)?;
    relation.times = vec![time];
    for part in rest.into_iter().chain(moved.iter().map(hidden)) {
        relation = relation.filter(&part)?;
    }
    relation.outputs.retain(|(column, _)| !column.name.starts_with(HIDDEN));
    Ok(relation)
}

/// The condition, and what else is asked.
fn asked(filter: &Expr) -> Result<Asked, LowerError> {
    let (mut asked, mut rest) = (None, vec![]);
    for part in split_conjunction(filter) {
        match times(part) {
            Some((row, version, earlier)) if asked.is_none() => {
                asked = Some((row.clone(), version.clone(), earlier));
            }
            _ => rest.push(part.clone()),
        }
    }
    match asked.filter(|_| !rest.iter().any(is_asked)) {
        Some((row, version, earlier)) => Ok(Asked { row, version, earlier, rest }),
        None => {
            let message = "the condition of the join has OR in it";
            Err(no_versions(message, "put it in brackets"))
        }
    }
}

/// The unit of the times of both sides, if these are their event times.
fn unit_of(
    cx: &Context<'_>,
    at: &[Expr; 2],
    left: &Relation,
    right: &Relation,
    named: [&Expr; 2],
) -> Result<TimeUnit, LowerError> {
    let of = [(left, "stream"), (right, "versions")];
    for ((at, named), (side, what)) in at.iter().zip(named).zip(of) {
        if !side.times.contains(at) {
            let name = named.human_display();
            let message = format!("'{name}' is not the event time of the {what}");
            return Err(no_versions(&message, "name the column of its WATERMARK"));
        }
    }
    let types = [at[0].get_type(&left.scan), at[1].get_type(&right.scan)];
    let [l, r] = types.map(|of| of.map_err(|e| cx.report(&e)));
    match (l?, r?) {
        (DataType::Timestamp(unit, zone), r) if r == DataType::Timestamp(unit, zone.clone()) => {
            Ok(unit)
        }
        _ => {
            let message = "the times of the stream and of the versions are of different types";
            Err(no_versions(message, "declare both columns as TIMESTAMP(3)"))
        }
    }
}

/// An error rather than a refusal: nothing else can do the join.
fn no_versions(message: &str, hint: &str) -> LowerError {
    Refusal::new(&["SYSTEM_TIME", "ASOF"], message).hint(hint).always().into()
}

/// The form of join that was written.
fn form(cx: &Context<'_>) -> &'static str {
    let asof = cx.lowering.around.tokens.iter().any(|token| is_word(token, "ASOF"));
    if asof { asof::FORM } else { FORM }
}

/// Takes the conditions of the versions that are asked of the one that a row meets. Those of keys
/// alone let all versions of a key through or none, and stay; so do those that choose among
/// versions.
fn behind(right: &mut Relation, on: &On) -> Vec<Expr> {
    let keys: Vec<&Expr> = on.iter().map(|(_, key)| key).collect();
    let of_keys = |part: &Expr| {
        part.column_refs().into_iter().all(|column| keys.contains(&&Expr::Column(column.clone())))
    };
    let all = std::mem::take(&mut right.filters);
    let parts = all.iter().flat_map(split_conjunction).cloned();
    let (stay, moved) = parts.partition(|part| of_keys(part) || is_marked(part));
    right.filters = stay;
    moved
}

/// A condition of the table alone, behind the join.
fn hidden(part: &Expr) -> Expr {
    let named = part.clone().transform(|node| {
        Ok(match node {
            Expr::Column(column) => {
                let hidden = format!("{HIDDEN}{}", column.name);
                Transformed::yes(Expr::Column(Column::new_unqualified(hidden)))
            }
            other => Transformed::no(other),
        })
    });
    // The closure never fails, so neither does the walk.
    named.map_or_else(|_| part.clone(), |named| named.data)
}

/// The columns that conditions name, each once.
fn columns_of(conditions: &[Expr]) -> Vec<String> {
    let all = conditions.iter().flat_map(Expr::column_refs);
    let mut names: Vec<String> = all.map(|column| column.name.clone()).collect();
    names.sort();
    names.dedup();
    names
}
