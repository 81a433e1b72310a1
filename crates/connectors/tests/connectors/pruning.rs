//! Pruning does not change the rows that match.

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::Arc;

use arrow::array::*;
use arrow::compute::filter_record_batch;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use arrow::record_batch::RecordBatch;
use connectors::FileConnector;
use dataflow::connector::{Connector, TableDef};
use dataflow::join_filter::JoinFilter;
use dataflow::predicate::{ColumnPredicate, ColumnRange, JoinFilters, RangeEnd, in_order};
use dataflow::source::{Next, Position, Pruning, ReaderContext, Source};
use parquet::arrow::ArrowWriter;
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterVersion};
use parquet::file::reader::{FileReader, SerializedFileReader};
use proptest::prelude::*;

use crate::bed::*;

/// Numbers that look random, always the same for a seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    fn chance(&mut self, of: u64) -> bool {
        self.below(of) == 0
    }
}

/// Rows whose values rise, jump or repeat, with single NULLs and long runs of them.
fn sample(random: &mut Random, rows: usize) -> RecordBatch {
    let mut at = 0i64;
    let stretch = 1 + random.below(30);
    let mut numbers = vec![];
    for row in 0..rows as u64 {
        at += match random.below(4) {
            0 => random.below(50) as i64 - 25,
            _ => random.below(3) as i64,
        };
        let is_null = random.chance(12) || (row / stretch) % 7 == 3;
        numbers.push((!is_null).then_some(at));
    }
    let number = |of: i64| numbers.iter().map(move |n| n.map(|n| n * of));
    let text = |n: i64| match n.rem_euclid(5) {
        0 => format!("{n:06}"),
        1 => format!("a long beginning that all have {n}"),
        2 => String::new(),
        _ => format!("ü{n}"),
    };
    let double = |n: i64| match n.rem_euclid(40) {
        0 => f64::NAN,
        1 => -f64::NAN,
        2 => -0.0,
        3 => 0.0,
        _ => n as f64 / 4.0,
    };
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("i64", Arc::new(number(1).collect::<Int64Array>())),
        ("i32", Arc::new(number(3).map(|n| n.map(|n| n as i32)).collect::<Int32Array>())),
        ("u32", Arc::new(number(1).map(|n| n.map(|n| n as u32)).collect::<UInt32Array>())),
        ("f64", Arc::new(number(1).map(|n| n.map(double)).collect::<Float64Array>())),
        ("bool", Arc::new(number(1).map(|n| n.map(|n| n / 40 % 2 == 0)).collect::<BooleanArray>())),
        ("text", Arc::new(number(1).map(|n| n.map(text)).collect::<StringArray>())),
        (
            "bytes",
            Arc::new(BinaryArray::from_iter(
                number(1).map(|n| n.map(|n| n.to_be_bytes().to_vec())),
            )),
        ),
        ("date", Arc::new(number(1).map(|n| n.map(|n| n as i32)).collect::<Date32Array>())),
        ("us", Arc::new(number(1_500).collect::<TimestampMicrosecondArray>())),
        (
            "dec",
            Arc::new(
                number(7)
                    .map(|n| n.map(i128::from))
                    .collect::<Decimal128Array>()
                    .with_precision_and_scale(20, 2)
                    .unwrap(),
            ),
        ),
    ];
    batch(&columns)
}

fn properties(random: &mut Random) -> WriterProperties {
    let statistics = [EnabledStatistics::None, EnabledStatistics::Chunk, EnabledStatistics::Page]
        [random.below(6).min(2) as usize];
    let version =
        [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0][random.below(2) as usize];
    WriterProperties::builder()
        .set_max_row_group_row_count(Some(1 + random.below(150) as usize))
        .set_data_page_row_count_limit(1 + random.below(40) as usize)
        .set_write_batch_size(1 + random.below(20) as usize)
        .set_statistics_enabled(statistics)
        .set_statistics_truncate_length(random.chance(2).then_some(3))
        .set_column_index_truncate_length(random.chance(2).then_some(3))
        .set_dictionary_enabled(random.chance(2))
        .set_bloom_filter_enabled(random.chance(2))
        .set_writer_version(version)
        .build()
}

fn value(random: &mut Random, column: &ArrayRef) -> ArrayRef {
    loop {
        let row = random.below(column.len() as u64) as usize;
        if column.is_valid(row) || column.null_count() == column.len() {
            return column.slice(row, 1);
        }
    }
}

