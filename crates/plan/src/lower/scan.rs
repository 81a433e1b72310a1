//! The rows of tables.

use arrow::datatypes::DataType;
use dataflow::fragment::WindowColumns;
use datafusion::logical_expr as logical;

use crate::expr::own::own;
use crate::logical::windows::Bound;
use crate::lower::append;
use crate::lower::builder::JobBuilder;
use crate::lower::relation::{Base, Relation};
use crate::lower::window_bounds::{AttachedWindow, last_of};
use crate::text::refusal::Refusal;

/// The rows of a table: of one that is read, or of a stream.
pub(crate) fn scan(job: &mut JobBuilder, scan: &logical::TableScan) -> Result<Relation, Refusal> {
    let mut relation = Relation::scan(scan)?;
    let Some(table) = relation.table().cloned() else { return Ok(relation) };
    let Some(stream) = &table.stream else { return Ok(relation) };
    let first = job.operators.len();
    append(&mut job.operators, stream.operators.clone());
    let from = stream.from.iter().map(|(at, step)| (first + at, step.clone())).collect();
    relation.base = Base::Operators { from, schema: stream.schema.clone() };
    let column = |at: usize| own(stream.schema.field(at).name());
    let attached = stream.window.and_then(|WindowColumns { end, .. }| {
        let DataType::Timestamp(unit, _) = stream.schema.field(end).data_type() else {
            return None;
        };
        let last = last_of(&relation.windows, 0, Bound::End, &column(end), *unit)?;
        Some(AttachedWindow { window: 0, last })
    });
    relation.attach(attached);
    Ok(relation)
}
