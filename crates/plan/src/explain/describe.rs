//! Descriptions of operators, in the words of the field.

use std::fmt::Write;

use arrow::datatypes::{DataType, Schema, TimeUnit};
use dataflow::job::{
    Aggregation, Description, Fusion, Input, NotFused, Operator, OperatorKind, Property, Window,
};
use dataflow::source::Source;

use super::modes;
use crate::logical::windows::{Lengths, WindowCall, WindowShape};
use crate::text::interval::tick_ns;
use crate::text::types::sql_name;
use crate::text::units::span_ns;

/// Describes an operator. With `readers`, sources report their flows for that many workers.
pub(super) fn describe(operator: &Operator, readers: Option<u32>) -> Description {
    let columns: Vec<Vec<String>> =
        (0..operator.inputs.len().max(2)).map(|input| operator.columns(input)).collect();
    let mut description = match &operator.kind {
        OperatorKind::Source(input) => {
            let mut properties = scanned(input, readers);
            properties.extend(fused(&operator.fusion));
            let name = if operator.fusion.is_ok() { "FusedScan" } else { "Scan" };
            Description { name, properties }
        }
        OperatorKind::Aggregate(spec) => grouped(spec, &columns[0], &operator.columns_out()),
        OperatorKind::Keyed(spec) => spec.operator.describe(&columns),
        OperatorKind::Lookup(spec) => spec.describe(&columns),
        OperatorKind::Sink { .. } => Description { name: "Sink", properties: vec![] },
    };
    description.name = operator.labels.name.unwrap_or(description.name);
    description.properties.extend(operator.labels.properties.iter().cloned());
    description
}

/// Describes a table that is read.
pub(super) fn scanned(input: &Input, readers: Option<u32>) -> Vec<Property> {
    let schema = input.source.schema();
    let names: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
    let mut properties = vec![];
    if let Some(readers) = readers {
        properties.push(("flows", flows(input.source.as_ref(), readers)));
    }
    properties.push(("columns", names.join(", ")));
    if let Some(watermark) = input.watermark {
        let field = schema.field(watermark.column);
        let delay = span(watermark.delay, field.data_type());
        let idle = watermark.idle_timeout_ns;
        let idle = idle.map_or(String::new(), |ns| format!(", idle after {}", span_ns(ns as i64)));
        properties.push(("watermark", format!("{} - {delay}{idle}", field.name())));
    }
    properties
}

/// What a scan is fused with, or why it is not fused with the aggregate that reads it.
fn fused(fusion: &Result<Fusion, NotFused>) -> Option<Property> {
    match fusion {
        Ok(Fusion { aggregate, lookup, columns, .. }) => {
            let filter = columns.filtered.then(|| "filter".to_owned());
            let division = columns.divided.then(|| "division".to_owned());
            let lookup = lookup.map(|lookup| format!("lookup [{}]", lookup.operator));
            let parts = [filter, division, lookup, Some(format!("aggregate [{aggregate}]"))];
            Some(("fused with", parts.into_iter().flatten().collect::<Vec<_>>().join(", ")))
        }
        Err(NotFused::Unplanned | NotFused::NoAggregate) => None,
        Err(reason) => Some(("not fused", reason.to_string())),
    }
}

/// The number of flows of a table for `readers` readers.
fn flows(source: &dyn Source, readers: u32) -> String {
    let end = if source.bounded() { "" } else { ", unbounded" };
    match source.splits(readers, None) {
        Err(error) => format!("unreadable ({error})"),
        Ok(flows) => {
            let rows: Option<u64> = flows.iter().map(|flow| flow.rows).sum();
            let rows = rows.map_or(String::new(), |rows| format!(", {rows} rows"));
            format!("{}{rows}{end}", flows.len())
        }
    }
}

