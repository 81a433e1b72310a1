//! Groupings, as data.

use std::num::NonZeroU64;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use state::{GroupBy, Windows, aggregates};

use super::{
    Copies, Deployment, DescribeContext, Description, Distribution, Exchange, OperatorSpec,
    RowOwner, SavedPart, SavedParts, SavedState, StateEstimate, StateMemory, Statistics, Strategy,
};
use crate::rows::size::{INDEX_BYTES, VARIABLE_BYTES, element_bytes, value_bytes};
use crate::rows::time::{span_text, ticks_text};
use crate::rows::type_name::type_name;

/// Grouping by keys and, mostly, a window of event time.
#[derive(Clone)]
pub struct Aggregation {
    /// Columns that reach the grouping.
    pub input_schema: SchemaRef,
    /// Types of the keys, and the aggregates; not both empty.
    pub group_by: Arc<GroupBy>,
    /// The key columns of the input.
    pub keys: Vec<usize>,
    /// The argument columns of each aggregate in the input.
    pub args: Vec<Vec<usize>>,
    /// The window; without one there is a single group per key, emitted when the (bounded) input
    /// has ended.
    pub window: Option<TimeWindow>,
    /// How the partial states of the workers meet.
    pub exchange: Exchange,
    /// Nanoseconds between two looks at windows that have not ended: each that has changed since
    /// emits an early result. `None` where windows emit once, as sessions always do.
    pub early_ns: Option<NonZeroU64>,
    /// Columns emitted: keys, aggregates, then `window_start`, `window_end`, `window_time` if
    /// there is a window, then a string if windows emit early results: [`EARLY`] or [`FINAL`].
    pub schema: SchemaRef,
}

impl Aggregation {
    /// Whether each group has a window of its own.
    pub fn has_sessions(&self) -> bool {
        self.window.as_ref().is_some_and(|window| window.windows.gap().is_some())
    }

    /// The grouping as it is done. A partial session is a group like any other, with two
    /// aggregates more: the least and the greatest time of its rows.
    pub(crate) fn with_session_times(&self) -> Self {
        let mut spec = self.clone();
        let Some(window) = spec.window.as_ref().filter(|window| window.windows.gap().is_some())
        else {
            return spec;
        };
        let times = [aggregates::min(&window.time_type), aggregates::max(&window.time_type)];
        let GroupBy { keys, aggregates, options } = &*spec.group_by;
        let aggregates = aggregates.iter().cloned().chain(times.into_iter().flatten()).collect();
        spec.args.extend([vec![window.column], vec![window.column]]);
        let (keys, options) = (keys.clone(), options.clone());
        spec.group_by = Arc::new(GroupBy { keys, aggregates, options });
        spec
    }

    /// The parts of its state: groups with the key of their slice, which is NULL for a session that
    /// a later slice may continue; windows of which an early result was emitted, and whether that
    /// is still their latest; whether a row was emitted at all, where there are no keys.
    pub(crate) fn saved_parts(&self) -> SavedParts {
        let GroupBy { keys, .. } = &*self.group_by;
        let keys = keys.iter().enumerate().map(|(at, of)| (format!("key{at}"), of.clone()));
        let states = self.with_session_times().group_by.state_types().into_iter().enumerate();
        let states = states.map(|(at, of)| (format!("state{at}"), of));
        let slice = ("slice".to_owned(), DataType::Int64);
        let part = |columns: Vec<(String, DataType)>, owner| {
            let fields = columns.into_iter().map(|(name, of)| Field::new(name, of, true));
            SavedPart { schema: Arc::new(Schema::new(fields.collect::<Vec<_>>())), owner }
        };
        let groups = [slice].into_iter().chain(keys).chain(states).collect();
        let early = vec![("end".into(), DataType::Int64), ("latest".into(), DataType::Boolean)];
        let emitted = vec![("emitted".into(), DataType::Boolean)];
        let parts = vec![
            part(groups, RowOwner::Keys(self.keys.iter().copied().zip(1..).collect())),
            part(early, RowOwner::Every),
            part(emitted, RowOwner::First),
        ];
        SavedParts { version: 1, parts }
    }
}

