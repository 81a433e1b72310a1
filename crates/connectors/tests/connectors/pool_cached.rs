//! Tables of a pool that are caches of objects: they are loaded when they are read, as often as the
//! objects change.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arrow::array::AsArray;
use arrow::datatypes::Int64Type;
use connectors::PoolConnector;
use connectors::pool::in_memory::InMemoryPool;
use dataflow::connector::{Connector, TableDef};
use dataflow::error::ConnectorError;

use crate::bed::*;
use crate::servers::s3::{KEY, S3};

fn cache(store: &S3, more: &[(&str, &str)]) -> TableDef {
    let endpoint = store.endpoint();
    let mut all = vec![
        ("origin", "s3://bucket/x/*.csv"),
        ("origin.s3.endpoint", &endpoint),
        ("origin.s3.region", "eu-west-1"),
        ("origin.s3.access_key_id", KEY),
        ("origin.s3.secret_access_key", "hush"),
    ];
    all.extend_from_slice(more);
    table(&columns(&[("a", BIGINT), ("b", VARCHAR)]), &all)
}

/// The sum of a column, and the version that it is of.
fn sum(pool: &Arc<InMemoryPool>, cache: &TableDef) -> Result<(i64, u64), ConnectorError> {
    let source = PoolConnector::new(Arc::<InMemoryPool>::clone(pool)).source(cache, &[0, 1])?;
    let mut sum = 0;
    for split in source.splits(2, None)? {
        let batch = drain(&mut *source.open(&split, None, &context())?)?;
        sum += batch.column(0).as_primitive::<Int64Type>().values().iter().sum::<i64>();
    }
    Ok((sum, pool.newest(&cache.name).map_or(0, |newest| newest.version)))
}

/// How many of the objects were read since the last call.
fn reads(store: &S3) -> usize {
    store.log().iter().filter(|asked| asked.starts_with("GET /bucket/x/")).count()
}

#[test]
fn objects_are_loaded_once_for_each_version_of_them() {
    let (store, pool) = (S3::start(), InMemoryPool::new(1));
    let cache = cache(&store, &[]);
    store.put("/bucket/x/a.csv", "a,b\n1,x\n2,y\n");
    store.put("/bucket/x/b.csv", "a,b\n10,x\n");
    assert_eq!(sum(&pool, &cache).unwrap(), (13, 1));
    assert!(reads(&store) >= 2);
    assert_eq!(sum(&pool, &cache).unwrap(), (13, 1));
    assert_eq!(reads(&store), 0, "a listing tells that they are the same");
    // Another version of the same length, one more, and one less.
    store.put("/bucket/x/b.csv", "a,b\n20,x\n");
    assert_eq!(sum(&pool, &cache).unwrap(), (23, 2));
    store.put("/bucket/x/c.csv", "a,b\n100,x\n");
    assert_eq!(sum(&pool, &cache).unwrap(), (123, 3));
    store.state.lock().unwrap().objects.remove("/bucket/x/a.csv");
    assert_eq!(sum(&pool, &cache).unwrap(), (120, 4));
    let origin = pool.newest(&cache.name).unwrap().origin.clone().unwrap();
    let endpoint = &cache.options["origin.s3.endpoint"];
    let name = format!("s3://bucket/x/*.csv (s3.endpoint={endpoint})");
    assert_eq!(origin.name, name, "nothing of the credentials is kept");
}

#[test]
fn what_was_loaded_stays_when_the_objects_are_away_or_have_bad_rows() {
    let (store, pool) = (S3::start(), InMemoryPool::new(1));
    let cache = cache(&store, &[]);
    store.put("/bucket/x/a.csv", "a,b\n1,x\n");
    assert_eq!(sum(&pool, &cache).unwrap(), (1, 1));
    store.put("/bucket/x/a.csv", "a,b\n2,x\nzwei,y\n");
    assert_eq!(sum(&pool, &cache).unwrap(), (1, 1));
    store.state.lock().unwrap().objects.clear();
    assert_eq!(sum(&pool, &cache).unwrap(), (1, 1));
    store.put("/bucket/x/a.csv", "a,b\n3,x\n");
    assert_eq!(sum(&pool, &cache).unwrap(), (3, 2));
    // Without a version the reason is an error.
    let empty = InMemoryPool::new(1);
    store.put("/bucket/x/a.csv", "a,b\n2,x\nzwei,y\n");
    let error = sum(&empty, &cache).unwrap_err().to_string();
    assert!(error.contains("x/a.csv:3") && error.contains("zwei"), "{error}");
    store.state.lock().unwrap().objects.clear();
    let error = sum(&empty, &cache).unwrap_err().to_string();
    assert!(error.contains("s3://bucket/x/*.csv"), "{error}");
    assert_eq!(empty.newest(&cache.name), None);
}

