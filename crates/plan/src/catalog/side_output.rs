//! `t__bad` and `t__late`: what a table could not give, as tables.
//!
//! Both read the table once more, for themselves, and give out what its other readers count and
//! pass over. `t__bad` has a row for each that could not be read: where it stands, why, and its
//! text. `t__late` has the rows that came behind the watermark of their own flow, with the
//! watermark that each met: a window counts such a row as long as it has not fired itself, and
//! drops it from then on.
//!
//! Each is a step of the scan: [`bad`](crate::catalog::bad), [`late`](crate::catalog::late).

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use dataflow::bad;

/// Which rows of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SideOutput {
    /// Those that cannot be read.
    Bad,
    /// Those that came behind the watermark of their flow.
    Late,
}

/// The column of [`SideOutput::Late`] that the table itself has not.
pub(crate) const WATERMARK: &str = "watermark";

impl SideOutput {
    /// The table and the side that a name means, if it is the name of a side.
    pub(crate) fn of(name: &str) -> Option<(&str, Self)> {
        [SideOutput::Bad, SideOutput::Late]
            .into_iter()
            .find_map(|side_output| Some((name.strip_suffix(side_output.suffix())?, side_output)))
    }

    /// The suffix of the table's name.
    pub(crate) fn suffix(self) -> &'static str {
        match self {
            SideOutput::Bad => "__bad",
            SideOutput::Late => "__late",
        }
    }

    /// Its columns, of a table with `columns` of which one is the event time.
    pub(crate) fn schema(self, columns: &Schema, time: &str) -> SchemaRef {
        match self {
            SideOutput::Bad => bad::columns(),
            SideOutput::Late => {
                let time = columns.field_with_name(time).map(|field| field.data_type().clone());
                let time = time.unwrap_or(DataType::Null);
                let watermark = Arc::new(Field::new(WATERMARK, time, false));
                let all = columns.fields().iter().cloned().chain([watermark]);
                Arc::new(Schema::new(all.collect::<Vec<_>>()))
            }
        }
    }
}
