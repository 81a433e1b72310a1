//! The job of a stage as a tree: what all printers print.

use std::ops::Range;

use dataflow::job::{
    Cost, Edge, InputLabels, Operator, Property, Reason, SideTable, StateEstimate, Strategy,
};

use super::describe::span;
use super::estimate::estimates;
use super::{Explain, Explained, ExplainedBatch, OrderedJoins, RingMode, plain};
use crate::text::units::human;

/// Characters of an operator's title that are shown beside its numbers.
const TITLE_CHARS_MAX: usize = 40;

/// The statements of a stage and what runs for them. An operator that several of them read is one
/// node.
pub(super) struct PlanTree {
    pub(super) statements: Vec<StatementTree>,
    /// The operators of the job by their number, and behind them parts of operators that read a
    /// table or run a plan of their own.
    pub(super) nodes: Vec<PlanNode>,
    pub(super) ring_mode: RingMode,
}

/// A statement.
pub(super) struct StatementTree {
    pub(super) name: String,
    /// The orders of its joins.
    pub(super) orders: Vec<OrderedJoins>,
    /// Its sinks.
    pub(super) roots: Vec<usize>,
}

/// An operator, or a part of one.
pub(super) struct PlanNode {
    /// The number of the operator in the job; `None` of a part.
    pub(super) operator: Option<usize>,
    /// Its kind: `WindowJoin`.
    pub(super) name: &'static str,
    /// The table that it reads or writes, or what a stream calls it.
    pub(super) table: Option<String>,
    pub(super) properties: Vec<Property>,
    /// The estimated rows that it emits, if there is an estimate.
    pub(super) rows_estimate: Option<u64>,
    /// The columns that it emits.
    pub(super) columns: Vec<String>,
    /// The lines of DataFusion's plan that it runs.
    pub(super) plan: Vec<String>,
    pub(super) state: Vec<StateEstimate>,
    pub(super) inputs: Vec<PlanEdge>,
}

/// The way of rows from one node to another.
pub(super) struct PlanEdge {
    /// The node that emits them.
    pub(super) from: usize,
    /// The input of the node that takes them.
    pub(super) input: usize,
    /// Which of the edges of that input it is, and of how many: more than one are a union.
    pub(super) part: (usize, usize),
    pub(super) exchange: Strategy,
    /// The columns that say which worker takes a row.
    pub(super) keys: Vec<String>,
    pub(super) reason: Option<Reason>,
    /// The costs of the exchanges that could have been chosen.
    pub(super) costs: Vec<Cost>,
    /// The estimated rows that arrive, if there is an estimate.
    pub(super) rows_estimate: Option<u64>,
    /// The columns that arrive.
    pub(super) columns: Vec<String>,
    /// The steps on each row before the exchange, in this order.
    pub(super) steps: Vec<Property>,
    /// Whether watermarks go along.
    pub(super) event_time: bool,
    /// How long the node waits behind the watermark, where it does.
    pub(super) lateness: Option<String>,
}

/// The title of an operator beside numbers of a run.
pub(super) fn title(id: usize, operator: &Operator) -> String {
    let node = operator.describe(None);
    let called = called(operator, node.name).unwrap_or_default();
    let title = format!("{id} {} {called}", node.name);
    title.trim_end().chars().take(TITLE_CHARS_MAX).collect()
}

/// The other names of an operator of some kind.
fn called(operator: &Operator, kind: &str) -> Option<String> {
    let name = operator.name.strip_prefix(kind).unwrap_or(&operator.name).trim();
    Some(name.to_owned()).filter(|name| !name.is_empty())
}

impl PlanTree {
    /// The tree of a plan. Sources are asked for their flows.
    pub(super) fn of(explain: &Explain) -> Self {
        let workers = explain.workers.total();
        let readers = explain.readers();
        let states = estimates(&explain.operators, explain.workers);
        let node = |((id, operator), state): ((usize, &Operator), Vec<StateEstimate>)| {
            let mut described = operator.describe(Some(readers));
            let chain = match &operator.chain {
                Ok(chain) => Some(chain.text_of(id)),
                Err(reason) => reason.text().map(Into::into),
            };
            described.properties.extend(chain.map(|text| ("chain", text)));
            PlanNode {
                operator: Some(id),
                name: described.name,
                table: operator.labels.table.clone().or_else(|| called(operator, described.name)),
                properties: described.properties,
                rows_estimate: operator.labels.rows_estimate,
                columns: operator.columns_out(),
                plan: vec![],
                state,
                inputs: edges_of(operator, workers),
            }
        };
        let operators = explain.operators.iter().enumerate();
        let nodes = operators.zip(states).map(node).collect();
        let mut tree = Self { statements: vec![], nodes, ring_mode: explain.ring_mode };
        for (id, operator) in explain.operators.iter().enumerate() {
            if let Some(side) = operator.spec().side_table() {
                let pulls = explain.workers.nodes > 1 && side.is_pulled;
                let exchange = match workers {
                    1 => Strategy::Forward,
                    _ if pulls => Strategy::Pull,
                    _ => Strategy::Broadcast,
                };
                tree.read_beside(id, side, operator, (exchange, readers));
            }
        }
        for Explained { name, operators, batch, orders } in &explain.statements {
            let sinks = sinks_of(&explain.operators, operators.clone());
            let roots = match batch {
                None => sinks,
                Some(batch) => vec![tree.run_in_batch(sinks, batch)],
            };
            let (name, orders) = (name.clone(), orders.clone());
            tree.statements.push(StatementTree { name, orders, roots });
        }
        tree
    }