fn leaf(random: &mut Random, rows: &RecordBatch) -> ColumnPredicate {
    let column = random.below(rows.num_columns() as u64) as usize;
    let array = rows.column(column);
    if array.null_count() == array.len() {
        return ColumnPredicate::Null(column);
    }
    let is_text = matches!(array.data_type(), DataType::Utf8);
    let end =
        |random: &mut Random| RangeEnd { value: value(random, array), inclusive: random.chance(2) };
    match random.below(7) {
        0 => ColumnPredicate::Null(column),
        1 => ColumnPredicate::NotNull(column),
        2 => ColumnPredicate::Range(ColumnRange::equal(column, value(random, array))),
        3 if is_text => {
            let text = value(random, array);
            let text = text.as_string::<i32>().value(0);
            let letters = random.below(9) as usize;
            ColumnPredicate::Prefix { column, prefix: text.chars().take(letters).collect() }
        }
        4 if !array.data_type().is_floating() => {
            let values: Vec<ArrayRef> =
                (0..1 + random.below(8)).map(|_| value(random, array)).collect();
            let values: Vec<&dyn Array> = values.iter().map(|value| value.as_ref()).collect();
            let values = arrow::compute::concat(&values).unwrap();
            ColumnPredicate::In { column, values: in_order(&values).unwrap() }
        }
        5 => {
            let (from, to) = (Some(end(random)), Some(end(random)));
            ColumnPredicate::Range(ColumnRange { column, from, to })
        }
        _ if random.chance(2) => {
            ColumnPredicate::Range(ColumnRange { column, from: Some(end(random)), to: None })
        }
        _ => ColumnPredicate::Range(ColumnRange { column, from: None, to: Some(end(random)) }),
    }
}

fn predicate(random: &mut Random, rows: &RecordBatch, depth: u32) -> ColumnPredicate {
    let parts = |random: &mut Random| {
        (0..1 + random.below(3)).map(|_| predicate(random, rows, depth + 1)).collect()
    };
    match random.below(4) {
        0 if depth < 2 => ColumnPredicate::All(parts(random)),
        1 if depth < 2 => ColumnPredicate::Any(parts(random)),
        _ => leaf(random, rows),
    }
}

/// The table of some files, with the number of each record behind its columns.
fn numbered(schema: &Schema, path: &str) -> TableDef {
    let mut fields: Vec<Field> =
        schema.fields().iter().map(|field| field.as_ref().clone()).collect();
    let at = fields.len();
    fields.push(Field::new("record", DataType::Int64, true));
    let schema: SchemaRef = Arc::new(Schema::new(fields));
    TableDef {
        metadata: BTreeMap::from([(at, "record".into())]),
        ..table(&schema, &[("path", path)])
    }
}

fn matching(batch: &RecordBatch, kept: &ColumnPredicate) -> RecordBatch {
    let columns = |column: usize| Arc::clone(batch.column(column));
    let matches = kept.matches(&columns, batch.num_rows()).unwrap();
    filter_record_batch(batch, &BooleanArray::new(matches, None)).unwrap()
}

/// Reads all splits; if `again`, it opens them anew at the position behind each batch.
fn read_all(
    source: &dyn Source,
    rows_max: usize,
    again: bool,
    context: &ReaderContext,
) -> RecordBatch {
    let mut batches = vec![];
    for (number, split) in source.splits(3, None).unwrap().into_iter().enumerate() {
        let split = dataflow::source::Split { number, ..split };
        let mut reader = source.open(&split, None, context).unwrap();
        loop {
            match reader.next(rows_max).unwrap() {
                Next::Batch(batch) => {
                    assert!((1..=rows_max).contains(&batch.num_rows()));
                    batches.push(batch);
                    if again {
                        let position = Position::from_bytes(&reader.position().to_bytes()).unwrap();
                        reader = source.open(&split, Some(&position), context).unwrap();
                        assert_eq!(reader.position(), position);
                    }
                }
                Next::Wait { until_ns: 0 } => {}
                Next::Pending | Next::Wait { .. } => panic!("the reader waits"),
                Next::End => break,
            }
        }
    }
    arrow::compute::concat_batches(&source.schema(), &batches).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn rows_that_match_are_those_without_pruning(seed: u64) {
        pruned_alike(seed)?;
    }
}

