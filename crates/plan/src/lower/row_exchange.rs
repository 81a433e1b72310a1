//! How rows meet that an operator keeps by key: by `shuffle`, by `merge` where the operator waits
//! for the watermark, or where they are.

use dataflow::cost::{Costs, WorkerCounts};
use dataflow::job::{Cost, Exchange, Keyed, Reason};
use dataflow::row_cost::{RowDecision, WindowRows, decide};

use crate::explain::cost;
use crate::lower::HALVES;
use crate::lower::context::Context;
use crate::lower::relation::LowerError;
use crate::text::settings::ExchangeChoice;

/// The exchange of rows that are kept by key.
pub(crate) struct KeyedExchange {
    pub(crate) exchange: Exchange,
    /// Why it is this one, if there is more to say than that rows of equal keys meet.
    pub(crate) reason: Option<Reason>,
    /// By input what the exchanges cost; nothing where only one is possible.
    pub(crate) costs: Vec<Vec<Cost>>,
    /// Whether rows of one input that are where it would lead them may stay.
    pub(crate) may_stay: bool,
}

/// Chooses the exchange of an operator, whose rows may be `together` already.
///
/// # Errors
/// When a hint asks for an exchange that cannot be.
pub(crate) fn row_exchange(
    cx: &Context<'_>,
    spec: &Keyed,
    together: bool,
) -> Result<KeyedExchange, LowerError> {
    let workers = cx.lowering.workers.total();
    let (all, without) =
        ([Exchange::Shuffle, Exchange::UpPar, Exchange::Forward, Exchange::Merge], 3);
    let merges = spec.can_merge();
    // Other operators emit rows before time passes: they cannot wait for an epoch.
    let possible = if merges { &all[..] } else { &all[..without] };
    let decision = (merges && workers > 1).then(|| decision(cx, spec));
    let costs = decision.as_ref().map_or(vec![], cost::row_costs);
    let of = |exchange, reason, may_stay| KeyedExchange {
        exchange,
        reason,
        costs: costs.clone(),
        may_stay,
    };
    if let Some((exchange, reason)) = cx.hints.obey_exchange(possible, workers == 1 || together)? {
        let exchange = if workers == 1 { Exchange::Forward } else { exchange };
        return Ok(of(exchange, Some(reason), false));
    }
    let set = |setting: String| Some(Reason::Setting(setting));
    Ok(match cx.lowering.settings.exchange {
        _ if workers == 1 => of(Exchange::Forward, None, false),
        ExchangeChoice::Auto if together => KeyedExchange {
            exchange: Exchange::Forward,
            reason: Some(Reason::together()),
            costs: vec![],
            may_stay: false,
        },
        ExchangeChoice::Fixed(Exchange::UpPar) => of(Exchange::UpPar, set(HALVES.into()), false),
        ExchangeChoice::Fixed(Exchange::Merge) if merges => {
            of(Exchange::Merge, set("millstream.exchange = 'merge'".into()), false)
        }
        ExchangeChoice::Auto => match decision.map(|decision| decision.exchange) {
            Some(Exchange::Merge) => {
                let reason = Reason::Planner("rows of others wait for the end of an epoch".into());
                of(Exchange::Merge, Some(reason), false)
            }
            _ => of(Exchange::Shuffle, None, true),
        },
        ExchangeChoice::Fixed(_) => of(Exchange::Shuffle, None, false),
    })
}

/// What a row of each input costs by either exchange, and which of them is cheaper.
fn decision(cx: &Context<'_>, spec: &Keyed) -> RowDecision {
    let (workers, settings) = (cx.lowering.workers, &cx.lowering.settings.job);
    let workers = WorkerCounts { total: workers.total(), per_process: workers.per_node };
    let rows = |input: &dataflow::job::KeyedInput| {
        WindowRows::of(&input.schema, workers, settings.batch_rows_max, None)
    };
    decide(&spec.inputs.iter().map(rows).collect::<Vec<_>>(), &Costs::default())
}
