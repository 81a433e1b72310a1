//! Windows of event time.

use std::time::Duration;

use arrow::datatypes::{DataType, Field};
use dataflow::time::ticks_per_second;
use state::Windows;

use crate::Stream;
use crate::error::{StreamError, index_of};

/// Windows over a stream's time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    shape: Shape,
    size: Duration,
    slide: Duration,
    offset: Duration,
    lateness: Option<Duration>,
    column: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    Hop,
    Cumulate,
    Session,
}

impl Window {
    /// Windows one after another.
    pub fn tumble(size: Duration) -> Self {
        Self::hop(size, size)
    }

    /// Windows of `size`, one every `slide`.
    pub fn hop(size: Duration, slide: Duration) -> Self {
        let (offset, lateness, column) = (Duration::ZERO, None, None);
        Self { shape: Shape::Hop, size, slide, offset, lateness, column }
    }

    /// Windows of `step`, 2 `step`, … `size` from each multiple of `size` on.
    pub fn cumulate(size: Duration, step: Duration) -> Self {
        Self { shape: Shape::Cumulate, ..Self::hop(size, step) }
    }

    /// The rows of a key between which no pause is longer than `gap`; a session ends a gap after
    /// its last row. Only for aggregates, by the keys that sessions are of;
    /// [`KeyedStream::in_sessions`](crate::KeyedStream::in_sessions) gives rows their session.
    ///
    /// ```
    /// use std::time::Duration;
    /// use stream::{Agg, Stream, StreamError, Window};
    ///
    /// /// How many pages each visit had.
    /// fn visits(clicks: Stream) -> Result<Stream, StreamError> {
    ///     let visits = Window::session(Duration::from_secs(1_800));
    ///     clicks.key_by(&["user"])?.window(&visits)?.aggregate(&[Agg::count("pages")])
    /// }
    /// ```
    pub fn session(gap: Duration) -> Self {
        Self { shape: Shape::Session, ..Self::tumble(gap) }
    }

    /// Whether they depend on the rows of a key.
    pub(crate) fn is_session(&self) -> bool {
        self.shape == Shape::Session
    }

    /// Shifted from the epoch; sessions have no offset.
    pub fn offset(self, offset: Duration) -> Self {
        Self { offset, ..self }
    }

    /// Waits so long behind the watermark: rows count until it has passed the end of their window
    /// by as much, and the window is emitted then, once. Only of the rows of tables: those of
    /// operators have been waited for.
    pub fn lateness(self, lateness: Duration) -> Self {
        Self { lateness: Some(lateness), ..self }
    }

    /// Over another column than the stream's time: only of a stream that ends.
    pub fn on(self, column: &str) -> Self {
        Self { column: Some(column.to_owned()), ..self }
    }

    /// The column of time, and the windows in its ticks.
    pub(crate) fn over(&self, stream: &Stream) -> Result<(usize, Windows), StreamError> {
        let column = match (&self.column, stream.time) {
            (Some(name), time) => {
                let column = index_of(&stream.schema, name)?;
                if time != Some(column) && !stream.bounded {
                    return Err(StreamError::refused(
                        format!("a window over '{name}', which is not the stream's time"),
                        "a window emits its result when the watermark passes its end",
                    ));
                }
                column
            }
            (None, Some(time)) => time,
            (None, None) => {
                return Err(StreamError::refused(
                    "a window over a stream that has no time",
                    "give the source one (EventTime), keep its column (Columns::of), or name a \
                     column of a stream that ends: window.on(\"ts\")",
                ));
            }
        };
        let field = stream.schema.field(column);
        let (size, slide) = (ticks_of(self.size, field)?, ticks_of(self.slide, field)?);
        let offset = span_of(self.offset, field)?;
        let windows = match self.shape {
            Shape::Hop => Windows::hopping(size, slide, offset),
            Shape::Cumulate => Windows::cumulating(size, slide, offset),
            Shape::Session => Windows::sessions(size),
        };
        windows.map(|windows| (column, windows)).ok_or_else(|| {
            StreamError::refused(
                format!("windows up to {:?} by {:?}", self.size, self.slide),
                "the step of cumulating windows divides their size",
            )
        })
    }

    /// Ticks that it waits behind the watermark of a stream, of which `column` is the time.
    pub(crate) fn waits(&self, stream: &Stream, column: usize) -> Result<i64, StreamError> {
        let Some(lateness) = self.lateness else { return Ok(stream.lateness) };
        if !stream.is_read() {
            return Err(StreamError::refused(
                "the lateness of a window over rows of an operator, which has waited for them",
                "say it of the window that is next to the table",
            ));
        }
        span_of(lateness, stream.schema.field(column))
    }

    /// Ticks that divide the ends of all windows.
    pub(crate) fn every(&self, windows: Windows) -> i64 {
        if self.offset.is_zero() && !self.is_session() { windows.width() } else { 1 }
    }
}

/// Ticks of a length of time, of which there is at least one.
pub(crate) fn ticks_of(span: Duration, field: &Field) -> Result<i64, StreamError> {
    match span_of(span, field)? {
        0 => Err(StreamError::refused("a window of no length", "windows are a tick long or more")),
        ticks => Ok(ticks),
    }
}

/// Ticks of a length of time, in the unit of a column.
pub(crate) fn span_of(span: Duration, field: &Field) -> Result<i64, StreamError> {
    let DataType::Timestamp(unit, _) = field.data_type() else {
        return Err(StreamError::Type {
            name: field.name().clone(),
            found: field.data_type().clone(),
            needs: "event time is a timestamp".into(),
        });
    };
    let tick_ns = 1_000_000_000 / ticks_per_second(*unit) as u128;
    let whole = span.as_nanos().is_multiple_of(tick_ns);
    let ticks = i64::try_from(span.as_nanos() / tick_ns).ok().filter(|_| whole);
    ticks.ok_or_else(|| StreamError::Type {
        name: field.name().clone(),
        found: field.data_type().clone(),
        needs: format!("{span:?} is no whole number of its ticks"),
    })
}
