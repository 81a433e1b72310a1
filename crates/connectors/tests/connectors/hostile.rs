//! Files that were made to harm: deep, wide, packed beyond measure, and such that state what they
//! do not have. Each is an error that names it, or a bad row, and nothing else is lost.

use std::fs;
use std::io::Write;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, StringArray};
use arrow::datatypes::{DataType, Field, Schema};
use arrow::ipc::CompressionType;
use arrow::ipc::writer::{FileWriter, IpcWriteOptions, StreamWriter};
use arrow::record_batch::RecordBatch;
use connectors::FileConnector;
use dataflow::connector::Connector;

use crate::bed::*;
use crate::crafted::{OneColumn, deep, wide};

/// What is read of a file, as rows, or the error; in all columns and in none.
fn read_both(path: &str, fields: &[(&str, DataType)]) -> [Result<Vec<String>, String>; 2] {
    let table = table(&columns(fields), &[("path", path)]);
    [&[0][..], &[]].map(|projection| {
        let source = FileConnector::default()
            .source(&table, projection)
            .map_err(|error| error.to_string())?;
        let mut read = Vec::new();
        for flow in 0..source.splits(1, None).unwrap().len() {
            let batch = try_read_flow(&*source, flow, &context());
            read.extend(rows(&batch.map_err(|error| error.to_string())?));
        }
        Ok(read)
    })
}

/// Both ways of reading a file fail, and say so with its name.
fn refused_both(path: &str, fields: &[(&str, DataType)], reason: &str) {
    for read in read_both(path, fields) {
        let error = read.expect_err(reason);
        assert!(error.starts_with(path) && error.contains(reason), "{error}: {reason}");
    }
}

#[test]
fn a_deep_line_of_json_is_a_bad_row() {
    let scratch = Scratch::new("hostile-json");
    let deep = |open: &str, close: &str, levels: usize| {
        format!("{{\"a\":{}1{}}}", open.repeat(levels), close.repeat(levels))
    };
    for (deep, levels) in [
        (deep("[", "]", 30_000), 30_000),
        (deep("{\"b\":", "}", 30_000), 30_000),
        (format!("{{\"a\":{}", "[".repeat(1 << 20)), 1 << 20),
        (deep("[", "]", 128), 128),
    ] {
        let path = scratch.write("t.json", format!("{{\"a\":\"x\"}}\n{deep}\n{{\"a\":\"y\"}}\n"));
        for fields in [&[("a", VARCHAR)][..], &[("b", BIGINT)]] {
            let context = context();
            let table = table(&columns(fields), &[("path", &path)]);
            let read = read(&*source(&FileConnector::default(), &table).unwrap(), 1, &context);
            assert_eq!(read.num_rows(), 2, "{levels}");
            let bad = bad(&context);
            assert_eq!(bad[0].0, "t.json:2");
            assert_eq!(bad[0].1, "it nests deeper than 128 levels");
            assert!(bad[0].2.len() <= 204, "{}", bad[0].2.len());
        }
        let inferred =
            FileConnector::default().infer(&table(&columns(&[]), &[("path", &path)]).options);
        assert_eq!(inferred.unwrap().unwrap().field(0).data_type(), &VARCHAR);
    }
}

#[test]
fn a_deep_or_wide_schema_of_parquet_is_refused_and_a_flat_one_is_read() {
    let scratch = Scratch::new("hostile-schema");
    for (bytes, reason) in [
        (deep(128), "its schema is deeper than 128 levels"),
        (deep(2_000), "its schema is deeper than 128 levels"),
        (deep(200_000), "its schema has 200002 nodes; 100000 are read"),
        (wide(100_000), "its schema has 100001 nodes; 100000 are read"),
    ] {
        let path = scratch.write("t.parquet", bytes);
        refused_both(&path, &[("a", BIGINT)], reason);
        let inferred =
            FileConnector::default().infer(&table(&columns(&[]), &[("path", &path)]).options);
        assert!(refused(inferred).to_string().contains(reason));
    }
    for bytes in [deep(100), wide(1_000)] {
        let path = scratch.write("t.parquet", bytes);
        let options = table(&columns(&[]), &[("path", &path)]).options;
        assert!(FileConnector::default().infer(&options).unwrap().is_some());
    }
}

