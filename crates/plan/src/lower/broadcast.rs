//! Joins of which one side goes to every worker (W1, W2).
//!
//! Rows of equal keys meet where their key leads them. A join without an equality of keys, of
//! windows or of rows near each other, has none; so one side goes to every worker, and the rows of
//! the other stay or are spread over them: each pair meets once, on the worker of the other side's
//! row. With keys that is done where it moves far less: of a small side and a large one.
//!
//! That side must not be one of which the join asks whether a row has *no* partner: no worker would
//! know. The hint `/*+ BROADCAST(t) */` asks for a side, with equal keys or without;
//! `SET millstream.exchange = 'shuffle'`, or `'uppar'`, has rows meet by their keys, and all rows
//! of a window on one worker where there are none.

use dataflow::job::{Cost, Distribution, Exchange, Reason, Statistics, Strategy};
use dataflow::keyed::JoinKind;
use dataflow::placement::Placements;
use dataflow::source::SharedReads;

use crate::Workers;
use crate::lower::builder::JobBuilder;
use crate::lower::context::Context;
use crate::lower::hints::{BlockHints, disobeyed};
use crate::lower::join::JoinSpec;
use crate::lower::relation::{LowerError, Relation};
use crate::lower::replication::Replication;
use crate::text::hints::{Asked, Hint};
use crate::text::settings::ExchangeChoice;
use crate::text::units::human;

/// How many times less a broadcast must move than rows led by their keys. Filters are counted as if
/// all rows passed, so that numbers near each other say nothing.
const LESS: u64 = 2;

/// How the rows of a join meet.
pub(crate) enum Meet {
    /// By their keys.
    ByKey {
        /// Why, of each side, where a hint asks for it.
        reasons: [Option<Reason>; 2],
        /// The costs of that and of a broadcast, as far as known.
        costs: [Vec<Cost>; 2],
    },
    /// A side goes to every worker.
    Broadcast {
        /// Where the rows of each side go.
        distributions: [Distribution; 2],
        /// Why, of each side.
        reasons: [Reason; 2],
        costs: [Vec<Cost>; 2],
    },
}

/// The sides that can go to every worker, and why no other can.
#[derive(Clone, Copy)]
pub(crate) struct May {
    pub(crate) sides: &'static [usize],
    pub(crate) why: &'static str,
}

/// The statistics of a side.
pub(crate) struct SideStatistics<'a> {
    pub(crate) name: &'a str,
    /// Its bytes, if they are known.
    pub(crate) bytes: Option<u64>,
    pub(crate) ends: bool,
    /// Whether every worker has some of its rows.
    pub(crate) spread: bool,
    /// Bytes that a process reads to have all of it, if each of several processes can read it.
    pub(crate) pulled: Option<u64>,
    /// How they read it then, if that is known.
    pub(crate) reads: Option<SharedReads>,
}

/// A join whose hints are looked up.
pub(crate) struct Asking<'a> {
    /// The names of its sides in the query.
    pub(crate) names: &'a [String; 2],
    /// Whether it has no equal keys.
    pub(crate) keyless: bool,
    /// The sides that can go to every worker.
    pub(crate) may: May,
    /// Of each side why the processes cannot each read it, where they cannot.
    pub(crate) not_pulled: [Option<&'static str>; 2],
}

/// Why a side is not pulled that has to be read from memory that the processes share.
pub(crate) const NO_POOL_TABLE: &str =
    "each process would have to read it itself, and it is no table of the connector 'pool'";

/// Why a side is not pulled whose rows are kept by key.
const KEPT: &str = "rows of this join are kept until others come; only a table that ends is pulled";