/// Zeros of both signs at an end that is not inclusive.
#[test]
fn zeros_are_equal_where_rows_are_left_out() {
    pruned_alike(2_112_239_487_493_238_204).unwrap();
}

fn pruned_alike(seed: u64) -> Result<(), TestCaseError> {
    let mut random = Random(seed);
    let scratch = Scratch::new(&format!("pruning-{seed}"));
    let count = 1 + random.below(400) as usize;
    let whole = sample(&mut random, count);
    let file = File::create(scratch.path("t.parquet")).unwrap();
    let properties = properties(&mut random);
    let mut writer = ArrowWriter::try_new(file, whole.schema(), Some(properties)).unwrap();
    writer.write(&whole).unwrap();
    writer.close().unwrap();

    let mut table = numbered(&whole.schema(), &scratch.path("t.parquet"));
    if random.chance(2) {
        let wide = |field: &Arc<Field>| match field.data_type() {
            DataType::Int32 | DataType::UInt32 => {
                field.as_ref().clone().with_data_type(DataType::Int64)
            }
            DataType::Timestamp(..) => field
                .as_ref()
                .clone()
                .with_data_type(DataType::Timestamp(TimeUnit::Millisecond, None)),
            _ => field.as_ref().clone(),
        };
        table.schema =
            Arc::new(Schema::new(table.schema.fields().iter().map(wide).collect::<Vec<_>>()));
    }
    // Some of the columns, and not always in the order of the file.
    let mut projection: Vec<usize> =
        (0..table.schema.fields().len()).filter(|_| !random.chance(3)).collect();
    if random.chance(2) {
        projection.reverse();
    }
    if projection.is_empty() {
        projection = vec![0];
    }
    let source = FileConnector::default().source(&table, &projection).unwrap();
    let (all, pruned) = (context(), context());
    let expected = read_all(&*source, 1_000, false, &all);
    for _ in 0..6 {
        let kept = predicate(&mut random, &expected, 0);
        let within_splits = !random.chance(4);
        let by = Pruning { kept: kept.clone(), within_splits };
        let Some(source) = source.pruned(&by) else { continue };
        let rows_max = 1 + random.below(60) as usize;
        let again = random.chance(3);
        let given = read_all(&*source, rows_max, again, &pruned);
        let shown = kept.describe(&source.schema());
        let matching = |of: &RecordBatch| rows(&matching(of, &kept));
        let [given, wanted] = [matching(&given), matching(&expected)];
        prop_assert_eq!(given, wanted, "{}", shown);
    }
    prop_assert_eq!(all.bad.count() + pruned.bad.count(), 0);
    Ok(())
}

#[test]
fn row_groups_are_left_out_by_their_statistics() {
    let scratch = Scratch::new("pruning-groups");
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..1_000));
    let texts: ArrayRef =
        Arc::new(StringArray::from_iter_values((0..1_000).map(|n| format!("x{:04}", n))));
    let rows = batch(&[("n", numbers), ("s", texts)]);
    write(&scratch.path("t.parquet"), &rows, 100);
    let schema = columns(&[("n", BIGINT), ("s", VARCHAR)]);
    let source =
        source(&FileConnector::default(), &table(&schema, &[("path", &scratch.path("t.parquet"))]));
    let source = source.unwrap();
    let value = |n: i64| Arc::new(Int64Array::from(vec![n])) as ArrayRef;
    let kept = ColumnPredicate::Range(ColumnRange {
        column: 0,
        from: Some(RangeEnd { value: value(250), inclusive: true }),
        to: Some(RangeEnd { value: value(300), inclusive: false }),
    });
    let pruned = source.pruned(&Pruning { kept, within_splits: false }).unwrap();
    let names = |source: &dyn Source| {
        let splits = source.splits(2, None).unwrap();
        splits.into_iter().map(|split| split.name).collect::<Vec<_>>()
    };
    assert_eq!(names(&*pruned), names(&*source)[2..3]);
    let text = "row groups 1 of 10, by n >= 250 AND n < 300";
    assert_eq!(pruned.describe_pruning().unwrap(), text);
    // A split is read completely if its watermark needs all rows.
    assert_eq!(read_flow(&*pruned, 0, &context()).num_rows(), 100);
    let kept = ColumnPredicate::Prefix { column: 1, prefix: "x07".into() };
    let again = pruned.pruned(&Pruning { kept: kept.clone(), within_splits: false }).unwrap();
    assert_eq!(names(&*again), Vec::<String>::new());
    let pruned = source.pruned(&Pruning { kept, within_splits: false }).unwrap();
    assert_eq!(names(&*pruned), names(&*source)[7..8]);
    // The position of a split does not depend on the splits that are left out.
    let mut reader = pruned.open(&pruned.splits(2, None).unwrap()[0], None, &context()).unwrap();
    assert!(matches!(reader.next(10).unwrap(), Next::Batch(_)));
    let position = reader.position();
    let mut rest = source.open(&source.splits(2, None).unwrap()[7], Some(&position), &context());
    assert!(
        matches!(rest.as_mut().unwrap().next(1_000).unwrap(), Next::Batch(b) if b.num_rows() == 90)
    );
}

