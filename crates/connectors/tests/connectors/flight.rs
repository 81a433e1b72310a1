//! Rows from and to a Flight server.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, StringArray};
use arrow::datatypes::DataType;
use arrow::record_batch::RecordBatch;
use connectors::FlightConnector;
use dataflow::connector::{Connector, TableDef};
use dataflow::error::ConnectorError;
use dataflow::sink::{Placement, WriterContext};

use crate::bed::*;
use crate::servers::flight::Tables;
use crate::servers::{Serving, nobody};

fn sample(from: i64, rows: i64) -> RecordBatch {
    let a: ArrayRef = Arc::new(Int64Array::from_iter_values(from..from + rows));
    let b = (from..from + rows).map(|a| (a % 3 > 0).then(|| format!("x{a}")));
    let b: ArrayRef = Arc::new(b.collect::<StringArray>());
    batch(&[("b", b), ("a", a)])
}

fn serve(tables: Tables, name: &str, batches: Vec<RecordBatch>) -> (Tables, Serving) {
    tables.tables.lock().unwrap().insert(name.to_owned(), batches);
    (tables.clone(), tables.serve())
}

fn at(serving: &Serving, options: &[(&str, &str)]) -> TableDef {
    let uri = format!("grpc://{}", serving.address);
    let mut all = vec![("uri", uri.as_str()), ("retry.timeout", "0")];
    all.extend(options);
    table(&columns(&[("a", BIGINT), ("b", VARCHAR)]), &all)
}

fn read_all(table: &TableDef) -> Result<Vec<String>, ConnectorError> {
    let source = source(&FlightConnector, table)?;
    let mut all = Vec::new();
    for flow in 0..source.splits(2, None)?.len() {
        all.extend(rows(&drain(&mut *source.open(&nth(flow), None, &context())?)?));
    }
    Ok(all)
}

#[test]
fn endpoints_are_flows_and_columns_are_matched_by_name() {
    let batches = vec![sample(0, 5000), sample(5000, 1)];
    let (_, serving) = serve(Tables::default(), "x/y", batches);
    let table = at(&serving, &[("path", "x/y")]);
    let source = source(&FlightConnector, &table).unwrap();
    assert!(source.bounded());
    let names: Vec<String> =
        source.splits(2, None).unwrap().into_iter().map(|flow| flow.name).collect();
    let uri = format!("grpc://{}", serving.address);
    assert_eq!(names, [format!("{uri} endpoint 0"), format!("{uri} endpoint 1")]);
    let expected: Vec<String> = (0..5001)
        .map(|a| if a % 3 > 0 { format!("{a}|x{a}") } else { format!("{a}|NULL") })
        .collect();
    assert_eq!(read_all(&table).unwrap(), expected);
    let projected = FlightConnector.source(&table, &[1]).unwrap();
    let mut flow = projected.open(&nth(1), None, &context()).unwrap();
    assert_eq!(rows(&drain(&mut *flow).unwrap()), ["x5000"]);
    let endless = at(&serving, &[("path", "x/y"), ("bounded", "false")]);
    assert!(!crate::bed::source(&FlightConnector, &endless).unwrap().bounded());
}

#[test]
fn columns_are_those_of_the_server_with_and_without_its_word() {
    for without_schema in [false, true] {
        let tables = Tables { without_schema, ..Tables::default() };
        let (_, serving) = serve(tables, "t", vec![sample(0, 1)]);
        for what in [("path", "t"), ("ticket", "t")] {
            let schema = FlightConnector.infer(&at(&serving, &[what]).options).unwrap().unwrap();
            assert_eq!(schema.field_with_name("a").unwrap().data_type(), &BIGINT);
            assert_eq!(read_all(&at(&serving, &[what])).unwrap(), ["0|NULL"]);
        }
    }
}

#[test]
fn a_value_that_does_not_fit_is_a_bad_row() {
    let a: ArrayRef = Arc::new(Int64Array::from(vec![1, 1 << 40, 3]));
    let b: ArrayRef = Arc::new(StringArray::from(vec!["x", "y", "z"]));
    let (_, serving) = serve(Tables::default(), "t", vec![batch(&[("a", a), ("b", b)])]);
    let mut table = at(&serving, &[("path", "t")]);
    table.schema = columns(&[("a", DataType::Int32), ("b", VARCHAR)]);
    let source = source(&FlightConnector, &table).unwrap();
    let context = context();
    let mut flow = source.open(&nth(0), None, &context).unwrap();
    assert_eq!(rows(&drain(&mut *flow).unwrap()), ["1|x", "3|z"]);
    let place = format!("{} endpoint 0:2", serving.address);
    let bad = bad(&context);
    assert_eq!((bad[0].0.as_str(), bad.len()), (place.as_str(), 1));
    assert!(bad[0].1.contains("column 'a'"), "{bad:?}");
}

