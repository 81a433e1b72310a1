//! Metadata columns in tables that are written.

use std::sync::{Arc, Mutex};

use arrow::datatypes::DataType;
use dataflow::connector::{Connector, MetadataSpec, TableDef};
use dataflow::error::ConnectorError;
use dataflow::sink::Sink;
use plan::{Planner, Workers};

use crate::support::Memory;

static KNOWN: [MetadataSpec; 2] = [
    MetadataSpec { key: "time", data_type: DataType::Utf8, doc: "Read and written." },
    MetadataSpec { key: "place", data_type: DataType::Utf8, doc: "Only read." },
];

/// `'connector' = 'messages'`; keeps the tables that it writes.
#[derive(Default)]
struct Messages(Mutex<Vec<TableDef>>);

impl Connector for Messages {
    fn name(&self) -> &'static str {
        "messages"
    }

    fn metadata(&self) -> &'static [MetadataSpec] {
        &KNOWN
    }

    fn written_metadata(&self) -> &'static [&'static str] {
        &["time"]
    }

    fn sink(&self, table: &TableDef) -> Result<Arc<dyn Sink>, ConnectorError> {
        self.0.lock().expect("the tables").push(table.clone());
        Memory::default().sink(table)
    }
}

/// The columns that the sink of an INSERT gets, each with its key of metadata; or the error.
fn written(columns: &str, insert: &str) -> Result<Vec<String>, String> {
    let messages = Arc::new(Messages::default());
    let mut planner = Planner::new(vec![messages.clone()], Workers { nodes: 1, per_node: 1 });
    let sql = format!("CREATE TABLE t ({columns}) WITH ('connector' = 'messages'); {insert}");
    let planned = planner.plan(&sql);
    let shown = |errors: Vec<plan::Diagnostic>| {
        errors.iter().map(|error| error.render("", &sql, false)).collect::<String>()
    };
    planned.map_err(shown)?;
    let tables = messages.0.lock().expect("the tables");
    let [table] = &tables[..] else { panic!("{} tables are written", tables.len()) };
    let fields = table.schema.fields().iter().enumerate();
    let column = |(at, field): (usize, &Arc<arrow::datatypes::Field>)| {
        let key = table.metadata.get(&at);
        key.map_or(field.name().clone(), |key| format!("{} as {key}", field.name()))
    };
    Ok(fields.map(column).collect())
}

#[test]
fn what_a_connector_writes_is_part_of_an_insert_unless_it_is_virtual() {
    let columns = "place STRING METADATA, a BIGINT, at STRING METADATA FROM 'time', b BIGINT";
    let insert = "INSERT INTO t SELECT 1, 'now', 2";
    assert_eq!(written(columns, insert).unwrap(), ["a", "at as time", "b"]);
    let named = "INSERT INTO t (b, a) SELECT 1, 2";
    assert_eq!(written(columns, named).unwrap(), ["a", "at as time", "b"]);
    let columns = columns.replace("'time'", "'time' VIRTUAL");
    assert_eq!(written(&columns, "INSERT INTO t SELECT 1, 2").unwrap(), ["a", "b"]);
    let error = written(&columns, insert).unwrap_err();
    assert!(error.contains("columns"), "{error}");
    let computed = "a BIGINT, c AS a + 1, time STRING METADATA";
    assert_eq!(written(computed, "INSERT INTO t SELECT 1, 'now'").unwrap(), ["a", "time as time"]);
}
