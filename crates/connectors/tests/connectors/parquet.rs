//! Parquet, read.

use std::fs;
use std::fs::File;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, AsArray, Decimal128Array, Float64Array, Int32Array, Int64Array, StringArray,
    TimestampMicrosecondArray,
};
use arrow::datatypes::{DataType, Field, Int64Type, Schema};
use arrow::record_batch::RecordBatch;
use connectors::FileConnector;
use dataflow::connector::Connector;
use dataflow::error::ConnectorError;
use dataflow::predicate::{ColumnPredicate, ColumnRange};
use dataflow::source::Pruning;
use parquet::arrow::ArrowWriter;
use parquet::basic::{ConvertedType, LogicalType, Repetition, Type as Physical};
use parquet::data_type::{ByteArray, ByteArrayType, FixedLenByteArray, FixedLenByteArrayType};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::{PrimitiveTypeBuilder, Type, TypePtr};

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
    let source = FileConnector::default().source(&table, &[2, 0, 1]).unwrap();
    assert_eq!(source.schema().field(1).data_type(), &BIGINT);
    let flows = source.splits(7, Some(0)).unwrap();
    assert_eq!(flows.iter().map(|flow| flow.rows).collect::<Vec<_>>(), [100, 100, 50].map(Some));
    assert_eq!(
        flows.iter().map(|flow| flow.event_time_min).collect::<Vec<_>>(),
        [0, 100_050, 200_100].map(Some)
    );
    assert!(flows[1].bytes > Some(0) && flows[1].name.ends_with("t.parquet row group 1"));
    let read = read_flow(&*source, 1, &context());
    assert_eq!(rows(&read)[1], "1970-01-01T00:01:41.050|101|101");
    assert_eq!(rows(&read)[0], "1970-01-01T00:01:40.050|100|NULL");
    assert_eq!(source.splits(7, Some(1)).unwrap()[0].event_time_min, None);
    // The number and the time.
    assert_eq!(bounds_hold(&*source), 2);
    assert_eq!(source.bounds(1).range, Some([0, 249]));
    let nothing = FileConnector::default().source(&table, &[]).unwrap();
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
    let read = read(&*source(&FileConnector::default(), &table).unwrap(), 1, &context);
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

/// Files have decimals in 32 or 64 bits, or in bytes.
#[test]
fn decimals_have_the_declared_type_however_few_bits_the_file_has() {
    let scratch = Scratch::new("parquet-decimals");
    let path = scratch.path("t.parquet");
    let ends = [0, 1, -1, 999_999_999, -999_999_999];
    let value = |row: i64| match row % 7 {
        _ if row / 100 == 2 => None,
        at @ 0..5 => Some(i128::from(ends[at as usize])),
        5 => Some(i128::from(row)),
        _ => None,
    };
    let of = |precision: u8| -> ArrayRef {
        let values: Decimal128Array = (0..450).map(value).collect();
        Arc::new(values.with_precision_and_scale(precision, 2).unwrap())
    };
    let narrow = arrow::compute::cast(&of(18), &DataType::Decimal64(18, 2)).unwrap();
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..450));
    let all = [("a", of(9)), ("b", of(15)), ("c", of(18)), ("d", of(20)), ("e", narrow)];
    write(&path, &batch(&[&all[..], &[("n", numbers)]].concat()));
    for to in [
        DataType::Decimal128(15, 2),
        DataType::Decimal128(18, 2),
        DataType::Decimal128(38, 2),
        DataType::Decimal128(30, 4),
        DataType::Decimal256(50, 2),
        DataType::Float64,
    ] {
        let fields = ["a", "b", "c", "d", "e"].map(|name| (name, to.clone()));
        let schema = columns(&[&fields[..], &[("n", BIGINT)]].concat());
        let table = table(&schema, &[("path", &path)]);
        let source = FileConnector::default().source(&table, &[5, 4, 3, 2, 1, 0]).unwrap();
        let expected = arrow::compute::cast(&of(20), &to).unwrap();
        let found = read(&*source, 2, &context());
        for column in 1..6 {
            assert_eq!(found.column(column), &expected, "{column} as {to}");
        }
        // Few rows, found by a decimal.
        let end = arrow::compute::cast(&of(20).slice(3, 1), &to).unwrap();
        let kept = ColumnPredicate::Range(ColumnRange::equal(3, end));
        let some = source.pruned(&Pruning { kept, within_splits: true }).unwrap();
        let splits = some.splits(2, None).unwrap();
        let parts = splits
            .iter()
            .map(|split| drain(&mut *some.open(split, None, &context()).unwrap()).unwrap());
        let parts: Vec<RecordBatch> = parts.filter(|part| part.num_rows() > 0).collect();
        let found = arrow::compute::concat_batches(&some.schema(), &parts).unwrap();
        let rows: Vec<i64> = found.column(0).as_primitive::<Int64Type>().values().to_vec();
        let wanted: Vec<i64> = (0..450).filter(|row| value(*row) == Some(999_999_999)).collect();
        assert!(wanted.iter().all(|row| rows.contains(row)), "{to}: {rows:?}");
        let at = Int64Array::from(rows);
        let expected = arrow::compute::take(&expected, &at, None).unwrap();
        for column in 1..6 {
            assert_eq!(found.column(column), &expected, "{column} as {to}");
        }
    }
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
        let error = refused(source(&FileConnector::default(), &table));
        assert!(matches!(&error, ConnectorError::Io { place, .. } if *place == path), "{error}");
        assert!(error.to_string().contains("not a whole Parquet file"), "{error}");
        assert_eq!(refused(FileConnector::default().infer(&table.options)), error);
    }
    // A footer that is right over pages that are not.
    let mut damaged = whole.clone();
    damaged[4..200].fill(0xff);
    fs::write(&path, damaged).unwrap();
    let source = source(&FileConnector::default(), &table(&schema, &[("path", &path)])).unwrap();
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
    let source_of = |table| source(&FileConnector::default(), table).unwrap();
    let all = read(&*source_of(&both), 1, &context());
    assert_eq!(rows(&all), ["0|NULL", "1|NULL", "0|n0", "1|n1"]);
    let names = read(&*FileConnector::default().source(&both, &[1]).unwrap(), 1, &context());
    assert_eq!(rows(&names), ["NULL", "NULL", "n0", "n1"]);
    let error = refused(source(&FileConnector::default(), &table_of(&[("delay", DOUBLE)])));
    assert!(matches!(&error, ConnectorError::Column { column, .. } if column == "delay"));
}

