//! Generated rows.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{Array, AsArray};
use arrow::datatypes::{DataType, Int64Type, SchemaRef, TimestampMillisecondType};
use arrow::record_batch::RecordBatch;
use connectors::Generator;
use dataflow::connector::{Connector, TableDef};
use dataflow::error::ConnectorError;
use dataflow::source::{Next, ReaderContext};

use crate::bed::*;

const START_MS: i64 = 1_704_067_200_000;

/// The table of a ready-made workload.
fn workload(options: &[(&str, &str)]) -> TableDef {
    let bare = table(&columns(&[]), options);
    let schema = Generator.infer(&bare.options).unwrap().unwrap();
    table(&schema, options)
}

fn with(mut table: TableDef, options: &[(&str, &str)]) -> TableDef {
    let options = options.iter().map(|(key, value)| (key.to_string(), value.to_string()));
    table.options.extend(options);
    table
}

/// The rows in the order of the stream, put together from flows.
fn stream(table: &TableDef, workers: u32) -> Vec<String> {
    let source = source(&Generator, table).unwrap();
    let flows = source.splits(workers, None).unwrap();
    let mut parts = Vec::new();
    for info in &flows {
        let part = rows(&read_split(&*source, info, &context()));
        assert_eq!(info.rows, Some(part.len() as u64));
        parts.push(part);
    }
    let blocks: Vec<Vec<&[String]>> =
        parts.iter().map(|part| part.chunks(8192).collect()).collect();
    let longest = blocks.iter().map(Vec::len).max().unwrap_or(0);
    let dealt =
        (0..longest).flat_map(|round| blocks.iter().filter_map(move |flow| flow.get(round)));
    dealt.flat_map(|block| block.iter().cloned()).collect()
}

fn all_workloads() -> Vec<TableDef> {
    vec![
        workload(&[("kind", "ysb")]),
        workload(&[("kind", "nexmark")]),
        workload(&[("kind", "nexmark"), ("table", "auction")]),
        workload(&[("kind", "nexmark"), ("table", "person")]),
        workload(&[("kind", "cluster-monitoring")]),
        workload(&[("kind", "ro")]),
    ]
}

#[test]
fn the_stream_does_not_depend_on_the_flows_and_neither_on_preloading() {
    for table in all_workloads() {
        let table = with(table, &[("rows", "30000"), ("seed", "7"), ("disorder", "5ms")]);
        let one = stream(&table, 1);
        assert_eq!(one.len(), 30_000);
        assert_eq!(one, stream(&table, 3));
        assert_eq!(one, stream(&with(table.clone(), &[("flows", "2")]), 5));
        assert_eq!(one, stream(&with(table.clone(), &[("preload", "true")]), 2));
        assert_ne!(one, stream(&with(table.clone(), &[("seed", "8")]), 1));
    }
}

#[test]
fn a_projection_gives_the_same_values_in_declared_types() {
    let ysb = with(workload(&[("kind", "ysb")]), &[("rows", "1000")]);
    let whole = read(&*source(&Generator, &ysb).unwrap(), 1, &context());
    let few = columns(&[("EVENT_TYPE", VARCHAR), ("ad_id", DataType::Int32)]);
    let few = TableDef { schema: few, ..ysb.clone() };
    let read = read(&*Generator.source(&few, &[1, 0]).unwrap(), 1, &context());
    assert_eq!(read.schema().field(0).data_type(), &DataType::Int32);
    let of = |name: &str| whole.schema().index_of(name).unwrap();
    let picked = whole.project(&[of("ad_id"), of("event_type")]).unwrap();
    assert_eq!(rows(&read), rows(&picked));
    let unknown = TableDef { schema: columns(&[("event_tyep", VARCHAR)]), ..ysb.clone() };
    assert_eq!(hint(&refused(source(&Generator, &unknown))), "did you mean 'event_type'?");
    let unfit = TableDef { schema: columns(&[("event_time", VARCHAR)]), ..ysb };
    assert_eq!(hint(&refused(source(&Generator, &unfit))), "declare it as TIMESTAMP(3)");
}

