//! Parquet, read.

use std::fs;
use std::fs::File;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, Float64Array, Int32Array, Int64Array, StringArray, TimestampMicrosecondArray,
};
use arrow::datatypes::{DataType, Field, Schema};
use arrow::record_batch::RecordBatch;
use connectors::FileConnector;
use dataflow::connector::Connector;
use dataflow::error::ConnectorError;
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;

use crate::bed::*;

/// Writes a file with row groups of 100 rows.
fn write(path: &str, batch: &RecordBatch) {
    let properties = WriterProperties::builder().set_max_row_group_row_count(Some(100)).build();
    let file = File::create(path).unwrap();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties)).unwrap();
    writer.write(batch).unwrap();
    writer.close().unwrap();
}

fn sample(rows: i64) -> RecordBatch {
    let ids: ArrayRef = Arc::new(Int32Array::from_iter_values((0..rows).map(|row| row as i32)));
    let delays: ArrayRef = Arc::new(Float64Array::from_iter(
        (0..rows).map(|row| (row % 10 != 0).then_some(row as f64)),
    ));
    let names: ArrayRef =
        Arc::new(StringArray::from_iter_values((0..rows).map(|row| format!("n{}", row % 3))));
    let times = TimestampMicrosecondArray::from_iter_values((0..rows).map(|row| row * 1_000_500));
    batch(&[("Id", ids), ("delay", delays), ("name", names), ("at", Arc::new(times))])
}

#[test]
fn row_groups_are_flows_and_say_what_is_in_them() {
    let scratch = Scratch::new("parquet-flows");
    let path = scratch.path("t.parquet");
    write(&path, &sample(250));
    let schema = columns(&[("id", BIGINT), ("delay", BIGINT), ("at", TIMESTAMP)]);
    let table = table(&schema, &[("path", &path)]);
    // Out of the file's order, and with the types that the table declares.
    let source = FileConnector.source(&table, &[2, 0, 1]).unwrap();
    assert_eq!(source.schema().field(1).data_type(), &BIGINT);
    let flows = source.flows(7, Some(0)).unwrap();
    assert_eq!(flows.iter().map(|flow| flow.rows).collect::<Vec<_>>(), [100, 100, 50].map(Some));
    assert_eq!(
        flows.iter().map(|flow| flow.event_time_min).collect::<Vec<_>>(),
        [0, 100_050, 200_100].map(Some)
    );
    assert!(flows[1].bytes > Some(0) && flows[1].name.ends_with("t.parquet row group 1"));
    let read = read_flow(&*source, 1, &context());
    assert_eq!(rows(&read)[1], "1970-01-01T00:01:41.050|101|101");
    assert_eq!(rows(&read)[0], "1970-01-01T00:01:40.050|100|NULL");
    assert_eq!(source.flows(7, Some(1)).unwrap()[0].event_time_min, None);
    // The number and the time.
    assert_eq!(bounds_hold(&*source), 2);
    assert_eq!(source.bounds(1).range, Some([0, 249]));
    let nothing = FileConnector.source(&table, &[]).unwrap();
    assert_eq!(crate::bed::read(&*nothing, 1, &context()).num_rows(), 250);
}

#[test]
fn values_that_the_declared_type_cannot_hold_are_bad_rows() {
    let scratch = Scratch::new("parquet-bad");
    let path = scratch.path("t.parquet");
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter((0..250).map(|row| match row {
        120 => Some(i64::MAX),
        130 => None,
        _ => Some(row),
    })));
    let halves: ArrayRef = Arc::new(Float64Array::from_iter_values(
        (0..250).map(|row| if row == 249 { 0.5 } else { 1.0 }),
    ));
    write(&path, &batch(&[("n", numbers), ("h", halves)]));
    let fields =
        vec![Field::new("n", DataType::Int32, false), Field::new("h", DataType::Int64, true)];
    let table = table(&Arc::new(Schema::new(fields)), &[("path", &path)]);
    let context = context();
    let read = read(&*source(&FileConnector, &table).unwrap(), 1, &context);
    assert_eq!(read.num_rows(), 247);
    let bad = bad(&context);
    let reasons: Vec<(&str, &str)> =
        bad.iter().map(|bad| (bad.0.as_str(), bad.1.as_str())).collect();
    assert_eq!(
        reasons,
        [
            ("t.parquet:121", "column 'n': '9223372036854775807' is not a valid INT"),
            ("t.parquet:131", "column 'n': NULL, but it is NOT NULL"),
            ("t.parquet:250", "column 'h': '0.5' is not a valid BIGINT"),
        ]
    );
    assert_eq!(bad[1].2, "NULL,1.0");
}

