//! Tables that are written by the connector.

use std::sync::Arc;
use std::time::Instant;

use arrow::array::{
    ArrayRef, BinaryArray, BooleanArray, Date32Array, Decimal128Array, Float32Array, Float64Array,
    Int16Array, Int32Array, Int64Array, ListArray, RecordBatch, StringArray,
    Time64MicrosecondArray, TimestampMicrosecondArray, TimestampMillisecondArray, UInt64Array,
};
use arrow::datatypes::{DataType, Field, Int32Type, Schema};
use dataflow::connector::{Connector, TableDef};
use dataflow::error::ConnectorError;
use dataflow::sink::{
    Publishing, Room, RunId, Sink, SinkVisibility, SinkWriter, StagingContext, WriterContext,
};

use crate::server::{TIMEOUT, address, lines, made, psql, script, try_psql, unique, url};

pub fn connector() -> Arc<dyn Connector> {
    postgres::all().into_iter().find(|one| one.name() == "postgres").unwrap()
}

/// A declaration with the columns of a batch.
fn declared(name: &str, batch: &RecordBatch, options: &[(&str, &str)]) -> TableDef {
    let own = [("url", url()), ("username", "postgres".into()), ("table-name", name.into())];
    let mut all: std::collections::BTreeMap<String, String> =
        own.into_iter().map(|(key, value)| (key.into(), value)).collect();
    all.extend(options.iter().map(|(key, value)| ((*key).into(), (*value).into())));
    TableDef {
        name: "t".into(),
        schema: batch.schema(),
        options: all,
        metadata: Default::default(),
        buckets: vec![],
    }
}

fn batch(from: i64, to: i64) -> RecordBatch {
    let numbers = Int64Array::from_iter_values(from..to);
    let texts: StringArray = (from..to).map(|n| (n % 3 != 0).then(|| format!("t{n}"))).collect();
    let fields =
        vec![Field::new("n", DataType::Int64, false), Field::new("text", DataType::Utf8, true)];
    let columns: Vec<ArrayRef> = vec![Arc::new(numbers), Arc::new(texts)];
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).unwrap()
}

/// Those rows as psql shows them.
fn expected(from: i64, to: i64) -> Vec<String> {
    let text = |n: i64| if n % 3 == 0 { String::new() } else { format!("t{n}") };
    (from..to).map(|n| format!("{n}|{}", text(n))).collect()
}

fn rows_of(table: &str) -> Vec<String> {
    lines(&format!("SELECT n, text FROM {table} ORDER BY n, text"))
}

