//! `CREATE TABLE`, checked against the connector that it names.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use arrow::datatypes::{DataType, Schema};
use dataflow::connector::{Connector, HashBuckets, Options};
use dataflow::secrets;

use crate::catalog::computed::Computed;
use crate::catalog::{Derived, EventTimeColumn, Places, Table, finer_hint};
use crate::text::ddl::{BucketsDecl, ColumnOrigin, CreateTable};
use crate::text::diagnostics::{Diagnostic, Place};
use crate::text::syntax::Ident;
use crate::text::types::sql_name;

/// Options that had another name: the former one, and the one that they have now.
const RENAMED_OPTIONS: [(&str, &str); 1] = [("patience", "retry.timeout")];

/// The options as the connector takes them, with references to secrets resolved.
fn options_of(
    decl: &CreateTable,
    connector: &dyn Connector,
    errors: &mut Vec<Diagnostic>,
) -> Options {
    let mut options = Options::new();
    let known = || connector.options().iter().map(|o| o.key);
    for option in decl.options.iter().filter(|o| o.key.text != "connector") {
        let key = &option.key.text;
        if !known().any(|k| k == key || k.split_once('<').is_some_and(family(key))) {
            errors.push(unknown_option(connector, option.key.place, key));
        }
        match secrets::resolve(&option.value.text) {
            Ok(value) => drop(options.insert(key.clone(), value.into_owned())),
            Err((message, hint)) => {
                let message = format!("option '{key}': {message}");
                errors.push(Diagnostic::at(option.value.place, message).hint(hint));
            }
        }
    }
    options
}

/// The error for an option that a connector does not have.
fn unknown_option(connector: &dyn Connector, place: Place, key: &str) -> Diagnostic {
    let names = || connector.options().iter().map(|option| option.key);
    let message = format!("connector '{}' has no option '{key}'", connector.name());
    let error = Diagnostic::at(place, message);
    match RENAMED_OPTIONS.iter().find(|(former, now)| *former == key && names().any(|k| k == *now))
    {
        Some((_, now)) => error.hint(format!("the option is called '{now}' now")),
        None => error.nearest("options", key, names()),
    }
}

impl Table {
    /// Checks a declaration against its connector. `computed` are its computed columns, in order.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub(crate) fn declare(
        decl: &CreateTable,
        computed: Vec<Computed>,
        connectors: &[Arc<dyn Connector>],
    ) -> Result<Self, Vec<Diagnostic>> {
        let connector = connector_of(decl, connectors).map_err(|e| vec![e])?;
        let mut errors = vec![];
        let mut options = options_of(decl, &*connector, &mut errors);
        errors.extend(take_key(decl, &*connector, &mut options));
        let mut computed = computed.into_iter();
        let mut fields = Vec::with_capacity(decl.columns.len());
        let mut derived = BTreeMap::new();
        for (at, column) in decl.columns.iter().enumerate() {
            fields.push(column.field.clone());
            match &column.origin {
                ColumnOrigin::Data => {}
                ColumnOrigin::Metadata { key, is_virtual } => {
                    errors.extend(unknown_metadata(&*connector, key));
                    let can_write = connector.written_metadata().contains(&key.text.as_str());
                    let (key, is_written) = (key.text.clone(), can_write && !is_virtual);
                    derived.insert(at, Derived::Metadata { key, is_written });
                }
                ColumnOrigin::Computed(_) => {
                    let Some(computed) = computed.next() else { continue };
                    fields[at] = computed.field.clone();
                    derived.insert(at, Derived::Computed(computed));
                }
            }
        }
        let places = Places {
            stale: AtomicBool::new(false),
            name: decl.name.place,
            columns: decl.columns.iter().map(|c| (c.field.name().clone(), c.place)).collect(),
            buckets: decl.buckets.iter().map(|b| (b.column.text.clone(), b.column.place)).collect(),
            options: decl.options.iter().map(|o| (o.key.text.clone(), o.value.place)).collect(),
        };
        errors.extend(refused_buckets(decl, &*connector));
        let bucket = |decl: &BucketsDecl| HashBuckets {
            column: decl.column.text.clone(),
            count: decl.count,
        };
        let mut table = Self {
            name: decl.name.text.clone(),
            connector,
            event_time: None,
            options,
            buckets: decl.buckets.iter().map(bucket).collect(),
            schema: OnceLock::new(),
            derived,
            bounded: OnceLock::new(),
            places,
            stream: None,
            dead_letters: Arc::default(),
            side_output: None,
        };
        if !decl.columns.is_empty() {
            let _ = table.schema.set(Arc::new(Schema::new(fields)));
        }
        if errors.is_empty() {
            errors.extend(table.check().err());
        }
        if errors.is_empty() {
            match table.declared_time(decl) {
                Ok(event_time) => table.event_time = event_time,
                Err(error) => errors.push(error),
            }
        }
        if errors.is_empty() { Ok(table) } else { Err(errors) }
    }

    /// Has the connector look at the declaration.
    fn check(&self) -> Result<(), Diagnostic> {
        let declared = self.declared_columns().unwrap_or_else(|| Arc::new(Schema::empty()));
        match self.connector.declare(&self.def(declared)) {
            Ok(Some(schema)) => {
                let _ = self.schema.set(schema);
                Ok(())
            }
            Ok(None) => Ok(()),
            Err(error) => Err(self.refused(&error, self.places.name)),
        }
    }

    /// The watermark of the declaration. It is a source's, so that columns can be inferred here if
    /// need be.
    fn declared_time(&self, decl: &CreateTable) -> Result<Option<EventTimeColumn>, Diagnostic> {
        let Some(watermark) = &decl.watermark else { return Ok(None) };
        let (name, place) = (&watermark.column.text, watermark.column.place);
        let schema = self.columns(place)?;
        let Ok(field) = schema.field_with_name(name) else {
            let names = schema.fields().iter().map(|f| f.name().as_str());
            return Err(Diagnostic::at(place, format!("unknown column '{name}'"))
                .nearest("columns", name, names));
        };
        let DataType::Timestamp(unit, _) = field.data_type() else {
            let shown = sql_name(field.data_type());
            let message = format!("a watermark needs a TIMESTAMP column, and '{name}' is {shown}");
            return Err(Diagnostic::at(place, message)
                .hint(format!("declare the column as {name} TIMESTAMP(3)")));
        };
        let delay = match watermark.delay {
            None => 0,
            Some(interval) => interval.ticks(*unit).ok_or_else(|| {
                let shown = sql_name(field.data_type());
                let message = format!("the interval is finer than '{name}', which is {shown}");
                Diagnostic::at(interval.place, message).hint(finer_hint(*unit))
            })?,
        };
        let idle_timeout_ns = watermark.idle_timeout.map(|interval| interval.ns as u64);
        Ok(Some(EventTimeColumn { column: name.clone(), delay, idle_timeout_ns }))
    }
}

