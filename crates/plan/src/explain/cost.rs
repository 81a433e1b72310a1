//! Why an exchange was chosen, before a job starts and by what was measured when it ran.

use std::fmt::Write;

use dataflow::cost::{Costs, Decision, Grouped, Price, decide, value_bytes};
use dataflow::job::{Aggregation, Exchange, OperatorKind};
use dataflow::known::{Known, row_bytes};
use serde_json::{Value, json};
use state::epoch::groups_behind;

use super::{Explain, Ran, RanOperator, human};

/// Why rows are merged of which nothing is known.
pub(crate) const UNKNOWN: &str = "each worker aggregates what it reads, so rows do not travel; how \
                                  many groups there are is not known beforehand";

/// Why it is this exchange.
pub(crate) fn reason(decision: &Decision) -> String {
    let Decision { merge, shuffle, combine_factor, .. } = decision;
    let why = match decision.exchange {
        Exchange::Shuffle if decision.for_memory => {
            "a worker's own groups fit millstream.state_bytes, and not those of others beside"
        }
        Exchange::Shuffle => "few rows of a group would meet before they travel",
        _ => "each worker aggregates what it reads",
    };
    format!("{why}: {}", prices(merge, shuffle, *combine_factor, "about "))
}

/// What a record costs by either.
fn prices(merge: &Price, shuffle: &Price, factor: f64, about: &str) -> String {
    format!(
        "a row costs {} B and {:.0} cycles by merge, where {about}{} rows of a group meet in a \
         delta, {} B and {:.0} by shuffle",
        number(merge.bytes),
        merge.cycles,
        number(factor),
        number(shuffle.bytes),
        shuffle.cycles
    )
}

/// A number with two digits behind the point if it is small.
fn number(number: f64) -> String {
    match number {
        ..10.0 => format!("{number:.2}"),
        _ => format!("{number:.0}"),
    }
}

/// What a grouping came to on all workers, and by which exchange its rows should have met by that.
struct Measured {
    operator: usize,
    met: Met,
    decision: Decision,
}

/// By which exchange its rows have met.
enum Met {
    Merge {
        epochs: u64,
        /// The least and the greatest length at the end of any worker's.
        lengths: [u64; 2],
        groups: u64,
        delta_bytes: u64,
    },
    Shuffle {
        /// Those of the worker that gave out most.
        windows: u64,
        groups: u64,
    },
}

impl Explain {
    /// What each grouping came to that merges, or shuffles its rows.
    fn measured(&self, ran: &Ran) -> Vec<Measured> {
        let given = Known::of(&self.operators, self.workers.total());
        let of = |(operator, kind): (usize, &OperatorKind)| {
            let OperatorKind::Aggregate(spec) = kind else { return None };
            let all: Vec<&RanOperator> =
                ran.operators.iter().filter(|one| one.operator == operator).collect();
            let known = Known::along(self.operators[operator].inputs.first()?, &given);
            let (met, decision) = match spec.exchange {
                Exchange::Merge => self.merged(spec, &all, &known)?,
                Exchange::Shuffle => self.shuffled(spec, &all, &known)?,
                _ => return None,
            };
            Some(Measured { operator, met, decision })
        };
        let kinds = self.operators.iter().map(|operator| &operator.kind);
        kinds.enumerate().filter_map(of).collect()
    }

    fn merged(
        &self,
        spec: &Aggregation,
        all: &[&RanOperator],
        known: &Known,
    ) -> Option<(Met, Decision)> {
        let (epochs, groups) = (sum(all, |one| one.epochs), sum(all, |one| one.groups_sent));
        if epochs == 0 || groups == 0 {
            return None;
        }
        let delta_bytes = sum(all, |one| one.delta_bytes);
        let workers = self.workers.total();
        let others = 1.0 - 1.0 / f64::from(workers);
        let epoch_rows = sum(all, |one| one.rows_in) as f64 / epochs as f64;
        let seen = (groups as f64 / epochs as f64 / others).min(epoch_rows);
        let groups_all = known.values(&spec.keys).map_or(f64::INFINITY, |groups| groups as f64);
        let grouped = Grouped {
            workers,
            beside: self.workers.per_node,
            row_bytes: row_bytes(&spec.input_schema) as f64,
            group_bytes: delta_bytes as f64 / groups as f64,
            kept_bytes: 0.0,
            held_bytes: spec.group_by.keys.iter().map(value_bytes).sum::<u64>() as f64,
            groups: groups_behind(seen, epoch_rows).min(groups_all).max(seen),
            epoch_rows,
            window_rows: f64::INFINITY,
            frequent: 0.0,
        };
        let lengths = all.iter().map(|one| one.epoch_bytes).filter(|&bytes| bytes > 0);
        let lengths = [lengths.clone().min()?, lengths.max()?];
        let decision = decide(Exchange::Merge, &grouped, &Costs::default(), usize::MAX);
        Some((Met::Merge { epochs, lengths, groups, delta_bytes }, decision))
    }