fn waits(mut ready: impl FnMut() -> Room) {
    let since = Instant::now();
    while ready() == Room::Full {
        assert!(since.elapsed() < TIMEOUT, "there is no room");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

fn write(table: &TableDef, batches: &[RecordBatch]) -> Result<(), ConnectorError> {
    let mut writer = connector().sink(table)?.open(&WriterContext::of(0))?;
    for batch in batches {
        waits(|| writer.room());
        writer.write(batch)?;
    }
    let since = Instant::now();
    while writer.drain()? == Room::Full {
        assert!(since.elapsed() < TIMEOUT, "the rows are not written");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    writer.commit()
}

#[test]
fn rows_are_written_and_none_is_lost() {
    let table = made("plain", "n bigint, text text");
    let batches: Vec<RecordBatch> = (0..60).map(|at| batch(at * 1000, at * 1000 + 1000)).collect();
    let declared = declared(&table, &batches[0], &[("sink.buffer-flush.max-rows", "5000")]);
    write(&declared, &batches).unwrap();
    assert_eq!(rows_of(&table), expected(0, 60_000));
}

#[test]
fn a_row_whose_key_is_there_changes_it() {
    let table = made("keys", "n bigint PRIMARY KEY, text text, kept text DEFAULT 'kept'");
    psql(&format!("INSERT INTO {table} VALUES (1, 'old'), (2, 'old'), (-1, 'old')"));
    let twice = arrow::compute::concat_batches(&batch(0, 1).schema(), &[batch(0, 5), batch(2, 4)]);
    let declared = declared(&table, &batch(0, 1), &[("primary-key", "n")]);
    write(&declared, &[twice.unwrap(), batch(4, 6)]).unwrap();
    let mut rows = vec!["-1|old".to_owned()];
    rows.extend(expected(0, 6));
    assert_eq!(rows_of(&table), rows);
    assert_eq!(psql(&format!("SELECT count(*) FROM {table} WHERE kept = 'kept'")), "7");
    // The last row of a key stays, in whatever order the keys come.
    let last = RecordBatch::try_new(
        batch(0, 1).schema(),
        vec![
            Arc::new(Int64Array::from(vec![3, 9, 3, 1, 9])),
            Arc::new(StringArray::from(vec!["a", "b", "c", "d", "e"])),
        ],
    );
    write(&declared, &[last.unwrap()]).unwrap();
    let rows = lines(&format!("SELECT n, text FROM {table} WHERE n IN (1, 3, 9) ORDER BY n"));
    assert_eq!(rows, ["1|d", "3|c", "9|e"]);
}

/// The column in Postgres of a type that a table may have, values, and how psql shows them.
type TypeCase = (&'static str, ArrayRef, &'static str);

fn numbers() -> Vec<TypeCase> {
    let decimals = Decimal128Array::from(vec![Some(-1_234_567), None, Some(5)]);
    vec![
        ("boolean", Arc::new(BooleanArray::from(vec![Some(true), None, Some(false)])), "t,,f"),
        ("smallint", Arc::new(Int16Array::from(vec![Some(i16::MIN), None, Some(7)])), "-32768,,7"),
        (
            "integer",
            Arc::new(Int32Array::from(vec![Some(-1), None, Some(i32::MAX)])),
            "-1,,2147483647",
        ),
        (
            "bigint",
            Arc::new(Int64Array::from(vec![Some(i64::MIN), None, Some(i64::MAX)])),
            "-9223372036854775808,,9223372036854775807",
        ),
        (
            "numeric(20)",
            Arc::new(UInt64Array::from(vec![Some(u64::MAX), None, Some(0)])),
            "18446744073709551615,,0",
        ),
        (
            "numeric(10, 3)",
            Arc::new(decimals.with_precision_and_scale(10, 3).unwrap()),
            "-1234.567,,0.005",
        ),
        ("real", Arc::new(Float32Array::from(vec![Some(1.5), None, Some(f32::NAN)])), "1.5,,NaN"),
        (
            "double precision",
            Arc::new(Float64Array::from(vec![Some(1e300), None, Some(f64::NEG_INFINITY)])),
            "1e+300,,-Infinity",
        ),
    ]
}

fn texts_and_times() -> Vec<TypeCase> {
    let stamp = vec![Some(1_719_655_200_123_456), None, Some(-62_135_596_800_000_001)];
    let millis = vec![Some(0), None, Some(253_402_300_800_000)];
    let lists = ListArray::from_iter_primitive::<Int32Type, _, _>([
        Some(vec![Some(1), None, Some(-3)]),
        None,
        Some(vec![]),
    ]);
    vec![
        (
            "text",
            Arc::new(StringArray::from(vec![Some("ä\\N\t'x\"\r"), None, Some("")])),
            "ä\\N\t'x\"\r,,",
        ),
        (
            "jsonb",
            Arc::new(StringArray::from(vec![Some(r#"{"a": "\\n"}"#), None, Some("[1]")])),
            r#"{"a": "\\n"},,[1]"#,
        ),
        (
            "bytea",
            Arc::new(BinaryArray::from_opt_vec(vec![Some(b"\x00\xff\\"), None, Some(b"")])),
            r"\x00ff5c,,\x",
        ),
        (
            "date",
            Arc::new(Date32Array::from(vec![Some(19_782), None, Some(2_932_897)])),
            "2024-02-29,,10000-01-01",
        ),
        (
            "time",
            Arc::new(Time64MicrosecondArray::from(vec![Some(3_723_000_004), None, Some(0)])),
            "01:02:03.000004,,00:00:00",
        ),
        (
            "timestamp",
            Arc::new(TimestampMicrosecondArray::from(stamp)),
            "2024-06-29 10:00:00.123456,,0001-12-31 23:59:59.999999 BC",
        ),
        (
            "timestamptz",
            Arc::new(TimestampMillisecondArray::from(millis).with_timezone("UTC")),
            "1970-01-01 00:00:00+00,,10000-01-01 00:00:00+00",
        ),
        ("integer[]", Arc::new(lists), "{1,NULL,-3},,{}"),
    ]
}

#[test]
fn values_of_every_type_arrive() {
    psql("ALTER ROLE postgres SET timezone = 'UTC'");
    let all = numbers().into_iter().chain(texts_and_times());
    for (at, (pg_type, values, shown)) in all.enumerate() {
        for key in [&[][..], &[("primary-key", "n")]] {
            let table = made("types", &format!("n bigint PRIMARY KEY, v {pg_type}"));
            let fields = vec![
                Field::new("n", DataType::Int64, false),
                Field::new("v", values.data_type().clone(), true),
            ];
            let numbers = Int64Array::from(vec![1, 2, 3]);
            let columns: Vec<ArrayRef> = vec![Arc::new(numbers), Arc::clone(&values)];
            let batch = RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).unwrap();
            write(&declared(&table, &batch, key), std::slice::from_ref(&batch))
                .unwrap_or_else(|error| panic!("{at} {pg_type}: {error:?}"));
            let there = psql(&format!(
                "SELECT string_agg(coalesce(v::text, ''), ',' ORDER BY n) FROM {table}"
            ));
            let shown = if pg_type == "boolean" { "true,,false" } else { shown };
            assert_eq!(there, shown, "{pg_type}");
            assert_eq!(psql(&format!("SELECT count(*) FROM {table} WHERE v IS NULL")), "1");
        }
    }
}

/// The error of a table that cannot be opened.
fn refused(table: &TableDef) -> String {
    let sink = match connector().sink(table) {
        Err(error) => return format!("{error} {error:?}"),
        Ok(sink) => sink,
    };
    let Err(error) = sink.open(&WriterContext::of(0)) else { panic!("it is opened") };
    format!("{error} {error:?}")
}

#[test]
fn what_does_not_fit_is_told_before_the_first_row() {
    let table = made("narrow", "n integer, text text");
    let declare = |options: &[(&str, &str)]| declared(&table, &batch(0, 1), options);
    assert!(refused(&declare(&[])).contains("BIGINT does not fit into integer"));
    let table = made("fits", "n bigint, text text");
    let declare = |options: &[(&str, &str)]| declared(&table, &batch(0, 1), options);
    assert!(refused(&declare(&[("primary-key", "n")])).contains("ADD PRIMARY KEY"));
    assert!(refused(&declare(&[("primary-key", "m")])).contains("no column 'm'"));
    assert!(refused(&declare(&[("table-name", "none")])).contains("check 'table-name'"));
    let wrong = format!("postgresql://{}/nobody?sslmode=disable", address());
    assert!(refused(&declare(&[("url", &wrong)])).contains("check the database"));
    let nobody = "postgresql://127.0.0.1:1/postgres";
    let away = refused(&declare(&[("url", nobody), ("retry.timeout", "1 s")]));
    assert!(away.contains("cannot be reached") && away.contains("127.0.0.1:1"), "{away}");
}

#[test]
fn passwords_are_proven_and_shown_nowhere() {
    let table = made("proven", "n bigint, text text");
    for (user, how) in [("ann", "scram-sha-256"), ("old", "md5")] {
        let _ = try_psql(&format!("CREATE ROLE {user} LOGIN SUPERUSER"));
        psql(&format!("SET password_encryption = '{how}'; ALTER ROLE {user} PASSWORD 'right'"));
        let options = |password| [("username", user), ("password", password)];
        let good = declared(&table, &batch(0, 1), &options("right"));
        write(&good, &[batch(0, 1)]).unwrap();
        let error = refused(&declared(&table, &batch(0, 1), &options("wr0ng")));
        assert!(error.contains("password authentication failed"), "{error}");
        assert!(error.contains("check 'username'") && !error.contains("wr0ng"), "{error}");
    }
    assert_eq!(rows_of(&table).len(), 2);
}

#[test]
fn connections_are_encrypted_as_the_address_says() {
    let table = made("tls", "n bigint, text text");
    let (_, port) = address().split_once(':').map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
    let root = std::env::var("MILLSTREAM_POSTGRES_ROOT").expect("the script names it");
    let declare = |host: &str, parameters: &str| {
        let url = format!("postgresql://{host}:{port}/postgres?{parameters}");
        declared(&table, &batch(0, 1), &[("url", &url), ("retry.timeout", "5 s")])
    };
    let own = format!("sslmode=verify-full&sslrootcert={root}");
    let ca = format!("sslmode=verify-ca&sslrootcert={root}");
    let fits = [
        ("127.0.0.1", "sslmode=require"),
        ("127.0.0.1", "sslmode=prefer"),
        ("127.0.0.1", &ca),
        ("localhost", &own),
    ];
    for (host, parameters) in fits {
        write(&declare(host, parameters), &[batch(0, 1)]).unwrap();
    }
    let unfit = [("127.0.0.1", own.as_str()), ("localhost", "sslmode=verify-full")];
    for (host, parameters) in unfit {
        let error = refused(&declare(host, parameters));
        assert!(error.contains("certificate"), "{error}");
    }
    assert_eq!(rows_of(&table).len(), fits.len());
}

fn staging(job: u64) -> WriterContext {
    let run = RunId { job, generation: 1 };
    let staging = StagingContext { run, goes_on: false, before: vec![] };
    WriterContext { staging: Some(staging), ..WriterContext::of(0) }
}

const fn how(mark: Option<[u64; 2]>) -> Publishing {
    Publishing { last: false, again: true, mark }
}

/// The staged rows of two workers.
fn staged(sink: &dyn Sink, job: u64, batches: [RecordBatch; 2]) -> Vec<Vec<u8>> {
    let stage = |batch: RecordBatch| {
        let mut writer: Box<dyn SinkWriter> = sink.open(&staging(job)).unwrap();
        writer.write(&batch).unwrap();
        writer.stage(1, false).unwrap().staged
    };
    batches.map(stage).into()
}

#[test]
fn a_publication_that_is_repeated_does_nothing() {
    for key in [&[][..], &[("primary-key", "n")]] {
        let table = made("published", "n bigint PRIMARY KEY, text text");
        let declared = declared(&table, &batch(0, 1), key);
        let sink = connector().sink(&declared).unwrap();
        assert_eq!(sink.staging(), SinkVisibility::ByCheckpoint);
        let first = staged(&*sink, 7, [batch(0, 1000), batch(1000, 1500)]);
        assert_eq!(rows_of(&table).len(), 0, "what is staged is not seen");
        let mark = sink.mark().unwrap();
        sink.publish(&first, how(mark)).unwrap();
        assert_eq!(rows_of(&table), expected(0, 1500));
        psql(&format!("DELETE FROM {table} WHERE n < 10"));
        // Another process, which does not know whether it was published.
        let other = connector().sink(&declared).unwrap();
        other.publish(&first, how(mark)).unwrap();
        assert_eq!(rows_of(&table), expected(10, 1500));
        let second = staged(&*other, 7, [batch(1500, 1501), batch(1501, 1600)]);
        let mark = other.mark().unwrap();
        other.publish(&second, how(mark)).unwrap();
        assert_eq!(rows_of(&table), expected(10, 1600));
        // A run that was given up comes too late.
        let error = sink.publish(&first, how(Some([0, 7]))).unwrap_err().to_string();
        assert!(error.contains("counts 2 now"), "{error}");
        assert_eq!(rows_of(&table), expected(10, 1600));
        psql("DELETE FROM millstream_marker WHERE sink LIKE '0000000000000007:%'");
        let error = other.publish(&second, how(mark)).unwrap_err().to_string();
        assert!(error.contains("is gone"), "{error}");
    }
}

/// A round that was given up is published with the next one, in one statement.
#[test]
fn the_newest_row_of_a_key_wins_over_rounds() {
    let table = made("rounds", "n bigint PRIMARY KEY, text text");
    let declared = declared(&table, &batch(0, 1), &[("primary-key", "n")]);
    let sink = connector().sink(&declared).unwrap();
    let mut writer = sink.open(&staging(11)).unwrap();
    let text = |n: i64, text: &str| {
        let columns: Vec<ArrayRef> = vec![
            Arc::new(Int64Array::from(vec![n])),
            Arc::new(StringArray::from(vec![text.to_owned()])),
        ];
        RecordBatch::try_new(batch(0, 1).schema(), columns).unwrap()
    };
    writer.write(&batch(0, 100)).unwrap();
    writer.write(&text(50, "old")).unwrap();
    let first = writer.stage(1, false).unwrap().staged;
    writer.write(&text(50, "new")).unwrap();
    let second = writer.stage(2, false).unwrap().staged;
    let mark = sink.mark().unwrap();
    sink.publish(&[first, second], how(mark)).unwrap();
    assert_eq!(psql(&format!("SELECT text FROM {table} WHERE n = 50")), "new");
    assert_eq!(rows_of(&table).len(), 100);
}

#[test]
fn a_publication_that_fails_leaves_nothing() {
    let table = made("failing", "n bigint PRIMARY KEY, text text");
    psql(&format!("INSERT INTO {table} VALUES (500, 'there')"));
    let name = unique("marker");
    let declared = declared(&table, &batch(0, 1), &[("sink.marker-name", &name)]);
    let sink = connector().sink(&declared).unwrap();
    let rows = staged(&*sink, 9, [batch(0, 400), batch(400, 600)]);
    let mark = sink.mark().unwrap();
    let error = format!("{:?}", sink.publish(&rows, how(mark)).unwrap_err());
    assert!(error.contains("duplicate key") && error.contains("PRIMARY KEY"), "{error}");
    assert_eq!(rows_of(&table), ["500|there"]);
    psql(&format!("DELETE FROM {table}"));
    sink.publish(&rows, how(mark)).unwrap();
    assert_eq!(rows_of(&table), expected(0, 600));
    let shown = psql(&format!("SELECT count FROM millstream_marker WHERE sink = '{name}'"));
    assert_eq!(shown, "1");
}

#[test]
fn staged_rows_of_others_and_damaged_ones_are_refused() {
    let table = made("damaged", "n bigint, text text");
    let sink = connector().sink(&declared(&table, &batch(0, 1), &[])).unwrap();
    let rows = staged(&*sink, 3, [batch(0, 400), batch(400, 600)]);
    let mark = sink.mark().unwrap();
    assert!(sink.publish(&[b"MSK1".to_vec()], how(mark)).is_err());
    let mut cut = rows.clone();
    cut[0].truncate(40);
    assert!(sink.publish(&cut, how(mark)).is_err());
    assert!(sink.publish(&rows, how(None)).is_err());
    assert_eq!(rows_of(&table).len(), 0);
}

#[test]
fn a_server_that_comes_back_gets_the_rows_that_waited() {
    let table = made("away", "n bigint PRIMARY KEY, text text");
    let declared = declared(&table, &batch(0, 1), &[("primary-key", "n")]);
    let mut writer = connector().sink(&declared).unwrap().open(&WriterContext::of(0)).unwrap();
    writer.write(&batch(0, 100)).unwrap();
    waits(|| writer.settle().unwrap());
    script("kill");
    let (mut written, since) = (100, Instant::now());
    // Rows are accepted until the queue is full.
    while writer.room() == Room::Ready {
        writer.write(&batch(written, written + 10_000)).unwrap();
        written += 10_000;
        assert!(since.elapsed() < TIMEOUT && written < 100_000_000, "there is always room");
    }
    script("restart");
    waits(|| writer.drain().unwrap());
    writer.commit().unwrap();
    assert_eq!(
        psql(&format!("SELECT count(*), max(n) FROM {table}")),
        format!("{written}|{}", written - 1)
    );
}