fn write(path: &str, rows: &RecordBatch, of_group: usize) {
    let properties =
        WriterProperties::builder().set_max_row_group_row_count(Some(of_group)).build();
    let file = File::create(path).unwrap();
    let mut writer = ArrowWriter::try_new(file, rows.schema(), Some(properties)).unwrap();
    writer.write(rows).unwrap();
    writer.close().unwrap();
}

#[test]
fn a_row_group_that_may_have_bad_rows_is_read() {
    let scratch = Scratch::new("pruning-bad");
    let numbers = (0..300).map(|n| match n {
        50 => None,
        150 => Some(i64::MAX),
        n => Some(n),
    });
    let numbers: ArrayRef = Arc::new(numbers.collect::<Int64Array>());
    write(&scratch.path("t.parquet"), &batch(&[("n", numbers)]), 100);
    let path = scratch.path("t.parquet");
    let none = |value: ArrayRef| {
        let by = ColumnPredicate::Range(ColumnRange::equal(0, value));
        Pruning { kept: by, within_splits: true }
    };
    let splits = |declared: DataType, nullable: bool, value: ArrayRef| {
        let schema = Arc::new(Schema::new(vec![Field::new("n", declared, nullable)]));
        let source =
            source(&FileConnector::default(), &table(&schema, &[("path", &path)])).unwrap();
        let source = source.pruned(&none(value)).unwrap_or(source);
        let context = context();
        read_all(&*source, 1_000, false, &context);
        (source.splits(1, None).unwrap().len(), context.bad.count())
    };
    let long = || Arc::new(Int64Array::from(vec![-1])) as ArrayRef;
    assert_eq!(splits(BIGINT, true, long()), (0, 0));
    assert_eq!(splits(BIGINT, false, long()), (1, 1), "NULL is bad where it is NOT NULL");
    let int = Arc::new(Int32Array::from(vec![-1])) as ArrayRef;
    assert_eq!(splits(DataType::Int32, true, int), (3, 1), "a value may be no INT");
}

/// Even numbers below 2,000 with a text each, in one row group of pages of 50 rows.
fn paged(path: &str, bloom: bool) {
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values((0..1_000).map(|n| n * 2)));
    let texts: ArrayRef =
        Arc::new(StringArray::from_iter_values((0..1_000).map(|n| format!("a text of row {n}"))));
    let rows = batch(&[("n", numbers), ("s", texts)]);
    let properties = WriterProperties::builder()
        .set_data_page_row_count_limit(50)
        .set_write_batch_size(50)
        .set_dictionary_enabled(false)
        .set_bloom_filter_enabled(bloom)
        .build();
    let file = File::create(path).unwrap();
    let mut writer = ArrowWriter::try_new(file, rows.schema(), Some(properties)).unwrap();
    writer.write(&rows).unwrap();
    writer.close().unwrap();
}

fn equal(number: i64) -> Pruning {
    let value = Arc::new(Int64Array::from(vec![number])) as ArrayRef;
    Pruning { kept: ColumnPredicate::Range(ColumnRange::equal(0, value)), within_splits: true }
}