    /// A table that the operator of that number reads beside its inputs.
    fn read_beside(
        &mut self,
        id: usize,
        SideTable { table, step, input, .. }: SideTable<'_>,
        operator: &Operator,
        (exchange, readers): (Strategy, u32),
    ) {
        let labels = operator.labels.inputs.get(input).cloned().unwrap_or_default();
        let schema = table.columns();
        self.nodes.push(PlanNode {
            operator: None,
            name: "Scan",
            table: operator.labels.table.clone().or_else(|| Some(table.table.clone())),
            properties: table.properties(Some(readers)),
            rows_estimate: None,
            columns: schema.fields().iter().map(|field| field.name().clone()).collect(),
            plan: vec![],
            state: vec![],
            inputs: vec![],
        });
        let whole = match exchange {
            Strategy::Forward => "the table is read whole before the stream",
            Strategy::Pull => "each process reads the whole table itself, and no row travels",
            _ => "each process keeps the whole table, which all workers read together",
        };
        let is_asked = matches!(labels.reason, Some(Reason::Hint { .. }));
        let reason = labels.reason.filter(|_| exchange != Strategy::Pull || is_asked);
        let from = self.nodes.len() - 1;
        let node = &mut self.nodes[id];
        // The state that the operator keeps is the table.
        node.table = None;
        node.inputs.push(PlanEdge {
            from,
            input,
            part: (0, 1),
            exchange,
            keys: vec![],
            reason: reason.or_else(|| Some(Reason::Planner(whole.into()))),
            costs: labels.costs,
            rows_estimate: labels.rows_estimate,
            columns: operator.columns(input),
            steps: step.map(|step| step.describe()).unwrap_or_default(),
            event_time: false,
            lateness: None,
        });
    }

    /// A batch stage and its sink, behind what gathers rows for it; gives the sink's number.
    fn run_in_batch(&mut self, inputs: Vec<usize>, batch: &ExplainedBatch) -> usize {
        let edge = |from: usize, input: usize| PlanEdge {
            from,
            input,
            part: (0, 1),
            exchange: Strategy::Forward,
            keys: vec![],
            reason: Some(Reason::Planner("it runs on worker 0".to_owned())),
            costs: vec![],
            rows_estimate: None,
            columns: vec![],
            steps: vec![],
            event_time: false,
            lateness: None,
        };
        let inputs = inputs.into_iter().enumerate().map(|(input, from)| edge(from, input));
        let node = |name, table, properties, plan, inputs| PlanNode {
            operator: None,
            name,
            table,
            properties,
            rows_estimate: None,
            columns: vec![],
            plan,
            state: vec![],
            inputs,
        };
        let runs = vec![
            ("runs", "when all inputs have ended".to_owned()),
            ("reason", batch.reason.clone()),
            ("memory", format!("millstream.batch_bytes, {}", human(batch.memory_bytes as u64))),
        ];
        self.nodes.push(node("Batch", None, runs, batch.plan.clone(), inputs.collect()));
        let from = self.nodes.len() - 1;
        let table = Some(batch.table.clone());
        self.nodes.push(node("Sink", table, vec![], vec![], vec![edge(from, 0)]));
        self.nodes.len() - 1
    }
}

/// The sinks among some operators.
fn sinks_of(operators: &[Operator], range: Range<usize>) -> Vec<usize> {
    range.filter(|&at| operators[at].spec().sink().is_some()).collect()
}

/// The edges of all inputs of an operator.
fn edges_of(operator: &Operator, workers: u32) -> Vec<PlanEdge> {
    let edges = operator.inputs.iter().enumerate().flat_map(|(input, edges)| {
        edges.iter().enumerate().map(move |(at, edge)| (input, (at, edges.len()), edge))
    });
    let edge = |(input, part, edge): (usize, (usize, usize), &Edge)| {
        let InputLabels { reason, costs, rows_estimate, .. } =
            operator.labels.inputs.get(input).cloned().unwrap_or_default();
        let exchange = operator.spec().strategy(input, workers);
        let columns = operator.columns(input);
        let steps = edge.step.as_ref().map(|step| step.describe()).unwrap_or_default();
        let time = operator.spec().time_type(input).filter(|_| edge.lateness > 0);
        PlanEdge {
            from: edge.from,
            input,
            part,
            exchange,
            keys: keys(operator, input, exchange, &columns),
            reason: reason.or_else(|| usual(operator, exchange, workers)),
            costs,
            rows_estimate,
            columns,
            steps: steps.into_iter().map(|(name, text)| (name, plain(&text, &[]))).collect(),
            event_time: edge.timed,
            lateness: time.map(|of| span(edge.lateness, &of)),
        }
    };
    edges.map(edge).collect()
}

/// The columns by which rows are exchanged.
fn keys(operator: &Operator, input: usize, by: Strategy, columns: &[String]) -> Vec<String> {
    if !matches!(by, Strategy::Merge | Strategy::Shuffle | Strategy::UpPar) {
        return vec![];
    }
    let keys = operator.spec().keys(input);
    keys.iter().filter_map(|&at| columns.get(at).cloned()).collect()
}

/// Why an exchange is what it is, where its maker has not said so.
fn usual(operator: &Operator, exchange: Strategy, workers: u32) -> Option<Reason> {
    let text = match exchange {
        Strategy::Forward if workers == 1 => "there is one worker",
        exchange => operator.spec().reason(exchange)?,
    };
    Some(Reason::Planner(text.into()))
}
