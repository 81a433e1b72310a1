//! The connector `generator` for runs by the clock: rows are made once, kept from run to run, and
//! emitted at a rate.
//!
//! ```text
//! rows      0 … s−1   s … 2s−1   2s … 3s−1   …      s rows make a stripe
//! flows     0         1          0           …      (two flows)
//! due at    start + last row of the stripe / rate, by the clock of the machine
//! ```
//!
//! Stripes are short, so that no flow is behind the others by more than [`STRIPE`]: what waits for
//! the watermark of all flows waits no longer for that. A row is never emitted before it is due.
//! A job that cannot keep up gets stripe after stripe without a pause.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dataflow::error::ConnectorError;
use dataflow::source::{Next, Position, ReaderContext, Split, SplitReader};
use fabric::Clock;

use crate::laps::{Lap, LapConnector, LapInput, locked};

/// Rows that come within so long a time make a stripe.
pub const STRIPE: Duration = Duration::from_micros(10);

/// Rows of a batch that is kept.
const BATCH_ROWS: usize = 8192;

/// When rows are due.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Schedule {
    /// When the first row is, in nanoseconds since 1970.
    pub start_ns: u64,
    /// Rows a second of all flows; infinite for all at once.
    pub rate: f64,
}

impl Schedule {
    /// When the row of this number is due, in nanoseconds since 1970.
    pub fn due_ns(&self, row: u64) -> u64 {
        self.start_ns.saturating_add((row as f64 / self.rate * 1e9) as u64)
    }

    /// Rows of a stripe: a power of two.
    fn stripe(&self) -> usize {
        let rows = (self.rate * STRIPE.as_secs_f64()).clamp(1.0, BATCH_ROWS as f64) as usize;
        1 << rows.ilog2()
    }
}

/// Nanoseconds since 1970.
pub fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64
}

/// The connector. Clones share the rows and the schedule.
pub type Paced = LapConnector<ArrivalRate>;

/// The schedule of the rows of a run.
#[derive(Debug, Default)]
pub struct ArrivalRate(Mutex<Option<Schedule>>);

impl Paced {
    /// Sets the schedule of the next run.
    pub fn set(&self, schedule: Schedule) {
        *locked(&self.input.0) = Some(schedule);
    }
}

impl LapInput for ArrivalRate {
    const BATCH_ROWS: usize = BATCH_ROWS;
    const TELLS_BOUNDS: bool = false;

    fn open(
        self: &Arc<Self>,
        lap: Lap,
        split: &Split,
        _: Option<&Position>,
        context: &ReaderContext,
    ) -> Result<Box<dyn SplitReader>, ConnectorError> {
        let rows = Lap::rows(&lap.batches);
        let schedule = *locked(&self.0);
        let schedule = schedule.unwrap_or(Schedule { start_ns: 0, rate: f64::INFINITY });
        let stripes_of_lap = rows.div_ceil(schedule.stripe() as u64);
        Ok(Box::new(PacedFlow {
            rows,
            stripe: schedule.stripe(),
            stripes_of_lap,
            stripes: stripes_of_lap * lap.laps,
            schedule,
            next: split.number as u64,
            flows: lap.splits as u64,
            lap,
            clock: Arc::clone(&context.clock),
        }))
    }
}

struct PacedFlow {
    lap: Lap,
    /// Rows of a lap.
    rows: u64,
    stripe: usize,
    stripes_of_lap: u64,
    stripes: u64,
    schedule: Schedule,
    /// The next stripe.
    next: u64,
    flows: u64,
    clock: Arc<dyn Clock>,
}

impl SplitReader for PacedFlow {
    fn next(&mut self, _: usize) -> Result<Next, ConnectorError> {
        if self.next >= self.stripes {
            return Ok(Next::End);
        }
        let (lap, stripe) = (self.next / self.stripes_of_lap, self.next % self.stripes_of_lap);
        let first = stripe * self.stripe as u64;
        let rows = (self.stripe as u64).min(self.rows - first);
        let due_ns = self.schedule.due_ns(lap * self.rows + first + rows - 1);
        let early_ns = due_ns.saturating_sub(now_ns());
        if early_ns > 0 {
            return Ok(Next::Wait { until_ns: self.clock.now_ns().saturating_add(early_ns) });
        }
        self.next += self.flows;
        let batch = &self.lap.batches[first as usize / BATCH_ROWS];
        let batch = batch.slice(first as usize % BATCH_ROWS, rows as usize);
        Ok(Next::Batch(self.lap.moved(batch, lap)?))
    }

    fn position(&self) -> Position {
        Position::none("t")
    }
}

#[cfg(test)]
mod tests {
    use dataflow::connector::Connector;

    use super::*;
    use crate::laps::lap_ms;
    use crate::laps::testing::{open, rest, source, table};

    /// Keys and times of all rows, of each flow by itself.
    fn rows(flows: u32, laps: u64, rate: f64) -> Vec<Vec<(i64, i64)>> {
        let paced = Paced::default();
        paced.set(Schedule { start_ns: 0, rate });
        let source = source(&paced, 10_000, laps);
        let mut splits = source.splits(flows, None).unwrap();
        assert_eq!(splits.len(), flows as usize);
        // As the reader does, which asks for them.
        splits.iter_mut().enumerate().for_each(|(number, split)| split.number = number);
        splits.iter().map(|split| rest(&mut *open(&*source, split, None), 1 << 20)).collect()
    }

    #[test]
    fn flows_share_the_rows_of_the_stream_in_stripes() {
        let one = rows(1, 1, f64::INFINITY).remove(0);
        assert_eq!(one.len(), 10_000);
        // 12.8 million rows a second: 128 in a stripe.
        let three = rows(3, 1, 12.8e6);
        let mut together = vec![];
        for stripe in 0..10_000usize.div_ceil(128) {
            let from = stripe / 3 * 128;
            let flow = &three[stripe % 3];
            together.extend_from_slice(&flow[from..flow.len().min(from + 128)]);
        }
        assert_eq!(together, one);
    }

    #[test]
    fn a_second_lap_is_later_and_else_the_same() {
        let (one, two) = (rows(1, 1, 1e9).remove(0), rows(1, 2, 1e9).remove(0));
        assert_eq!(two[..10_000], one);
        let later = one.iter().map(|(key, time)| (*key, time + lap_ms(10_000, 1_000_000)));
        assert_eq!(two[10_000..], later.collect::<Vec<_>>());
    }

    #[test]
    fn a_row_is_not_given_out_before_it_is_due() {
        let schedule = Schedule { start_ns: 5_000, rate: 2e9 };
        assert_eq!((schedule.due_ns(0), schedule.due_ns(100)), (5_000, 5_050));
        let paced = Paced::default();
        paced.set(Schedule { start_ns: now_ns() + 3_600_000_000_000, rate: 1.0 });
        let next = |options: [(&str, &str); 3]| {
            let source = paced.source(&table(&options), &[0]).unwrap();
            open(&*source, &Split::default(), None).next(100).unwrap()
        };
        let stream = next([("kind", "ro"), ("rows", "10"), ("interval", "1000ns")]);
        assert!(matches!(stream, Next::Wait { .. }));
        let no_stream = next([("kind", "ysb"), ("table", "ad"), ("rows", "10")]);
        assert!(matches!(no_stream, Next::Batch(batch) if batch.num_rows() == 10));
    }
}