#[test]
fn pages_and_rows_are_left_out_and_counted() {
    let scratch = Scratch::new("pruning-pages");
    let path = scratch.path("t.parquet");
    let schema = columns(&[("n", BIGINT), ("s", VARCHAR)]);
    let read_equal = |number: i64, projection: &[usize]| {
        let source = FileConnector::default()
            .source(&table(&schema, &[("path", &path)]), projection)
            .unwrap();
        let context = context();
        let given = read_all(&*source.pruned(&equal(number)).unwrap(), 1_000, false, &context);
        let skipped = context.skipped.take();
        (rows(&given), [skipped.row_groups, skipped.pages, skipped.rows])
    };
    paged(&path, false);
    // The row is the sixth of its page: the texts of the other rows are not decoded.
    let one = vec!["510|a text of row 255".to_owned()];
    assert_eq!(read_equal(510, &[0, 1]), (one.clone(), [0, 38, 999]));
    // Alone, the column is read by pages.
    let page: Vec<String> = (250..300).map(|n| format!("{}", n * 2)).collect();
    assert_eq!(read_equal(510, &[0]), (page, [0, 19, 950]));
    // Odd numbers are between the least and the greatest value of a page.
    assert_eq!(read_equal(511, &[0, 1]), (vec![], [0, 38, 1_000]));
    paged(&path, true);
    assert_eq!(read_equal(510, &[0, 1]), (one, [0, 38, 999]));
    assert_eq!(read_equal(511, &[0, 1]), (vec![], [1, 0, 1_000]));
}

#[test]
fn a_damaged_page_index_or_bloom_filter_ends_the_query_with_the_name_of_the_file() {
    let scratch = Scratch::new("pruning-damaged");
    let path = scratch.path("t.parquet");
    paged(&path, true);
    let whole = std::fs::read(&path).unwrap();
    let reader = SerializedFileReader::new(File::open(&path).unwrap()).unwrap();
    let chunk = reader.metadata().row_group(0).column(0);
    let places = [
        (chunk.offset_index_offset(), chunk.offset_index_length()),
        (chunk.column_index_offset(), chunk.column_index_length()),
        (chunk.bloom_filter_offset(), chunk.bloom_filter_length().map(|length| length.min(30))),
    ];
    let schema = columns(&[("n", BIGINT), ("s", VARCHAR)]);
    let mut refused = 0;
    for (offset, length) in places {
        let begin = offset.unwrap() as usize;
        for at in begin..begin + length.unwrap() as usize {
            for bits in [0x01, 0x10, 0x80, 0xff] {
                let mut damaged = whole.clone();
                damaged[at] ^= bits;
                std::fs::write(&path, damaged).unwrap();
                let table = table(&schema, &[("path", &path)]);
                let source = source(&FileConnector::default(), &table).unwrap();
                let source = source.pruned(&equal(510)).unwrap();
                let mut reader =
                    source.open(&source.splits(1, None).unwrap()[0], None, &context()).unwrap();
                let error = loop {
                    match reader.next(1_000) {
                        Ok(Next::End) => break None,
                        Ok(_) => {}
                        Err(error) => break Some(error),
                    }
                };
                // A valid index with other values is trusted.
                let Some(error) = error else { continue };
                refused += 1;
                let text = error.to_string();
                assert!(text.contains("t.parquet"), "{text}");
                assert!(!text.contains("this is a bug"), "{text}");
            }
        }
    }
    assert!(refused > 100, "{refused}");
}

#[test]
fn a_scan_that_listens_leaves_out_rows_without_a_partner() {
    let scratch = Scratch::new("pruning-joins");
    let path = scratch.path("t.parquet");
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..1_000));
    let texts: ArrayRef =
        Arc::new(StringArray::from_iter_values((0..1_000).map(|n| format!("a text {n}"))));
    write(&path, &batch(&[("n", numbers), ("s", texts)]), 100);
    let schema = columns(&[("s", VARCHAR), ("n", BIGINT)]);
    let source = source(&FileConnector::default(), &table(&schema, &[("path", &path)])).unwrap();
    let filters = Arc::new(JoinFilters::default());
    let of = filters.clone();
    let listening = source.listen(Arc::new(move || of.predicate())).unwrap();
    let read_all = || {
        let context = context();
        let mut texts = vec![];
        for (number, split) in listening.splits(1, None).unwrap().into_iter().enumerate() {
            let split = dataflow::source::Split { number, ..split };
            let mut reader = listening.open(&split, None, &context).unwrap();
            loop {
                match reader.next(1_000).unwrap() {
                    Next::Batch(batch) => texts.extend(rows(&batch)),
                    Next::End => break,
                    _ => {}
                }
            }
        }
        (texts, context.skipped.take())
    };
    // No row is left out before a build is complete.
    assert_eq!(read_all().0.len(), 1_000);
    let keys = Arc::new(Int64Array::from(vec![Some(455), None, Some(410)])) as ArrayRef;
    filters.add(1, Arc::new(JoinFilter::new(&[keys]).unwrap().unwrap()));
    let (texts, skipped) = read_all();
    assert_eq!((texts.len() as u64 + skipped.rows, skipped.row_groups), (1_000, 9));
    assert_eq!(skipped.unmatched, skipped.rows);
    assert!(texts.contains(&"a text 455|455".to_owned()), "{texts:?}");
    assert!(texts.contains(&"a text 410|410".to_owned()), "{texts:?}");
    assert!(texts.len() < 10, "{texts:?}");
}