#[test]
fn a_page_unpacks_to_what_it_states_and_no_further() {
    let scratch = Scratch::new("hostile-pages");
    let numbers = OneColumn::whole().packed;
    let zeros = vec![0; 64 << 20];
    let brotli = {
        let mut packer = brotli::CompressorWriter::new(Vec::new(), 4096, 1, 22);
        packer.write_all(&zeros).unwrap();
        packer.into_inner()
    };
    let zstd = |text: &[u8]| zstd::bulk::compress(text, 1).unwrap();
    for (codec, packed, unpacked, reason) in [
        (2, OneColumn::packed(&numbers), 16, None),
        (6, zstd(&numbers), 16, None),
        (2, OneColumn::packed(&zeros), 16, Some("more than the 16 bytes that it states")),
        (4, brotli, 16, Some("more than the 16 bytes that it states")),
        (6, zstd(&zeros), 16, Some("")),
        (2, OneColumn::packed(&numbers), 1 << 30, Some("states 1073741824 unpacked")),
        (2, OneColumn::packed(&numbers), -1, Some("sizes that it cannot have")),
        (0, numbers.clone(), 17, Some("sizes that it cannot have")),
    ] {
        let crafted = OneColumn { packed, codec, unpacked, ..OneColumn::whole() };
        let path = scratch.write("t.parquet", crafted.bytes());
        match reason {
            None => {
                let [all, none] = read_both(&path, &[("a", BIGINT)]);
                assert_eq!(all.unwrap(), ["1", "2", "3", "4"]);
                assert_eq!(none.unwrap().len(), 4);
            }
            Some(reason) => refused_both(&path, &[("a", BIGINT)], reason),
        }
    }
}

#[test]
fn checksums_of_pages_are_compared() {
    let scratch = Scratch::new("hostile-checksum");
    let whole = OneColumn::whole();
    let checksum = {
        let mut checksum = flate2::Crc::new();
        checksum.update(&whole.packed);
        checksum.sum()
    };
    let right = OneColumn { checksum: Some(checksum), ..OneColumn::whole() };
    let path = scratch.write("t.parquet", right.bytes());
    assert_eq!(read_both(&path, &[("a", BIGINT)])[0].as_ref().unwrap(), &["1", "2", "3", "4"]);
    let mut packed = whole.packed;
    packed[0] ^= 1;
    let wrong = OneColumn { packed, ..right };
    let path = scratch.write("t.parquet", wrong.bytes());
    refused_both(&path, &[("a", BIGINT)], "column a: a page does not fit its checksum");
}

#[test]
fn rows_that_are_stated_and_not_there_are_an_error() {
    let scratch = Scratch::new("hostile-counts");
    for (rows, column_values, page_values) in [
        (3, 4, 4),
        (5, 4, 4),
        (1_000_000_000, 4, 4),
        (0, 4, 4),
        (4, 1_000_000_000, 4),
        (4, 1_000_000_000, 1_000_000_000),
        (5, 5, 5),
        (3, 3, 3),
        (1_000_000, 1_000_000, 1_000_000),
        (1 << 40, 1 << 40, 1 << 40),
        (-1, -1, -1),
    ] {
        let lie = OneColumn { rows, column_values, page_values, ..OneColumn::whole() };
        let path = scratch.write("t.parquet", lie.bytes());
        // Of a page with more numbers than it states, the first ones are read.
        if rows == 3 && page_values == 3 {
            assert_eq!(read_both(&path, &[("a", BIGINT)])[0].as_ref().unwrap().len(), 3);
            continue;
        }
        refused_both(&path, &[("a", BIGINT)], "");
    }
}