/// How the rows of a join meet, which may be kept for an epoch if it `merges`.
///
/// # Errors
/// When a hint asks for a side that cannot go to every worker.
pub(crate) fn meet(
    cx: &Context<'_>,
    job: &JobBuilder,
    spec: &JoinSpec,
    merges: bool,
) -> Result<Meet, LowerError> {
    let (workers, settings) = (cx.lowering.workers, cx.lowering.settings);
    let by_key = || Ok(Meet::ByKey { reasons: [None, None], costs: [vec![], vec![]] });
    let keyless = spec.sides[0].0.keys.is_empty();
    let not_pulled = [Some(KEPT); 2];
    let asking = Asking { names: &spec.names, keyless, may: spec.may, not_pulled };
    let asked = match asked_for(&cx.hints, &asking)? {
        Some(Wish::Replicate { side, reason, .. }) => Some((side, reason)),
        Some(Wish::Shuffle(reasons)) => {
            return Ok(Meet::ByKey { reasons, costs: [vec![], vec![]] });
        }
        None => None,
    };
    let chosen = match cx.hints.exchange() {
        Some((exchange, _)) => ExchangeChoice::Fixed(exchange),
        None => settings.exchange,
    };
    let fixed = match chosen {
        ExchangeChoice::Fixed(Exchange::Merge) => merges,
        ExchangeChoice::Fixed(Exchange::Shuffle | Exchange::UpPar) => true,
        ExchangeChoice::Fixed(Exchange::Forward) | ExchangeChoice::Auto => false,
    };
    let [left, right] = &spec.sides;
    let keys: [&[usize]; 2] = [&left.0.keys, &right.0.keys];
    let is_open = || !fixed && !spec.may.sides.is_empty();
    if workers.total() == 1 || asked.is_none() && !is_open() {
        return by_key();
    }
    let together = || Placements::of(&job.operators).fits(&spec.edges, &keys).is_some();
    if asked.is_none() && !keyless && together() {
        return by_key();
    }
    let given = Statistics::of(&job.operators, workers.total());
    let rows: Vec<Statistics> =
        spec.edges.iter().map(|edges| Statistics::along(edges, &given)).collect();
    let known = rows.iter().zip(&spec.sides).zip(&spec.names);
    let known: Vec<SideStatistics<'_>> = known
        .map(|((rows, (_, schema)), name)| SideStatistics {
            name,
            bytes: rows.bytes(schema),
            ends: rows.ends,
            spread: rows.spread,
            pulled: None,
            reads: None,
        })
        .collect();
    let Ok(known) = <[SideStatistics<'_>; 2]>::try_from(known) else { return by_key() };
    let chosen = match &asked {
        Some((side, reason)) => {
            Chosen { side: *side, reason: reason.clone(), costs: costs(&known, workers, keyless) }
        }
        None if keyless => of_any(spec.may.sides, &known, workers),
        None => {
            let table_bytes = settings.table_bytes as u64;
            match of_small(spec.may.sides, &known, workers, table_bytes) {
                Ok(chosen) => chosen,
                Err(costs) => return Ok(Meet::ByKey { reasons: [None, None], costs }),
            }
        }
    };
    let Chosen { side, reason, costs } = chosen;
    let (distribution, stays) = if known[1 - side].spread {
        (Distribution::Local, "rows stay and meet the broadcast side")
    } else {
        (Distribution::RoundRobin, "one worker has all rows; they meet the broadcast side")
    };
    let mut distributions = [distribution; 2];
    distributions[side] = Distribution::Broadcast;
    let mut reasons = [Reason::Planner(stays.into()), Reason::Planner(stays.into())];
    reasons[side] = reason;
    Ok(Meet::Broadcast { distributions, reasons, costs })
}

/// The request of the hints of a join.
pub(crate) enum Wish {
    /// Every process has all of a side.
    Replicate { side: usize, way: Replication, reason: Reason },
    /// Rows go to the workers of their keys; why, of each side with a hint.
    Shuffle([Option<Reason>; 2]),
}

/// Whether a hint asks for the broadcast of a side, so that hints about exchanges are about other
/// joins of the block.
pub(crate) fn is_asked(hints: &BlockHints<'_>, spec: &JoinSpec) -> bool {
    let of_side = |side: usize| hints.of_side(side, &spec.names[side]);
    (0..2).filter_map(of_side).any(|hint| matches!(hint.asked, Asked::Broadcast(_)))
}

/// The request of the hints of a join.
///
/// # Errors
/// When that cannot be.
pub(crate) fn asked_for(
    hints: &BlockHints<'_>,
    asking: &Asking<'_>,
) -> Result<Option<Wish>, LowerError> {
    let hints = [0, 1].map(|side| hints.of_side(side, &asking.names[side]));
    for (side, hint) in hints.into_iter().enumerate() {
        hint.map_or(Ok(()), |hint| possible(hint, side, asking))?;
    }
    let of_side = |side: usize| Some((side, hints[side].filter(|hint| replicates(hint))?));
    match ((0..2).find_map(of_side), hints) {
        (None, [None, None]) => Ok(None),
        (None, sides) => Ok(Some(Wish::Shuffle(sides.map(|hint| hint.map(Hint::obey))))),
        (Some(_), [Some(left), Some(right)]) => {
            let (first, second) = left.in_order(right);
            let why = format!("{} is about the other side of the same join", first.text());
            Err(LowerError::Failed(Some(disobeyed(second, &why, "leave one of them out"))))
        }
        (Some((side, hint)), _) => {
            let way = match hint.asked {
                Asked::Pull(_) => Replication::Pull,
                Asked::Multicast(_) => Replication::Multicast,
                _ => Replication::Broadcast,
            };
            Ok(Some(Wish::Replicate { side, way, reason: hint.obey() }))
        }
    }
}

/// Whether a hint asks for a side that every process has.
fn replicates(hint: &Hint) -> bool {
    matches!(hint.asked, Asked::Broadcast(_) | Asked::Pull(_) | Asked::Multicast(_))
}

/// The hint for a side that cannot be pulled.
const NOT_PULLED_HELP: &str = "BROADCAST(t) and SHUFFLE(t) are about any table; a table is in a \
                               pool after CREATE TABLE … WITH ('connector' = 'pool') AS SELECT …";

/// Whether a side can go as a hint asks.
///
/// # Errors
/// When it cannot.
fn possible(hint: &Hint, side: usize, asking: &Asking<'_>) -> Result<(), LowerError> {
    let refused = |why: &str, help: &str| Err(LowerError::Failed(Some(disobeyed(hint, why, help))));
    let shared = matches!(hint.asked, Asked::Pull(_) | Asked::Multicast(_));
    if let Some(why) = asking.not_pulled[side].filter(|_| shared) {
        return refused(why, NOT_PULLED_HELP);
    }
    if !replicates(hint) {
        if asking.keyless {
            let why = "the join has no equal keys by which rows could be shuffled";
            return refused(why, "add an equality to the condition of the join");
        }
        return Ok(());
    }
    match asking.may.sides {
        sides if sides.contains(&side) => Ok(()),
        [] => refused(asking.may.why, "leave the hint out"),
        [other, ..] => {
            let other = &asking.names[*other];
            let help = match &hint.asked {
                Asked::Pull(_) => format!("pull the other side, PULL({other}), or leave it out"),
                Asked::Multicast(_) => {
                    format!("multicast the other side, MULTICAST({other}), or leave it out")
                }
                _ => format!("broadcast the other side, BROADCAST({other}), or leave the hint out"),
            };
            refused(asking.may.why, &help)
        }
    }
}

/// Whether a hint asks that every process has all of a side.
pub(crate) fn is_asked_of(hints: &BlockHints<'_>, sides: [&Relation; 2], side: usize) -> bool {
    hints.of_side(side, &name(sides[side], side)).is_some_and(replicates)
}

/// Whether a hint asks that each process reads a side itself.
pub(crate) fn is_pull_asked(hints: &BlockHints<'_>, sides: [&Relation; 2], side: usize) -> bool {
    let hint = hints.of_side(side, &name(sides[side], side));
    hint.is_some_and(|hint| matches!(hint.asked, Asked::Pull(_)))
}

/// Whether a hint asks that a side is multicast.
pub(crate) fn is_multicast_asked(
    hints: &BlockHints<'_>,
    sides: [&Relation; 2],
    side: usize,
) -> bool {
    let hint = hints.of_side(side, &name(sides[side], side));
    hint.is_some_and(|hint| matches!(hint.asked, Asked::Multicast(_)))
}

/// Whether a hint or a setting asks for an exchange of both sides of a join by their keys.
pub(crate) fn is_shuffle_asked(cx: &Context<'_>, sides: [&Relation; 2]) -> bool {
    let of_side = |side: usize| {
        let hint = cx.hints.of_side(side, &name(sides[side], side));
        hint.is_some_and(|hint| matches!(hint.asked, Asked::Shuffle(_)))
    };
    let chosen = match cx.hints.exchange() {
        Some((exchange, _)) => ExchangeChoice::Fixed(exchange),
        None => cx.lowering.settings.exchange,
    };
    (0..2).any(of_side)
        || matches!(chosen, ExchangeChoice::Fixed(Exchange::Shuffle | Exchange::UpPar))
}

/// Obeys the hint for a side that every node has whole. `can_pull` says whether each process can
/// read that side itself, as it does unless a hint asks for a broadcast; the answer says whether it
/// does.
///
/// # Errors
/// When a hint asks for something else.
pub(crate) fn is_everywhere(
    hints: &BlockHints<'_>,
    sides: [&Relation; 2],
    table: usize,
    can_pull: bool,
) -> Result<(Option<Reason>, bool), LowerError> {
    let (mut reason, mut is_pulled) = (None, can_pull);
    for (side, relation) in sides.into_iter().enumerate() {
        let Some(hint) = hints.of_side(side, &name(relation, side)) else { continue };
        if side == table && matches!(hint.asked, Asked::Pull(_)) && !can_pull {
            let error = disobeyed(hint, NO_POOL_TABLE, NOT_PULLED_HELP);
            return Err(LowerError::Failed(Some(error)));
        }
        if matches!(hint.asked, Asked::Multicast(_)) {
            let why = "a table that a stream looks up is read by each process";
            let help = "leave the hint out; the build of a join of tables that end is multicast";
            return Err(LowerError::Failed(Some(disobeyed(hint, why, help))));
        }
        if side == table && replicates(hint) {
            is_pulled = matches!(hint.asked, Asked::Pull(_));
            reason = Some(hint.obey());
            continue;
        }
        let why = "a table that ends is joined by having it whole on every node";
        let help = "leave the hint out";
        return Err(LowerError::Failed(Some(disobeyed(hint, why, help))));
    }
    Ok((reason, is_pulled))
}

impl SideStatistics<'_> {
    /// Bytes that all processes but one read if each reads all of this side, and those of the other
    /// side that move then.
    pub(crate) fn pulled(&self, other: &Self, workers: Workers) -> Option<u64> {
        let own = self.pulled?.saturating_mul(u64::from(workers.nodes - 1));
        if other.spread { Some(own) } else { Some(own.saturating_add(other.moved(workers)?)) }
    }

    /// Bytes of this side that move when its rows go to every worker.
    fn copied(&self, workers: Workers) -> Option<u64> {
        Some(copied(self.bytes?, workers))
    }

    /// Bytes of both sides that move then.
    pub(crate) fn to_all(&self, other: &Self, workers: Workers) -> Option<u64> {
        let own = self.copied(workers)?;
        if other.spread { Some(own) } else { Some(own.saturating_add(other.moved(workers)?)) }
    }

    /// Bytes that move when its rows go to one worker each: all but those that are there.
    pub(crate) fn moved(&self, workers: Workers) -> Option<u64> {
        Some(moved(self.bytes?, workers))
    }
}

