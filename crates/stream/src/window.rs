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
    column: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    Hop,
    Cumulate,
}

impl Window {
    /// Windows one after another.
    pub fn tumble(size: Duration) -> Self {
        Self::hop(size, size)
    }

    /// Windows of `size`, one every `slide`.
    pub fn hop(size: Duration, slide: Duration) -> Self {
        Self { shape: Shape::Hop, size, slide, offset: Duration::ZERO, column: None }
    }

    /// Windows of `step`, 2 `step`, … `size` from each multiple of `size` on.
    pub fn cumulate(size: Duration, step: Duration) -> Self {
        Self { shape: Shape::Cumulate, ..Self::hop(size, step) }
    }

    /// Shifted from the epoch.
    pub fn offset(self, offset: Duration) -> Self {
        Self { offset, ..self }
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
                        "a window is given out when the watermark has passed its end",
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
        };
        windows.map(|windows| (column, windows)).ok_or_else(|| {
            StreamError::refused(
                format!("windows up to {:?} by {:?}", self.size, self.slide),
                "the step of cumulating windows divides their size",
            )
        })
    }

    /// Ticks that divide the ends of all windows.
    pub(crate) fn every(&self, windows: Windows) -> i64 {
        if self.offset.is_zero() { windows.width() } else { 1 }
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
