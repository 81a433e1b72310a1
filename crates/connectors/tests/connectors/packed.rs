//! Files that are packed as a whole, and Arrow files.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::sync::Arc;

use arrow::array::{
    ArrayRef, DictionaryArray, Int32Array, Int64Array, NullArray, StringArray, StringViewArray,
};
use arrow::datatypes::{DataType, Int32Type};
use arrow::ipc::writer::{FileWriter, StreamWriter};
use arrow::record_batch::RecordBatch;
use connectors::FileConnector;
use dataflow::connector::Connector;
use dataflow::error::ConnectorError;
use dataflow::sink::WriterContext;
use parquet::basic::{Compression, LogicalType};
use parquet::file::reader::{FileReader, SerializedFileReader};

use crate::bed::*;

fn sample(rows: i64) -> RecordBatch {
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..rows));
    let names: ArrayRef = Arc::new(StringArray::from_iter(
        (0..rows).map(|row| (row % 7 > 0).then(|| format!("n{row}"))),
    ));
    batch(&[("id", ids), ("name", names)])
}

fn write(path: &str, batch: &RecordBatch, more: &[(&str, &str)]) {
    let mut options = vec![("path", path)];
    options.extend(more);
    let sink = FileConnector::default().sink(&table(&batch.schema(), &options)).unwrap();
    let mut writer = sink.open(&WriterContext::of(0)).unwrap();
    writer.write(&batch.slice(0, batch.num_rows() / 2)).unwrap();
    writer.write(&batch.slice(batch.num_rows() / 2, batch.num_rows().div_ceil(2))).unwrap();
    writer.commit().unwrap();
}

#[test]
fn text_is_packed_as_the_name_says_and_reads_back() {
    let scratch = Scratch::new("packed");
    let sample = sample(20_000);
    let unpack = |name: &str| {
        let packed = fs::read(scratch.path(name)).unwrap();
        let mut text = Vec::new();
        match name.rsplit('.').next().unwrap() {
            "gz" => flate2::bufread::GzDecoder::new(&*packed).read_to_end(&mut text).map(drop),
            "zst" => zstd::stream::copy_decode(&*packed, &mut text),
            "bz2" => bzip2::bufread::BzDecoder::new(&*packed).read_to_end(&mut text).map(drop),
            _ => liblzma::bufread::XzDecoder::new(&*packed).read_to_end(&mut text).map(drop),
        }
        .unwrap();
        assert!(packed.len() * 2 < text.len());
        text
    };
    for (plain, packed) in [
        ("t.csv", "t.csv.gz"),
        ("t.json", "t.json.zst"),
        ("t.tsv", "t.tsv.bz2"),
        ("t.csv", "t.csv.xz"),
    ] {
        write(&scratch.path(plain), &sample, &[("csv.null", "NA")]);
        write(&scratch.path(packed), &sample, &[("csv.null", "NA")]);
        assert_eq!(unpack(packed), fs::read(scratch.path(plain)).unwrap(), "{packed}");
        let options = [("path", &*scratch.path(packed)), ("csv.null", "NA")];
        let table = table(&sample.schema(), &options);
        let context = context();
        let read = read(&*source(&FileConnector::default(), &table).unwrap(), 1, &context);
        assert_eq!((rows(&read), context.bad.count()), (rows(&sample), 0), "{packed}");
        let inferred = FileConnector::default().infer(&table.options).unwrap().unwrap();
        assert_eq!(inferred.field(0).data_type(), &BIGINT, "{packed}");
    }
}

#[test]
fn the_option_says_what_the_name_does_not() {
    let scratch = Scratch::new("packed-option");
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), Default::default());
    packer.write_all(b"a\n1\n").unwrap();
    let mut bytes = packer.finish().unwrap();
    // Two parts, one after the other, are one file.
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), Default::default());
    packer.write_all(b"2\n").unwrap();
    bytes.extend(packer.finish().unwrap());
    let schema = columns(&[("a", BIGINT)]);
    let read_as = |name: &str, options: &[(&str, &str)]| {
        let path = scratch.path(name);
        let mut all = vec![("path", &*path)];
        all.extend(options);
        let source = source(&FileConnector::default(), &table(&schema, &all))?;
        try_read_flow(&*source, 0, &context()).map(|batch| rows(&batch))
    };
    scratch.write("t.data", &bytes);
    scratch.write("plain.csv.gz", "a\n1\n# longer than the head of a packed file\n");
    let given = [("format", "csv"), ("compression", "gzip")];
    assert_eq!(read_as("t.data", &given).unwrap(), ["1", "2"]);
    assert_eq!(
        read_as("plain.csv.gz", &[("compression", "none"), ("csv.comment", "#")]).unwrap(),
        ["1"]
    );
    let error = refused(read_as("plain.csv.gz", &[]));
    assert!(error.to_string().contains("plain.csv.gz:1: the gzip data is damaged"), "{error}");
    let error = refused(read_as("t.data", &[("format", "parquet"), ("compression", "gzip")]));
    assert!(matches!(&error, ConnectorError::Option { key, .. } if key == "compression"));
    let error = refused(read_as("t.data", &[("format", "csv"), ("compression", "gzp")]));
    assert_eq!(hint(&error), "did you mean 'gzip'?");
}