/// The bytes that move when rows of this size go to every worker: over the network to each
/// other process, and into the state of each other worker.
pub(crate) fn copied(bytes: u64, workers: Workers) -> u64 {
    let times = u64::from(workers.nodes - 1) + u64::from(workers.total() - 1);
    bytes.saturating_mul(times)
}

/// The bytes that move when rows of this size go to the workers of their keys.
pub(crate) fn moved(bytes: u64, workers: Workers) -> u64 {
    let total = u128::from(workers.total());
    (u128::from(bytes) * (total - 1) / total) as u64
}

/// The side that goes to every worker.
#[derive(Debug, PartialEq)]
struct Chosen {
    side: usize,
    reason: Reason,
    costs: [Vec<Cost>; 2],
}

/// The costs of the exchanges of each side of a join, as far as known: the other side may be
/// broadcast, or this one, or with equal keys both are shuffled.
pub(crate) fn costs(
    sides: &[SideStatistics<'_>; 2],
    workers: Workers,
    keyless: bool,
) -> [Vec<Cost>; 2] {
    let of = |side: &SideStatistics<'_>| {
        let cost = |strategy, bytes: u64| Cost::InAll { strategy, bytes };
        let moved = side.moved(workers);
        let stays = if side.spread {
            side.bytes.map(|_| cost(Strategy::Forward, 0))
        } else {
            moved.map(|bytes| cost(Strategy::Rebalance, bytes))
        };
        let shuffle = moved.filter(|_| !keyless).map(|bytes| cost(Strategy::Shuffle, bytes));
        let broadcast = side.copied(workers).map(|bytes| cost(Strategy::Broadcast, bytes));
        let others = u64::from(workers.nodes - 1);
        let pull = side.pulled.filter(|_| others > 0);
        let pull = pull.map(|bytes| cost(Strategy::Pull, bytes.saturating_mul(others)));
        let passed = side.reads.filter(|reads| !reads.is_mapped && others > 1);
        let multicast = passed.and_then(|_| side.copied(workers));
        let multicast = multicast.map(|bytes| cost(Strategy::Multicast, bytes));
        stays.into_iter().chain(shuffle).chain(broadcast).chain(pull).chain(multicast).collect()
    };
    sides.each_ref().map(of)
}