    /// Nothing of sessions, of which each group has its own, nor of windows that are looked at
    /// before they end, whose groups come several times.
    fn shuffled(
        &self,
        spec: &Aggregation,
        all: &[&RanOperator],
        known: &Known,
    ) -> Option<(Met, Decision)> {
        let sessions = spec.window.as_ref().is_some_and(|window| window.windows.gap().is_some());
        let (rows, groups) = (sum(all, |one| one.rows_in), sum(all, |one| one.rows_out));
        let windows = all.iter().map(|one| one.windows).max()?;
        if sessions || spec.early_ns.is_some() || rows == 0 || groups == 0 || windows == 0 {
            return None;
        }
        let workers = (self.workers.total(), self.workers.per_node);
        let groups_each = groups as f64 / windows as f64;
        let rows_each = rows as f64 / windows as f64 / f64::from(workers.0);
        let sizes = (groups_each, rows_each.max(1.0));
        let frequent = sum(all, |one| one.rows_combined) as f64 / rows as f64;
        let grouped =
            Grouped { frequent, ..Grouped::sized(spec, known, workers, self.epoch, sizes) };
        let budget = spec.group_by.options.budget_bytes;
        let decision = decide(Exchange::Shuffle, &grouped, &Costs::default(), budget);
        Some((Met::Shuffle { windows, groups }, decision))
    }

    /// Lines of what groupings came to.
    pub(super) fn exchanges_text(&self, ran: &Ran) -> String {
        let mut out = String::new();
        for Measured { operator, met, decision } in self.measured(ran) {
            let Decision { merge, shuffle, combine_factor, exchange, .. } = &decision;
            let name = &self.operators()[operator];
            // Writing to a String cannot fail.
            let (now, about) = match met {
                Met::Merge { epochs, lengths, groups, delta_bytes } => {
                    let [least, most] = lengths.map(human);
                    let length = if least == most { least } else { format!("{least} to {most}") };
                    let _ = writeln!(
                        out,
                        "  {name}: {epochs} epochs of the workers, the next ones of {length} of \
                         input; {groups} groups sent in {}",
                        human(delta_bytes)
                    );
                    (Exchange::Merge, "")
                }
                Met::Shuffle { windows, groups } => {
                    let of = if windows == 1 { "window" } else { "windows" };
                    let _ = writeln!(out, "  {name}: {groups} groups of {windows} {of}");
                    (Exchange::Shuffle, "about ")
                }
            };
            let _ = writeln!(out, "    {}", prices(merge, shuffle, *combine_factor, about));
            if *exchange != now {
                let _ = writeln!(
                    out,
                    "    {exchange} is likely to be cheaper: SET millstream.exchange = '{exchange}'"
                );
            }
        }
        out
    }

    /// The same for other programs: of groupings that merge, and of those that shuffle.
    pub(super) fn exchanges_json(&self, ran: &Ran) -> [Value; 2] {
        let (mut merged, mut shuffled) = (Vec::new(), Vec::new());
        for Measured { operator, met, decision } in self.measured(ran) {
            let price = |of: &Price| json!({ "bytes": of.bytes, "cycles": of.cycles });
            let mut one = json!({
                "operator": operator,
                "combine_factor": decision.combine_factor,
                "merge": price(&decision.merge),
                "shuffle": price(&decision.shuffle),
                "cheaper": decision.exchange.to_string(),
            });
            match met {
                Met::Merge { epochs, lengths, groups, delta_bytes } => {
                    one["epochs"] = epochs.into();
                    one["epoch_bytes_least"] = lengths[0].into();
                    one["epoch_bytes_most"] = lengths[1].into();
                    one["groups_sent"] = groups.into();
                    one["delta_bytes"] = delta_bytes.into();
                    merged.push(one);
                }
                Met::Shuffle { windows, groups } => {
                    one["windows"] = windows.into();
                    one["groups"] = groups.into();
                    shuffled.push(one);
                }
            }
        }
        [merged.into(), shuffled.into()]
    }
}

fn sum(all: &[&RanOperator], of: fn(&RanOperator) -> u64) -> u64 {
    all.iter().map(|one| of(one)).sum()
}
