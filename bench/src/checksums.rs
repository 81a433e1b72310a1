//! A sink that keeps sums of what it takes: cheap enough not to be measured, and enough to tell a
//! wrong result from a right one. In runs by the clock it takes the time of each window as well.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arrow::array::{ArrayRef, AsArray};
use arrow::datatypes::{DataType, Float64Type, Int64Type, TimestampMillisecondType};
use arrow::record_batch::RecordBatch;
use dataflow::connector::{Connector, TableDef};
use dataflow::error::ConnectorError;
use dataflow::sink::{Placement, Sink, SinkVisibility, SinkWriter, WriterContext};

use crate::latency::{Latencies, Probe};
use crate::paced::now_ns;

/// Sums over the rows of a result whose last two columns are the key and the value.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ChecksumTotals {
    /// Rows.
    pub rows: u64,
    /// The sum of `(key + 1) · value`, modulo 2⁶⁴, where values are whole numbers.
    pub whole: u64,
    /// The same where they are not.
    pub real: f64,
}

impl ChecksumTotals {
    /// Adds those of other rows.
    pub fn add(&mut self, other: &Self) {
        self.rows += other.rows;
        self.whole = self.whole.wrapping_add(other.whole);
        self.real += other.real;
    }

    /// Adds a row of a whole number.
    pub fn add_whole(&mut self, key: i64, value: i64) {
        self.rows += 1;
        self.whole = self.whole.wrapping_add(weight(key).wrapping_mul(value as u64));
    }

    /// Adds a row of another number.
    pub fn add_real(&mut self, key: i64, value: f64) {
        self.rows += 1;
        self.real += weight(key) as f64 * value;
    }

    /// Whether both are of the same rows; real numbers may have been added in another order.
    pub fn agrees(&self, other: &Self) -> bool {
        let near = (self.real - other.real).abs() <= 1e-9 * self.real.abs().max(other.real.abs());
        (self.rows, self.whole) == (other.rows, other.whole) && near
    }

    /// As bytes, for another node.
    pub fn encode(&self) -> Vec<u8> {
        [self.rows, self.whole, self.real.to_bits()].iter().flat_map(|w| w.to_le_bytes()).collect()
    }

    /// From the bytes of [`ChecksumTotals::encode`].
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (words, []) = bytes.as_chunks::<8>() else { return None };
        let [rows, whole, real] =
            words.try_into().ok().map(|w: [_; 3]| w.map(u64::from_le_bytes))?;
        Some(Self { rows, whole, real: f64::from_bits(real) })
    }

    fn add_columns(&mut self, keys: &ArrayRef, values: &ArrayRef) {
        let keys = keys.as_primitive::<Int64Type>().values();
        if let Some(values) = values.as_primitive_opt::<Int64Type>() {
            let each = keys.iter().zip(values.values());
            let products = each.map(|(&key, &value)| weight(key).wrapping_mul(value as u64));
            self.whole = products.fold(self.whole, u64::wrapping_add);
            self.rows += keys.len() as u64;
        } else {
            let values = values.as_primitive::<Float64Type>().values();
            keys.iter().zip(values).for_each(|(&key, &value)| self.add_real(key, value));
        }
    }
}

fn weight(key: i64) -> u64 {
    (key as u64).wrapping_add(1)
}

/// The connector `blackhole`, which here keeps sums. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct ChecksumSink(Arc<Mutex<ChecksumState>>);

#[derive(Debug, Default)]
struct ChecksumState {
    sums: ChecksumTotals,
    probe: Option<Probe>,
    latencies: Latencies,
}

impl ChecksumSink {
    /// The rows published since the last call.
    pub fn take(&self) -> ChecksumTotals {
        std::mem::take(&mut self.state().sums)
    }

    /// Whether the next run takes the time of windows, and how.
    pub fn probe(&self, probe: Option<Probe>) {
        self.state().probe = probe;
    }

    /// Latencies of windows published since the last call.
    pub fn take_latencies(&self) -> Latencies {
        std::mem::take(&mut self.state().latencies)
    }

    fn state(&self) -> MutexGuard<'_, ChecksumState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Connector for ChecksumSink {
    fn name(&self) -> &'static str {
        "blackhole"
    }

    fn sink(&self, table: &TableDef) -> Result<Arc<dyn Sink>, ConnectorError> {
        let types: Vec<_> = table.schema.fields().iter().map(|f| f.data_type()).collect();
        match types[..] {
            [.., DataType::Int64, DataType::Int64 | DataType::Float64] => {
                Ok(Arc::new(self.clone()))
            }
            _ => Err(refuse("a result ends in a BIGINT key and a value")),
        }
    }
}

impl Sink for ChecksumSink {
    fn placement(&self) -> Placement {
        Placement::Everywhere
    }

    /// As `blackhole` does, so that jobs over it keep checkpoints.
    fn staging(&self) -> SinkVisibility {
        SinkVisibility::AsTheyCome
    }

    fn open(&self, _: &WriterContext) -> Result<Box<dyn SinkWriter>, ConnectorError> {
        let probe = self.state().probe;
        let latencies = Latencies::default();
        Ok(Box::new(Writer { sums: ChecksumTotals::default(), probe, latencies, to: self.clone() }))
    }
}

struct Writer {
    sums: ChecksumTotals,
    probe: Option<Probe>,
    latencies: Latencies,
    to: ChecksumSink,
}

impl SinkWriter for Writer {
    fn write(&mut self, batch: &RecordBatch) -> Result<(), ConnectorError> {
        if let [.., keys, values] = batch.columns() {
            self.sums.add_columns(keys, values);
        }
        if let (Some(probe), Some(starts)) = (&self.probe, batch.columns().first()) {
            let starts = starts.as_primitive_opt::<TimestampMillisecondType>();
            let starts = starts.map_or(&[][..], |starts| starts.values());
            probe.take(starts, now_ns(), &mut self.latencies);
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), ConnectorError> {
        Ok(())
    }

    fn commit(self: Box<Self>) -> Result<(), ConnectorError> {
        let mut state = self.to.state();
        state.sums.add(&self.sums);
        state.latencies.add(&self.latencies);
        Ok(())
    }
}

fn refuse(message: &str) -> ConnectorError {
    ConnectorError::Option { key: "connector".into(), message: message.into(), hint: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_tell_results_apart_and_survive_the_wire() {
        let mut sums = ChecksumTotals::default();
        sums.add_whole(3, 5);
        sums.add_whole(0, -1);
        let mut swapped = ChecksumTotals::default();
        swapped.add_whole(0, 5);
        swapped.add_whole(3, -1);
        assert!(!sums.agrees(&swapped), "values of the wrong keys");
        assert_eq!(ChecksumTotals::decode(&sums.encode()), Some(sums));
        assert_eq!(ChecksumTotals::decode(&sums.encode()[1..]), None);
        let (mut a, mut b) = (ChecksumTotals::default(), ChecksumTotals::default());
        [0.1, 0.2, 0.3].iter().for_each(|&v| a.add_real(1, v));
        [0.3, 0.2, 0.1].iter().for_each(|&v| b.add_real(1, v));
        assert!(a.agrees(&b));
        b.add_real(1, 1e-6);
        assert!(!a.agrees(&b));
    }
}
