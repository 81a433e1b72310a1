//! Why an exchange was chosen, before a job starts and by what was measured when it ran.

use std::fmt::Write;

use dataflow::cost::{Costs, Decision, Grouped, Price, WorkerCounts, decide, of_others};
use dataflow::job::{Aggregation, Cost, Exchange, Operator, OperatorKind, Statistics, Strategy};
use dataflow::metrics::OperatorCounters;
use dataflow::row_cost::WindowRows;
use serde_json::{Value, json};
use state::epoch::groups_behind;

use super::text::number;
use super::{Explain, Ran};
use crate::text::units::human;

/// Why rows are merged of which nothing is known.
pub(crate) const UNKNOWN: &str =
    "each worker pre-aggregates what it reads; the number of groups is not known beforehand";

/// Why it is this exchange.
pub(crate) fn reason(decision: &Decision) -> String {
    let factor = number(decision.combine_factor);
    match decision.exchange {
        Exchange::Shuffle if decision.for_memory => {
            "the groups of one worker fit millstream.state_bytes, all groups do not".into()
        }
        Exchange::Shuffle => {
            format!("pre-aggregation would combine only about {factor} rows of a group in a delta")
        }
        _ => format!("pre-aggregation combines about {factor} rows of a group in a delta"),
    }
}

/// The cost of a row by either exchange.
pub(crate) fn costs(decision: &Decision) -> Vec<Cost> {
    both(&decision.merge, &decision.shuffle)
}

/// The cost of a row by either exchange, of rows that are kept until their window ends.
pub(crate) fn row_costs(rows: &WindowRows, costs: &Costs) -> Vec<Cost> {
    let [merge, shuffle] =
        [Exchange::Merge, Exchange::Shuffle].map(|exchange| rows.price(exchange, costs));
    both(&merge, &shuffle)
}

fn both(merge: &Price, shuffle: &Price) -> Vec<Cost> {
    let of = |strategy, price: &Price| Cost::PerRow {
        strategy,
        bytes: price.bytes,
        cycles: price.cycles,
    };
    vec![of(Strategy::Merge, merge), of(Strategy::Shuffle, shuffle)]
}

/// The cost of a record by either.
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

/// The measurements of a grouping on all workers, and by which exchange its rows should have met by
/// that.
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
        groups: u64,
    },
}

/// A grouping that has run.
struct Grouping<'a> {
    explain: &'a Explain,
    ran: &'a Ran,
    operator: usize,
    spec: &'a Aggregation,
    /// The statistics of its rows.
    known: Statistics,
}

impl Grouping<'_> {
    fn measured(&self) -> Option<Measured> {
        let (met, decision) = match self.spec.exchange {
            Exchange::Merge => self.merged()?,
            Exchange::Shuffle => self.shuffled()?,
            _ => return None,
        };
        Some(Measured { operator: self.operator, met, decision })
    }

    fn merged(&self) -> Option<(Met, Decision)> {
        let (epochs, groups) = (self.sum(|one| one.epochs), self.sum(|one| one.groups_sent));
        if epochs == 0 || groups == 0 {
            return None;
        }
        let delta_bytes = self.sum(|one| one.delta_bytes);
        let epoch_rows = self.sum(|one| one.rows_in) as f64 / epochs as f64;
        let seen = (groups as f64 / epochs as f64 / self.of_others()).min(epoch_rows);
        let known = self.known.values(&self.spec.keys);
        let groups_all = known.map_or(f64::INFINITY, |groups| groups as f64);
        let grouped = Grouped {
            group_bytes: delta_bytes as f64 / groups as f64,
            kept_bytes: 0.0,
            epoch_rows,
            ..self.grouped(groups_behind(seen, epoch_rows).min(groups_all).max(seen))
        };
        let lengths = self.ran.of(self.operator).map(|one| one.epoch_bytes);
        let lengths = lengths.filter(|&bytes| bytes > 0);
        let lengths = [lengths.clone().min()?, lengths.max()?];
        let decision = decide(Exchange::Merge, &grouped, &Costs::default(), usize::MAX);
        Some((Met::Merge { epochs, lengths, groups, delta_bytes }, decision))
    }

    /// Nothing of sessions, of which each group has its own, nor of windows that are looked at
    /// before they end, whose groups come several times.
    fn shuffled(&self) -> Option<(Met, Decision)> {
        let Self { ran, spec, .. } = self;
        let (rows, groups) = (self.sum(|one| one.rows_in), self.sum(|one| one.rows_out));
        let alone = self.explain.workers.total() == 1;
        if spec.has_sessions() || spec.early_ns.is_some() || alone || rows == 0 {
            return None;
        }
        // Rows of a worker's own groups are not grouped in front.
        let frequent = self.sum(|one| one.rows_combined) as f64 / rows as f64 / self.of_others();
        let grouped = Grouped {
            frequent: frequent.min(1.0),
            ..self.grouped(groups as f64 / ran.windows(self.operator)? as f64)
        };
        let budget = spec.group_by.options.budget_bytes;
        let decision = decide(Exchange::Shuffle, &grouped, &Costs::default(), budget);
        Some((Met::Shuffle { groups }, decision))
    }

    fn sum(&self, of: fn(&OperatorCounters) -> u64) -> u64 {
        self.ran.sum(self.operator, of)
    }

    fn of_others(&self) -> f64 {
        of_others(self.explain.workers.total())
    }

    /// The counts of its rows and windows, with the number of groups in each window.
    fn grouped(&self, groups: f64) -> Grouped {
        let Explain { workers, epoch, .. } = self.explain;
        let rows = self.sum(|one| one.rows_in) as f64 / f64::from(workers.total());
        let windows = self.ran.windows(self.operator).filter(|_| !self.spec.has_sessions());
        let window_rows = windows.map_or(f64::INFINITY, |of| (rows / of as f64).max(1.0));
        let workers = WorkerCounts { total: workers.total(), per_process: workers.per_node };
        Grouped::sized(self.spec, &self.known, workers, *epoch, groups, window_rows)
    }
}

impl Explain {
    /// The measurements of each grouping that merges, or shuffles its rows.
    fn measured(&self, ran: &Ran) -> Vec<Measured> {
        let given = Statistics::of(&self.operators, self.workers.total());
        let of = |(operator, one): (usize, &Operator)| {
            let OperatorKind::Aggregate(spec) = &one.kind else { return None };
            let known = Statistics::along(one.inputs.first()?, &given);
            Grouping { explain: self, ran, operator, spec, known }.measured()
        };
        self.operators.iter().enumerate().filter_map(of).collect()
    }

    /// Lines of what groupings came to.
    pub(super) fn exchanges_text(&self, ran: &Ran) -> String {
        let (mut out, names) = (String::new(), self.operators());
        for Measured { operator, met, decision } in self.measured(ran) {
            let Decision { merge, shuffle, combine_factor, exchange, .. } = &decision;
            let name = &names[operator];
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
                Met::Shuffle { groups } => {
                    let _ = writeln!(out, "  {name}: {groups} groups emitted");
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
                    one["delta_groups"] = groups.into();
                    one["delta_bytes"] = delta_bytes.into();
                    merged.push(one);
                }
                Met::Shuffle { groups } => {
                    one["groups"] = groups.into();
                    shuffled.push(one);
                }
            }
        }
        [merged.into(), shuffled.into()]
    }
}
