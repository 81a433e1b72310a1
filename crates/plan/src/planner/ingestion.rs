//! Workers that only read (S16): each feeds one of the others through its ring.
//!
//! ```text
//! workers that read                      stateful workers
//!   scan ─ batches as they were read ──▶ Exchange ─ step ─▶ lookup, grouping, join …
//!                                        by merge: partial state, merged among these
//! ```
//!
//! A stateful worker runs the whole pipeline over the flows of those that feed it, as if it read
//! them itself: filters, lookups and partial state are its work, and what it makes of rows meets
//! what others of its kind make. Whether a row is late is decided there, by the watermark that it
//! met in its own flow.
//!
//! Where the operator behind a scan sends each row to the leader of its key anyway, or to all
//! workers, the reader does that itself: there is no exchange in between. Scans that each process
//! reads for itself stay as they are.

use dataflow::job::{
    Edge, Exchange, InputLabels, Labels, Operator, OperatorKind, Reason, Scan, Settings, Strategy,
};
use dataflow::keyed::to_partner;

/// Has the last workers feed the others, where [`Settings::readers`] says so. Operators whose rows
/// would be led from one half of the workers to the other are led from readers to stateful workers.
pub(super) fn divide(operators: &mut Vec<Operator>, settings: &Settings, workers: u32) {
    let only = settings.only_readers(workers);
    if only == 0 {
        return;
    }
    let reason = Reason::Setting(format!(
        "millstream.readers = {}: {only} of {workers} workers only read, and send to the others",
        settings.readers
    ));
    let fed: Vec<bool> = (0..operators.len()).map(|at| is_fed(operators, at, workers)).collect();
    let mut places: Vec<Place> = Vec::with_capacity(operators.len());
    for (at, mut operator) in std::mem::take(operators).into_iter().enumerate() {
        led_by_readers(&mut operator, &reason);
        let leads: Vec<bool> =
            (0..operator.inputs.len()).map(|input| leads(&operator, input, workers)).collect();
        for (edges, leads) in operator.inputs.iter_mut().zip(leads) {
            for edge in edges {
                let place = places[edge.from];
                edge.from = place.feeds.filter(|_| !leads).unwrap_or(place.at);
            }
        }
        let mut place = Place { at: operators.len(), feeds: None };
        let exchange = match &operator.kind {
            OperatorKind::Source(scan) if fed[at] => {
                Some(exchange(&operator.name, scan, place.at, reason.clone()))
            }
            _ => None,
        };
        operators.push(operator);
        if let Some(exchange) = exchange {
            place.feeds = Some(operators.len());
            operators.push(exchange);
        }
        places.push(place);
    }
}

/// Where an operator is now, and the exchange behind it, if it is a scan that feeds others.
#[derive(Clone, Copy)]
struct Place {
    at: usize,
    feeds: Option<usize>,
}

/// Whether an operator is a scan some of whose rows would stay with their reader.
fn is_fed(operators: &[Operator], scan: usize, workers: u32) -> bool {
    let OperatorKind::Source(of) = &operators[scan].kind else { return false };
    let stays = |operator: &Operator| {
        let inputs = operator.inputs.iter().enumerate();
        let mut of_scan = inputs.filter(|(_, edges)| edges.iter().any(|edge| edge.from == scan));
        of_scan.any(|(input, _)| !leads(operator, input, workers))
    };
    !of.is_pulled && operators.iter().any(stays)
}

/// Whether an operator leads the rows of an input from any worker to the stateful workers.
fn leads(operator: &Operator, input: usize, workers: u32) -> bool {
    match operator.spec().strategy(input, workers) {
        Strategy::Shuffle
        | Strategy::UpPar
        | Strategy::Gather
        | Strategy::Broadcast
        | Strategy::Rebalance => true,
        Strategy::Merge | Strategy::Forward | Strategy::Pull | Strategy::Multicast => false,
    }
}

/// Readers and stateful workers are the two kinds of workers that `uppar` has.
fn led_by_readers(operator: &mut Operator, reason: &Reason) {
    let Some(exchange) = operator.kind.spec_mut().exchange_mut() else { return };
    if *exchange == Exchange::UpPar {
        *exchange = Exchange::Shuffle;
        let labels = &mut operator.labels.inputs;
        labels.iter_mut().for_each(|label| label.reason = Some(reason.clone()));
    }
}

/// Brings the rows of a scan to the stateful workers.
fn exchange(name: &str, scan: &Scan, from: usize, reason: Reason) -> Operator {
    let edge = Edge { from, step: None, timed: scan.watermark.is_some(), lateness: 0 };
    let labels = Labels {
        inputs: vec![InputLabels { reason: Some(reason), ..InputLabels::default() }],
        ..Labels::default()
    };
    let inputs = vec![vec![edge], vec![]];
    Operator::new(name, inputs, OperatorKind::Keyed(to_partner(scan.columns()))).labelled(labels)
}
