//! `VACUUM`: the files that no version of a table needs, removed and shown.

use std::sync::Arc;

use arrow::datatypes::Schema;
use dataflow::connector::Vacuum;
use dataflow::job::{Labels, Scan};

use super::{Failed, Planner};
use crate::catalog::Entry;
use crate::lower::{Lowered, scanned};
use crate::text::diagnostics::{Diagnostic, Place};
use crate::text::syntax::Ident;

impl Planner {
    /// A statement whose rows are the files.
    pub(super) fn vacuum(
        &self,
        name: &Ident,
        how: Vacuum,
        start: Place,
    ) -> Result<(String, Lowered), Failed> {
        let table = match self.catalog.get(&name.text) {
            Some(Entry::Table(table)) => table,
            Some(Entry::View(_)) => {
                let message = format!("'{}' is a view, which has no files", name.text);
                return Err(vec![Diagnostic::at(name.place, message)]);
            }
            None => return Err(self.unknown(name)),
        };
        let columns = table.declared_columns().unwrap_or_else(|| Arc::new(Schema::empty()));
        let source = table.connector.vacuum(&table.def(columns), how);
        let source = source.map_err(|error| vec![table.refused(&error, name.place)])?;
        let title = format!("VACUUM {}", name.text);
        let target = self.default_target(&title, source.schema(), start)?;
        let labels = Labels { name: Some("Vacuum"), ..Labels::default() };
        Ok((title, scanned(Scan::new(&name.text, source), labels, target)))
    }
}