/// The option that has the columns of `PRIMARY KEY (…) NOT ENFORCED`.
const KEY_OPTION: &str = "primary-key";

/// Gives a connector the columns of the declared key as an option; gives the error that it takes
/// none, or that they are none of the table.
fn take_key(
    decl: &CreateTable,
    connector: &dyn Connector,
    options: &mut Options,
) -> Option<Diagnostic> {
    let (place, columns) = decl.key.as_ref()?;
    if connector.options().iter().all(|option| option.key != KEY_OPTION) {
        let message = format!("tables of '{}' have no keys", connector.name());
        let hint = "leave the clause out: rows are taken as they come";
        return Some(Diagnostic::at(*place, message).hint(hint));
    }
    let names = || decl.columns.iter().map(|column| column.field.name().as_str());
    if let Some(unknown) = columns.iter().find(|of| names().all(|name| name != of.text)) {
        let message = format!("unknown column '{}'", unknown.text);
        let error = Diagnostic::at(unknown.place, message);
        return Some(error.nearest("columns", &unknown.text, names()));
    }
    let names: Vec<&str> = columns.iter().map(|column| column.text.as_str()).collect();
    options
        .insert(KEY_OPTION.into(), names.join(";"))
        .map(|_| Diagnostic::at(*place, format!("option '{KEY_OPTION}' says the key, too")))
}

/// The error that tables of a connector are not distributed, or not by these columns.
fn refused_buckets(decl: &CreateTable, connector: &dyn Connector) -> Option<Diagnostic> {
    let first = decl.buckets.first()?;
    if !connector.takes_buckets() {
        let message = format!("tables of '{}' are not distributed by a hash", connector.name());
        return Some(
            Diagnostic::at(first.column.place, message)
                .hint("leave the clause out: every source is cut into flows by itself"),
        );
    }
    let names = || decl.columns.iter().map(|column| column.field.name().as_str());
    let unknown = |by: &&BucketsDecl| names().all(|name| name != by.column.text);
    let by = decl.buckets.iter().find(unknown).filter(|_| !decl.columns.is_empty())?;
    let error = Diagnostic::at(by.column.place, format!("unknown column '{}'", by.column.text));
    Some(error.nearest("columns", &by.column.text, names()))
}

/// The error that a connector does not know a key.
fn unknown_metadata(connector: &dyn Connector, key: &Ident) -> Option<Diagnostic> {
    let known = || connector.metadata().iter().map(|spec| spec.key);
    if known().any(|name| name == key.text) {
        return None;
    }
    let message = format!("connector '{}' has no metadata '{}'", connector.name(), key.text);
    let error = Diagnostic::at(key.place, message);
    Some(if connector.metadata().is_empty() {
        error.hint("leave the column out, or compute it: name AS expression")
    } else {
        error.nearest("keys", &key.text, known())
    })
}

/// Whether `key` is of a family of options such as `fields.<column>.kind`. The connector knows the
/// columns and checks the rest of the key.
fn family(key: &str) -> impl Fn((&str, &str)) -> bool {
    move |(before, _)| key.starts_with(before)
}

fn connector_of(
    decl: &CreateTable,
    connectors: &[Arc<dyn Connector>],
) -> Result<Arc<dyn Connector>, Diagnostic> {
    let names = || connectors.iter().map(|c| c.name());
    let Some(option) = decl.options.iter().find(|o| o.key.text == "connector") else {
        let message = format!("table '{}' does not say its connector", decl.name.text);
        return Err(Diagnostic::at(decl.name.place, message)
            .detail(format!("the connectors are: {}", names().collect::<Vec<_>>().join(", ")))
            .hint("WITH ('connector' = '…', …)"));
    };
    let name = &option.value.text;
    connectors.iter().find(|c| c.name() == name).cloned().ok_or_else(|| {
        Diagnostic::at(option.value.place, format!("unknown connector '{name}'")).nearest(
            "connectors",
            name,
            names(),
        )
    })
}
