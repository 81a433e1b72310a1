//! The cheapest order of joins: by dynamic programming over connected sets of relations, or
//! greedily if there are many relations.
//!
//! A set is a bit for each relation. Sets without a condition between them are joined last, by a
//! cross product.

use std::collections::BTreeMap;

/// Parts at most for an exhaustive search: 3¹² pairs of sets.
pub(crate) const EXHAUSTIVE_MAX: usize = 12;

/// Relations of a block at most; larger blocks keep the order in which they are written.
pub(crate) const RELATIONS_MAX: usize = 64;

/// Cycles to put a row into the hash table of a join, to look up its partners, and to write a row
/// of the result.
const BUILD_CYCLES: f64 = 20.0;
const PROBE_CYCLES: f64 = 5.0;
const EMIT_CYCLES: f64 = 3.0;

/// Cycles to send a byte to another worker.
const MOVE_CYCLES: f64 = 0.5;

/// Some of the relations.
pub(crate) type Set = u64;

/// The relations that are joined.
pub(crate) trait Relations {
    /// The number of relations.
    fn count(&self) -> usize;

    /// The relations that have an equality with a relation of `set`; relations of `set` may be
    /// among them.
    fn beside(&self, set: Set) -> Set;

    /// The estimated rows of the join of a set, independent of the order of its joins.
    fn rows(&self, set: Set) -> f64;

    /// The estimated bytes of a row of the join of a set.
    fn width(&self, set: Set) -> f64;

    /// The number of workers that join them.
    fn workers(&self) -> u32;
}

/// An order of joins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum JoinTree {
    /// The relation of this number.
    Relation(usize),
    /// The rows of the left side, the probe, look up the rows of the right side, the build.
    Join(Box<JoinTree>, Box<JoinTree>),
}

/// An order with its cost.
#[derive(Debug, Clone)]
pub(crate) struct JoinOrder {
    pub(crate) tree: JoinTree,
    pub(crate) cost: f64,
    /// Pairs of sets that were compared.
    pub(crate) looked_at: usize,
}

/// A part of an order.
#[derive(Debug, Clone)]
struct Part {
    set: Set,
    tree: JoinTree,
    cost: f64,
}

impl JoinTree {
    /// Its relations.
    pub(crate) fn set(&self) -> Set {
        match self {
            JoinTree::Relation(at) => 1 << at,
            JoinTree::Join(left, right) => left.set() | right.set(),
        }
    }

    /// Joins relations one after another; the first is the probe.
    pub(crate) fn of_sequence(relations: &[usize]) -> Option<Self> {
        let each = relations.iter().map(|&at| JoinTree::Relation(at));
        each.reduce(|left, right| JoinTree::Join(Box::new(left), Box::new(right)))
    }

    /// Whether each of its joins has a condition.
    pub(crate) fn is_connected(&self, relations: &dyn Relations) -> bool {
        let JoinTree::Join(left, right) = self else { return true };
        relations.beside(left.set()) & right.set() != 0
            && left.is_connected(relations)
            && right.is_connected(relations)
    }
}

/// The cost of an order.
pub(crate) fn cost(relations: &dyn Relations, tree: &JoinTree) -> f64 {
    match tree {
        JoinTree::Relation(_) => 0.0,
        JoinTree::Join(left, right) => {
            let sides = [left.set(), right.set()];
            cost(relations, left) + cost(relations, right) + cost_of_join(relations, sides)
        }
    }
}

/// The same order, in which the larger side of each join is the probe.
pub(crate) fn oriented(relations: &dyn Relations, tree: &JoinTree) -> JoinTree {
    let JoinTree::Join(left, right) = tree else { return tree.clone() };
    let [left, right] = [left, right].map(|side| Box::new(oriented(relations, side)));
    if relations.rows(left.set()) >= relations.rows(right.set()) {
        JoinTree::Join(left, right)
    } else {
        JoinTree::Join(right, left)
    }
}

/// The cost of a join without the cost of its sides, in cycles of all workers. The smaller side is
/// the build and the larger one the probe. Either the smaller side is sent to all workers or both
/// sides are sent by their keys, whichever is cheaper.
fn cost_of_join(relations: &dyn Relations, sides: [Set; 2]) -> f64 {
    let [one, other] = sides.map(|side| relations.rows(side));
    let (build, probe) = if one < other { (one, other) } else { (other, one) };
    let rows = relations.rows(sides[0] | sides[1]);
    let [one, other] = sides.map(|side| relations.rows(side) * relations.width(side));
    let copies = f64::from(relations.workers()) - 1.0;
    let to_all = one.min(other) * copies;
    let by_key = (one + other) * copies / (copies + 1.0);
    BUILD_CYCLES * build
        + PROBE_CYCLES * probe
        + EMIT_CYCLES * rows
        + MOVE_CYCLES * to_all.min(by_key)
}

