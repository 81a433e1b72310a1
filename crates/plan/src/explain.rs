//! What EXPLAIN says: the queries of a stage, and the memory that they were given.

mod analyze;
pub(crate) mod cost;
mod estimate;
mod graph;
pub(crate) mod modes;
mod plain;
mod ran;

use std::fmt::Write;
use std::sync::Arc;

use arrow::datatypes::{DataType, SchemaRef, TimeUnit};
use channel::cast::Flight;
use dataflow::job::{Input, Operator, Step, readers};
use dataflow::source::Source;
use state::epoch::LengthBounds;

use crate::Workers;
use crate::catalog::Table;
use crate::logical::windows::{Shape, WindowCall};
use crate::text::interval::tick_ns;
use crate::text::settings::InForce;
use crate::text::statements::ExplainFormat;
use crate::text::units::{human, span_ns};

pub use analyze::Analyzed;
pub(crate) use analyze::Discard;
pub(crate) use plain::plain;
pub use ran::{Ran, RanOperator, RanWorker};

/// The plan of a stage, for a reader.
#[derive(Clone)]
pub struct Explain {
    pub(crate) sections: Vec<Section>,
    pub(crate) operators: Vec<Operator>,
    pub(crate) needs: Vec<Need>,
    pub(crate) workers: Workers,
    /// How long epochs may be.
    pub(crate) epoch: LengthBounds,
}

/// A query of the plan.
#[derive(Clone)]
pub(crate) struct Section {
    title: String,
    pub(crate) lines: Vec<Line>,
    /// What the columns are that arrive at the operator that is spoken of.
    names: Vec<(String, String)>,
}

#[derive(Clone)]
pub(crate) enum Line {
    /// A label and a text.
    Text(&'static str, String),
    /// A source, of which flows are counted when the plan is shown.
    Source { shown: String, source: Arc<dyn Source>, columns: String },
    /// A line of DataFusion's plan.
    Plan(String),
}

/// A named amount of memory of each worker, in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Need {
    /// What for.
    pub name: &'static str,
    /// How it comes about.
    pub sum: String,
    /// Bytes per worker; of worker 0 only if `once`.
    pub bytes: u64,
    /// Whether one worker of the job has it, rather than each.
    pub once: bool,
    /// Whether it is a limit up to which something asks before it grows, and whose end is an error
    /// of its own; else it is taken as rows travel, and nobody asks.
    pub asks: bool,
}

/// A named amount of memory that the transport has at each end of a link, besides the ring.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndNeed {
    /// What it is.
    pub name: &'static str,
    /// What for.
    pub what: &'static str,
    /// Bytes; none where they are not counted.
    pub bytes: u64,
}

impl Explain {
    /// The plan as text. Sources are asked for their flows: files may be opened for it.
    pub fn text(&self) -> String {
        let mut out = String::new();
        for section in &self.sections {
            section.write(&mut out, self.readers());
            out.push('\n');
        }
        self.write_state(&mut out);
        self.write_memory(&mut out);
        out
    }

    fn write_state(&self, out: &mut String) {
        let estimates = estimate::estimates(&self.operators, self.workers);
        let lines = estimate::lines(&estimates, &self.operators());
        if lines.is_empty() {
            return;
        }
        let width = |at: usize| lines.iter().map(|line| line[at].chars().count()).max();
        let [name, text] = [width(0).unwrap_or(0), width(1).unwrap_or(0)];
        // Writing to a String cannot fail.
        let _ = writeln!(out, "state, estimated over all workers");
        for [operator, holds, bytes] in &lines {
            let _ = writeln!(out, "  {operator:<name$}  {holds:<text$} {bytes:>10}");
        }
        out.push('\n');
    }

    /// How many workers read tables.
    fn readers(&self) -> u32 {
        readers(&self.operators, self.workers.total())
    }

    /// The memory that was given to the stage.
    pub fn memory(&self) -> &[Need] {
        &self.needs
    }

    fn write_memory(&self, out: &mut String) {
        let Workers { nodes, per_node } = self.workers;
        // Writing to a String cannot fail.
        let _ = writeln!(out, "memory, on {nodes} x {per_node} workers");
        let mut line = |name: &str, sum: &str, bytes: u64| {
            let _ = writeln!(out, "  {name:<12} {sum:<44} {:>10}", human(bytes));
        };
        for need in &self.needs {
            line(need.name, &need.sum, need.bytes);
        }
        let worker: u64 = self.needs.iter().filter(|n| !n.once).map(|n| n.bytes).sum();
        let once: u64 = self.needs.iter().filter(|n| n.once).map(|n| n.bytes).sum();
        line("per worker", "at most", worker);
        let node = worker * u64::from(per_node);
        line("per node", &format!("{per_node} x {}", human(worker)), node);
        if once > 0 {
            line("node 0", &format!("{} + {}", human(node), human(once)), node + once);
        }
    }
}

impl Section {
    pub(crate) fn new(title: &str) -> Self {
        Self { title: title.to_string(), lines: vec![], names: vec![] }
    }

    pub(crate) fn text(&mut self, label: &'static str, text: String) {
        self.lines.push(Line::Text(label, plain(&text, &self.names)));
    }