#[test]
fn a_row_group_whose_first_rows_match_is_read_as_a_whole() {
    let scratch = Scratch::new("pruning-in-vain");
    let path = scratch.path("t.parquet");
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values((0..150_000).map(|n| n % 1_000)));
    let texts: ArrayRef =
        Arc::new(StringArray::from_iter_values((0..150_000).map(|n| format!("a text {n}"))));
    write(&path, &batch(&[("n", numbers), ("s", texts)]), 150_000);
    let schema = columns(&[("n", BIGINT), ("s", VARCHAR)]);
    let source = source(&FileConnector::default(), &table(&schema, &[("path", &path)])).unwrap();
    let most = |below: i64| {
        let value = Arc::new(Int64Array::from(vec![below])) as ArrayRef;
        let to = Some(RangeEnd { value, inclusive: false });
        let kept = ColumnPredicate::Range(ColumnRange { column: 0, from: None, to });
        source.pruned(&Pruning { kept, within_splits: true }).unwrap()
    };
    for (below, rows) in [(900, 150_000), (100, 15_000)] {
        for again in [false, true] {
            let read = read_all(most(below).as_ref(), 16_384, again, &context());
            assert_eq!(read.num_rows(), rows, "below {below}, opened again: {again}");
        }
    }
}

/// Row groups have a dictionary of texts, have one for the first pages only, or have NULLs only.
#[test]
fn texts_match_whether_or_not_pages_have_a_dictionary() {
    let scratch = Scratch::new("pruning-dictionaries");
    let path = scratch.path("t.parquet");
    let few = |n: i64| (n % 11 != 5).then(|| format!("word {}", n * 7 % 13));
    let text = |n: i64| match n / 4_000 {
        1 => Some(format!("a text that nothing repeats {n}")).filter(|_| n % 5 != 0),
        2 => None,
        _ => few(n),
    };
    let texts: ArrayRef = Arc::new((0..16_000).map(text).collect::<StringArray>());
    let large = arrow::compute::cast(&texts, &DataType::LargeUtf8).unwrap();
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..16_000));
    let rows = batch(&[("s", texts), ("l", large), ("n", numbers)]);
    let properties = WriterProperties::builder()
        .set_max_row_group_row_count(Some(4_000))
        .set_data_page_row_count_limit(300)
        .set_write_batch_size(100)
        .set_dictionary_page_size_limit(16 << 10)
        .build();
    let file = File::create(&path).unwrap();
    let mut writer = ArrowWriter::try_new(file, rows.schema(), Some(properties)).unwrap();
    writer.write(&rows).unwrap();
    writer.close().unwrap();

    let schema = columns(&[("s", VARCHAR), ("l", VARCHAR), ("n", BIGINT)]);
    let source = source(&FileConnector::default(), &table(&schema, &[("path", &path)])).unwrap();
    let whole = read_all(&*source, 1_000, false, &context());
    let word = |word: &str| Arc::new(StringArray::from(vec![word])) as ArrayRef;
    for column in [0, 1] {
        let values: ArrayRef =
            Arc::new(StringArray::from(vec!["a text that nothing repeats 4567", "word 3"]));
        for kept in [
            ColumnPredicate::Range(ColumnRange::equal(column, word("word 12"))),
            ColumnPredicate::In { column, values },
            ColumnPredicate::Prefix { column, prefix: "word 1".into() },
            ColumnPredicate::Null(column),
        ] {
            let expected = matching(&whole, &kept);
            let by = Pruning { kept: kept.clone(), within_splits: true };
            let pruned = source.pruned(&by).unwrap();
            for (rows_max, again) in [(7, false), (500, true), (5_000, false)] {
                let given = read_all(&*pruned, rows_max, again, &context());
                assert_eq!(matching(&given, &kept), expected, "{kept:?}");
            }
        }
    }
}