#[test]
fn a_column_that_is_not_where_it_should_be_is_an_error_that_says_so() {
    let scratch = Scratch::new("hostile-places");
    let whole = OneColumn::whole;
    let none_such = "it states a place of column \"a\" that it has not";
    for (crafted, reason) in [
        (OneColumn { offset: -1, ..whole() }, none_such),
        (OneColumn { offset: 1 << 40, ..whole() }, none_such),
        (OneColumn { offset: i64::MAX, bytes: Some(i64::MAX), ..whole() }, none_such),
        (OneColumn { bytes: Some(-1), ..whole() }, none_such),
        (OneColumn { bytes: Some(1 << 40), ..whole() }, none_such),
        (OneColumn { bytes: Some(0), ..whole() }, ""),
        (OneColumn { offset: 0, ..whole() }, ""),
        (OneColumn { encoding: 8, ..whole() }, "a page asks for a dictionary"),
        (OneColumn { encoding: 2, ..whole() }, "a page asks for a dictionary"),
        (OneColumn { encoding: 1, ..whole() }, "unknown encoding 1"),
        (OneColumn { codec: 99, ..whole() }, "CompressionCodec 99"),
        (OneColumn { codec: 3, ..whole() }, "pages packed with LZO"),
    ] {
        let path = scratch.write("t.parquet", crafted.bytes());
        refused_both(&path, &[("a", BIGINT)], reason);
    }
    let elsewhere = OneColumn { elsewhere: Some("u.parquet"), ..whole() };
    for (crafted, how) in [
        (OneColumn { encrypted: true, ..whole() }, "encrypted"),
        (elsewhere, "in another file, 'u.parquet'"),
    ] {
        let path = scratch.write("t.parquet", crafted.bytes());
        for read in read_both(&path, &[("a", BIGINT)]) {
            let error = read.unwrap_err();
            assert!(
                error.ends_with(&format!("t.parquet has it {how}, which is not read")),
                "{error}"
            );
        }
    }
    let same = OneColumn { elsewhere: Some(""), ..whole() };
    let path = scratch.write("t.parquet", same.bytes());
    assert_eq!(read_both(&path, &[("a", BIGINT)])[1].as_ref().unwrap().len(), 4);

    let mut encrypted = whole().bytes();
    let end = encrypted.len();
    encrypted[end - 4..].copy_from_slice(b"PARE");
    let path = scratch.write("t.parquet", encrypted);
    refused_both(&path, &[("a", BIGINT)], ": it is encrypted, its footer too");
}

fn sample() -> RecordBatch {
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..1_000));
    let texts: ArrayRef = Arc::new(StringArray::from(vec!["same"; 1_000]));
    let dictionary = DataType::Dictionary(Box::new(DataType::Int32), Box::new(VARCHAR));
    let coded = arrow::compute::cast(&texts, &dictionary).unwrap();
    let fields = vec![
        Field::new("id", BIGINT, true),
        Field::new("text", VARCHAR, true),
        Field::new("coded", dictionary, true),
    ];
    RecordBatch::try_new(Arc::new(Schema::new(fields)), vec![ids, texts, coded]).unwrap()
}

fn packed(packing: CompressionType) -> IpcWriteOptions {
    IpcWriteOptions::default().try_with_compression(Some(packing)).unwrap()
}

