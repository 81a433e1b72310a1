//! Operators on rows of equal keys: aggregates, joins, user-defined operators.

use std::sync::Arc;
use std::time::Duration;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use dataflow::fragment::WindowColumns;
use dataflow::job::{
    Aggregation, Distribution, Exchange, Keyed, KeyedInput, KeyedOperator, Labels, OperatorKind,
    TimeWindow,
};
use dataflow::keyed::{JoinKind, JoinSide, RowSessions, WindowJoin};
use state::{GroupBy, StateOptions, Windows};

use crate::Stream;
use crate::aggregate::Agg;
use crate::error::{StreamError, check_names, index_of};
use crate::node::{Choice, StreamNode};
use crate::stream::same_types;
use crate::window::{Window, ticks_of};

/// A stream whose rows of equal keys shall meet.
#[derive(Clone)]
pub struct KeyedStream {
    pub(crate) stream: Stream,
    pub(crate) keys: Vec<usize>,
    pub(crate) distribution: Distribution,
    pub(crate) choice: Choice,
}

/// Rows of equal keys and one window.
#[derive(Clone)]
pub struct WindowedStream {
    keyed: KeyedStream,
    window: TimeWindow,
    timed: bool,
    every: i64,
}

impl KeyedStream {
    /// How the rows of different workers meet, whatever would be chosen. With
    /// [`Exchange::Forward`] they do not: each worker emits what its own rows come to, the
    /// local half of an aggregate in two stages (A6).
    pub fn exchange(self, exchange: Exchange) -> Self {
        Self { choice: Choice::Exchange(exchange), ..self }
    }

    /// Every row to every worker (W1): the other side of a join, or the other inputs of an operator
    /// of one's own, need not bring rows of equal keys together.
    pub fn to_all(self) -> Self {
        Self { distribution: Distribution::Broadcast, ..self }
    }

    /// One row to each worker in turn, whatever its key: beside an input that goes
    /// [to all](Self::to_all).
    pub fn in_turn(self) -> Self {
        Self { distribution: Distribution::RoundRobin, ..self }
    }

    /// The rows stay on the workers that have them, whatever their key: beside an input that goes
    /// [to all](Self::to_all).
    pub fn in_place(self) -> Self {
        Self { distribution: Distribution::Local, ..self }
    }

    /// In windows of the stream's time.
    ///
    /// # Errors
    /// When the stream has no time, or a size is no whole number of its ticks.
    pub fn window(self, window: &Window) -> Result<WindowedStream, StreamError> {
        let (column, windows) = window.over(&self.stream)?;
        let time_type = self.stream.schema.field(column).data_type().clone();
        let timed = self.stream.time == Some(column);
        let every = window.every(windows);
        let lateness = window.waits(&self.stream, column)?;
        let keyed = Self { stream: Stream { lateness, ..self.stream }, ..self };
        let window = TimeWindow { column, time_type, windows, attached: false };
        Ok(WindowedStream { keyed, window, timed, every })
    }

    /// Each row with the session that it is in: the rows of a key between which no pause is longer
    /// than `gap`. Three more columns tell it, `window_start`, `window_end` and `window_time`,
    /// which is the time of the new stream. Rows wait until their session has ended. For joins and
    /// first rows of sessions; an aggregate asks for [`Window::session`] itself, which costs less.
    ///
    /// ```
    /// use std::time::Duration;
    /// use stream::{Order, Stream, StreamError};
    ///
    /// /// The first click of each visit: of a user who was not there for half an hour before.
    /// fn first_clicks(clicks: Stream) -> Result<Stream, StreamError> {
    ///     let visits = clicks.key_by(&["user"])?.in_sessions(Duration::from_secs(1_800))?;
    ///     visits.key_by(&["user"])?.top(1, &[Order::ascending("ts")], "place")
    /// }
    /// ```
    ///
    /// # Errors
    /// When the stream has no time, the gap is no whole number of its ticks, or a name is taken.
    pub fn in_sessions(self, gap: Duration) -> Result<Stream, StreamError> {
        let Some(time) = self.stream.time else {
            return Err(StreamError::refused(
                "sessions of a stream that has no time",
                "give the source one (EventTime), and keep its column (Columns::of)",
            ));
        };
        let before = &self.stream.schema;
        let gap = ticks_of(gap, before.field(time))?;
        let of = before.field(time).data_type();
        let bounds = ["window_start", "window_end", "window_time"];
        let bounds = bounds.map(|name| Arc::new(Field::new(name, of.clone(), true)));
        let fields = before.fields().iter().cloned().chain(bounds);
        let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        check_names(&schema)?;
        let first = before.fields().len();
        let operator = RowSessions {
            input: before.clone(),
            keys: self.keys.clone(),
            time,
            gap,
            given: None,
            schema: schema.clone(),
        };
        let spec = Keyed {
            inputs: vec![self.input(Some(time), gap, None)],
            exchange: Exchange::Shuffle,
            granularity: (gap / 4).max(1),
            operator: Arc::new(operator),
        };
        let node = StreamNode {
            name: "SessionWindow".into(),
            inputs: vec![self.stream.input_edges(true)],
            kind: OperatorKind::Keyed(spec),
            choice: self.choice,
            labels: Labels::default(),
        };
        let window = WindowColumns { start: first, end: first + 1, time: first + 2 };
        let stream = Stream::of_node(node, schema, self.stream.bounded);
        Ok(Stream { time: Some(window.time), window: Some(window), ..stream })
    }

