//! The rows of tables.

use dataflow::fragment::WindowColumns;
use datafusion::logical_expr as logical;

use crate::expr::own::own;
use crate::lower::append;
use crate::lower::builder::JobBuilder;
use crate::lower::relation::{Base, Bounds, Relation};
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
    relation.window = stream.window.map(|WindowColumns { start, end, time }| Bounds {
        start: column(start),
        end: column(end),
        time: column(time),
        grid: None,
    });
    Ok(relation)
}
