//! A table as a picture: at most `rows_max` rows, of more the first and the last half.
//!
//! ```text
//! ┌────────┬────────────┐
//! │ origin │ departures │
//! │ VARCHAR│     BIGINT │
//! ├────────┼────────────┤
//! │ EWR    │        305 │
//! │ ·      │          · │
//! │ LGA    │        285 │
//! ├────────┴────────────┤
//! │ 720 rows (40 shown) │
//! └─────────────────────┘
//! ```
//!
//! Memory is bounded by the rows shown, whatever the number of rows.

use std::collections::VecDeque;

use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use arrow::record_batch::RecordBatch;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use dataflow::calendar::check_times;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::format::encode::TIMESTAMP_FORMAT;
use crate::options::sql_type;

/// Columns of the terminal that a cell may take, among others and on its own.
const CELL_WIDTH_MAX: usize = 60;
const LINE_WIDTH_MAX: usize = 200;

type Row = Vec<String>;

/// Rows to be drawn.
pub(super) struct TablePicture {
    schema: SchemaRef,
    rows_max: usize,
    /// The first `rows_max` rows.
    head: Vec<Row>,
    /// The last `rows_max / 2` of the rows beyond.
    tail: VecDeque<Row>,
    rows: u64,
}

impl TablePicture {
    pub(super) fn new(schema: SchemaRef, rows_max: usize) -> Self {
        Self { schema, rows_max, head: Vec::new(), tail: VecDeque::new(), rows: 0 }
    }

    /// Takes rows; texts are made only of those that may be shown.
    ///
    /// # Errors
    /// Why a value cannot be written.
    pub(super) fn add(&mut self, batch: &RecordBatch) -> Result<(), String> {
        check_times(batch)?;
        self.keep(batch).map_err(|error| error.to_string())
    }

    fn keep(&mut self, batch: &RecordBatch) -> Result<(), ArrowError> {
        let options = FormatOptions::default()
            .with_null("NULL")
            .with_timestamp_format(Some(TIMESTAMP_FORMAT))
            .with_timestamp_tz_format(Some("%Y-%m-%d %H:%M:%S%.f%:z"));
        let columns = batch
            .columns()
            .iter()
            .map(|column| ArrayFormatter::try_new(column, &options))
            .collect::<Result<Vec<_>, _>>()?;
        let width = if columns.len() == 1 { LINE_WIDTH_MAX } else { CELL_WIDTH_MAX };
        let row = |index: usize| {
            columns
                .iter()
                .map(|column| column.value(index).try_to_string().map(|text| cell(&text, width)))
                .collect::<Result<Row, _>>()
        };
        let rows = batch.num_rows();
        let heads = rows.min(self.rows_max - self.head.len());
        for index in 0..heads {
            self.head.push(row(index)?);
        }
        let tail_max = self.rows_max / 2;
        for index in heads.max(rows.saturating_sub(tail_max))..rows {
            if self.tail.len() == tail_max {
                self.tail.pop_front();
            }
            self.tail.push_back(row(index)?);
        }
        self.rows += rows as u64;
        Ok(())
    }

    /// The picture, with a line end.
    pub(super) fn draw(&self) -> String {
        let fields = self.schema.fields();
        let gap = vec!["·".to_owned(); fields.len()];
        let (first, last) = self.halves();
        let shown = first.len() + last.len();
        let mut body = first;
        if !last.is_empty() || (shown as u64) < self.rows {
            body.push(&gap);
            body.extend(last);
        }
        let names: Row = fields.iter().map(|field| cell(field.name(), CELL_WIDTH_MAX)).collect();
        let types: Row = fields.iter().map(|field| sql_type(field.data_type())).collect();
        let plural = if self.rows == 1 { "" } else { "s" };
        let footer = if shown as u64 == self.rows {
            format!("{} row{plural}", self.rows)
        } else {
            format!("{} row{plural} ({shown} shown)", self.rows)
        };
        if fields.is_empty() {
            return footer + "\n";
        }
        let mut widths: Vec<usize> = names.iter().map(|name| name.width()).collect();
        for row in body.iter().copied().chain([&types]) {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.width());
            }
        }
        // The footer spans all columns: the last one grows where it does not fit.
        let inner = widths.iter().sum::<usize>() + 3 * (widths.len() - 1);
        if let Some(last) = widths.last_mut() {
            *last += footer.width().saturating_sub(inner);
        }
        let right: Vec<bool> = fields.iter().map(|field| field.data_type().is_numeric()).collect();
        let mut out = rule(&widths, ['┌', '┬', '┐']);
        out += &line(&names, &widths, &right);
        out += &line(&types, &widths, &right);
        if body.is_empty() {
            out += &rule(&widths, ['├', '┴', '┤']);
        } else {
            out += &rule(&widths, ['├', '┼', '┤']);
            for row in body {
                out += &line(row, &widths, &right);
            }
            out += &rule(&widths, ['├', '┴', '┤']);
        }
        let inner = widths.iter().sum::<usize>() + 3 * (widths.len() - 1);
        out += &line(&[footer], &[inner], &[false]);
        out += &rule(&[inner], ['└', '─', '┘']);
        out
    }

    /// The rows to be shown, without the gap: all of them, or both halves.
    fn halves(&self) -> (Vec<&Row>, Vec<&Row>) {
        if self.rows <= self.rows_max as u64 {
            return (self.head.iter().collect(), Vec::new());
        }
        let last = self.rows_max / 2;
        let first = self.rows_max - last;
        let from_head = last - self.tail.len();
        let tail = self.head[self.head.len() - from_head..].iter().chain(&self.tail);
        (self.head[..first].iter().collect(), tail.collect())
    }
}

/// A value on one line, cut where it is too wide.
fn cell(text: &str, width_max: usize) -> String {
    let mut out = String::with_capacity(text.len());
    let mut width = 0;
    for c in text.chars() {
        let shown = if c.is_control() { ' ' } else { c };
        width += shown.width().unwrap_or(0);
        if width > width_max {
            out.push('…');
            break;
        }
        out.push(shown);
    }
    out
}

fn rule(widths: &[usize], [left, middle, right]: [char; 3]) -> String {
    let bars: Vec<String> = widths.iter().map(|width| "─".repeat(width + 2)).collect();
    format!("{left}{}{right}\n", bars.join(&middle.to_string()))
}

fn line(cells: &[String], widths: &[usize], right: &[bool]) -> String {
    let mut out = String::new();
    for ((cell, width), right) in cells.iter().zip(widths).zip(right) {
        let blank = " ".repeat(width - cell.width());
        out += "│ ";
        out += &if *right { blank + cell } else { cell.clone() + &blank };
        out += " ";
    }
    out + "│\n"
}
