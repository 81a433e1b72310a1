//! Sources, as data.

use std::sync::Arc;

use arrow::datatypes::{DataType, SchemaRef, TimeUnit};

use super::fusion::fusion_property;
use super::{DescribeContext, Description, OperatorSpec, Property, Statistics};
use crate::connector::source::Source;
use crate::rows::time::{span_text, ticks_text};

/// A source with its event time.
#[derive(Clone)]
pub struct Input {
    /// The table's name.
    pub table: String,
    /// Its reader.
    pub source: Arc<dyn Source>,
    /// Its event time, whether or not anything goes by it.
    pub time: Option<TimeColumn>,
    /// How its event time goes on, where something goes by it.
    pub watermark: Option<Watermark>,
}

/// A column without which a row is a bad row, in every query alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeColumn {
    /// Which column of the source's schema it is.
    pub column: usize,
    /// What becomes of such a row.
    pub on_bad: OnBad,
}

/// What becomes of a row that is a bad one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnBad {
    /// It is counted, and shown with its place.
    Show,
    /// It is counted: its source has told of it.
    Count,
    /// It ends the job.
    Fail,
}

/// How far a flow's rows may be out of order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Watermark {
    /// The time column of the source's schema: an Arrow timestamp of any unit.
    pub column: usize,
    /// Ticks of the column's unit that rows may lag behind the latest.
    pub delay: i64,
    /// Nanoseconds of silence after which a flow no longer holds the watermark back; `None` for
    /// never.
    pub idle_timeout_ns: Option<u64>,
}

impl Input {
    /// The unit of its watermarks.
    pub(crate) fn time_unit(&self) -> Option<TimeUnit> {
        match self.source.schema().field(self.watermark?.column).data_type() {
            DataType::Timestamp(unit, _) => Some(*unit),
            _ => None,
        }
    }

    /// Describes the table. With `readers`, it reports its splits for that many workers.
    pub fn properties(&self, readers: Option<u32>) -> Vec<Property> {
        let schema = self.source.schema();
        let names: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
        let mut properties = vec![];
        if let Some(readers) = readers {
            properties.push(("flows", self.splits_text(readers)));
        }
        properties.push(("columns", names.join(", ")));
        if let Some(watermark) = self.watermark {
            let field = schema.field(watermark.column);
            let delay = ticks_text(watermark.delay, field.data_type());
            let idle = watermark.idle_timeout_ns;
            let idle =
                idle.map_or(String::new(), |ns| format!(", idle after {}", span_text(ns as i64)));
            properties.push(("watermark", format!("{} - {delay}{idle}", field.name())));
        }
        properties
    }

    /// The number of splits of the table for `readers` readers.
    fn splits_text(&self, readers: u32) -> String {
        let end = if self.source.bounded() { "" } else { ", unbounded" };
        match self.source.splits(readers, None) {
            Err(error) => format!("unreadable ({error})"),
            Ok(splits) => {
                let rows: Option<u64> = splits.iter().map(|split| split.rows).sum();
                let rows = rows.map_or(String::new(), |rows| format!(", {rows} rows"));
                format!("{}{rows}{end}", splits.len())
            }
        }
    }
}

impl OperatorSpec for Input {
    fn input_schema(&self, _: usize) -> Option<SchemaRef> {
        None
    }

    fn schema(&self) -> Option<SchemaRef> {
        Some(self.source.schema())
    }

    fn describe(&self, context: &DescribeContext<'_>) -> Description {
        let mut properties = self.properties(context.readers);
        properties.extend(fusion_property(context.fusion));
        let name = if context.fusion.is_ok() { "FusedScan" } else { "Scan" };
        Description { name, properties }
    }

    fn statistics(&self, _: &[Statistics], workers: u32) -> Statistics {
        Statistics::of_source(self.source.as_ref(), workers)
    }

    fn source(&self) -> Option<&Input> {
        Some(self)
    }
}
