//! Streams: rows of the same columns on their way.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{BooleanArray, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use dataflow::error::DataflowError;
use dataflow::fragment::{Fragment, WindowColumns};
use dataflow::job::{
    Distribution, Exchange, FILTER, Keyed, KeyedInput, KeyedOperator, Labels, MultiPartitioner,
    OnBad, OperatorKind, PROJECT, Property, RowPartitioner, Scan, SinkSpec, Step, TimeColumn,
    Watermark,
};
use dataflow::keyed::{Reroute, To};
use dataflow::sink::Sink;
use dataflow::source::Source;
use dataflow::step::chain;

use crate::error::{StreamError, check_names, index_of, indices_of, sql_type};
use crate::keyed::KeyedStream;
use crate::node::{Choice, InputEdge, StreamNode, Upstream, nodes_of};
use crate::row::{Cell, Row, columns_of, takes_cells};
use crate::step::{Expand, Expanded, Filter, Function, windows_of};
use crate::window::{Window, span_of};

/// Rows of the same columns, of which most operators make another stream. A stream is a value: it
/// can be cloned and used any number of times, and nothing runs before a job is made of its
/// outputs.
#[derive(Clone)]
pub struct Stream {
    /// The producers of the rows, and the steps that give each of them these columns.
    pub(crate) from: Vec<Upstream>,
    pub(crate) schema: SchemaRef,
    pub(crate) time: Option<usize>,
    pub(crate) window: Option<WindowColumns>,
    /// Ticks that divide the ends of all windows.
    pub(crate) every: i64,
    /// Ticks of the time by which the operator that takes the rows waits behind the watermark.
    pub(crate) lateness: i64,
    pub(crate) bounded: bool,
}

/// Rows on their way into a sink: a part of a job.
#[derive(Clone)]
pub struct Output(pub(crate) Arc<StreamNode>, bool);

impl Output {
    /// Whether its rows end by themselves.
    pub fn bounded(&self) -> bool {
        self.1
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.0.name
    }
}

/// The event time of a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventTime {
    column: String,
    delay: Duration,
    idle: Option<Duration>,
}

impl EventTime {
    /// A column of timestamps whose rows come in order.
    pub fn of(column: &str) -> Self {
        Self { column: column.to_owned(), delay: Duration::ZERO, idle: None }
    }

    /// How far rows may lag behind the latest of their flow before they are late.
    pub fn delay(self, delay: Duration) -> Self {
        Self { delay, ..self }
    }

    /// After how long a silence a flow no longer holds time back.
    pub fn idle_after(self, idle: Duration) -> Self {
        Self { idle: Some(idle), ..self }
    }
}

/// The columns that a function leaves: some of the stream's, and new ones behind them.
#[derive(Debug, Clone, Default)]
pub struct Columns {
    /// `None` for all.
    keep: Option<Vec<String>>,
    new: Vec<Field>,
}

impl Columns {
    /// All columns.
    pub fn all() -> Self {
        Self::default()
    }

    /// Those.
    pub fn of(keep: &[&str]) -> Self {
        let keep = keep.iter().map(|name| (*name).to_owned()).collect();
        Self { keep: Some(keep), new: vec![] }
    }

    /// And a new one.
    pub fn and(mut self, name: &str, data_type: DataType) -> Self {
        self.new.push(Field::new(name, data_type, true));
        self
    }
}

impl Stream {
    /// The rows of a source. Without a time there are no windows over it, unless it ends.
    ///
    /// # Errors
    /// When the column of time is unknown or no timestamp.
    pub fn read(
        name: &str,
        source: Arc<dyn Source>,
        time: Option<EventTime>,
    ) -> Result<Self, StreamError> {
        let (schema, bounded) = (source.schema(), source.bounded());
        check_names(&schema)?;
        let watermark = time.map(|EventTime { column, delay, idle }| {
            let at = index_of(&schema, &column)?;
            let delay = span_of(delay, schema.field(at))?;
            let idle_timeout_ns =
                idle.map(|idle| u64::try_from(idle.as_nanos()).unwrap_or(u64::MAX));
            Ok::<_, StreamError>(Watermark { column: at, delay, idle_timeout_ns })
        });
        let watermark = watermark.transpose()?;
        let time = watermark.map(|time| TimeColumn { column: time.column, on_bad: OnBad::Show });
        let input = Scan { time, watermark, ..Scan::new(name, source) };
        let node = StreamNode {
            name: name.to_owned(),
            inputs: vec![],
            kind: OperatorKind::Source(input),
            choice: Choice::Fixed,
            labels: Labels::default(),
        };
        Ok(Self {
            time: watermark.map(|watermark| watermark.column),
            ..Self::of_node(node, schema, bounded)
        })
    }