#[test]
fn a_row_that_is_bad_is_refused_unless_it_is_to_be_left_out() {
    let (store, pool) = (S3::start(), InMemoryPool::new(1));
    store.put("/bucket/x/a.csv", "a,b\n1,x\neins,y\n4,z\n");
    // A process that reads rows which another one has loaded would not learn that one is missing.
    let error = sum(&pool, &cache(&store, &[])).unwrap_err();
    let ConnectorError::Io { place, hint: Some(hint), .. } = error else { panic!("{error}") };
    assert!(place.contains("x/a.csv:3") && hint.contains("'origin.on_bad' = 'skip'"), "{hint}");
    let cache = cache(&store, &[("origin.on_bad", "skip")]);
    assert_eq!(sum(&pool, &cache).unwrap(), (5, 1));
    let origin = pool.newest(&cache.name).unwrap().origin.clone().unwrap();
    assert!(origin.name.contains("on_bad=skip"), "the name says so: {}", origin.name);
}

#[test]
fn a_cache_tells_its_columns_and_is_not_written() {
    let (store, pool) = (S3::start(), InMemoryPool::new(1));
    store.put("/bucket/x/a.csv", "a,b\n1,x\n");
    let declared = cache(&store, &[]);
    let undeclared = TableDef { schema: columns(&[]), ..declared.clone() };
    let connector = PoolConnector::new(Arc::<InMemoryPool>::clone(&pool));
    let columns_there = connector.declare(&undeclared).unwrap().unwrap();
    assert_eq!(
        (columns_there.field(0).name().as_str(), columns_there.field(0).data_type()),
        ("a", &BIGINT)
    );
    assert_eq!(pool.newest(&declared.name), None, "it is not loaded by that");
    assert_eq!(sum(&pool, &declared).unwrap(), (1, 1));
    // The pool tells them where the objects are away.
    store.state.lock().unwrap().objects.clear();
    assert_eq!(connector.declare(&undeclared).unwrap(), Some(Arc::clone(&declared.schema)));
    let refused = connector.sink(&declared).err().unwrap().to_string();
    assert!(refused.contains("a cache of s3://bucket/x/*.csv"), "{refused}");
    // Neither another origin, nor other columns, nor the same table as no cache.
    for (key, value) in [("origin", "s3://bucket/y/*.csv"), ("origin.format", "csv")] {
        let mut other = declared.clone();
        other.options.insert(key.into(), value.into());
        let error = sum(&pool, &other).unwrap_err().to_string();
        assert!(error.contains("is a cache of s3://bucket/x/*.csv (s3."), "{error}");
    }
    // A bucket of the same name on another server is another origin, and its rows are not mixed up.
    let second = S3::start();
    second.put("/bucket/x/a.csv", "a,b\n2,y\n");
    let error = sum(&pool, &cache(&second, &[])).unwrap_err().to_string();
    assert!(error.contains("is a cache of s3://bucket/x/*.csv (s3.endpoint=http"), "{error}");
    let other = TableDef { schema: columns(&[("a", VARCHAR), ("b", VARCHAR)]), ..declared };
    assert!(sum(&pool, &other).is_err());
}

#[test]
fn an_interrupted_statement_loads_nothing_and_the_next_one_does() {
    let (store, pool) = (S3::start(), InMemoryPool::new(1));
    let cache = cache(&store, &[]);
    store.put("/bucket/x/a.csv", "a,b\n1,x\n");
    assert_eq!(sum(&pool, &cache).unwrap(), (1, 1));
    store.put("/bucket/x/a.csv", "a,b\n2,x\n");
    let flag = Arc::new(AtomicBool::new(true));
    let connector = PoolConnector::new(Arc::<InMemoryPool>::clone(&pool));
    let connector = connector.interrupted_by(Arc::clone(&flag));
    // Not the rows that are there, with a warning.
    let error = connector.source(&cache, &[0]).err().unwrap().to_string();
    assert!(error.contains("interrupted"), "{error}");
    assert_eq!(pool.newest(&cache.name).unwrap().version, 1);
    flag.store(false, Ordering::Relaxed);
    connector.source(&cache, &[0]).unwrap();
    assert_eq!(sum(&pool, &cache).unwrap(), (2, 2));
}