#[test]
fn every_codec_of_parquet_is_written_and_read() {
    let scratch = Scratch::new("parquet-codecs");
    let sample = sample(5_000);
    let is = |found: Compression, name: &str| {
        let found = format!("{found:?}").to_lowercase();
        match name {
            "none" => found == "uncompressed",
            "lz4" => found == "lz4_raw",
            name => found.starts_with(name),
        }
    };
    for codec in ["snappy", "zstd", "gzip", "brotli", "lz4", "none"] {
        let path = scratch.path(&format!("{codec}.parquet"));
        write(&path, &sample, &[("parquet.compression", codec)]);
        let file = SerializedFileReader::new(File::open(&path).unwrap()).unwrap();
        let column = file.metadata().row_group(0).column(0);
        assert!(is(column.compression(), codec), "{codec}: {:?}", column.compression());
        assert_ne!(column.column_descr().logical_type_ref(), Some(&LogicalType::String));
        let source =
            source(&FileConnector::default(), &table(&sample.schema(), &[("path", &path)]))
                .unwrap();
        assert_eq!(rows(&read(&*source, 1, &context())), rows(&sample), "{codec}");
    }
}

#[test]
fn arrow_files_and_streams_are_written_and_read() {
    let scratch = Scratch::new("arrow");
    let sample = sample(5_000);
    let none: &[(&str, &str)] = &[];
    let variants = [
        ("lz4.arrow", none, 2),
        ("zstd.feather", &[("arrow.compression", "zstd")][..], 2),
        ("none.arrow", &[("arrow.compression", "none")], 2),
        ("stream.arrows", none, 1),
        ("also.arrow", &[("arrow.layout", "stream")], 1),
        ("packed.arrow.gz", &[("arrow.compression", "none")], 1),
        ("file.ipc", &[("arrow.layout", "file")], 2),
    ];
    for (name, options, flows) in variants {
        let path = scratch.path(name);
        write(&path, &sample, options);
        let table = table(&sample.schema(), &[("path", &path)]);
        let source = source(&FileConnector::default(), &table).unwrap();
        assert_eq!(source.splits(1, None).unwrap().len(), flows, "{name}");
        assert_eq!(rows(&read(&*source, 1, &context())), rows(&sample), "{name}");
        let projected = FileConnector::default().source(&table, &[1]).unwrap();
        let names = sample.project(&[1]).unwrap();
        assert_eq!(rows(&read(&*projected, 1, &context())), rows(&names), "{name}");
        assert_eq!(
            FileConnector::default().infer(&table.options).unwrap().unwrap(),
            sample.schema()
        );
    }
    let smaller = |a: &str, b: &str| {
        let bytes = |name: &str| fs::metadata(scratch.path(name)).unwrap().len();
        assert!(bytes(a) < bytes(b), "{a} against {b}");
    };
    smaller("lz4.arrow", "none.arrow");
    smaller("zstd.feather", "none.arrow");
    smaller("packed.arrow.gz", "none.arrow");
    let options = [("path", "t.arrow.gz"), ("arrow.layout", "file")];
    let error = refused(FileConnector::default().sink(&table(&sample.schema(), &options)));
    assert!(matches!(&error, ConnectorError::Option { key, .. } if key == "arrow.layout"));
}

