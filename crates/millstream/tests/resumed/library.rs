//! Jobs of the library without SQL, with an operator of one's own.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{AsArray, Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef};
use millstream::stream::{
    DataflowError, Description, KeyedOperator, KeyedState, RowOwner, SavedPart, SavedParts,
    SavedRows, process,
};
use millstream::{Error, Script, Session};

use crate::plans::{SLOW, bids};
use crate::rig::{Dir, Run, Until};

/// Emits the greatest price of each auction at the end.
struct Greatest {
    schema: SchemaRef,
    /// Whether it says what it keeps.
    speaks: bool,
}

impl KeyedOperator for Greatest {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn create(&self) -> Box<dyn KeyedState> {
        Box::new(Prices { schema: self.schema.clone(), greatest: BTreeMap::new() })
    }

    fn saved(&self) -> Option<SavedParts> {
        let rows = SavedPart { schema: self.schema.clone(), owner: RowOwner::Input(0) };
        self.speaks.then(|| SavedParts { version: 1, parts: vec![rows] })
    }

    fn describe(&self, _: &[Vec<String>]) -> Description {
        Description { name: "Greatest", properties: vec![] }
    }
}

struct Prices {
    schema: SchemaRef,
    greatest: BTreeMap<i64, i64>,
}

impl Prices {
    fn rows(&self) -> Result<RecordBatch, DataflowError> {
        let keys = Int64Array::from_iter_values(self.greatest.keys().copied());
        let prices = Int64Array::from_iter_values(self.greatest.values().copied());
        Ok(RecordBatch::try_new(self.schema.clone(), vec![Arc::new(keys), Arc::new(prices)])?)
    }
}

impl KeyedState for Prices {
    fn push(&mut self, _: usize, batch: RecordBatch) -> Result<(), DataflowError> {
        let [keys, prices] = [0, 1].map(|at| batch.column(at).as_primitive::<Int64Type>());
        for (key, price) in keys.values().iter().zip(prices.values()) {
            let greatest = self.greatest.entry(*key).or_insert(*price);
            *greatest = (*greatest).max(*price);
        }
        Ok(())
    }

    fn advance(&mut self, watermark: i64, _: usize) -> Result<Option<RecordBatch>, DataflowError> {
        if watermark != i64::MAX || self.greatest.is_empty() {
            return Ok(None);
        }
        let rows = self.rows()?;
        self.greatest.clear();
        Ok(Some(rows))
    }

    fn save(&mut self) -> Result<Vec<SavedRows>, DataflowError> {
        Ok(vec![SavedRows { part: 0, rows: self.rows()? }])
    }

    fn load(&mut self, saved: SavedRows) -> Result<(), DataflowError> {
        self.push(0, saved.rows)
    }

    fn bytes(&self) -> usize {
        self.greatest.len() * 16
    }
}

/// A job that writes the greatest price of each auction into `out`.
fn greatest(session: &mut Session, dir: &Dir, name: &str, speaks: bool) -> Result<Script, Error> {
    session.sql(&format!(
        "{} CREATE TABLE written (auction BIGINT, price BIGINT) WITH (
           'connector' = 'file', 'path' = '{}/', 'format' = 'csv');",
        bids(SLOW),
        dir.path("out")
    ))?;
    // The first half of the prices is the greater one, and is read before the job is dropped.
    let prices = session.stream("SELECT auction, 30000 - price AS price FROM bids")?;
    let fields = ["auction", "price"].map(|name| Field::new(name, DataType::Int64, true));
    let operator = Greatest { schema: Arc::new(Schema::new(fields.to_vec())), speaks };
    let stream = process(name, &[prices.key_by(&["auction"])?], Arc::new(operator), None)?;
    let output = session.insert("written", stream)?;
    session.job(&[output])
}

#[test]
fn a_job_that_is_dropped_goes_on_with_the_state_of_ones_own_operator() {
    let dir = Dir::new("library");
    for until in [Until::Drop, Until::Drop, Until::Stop, Until::End] {
        let run = Run { until, ..Run::of(&dir) };
        run.planned(|session| greatest(session, &dir, "greatest", true)).unwrap();
    }
    let expected: Vec<String> =
        (0..10).map(|auction| format!("{auction},{}", 30_000 - auction)).collect();
    assert_eq!(dir.rows("out"), expected);
}

#[test]
fn an_operator_is_known_by_its_name_and_has_to_say_what_it_keeps() {
    let dir = Dir::new("named");
    let run = Run::of(&dir);
    let unknown = run.planned(|session| greatest(session, &dir, "best of all", false)).unwrap_err();
    assert!(unknown.to_string().contains("operator 'best of all' does not say"), "{unknown}");
    let stopped = Run { until: Until::Stop, ..run };
    stopped.planned(|session| greatest(session, &dir, "greatest", true)).unwrap();
    let other = run.planned(|session| greatest(session, &dir, "another", true)).unwrap_err();
    for part in ["gone  Greatest greatest", "new   Greatest another"] {
        assert!(other.to_string().contains(part), "{part}: {other}");
    }
}
