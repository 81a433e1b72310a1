//! How rows meet that an operator keeps by key: by `shuffle`; by `merge` where that is asked for
//! and the operator waits for the watermark; or where they are.

use dataflow::cost::{Costs, WorkerCounts};
use dataflow::job::{Cost, Exchange, Keyed, KeyedInput, Reason};
use dataflow::row_cost::WindowRows;

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
    let costs = if merges && workers > 1 { costs(cx, spec) } else { vec![] };
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
        ExchangeChoice::Auto => of(Exchange::Shuffle, None, true),
        ExchangeChoice::Fixed(_) => of(Exchange::Shuffle, None, false),
    })
}

/// What a row of each input costs by `merge` and by `shuffle`, which is cheaper always: rows do not
/// combine as groups do.
fn costs(cx: &Context<'_>, spec: &Keyed) -> Vec<Vec<Cost>> {
    let (workers, settings) = (cx.lowering.workers, &cx.lowering.settings.job);
    let workers = WorkerCounts { total: workers.total(), per_process: workers.per_node };
    let of_input = |input: &KeyedInput| {
        let rows = WindowRows::of(&input.schema, workers, settings.batch_rows_max);
        cost::row_costs(&rows, &Costs::default())
    };
    spec.inputs.iter().map(of_input).collect()
}
