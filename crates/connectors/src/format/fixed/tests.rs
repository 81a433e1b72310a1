use std::io::Cursor;

use arrow::array::{
    BooleanArray, Date32Array, Float64Array, Int16Array, Int64Array, StringArray,
    TimestampMillisecondArray, UInt32Array,
};
use arrow::datatypes::{Int64Type, TimeUnit};
use dataflow::bad::BadRows;
use dataflow::connector::{Options, TableDef};
use proptest::prelude::*;

use super::*;
use crate::format::TargetColumns;

fn options(texts: &[(&str, &str)]) -> Options {
    texts.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
}

fn given(texts: &[(&str, &str)]) -> Result<FixedOptions, ConnectorError> {
    FixedOptions::new(OptionReader(&options(texts)))
}

fn schema(columns: &[(&str, DataType)]) -> Schema {
    let fields = columns.iter().map(|(name, kind)| Field::new(*name, kind.clone(), true));
    Schema::new(fields.collect::<Vec<_>>())
}

fn time() -> DataType {
    DataType::Timestamp(TimeUnit::Millisecond, None)
}

/// The rows read from records with these columns, and the reasons of refusals.
fn read(schema: Schema, texts: &[(&str, &str)], bytes: &[u8]) -> (Vec<RecordBatch>, Vec<String>) {
    let projection: Vec<usize> = (0..schema.fields().len()).collect();
    let (name, schema, metadata) = ("t".into(), Arc::new(schema), BTreeMap::new());
    let table = TableDef { name, schema, options: options(texts), metadata, buckets: vec![] };
    let bad = Arc::new(BadRows::default());
    let target = Arc::new(TargetColumns::new(&table, &projection).unwrap());
    let input = ByteInput::new(Box::new(Cursor::new(bytes.to_vec())), "t.bin");
    let refuser = Refuser { target, bad: Arc::clone(&bad), origins: Arc::default() };
    let mut decoder = FixedDecoder::new(input, given(texts).unwrap(), refuser);
    let mut batches = vec![];
    while let Decoded::Batch(batch) = decoder.decode(3).unwrap() {
        batches.push(batch);
    }
    let bad = bad.kept().into_iter().map(|row| format!("{}: {}", row.place, row.reason));
    (batches, bad.collect())
}

#[test]
fn a_record_lies_as_a_packed_structure() {
    // numpy.array([(1, -2, b'ab', True), …], '<i8, <i2, S3, ?').tofile(…), and a byte to pass over.
    let bytes = [
        [1, 0, 0, 0, 0, 0, 0, 0, 0xfe, 0xff, b'a', b'b', 0, 1, 7],
        [0, 1, 0, 0, 0, 0, 0, 0, 0x01, 0x00, b'a', 0, b'c', 0, 8],
    ];
    let columns = schema(&[
        ("n", DataType::Int64),
        ("s", DataType::Int16),
        ("t", DataType::Utf8),
        ("b", DataType::Boolean),
    ]);
    let texts = [("fixed.lengths", "t:3"), ("fixed.record_bytes", "15")];
    let (batches, bad) = read(columns, &texts, &bytes.concat());
    let [batch] = &batches[..] else { panic!("{batches:?}") };
    assert_eq!(batch.column(0).as_ref(), &Int64Array::from(vec![1, 256]));
    assert_eq!(batch.column(1).as_ref(), &Int16Array::from(vec![-2, 1]));
    assert_eq!(batch.column(2).as_ref(), &StringArray::from(vec!["ab", "a\0c"]));
    assert_eq!(batch.column(3).as_ref(), &BooleanArray::from(vec![true, false]));
    assert_eq!(bad, Vec::<String>::new());
}

#[test]
fn what_is_no_text_and_what_is_cut_off_is_refused_alone() {
    let bytes = b"ab\0c\xff\0def\0";
    let (batches, bad) = read(schema(&[("t", DataType::Utf8)]), &[("fixed.lengths", "t:3")], bytes);
    let [batch] = &batches[..] else { panic!("{batches:?}") };
    assert_eq!(batch.column(0).as_ref(), &StringArray::from(vec!["ab", "def"]));
    assert_eq!(bad.len(), 2);
    assert!(bad[0].starts_with("t.bin:2: column 't': "), "{bad:?}");
    assert_eq!(bad[1], "t.bin:4: cut off: 1 of 3 bytes");
}

#[test]
fn a_time_may_be_none_and_nothing_else() {
    let layout = FixedLayout::new(&schema(&[("time", time())]), &given(&[]).unwrap()).unwrap();
    let times = TimestampMillisecondArray::from(vec![Some(5), None]);
    let batch = RecordBatch::try_from_iter([("time", Arc::new(times) as ArrayRef)]).unwrap();
    let mut bytes = vec![];
    layout.encode(batch.columns(), batch.num_rows(), &mut bytes).unwrap();
    assert_eq!(bytes, [5i64.to_le_bytes(), i64::MIN.to_le_bytes()].concat());
    assert_eq!(layout.decode(&bytes, &[0]).unwrap(), batch.columns());

    let layout =
        FixedLayout::new(&schema(&[("n", DataType::Int64)]), &given(&[]).unwrap()).unwrap();
    let numbers = Int64Array::from(vec![Some(5), None]);
    let batch = RecordBatch::try_from_iter([("n", Arc::new(numbers) as ArrayRef)]).unwrap();
    let error = layout.encode(batch.columns(), batch.num_rows(), &mut bytes).unwrap_err();
    assert!(error.starts_with("column 'n': NULL has no place"), "{error}");
    assert_eq!(bytes.len(), 16, "nothing was written");
}

