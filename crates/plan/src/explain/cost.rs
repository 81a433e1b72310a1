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

/// What the epochs of a grouping came to on all workers.
struct Measured {
    operator: usize,
    epochs: u64,
    /// The least and the greatest length at the end of any worker's.
    lengths: [u64; 2],
    groups: u64,
    delta_bytes: u64,
    decision: Decision,
}

impl Explain {
    /// What the epochs of each grouping came to that merges.
    fn measured(&self, ran: &Ran) -> Vec<Measured> {
        let given = Known::of(&self.operators, self.workers.total());
        let of = |(operator, kind): (usize, &OperatorKind)| {
            let OperatorKind::Aggregate(spec) = kind else { return None };
            let all: Vec<&RanOperator> =
                ran.operators.iter().filter(|one| one.operator == operator).collect();
            let input = self.operators[operator].inputs.first()?;
            self.measured_of(operator, spec, &all, &Known::along(input, &given))
        };
        let kinds = self.operators.iter().map(|operator| &operator.kind);
        kinds.enumerate().filter_map(of).collect()
    }

    fn measured_of(
        &self,
        operator: usize,
        spec: &Aggregation,
        all: &[&RanOperator],
        known: &Known,
    ) -> Option<Measured> {
        let sum = |of: fn(&RanOperator) -> u64| all.iter().map(|one| of(one)).sum::<u64>();
        let (epochs, groups) = (sum(|one| one.epochs), sum(|one| one.groups_sent));
        if epochs == 0 || groups == 0 {
            return None;
        }
        let delta_bytes = sum(|one| one.delta_bytes);
        let workers = self.workers.total();
        let others = 1.0 - 1.0 / f64::from(workers);
        let epoch_rows = sum(|one| one.rows_in) as f64 / epochs as f64;
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
        };
        let lengths = all.iter().map(|one| one.epoch_bytes).filter(|&bytes| bytes > 0);
        let lengths = [lengths.clone().min()?, lengths.max()?];
        let decision = decide(Exchange::Merge, &grouped, &Costs::default(), usize::MAX);
        Some(Measured { operator, epochs, lengths, groups, delta_bytes, decision })
    }

    /// Lines of what epochs came to.
    pub(super) fn epochs_text(&self, ran: &Ran) -> String {
        let mut out = String::new();
        for Measured { operator, epochs, lengths, groups, delta_bytes, decision } in
            self.measured(ran)
        {
            let Decision { merge, shuffle, combine_factor, .. } = &decision;
            let [least, most] = lengths.map(human);
            let length = if least == most { least } else { format!("{least} to {most}") };
            let name = &self.operators[operator].name;
            // Writing to a String cannot fail.
            let _ = writeln!(
                out,
                "  {name}: {epochs} epochs of the workers, the next ones of {length} of input; \
                 {groups} groups sent in {}",
                human(delta_bytes)
            );
            let _ = writeln!(out, "    {}", prices(merge, shuffle, *combine_factor, ""));
            if decision.exchange == Exchange::Shuffle {
                let _ = writeln!(
                    out,
                    "    shuffle is likely to be cheaper: SET millstream.exchange = 'shuffle'"
                );
            }
        }
        out
    }

    /// The same for other programs.
    pub(super) fn epochs_json(&self, ran: &Ran) -> Value {
        let one = |measured: Measured| {
            let decision = &measured.decision;
            let price = |of: &Price| json!({ "bytes": of.bytes, "cycles": of.cycles });
            json!({
                "operator": measured.operator,
                "epochs": measured.epochs,
                "epoch_bytes_least": measured.lengths[0],
                "epoch_bytes_most": measured.lengths[1],
                "groups_sent": measured.groups,
                "delta_bytes": measured.delta_bytes,
                "combine_factor": decision.combine_factor,
                "merge": price(&decision.merge),
                "shuffle": price(&decision.shuffle),
                "cheaper": decision.exchange.to_string(),
            })
        };
        self.measured(ran).into_iter().map(one).collect()
    }
}
