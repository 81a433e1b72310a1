//! `GROUPING SETS`, `ROLLUP` and `CUBE`.
//!
//! Each row comes out of a step once for each set, with NULL for the keys that the set lacks and
//! the number of the set; what follows is a plain grouping by the keys and that number. So the
//! input is read once, rows meet on every exchange as in any grouping, and a key that is NULL
//! itself is told apart from one that the set lacks.
//!
//! DataFusion has resolved `GROUPING(…)` into arithmetic on that number, `__grouping_id`: its low
//! bits say which keys are lacking, the last key's the lowest, and what is above them tells sets
//! apart that are the same.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use dataflow::job::Step;
use datafusion::common::Column;
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::{self as logical, Expr, GroupingSet};

use crate::expr::own::own;
use crate::lower::builder::JobBuilder;
use crate::lower::context::Context;
use crate::lower::expand;
use crate::lower::expand::{InSets, SET_NUMBER};
use crate::lower::grouping::for_ever;
use crate::lower::relation::{LowerError, Relation};
use crate::lower::session;
use crate::text::refusal::Refusal;

/// How many grouping sets a row may come out of a step for: a batch grows by as much.
const SETS_MAX: usize = 64;

/// How many keys: the number of a set has a bit for each, and some that tell equal sets apart.
const KEYS_MAX: usize = 56;

/// Words to point at.
const WORDS: [&str; 3] = ["ROLLUP", "CUBE", "GROUPING"];

/// The rows of a grouping and what they are grouped by. With grouping sets, the rows come once
/// for each set, and are grouped by the keys as each set has them and by the set.
pub(crate) fn in_sets(
    cx: &Context<'_>,
    job: &mut JobBuilder,
    relation: Relation,
    aggregate: &logical::Aggregate,
) -> Result<(Relation, Vec<Expr>), LowerError> {
    let [Expr::GroupingSet(grouping)] = &aggregate.group_expr[..] else {
        return Ok((relation, aggregate.group_expr.clone()));
    };
    let (keys, sets) = (grouping.distinct_expr(), sets_of(grouping)?);
    if keys.len() > KEYS_MAX {
        let reason = format!("{} keys are more than {KEYS_MAX}, the most of sets", keys.len());
        return Err(Refusal::new(&WORDS, reason).into());
    }
    let lacking: Vec<&Expr> =
        keys.iter().copied().filter(|key| sets.iter().any(|set| !set.contains(key))).collect();
    let relation = windows_in_sets(cx, job, relation, &keys, &lacking)?;
    if sets.iter().any(Vec::is_empty) {
        let reason = "an empty grouping set has a group even if there are no rows";
        return Err(Refusal::new(&WORDS, reason).into());
    }
    let numbered = numbered(&keys, &lacking, &sets);
    let number = aggregate.schema.field(keys.len()).data_type().clone();
    let computed = lacking.iter().map(|key| relation.rewrite(key));
    let computed = computed.collect::<Result<Vec<_>, _>>()?;
    let names = names_of(&lacking);
    let make = |before: &SchemaRef, places: &[usize]| -> DfResult<Arc<dyn Step>> {
        Ok(Arc::new(InSets::new(before, places, &names, numbered, number)))
    };
    let mut relation = expand::expanded(cx, job, relation, &computed, make, |_| None)?;
    for name in names.iter().map(String::as_str).chain([SET_NUMBER]) {
        relation.outputs.push((Column::new_unqualified(name), own(name)));
    }
    let of_set = |key: &&Expr| match lacking.iter().position(|lacking| lacking == key) {
        Some(at) => own(&names[at]),
        None => (*key).clone(),
    };
    let groups = keys.iter().map(of_set).chain([own(SET_NUMBER)]);
    Ok((relation, groups.collect()))
}

/// Materializes the windows of rows where a set lacks their bounds or they depend on other rows.
fn windows_in_sets(
    cx: &Context<'_>,
    job: &mut JobBuilder,
    relation: Relation,
    keys: &[&Expr],
    lacking: &[&Expr],
) -> Result<Relation, LowerError> {
    let windows = |keys: &[&Expr]| keys.iter().filter(|key| relation.bound(key).is_some()).count();
    let (all, lacked) = (windows(keys), windows(lacking));
    if !cx.bounded && lacked == all {
        return Err(match all {
            0 => for_ever(false),
            _ => Refusal::new(&WORDS, "a grouping set without a window never ends")
                .hint("GROUP BY window_start, window_end, and the sets of the other keys"),
        }
        .into());
    }
    if lacked > 0 || relation.multi_window.is_none() {
        session::materialized(cx, job, relation)
    } else {
        Ok(relation)
    }
}

