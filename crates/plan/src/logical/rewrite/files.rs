//! The rows of a file that a query names are called as the file is, unless they have a name there:
//! `flights.origin` for those of `FROM 'data/flights.csv'`.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    Ident, ObjectName, ObjectNamePart, Query, TableAlias, TableFactor, VisitMut, VisitorMut,
};

use crate::catalog::Catalog;
use crate::text::file_names::file_stem;

/// Calls the rows of files.
pub(crate) fn rewrite(query: &mut Query, catalog: &Catalog) {
    // It never breaks off.
    let _ = VisitMut::visit(query, &mut FileNames(catalog));
}

struct FileNames<'a>(&'a Catalog);

impl VisitorMut for FileNames<'_> {
    type Break = ();

    fn pre_visit_table_factor(&mut self, table: &mut TableFactor) -> ControlFlow<()> {
        if let TableFactor::Table { name: ObjectName(parts), alias: alias @ None, .. } = table
            && let [ObjectNamePart::Identifier(name)] = &parts[..]
            && self.0.get(&name.value).is_none()
            && let Some(stem) = file_stem(&name.value)
        {
            let name = Ident::with_quote_and_span('"', name.span, stem);
            *alias = Some(TableAlias { explicit: true, name, columns: vec![], at: None });
        }
        ControlFlow::Continue(())
    }
}