#[test]
fn a_file_that_is_not_whole_is_named() {
    let scratch = Scratch::new("parquet-torn");
    let path = scratch.path("t.parquet");
    write(&path, &sample(250));
    let whole = fs::read(&path).unwrap();
    let schema = columns(&[("id", BIGINT)]);
    for bytes in [&whole[..whole.len() - 1], &whole[..whole.len() / 2], b"a,b\n1,2\n", b""] {
        fs::write(&path, bytes).unwrap();
        let table = table(&schema, &[("path", &path)]);
        let error = refused(source(&FileConnector, &table));
        assert!(matches!(&error, ConnectorError::Io { place, .. } if *place == path), "{error}");
        assert!(error.to_string().contains("not a whole Parquet file"), "{error}");
        assert_eq!(refused(FileConnector.infer(&table.options)), error);
    }
    // A footer that is right over pages that are not.
    let mut damaged = whole.clone();
    damaged[4..200].fill(0xff);
    fs::write(&path, damaged).unwrap();
    let source = source(&FileConnector, &table(&schema, &[("path", &path)])).unwrap();
    let error = refused(try_read_flow(&*source, 0, &context()));
    assert!(error.to_string().contains("t.parquet"), "{error}");
}

#[test]
fn a_column_that_one_file_lacks_is_null_there() {
    let scratch = Scratch::new("parquet-lacks");
    write(&scratch.path("1.parquet"), &sample(2).project(&[0]).unwrap());
    write(&scratch.path("2.parquet"), &sample(2).project(&[0, 2]).unwrap());
    let path = scratch.path("*.parquet");
    let table_of = |fields: &[(&str, DataType)]| table(&columns(fields), &[("path", &path)]);
    let both = table_of(&[("id", BIGINT), ("name", VARCHAR)]);
    let source_of = |table| source(&FileConnector, table).unwrap();
    let all = read(&*source_of(&both), 1, &context());
    assert_eq!(rows(&all), ["0|NULL", "1|NULL", "0|n0", "1|n1"]);
    let names = read(&*FileConnector.source(&both, &[1]).unwrap(), 1, &context());
    assert_eq!(rows(&names), ["NULL", "NULL", "n0", "n1"]);
    let error = refused(source(&FileConnector, &table_of(&[("delay", DOUBLE)])));
    assert!(matches!(&error, ConnectorError::Column { column, .. } if column == "delay"));
}

#[test]
fn a_schema_that_does_not_fit_is_reported_before_anything_runs() {
    let scratch = Scratch::new("parquet-schema");
    let path = scratch.path("t.parquet");
    write(&path, &sample(10));
    let error = |fields: &[(&str, DataType)]| {
        refused(source(&FileConnector, &table(&columns(fields), &[("path", &path)])))
    };
    let missing = error(&[("dealy", DOUBLE)]);
    assert!(matches!(&missing, ConnectorError::Column { column, .. } if column == "dealy"));
    assert_eq!(hint(&missing), "did you mean 'delay'?");
    let unfit = error(&[("id", DataType::Struct(vec![Field::new("x", BIGINT, true)].into()))]);
    assert_eq!(hint(&unfit), "declare it as INT");
    let inferred = FileConnector.infer(&table(&columns(&[]), &[("path", &path)]).options);
    assert_eq!(inferred.unwrap().unwrap().fields(), sample(1).schema().fields());
}