#[test]
fn ysb_has_a_thousand_ads_of_a_hundred_campaigns() {
    let table = with(workload(&[("kind", "ysb")]), &[("rows", "30000")]);
    let batch = read(&*source(&Generator, &table).unwrap(), 1, &context());
    let longs = |name: &str| batch[name].as_primitive::<Int64Type>().values().to_vec();
    let (ads, campaigns) = (longs("ad_id"), longs("campaign_id"));
    assert!(ads.iter().zip(&campaigns).all(|(ad, campaign)| ad / 10 == *campaign));
    assert_eq!((ads.iter().min(), ads.iter().max()), (Some(&0), Some(&999)));
    assert!(longs("key").iter().any(|key| *key > 9_000_000));
    let views = rows(&batch).iter().filter(|row| row.contains("|view|")).count();
    assert!(views.abs_diff(10_000) < 500, "{views}");
}

#[test]
fn nexmark_tells_one_story_in_three_tables() {
    let read_table = |name: &str, rows: &str| -> RecordBatch {
        let table = workload(&[("kind", "nexmark"), ("table", name), ("interval", "1ms")]);
        let table = with(table, &[("rows", rows)]);
        read(&*source(&Generator, &table).unwrap(), 1, &context())
    };
    let (bids, auctions, persons) =
        (read_table("bid", "46000"), read_table("auction", "3000"), read_table("person", "1000"));
    let times = |batch: &RecordBatch| -> Vec<i64> {
        batch["date_time"].as_primitive::<TimestampMillisecondType>().values().to_vec()
    };
    // The events of all tables are 0, 1, 2, … milliseconds after the start.
    let mut all = [times(&bids), times(&auctions), times(&persons)].concat();
    all.sort_unstable();
    assert_eq!(all, (START_MS..START_MS + 50_000).collect::<Vec<_>>());
    let born: HashMap<i64, i64> = persons["id"]
        .as_primitive::<Int64Type>()
        .values()
        .iter()
        .copied()
        .zip(times(&persons))
        .collect();
    let exist = |batch: &RecordBatch, column: &str| {
        let ids = batch[column].as_primitive::<Int64Type>().values().to_vec();
        ids.iter().zip(times(batch)).all(|(id, at)| born.get(id).is_some_and(|born| *born <= at))
    };
    assert!(exist(&bids, "bidder") && exist(&auctions, "seller"));
    let keys = bids["auction"].as_primitive::<Int64Type>().values();
    let first = keys.iter().filter(|key| **key == 1000).count();
    // P(X < 2) of Pareto's law with exponent 1.16: 1 - 2^-1.16 = 0.552.
    assert!((first as f64 / 46_000.0 - 0.552).abs() < 0.02, "{first}");
    assert!(keys.iter().all(|key| (1000..11_000).contains(key)));
    let none = table(&columns(&[]), &[("kind", "nexmark"), ("proportions", "0:4:1")]);
    let error = refused(Generator.infer(&none.options));
    assert!(matches!(error, ConnectorError::Option { key, .. } if key == "proportions"));
}

#[test]
fn event_time_advances_by_the_interval_and_strays_no_further_than_the_disorder() {
    let options = [("kind", "ro"), ("rows", "20000"), ("interval", "250us"), ("disorder", "40ms")];
    let source = source(&Generator, &workload(&options)).unwrap();
    let column = source.schema().index_of("event_time").unwrap();
    let flows = source.splits(2, Some(column)).unwrap();
    let mut out_of_order = 0;
    for (flow, info) in flows.iter().enumerate() {
        let batch = read_split(&*source, info, &context());
        let times = batch.column(column).as_primitive::<TimestampMillisecondType>().values();
        let least = info.event_time_min.unwrap();
        assert!(times.iter().all(|time| *time >= least));
        assert!(least <= times[0] && times[0] - least <= 40);
        let mut latest = i64::MIN;
        for (row, time) in times.iter().enumerate() {
            let row = (row / 8192 * 2 + flow) * 8192 + row % 8192;
            let place = START_MS + (row as i64) / 4;
            assert!((place - 40..=place).contains(time), "row {row}");
            out_of_order += usize::from(*time < latest);
            latest = latest.max(*time);
        }
    }
    assert!(out_of_order > 1000);
    assert_eq!(source.splits(2, Some(0)).unwrap()[0].event_time_min, None);
}