#[test]
fn what_is_missing_closed_or_does_not_fit_is_told() {
    let tables = Tables { password: Some("hush"), ..Tables::default() };
    let (_, serving) = serve(tables, "t", vec![sample(0, 1)]);
    let known = ("header.authorization", "hush");
    let error = |options: &[(&str, &str)]| refused(read_all(&at(&serving, options)));
    let closed = error(&[("path", "t"), ("header.authorization", "wrong-hush")]);
    assert!(closed.to_string().contains("Unauthenticated: who are you?"), "{closed}");
    assert!(hint(&closed).contains("'header.authorization'"));
    assert!(!format!("{closed:?}").contains("hush"), "{closed:?}");
    let missing = error(&[("path", "none"), known]);
    assert!(missing.to_string().contains("NotFound: no table 'none'"), "{missing}");
    assert!(error(&[known]).to_string().contains("'path': is missing"));
    assert!(error(&[("path", "t"), ("ticket", "t")]).to_string().contains("several"));
    let uri = format!("grpc://{}", nobody());
    let gone = error(&[("path", "t"), ("uri", &uri)]);
    assert!(gone.to_string().contains("cannot be reached"), "{gone}");
    assert!(error(&[("path", "t"), ("uri", "grpc+tls://h:1")]).to_string().contains("TLS"));

    let mut other = at(&serving, &[("path", "t"), known]);
    other.schema = columns(&[("c", BIGINT)]);
    let error = refused(source(&FlightConnector, &other).map(drop));
    assert!(matches!(&error, ConnectorError::Column { column, .. } if column == "c"), "{error}");
}

#[test]
fn a_put_arrives_whole() {
    let tables = Tables::default();
    let serving = tables.clone().serve();
    let sample = sample(0, 10_000);
    let mut table = at(&serving, &[("path", "new")]);
    table.schema = sample.schema();
    let sink = FlightConnector.sink(&table).unwrap();
    assert_eq!(sink.placement(), Placement::Gather);
    let mut writer = sink.open(&WriterContext::of(0)).unwrap();
    for part in 0..100 {
        put(&mut *writer, &sample.slice(part * 100, 100)).unwrap();
    }
    writer.commit().unwrap();
    let stored = tables.tables.lock().unwrap()["new"].clone();
    let stored: Vec<String> = stored.iter().flat_map(rows).collect();
    assert_eq!(stored, rows(&sample));
}

#[test]
fn a_put_that_is_dropped_is_seen_as_broken() {
    let tables = Tables::default();
    let serving = tables.clone().serve();
    let sample = sample(0, 10);
    let mut table = at(&serving, &[("path", "new")]);
    table.schema = sample.schema();
    let mut writer = FlightConnector.sink(&table).unwrap().open(&WriterContext::of(0)).unwrap();
    for _ in 0..100 {
        put(&mut *writer, &sample).unwrap();
    }
    drop(writer);
    while tables.broken.lock().unwrap().is_empty() {
        assert!(tables.tables.lock().unwrap().is_empty(), "it was taken for whole");
        std::thread::yield_now();
    }
}

#[test]
fn a_put_that_the_server_refuses_is_an_error() {
    let serving = Tables::default().serve();
    let sample = sample(0, 10);
    let mut table = at(&serving, &[("path", "refused")]);
    table.schema = sample.schema();
    let mut writer = FlightConnector.sink(&table).unwrap().open(&WriterContext::of(0)).unwrap();
    let error = refused(put(&mut *writer, &sample).and_then(|()| writer.commit()));
    assert!(error.to_string().contains("it is read-only"), "{error}");
    let mut ticket = at(&serving, &[("ticket", "t")]);
    ticket.schema = sample.schema();
    let error = refused(FlightConnector.sink(&ticket).map(drop));
    assert!(error.to_string().contains("a sink cannot have one"), "{error}");
}

#[test]
fn what_was_given_for_a_server_is_not_told_to_another() {
    let other = Tables::default();
    let (other, elsewhere) = serve(other, "t", vec![sample(0, 2)]);
    let location = Some(format!("grpc://{}", elsewhere.address));
    let first = Tables { location, password: Some("hush"), ..Tables::default() };
    let (first, serving) = serve(first, "t", vec![sample(0, 2)]);
    let given = |tables: &Tables| std::mem::take(&mut *tables.given.lock().unwrap());
    let known = [("path", "t"), ("header.authorization", "hush")];
    assert_eq!(read_all(&at(&serving, &known)).unwrap(), ["0|NULL", "1|x1"]);
    assert_eq!(given(&first), [Some("hush".to_owned())]);
    assert_eq!(given(&other), [None]);
    let trusted = elsewhere.address.to_string();
    let known = [known[0], known[1], ("trusted", trusted.as_str())];
    assert_eq!(read_all(&at(&serving, &known)).unwrap(), ["0|NULL", "1|x1"]);
    assert_eq!(given(&other), [Some("hush".to_owned())]);
}

/// Each byte of the schema's message, in what is said of the table and in the stream, with two
/// values each: an error that names the server, or rows, and never a panic.
#[test]
fn a_damaged_schema_is_an_error_that_names_the_server() {
    let (mut refused, mut read) = (0, 0);
    for without_schema in [false, true] {
        let tables = Tables { without_schema, ..Tables::default() };
        let (tables, serving) = serve(tables, "t", vec![sample(0, 2)]);
        let uri = format!("grpc://{}", serving.address);
        for place in 0..260 {
            let value = if place % 2 == 0 { 0x55 } else { 0xff };
            *tables.damage.lock().unwrap() = Some((place, value));
            match read_all(&at(&serving, &[("path", "t")])) {
                Ok(_) => read += 1,
                Err(ConnectorError::Io { place, message, .. }) => {
                    assert!(place.starts_with(&uri), "{place}: {message}");
                    assert!(!message.contains("unexpectedly"), "{message}");
                    refused += 1;
                }
                Err(ConnectorError::Column { .. }) => refused += 1,
                Err(other) => panic!("byte {place}: {other}"),
            }
        }
    }
    assert!(refused > 50 && read > 50, "{refused} refused, {read} read");
}
