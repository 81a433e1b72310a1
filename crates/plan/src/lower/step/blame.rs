//! Which expression of a step fails on a row, for the message of its failure.

use arrow::array::RecordBatch;
use arrow::datatypes::DataType;
use dataflow::located::Blame;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::logical_expr::Expr;

use super::compiled::Compiled;
use crate::explain::{as_name, plain};
use crate::text::names;
use crate::text::types::sql_name;

/// Characters of an expression in a message, at most.
const EXPRESSION_CHARS_MAX: usize = 400;

/// The first of `exprs` that fails on a batch of one row, down to the part that does.
/// `names` are what columns are for a reader, where their names are ours.
pub(super) fn of(exprs: &[Expr], row: &RecordBatch, names: &[(String, String)]) -> Option<Blame> {
    let scope = DFSchema::try_from(row.schema().as_ref().clone()).ok()?;
    let fails = |expr: &Expr| {
        Compiled::expression(expr, &scope).is_ok_and(|compiled| compiled.array(row).is_err())
    };
    let mut at_fault = exprs.iter().find(|expr| fails(expr))?;
    while let Some(part) = failing_part(at_fault, &fails) {
        at_fault = part;
    }
    let columns = at_fault.column_refs();
    let schema = row.schema();
    let mut reads: Vec<usize> =
        columns.iter().filter_map(|column| schema.index_of(&column.name).ok()).collect();
    reads.sort_unstable();
    let text = clipped(plain(&names::plain(&shown(at_fault)), names));
    let mut blame = Blame::new(text, row, &reads);
    blame.reads.iter_mut().for_each(|(name, _)| *name = plain(name, names));
    Some(blame)
}

/// The text, if it is not longer than a message bears: a constant may be of any length.
fn clipped(mut text: String) -> String {
    if let Some((end, _)) = text.char_indices().nth(EXPRESSION_CHARS_MAX) {
        text.truncate(end);
        text.push('…');
    }
    text
}

/// An expression as somebody would write it: the planner adds casts within it.
fn shown(expr: &Expr) -> String {
    if let Expr::Cast(cast) = expr {
        return format!("CAST({} AS {})", shown(&cast.expr), sql_name(cast.field.data_type()));
    }
    let bare = expr.clone().transform_up(|part| match part {
        Expr::Cast(cast) => Ok(Transformed::yes(*cast.expr)),
        // The text of a number is a name that needs no quotes.
        Expr::Literal(value, _) if !plainly_shown(&value) => Ok(Transformed::yes(as_name(&value))),
        part => Ok(Transformed::no(part)),
    });
    // The closure has no failures of its own.
    bare.map_or_else(|_| expr.to_string(), |bare| bare.data.to_string())
}

/// Whether [`names::plain`] makes SQL of what DataFusion shows.
fn plainly_shown(value: &ScalarValue) -> bool {
    let of = value.data_type();
    of.is_integer()
        || of.is_floating()
        || of.is_string()
        || of == DataType::Boolean
        || value.is_null()
}

/// A direct part of an expression that fails by itself. Of parts that are not always computed, as
/// those of CASE, one may fail that is not at fault: they are left whole.
fn failing_part<'a>(expr: &'a Expr, fails: &dyn Fn(&Expr) -> bool) -> Option<&'a Expr> {
    if matches!(expr, Expr::Case(_)) {
        return None;
    }
    let mut found = None;
    // The visitor has no failures of its own.
    let _ = expr.apply_children(|part| {
        if fails(part) {
            found = Some(part);
            return Ok(TreeNodeRecursion::Stop);
        }
        Ok(TreeNodeRecursion::Continue)
    });
    found
}