    /// In the windows that the rows belong to already.
    ///
    /// # Errors
    /// When they belong to none.
    pub fn same_windows(mut self) -> Result<WindowedStream, StreamError> {
        let Some(WindowColumns { start, end, time }) = self.stream.window else {
            return Err(StreamError::refused(
                "rows that belong to no window",
                "give them one: keyed.window(…) or stream.in_windows(…)",
            ));
        };
        if self.stream.time != Some(time) && !self.stream.bounded {
            return Err(StreamError::refused(
                "windows that no operator has emitted",
                "aggregate the rows in windows first",
            ));
        }
        let timed = self.stream.time == Some(time);
        let time_type = self.stream.schema.field(time).data_type().clone();
        for key in [start, end] {
            if !self.keys.contains(&key) {
                self.keys.push(key);
            }
        }
        // Rows of one window have the same time: one tick is all that they need.
        let windows = Windows::tumbling(1, 0);
        let windows = windows.ok_or_else(|| StreamError::refused("a window", "of one tick"))?;
        let window = TimeWindow { column: time, time_type, windows, attached: true };
        Ok(WindowedStream { keyed: self, window, timed, every: 1 })
    }

    /// Aggregates over all rows, emitted at the end of a bounded stream: a column for each key
    /// and each aggregate.
    ///
    /// # Errors
    /// When the stream never ends, an aggregate does not fit or names are taken.
    pub fn aggregate(self, aggregates: &[Agg]) -> Result<Stream, StreamError> {
        if !self.stream.bounded {
            return Err(StreamError::refused(
                "rows that never end cannot be grouped without a window",
                "give them one: keyed.window(…)",
            ));
        }
        let columns = self.keys.len() + aggregates.len();
        let (node, schema) = self.grouping("Aggregate", None, false, aggregates)?;
        debug_assert_eq!(columns, schema.fields().len());
        check_names(&schema)?;
        Ok(Stream::of_node(node, schema, true))
    }