#[test]
fn a_schema_that_does_not_fit_is_reported_before_anything_runs() {
    let scratch = Scratch::new("parquet-schema");
    let path = scratch.path("t.parquet");
    write(&path, &sample(10));
    let error = |fields: &[(&str, DataType)]| {
        refused(source(&FileConnector::default(), &table(&columns(fields), &[("path", &path)])))
    };
    let missing = error(&[("dealy", DOUBLE)]);
    assert!(matches!(&missing, ConnectorError::Column { column, .. } if column == "dealy"));
    assert_eq!(hint(&missing), "did you mean 'delay'?");
    let unfit = error(&[("id", DataType::Struct(vec![Field::new("x", BIGINT, true)].into()))]);
    assert_eq!(hint(&unfit), "declare it as INT");
    let inferred =
        FileConnector::default().infer(&table(&columns(&[]), &[("path", &path)]).options);
    assert_eq!(inferred.unwrap().unwrap().fields(), sample(1).schema().fields());
}

/// A file of an interval, a variant and a blob, a row of each.
fn write_others(path: &str) {
    fn leaf(name: &str, of: Physical) -> PrimitiveTypeBuilder<'_> {
        Type::primitive_type_builder(name, of).with_repetition(Repetition::REQUIRED)
    }
    let built = |of: Result<Type, ParquetError>| -> TypePtr { Arc::new(of.unwrap()) };
    let interval = leaf("i", Physical::FIXED_LEN_BYTE_ARRAY).with_length(12);
    let interval = interval.with_converted_type(ConvertedType::INTERVAL);
    let parts = ["metadata", "value"].map(|part| built(leaf(part, Physical::BYTE_ARRAY).build()));
    let variant = Type::group_type_builder("v").with_repetition(Repetition::REQUIRED);
    let variant = variant.with_logical_type(Some(LogicalType::variant(None)));
    let fields = vec![
        built(interval.build()),
        built(variant.with_fields(parts.to_vec()).build()),
        built(leaf("b", Physical::BYTE_ARRAY).build()),
    ];
    let schema = built(Type::group_type_builder("schema").with_fields(fields).build());
    let file = File::create(path).unwrap();
    let mut writer = SerializedFileWriter::new(file, schema, Arc::default()).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    let month = FixedLenByteArray::from([1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0].to_vec());
    column.typed::<FixedLenByteArrayType>().write_batch(&[month], None, None).unwrap();
    column.close().unwrap();
    while let Some(mut column) = group.next_column().unwrap() {
        column.typed::<ByteArrayType>().write_batch(&[ByteArray::from("x")], None, None).unwrap();
        column.close().unwrap();
    }
    group.close().unwrap();
    writer.close().unwrap();
}

#[test]
fn what_would_be_read_as_something_else_is_refused_where_it_is_read() {
    let scratch = Scratch::new("parquet-others");
    let path = scratch.path("t.parquet");
    write_others(&path);
    let options = [("path", &*path)];
    let inferred =
        FileConnector::default().infer(&table(&columns(&[]), &options).options).unwrap().unwrap();
    let table = table(&inferred, &options);
    for (column, what) in [(0, "has it as an INTERVAL"), (1, "has it as a VARIANT")] {
        let error = refused(FileConnector::default().source(&table, &[column, 2]));
        assert!(error.to_string().contains(what), "{error}");
    }
    for projection in [&[2][..], &[]] {
        let source = FileConnector::default().source(&table, projection).unwrap();
        assert_eq!(read_flow(&*source, 0, &context()).num_rows(), 1);
    }
}
