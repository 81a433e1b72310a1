//! A quick look at a result: lines over time or numbers, bars over names.
//!
//! ```text
//!  rows ─▶ data: which column is x, which are y ─▶ lines (canvas, scale)
//!                                               └▶ bars
//! ```
//!
//! The picture is text as wide as the terminal: braille dots and blocks where the locale has them,
//! ASCII elsewhere. Memory is bounded whatever the number of rows: of too many points every second
//! one is dropped, and the picture says so.

mod bars;
mod canvas;
mod data;
mod lines;
mod scale;
mod sink;

pub(crate) use sink::ChartConnector;

use crate::terminal;

/// How a picture may look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Look {
    /// Columns of the terminal.
    pub(crate) width: usize,
    /// Lines of the plot itself.
    pub(crate) height: usize,
    /// Characters beyond ASCII.
    pub(crate) unicode: bool,
    /// ANSI colours.
    pub(crate) color: bool,
}

/// A picture that is wider is hard to read.
const WIDTH_MAX: usize = 160;

impl Look {
    /// As standard output allows.
    pub(crate) fn of_terminal() -> Self {
        let (width, height) = terminal::size();
        Self {
            width: width.clamp(24, WIDTH_MAX),
            height: height.saturating_sub(8).clamp(6, 16),
            unicode: terminal::unicode(),
            color: terminal::stdout_colored(),
        }
    }

    /// A text in the colour of the series of that number.
    fn paint(self, series: usize, text: &str) -> String {
        const COLORS: [u8; 6] = [36, 33, 35, 32, 31, 34];
        if self.color {
            format!("\x1b[{}m{text}\x1b[0m", COLORS[series % COLORS.len()])
        } else {
            text.to_owned()
        }
    }
}

/// The mark of a series where no colour tells them apart.
fn mark(series: usize, unicode: bool) -> char {
    const MARKS: [char; 6] = ['•', '×', '+', 'o', '#', '@'];
    const ASCII: [char; 6] = ['*', 'x', '+', 'o', '#', '@'];
    if unicode { MARKS[series % 6] } else { ASCII[series % 6] }
}