    /// Columns arrive at an operator, of one side if it has two. A name that means something else
    /// on the other side stays as it is.
    pub(crate) fn arrive(&mut self, names: &[(String, String)]) {
        for (name, shown) in names {
            match self.names.iter().position(|(known, _)| known == name) {
                Some(at) if self.names[at].1 != *shown => self.names[at].1.clone_from(name),
                Some(_) => {}
                None => self.names.push((name.clone(), shown.clone())),
            }
        }
    }

    /// What follows is of another operator.
    pub(crate) fn operator_ends(&mut self) {
        self.names.clear();
    }

    /// Says more under the last such label.
    pub(crate) fn add(&mut self, label: &'static str, more: &str) {
        let labelled = |line: &&mut Line| matches!(line, Line::Text(known, _) if *known == label);
        if let Some(Line::Text(_, text)) = self.lines.iter_mut().rev().find(labelled) {
            text.push_str(more);
        }
    }

    /// Says something else under the last such label.
    pub(crate) fn replace(&mut self, label: &'static str, text: String) {
        let labelled = |line: &&mut Line| matches!(line, Line::Text(known, _) if *known == label);
        if let Some(line) = self.lines.iter_mut().rev().find(labelled) {
            *line = Line::Text(label, text);
        }
    }

    /// A step, behind an operator if there are names of the columns that the operator gives out.
    pub(crate) fn step(&mut self, step: &Option<Arc<dyn Step>>, names: &[(String, String)]) {
        let Some(step) = step else { return };
        let text = plain(&step.describe(), names);
        self.text(if names.is_empty() { "step" } else { "then" }, text);
    }

    /// A table that is read, with its event time.
    pub(crate) fn source(&mut self, table: &Table, input: &Input, columns: &SchemaRef) {
        let names: Vec<&str> = columns.fields().iter().map(|f| f.name().as_str()).collect();
        self.lines.push(Line::Source {
            shown: format!("{} ({})", table.name, table.connector.name()),
            source: input.source.clone(),
            columns: names.join(", "),
        });
        if let Some(watermark) = input.watermark {
            let field = columns.field(watermark.column);
            let lag = span(watermark.delay, field.data_type());
            let idle = watermark
                .idle_timeout_ns
                .map_or(String::new(), |ns| format!(", idle after {}", span_ns(ns as i64)));
            self.text("watermark", format!("{} - {lag}{idle}", field.name()));
        }
    }

    fn write(&self, out: &mut String, readers: u32) {
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{}", self.title);
        for line in &self.lines {
            let _ = match line {
                Line::Text(label, text) => writeln!(out, "  {label:<12} {text}"),
                Line::Plan(text) => writeln!(out, "  {:<12} {text}", ""),
                Line::Source { shown, source, columns } => {
                    let flows = flows(source.as_ref(), readers);
                    writeln!(out, "  {:<12} {shown}: {flows}; reads {columns}", "source")
                }
            };
        }
    }
}

/// A window and what it is over.
pub(crate) fn window_text(window: &WindowCall) -> String {
    let time = window.time.human_display();
    let lengths = window.lengths;
    let (size, slide) = (span_ns(lengths.size_ns), span_ns(lengths.slide_ns));
    let mut text = match window.shape {
        Shape::Tumble => format!("tumble {size} on {time}"),
        Shape::Hop => format!("hop {size} every {slide} on {time}"),
        Shape::Cumulate => format!("cumulate {slide} up to {size} on {time}"),
        Shape::Session => format!("session with a gap of {size} on {time}"),
    };
    if lengths.offset_ns != 0 {
        // Writing to a String cannot fail.
        let _ = write!(text, ", shifted by {}", span_ns(lengths.offset_ns));
    }
    if let Some(ns) = window.lateness_ns {
        // Writing to a String cannot fail.
        let _ = write!(text, ", lateness {}", span_ns(ns));
    }
    text
}

fn flows(source: &dyn Source, readers: u32) -> String {
    let end = if source.bounded() { "" } else { ", never ending" };
    match source.flows(readers, None) {
        Err(error) => format!("unreadable ({error})"),
        Ok(flows) => {
            let rows: Option<u64> = flows.iter().map(|flow| flow.rows).sum();
            let rows = rows.map_or(String::new(), |rows| format!(", {rows} rows"));
            let plural = if flows.len() == 1 { "" } else { "s" };
            format!("{} flow{plural}{rows}{end}", flows.len())
        }
    }
}

