//! Joins of rows by their own times: with rows that are near, and with the latest version.

use std::sync::Arc;
use std::time::Duration;

use arrow::datatypes::{DataType, Schema, TimeUnit};
use dataflow::job::{Exchange, Keyed, KeyedOperator, Labels, OperatorKind};
use dataflow::keyed::{IntervalJoin, JoinKind, TemporalJoin, TimedSide};
use dataflow::time::ticks_per_second;

use crate::Stream;
use crate::error::StreamError;
use crate::keyed::{KeyedStream, side_by_side};
use crate::node::{Choice, StreamNode};
use crate::stream::same_types;
use crate::window::span_of;

/// A time as seen from a row's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shift {
    /// So much before it.
    Earlier(Duration),
    /// So much after it.
    Later(Duration),
}

/// How near the times of two rows are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeRange {
    from: Shift,
    to: Shift,
}

impl TimeRange {
    /// Not further apart than that, whichever is earlier.
    pub fn within(apart: Duration) -> Self {
        Self::between(Shift::Earlier(apart), Shift::Later(apart))
    }

    /// The other row's time lies between these two, both included.
    pub fn between(from: Shift, to: Shift) -> Self {
        Self { from, to }
    }
}

/// Which part of a pair a join by time emits, and its time.
struct Pairs {
    both: Arc<Schema>,
    schema: Arc<Schema>,
    /// The time column of the output, if it has one.
    time: Option<usize>,
}

impl KeyedStream {
    /// Pairs of rows of equal keys whose times are near each other, and, as `kind` says, rows
    /// without a match. A pair is emitted when its second row has come, a row without a match
    /// when the watermark says that none can come, and rows are forgotten then. Columns are as in
    /// [`KeyedStream::join`]; the time of the new stream is that of this side, or of the other
    /// where all rows of that one are emitted, and a full join has none.
    ///
    /// ```
    /// use std::time::Duration;
    /// use stream::{JoinKind, TimeRange, Shift, Stream, StreamError};
    ///
    /// /// Orders with their payments of the hour after; those that were not paid too.
    /// fn paid(orders: Stream, payments: Stream) -> Result<Stream, StreamError> {
    ///     let hour = TimeRange::between(
    ///         Shift::Later(Duration::ZERO),
    ///         Shift::Later(Duration::from_secs(3_600)),
    ///     );
    ///     orders.key_by(&["order"])?.join_near(payments.key_by(&["order"])?, hour, JoinKind::Left)
    /// }
    /// ```
    ///
    /// # Errors
    /// When a side has no time, times or keys are of different types, or the bounds are no whole
    /// number of ticks or the wrong way round.
    pub fn join_near(
        self,
        other: KeyedStream,
        near: TimeRange,
        kind: JoinKind,
    ) -> Result<Stream, StreamError> {
        let (sides, unit) = timed_sides(&self, &other)?;
        let field = self.stream.schema.field(sides[0].time);
        let ticks = |shift: Shift| match shift {
            Shift::Earlier(span) => span_of(span, field).map(|ticks| -ticks),
            Shift::Later(span) => span_of(span, field),
        };
        let (from, to) = (ticks(near.from)?, ticks(near.to)?);
        if from > to {
            let message = format!("no time lies between {:?} and {:?}", near.from, near.to);
            return Err(StreamError::refused(message, "give the earlier one first"));
        }
        let pairs = self.pairs(&other, &sides, kind);
        let operator = IntervalJoin {
            sides,
            // Of this side's time less the other's.
            apart: [-to, -from],
            kind,
            on: None,
            schema: pairs.schema.clone(),
            both: pairs.both.clone(),
        };
        let often = (to.saturating_sub(from) / 16).clamp(1, ticks_per_second(unit));
        Ok(self.meet(other, Arc::new(operator), often, pairs))
    }

    /// Each row with the latest version of its key, up to its own time: rows of `versions` are a
    /// version of their key from their time on, until the next. Rows wait until the watermark has
    /// passed them. `kind` is `Inner`, or `Left` for rows without a version too. The columns are as
    /// in [`KeyedStream::join`], and the time is this side's.
    ///
    /// ```
    /// use stream::{JoinKind, Stream, StreamError};
    ///
    /// /// Orders in the rates of their time.
    /// fn converted(orders: Stream, rates: Stream) -> Result<Stream, StreamError> {
    ///     orders.key_by(&["currency"])?.join_latest(rates.key_by(&["currency"])?, JoinKind::Inner)
    /// }
    /// ```
    ///
    /// # Errors
    /// When a side has no time or key, times or keys are of different types, or it is another kind.
    pub fn join_latest(self, versions: KeyedStream, kind: JoinKind) -> Result<Stream, StreamError> {
        self.join_version(versions, kind, false)
    }

