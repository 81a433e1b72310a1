//! A table as a statement that writes it sees it.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use dataflow::connector::TableDef;

use crate::catalog::{Derived, Table};

impl Table {
    /// Its columns as declared or already inferred, to be written: those of the data, and the
    /// metadata that the connector writes.
    pub(crate) fn declared_columns(&self) -> Option<SchemaRef> {
        let schema = self.schema.get()?;
        if self.derived.is_empty() {
            return Some(schema.clone());
        }
        let fields = schema.fields().iter().enumerate();
        let written = fields.filter(|(at, _)| match self.derived.get(at) {
            None | Some(Derived::Metadata { is_written: true, .. }) => true,
            Some(Derived::Metadata { .. } | Derived::Computed(_)) => false,
        });
        Some(Arc::new(Schema::new(written.map(|(_, field)| field.clone()).collect::<Vec<_>>())))
    }

    /// Notes the columns that a statement writes, for statements behind it that read them.
    pub(crate) fn is_written_as(&self, schema: &SchemaRef) {
        let _ = self.schema.set(schema.clone());
    }

    /// The description of written columns for its connector.
    pub(crate) fn def(&self, schema: SchemaRef) -> TableDef {
        let mut metadata = BTreeMap::new();
        for (at, derived) in &self.derived {
            if let Derived::Metadata { key, is_written: true } = derived
                && let Some(declared) = self.schema.get()
                && let Ok(written) = schema.index_of(declared.field(*at).name())
            {
                metadata.insert(written, key.clone());
            }
        }
        TableDef {
            name: self.name.clone(),
            schema,
            options: self.options.clone(),
            metadata,
            buckets: self.buckets.clone(),
        }
    }
}