#[test]
fn repeated_rows_are_the_same_but_later() {
    for preload in ["false", "true"] {
        let options = [
            ("kind", "ro"),
            ("rows", "10000"),
            ("repeat", "3"),
            ("interval", "30us"),
            ("disorder", "3"),
            ("preload", preload),
        ];
        let source = source(&Generator, &workload(&options)).unwrap();
        let flows = source.splits(2, None).unwrap();
        assert_eq!(
            flows.iter().map(|flow| flow.rows).collect::<Vec<_>>(),
            [24_576, 5_424].map(Some)
        );
        let batch = read_split(&*source, &flows[1], &context());
        let (first, third) = (batch.slice(0, 1808), batch.slice(3616, 1808));
        assert_eq!(first.column(0), third.column(0));
        let times = |batch: &RecordBatch| -> Vec<i64> {
            batch["event_time"].as_primitive::<TimestampMillisecondType>().values().to_vec()
        };
        let later: Vec<i64> = times(&first).iter().map(|time| time + 600).collect();
        assert_eq!(times(&third), later);
    }
}

#[test]
fn a_rate_is_kept_by_the_clock() {
    let clock = Arc::new(ManualClock::default());
    let context = ReaderContext::new(clock.clone(), Arc::default());
    // Ten milliseconds hold 100 rows: blocks of 64.
    let table = workload(&[("kind", "ro"), ("rate", "10000"), ("rows", "200"), ("flows", "2")]);
    let source = source(&Generator, &table).unwrap();
    let splits = source.splits(9, None).unwrap();
    assert_eq!(splits.len(), 2);
    clock.set(1_000_000_000);
    let mut flow = source.open(&splits[1], None, &context).unwrap();
    let due_ns = |rows: u64| 1_000_000_000 + rows * 100_000;
    let mut next = || flow.next(8192).unwrap();
    assert!(matches!(next(), Next::Wait { until_ns } if until_ns == due_ns(128)));
    clock.set(due_ns(128) - 1);
    assert!(matches!(next(), Next::Wait { until_ns } if until_ns == due_ns(128)));
    clock.set(due_ns(128));
    assert!(matches!(next(), Next::Batch(batch) if batch.num_rows() == 64));
    assert!(matches!(next(), Next::Wait { until_ns } if until_ns == due_ns(200)));
    clock.set(due_ns(300));
    assert!(matches!(next(), Next::Batch(batch) if batch.num_rows() == 8));
    assert!(matches!(next(), Next::End));
    assert!(matches!(next(), Next::End));
}

#[test]
fn a_stream_without_rows_goes_on() {
    let source = source(&Generator, &workload(&[("kind", "ysb")])).unwrap();
    assert!(!source.bounded());
    let splits = source.splits(4, None).unwrap();
    assert_eq!(splits[3].rows, None);
    let mut flow = source.open(&splits[3], None, &context()).unwrap();
    for _ in 0..20 {
        assert!(matches!(flow.next(5000), Ok(Next::Batch(batch)) if batch.num_rows() <= 5000));
    }
    // Another user of the source with other readers changes nothing of a split that there is.
    let split = source.splits(2, None).unwrap().swap_remove(1);
    let mut before = source.open(&split, None, &context()).unwrap();
    source.splits(7, None).unwrap();
    let mut behind = source.open(&split, None, &context()).unwrap();
    for _ in 0..5 {
        let (Ok(Next::Batch(one)), Ok(Next::Batch(other))) = (before.next(5000), behind.next(5000))
        else {
            panic!("both have rows");
        };
        assert_eq!(one, other);
    }
}

fn declared() -> SchemaRef {
    columns(&[
        ("id", BIGINT),
        ("item", VARCHAR),
        ("price", DOUBLE),
        ("tail", DOUBLE),
        ("grade", DataType::Int8),
        ("colour", DataType::Utf8View),
        ("day", DataType::Date32),
        ("flag", DataType::Boolean),
        ("amount", DataType::Decimal128(10, 2)),
        ("at", TIMESTAMP),
    ])
}

