//! Read-only: a key and a time, to be counted per key (RO of S14).

use arrow::datatypes::Int64Type;
use dataflow::error::ConnectorError;

use super::columns::{Timeline, numbers};
use super::random::Column as Random;
use super::{Key, Model};
use crate::options::OptionReader;

const KEYS: u64 = 100_000_000;

pub(super) fn model(
    options: OptionReader<'_>,
    seed: u64,
    timeline: Timeline,
) -> Result<Model, ConnectorError> {
    let key = Key::new(options, KEYS, "uniform")?;
    let keys = Random::new(seed, "key");
    let count = key.count();
    Ok(Model::rows(vec![
        numbers::<Int64Type>("key", move |row| key.draw(&keys, row)).of(count),
        timeline.column("event_time", |row| row),
    ]))
}