/// The kind of rows of a window that may change.
pub const EARLY: &str = "early";

/// The kind of rows of a window that has ended.
pub const FINAL: &str = "final";

/// A window over a time column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimeWindow {
    /// The time column of the input.
    pub column: usize,
    /// Its type: a timestamp; ticks below are of its unit.
    pub time_type: DataType,
    /// Sizes in ticks. Sessions are those of the grouping's keys.
    pub windows: Windows,
    /// Whether these stand for the windows that rows belong to already, and the column is the
    /// rows' `window_time`: then a window is one tick, and its start is the time of what is given
    /// out.
    pub attached: bool,
}

impl OperatorSpec for Aggregation {
    fn input_schema(&self, _: usize) -> Option<SchemaRef> {
        Some(self.input_schema.clone())
    }

    fn schema(&self) -> Option<SchemaRef> {
        Some(self.schema.clone())
    }

    fn saved_state(&self) -> SavedState {
        SavedState::Parts(self.saved_parts())
    }

    fn describe(&self, context: &DescribeContext<'_>) -> Description {
        let columns = context.of(0);
        let mut properties = vec![];
        if let Some(window) = &self.window {
            let time = columns.get(window.column).map_or("", String::as_str);
            properties.push(("window", window.text(time)));
        }
        let typed = |name: &str, of: &DataType| format!("{name} {}", type_name(of, "STRING"));
        let keys = self.keys.iter().zip(&self.group_by.keys);
        let keys: Vec<String> =
            keys.filter_map(|(&at, of)| Some(typed(columns.get(at)?, of))).collect();
        if !keys.is_empty() {
            properties.push(("group by", keys.join(", ")));
        }
        let aggregates = context.emitted.iter().zip(self.schema.fields()).skip(self.keys.len());
        let aggregates = aggregates.take(self.group_by.aggregates.len());
        let aggregates: Vec<String> =
            aggregates.map(|(name, field)| typed(name, field.data_type())).collect();
        if !aggregates.is_empty() {
            properties.push(("aggregates", aggregates.join(", ")));
        }
        if let Some(every_ns) = self.early_ns {
            let every = span_text(i64::try_from(every_ns.get()).unwrap_or(i64::MAX));
            let text = format!("every {every} the windows that have changed, and each at its end");
            properties.push(("emit", text));
        }
        let name = if self.window.is_some() { "WindowAggregate" } else { "Aggregate" };
        Description { name, properties }
    }

    fn statistics(&self, inputs: &[Statistics], _: u32) -> Statistics {
        inputs.first().map_or_else(Statistics::default, |rows| rows.grouped(self))
    }

    fn state(&self, inputs: &[Statistics], deployment: Deployment) -> Vec<StateEstimate> {
        let Some(rows) = inputs.first() else { return vec![] };
        let types = self.group_by.keys.iter().cloned().chain(self.group_by.state_types());
        let (lists, fixed): (Vec<_>, Vec<_>) = types.partition(DataType::is_nested);
        let index = if self.keys.is_empty() { 0 } else { INDEX_BYTES };
        let lists_bytes = VARIABLE_BYTES * lists.len() as u64;
        let groups = rows.groups_max(self);
        // Each worker has a part of what it has read, the leaders have the whole.
        let workers = u64::from(deployment.workers);
        let count_max = match self.exchange {
            Exchange::Merge if workers > 1 => groups.map(|groups| {
                let parts = groups.saturating_mul(workers);
                groups.saturating_add(rows.rows_max.map_or(parts, |rows| rows.min(parts)))
            }),
            _ => groups,
        };
        let which = if self.window.is_some() { " of open windows" } else { "" };
        let mut parts = vec![StateEstimate {
            unit: "group",
            which: which.into(),
            each_bytes: index + fixed.iter().map(value_bytes).sum::<u64>() + lists_bytes,
            count_max,
            copies: Copies::ONE,
        }];
        if !lists.is_empty() {
            parts.push(StateEstimate {
                unit: "value",
                which: format!("{which} that are kept one by one"),
                each_bytes: lists.iter().map(element_bytes).sum(),
                count_max: rows.rows_max,
                copies: Copies::ONE,
            });
        }
        parts
    }