/// The cheapest order in which the relations of `leading` are joined first, one after another.
/// `None` if there are no relations, or more than [`RELATIONS_MAX`].
pub(crate) fn best(relations: &dyn Relations, leading: &[usize]) -> Option<JoinOrder> {
    if relations.count() > RELATIONS_MAX {
        return None;
    }
    let first = JoinTree::of_sequence(leading);
    let given = first.as_ref().map_or(0, JoinTree::set);
    let others = (0..relations.count()).filter(|at| given & (1 << at) == 0).map(JoinTree::Relation);
    let part = |tree: JoinTree| Part { set: tree.set(), cost: cost(relations, &tree), tree };
    let parts: Vec<Part> = first.into_iter().chain(others).map(part).collect();
    let mut looked_at = 0;
    let mut joined = vec![];
    for component in components(relations, parts) {
        joined.push(if component.len() <= EXHAUSTIVE_MAX {
            exhaustive(relations, &component, &mut looked_at)?
        } else {
            greedy(relations, component, &mut looked_at)?
        });
    }
    // The largest component is the probe of all others, from the smallest one on.
    joined.sort_by(|a, b| relations.rows(a.set).total_cmp(&relations.rows(b.set)));
    let spine = joined.pop()?;
    let all = joined.into_iter().fold(spine, |one, other| join(relations, &one, &other));
    Some(JoinOrder { tree: all.tree, cost: all.cost, looked_at })
}

/// The connected components of the parts.
fn components(relations: &dyn Relations, parts: Vec<Part>) -> Vec<Vec<Part>> {
    let mut components: Vec<(Set, Vec<Part>)> = vec![];
    for part in parts {
        let beside = relations.beside(part.set);
        let (mut set, mut inside) = (part.set, vec![]);
        let mut apart = vec![];
        for (other, members) in components {
            if other & beside != 0 {
                set |= other;
                inside.extend(members);
            } else {
                apart.push((other, members));
            }
        }
        inside.push(part);
        apart.push((set, inside));
        components = apart;
    }
    components.into_iter().map(|(_, members)| members).collect()
}

/// The join of two parts: the one with more rows is the probe.
fn join(relations: &dyn Relations, one: &Part, other: &Part) -> Part {
    let (probe, build) = if relations.rows(one.set) >= relations.rows(other.set) {
        (one, other)
    } else {
        (other, one)
    };
    Part {
        set: one.set | other.set,
        tree: JoinTree::Join(Box::new(probe.tree.clone()), Box::new(build.tree.clone())),
        cost: one.cost + other.cost + cost_of_join(relations, [one.set, other.set]),
    }
}

/// The best of all orders without a cross product. The parts are one component.
fn exhaustive(relations: &dyn Relations, parts: &[Part], looked_at: &mut usize) -> Option<Part> {
    // Sets of parts, by their bits.
    let all = (1_usize << parts.len()) - 1;
    let mut best: Vec<Option<Part>> = vec![None; all + 1];
    for (at, part) in parts.iter().enumerate() {
        best[1 << at] = Some(part.clone());
    }
    for set in 1..=all {
        if set.is_power_of_two() {
            continue;
        }
        let first = set & set.wrapping_neg();
        let mut found: Option<(f64, [usize; 2])> = None;
        // Each pair once: the side that has the first part, and the other one.
        let mut side = (set - 1) & set;
        while side > 0 {
            if side & first != 0
                && let (Some(one), Some(other)) = (&best[side], &best[set ^ side])
                && relations.beside(one.set) & other.set != 0
            {
                *looked_at += 1;
                let cost = one.cost + other.cost + cost_of_join(relations, [one.set, other.set]);
                if found.is_none_or(|(least, _)| cost < least) {
                    found = Some((cost, [side, set ^ side]));
                }
            }
            side = (side - 1) & set;
        }
        best[set] = match found {
            Some((_, [one, other])) => {
                best[one].as_ref().zip(best[other].as_ref()).map(|(a, b)| join(relations, a, b))
            }
            None => None,
        };
    }
    best.pop()?
}

/// An order of many parts: the pair that emits the fewest rows is joined next. The parts are one
/// component.
fn greedy(relations: &dyn Relations, mut parts: Vec<Part>, looked_at: &mut usize) -> Option<Part> {
    // The rows of the pairs that were compared.
    let mut rows: BTreeMap<Set, f64> = BTreeMap::new();
    while parts.len() > 1 {
        let mut found: Option<(f64, [usize; 2])> = None;
        for (at, other) in parts.iter().enumerate() {
            let beside = relations.beside(other.set);
            for (before, one) in parts[..at].iter().enumerate() {
                if beside & one.set == 0 {
                    continue;
                }
                let emits = *rows.entry(one.set | other.set).or_insert_with(|| {
                    *looked_at += 1;
                    relations.rows(one.set | other.set)
                });
                if found.is_none_or(|(least, _)| emits < least) {
                    found = Some((emits, [before, at]));
                }
            }
        }
        let (_, [one, other]) = found?;
        let other = parts.remove(other);
        parts[one] = join(relations, &parts[one], &other);
    }
    parts.pop()
}

#[cfg(test)]
mod tests;
