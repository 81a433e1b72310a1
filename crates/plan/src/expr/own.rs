//! Columns of the rows that an operator or a table gives, by their names.

use datafusion::common::Column;
use datafusion::logical_expr::Expr;

/// A column of a base.
pub(crate) fn own(name: &str) -> Expr {
    Expr::Column(Column::new_unqualified(name))
}