    /// The rows of a part of a job.
    pub fn of_fragment(fragment: &Fragment) -> Self {
        let Fragment { schema, time, window, lateness, bounded, .. } = fragment;
        let from = nodes_of(fragment);
        let (schema, time, window, lateness) = (schema.clone(), *time, *window, *lateness);
        Self { from, schema, time, window, every: 1, lateness, bounded: *bounded }
    }

    pub(crate) fn of_node(node: StreamNode, schema: SchemaRef, bounded: bool) -> Self {
        let from = vec![(Arc::new(node), None)];
        Self { from, schema, time: None, window: None, every: 1, lateness: 0, bounded }
    }

    /// Its columns.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// The column of event time, if there is one.
    pub fn time(&self) -> Option<&str> {
        self.time.map(|at| self.schema.field(at).name().as_str())
    }

    /// Whether it ends by itself.
    pub fn bounded(&self) -> bool {
        self.bounded
    }

    /// The rows for which `predicate`, which is given batches, says true.
    pub fn filter<F>(self, predicate: F) -> Self
    where
        F: Fn(&RecordBatch) -> Result<BooleanArray, DataflowError> + Send + Sync + 'static,
    {
        self.filtered(predicate, "a function of the program".into())
    }

    /// The rows for which `predicate` says true.
    pub fn filter_rows(
        self,
        predicate: impl Fn(Row<'_>) -> Result<bool, DataflowError> + Send + Sync + 'static,
    ) -> Self {
        self.filter(move |batch| Row::all(batch).map(|row| predicate(row).map(Some)).collect())
    }

    fn filtered<F>(self, predicate: F, text: String) -> Self
    where
        F: Fn(&RecordBatch) -> Result<BooleanArray, DataflowError> + Send + Sync + 'static,
    {
        let (schema, text) = (self.schema.clone(), (FILTER, text));
        let step = Filter { schema, predicate: Box::new(predicate), text };
        self.through(Arc::new(step))
    }

    /// New columns behind those that are kept: `function` is given a batch, and gives arrays of as
    /// many rows.
    ///
    /// # Errors
    /// When a column is unknown or a name is taken.
    pub fn map<F>(self, columns: Columns, function: F) -> Result<Self, StreamError>
    where
        F: Fn(&RecordBatch) -> Result<Vec<arrow::array::ArrayRef>, DataflowError>
            + Send
            + Sync
            + 'static,
    {
        self.expand("Map", columns, move |batch| Ok((None, function(batch)?)))
    }

    /// New columns behind those that are kept: `function` is given a row, and gives a value for
    /// each.
    ///
    /// # Errors
    /// As [`Stream::map`], and when a new column is of a type that [`Cell`]s cannot have.
    pub fn map_rows<F>(self, columns: Columns, function: F) -> Result<Self, StreamError>
    where
        F: Fn(Row<'_>) -> Result<Vec<Cell>, DataflowError> + Send + Sync + 'static,
    {
        let fields = rows_of(&columns)?;
        self.map(columns, move |batch| {
            let rows: Result<_, _> = Row::all(batch).map(&function).collect();
            columns_of(&fields, rows?)
        })
    }

    /// Any number of rows for each: `function` is given a batch, and says of which of its rows the
    /// new ones are made, with the new columns of as many rows.
    ///
    /// # Errors
    /// As [`Stream::map`].
    pub fn flat_map<F>(self, columns: Columns, function: F) -> Result<Self, StreamError>
    where
        F: Fn(&RecordBatch) -> Result<Expanded, DataflowError> + Send + Sync + 'static,
    {
        self.expand("FlatMap", columns, function)
    }

    /// Any number of rows for each: `function` is given a row, and pushes the new columns' values
    /// of each row that shall come of it.
    ///
    /// # Errors
    /// As [`Stream::map_rows`].
    pub fn flat_map_rows<F>(self, columns: Columns, function: F) -> Result<Self, StreamError>
    where
        F: Fn(Row<'_>, &mut Vec<Vec<Cell>>) -> Result<(), DataflowError> + Send + Sync + 'static,
    {
        let fields = rows_of(&columns)?;
        self.flat_map(columns, move |batch| {
            let (mut origin, mut rows) = (vec![], vec![]);
            for (at, row) in Row::all(batch).enumerate() {
                function(row, &mut rows)?;
                origin.resize(rows.len(), at as u32);
            }
            Ok((Some(origin.into()), columns_of(&fields, rows)?))
        })
    }

    /// Those columns, in that order.
    ///
    /// # Errors
    /// When one is unknown, or named twice.
    pub fn select(self, columns: &[&str]) -> Result<Self, StreamError> {
        let text = (PROJECT, columns.join(", "));
        self.projected(&Columns::of(columns), None, text)
    }

    /// The same columns, one of which is called otherwise.
    ///
    /// # Errors
    /// When it is unknown, or the new name is taken.
    pub fn rename(self, column: &str, name: &str) -> Result<Self, StreamError> {
        let at = index_of(&self.schema, column)?;
        let field = |(number, field): (usize, &Arc<Field>)| {
            if number == at {
                Arc::new(field.as_ref().clone().with_name(name))
            } else {
                field.clone()
            }
        };
        let fields: Vec<_> = self.schema.fields().iter().enumerate().map(field).collect();
        let schema = Arc::new(Schema::new(fields));
        check_names(&schema)?;
        let keep = (0..schema.fields().len()).collect();
        let text = (PROJECT, format!("{column} AS {name}"));
        Ok(self.through(Arc::new(Expand { schema, keep, function: None, text })))
    }

    fn expand(
        self,
        what: &'static str,
        columns: Columns,
        function: impl Fn(&RecordBatch) -> Result<Expanded, DataflowError> + Send + Sync + 'static,
    ) -> Result<Self, StreamError> {
        let new: Vec<_> = columns.new.iter().map(|field| field.name().as_str()).collect();
        let text = (what, new.join(", "));
        self.projected(&columns, Some(Box::new(function)), text)
    }

    fn projected(
        self,
        columns: &Columns,
        function: Option<Box<Function>>,
        text: Property,
    ) -> Result<Self, StreamError> {
        let keep = match &columns.keep {
            None => (0..self.schema.fields().len()).collect(),
            Some(names) => {
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                indices_of(&self.schema, &names)?
            }
        };
        let kept = keep.iter().map(|&at: &usize| self.schema.fields()[at].clone());
        let new = columns.new.iter().cloned().map(Arc::new);
        let schema = Arc::new(Schema::new(kept.chain(new).collect::<Vec<_>>()));
        check_names(&schema)?;
        Ok(self.through(Arc::new(Expand { schema, keep, function, text })))
    }

    /// The rows behind one more step. Its time and windows are what the step passes on of them.
    fn through(self, step: Arc<dyn Step>) -> Self {
        let schema = step.schema();
        let behind = |before: usize| {
            (0..schema.fields().len()).find(|&output| step.passes_on(output) == Some(before))
        };
        let window = self.window.and_then(|window| {
            let WindowColumns { start, end, time } = window;
            Some(WindowColumns { start: behind(start)?, end: behind(end)?, time: behind(time)? })
        });
        let time = self.time.and_then(behind);
        let from = self.from.into_iter();
        let from = from.map(|(node, before)| (node, chain(before, Some(step.clone())))).collect();
        Self { from, schema: schema.clone(), time, window, ..self }
    }

    /// The rows by a name that `branch` gives them; rows of other names, and of none, are in no
    /// branch.
    pub fn split<F>(&self, names: &[&str], branch: F) -> Branches
    where
        F: for<'a> Fn(Row<'a>) -> Result<Option<&'a str>, DataflowError> + Send + Sync + 'static,
    {
        let branch = Arc::new(branch);
        let one = |name: &&str| {
            let (name, branch) = ((*name).to_owned(), branch.clone());
            let text = format!("branch {name}");
            let wanted = name.clone();
            let is = move |row: Row<'_>| Ok(Some(branch(row)? == Some(wanted.as_str())));
            let rows = move |batch: &RecordBatch| Row::all(batch).map(&is).collect();
            (name, self.clone().filtered(rows, text))
        };
        Branches(names.iter().map(one).collect())
    }

    /// The rows of both, in any order. There is a time if both have the same.
    ///
    /// # Errors
    /// When their columns are not the same.
    pub fn union(mut self, other: Stream) -> Result<Self, StreamError> {
        let plain = |schema: &Schema| -> Vec<(String, DataType)> {
            let fields = schema.fields().iter();
            fields.map(|field| (field.name().clone(), field.data_type().clone())).collect()
        };
        let (left, right) = (plain(&self.schema), plain(&other.schema));
        if left != right {
            let differs = left.iter().zip(&right).find(|(left, right)| left != right);
            let message = match differs {
                Some(((a, of), (b, other))) => {
                    let [of, other] = [of, other].map(sql_type);
                    format!("a union of columns '{a}' {of} and '{b}' {other}")
                }
                None => format!("a union of {} and {} columns", left.len(), right.len()),
            };
            let hint = "give both the same columns: stream.select([…])";
            return Err(StreamError::refused(message, hint));
        }
        self.from.extend(other.from);
        self.time = self.time.filter(|_| self.time == other.time);
        self.window = self.window.filter(|_| self.window == other.window);
        self.every = if self.every == other.every { self.every } else { 1 };
        self.bounded &= other.bounded;
        Ok(self)
    }

    /// Each row in each of its windows: three more columns tell it, `window_start`, `window_end`
    /// and `window_time`. For joins of windows; an aggregate asks for its windows itself
    /// ([`KeyedStream::window`]), which costs less.
    ///
    /// # Errors
    /// When there is no time, and as for the window.
    pub fn in_windows(self, window: &Window) -> Result<Self, StreamError> {
        if window.is_session() {
            let message = "a session depends on the rows of a key";
            return Err(StreamError::refused(message, "stream.key_by(…)?.in_sessions(gap)"));
        }
        let (time, windows) = window.over(&self)?;
        let of = self.schema.field(time).data_type().clone();
        let columns = Columns::all();
        let columns = columns.and("window_start", of.clone()).and("window_end", of.clone());
        let (first, every) = (self.schema.fields().len(), window.every(windows));
        let lateness = window.waits(&self, time)?;
        let columns = columns.and("window_time", of);
        let stream = self.expand("Windows", columns, windows_of(time, windows))?;
        let (start, end, time) = (first, first + 1, first + 2);
        let window = Some(WindowColumns { start, end, time });
        Ok(Self { window, every, lateness, ..stream })
    }

    /// The rows by the values of columns: the next operator brings rows of equal keys together.
    /// Without columns all rows are together.
    ///
    /// # Errors
    /// When a column is unknown.
    pub fn key_by(self, keys: &[&str]) -> Result<KeyedStream, StreamError> {
        let keys = indices_of(&self.schema, keys)?;
        Ok(KeyedStream {
            stream: self,
            keys,
            distribution: Distribution::Hash,
            choice: Choice::Auto,
        })
    }

    /// The rows on the workers that `route` sends them to (A4): see [`RowPartitioner`]. Rows that
    /// the watermark has passed are late here.
    pub fn route(self, route: Arc<dyn RowPartitioner>) -> Self {
        self.led("route", Distribution::Hash, To::One(route))
    }

    /// The rows in equal shares on all workers (W2): each worker sends one row to each in turn. For
    /// what costs much per row, behind sources of which some have more to read than others. Rows
    /// that the watermark has passed are late here.
    pub fn rebalance(self) -> Self {
        self.led("rebalance", Distribution::RoundRobin, To::Input)
    }

    /// All rows on worker 0 (W2). Rows that the watermark has passed are late here.
    pub fn global(self) -> Self {
        self.led("global", Distribution::Hash, To::Input)
    }

    /// The rows on all workers that `spread` leads each of them to, once on each (W1): see
    /// [`MultiPartitioner`]. A row is encoded once and sent once to each process, with a list of
    /// its workers. Rows that the watermark has passed are late here.
    ///
    /// Rows that another stream has [routed](Self::route) meet those that were spread to their
    /// workers, without a further exchange:
    ///
    /// ```
    /// use std::sync::Arc;
    /// use stream::{Exchange, JoinKind, RowPartitioner, MultiPartitioner, Stream, StreamError};
    ///
    /// /// Drivers lie on the workers of their places, and requests come to all that are near.
    /// fn near(
    ///     drivers: Stream,
    ///     requests: Stream,
    ///     place: Arc<dyn RowPartitioner>,
    ///     reach: Arc<dyn MultiPartitioner>,
    /// ) -> Result<Stream, StreamError> {
    ///     let drivers = drivers.route(place).key_by(&[])?.exchange(Exchange::Forward);
    ///     drivers.join(requests.spread(reach).key_by(&[])?, JoinKind::Inner)
    /// }
    /// ```
    pub fn spread(self, spread: Arc<dyn MultiPartitioner>) -> Self {
        self.led("spread", Distribution::Hash, To::Several(spread))
    }

    fn led(self, name: &str, distribution: Distribution, to: To) -> Self {
        let input = KeyedInput {
            schema: self.schema.clone(),
            keys: vec![],
            distribution,
            time: self.time,
            grace: 1,
        };
        let operator: Arc<dyn KeyedOperator> =
            Arc::new(Reroute { schema: self.schema.clone(), to });
        let spec =
            Keyed { inputs: vec![input], exchange: Exchange::Shuffle, granularity: 1, operator };
        let node = StreamNode {
            name: name.into(),
            inputs: vec![self.input_edges(self.time.is_some())],
            kind: OperatorKind::Keyed(spec),
            choice: Choice::Auto,
            labels: Labels::default(),
        };
        let Self { schema, time, window, every, bounded, .. } = self;
        Self { time, window, every, ..Self::of_node(node, schema, bounded) }
    }

    /// The rows into a sink.
    pub fn into_sink(self, name: &str, sink: Arc<dyn Sink>) -> Output {
        let node = StreamNode {
            name: name.to_owned(),
            inputs: vec![self.input_edges(false)],
            kind: OperatorKind::Sink(SinkSpec { sink, schema: self.schema.clone() }),
            choice: Choice::Fixed,
            labels: Labels::default(),
        };
        Output(Arc::new(node), self.bounded)
    }

    /// Some columns, the last of which have other names.
    pub(crate) fn narrowed(
        self,
        keep: Vec<usize>,
        names: &[(usize, &str)],
    ) -> Result<Self, StreamError> {
        let field = |&at: &usize| {
            let field = self.schema.fields()[at].clone();
            match names.iter().find(|(renamed, _)| *renamed == at) {
                Some((_, name)) => Arc::new(field.as_ref().clone().with_name(*name)),
                None => field,
            }
        };
        let schema = Arc::new(Schema::new(keep.iter().map(field).collect::<Vec<_>>()));
        check_names(&schema)?;
        let shown: Vec<_> = schema.fields().iter().map(|field| field.name().clone()).collect();
        let text = (PROJECT, shown.join(", "));
        Ok(self.through(Arc::new(Expand { schema, keep, function: None, text })))
    }

    pub(crate) fn input_edges(&self, timed: bool) -> Vec<InputEdge> {
        let lateness = if timed { self.lateness } else { 0 };
        let edge = |(from, step): &Upstream| InputEdge {
            from: from.clone(),
            step: step.clone(),
            timed,
            lateness,
        };
        self.from.iter().map(edge).collect()
    }

    /// Whether the rows come from tables, so that no operator has waited for late ones.
    pub(crate) fn is_read(&self) -> bool {
        self.from.iter().all(|(node, _)| node.is_read())
    }
}

/// Streams by name.
#[derive(Clone)]
pub struct Branches(BTreeMap<String, Stream>);

impl Branches {
    /// A branch.
    ///
    /// # Errors
    /// When there is none of that name.
    pub fn branch(&self, name: &str) -> Result<Stream, StreamError> {
        self.0.get(name).cloned().ok_or_else(|| {
            let names: Vec<_> = self.0.keys().map(String::as_str).collect();
            let hint = format!("the branches are: {}", names.join(", "));
            StreamError::refused(format!("there is no branch '{name}'"), hint)
        })
    }
}

/// Refuses keys of different types.
pub(crate) fn same_types(sides: [(&SchemaRef, &Vec<usize>); 2]) -> Result<(), StreamError> {
    let [(left, left_keys), (right, right_keys)] = sides;
    if left_keys.len() != right_keys.len() {
        let (left, right) = (left_keys.len(), right_keys.len());
        let message = format!("a join of {left} and {right} keys");
        return Err(StreamError::refused(message, "give both sides as many keys"));
    }
    for (&l, &r) in left_keys.iter().zip(right_keys) {
        let (l, r) = (left.field(l), right.field(r));
        if l.data_type() != r.data_type() {
            return Err(StreamError::Type {
                name: r.name().clone(),
                found: r.data_type().clone(),
                needs: format!("it must be {}, as '{}' is", sql_type(l.data_type()), l.name()),
            });
        }
    }
    Ok(())
}

/// The new columns, if functions of rows can make them.
fn rows_of(columns: &Columns) -> Result<Vec<Field>, StreamError> {
    match columns.new.iter().find(|field| !takes_cells(field.data_type())) {
        None => Ok(columns.new.clone()),
        Some(field) => Err(StreamError::Type {
            name: field.name().clone(),
            found: field.data_type().clone(),
            needs: "a function of rows makes booleans, numbers, timestamps and strings; \
                    for others there is the function of batches"
                .into(),
        }),
    }
}