    fn memory(&self) -> StateMemory {
        StateMemory::Spillable
    }

    fn waits_for_rows(&self) -> bool {
        true
    }

    fn exchange(&self) -> Option<Exchange> {
        Some(self.exchange)
    }

    fn exchange_mut(&mut self) -> Option<&mut Exchange> {
        Some(&mut self.exchange)
    }

    fn merges(&self) -> bool {
        true
    }

    fn keys(&self, _: usize) -> &[usize] {
        &self.keys
    }

    fn key_types(&self) -> Option<Vec<DataType>> {
        Some(self.group_by.keys.clone())
    }

    fn distribution(&self, _: usize) -> Option<Distribution> {
        Some(Distribution::Hash)
    }

    fn strategy(&self, _: usize, _: u32) -> Strategy {
        self.exchange.into()
    }

    /// Its keys are the first columns that it emits.
    fn passes_on(&self, _: usize, column: usize) -> Option<usize> {
        self.keys.iter().position(|&key| key == column)
    }

    fn window_time(&self) -> Option<usize> {
        self.window.as_ref().map(|window| window.column)
    }

    fn time_type(&self, _: usize) -> Option<DataType> {
        self.window.as_ref().map(|window| window.time_type.clone())
    }
}

impl TimeWindow {
    /// The window as in SQL, over the time column of that name.
    fn text(&self, time: &str) -> String {
        if self.attached {
            return format!("assigned before, by {time}");
        }
        let text = |ticks: i64| ticks_text(ticks, &self.time_type);
        let windows = &self.windows;
        let (size, slide) = (text(windows.size()), text(windows.slide()));
        let offset = Some(windows.offset()).filter(|&offset| offset != 0).map(text);
        match windows.gap() {
            Some(gap) => window_text("SESSION", time, &[("GAP", text(gap))], offset),
            None if windows.cumulate() => {
                window_text("CUMULATE", time, &[("STEP", slide), ("SIZE", size)], offset)
            }
            None if windows.size() == windows.slide() => {
                window_text("TUMBLE", time, &[("SIZE", size)], offset)
            }
            None => window_text("HOP", time, &[("SLIDE", slide), ("SIZE", size)], offset),
        }
    }
}

/// A window function as in SQL: its name, its time column, its lengths and the offset of its
/// windows, if they have one.
pub fn window_text(
    name: &str,
    time: &str,
    lengths: &[(&str, String)],
    offset: Option<String>,
) -> String {
    let lengths = lengths.iter().map(|(label, length)| format!(", {label} {length}"));
    let offset = offset.map(|offset| format!(", OFFSET {offset}"));
    format!("{name}({time}{})", lengths.chain(offset).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_written_as_in_sql() {
        let text = |windows: Windows| {
            let time_type = DataType::Timestamp(arrow::datatypes::TimeUnit::Second, None);
            TimeWindow { column: 0, time_type, windows, attached: false }.text("ts")
        };
        assert_eq!(text(Windows::tumbling(60, 1).unwrap()), "TUMBLE(ts, SIZE 1 min, OFFSET 1 s)");
        assert_eq!(text(Windows::hopping(60, 1, 0).unwrap()), "HOP(ts, SLIDE 1 s, SIZE 1 min)");
        assert_eq!(text(Windows::sessions(1).unwrap()), "SESSION(ts, GAP 1 s)");
    }
}