    /// As [`KeyedStream::join_latest`], but with the latest version before its own time: what was
    /// known when a row came, where rows are versions themselves.
    ///
    /// # Errors
    /// As [`KeyedStream::join_latest`].
    pub fn join_earlier(
        self,
        versions: KeyedStream,
        kind: JoinKind,
    ) -> Result<Stream, StreamError> {
        self.join_version(versions, kind, true)
    }

    fn join_version(
        self,
        versions: KeyedStream,
        kind: JoinKind,
        earlier: bool,
    ) -> Result<Stream, StreamError> {
        if !matches!(kind, JoinKind::Inner | JoinKind::Left) {
            let message = "a join with the latest version is Inner or Left";
            return Err(StreamError::refused(message, "give JoinKind::Inner or JoinKind::Left"));
        }
        if self.keys.is_empty() {
            let message = "which version a row meets is not said by a key";
            return Err(StreamError::refused(message, "name it: stream.key_by(&[\"currency\"])"));
        }
        let (sides, unit) = timed_sides(&self, &versions)?;
        let pairs = self.pairs(&versions, &sides, kind);
        let operator = TemporalJoin {
            sides,
            outer: kind == JoinKind::Left,
            earlier,
            schema: pairs.both.clone(),
        };
        let often = (ticks_per_second(unit) / 10).max(1);
        Ok(self.meet(versions, Arc::new(operator), often, pairs))
    }

    /// The output of a join of this kind.
    fn pairs(&self, other: &KeyedStream, sides: &[TimedSide; 2], kind: JoinKind) -> Pairs {
        let both = side_by_side(&self.stream.schema, &other.stream.schema);
        let first = self.stream.schema.fields().len();
        let part = |from: usize, to: usize| Arc::new(Schema::new(both.fields()[from..to].to_vec()));
        let (schema, time) = match kind {
            JoinKind::LeftSemi | JoinKind::LeftAnti => (part(0, first), Some(sides[0].time)),
            JoinKind::RightSemi | JoinKind::RightAnti => {
                (part(first, both.fields().len()), Some(sides[1].time))
            }
            JoinKind::Right => (both.clone(), Some(first + sides[1].time)),
            // A row without a partner has no time on the other side.
            JoinKind::Full => (both.clone(), None),
            JoinKind::Inner | JoinKind::Left => (both.clone(), Some(sides[0].time)),
        };
        Pairs { both, schema, time }
    }

    /// The node of a join by time.
    fn meet(
        self,
        other: KeyedStream,
        operator: Arc<dyn KeyedOperator>,
        granularity: i64,
        pairs: Pairs,
    ) -> Stream {
        let sides = [&self, &other];
        let name = operator.describe(&[]).name.to_owned();
        let spec = Keyed {
            inputs: sides.map(|keyed| keyed.input(keyed.stream.time, 1, None)).to_vec(),
            exchange: Exchange::Shuffle,
            granularity,
            operator,
        };
        let choice = if other.choice == Choice::Auto { self.choice } else { other.choice };
        let node = StreamNode {
            name,
            inputs: sides.map(|keyed| keyed.stream.input_edges(true)).to_vec(),
            kind: OperatorKind::Keyed(spec),
            choice,
            labels: Labels::default(),
        };
        let bounded = self.stream.bounded && other.stream.bounded;
        Stream { time: pairs.time, ..Stream::of_node(node, pairs.schema, bounded) }
    }
}

/// The sides of a join by time, and the unit of both times.
fn timed_sides(
    left: &KeyedStream,
    right: &KeyedStream,
) -> Result<([TimedSide; 2], TimeUnit), StreamError> {
    same_types([(&left.stream.schema, &left.keys), (&right.stream.schema, &right.keys)])?;
    let side = |keyed: &KeyedStream| {
        let schema = keyed.stream.schema.clone();
        let time = keyed.stream.time.ok_or_else(|| {
            StreamError::refused(
                "a join by time of a stream that has none",
                "give the source one (EventTime), and keep its column (Columns::of)",
            )
        })?;
        Ok::<_, StreamError>(TimedSide { schema, keys: keyed.keys.clone(), time })
    };
    let (l, r) = (side(left)?, side(right)?);
    let (lt, rt) = (vec![l.time], vec![r.time]);
    same_types([(&l.schema, &lt), (&r.schema, &rt)])?;
    let field = l.schema.field(l.time);
    match field.data_type() {
        DataType::Timestamp(unit, _) => {
            let unit = *unit;
            Ok(([l, r], unit))
        }
        other => Err(StreamError::Type {
            name: field.name().clone(),
            found: other.clone(),
            needs: "event time is a timestamp".into(),
        }),
    }
}