    /// Pairs of rows of equal keys and windows, and, as `kind` says, rows without a partner. The
    /// columns are those of this side, then those of the other, where a name that is taken ends in
    /// `_right`; or those of one side.
    ///
    /// # Errors
    /// When a side's rows belong to no windows ([`Stream::in_windows`]), keys are of different
    /// types, or rows of equal keys do not meet once.
    pub fn join(self, other: KeyedStream, kind: JoinKind) -> Result<Stream, StreamError> {
        let sides = [&self, &other];
        meets_once([self.distribution, other.distribution], kind)?;
        same_types([(&self.stream.schema, &self.keys), (&other.stream.schema, &other.keys)])?;
        let why = "a join would have to remember every row";
        let [left, right] = [self.windows(why)?, other.windows(why)?];
        let ends = [vec![left.end], vec![right.end]];
        same_types([(&self.stream.schema, &ends[0]), (&other.stream.schema, &ends[1])])?;
        let both = side_by_side(&self.stream.schema, &other.stream.schema);
        let first = self.stream.schema.fields().len();
        let part = |from: usize, to: usize| Arc::new(Schema::new(both.fields()[from..to].to_vec()));
        let of_right = matches!(kind, JoinKind::RightSemi | JoinKind::RightAnti);
        let (schema, right_first) = match kind {
            JoinKind::LeftSemi | JoinKind::LeftAnti => (part(0, first), first),
            _ if of_right => (part(first, both.fields().len()), 0),
            _ => (both.clone(), first),
        };
        let side = |(keyed, window): (&KeyedStream, WindowColumns)| JoinSide {
            schema: keyed.stream.schema.clone(),
            // Windows of different lengths may end together.
            keys: keyed.keys.iter().copied().chain([window.start]).collect(),
            window_end: window.end,
        };
        let join = WindowJoin {
            sides: [side((&self, left)), side((&other, right))],
            kind,
            on: None,
            schema: schema.clone(),
            both,
        };
        let by_right = of_right || kind == JoinKind::Right;
        let window = if !by_right {
            left
        } else {
            let WindowColumns { start, end, time } = right;
            let [start, end, time] = [start, end, time].map(|at| at + right_first);
            WindowColumns { start, end, time }
        };
        let inputs = sides.iter().zip([left, right]).map(|(keyed, window)| {
            let time = Some(window.end);
            keyed.input(time, 0, Some(window.end))
        });
        let spec = Keyed {
            inputs: inputs.collect(),
            exchange: Exchange::Shuffle,
            granularity: if self.stream.every == other.stream.every {
                self.stream.every
            } else {
                1
            },
            operator: Arc::new(join),
        };
        // Rows that are emitted without a match have no time on the other side.
        let known = kind != JoinKind::Full;
        let bounded = self.stream.bounded && other.stream.bounded;
        let choice = if other.choice == Choice::Auto { self.choice } else { other.choice };
        let node = StreamNode {
            name: "WindowJoin".into(),
            inputs: sides
                .map(|keyed| keyed.stream.input_edges(keyed.stream.time.is_some()))
                .to_vec(),
            kind: OperatorKind::Keyed(spec),
            choice,
            labels: Labels::default(),
        };
        Ok(Stream {
            time: known.then_some(window.time),
            window: known.then_some(window),
            ..Stream::of_node(node, schema, bounded)
        })
    }

    /// The windows of the rows; `why` they are needed.
    pub(crate) fn windows(&self, why: &str) -> Result<WindowColumns, StreamError> {
        self.stream.window.filter(|_| self.stream.bounded || self.stream.time.is_some()).ok_or_else(
            || {
                StreamError::refused(
                    why,
                    "take rows of windows: stream.in_windows(…), or aggregates of windows",
                )
            },
        )
    }

    pub(crate) fn input(&self, time: Option<usize>, grace: i64, or: Option<usize>) -> KeyedInput {
        let keys = if self.keys.is_empty() {
            // Without keys, the rows of one window meet.
            or.into_iter().collect()
        } else {
            self.keys.clone()
        };
        KeyedInput {
            schema: self.stream.schema.clone(),
            keys,
            distribution: self.distribution,
            time,
            grace,
        }
    }

    /// The node of an aggregate, and the columns that it emits.
    fn grouping(
        self,
        name: &str,
        window: Option<TimeWindow>,
        timed: bool,
        aggregates: &[Agg],
    ) -> Result<(StreamNode, SchemaRef), StreamError> {
        if self.distribution != Distribution::Hash {
            return Err(StreamError::refused(
                "rows that are not distributed by their key cannot be grouped by it",
                "leave out to_all, in_turn and in_place",
            ));
        }
        let before = &self.stream.schema;
        let (mut functions, mut args) = (vec![], vec![]);
        for aggregate in aggregates {
            let (function, columns) = aggregate.over(before)?;
            functions.push(function);
            args.push(columns);
        }
        let mut fields: Vec<Field> =
            self.keys.iter().map(|&key| before.field(key).clone()).collect();
        let named = aggregates.iter().zip(&functions);
        fields
            .extend(named.map(|(of, function)| Field::new(&of.name, function.output_type(), true)));
        if let Some(window) = &window {
            let names = if !window.attached {
                ["window_start", "window_end", "window_time"]
            } else {
                ["tick_start", "tick_end", "tick_time"]
            };
            fields.extend(names.map(|name| Field::new(name, window.time_type.clone(), true)));
        }
        let schema: SchemaRef = Arc::new(Schema::new(fields));
        let spec = Aggregation {
            group_by: Arc::new(GroupBy {
                keys: self.keys.iter().map(|&k| before.field(k).data_type().clone()).collect(),
                aggregates: functions,
                options: StateOptions::default(),
            }),
            input_schema: before.clone(),
            keys: self.keys,
            args,
            window,
            exchange: Exchange::Merge,
            early_ns: None,
            schema: schema.clone(),
        };
        let node = StreamNode {
            name: name.to_owned(),
            inputs: vec![self.stream.input_edges(timed)],
            kind: OperatorKind::Aggregate(Box::new(spec)),
            choice: self.choice,
            labels: Labels::default(),
        };
        Ok((node, schema))
    }
}