/// A grouping; its keys come first among the columns that it emits, then its aggregates.
fn grouped(spec: &Aggregation, columns: &[String], emitted: &[String]) -> Description {
    let mut properties = vec![];
    if let Some(window) = &spec.window {
        let time = columns.get(window.column).map_or("", String::as_str);
        properties.push(("window", window_of(window, time)));
    }
    let typed = |name: &str, of: &DataType| format!("{name} {}", sql_name(of));
    let keys = spec.keys.iter().zip(&spec.group_by.keys);
    let keys: Vec<String> =
        keys.filter_map(|(&at, of)| Some(typed(columns.get(at)?, of))).collect();
    if !keys.is_empty() {
        properties.push(("group by", keys.join(", ")));
    }
    let first = spec.keys.len();
    let aggregates = emitted.iter().zip(spec.schema.fields()).skip(first);
    let aggregates = aggregates.take(spec.group_by.aggregates.len());
    let aggregates: Vec<String> =
        aggregates.map(|(name, field)| typed(name, field.data_type())).collect();
    if !aggregates.is_empty() {
        properties.push(("aggregates", aggregates.join(", ")));
    }
    properties.extend(modes::text(&spec.group_by).map(|mode| ("key mode", mode)));
    if let Some(every_ns) = spec.early_ns {
        let every = span_ns(i64::try_from(every_ns.get()).unwrap_or(i64::MAX));
        let text = format!("every {every} the windows that have changed, and each at its end");
        properties.push(("emit", text));
    }
    let name = if spec.window.is_some() { "WindowAggregate" } else { "Aggregate" };
    Description { name, properties }
}

/// The window of a grouping over the time column of that name.
fn window_of(window: &Window, time: &str) -> String {
    if window.attached {
        return format!("assigned before, by {time}");
    }
    let tick = tick_ns(unit_of(&window.time_type));
    let ns = |ticks: i64| ticks.saturating_mul(tick);
    let windows = &window.windows;
    let (size, slide) = (ns(windows.size()), ns(windows.slide()));
    let (shape, size) = match windows.gap() {
        Some(gap) => (WindowShape::Session, ns(gap)),
        None if windows.cumulate() => (WindowShape::Cumulate, size),
        None if size == slide => (WindowShape::Tumble, size),
        None => (WindowShape::Hop, size),
    };
    shown(shape, time, [size, slide, ns(windows.offset())])
}

/// The windows of a call.
pub(crate) fn window_text(window: &WindowCall) -> String {
    let Lengths { size_ns, slide_ns, offset_ns } = window.lengths;
    shown(window.shape, &window.time.human_display().to_string(), [size_ns, slide_ns, offset_ns])
}

/// Windows by their size (of sessions, the gap), slide and offset in nanoseconds.
fn shown(shape: WindowShape, time: &str, [size, slide, offset]: [i64; 3]) -> String {
    let (size, slide) = (span_ns(size), span_ns(slide));
    let mut text = match shape {
        WindowShape::Tumble => format!("TUMBLE({time}, SIZE {size}"),
        WindowShape::Hop => format!("HOP({time}, SLIDE {slide}, SIZE {size}"),
        WindowShape::Cumulate => format!("CUMULATE({time}, STEP {slide}, SIZE {size}"),
        WindowShape::Session => format!("SESSION({time}, GAP {size}"),
    };
    if offset != 0 {
        // Writing to a String cannot fail.
        let _ = write!(text, ", OFFSET {}", span_ns(offset));
    }
    text.push(')');
    text
}

/// The type of the time of which the watermarks of an input speak.
pub(super) fn time_type(kind: &OperatorKind, input: usize) -> Option<DataType> {
    let of = |schema: &Schema, column: usize| schema.field(column).data_type().clone();
    match kind {
        OperatorKind::Aggregate(spec) => spec.window.as_ref().map(|of| of.time_type.clone()),
        OperatorKind::Keyed(spec) => {
            let input = spec.inputs.get(input)?;
            input.time.map(|time| of(&input.schema, time))
        }
        OperatorKind::Source(_) | OperatorKind::Lookup(_) | OperatorKind::Sink { .. } => None,
    }
}

/// A length of time in ticks of a timestamp type.
pub(super) fn span(ticks: i64, data_type: &DataType) -> String {
    span_ns(ticks.saturating_mul(tick_ns(unit_of(data_type))))
}

fn unit_of(data_type: &DataType) -> TimeUnit {
    match data_type {
        DataType::Timestamp(unit, _) => *unit,
        _ => TimeUnit::Nanosecond,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_have_units() {
        assert_eq!(span(1500, &DataType::Timestamp(TimeUnit::Millisecond, None)), "1500 ms");
    }

    #[test]
    fn windows_are_written_as_in_sql() {
        let s = 1_000_000_000;
        assert_eq!(
            shown(WindowShape::Tumble, "ts", [60 * s, 60 * s, s]),
            "TUMBLE(ts, SIZE 1 min, OFFSET 1 s)"
        );
        assert_eq!(shown(WindowShape::Hop, "ts", [60 * s, s, 0]), "HOP(ts, SLIDE 1 s, SIZE 1 min)");
        assert_eq!(shown(WindowShape::Session, "ts", [s, s, 0]), "SESSION(ts, GAP 1 s)");
    }
}
