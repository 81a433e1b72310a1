//! `* REPLACE (x AS a)` must replace a column.
//!
//! DataFusion looks for the columns that EXCLUDE names, and passes over an `a` that is none here.
//! So the query is planned once more with each of these columns left out and written behind the
//! star: where that finds no column of the name, there is none.

use std::ops::ControlFlow;

use datafusion::common::SchemaError;
use datafusion::error::DataFusionError;
use datafusion::sql::sqlparser::ast::{
    ExcludeSelectItem, Ident, ObjectName, Query, Select, SelectItem, VisitMut, VisitorMut,
};

use crate::expr::failure::root;

/// The query with the columns left out that it replaces, and their names; none if it replaces none.
pub(crate) fn left_out(query: &Query) -> Option<(Box<Query>, Replaced)> {
    let (mut query, mut replaced) = (Box::new(query.clone()), Replaced(vec![]));
    // It never breaks off.
    let _ = VisitMut::visit(query.as_mut(), &mut replaced);
    (!replaced.0.is_empty()).then_some((query, replaced))
}

/// Names of columns.
pub(crate) struct Replaced(Vec<String>);

impl Replaced {
    /// Whether an error is that there is no column of such a name.
    pub(crate) fn lacks(&self, error: &DataFusionError) -> bool {
        match root(error) {
            DataFusionError::SchemaError(schema, _) => match schema.as_ref() {
                SchemaError::FieldNotFound { field, .. } => self.0.contains(&field.name),
                _ => false,
            },
            _ => false,
        }
    }
}

impl VisitorMut for Replaced {
    type Break = ();

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<()> {
        let mut behind = vec![];
        for item in &mut select.projection {
            let (SelectItem::Wildcard(options) | SelectItem::QualifiedWildcard(_, options)) = item
            else {
                continue;
            };
            let Some(replace) = options.opt_replace.take() else { continue };
            let mut names = vec![];
            for element in replace.items {
                let name = Ident { quote_style: Some('"'), ..element.column_name };
                self.0.push(name.value.clone());
                names.push(ObjectName::from(vec![name.clone()]));
                behind.push(SelectItem::ExprWithAlias { expr: element.expr, alias: name });
            }
            match options.opt_exclude.take() {
                Some(ExcludeSelectItem::Single(name)) => names.push(name),
                Some(ExcludeSelectItem::Multiple(more)) => names.extend(more),
                None => {}
            }
            options.opt_exclude = Some(ExcludeSelectItem::Multiple(names));
        }
        select.projection.append(&mut behind);
        ControlFlow::Continue(())
    }
}