impl WindowedStream {
    /// Aggregates of each window: a column for each key and each aggregate, then `window_start`,
    /// `window_end` and `window_time`, which is the time of the new stream.
    ///
    /// # Errors
    /// When an aggregate does not fit or names are taken.
    pub fn aggregate(self, aggregates: &[Agg]) -> Result<Stream, StreamError> {
        self.aggregate_as("WindowAggregate", aggregates)
    }

    /// The same rows as [`WindowedStream::aggregate`], by an explicit plan of two stages (A6): each
    /// worker aggregates its own rows and emits its parts when the window has ended for them,
    /// and the parts are sent to the worker of their key and put together. In the plan they are
    /// `local aggregate` and `global aggregate`. Without it, states are merged while windows are
    /// open (`merge`), or rows are sent (`shuffle`).
    ///
    /// ```
    /// use std::time::Duration;
    /// use stream::{Agg, Stream, StreamError, Window};
    ///
    /// fn clicks(events: Stream) -> Result<Stream, StreamError> {
    ///     let minute = Window::tumble(Duration::from_secs(60));
    ///     let minutes = events.key_by(&["page"])?.window(&minute)?;
    ///     minutes.local_global(&[Agg::count("clicks"), Agg::max("price", "highest")])
    /// }
    /// ```
    ///
    /// # Errors
    /// As [`WindowedStream::aggregate`]; of sessions, whose parts are of other sessions; and of
    /// means and functions of one's own, of whose results there is nothing to be put together.
    pub fn local_global(self, aggregates: &[Agg]) -> Result<Stream, StreamError> {
        if self.window.windows.gap().is_some() {
            return Err(StreamError::refused(
                "sessions of one worker's rows are not the sessions of all rows",
                "aggregate them in one stage: windowed.aggregate(…)",
            ));
        }
        let global = aggregates.iter().map(Agg::of_parts).collect::<Result<Vec<_>, _>>()?;
        let Self { keyed, window, timed, every } = self;
        let attached = keyed.stream.window.filter(|_| window.attached);
        let bound = |key: &usize| attached.is_some_and(|w| [w.start, w.end].contains(key));
        let own = keyed.keys.iter().filter(|key| !bound(key));
        let name = |&key: &usize| keyed.stream.schema.field(key).name().clone();
        let keys: Vec<String> = own.map(name).collect();
        let keyed = keyed.exchange(Exchange::Forward);
        let local = Self { keyed, window, timed, every }.aggregate_as("local", aggregates)?;
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let together = local.key_by(&keys)?.exchange(Exchange::Shuffle).same_windows()?;
        let stream = together.aggregate_as("global", &global)?;
        Ok(Stream { every, ..stream })
    }

    fn aggregate_as(self, name: &str, aggregates: &[Agg]) -> Result<Stream, StreamError> {
        let Self { keyed, window, timed, every } = self;
        let (bounded, of, before) = (keyed.stream.bounded, keyed.keys.clone(), keyed.stream.window);
        let attached = window.attached;
        let (node, schema) = keyed.grouping(name, Some(window), timed, aggregates)?;
        let first = of.len() + aggregates.len();
        let stream = Stream::of_node(node, schema, bounded);
        if let (true, Some(before)) = (attached, before) {
            return again(stream, &of, before, first);
        }
        check_names(&stream.schema)?;
        let window = WindowColumns { start: first, end: first + 1, time: first + 2 };
        Ok(Stream { time: Some(window.time), window: Some(window), every, ..stream })
    }
}

/// The output columns of a window aggregation: the keys without the windows' bounds, the
/// aggregates, and then these. The start is the time of the output.
fn again(
    stream: Stream,
    keys: &[usize],
    before: WindowColumns,
    first: usize,
) -> Result<Stream, StreamError> {
    let place = |key: usize| keys.iter().position(|of| *of == key).unwrap_or_default();
    let (start, end, time) = (place(before.start), place(before.end), first);
    let window = Some(WindowColumns { start, end, time });
    let keep = (0..first).filter(|at| *at != start && *at != end).chain([start, end, time]);
    let names = [(start, "window_start"), (end, "window_end"), (time, "window_time")];
    Stream { time: Some(time), window, ..stream }.narrowed(keep.collect(), &names)
}