#[test]
fn arrow_columns_become_what_is_declared_or_bad_rows() {
    let scratch = Scratch::new("arrow-columns");
    let words = vec!["x", "y", "x"].into_iter().collect::<DictionaryArray<Int32Type>>();
    let more = vec!["z", "z"].into_iter().collect::<DictionaryArray<Int32Type>>();
    let of = |counts: Vec<i32>, words: DictionaryArray<Int32Type>, views: Vec<&str>| {
        let nothing: ArrayRef = Arc::new(NullArray::new(counts.len()));
        batch(&[
            ("nothing", nothing),
            ("word", Arc::new(words)),
            ("count", Arc::new(Int32Array::from(counts))),
            ("view", Arc::new(StringViewArray::from(views))),
        ])
    };
    let one = of(vec![1, 300, 3], words, vec!["a", "a view that is longer than twelve", "c"]);
    let two = of(vec![-1, 1000], more, vec!["d", "e"]);
    let stream = scratch.path("t.arrows");
    let mut writer = StreamWriter::try_new(File::create(&stream).unwrap(), &one.schema()).unwrap();
    writer.write(&one).unwrap();
    writer.write(&two).unwrap();
    writer.finish().unwrap();
    let file = scratch.path("t.arrow");
    let mut writer = FileWriter::try_new(File::create(&file).unwrap(), &one.schema()).unwrap();
    writer.write(&one).unwrap();
    writer.write(&one.slice(0, 2)).unwrap();
    writer.finish().unwrap();
    let schema = columns(&[("count", DataType::Int8), ("WORD", VARCHAR), ("view", VARCHAR)]);
    for (path, expected, places) in [
        (&stream, ["1|x|a", "3|x|c", "-1|z|d"], ["t.arrows:2", "t.arrows:5"]),
        (&file, ["1|x|a", "3|x|c", "1|x|a"], ["t.arrow:2", "t.arrow:5"]),
    ] {
        let context = context();
        let source = source(&FileConnector::default(), &table(&schema, &[("path", path)])).unwrap();
        assert_eq!(rows(&read(&*source, 1, &context)), expected);
        let bad = bad(&context);
        assert_eq!(bad.iter().map(|bad| &*bad.0).collect::<Vec<_>>(), places);
        assert_eq!(bad[0].1, "column 'count': '300' is not a valid TINYINT");
    }
    let inferred =
        FileConnector::default().infer(&table(&schema, &[("path", &file)]).options).unwrap();
    assert_eq!(inferred.unwrap().field(1).data_type(), &VARCHAR);
    let wrong = columns(&[("word", BIGINT)]);
    let error = refused(source(&FileConnector::default(), &table(&wrong, &[("path", &file)])));
    assert!(hint(&error).contains("CAST"), "{error}");
}

#[test]
fn rows_know_where_they_come_from() {
    let scratch = Scratch::new("metadata");
    let sample = sample(6);
    let ids = sample.project(&[0]).unwrap();
    scratch.write("t.csv", "# what follows\n\nid\n0\n# more\n1\nx\n2\n");
    scratch.write("t.json", "{\"id\":0}\n\n{\"id\":1}\n{\"id\":[]}\n{\"id\":2}\n");
    write(&scratch.path("t.arrow"), &ids, &[]);
    write(&scratch.path("t.arrows"), &ids, &[]);
    write(&scratch.path("t.parquet"), &ids, &[]);
    let fields =
        [("at", TIMESTAMP), ("place", DataType::Int64), ("id", BIGINT), ("origin", VARCHAR)];
    for (name, records) in [
        ("t.csv", &[4, 6, 8][..]),
        ("t.json", &[1, 3, 5]),
        ("t.arrow", &[1, 2, 3, 4, 5, 6]),
        ("t.arrows", &[1, 2, 3, 4, 5, 6]),
        ("t.parquet", &[1, 2, 3, 4, 5, 6]),
    ] {
        let path = scratch.path(name);
        let mut table = table(&columns(&fields), &[("path", &path), ("csv.comment", "#")]);
        for (position, key) in [(0, "ingestion_time"), (1, "record"), (3, "file")] {
            table.metadata.insert(position, key.to_owned());
        }
        let now_ms = || {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
            now.as_millis() as i64
        };
        let before = now_ms();
        let all = read(&*source(&FileConnector::default(), &table).unwrap(), 1, &context());
        let expected: Vec<String> = records
            .iter()
            .enumerate()
            .map(|(id, record)| format!("{path}|{record}|{id}"))
            .collect();
        assert_eq!(rows(&all.project(&[3, 1, 2]).unwrap()), expected, "{name}");
        let times = arrow::compute::cast(all.column(0), &BIGINT).unwrap();
        let times: &Int64Array = times.as_any().downcast_ref().unwrap();
        let span = before..=now_ms();
        assert!(times.iter().flatten().all(|time| span.contains(&time)), "{times:?}");
        // Without any column of the data, there is still a row for each record.
        let origins = FileConnector::default().source(&table, &[3, 1]).unwrap();
        let read = rows(&read(&*origins, 1, &context()));
        assert_eq!(
            read,
            records.iter().map(|record| format!("{path}|{record}")).collect::<Vec<_>>()
        );
    }
    let refusal = |field: (&str, DataType), key: &str| {
        let mut table = table(&columns(&[field]), &[("path", &scratch.path("t.csv"))]);
        table.metadata.insert(0, key.to_owned());
        refused(source(&FileConnector::default(), &table))
    };
    assert_eq!(hint(&refusal(("f", VARCHAR), "fiel")), "did you mean 'file'?");
    assert_eq!(hint(&refusal(("f", VARCHAR), "record")), "declare it as BIGINT");
}