#[test]
fn declared_columns_are_made_as_their_fields_say() {
    let options = [
        ("rows", "50000"),
        ("interval", "1s"),
        ("start", "2013-01-01"),
        ("fields.id.kind", "sequence"),
        ("fields.id.min", "5"),
        ("fields.id.max", "1004"),
        ("fields.item.kind", "zipf"),
        ("fields.item.min", "1"),
        ("fields.item.max", "100"),
        ("fields.price.min", "-1.5"),
        ("fields.price.max", "1.5"),
        ("fields.tail.kind", "pareto"),
        ("fields.tail.exponent", "2"),
        ("fields.grade.null_rate", "0.25"),
        ("fields.colour.kind", "choice"),
        ("fields.colour.values", "red, green,blue"),
        ("fields.day.kind", "constant"),
        ("fields.day.value", "2013-02-03"),
        ("fields.amount.max", "9.99"),
    ];
    let table = table(&declared(), &options);
    let batch = read(&*source(&Generator, &table).unwrap(), 1, &context());
    let ids = batch["id"].as_primitive::<Int64Type>().values();
    assert_eq!((ids[0], ids[999], ids[1000]), (5, 1004, 5));
    let items: Vec<&str> = batch["item"].as_string::<i32>().iter().flatten().collect();
    let harmonic: f64 = (1..=100).map(|rank| 1.0 / f64::from(rank)).sum();
    let first = items.iter().filter(|item| **item == "1").count() as f64 / 50_000.0;
    assert!((first - 1.0 / harmonic).abs() < 0.01, "{first}");
    let doubles =
        |name: &str| batch[name].as_primitive::<arrow::datatypes::Float64Type>().values().to_vec();
    let prices = doubles("price");
    assert!(prices.iter().all(|price| (-1.5..1.5).contains(price)));
    assert!(prices.iter().sum::<f64>().abs() < 1500.0);
    let beyond = doubles("tail").iter().filter(|value| **value > 10.0).count();
    assert!(beyond.abs_diff(500) < 120, "{beyond}");
    assert!(batch["grade"].null_count().abs_diff(12_500) < 500);
    let colours = batch["colour"].as_string_view();
    assert_eq!(colours.iter().flatten().filter(|colour| *colour == "blue").count() / 1000, 16);
    assert!(rows(&batch)[60].ends_with("|2013-01-01T00:01:00"));
    assert!(rows(&batch)[0].contains("|2013-02-03|"));
}

#[test]
fn no_row_is_beyond_the_bounds_of_its_columns() {
    let options = [("rows", "20000"), ("repeat", "2"), ("disorder", "50ms"), ("interval", "1ms")];
    let mut known = 0;
    for table in all_workloads() {
        let keys = ("keys", "300");
        known += bounds_hold(
            &*source(&Generator, &with(table, &[&options[..], &[keys]].concat())).unwrap(),
        );
    }
    let own = [("fields.item.kind", "zipf"), ("fields.item.max", "50"), ("fields.grade.max", "9")];
    let own = table(&declared(), &[&options[..], &own].concat());
    known += bounds_hold(&*source(&Generator, &own).unwrap());
    // Numbers of the workloads, words, times, and what the options of a column say.
    assert!(known >= 25, "{known}");
}

#[test]
fn options_of_another_kind_of_table_are_refused() {
    let error = |options: &[(&str, &str)]| {
        let table = table(&declared(), options);
        refused(source(&Generator, &table)).to_string()
    };
    assert!(error(&[("table", "bid")]).contains("nexmark"));
    assert!(error(&[("kind", "ysb"), ("proportions", "1:1:1")]).contains("nexmark"));
    assert!(error(&[("keys", "10")]).contains("ready-made"));
    assert!(error(&[("kind", "ro"), ("fields.item.max", "10")]).contains("its own columns"));
}

#[test]
fn settings_that_do_not_fit_are_refused_by_name() {
    let error = |key: &str, value: &str| {
        refused(source(&Generator, &table(&declared(), &[("rows", "10"), (key, value)])))
    };
    assert_eq!(hint(&error("fields.itm.kind", "zipf")), "did you mean 'item'?");
    assert_eq!(hint(&error("fields.item.knid", "zipf")), "did you mean 'fields.item.kind'?");
    assert_eq!(hint(&error("fields.item.kind", "zpif")), "did you mean 'zipf'?");
    assert!(error("fields.grade.max", "300").to_string().contains("TINYINT"));
    assert!(error("fields.id.max", "-1").to_string().contains("less than the min"));
    assert!(matches!(error("fields.day.kind", "time"), ConnectorError::Column { .. }));
    assert!(matches!(error("fields.day.kind", "constant"), ConnectorError::Option { .. }));
    assert!(matches!(error("rate", "0"), ConnectorError::Option { .. }));
    let endless = table(&declared(), &[("preload", "true")]);
    assert!(refused(source(&Generator, &endless)).to_string().contains("number of rows"));
    assert!(Generator.sink(&endless).is_err());
    let kind = table(&columns(&[]), &[("kind", "yahoo")]);
    assert!(Generator.infer(&kind.options).is_err());
    assert_eq!(Generator.infer(&endless.options).unwrap(), None);
}
