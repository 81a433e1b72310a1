//! Names of operators that outlive edits of the SQL, other numbers of workers, and other plans.
//!
//! A name is made of what the state of an operator means: its kind, keys, aggregates with their
//! types, windows, the rows that it keeps, the table of a source or sink. Operators that are equal
//! in all of that are told apart by the sinks that their rows reach, and then by their order.
//! Filters, exchanges, key modes, workers, fabrics and statistics are no part of it, and operators
//! that keep nothing of meaning ([`OperatorSpec::remembers`](dataflow::job::OperatorSpec)) are not
//! compared at all.

use std::collections::{BTreeSet, HashMap};

use checkpoint::OperatorEntry;
use connectors::fnv;
use dataflow::job::{JobGraph, Operator, OperatorKind, Property};
use dataflow::type_name::type_name;

use super::encode::OperatorNames;

/// Properties, as EXPLAIN calls them, that say what state means.
const MEANING: [&str; 13] = [
    "window",
    "type",
    "on",
    "interval",
    "version",
    "group by",
    "partition by",
    "order by",
    "aggregates",
    "function",
    "limit",
    "offset",
    // Of the columns of the rows that are kept.
    "rows",
];

/// An operator as the chain knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OperatorId {
    /// Its name.
    pub(crate) id: String,
    /// The operator, for a reader.
    pub(crate) text: String,
    /// Whether a job that goes on must find it again.
    pub(crate) remembers: bool,
}

/// The names of the operators of a job, by their numbers.
pub(crate) fn operator_ids(job: &JobGraph) -> Vec<OperatorId> {
    let mut equal = HashMap::<String, u32>::new();
    let sinks = sinks_behind(job);
    let each = job.operators.iter().zip(sinks).map(|(operator, sinks)| {
        let (kind, text) = text_of(operator);
        let sinks: Vec<String> = sinks.into_iter().collect();
        let (meaning, sinks) = (fnv(text.as_bytes()), fnv(sinks.join("\n").as_bytes()) as u32);
        let name = format!("{}-{meaning:016x}-{sinks:08x}", kind.to_lowercase());
        let nth = equal.entry(name.clone()).or_default();
        *nth += 1;
        let spec = operator.spec();
        let remembers = spec.source().is_some() || spec.sink().is_some() || spec.remembers();
        OperatorId { id: format!("{name}-{nth}"), text, remembers }
    });
    each.collect()
}

/// Of each operator, the tables that its rows reach.
fn sinks_behind(job: &JobGraph) -> Vec<BTreeSet<String>> {
    let mut sinks = vec![BTreeSet::new(); job.operators.len()];
    // An edge leads from a lower number to a higher one.
    for (at, operator) in job.operators.iter().enumerate().rev() {
        if operator.spec().sink().is_some() {
            let name = operator.labels.table.clone();
            sinks[at].insert(name.unwrap_or_else(|| operator.name.clone()));
        }
        let reached = sinks[at].clone();
        for edge in operator.inputs.iter().flatten() {
            sinks[edge.from].extend(reached.iter().cloned());
        }
    }
    sinks
}

/// The kind of an operator, and what its state means.
fn text_of(operator: &Operator) -> (&'static str, String) {
    let description = operator.describe(None);
    let kind = match operator.kind {
        // Its name in EXPLAIN depends on what is fused with it.
        OperatorKind::Source(_) => "Source",
        OperatorKind::Sink(_) => "Sink",
        _ => description.name,
    };
    let mut text = kind.to_owned();
    if let Some(name) = name_of(operator, description.name) {
        text += &format!(" {name}");
    }
    for (name, value) in description.properties.iter().chain(&rows_of(operator)) {
        if MEANING.contains(name) {
            text += &format!(", {name} {value}");
        }
    }
    (kind, text)
}

/// The table of a source or sink, or the name that the author of a stream has given an operator.
fn name_of(operator: &Operator, kind: &str) -> Option<String> {
    if operator.labels.table.is_some() {
        return operator.labels.table.clone();
    }
    let name = operator.name.strip_prefix(kind).unwrap_or(&operator.name).trim();
    let named = matches!(
        operator.kind,
        OperatorKind::Source(_) | OperatorKind::Sink(_) | OperatorKind::Keyed(_)
    );
    Some(name.to_owned()).filter(|name| named && !name.is_empty())
}

/// The columns of the rows that an operator keeps as they came, by its inputs.
fn rows_of(operator: &Operator) -> Vec<Property> {
    let OperatorKind::Keyed(keyed) = &operator.kind else { return Vec::new() };
    let rows = keyed.inputs.iter().enumerate().map(|(input, of)| {
        let names = operator.columns(input);
        let types = of.schema.fields().iter().map(|field| field.data_type());
        let columns =
            names.iter().zip(types).map(|(name, of)| format!("{name} {}", type_name(of, "STRING")));
        ("rows", format!("({})", columns.collect::<Vec<_>>().join(", ")))
    });
    rows.collect()
}

/// The operators of a job by the names under which a checkpoint has their state.
pub(crate) struct FittedState {
    /// By the operator's number. An operator that was not saved has an empty name.
    names: Vec<OperatorId>,
    /// The operators of the checkpoint that the job does not have.
    pub(crate) gone: Vec<OperatorEntry>,
    /// The operators of the job that the checkpoint does not have, by their texts.
    pub(crate) new: Vec<String>,
}