/// Two batches in a file, and in a stream.
fn arrow_of(packing: CompressionType) -> [(&'static str, Vec<u8>); 2] {
    let schema = sample().schema();
    let mut file = FileWriter::try_new_with_options(Vec::new(), &schema, packed(packing)).unwrap();
    let mut stream =
        StreamWriter::try_new_with_options(Vec::new(), &schema, packed(packing)).unwrap();
    for _ in 0..2 {
        file.write(&sample()).unwrap();
        stream.write(&sample()).unwrap();
    }
    [("t.arrow", file.into_inner().unwrap()), ("t.arrows", stream.into_inner().unwrap())]
}

#[test]
fn packed_columns_of_arrow_are_read_and_lengths_that_they_do_not_have_refused() {
    let scratch = Scratch::new("hostile-arrow");
    for packing in [CompressionType::LZ4_FRAME, CompressionType::ZSTD] {
        for (name, whole) in arrow_of(packing) {
            let path = scratch.write(name, &whole);
            for (field, last) in [(("id", BIGINT), "999"), (("coded", VARCHAR), "same")] {
                let [all, none] = read_both(&path, &[field]);
                assert_eq!(all.unwrap().last().unwrap(), last, "{name}");
                assert_eq!(none.unwrap().len(), 2_000, "{name}");
            }
            // The length that the numbers state to unpack to.
            let stated = 8_000_i64.to_le_bytes();
            let at = whole.windows(8).position(|bytes| bytes == stated).unwrap();
            for lie in [16, 7_999, 8_001, 1 << 29, 1 << 40, -2] {
                let mut lying = whole.clone();
                lying[at..at + 8].copy_from_slice(&i64::to_le_bytes(lie));
                let path = scratch.write(name, lying);
                let [all, none] = read_both(&path, &[("id", BIGINT)]);
                let error = all.expect_err("a column of another length");
                assert!(error.starts_with(&path) && error.contains("packed column"), "{error}");
                assert_eq!(none.unwrap().len(), 2_000, "what is not read is not unpacked");
            }
        }
    }
}

#[test]
fn a_footer_of_arrow_names_each_batch_once() {
    let scratch = Scratch::new("hostile-footer");
    let [(name, whole), _] = arrow_of(CompressionType::LZ4_FRAME);
    // The blocks of the footer: an offset, a length of metadata, and one of the body.
    let footer = {
        let end = whole.len() - 10;
        let length = u32::from_le_bytes(whole[end..end + 4].try_into().unwrap()) as usize;
        end - length
    };
    let word = |at: usize| u64::from_le_bytes(whole[at..at + 8].try_into().unwrap());
    let block_at = |at: usize| {
        let offset = word(at);
        let begins =
            |offset: u64| whole.get(offset as usize..)?.starts_with(&[0xff; 4]).then_some(());
        (offset > 8 && offset < footer as u64 && begins(offset).is_some()).then_some(at)
    };
    let blocks: Vec<usize> = (footer..whole.len() - 34).step_by(4).filter_map(block_at).collect();
    let [.., first, second] = blocks[..] else { panic!("two batches: {blocks:?}") };
    for (from, to, reason) in [(first, second, "bytes twice"), (second, first, "leaves out")] {
        let mut lying = whole.clone();
        lying.copy_within(from..from + 24, to);
        let path = scratch.write(name, lying);
        refused_both(&path, &[("id", BIGINT)], reason);
    }
}

#[test]
fn a_deep_schema_of_arrow_is_refused() {
    let scratch = Scratch::new("hostile-arrow-deep");
    let mut field = Field::new("a", BIGINT, true);
    for _ in 0..100 {
        field = Field::new("a", DataType::Struct(vec![field].into()), true);
    }
    let schema = Schema::new(vec![field]);
    let mut file = FileWriter::try_new(Vec::new(), &schema).unwrap();
    file.finish().unwrap();
    let mut stream = StreamWriter::try_new(Vec::new(), &schema).unwrap();
    stream.finish().unwrap();
    for (name, bytes) in
        [("t.arrow", file.into_inner().unwrap()), ("t.arrows", stream.into_inner().unwrap())]
    {
        let path = scratch.write(name, bytes);
        refused_both(&path, &[("a", BIGINT)], "not whole Arrow data");
    }
}

#[test]
fn a_file_that_is_cut_or_replaced_while_it_is_read_is_named() {
    let scratch = Scratch::new("hostile-version");
    let text = format!("a\n{}", "12345678\n".repeat(1_000_000));
    let path = scratch.write("t.csv", &text);
    let source =
        source(&FileConnector::default(), &table(&columns(&[("a", BIGINT)]), &[("path", &path)]));
    let source = source.unwrap();
    let mut flow = source.open(&nth(0), None, &context()).unwrap();
    flow.next(1000).unwrap();
    fs::File::options().write(true).open(&path).unwrap().set_len(4_000_000).unwrap();
    let error = loop {
        match flow.next(1000) {
            Ok(dataflow::source::Next::Batch(_)) => {}
            Ok(other) => panic!("{other:?}"),
            Err(error) => break error,
        }
    };
    let expected = format!("{path}: it was cut while the query ran");
    assert!(error.to_string().starts_with(&expected), "{error}");
    // Another file under the name that was listed.
    fs::write(scratch.path("new"), &text).unwrap();
    fs::rename(scratch.path("new"), &path).unwrap();
    let error = refused(source.open(&nth(0), None, &context()));
    assert!(error.to_string().contains("it was replaced while the query ran"), "{error}");
}