/// The names behind the step of keys that some set lacks.
fn names_of(lacking: &[&Expr]) -> Vec<String> {
    let mut names: Vec<String> = vec![];
    for key in lacking {
        let name = match key {
            Expr::Column(column) => column.name.clone(),
            other => other.human_display().to_string(),
        };
        let name = format!("{name} or NULL");
        let name = if names.contains(&name) { format!("{name} {}", names.len()) } else { name };
        names.push(name);
    }
    names
}

/// The sets of keys; `ROLLUP` and `CUBE` are short for some.
fn sets_of(grouping: &GroupingSet) -> Result<Vec<Vec<&Expr>>, Refusal> {
    let count = match grouping {
        GroupingSet::GroupingSets(sets) => sets.len(),
        GroupingSet::Rollup(keys) => keys.len() + 1,
        GroupingSet::Cube(keys) => 1usize.checked_shl(keys.len() as u32).unwrap_or(usize::MAX),
    };
    if count > SETS_MAX {
        let reason =
            format!("{count} grouping sets are more than {SETS_MAX}, the most that stream");
        return Err(
            Refusal::new(&WORDS, reason).hint("name those that you need: GROUPING SETS (…)")
        );
    }
    Ok(match grouping {
        GroupingSet::GroupingSets(sets) => sets.iter().map(|set| set.iter().collect()).collect(),
        GroupingSet::Rollup(keys) => {
            (0..=keys.len()).rev().map(|count| keys[..count].iter().collect()).collect()
        }
        GroupingSet::Cube(keys) => {
            let of = |set: usize| {
                let has = keys.iter().enumerate().filter(|(at, _)| set >> at & 1 == 0);
                has.map(|(_, key)| key).collect()
            };
            (0..count).map(of).collect()
        }
    })
}

/// Of each set which of the keys that some set lacks it lacks, and its number.
fn numbered(keys: &[&Expr], lacking: &[&Expr], sets: &[Vec<&Expr>]) -> Vec<(Vec<bool>, u64)> {
    let mut numbered: Vec<(Vec<bool>, u64)> = vec![];
    for set in sets {
        let mask = keys.iter().fold(0, |mask, key| mask << 1 | u64::from(!set.contains(key)));
        let same = numbered.iter().filter(|(_, number)| low_bits(*number, keys.len()) == mask);
        let number = mask | (same.count() as u64) << keys.len();
        numbered.push((lacking.iter().map(|key| !set.contains(key)).collect(), number));
    }
    numbered
}

fn low_bits(number: u64, count: usize) -> u64 {
    number & ((1 << count) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::logical_expr::col;

    #[test]
    fn sets_are_numbered_as_grouping_reads_them() {
        let (a, b, c) = (col("a"), col("b"), col("c"));
        let grouping = GroupingSet::GroupingSets(vec![
            vec![a.clone(), b.clone(), c.clone()],
            vec![a.clone(), c.clone()],
            vec![a.clone(), c],
            vec![a.clone()],
        ]);
        let sets = sets_of(&grouping).expect("they are few");
        let keys = grouping.distinct_expr();
        let numbers: Vec<u64> =
            numbered(&keys, &keys[1..], &sets).into_iter().map(|(_, number)| number).collect();
        assert_eq!(numbers, [0b000, 0b010, 0b1010, 0b011]);

        let cube = GroupingSet::Cube(vec![a.clone(), b.clone()]);
        let sizes = |grouping: &GroupingSet| -> Vec<usize> {
            sets_of(grouping).expect("they are few").iter().map(Vec::len).collect()
        };
        assert_eq!(sizes(&cube), [2, 1, 1, 0]);
        assert_eq!(sizes(&GroupingSet::Rollup(vec![a, b])), [2, 1, 0]);
        let many = GroupingSet::Cube((0..64).map(|at| col(format!("c{at}"))).collect());
        assert!(sets_of(&many).is_err());
    }
}