impl FittedState {
    /// Finds the operators of a checkpoint in a job. Operators of one meaning are the same if they
    /// reach the same sinks, or if only one of that meaning is left on either side.
    pub(crate) fn of(saved: &[OperatorEntry], ids: &[OperatorId]) -> Self {
        let mut left: Vec<&OperatorEntry> = saved.iter().collect();
        let mut found: Vec<Option<String>> = vec![None; ids.len()];
        for (id, found) in ids.iter().zip(&mut found) {
            if let Some(at) = left.iter().position(|of| of.id == id.id) {
                *found = Some(left.remove(at).id.clone());
            }
        }
        let open = |found: &[Option<String>], at: usize| ids[at].remembers && found[at].is_none();
        for at in 0..ids.len() {
            let text = &ids[at].text;
            let alike = (0..ids.len()).filter(|&of| open(&found, of) && ids[of].text == *text);
            let mut were = (0..left.len()).filter(|&of| left[of].text == *text);
            if open(&found, at)
                && alike.count() == 1
                && let (Some(was), None) = (were.next(), were.next())
            {
                found[at] = Some(left.remove(was).id.clone());
            }
        }
        let new = (0..ids.len()).filter(|&at| open(&found, at)).map(|at| ids[at].text.clone());
        let new = new.collect();
        let names = ids.iter().zip(found).map(|(of, found)| {
            // An operator that is not compared is found by its own name, if it is there.
            let id = found.or_else(|| (!of.remembers).then(|| of.id.clone()));
            OperatorId { id: id.unwrap_or_default(), ..of.clone() }
        });
        let names = names.collect();
        Self { names, gone: left.into_iter().cloned().collect(), new }
    }

    /// The names by which the segments of the checkpoint are read.
    pub(crate) fn names(&self) -> OperatorNames<'_> {
        OperatorNames(&self.names)
    }

    /// The name that an operator of the job has in the checkpoint, if it has one.
    pub(crate) fn name(&self, operator: usize) -> Option<&str> {
        self.names.get(operator).map(|of| of.id.as_str()).filter(|id| !id.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(operators: &[(&str, &str)]) -> Vec<OperatorId> {
        let of = |(id, text): &(&str, &str)| OperatorId {
            id: (*id).to_owned(),
            text: (*text).to_owned(),
            remembers: !text.starts_with("LookupJoin"),
        };
        operators.iter().map(of).collect()
    }

    fn saved(operators: &[(&str, &str)]) -> Vec<OperatorEntry> {
        let entry = |(id, text): &(&str, &str)| OperatorEntry {
            id: (*id).to_owned(),
            text: (*text).to_owned(),
            watermark: None,
        };
        operators.iter().map(entry).collect()
    }

    fn fit(was: &[(&str, &str)], is: &[(&str, &str)]) -> (Vec<Option<String>>, String) {
        let is = job(is);
        let fitted = FittedState::of(&saved(was), &is);
        let gone: Vec<&str> = fitted.gone.iter().map(|of| of.id.as_str()).collect();
        let names = (0..is.len()).map(|at| fitted.name(at).map(str::to_owned));
        (names.collect(), format!("gone {gone:?} new {:?}", fitted.new))
    }

    fn names(all: &[&str]) -> Vec<Option<String>> {
        all.iter().map(|of| (!of.is_empty()).then(|| (*of).to_owned())).collect()
    }

    #[test]
    fn operators_are_found_by_their_sinks_whatever_their_order() {
        let fitted = fit(&[("g-a", "G"), ("g-b", "G")], &[("g-b", "G"), ("g-a", "G")]);
        assert_eq!(fitted, (names(&["g-b", "g-a"]), "gone [] new []".to_owned()));
    }

    #[test]
    fn the_only_ones_of_a_meaning_are_the_same_when_a_sink_has_another_name() {
        let fitted = fit(&[("g-a", "G"), ("s-a", "S a")], &[("g-b", "G"), ("s-b", "S b")]);
        assert_eq!(fitted, (names(&["g-a", ""]), r#"gone ["s-a"] new ["S b"]"#.to_owned()));
        // One that is added takes nothing from one that was there.
        let fitted = fit(&[("g-a", "G")], &[("g-b", "G"), ("g-a", "G")]);
        assert_eq!(fitted, (names(&["", "g-a"]), r#"gone [] new ["G"]"#.to_owned()));
        // Nobody knows which of two it is.
        let fitted = fit(&[("g-a", "G"), ("g-b", "G")], &[("g-c", "G"), ("g-d", "G")]);
        let reported = r#"gone ["g-a", "g-b"] new ["G", "G"]"#.to_owned();
        assert_eq!(fitted, (names(&["", ""]), reported));
    }

    #[test]
    fn what_remembers_nothing_is_not_compared() {
        let fitted = fit(&[("g-a", "G")], &[("l-a", "LookupJoin t"), ("g-a", "G")]);
        assert_eq!(fitted, (names(&["l-a", "g-a"]), "gone [] new []".to_owned()));
        // An operator without a name finds nothing.
        assert_eq!(fit(&[("", "G")], &[("g-a", "H")]).0, names(&[""]));
    }
}