#[test]
fn a_text_that_its_place_would_change_is_not_written() {
    let given = given(&[("fixed.lengths", "t:3")]).unwrap();
    let layout = FixedLayout::new(&schema(&[("t", DataType::Utf8)]), &given).unwrap();
    for (text, why) in [("four", "is longer"), ("a\0", "ends with a zero")] {
        let texts = StringArray::from(vec!["abc", text]);
        let batch = RecordBatch::try_from_iter([("t", Arc::new(texts) as ArrayRef)]).unwrap();
        let mut bytes = vec![];
        let error = layout.encode(batch.columns(), batch.num_rows(), &mut bytes).unwrap_err();
        assert!(error.starts_with("column 't': ") && error.contains(why), "{error}");
        assert!(bytes.is_empty());
    }
}

#[test]
fn errors_of_options_name_them_and_say_what_to_write() {
    let columns = [("name", DataType::Utf8), ("n", DataType::Int32)];
    for (texts, message) in [
        (&[][..], "a text in a record of fixed length needs one"),
        (&[("fixed.lengths", "name")], "'name' is no column with its bytes"),
        (&[("fixed.lengths", "name:0")], "'name:0' is no column with its bytes"),
        (&[("fixed.lengths", "name:4, nam:2")], "there is no text column 'nam'"),
        (&[("fixed.lengths", "name:4, n:2")], "there is no text column 'n'"),
        (
            &[("fixed.lengths", "name:4"), ("fixed.record_bytes", "7")],
            "the columns take 8 bytes, and a record has 7",
        ),
        (&[("fixed.lengths", "name:1048576")], "the columns take 1048580 bytes; 1048576 at most"),
        (&[("fixed.record_bytes", "9999999")], "a record has 1048576 bytes at most"),
    ] {
        let layout = given(texts).and_then(|given| FixedLayout::new(&schema(&columns), &given));
        let error = layout.unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
    let list = DataType::List(Arc::new(Field::new("item", DataType::Int64, true)));
    for kind in [list, DataType::Decimal128(10, 2)] {
        let error = FixedLayout::new(&schema(&[("x", kind)]), &given(&[]).unwrap()).unwrap_err();
        assert!(error.to_string().contains("records of fixed length cannot carry"), "{error}");
    }
}

/// A row of every kind of column.
type Row = (bool, i64, u32, f64, i32, Option<i64>, String);

fn row() -> impl Strategy<Value = Row> {
    let text = "[a-zé\0]{0,5}[a-z]";
    let time = prop::option::of(i64::MIN + 1..);
    (any::<bool>(), any::<i64>(), any::<u32>(), -1e9..1e9, any::<i32>(), time, text)
}

proptest! {
    #[test]
    fn what_was_written_is_read(
        rows in prop::collection::vec(row(), 0..600),
        behind in 0usize..40,
    ) {
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("b", Arc::new(rows.iter().map(|row| Some(row.0)).collect::<BooleanArray>())),
            ("i", Arc::new(rows.iter().map(|row| row.1).collect::<Int64Array>())),
            ("u", Arc::new(rows.iter().map(|row| row.2).collect::<UInt32Array>())),
            ("f", Arc::new(rows.iter().map(|row| row.3).collect::<Float64Array>())),
            ("d", Arc::new(rows.iter().map(|row| Some(row.4)).collect::<Date32Array>())),
            ("at", Arc::new(rows.iter().map(|row| row.5).collect::<TimestampMillisecondArray>())),
            ("t", Arc::new(rows.iter().map(|row| Some(&row.6)).collect::<StringArray>())),
        ];
        let batch = RecordBatch::try_from_iter_with_nullable(
            columns.into_iter().map(|(name, column)| (name, column, true)),
        ).unwrap();
        let bytes = (1 + 8 + 4 + 8 + 4 + 8 + 12 + behind).to_string();
        let texts = [("fixed.lengths", "t:12"), ("fixed.record_bytes", &bytes)];
        let layout = FixedLayout::new(&batch.schema(), &given(&texts).unwrap()).unwrap();
        let mut written = vec![];
        layout.encode(batch.columns(), batch.num_rows(), &mut written).unwrap();
        prop_assert_eq!(written.len(), rows.len() * layout.record_bytes());
        let (batches, bad) = read(batch.schema().as_ref().clone(), &texts, &written);
        prop_assert!(bad.is_empty());
        let read = arrow::compute::concat_batches(&batch.schema(), &batches).unwrap();
        prop_assert_eq!(&read, &batch);
        // Some of the columns, over several chunks.
        let some = layout.decode(&written, &[5, 1]).unwrap();
        prop_assert_eq!(&some[0], batch.column(5));
        let numbers: Vec<i64> = some[1].as_primitive::<Int64Type>().values().to_vec();
        prop_assert_eq!(numbers, rows.iter().map(|row| row.1).collect::<Vec<_>>());
    }
}