/// An operator of one's own over any number of inputs: rows of one key come to one worker, or where
/// the operator's [`partitioner`](KeyedOperator::partitioner) leads them. `time` names the column
/// of what it emits of which [`KeyedState::complete`](dataflow::job::KeyedState::complete) speaks.
///
/// Rows of windows are late when their window was over before they came; other rows of a stream
/// with a time when the watermark had passed them.
///
/// # Errors
/// When there is no input, keys are of different types, or `time` is unknown.
pub fn process(
    name: &str,
    inputs: &[KeyedStream],
    operator: Arc<dyn KeyedOperator>,
    time: Option<&str>,
) -> Result<Stream, StreamError> {
    let Some(first) = inputs.first() else {
        return Err(StreamError::refused(format!("'{name}' has no input"), "give it one"));
    };
    for other in &inputs[1..] {
        same_types([(&first.stream.schema, &first.keys), (&other.stream.schema, &other.keys)])?;
    }
    let schema = operator.schema();
    let time = time.map(|time| index_of(&schema, time)).transpose()?;
    if let Some(at) = time
        && !matches!(schema.field(at).data_type(), DataType::Timestamp(..))
    {
        return Err(StreamError::Type {
            name: schema.field(at).name().clone(),
            found: schema.field(at).data_type().clone(),
            needs: "event time is a timestamp".into(),
        });
    }
    let input = |keyed: &KeyedStream| match keyed.stream.window {
        Some(window) => keyed.input(Some(window.end), 0, None),
        None => keyed.input(keyed.stream.time, 1, None),
    };
    let choice = inputs.iter().map(|keyed| keyed.choice).find(|choice| *choice != Choice::Auto);
    let node = StreamNode {
        name: name.to_owned(),
        inputs: inputs
            .iter()
            .map(|keyed| keyed.stream.input_edges(keyed.stream.time.is_some()))
            .collect(),
        kind: OperatorKind::Keyed(Keyed {
            inputs: inputs.iter().map(input).collect(),
            exchange: Exchange::Shuffle,
            granularity: 1,
            operator,
        }),
        choice: choice.unwrap_or(Choice::Auto),
        labels: Labels::default(),
    };
    let bounded = inputs.iter().all(|keyed| keyed.stream.bounded);
    Ok(Stream { time, ..Stream::of_node(node, schema, bounded) })
}

/// Refuses a join whose sides are led so that a pair of rows would not meet, or more than once.
fn meets_once(distributions: [Distribution; 2], kind: JoinKind) -> Result<(), StreamError> {
    use JoinKind::{Inner, Left, LeftAnti, LeftSemi, Right, RightAnti, RightSemi};
    let fits = match distributions {
        [Distribution::Hash, Distribution::Hash] => return Ok(()),
        [Distribution::Broadcast, Distribution::Broadcast] => {
            let hint = "broadcast one side, and distribute the other by its key";
            return Err(StreamError::refused("every worker would join each pair of rows", hint));
        }
        [_, Distribution::Broadcast] => matches!(kind, Inner | Left | LeftSemi | LeftAnti),
        [Distribution::Broadcast, _] => matches!(kind, Inner | Right | RightSemi | RightAnti),
        _ => {
            let hint = "broadcast the other side: key_by(…).to_all()";
            return Err(StreamError::refused(
                "rows with equal keys would be on different workers",
                hint,
            ));
        }
    };
    if fits {
        Ok(())
    } else {
        Err(StreamError::refused(
            "no worker knows whether a broadcast row has a match",
            "broadcast the other side",
        ))
    }
}

/// The columns of both sides of a join; of the right side those whose name is taken end in
/// `_right`. Any of them may be NULL.
pub(crate) fn side_by_side(left: &Schema, right: &Schema) -> SchemaRef {
    let mut fields: Vec<Field> =
        left.fields().iter().map(|field| field.as_ref().clone().with_nullable(true)).collect();
    for field in right.fields() {
        let mut name = field.name().clone();
        while fields.iter().any(|taken| *taken.name() == name) {
            name.push_str("_right");
        }
        fields.push(field.as_ref().clone().with_name(name).with_nullable(true));
    }
    Arc::new(Schema::new(fields))
}
