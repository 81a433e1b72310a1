//! Statements that define something: tables, views, settings.

use std::sync::Arc;

use arrow::datatypes::{FieldRef, Schema};
use datafusion::sql::sqlparser::tokenizer::TokenWithSpan;

use crate::catalog::computed::Computed;
use crate::catalog::view::View;
use crate::catalog::{Entry, Table};
use crate::planner::{Failed, Planner};
use crate::text::ddl::{ColumnDecl, ColumnOrigin, CreateTable};
use crate::text::diagnostics::{Diagnostic, nearest};
use crate::text::names::with_plain_names;
use crate::text::settings::{Refused, settings};
use crate::text::syntax::{Cursor, Ident};

impl Planner {
    pub(crate) fn create_table(&mut self, decl: &CreateTable) -> Result<(), Failed> {
        if self.taken(&decl.name, decl.if_not_exists)? {
            return Ok(());
        }
        let computed = self.computed(decl)?;
        let table = Table::declare(decl, computed, &self.connectors)?;
        self.catalog.insert(decl.name.text.clone(), Entry::Table(Arc::new(table)));
        Ok(())
    }

    /// Whether a table was made that has the columns of a query, unless it declares its own.
    pub(crate) fn create_table_as(
        &mut self,
        decl: &mut CreateTable,
        query: &[TokenWithSpan],
    ) -> Result<bool, Failed> {
        if self.taken(&decl.name, decl.if_not_exists)? {
            return Ok(false);
        }
        if decl.columns.is_empty() {
            let understood = self.understand(query)?;
            let schema = with_plain_names(&understood.columns(), &understood.plan);
            let place = decl.name.place;
            let column = |field: &FieldRef| ColumnDecl {
                field: field.as_ref().clone(),
                place,
                origin: ColumnOrigin::Data,
            };
            decl.columns = schema.fields().iter().map(column).collect();
        }
        self.create_table(decl)?;
        Ok(true)
    }

    /// The computed columns of a table, which may use all that are not.
    fn computed(&self, decl: &CreateTable) -> Result<Vec<Computed>, Failed> {
        let read = decl.columns.iter().filter(|c| !matches!(c.origin, ColumnOrigin::Computed(_)));
        let schema = Schema::new(read.map(|c| c.field.clone()).collect::<Vec<_>>());
        let (mut computed, mut errors) = (vec![], vec![]);
        for column in &decl.columns {
            let ColumnOrigin::Computed(tokens) = &column.origin else { continue };
            let name = column.field.name();
            match self.engine.computed(name, tokens, &schema, &self.catalog) {
                Ok(column) => computed.push(column),
                Err(error) => errors.extend(error),
            }
        }
        if errors.is_empty() { Ok(computed) } else { Err(errors) }
    }

    pub(crate) fn create_view(
        &mut self,
        name: &Ident,
        if_not_exists: bool,
        columns: &[Ident],
        query: &[TokenWithSpan],
    ) -> Result<(), Failed> {
        if self.taken(name, if_not_exists)? {
            return Ok(());
        }
        let understood = self.understand(query)?;
        if let Some(emit) = &understood.emit {
            return Err(vec![emit.elsewhere("a view")]);
        }
        let is_again = |at: &usize| columns[..*at].iter().any(|c| c.text == columns[*at].text);
        if let Some(again) = (0..columns.len()).find(is_again).map(|at| &columns[at]) {
            let message = format!("column '{}' would be there twice", again.text);
            let hint = "give one of them another name";
            return Err(vec![Diagnostic::at(again.place, message).hint(hint)]);
        }
        let mut plan = understood.plan.clone();
        let around = self.engine.surroundings(query, &understood, &self.catalog);
        if columns.is_empty() {
            understood.each_once(&around)?;
        } else {
            let renamed = View::renamed(plan, columns).map_err(|e| vec![e])?;
            plan = renamed.map_err(|e| Vec::from_iter(around.report(&e)))?;
        }
        self.hints.keep(self.catalog.script, query);
        let view = View::new(plan, understood.extent, self.catalog.script, query);
        self.catalog.insert(name.text.clone(), Entry::View(Arc::new(view)));
        Ok(())
    }

    /// Whether a name is taken and may be.
    fn taken(&self, name: &Ident, if_not_exists: bool) -> Result<bool, Failed> {
        let Some(entry) = self.catalog.get(&name.text) else { return Ok(false) };
        if if_not_exists {
            return Ok(true);
        }
        let message = format!("{} '{}' exists already", entry.kind(), name.text);
        Err(vec![
            Diagnostic::at(name.place, message)
                .hint("give it another name, or say CREATE … IF NOT EXISTS"),
        ])
    }

    pub(crate) fn drop(&mut self, view: bool, name: &Ident, if_exists: bool) -> Result<(), Failed> {
        match self.catalog.get(&name.text) {
            None if if_exists => Ok(()),
            None => Err(self.unknown(name)),
            Some(entry) if matches!(entry, Entry::View(_)) != view => {
                let kind = entry.kind();
                Err(vec![
                    Diagnostic::at(name.place, format!("'{}' is a {kind}", name.text))
                        .hint(format!("DROP {} {}", kind.to_uppercase(), name.text)),
                ])
            }
            Some(_) => {
                self.catalog.remove(&name.text);
                Ok(())
            }
        }
    }

    pub(crate) fn set(&mut self, key: &Ident, value: &Ident) -> Result<(), Failed> {
        self.settings.set(&key.text, &value.text).map_err(|refused| {
            vec![match refused {
                Refused::Unknown => {
                    let names = settings().iter().map(|spec| spec.name);
                    let message = format!("unknown setting '{}'", key.text);
                    let short = names.clone().filter_map(|name| name.strip_prefix("millstream."));
                    let sought = match nearest(&key.text, &short.collect::<Vec<_>>()) {
                        Some(near) => format!("millstream.{near}"),
                        None => key.text.clone(),
                    };
                    Diagnostic::at(key.place, message).nearest("settings", &sought, names)
                }
                Refused::Value(values) => {
                    let message = format!("'{}' is no value of '{}'", value.text, key.text);
                    Diagnostic::at(value.place, message).hint(format!("it takes {values}"))
                }
            }]
        })?;
        let (racks, nodes) = (self.settings.job.casting.racks.len(), self.workers().nodes);
        if racks > 0 && racks != nodes as usize {
            let message = format!("{racks} racks for {nodes} nodes");
            let error = Diagnostic::at(value.place, message);
            return Err(vec![
                error.hint("name the rack of each node, in the order of their ranks"),
            ]);
        }
        Ok(())
    }

    pub(crate) fn unknown(&self, name: &Ident) -> Failed {
        if self.catalog.broken.contains(&name.text) {
            return vec![];
        }
        vec![self.catalog.unknown(name.place, &name.text)]
    }
}

/// The name that a CREATE statement would have defined.
pub(crate) fn defined_name(tokens: &[TokenWithSpan]) -> Option<String> {
    let mut cursor = Cursor::new(tokens);
    if !cursor.words("CREATE") {
        return None;
    }
    let _ = cursor.words("TEMPORARY") || cursor.words("TEMP");
    if !cursor.words("TABLE") && !cursor.words("VIEW") {
        cursor.skip(1);
    }
    cursor.words("IF NOT EXISTS");
    cursor.ident("a name").ok().map(|ident| ident.text)
}
