//! The names that SQL may use, for who completes and explains what a user types.

use dataflow::connector::OptionSpec;

use crate::catalog::{Catalog, Entry};
use crate::planner::Planner;
use crate::text::settings::{SettingSpec, settings};
use crate::text::types::sql_name;

/// A table or a view.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedRelation {
    /// Its name.
    pub name: String,
    /// The connector of a table; `None` for a view.
    pub connector: Option<&'static str>,
    /// Names of its columns and their types in SQL; empty while they are not known, because nothing
    /// has asked the connector for them.
    pub columns: Vec<(String, String)>,
}

/// All names that are known to a planner.
#[derive(Debug, Clone, Default)]
pub struct Vocabulary {
    /// Tables and views, by name.
    pub relations: Vec<NamedRelation>,
    /// Functions, by name.
    pub functions: Vec<String>,
    /// Connectors and the options that each knows.
    pub connectors: Vec<(&'static str, &'static [OptionSpec])>,
    /// Settings and the values that were given to them; `None` where the default is in force.
    pub settings: Vec<(SettingSpec, Option<String>)>,
}

impl Planner {
    /// The names that a script may use now.
    pub fn vocabulary(&self) -> Vocabulary {
        let mut functions: Vec<String> = self.engine.function_names().map(str::to_owned).collect();
        functions.sort_unstable();
        functions.dedup();
        let given = |spec: &SettingSpec| self.settings.given.get(spec.name).cloned();
        Vocabulary {
            relations: relations(&self.catalog),
            functions,
            connectors: self.connectors.iter().map(|c| (c.name(), c.options())).collect(),
            settings: settings().iter().map(|spec| (*spec, given(spec))).collect(),
        }
    }
}

fn relations(catalog: &Catalog) -> Vec<NamedRelation> {
    let relation = |(name, entry): (&str, &Entry)| {
        let (connector, schema) = match entry {
            Entry::Table(table) => (Some(table.connector.name()), table.declared_columns()),
            Entry::View(view) => (None, Some(view.schema())),
        };
        let fields = schema.iter().flat_map(|schema| schema.fields().iter());
        let column = |f: &arrow::datatypes::FieldRef| (f.name().clone(), sql_name(f.data_type()));
        NamedRelation { name: name.to_owned(), connector, columns: fields.map(column).collect() }
    };
    catalog.entries().map(relation).collect()
}