/// The memory of a stage. `ends` is what each end of a link needs besides the ring, `groupings` is
/// how many of its queries group rows. Links join workers of different nodes; those of one hand
/// rows over through queues, which hold as much as a ring.
pub(crate) fn needs(
    settings: &InForce,
    workers: Workers,
    ends: &[EndNeed],
    groupings: usize,
    batch: bool,
) -> Vec<Need> {
    let beside = u64::from(workers.per_node.max(1)) - 1;
    let links = u64::from(workers.total() - 1) - beside;
    let link = settings.job.ring.memory_bytes();
    let mut needs = vec![Need {
        name: "rings",
        sum: format!(
            "{links} links x ({} ring + {} staging)",
            human(link.ring as u64),
            human(link.staging as u64)
        ),
        bytes: links * link.total() as u64,
        once: false,
        asks: false,
    }];
    if links > 0 {
        needs.extend(ends.iter().map(|end| Need {
            name: end.name,
            sum: match end.bytes {
                0 => format!("{}, not counted", end.what),
                bytes => format!("{links} links x {} {}", human(bytes), end.what),
            },
            bytes: links * end.bytes,
            once: false,
            asks: false,
        }));
    }
    if beside > 0 {
        needs.push(Need {
            name: "queues",
            sum: format!("{beside} in the process x {}, a limit", human(link.ring as u64)),
            bytes: beside * link.ring as u64,
            once: false,
            asks: false,
        });
    }
    if groupings > 0 {
        needs.push(Need {
            name: "state",
            sum: match &settings.job.spill {
                None => "millstream.state_bytes, a limit".into(),
                Some(folder) => format!("millstream.state_bytes; what is beyond goes to {folder}"),
            },
            bytes: settings.job.state_bytes_max as u64,
            once: false,
            asks: true,
        });
    }
    if batch {
        needs.push(Need {
            name: "batch stage",
            sum: "millstream.batch_bytes, a limit, worker 0 only".into(),
            bytes: settings.batch_bytes as u64,
            once: true,
            asks: true,
        });
    }
    needs
}

/// What so many operators keep whose rows go to every worker: frames that wait at a source, and
/// those of others that are passed on. Within one process rows are handed over by reference. Where
/// the network may carry payloads, with `member_bytes` in the transport, a source keeps them until
/// all have had them, and others put them together.
pub(crate) fn broadcast_needs(
    settings: &InForce,
    workers: Workers,
    (broadcasts, member_bytes): (usize, u64),
) -> Vec<Need> {
    let others = u64::from(workers.nodes - 1);
    let (ring, casting) = (settings.job.ring, &settings.job.casting);
    if broadcasts == 0 || others == 0 {
        return vec![];
    }
    let frame = u64::from(ring.slot_bytes);
    let queue = u64::from(casting.queue_frames);
    let relayed = others * u64::from(ring.slots);
    let mut needs = vec![Need {
        name: "broadcast",
        sum: format!("{broadcasts} x ({queue} + {relayed}) frames of {}", human(frame)),
        bytes: broadcasts as u64 * (queue + relayed) * frame,
        once: false,
        asks: false,
    }];
    if casting.wants_groups(workers.nodes) && member_bytes > 0 {
        let kept = Flight::<()>::kept_max(ring.slots as usize) as u64;
        let datagrams = human(member_bytes);
        needs.push(Need {
            name: "multicast",
            sum: format!(
                "{datagrams} of datagrams + {broadcasts} x {kept} payloads of {} x {} nodes, where \
                 the network has it",
                human(frame),
                workers.nodes
            ),
            bytes: member_bytes + broadcasts as u64 * kept * frame * u64::from(workers.nodes),
            once: false,
            asks: false,
        });
    }
    needs
}

/// A length of time in ticks of a timestamp type.
fn span(ticks: i64, data_type: &DataType) -> String {
    let unit = match data_type {
        DataType::Timestamp(unit, _) => *unit,
        _ => TimeUnit::Nanosecond,
    };
    span_ns(ticks.saturating_mul(tick_ns(unit)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_have_units() {
        assert_eq!(span(1500, &DataType::Timestamp(TimeUnit::Millisecond, None)), "1500 ms");
    }

    #[test]
    fn memory_is_a_sum_of_named_needs() {
        let workers = Workers { nodes: 2, per_node: 2 };
        let ends = [EndNeed { name: "inboxes", what: "for notices", bytes: 1 << 20 }];
        let needs = needs(&InForce::default(), workers, &ends, 1, true);
        assert_eq!(
            needs.iter().map(|n| n.name).collect::<Vec<_>>(),
            ["rings", "inboxes", "queues", "state", "batch stage"]
        );
        assert_eq!((needs[0].bytes, needs[1].bytes, needs[2].bytes), (2 << 20, 2 << 20, 1 << 19));
        assert_eq!(broadcast_needs(&InForce::default(), workers, (0, 9)), []);
        let names = |nodes, member_bytes| -> Vec<_> {
            let workers = Workers { nodes, ..workers };
            let needs = broadcast_needs(&InForce::default(), workers, (1, member_bytes));
            needs.iter().map(|need| (need.name, need.bytes)).collect()
        };
        let frame = 1 << 16;
        assert_eq!(names(2, 9), [("broadcast", (64 + 8) * frame)], "too few for the network");
        assert_eq!(names(4, 0), [("broadcast", (64 + 24) * frame)], "there are no groups");
        assert_eq!(names(4, 9)[1], ("multicast", 9 + 4 * 16 * frame));
        let (sections, operators) = (vec![], vec![]);
        let epoch = InForce::default().job.epoch;
        let explain = Explain { sections, operators, needs, workers, epoch };
        assert!(explain.text().contains("node 0       8.0 GiB + 2.0 GiB"), "{}", explain.text());
    }
}