/// The side of a join without keys that goes to every worker, and why: there is no other way.
fn of_any(may: &[usize], sides: &[SideStatistics<'_>; 2], workers: Workers) -> Chosen {
    let chosen = |side: usize, why: &str| Chosen {
        side,
        reason: Reason::Planner(why.to_owned()),
        costs: costs(sides, workers, true),
    };
    let size = |side: usize| sides[side].bytes;
    let [first, others @ ..] = may else { return chosen(1, "there is no key") };
    if others.is_empty() {
        return chosen(*first, "the join asks whether rows of the other side have a partner");
    }
    let moves = |side: usize| sides[side].to_all(&sides[1 - side], workers);
    match (moves(0), moves(1)) {
        (Some(left), Some(right)) => {
            chosen(usize::from(left >= right), "there is no key, and this side moves less")
        }
        // A side that ends is mostly smaller.
        _ if sides[0].ends && !sides[1].ends => chosen(0, BOUNDED),
        _ if sides[1].ends && !sides[0].ends => chosen(1, BOUNDED),
        _ => {
            let unknown = match (size(0), size(1)) {
                (None, None) => "both sizes are unknown".to_owned(),
                (None, _) => format!("the size of {} is unknown", sides[0].name),
                _ => format!("the size of {} is unknown", sides[1].name),
            };
            chosen(1, &format!("there is no key; this is the right side, and {unknown}"))
        }
    }
}

/// Why a side is broadcast whose size is not known.
const BOUNDED: &str = "there is no key, and this side is bounded";

/// The side of a join with keys that is so small that it had better go to every worker, and why;
/// what the exchanges cost where there is none.
fn of_small(
    may: &[usize],
    sides: &[SideStatistics<'_>; 2],
    workers: Workers,
    bytes_max: u64,
) -> Result<Chosen, [Vec<Cost>; 2]> {
    let costs = costs(sides, workers, false);
    let by_key = match (sides[0].moved(workers), sides[1].moved(workers)) {
        (Some(left), Some(right)) => Some(left.saturating_add(right)),
        _ => None,
    };
    // A side that never ends moves more than any that does, if it need not move to meet it.
    let endless = |side: usize| !sides[side].ends && sides[side].spread;
    let fits = |side: &usize| sides[*side].bytes.is_some_and(|bytes| bytes <= bytes_max);
    for &side in may.iter().filter(|side| fits(side)) {
        let (own, other) = (&sides[side], &sides[1 - side]);
        let chosen =
            |why: String| Chosen { side, reason: Reason::Planner(why), costs: costs.clone() };
        if endless(1 - side) {
            let bytes = human(own.bytes.unwrap_or(0));
            let why = format!("it has at most {bytes}, and the other side is unbounded");
            return Ok(chosen(why));
        }
        let Some((to_all, by_key)) = own.to_all(other, workers).zip(by_key) else { continue };
        if to_all.saturating_mul(LESS) <= by_key {
            return Ok(chosen("it moves at most half of what a shuffle would".into()));
        }
    }
    Err(costs)
}

impl May {
    /// Those of a join of some kind.
    pub(crate) fn of(kind: JoinKind) -> Self {
        let sides: &[usize] = match kind {
            JoinKind::Inner => &[0, 1],
            JoinKind::Left | JoinKind::LeftSemi | JoinKind::LeftAnti => &[1],
            JoinKind::Right | JoinKind::RightSemi | JoinKind::RightAnti => &[0],
            JoinKind::Full => &[],
        };
        let why = "the join emits its rows without a partner, and no single worker knows them";
        Self { sides, why }
    }

    /// The versions that rows of the left side meet.
    pub(crate) fn versions() -> Self {
        let why = "a row meets the latest of all versions of its key, and no worker would have all";
        Self { sides: &[1], why }
    }
}

/// The name of a side in the query.
pub(crate) fn name(relation: &Relation, side: usize) -> String {
    let called = relation.outputs.iter().find_map(|(column, _)| column.relation.as_ref());
    match called {
        Some(name) => name.table().to_owned(),
        None => ["left", "right"][side].to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKERS: Workers = Workers { nodes: 2, per_node: 2 };

    fn side(name: &str, bytes: impl Into<Option<u64>>) -> SideStatistics<'_> {
        let bytes = bytes.into();
        let (ends, spread) = (bytes.is_some(), true);
        SideStatistics { name, ends, bytes, spread, pulled: None, reads: None }
    }

    #[test]
    fn a_side_is_broadcast_when_that_moves_half_as_much_as_the_keys() {
        // By key three quarters of both move; a broadcast goes over the network once, and into the
        // state of three other workers.
        let chosen = |left: u64, right: u64, most: u64| {
            of_small(&[0, 1], &[side("l", left), side("r", right)], WORKERS, most)
        };
        let small = |right: u64| chosen(1_000, right, u64::MAX).map(|chosen| chosen.side);
        let moves = |bytes: u64| {
            let cost = |strategy, bytes| Cost::InAll { strategy, bytes };
            let shuffle = cost(Strategy::Shuffle, bytes * 3 / 4);
            vec![cost(Strategy::Forward, 0), shuffle, cost(Strategy::Broadcast, bytes * 4)]
        };
        assert_eq!(small(9_666), Err([moves(1_000), moves(9_666)]));
        assert_eq!(small(9_667), Ok(0));
        let Ok(Chosen { side: 1, reason, .. }) = chosen(9_667, 1_000, 1_000) else { panic!() };
        assert_eq!(reason.to_string(), "it moves at most half of what a shuffle would");
        assert!(chosen(9_667, 1_000, 999).is_err(), "too large to be everywhere");
        let [l, r] = [side("l", 9_667), side("r", 1_000)];
        assert!(of_small(&[0], &[l, r], WORKERS, u64::MAX).is_err(), "the right one may not");
        let one_flow = SideStatistics { spread: false, ..side("l", 9_667) };
        let of = of_small(&[1], &[one_flow, side("r", 1_000)], WORKERS, u64::MAX);
        assert!(of.is_err(), "the rows of the other side move too");
    }

    #[test]
    fn what_ends_and_is_small_meets_what_never_ends_where_that_is() {
        let of = |left, right| of_small(&[0, 1], &[left, right], WORKERS, 4 << 20);
        let chosen = of(side("l", None), side("r", 1 << 20)).expect("a side");
        assert_eq!(
            (chosen.side, chosen.reason.to_string().as_str()),
            (1, "it has at most 1.0 MiB, and the other side is unbounded")
        );
        assert!(of(side("l", None), side("r", 5 << 20)).is_err());
        assert_eq!(of(side("l", None), side("r", None)), Err([vec![], vec![]]));
        let one_flow = SideStatistics { spread: false, ..side("l", None) };
        assert!(of(one_flow, side("r", 1 << 20)).is_err());
    }

    #[test]
    fn without_keys_the_smaller_side_goes() {
        let of = |left, right| of_any(&[0, 1], &[left, right], WORKERS);
        let chosen = of(side("l", 1 << 20), side("r", 2 << 20));
        let moves = |bytes: u64| {
            let forward = Cost::InAll { strategy: Strategy::Forward, bytes: 0 };
            vec![forward, Cost::InAll { strategy: Strategy::Broadcast, bytes }]
        };
        assert_eq!(chosen.side, 0);
        assert_eq!(chosen.costs, [moves(4 << 20), moves(8 << 20)]);
        assert_eq!(of(side("l", 2), side("r", 2)).side, 1);
        // Rows that one worker reads move when they meet the others: then it may as well be they.
        let one_flow = SideStatistics { spread: false, ..side("l", 3 << 20) };
        assert_eq!(of(one_flow, side("r", 2 << 20)).side, 1);
        assert_eq!(of(side("l", 2), side("r", None)).reason, Reason::Planner(BOUNDED.into()));
        assert_eq!(of(side("l", None), side("r", 2)).side, 1);
        assert_eq!(of_any(&[0], &[side("l", 2), side("r", 1)], WORKERS).side, 0);
    }
}
