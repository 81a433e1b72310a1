//! Rows of a peer, of schemas that together have every form of a column.

use std::sync::Arc;

use arrow::array::builder::{
    Int32Builder, Int64Builder, ListBuilder, MapBuilder, StringBuilder, StringDictionaryBuilder,
};
use arrow::array::{
    Array, ArrayRef, BinaryViewArray, BooleanArray, Decimal128Array, FixedSizeListArray,
    Int64Array, LargeBinaryArray, ListViewArray, NullArray, RunArray, StringArray, StringViewArray,
    StructArray, UnionArray,
};
use arrow::buffer::ScalarBuffer;
use arrow::datatypes::{DataType, Field, Int8Type, Int32Type, UnionFields};
use arrow::record_batch::RecordBatch;
use bytes::Bytes;

use super::{check, payload};
use crate::rows::wire::{Decoder, Picks};

/// Reads a payload of rows: the first byte is the number of the schema. Gives that number.
///
/// # Errors
/// When there is no such schema, or the payload is malformed.
///
/// # Panics
/// When arrays are broken, or rows that were read do not come back.
pub fn rows(bytes: &[u8]) -> Result<u8, String> {
    let (&number, bytes) = bytes.split_first().ok_or("it has no schema")?;
    let known = batches().into_iter().nth(usize::from(number));
    let schema = known.ok_or("there is no such schema")?.schema();
    let decoder = Decoder::new(&schema);
    let (batch, _) = decoder.decode(Bytes::copy_from_slice(bytes))?;
    check(batch.columns())?;
    let again = payload(&Picks::of(batch.clone()));
    let (again, _) = decoder.decode(again.into()).expect("rows that were read are rows");
    assert_eq!(again, batch);
    Ok(number)
}

/// Payloads as [`rows`] reads them, by name: of each schema all its rows, one and none. Behind them
/// some that are none, whose names begin with `bad`.
///
/// # Panics
/// When one cannot be made.
#[must_use]
pub fn rows_seeds() -> Vec<(String, Vec<u8>)> {
    let mut seeds = vec![];
    for (number, batch) in (0u8..).zip(batches()) {
        for rows in [batch.num_rows(), 1, 0] {
            let bytes = [vec![number], payload(&Picks::of(batch.slice(0, rows)))].concat();
            let cut = bytes.len() / 2;
            seeds.push((format!("bad-{number}-{rows}-cut"), bytes[..cut].to_vec()));
            let long = [&bytes[..], &[0]].concat();
            seeds.push((format!("bad-{number}-{rows}-long"), long));
            seeds.push((format!("{number}-{rows}-rows"), bytes));
        }
    }
    let none = batches().len() as u8;
    seeds.push(("bad-schema".into(), vec![none; 100]));
    seeds.push(("bad-empty".into(), vec![]));
    seeds
}

fn batches() -> Vec<RecordBatch> {
    let batch = |columns: Vec<ArrayRef>| {
        let named = (0..).zip(columns).map(|(at, column): (u8, _)| (format!("{at}"), column, true));
        RecordBatch::try_from_iter_with_nullable(named).expect("columns of one length")
    };
    vec![batch(values()), batch(texts()), batch(lists()), batch(within())]
}

/// Values of one width, bits, and nothing.
fn values() -> Vec<ArrayRef> {
    vec![
        Arc::new(Int64Array::from(vec![Some(1), None, Some(-3)])),
        Arc::new(BooleanArray::from(vec![Some(true), Some(false), None])),
        Arc::new(Decimal128Array::from(vec![1, 2, 3])),
        Arc::new(NullArray::new(3)),
    ]
}

fn texts() -> Vec<ArrayRef> {
    let texts = [Some("a"), None, Some("a text that is longer than a view")];
    let words = StringDictionaryBuilder::<Int8Type>::new();
    let words = texts.iter().fold(words, |mut words, text| {
        words.append_option(*text);
        words
    });
    vec![
        Arc::new(StringArray::from_iter(texts)),
        Arc::new(LargeBinaryArray::from_iter(texts)),
        Arc::new(StringViewArray::from_iter(texts)),
        Arc::new(BinaryViewArray::from_iter(texts)),
        Arc::new({ words }.finish()),
    ]
}

fn lists() -> Vec<ArrayRef> {
    let mut list = ListBuilder::new(StringBuilder::new());
    list.append_value([Some("a"), None]);
    list.append_null();
    list.append_value([Some("b")]);
    let mut map = MapBuilder::new(None, StringBuilder::new(), Int64Builder::new());
    for key in ["a", "b", "c"] {
        map.keys().append_value(key);
        map.values().append_option((key != "b").then_some(1));
        map.append(key != "c").expect("an entry");
    }
    let item = || Arc::new(Field::new("item", DataType::Int64, true));
    let six: ArrayRef = Arc::new(Int64Array::from_iter_values(0..6));
    let fixed = FixedSizeListArray::new(item(), 2, six.clone(), None);
    let (offsets, sizes) = (ScalarBuffer::from(vec![4, 0, 1]), ScalarBuffer::from(vec![2, 0, 3]));
    let views = ListViewArray::new(item(), offsets, sizes, six, None);
    vec![Arc::new(list.finish()), Arc::new(map.finish()), Arc::new(fixed), Arc::new(views)]
}

/// Columns within others.
fn within() -> Vec<ArrayRef> {
    let numbers: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None, Some(3)]));
    let texts: ArrayRef = Arc::new(StringArray::from(vec![Some("a"), None, Some("c")]));
    let field =
        |name: &str, of: &ArrayRef| Arc::new(Field::new(name, of.data_type().clone(), true));
    let (number, text) = (field("number", &numbers), field("text", &texts));
    let fields = || UnionFields::try_new([2, 5], [number.clone(), text.clone()]);
    let types = || ScalarBuffer::from(vec![5i8, 2, 5]);
    let columns = || vec![numbers.clone(), texts.clone()];
    let union = |offsets| {
        let fields = fields().expect("two types");
        UnionArray::try_new(fields, types(), offsets, columns()).expect("a union")
    };
    let mut ends = Int32Builder::new();
    ends.append_slice(&[1, 3]);
    let runs = RunArray::<Int32Type>::try_new(&ends.finish(), &Int64Array::from(vec![7, 8]));
    vec![
        Arc::new(StructArray::from(vec![
            (number.clone(), numbers.clone()),
            (text.clone(), texts.clone()),
        ])),
        Arc::new(union(None)),
        Arc::new(union(Some(vec![0, 1, 2].into()))),
        Arc::new(runs.expect("runs")),
    ]
}
