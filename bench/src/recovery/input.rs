//! The connector `generator` for jobs that keep checkpoints: its rows are made once and kept from
//! run to run, its readers go on at positions, and the gaps between their reads are recorded.
//!
//! ```text
//! next() ── rows ─▶ the worker computes ─▶ next() ── rows ─▶ position()  …  ─▶ next()
//!         ◀────── a usual gap ───────▶           ◀─── a gap with a mark ───▶
//! ```
//!
//! A worker asks a reader for its position only when it marks a round: so the work of a checkpoint
//! lies in the gap in which that happens, and in the next ones.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use arrow::record_batch::RecordBatch;
use dataflow::error::ConnectorError;
use dataflow::source::{Next, Position, ReaderContext, Split, SplitReader};
use fabric::Clock;
use fabric::clock::process_ns;

use crate::laps::{Lap, LapConnector, LapInput, locked};

/// Rows of a batch that is kept.
const BATCH_ROWS: usize = 1 << 20;
/// Gaps behind a mark that may have work of the checkpoint: rows of the first reads change state
/// that is shared with it.
const GAPS_OF_MARK: u32 = 4;
/// The most gaps of a reader that are kept for their median.
const USUAL_MAX: usize = 1 << 20;

/// The name of positions, which are a lap and a row in it.
const FORMAT: &str = "kept generator";
const VERSION: u32 = 1;

/// A mark that a reader has seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeenMark {
    /// The time at which the position was asked for.
    pub at: Instant,
    /// The longest gap between two reads that may have work of the checkpoint.
    pub gap: Gap,
}

/// The time between two reads of a worker, or the longest of several.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Gap {
    /// The time by the clock.
    pub passed: Duration,
    /// Processor time of the worker's thread, which other load of the machine does not lengthen.
    pub worked: Duration,
}

impl Gap {
    fn or_longer(self, other: Self) -> Self {
        let passed = self.passed.max(other.passed);
        Self { passed, worked: self.worked.max(other.worked) }
    }
}

/// The observations of a run.
#[derive(Debug, Default)]
pub struct Observed {
    /// The time of the first read, and the processor time of this process until then, in
    /// nanoseconds.
    pub first_read: Option<(Instant, u64)>,
    /// The marks of all readers, in no order.
    pub marks: Vec<SeenMark>,
    /// Gaps without a mark near them.
    pub usual: Vec<Gap>,
}

/// The connector. Clones share the rows and what was observed.
pub type KeptInput = LapConnector<ReadGaps>;

/// The gaps between the reads of all readers.
#[derive(Debug, Default)]
pub struct ReadGaps(Mutex<Observed>);

impl KeptInput {
    /// Takes what was observed since the last call.
    pub fn take(&self) -> Observed {
        std::mem::take(&mut locked(&self.input.0))
    }

    /// The time since the first read; `None` if nothing was read since [`take`](Self::take).
    pub fn reads_since(&self) -> Option<Duration> {
        locked(&self.input.0).first_read.map(|(at, _)| at.elapsed())
    }
}

impl LapInput for ReadGaps {
    const BATCH_ROWS: usize = BATCH_ROWS;
    const TELLS_BOUNDS: bool = true;

    fn open(
        self: &Arc<Self>,
        lap: Lap,
        split: &Split,
        from: Option<&Position>,
        context: &ReaderContext,
    ) -> Result<Box<dyn SplitReader>, ConnectorError> {
        // Whole batches are dealt out, so that nothing is copied.
        let own = lap.batches.iter().skip(split.number).step_by(lap.splits);
        let own: Vec<RecordBatch> = own.cloned().collect();
        let [at_lap, row] = match from {
            Some(from) => from.numbers(FORMAT, VERSION, &split.name)?,
            None => [0, 0],
        };
        let rows = Lap::rows(&own);
        Ok(Box::new(KeptReader {
            split: split.name.clone(),
            own,
            rows,
            laps: if rows == 0 { 0 } else { lap.laps },
            lap,
            at: (at_lap, row),
            gaps: Gaps::new(Arc::clone(self), Arc::clone(&context.clock)),
        }))
    }
}

struct KeptReader {
    split: String,
    lap: Lap,
    /// The batches of this reader.
    own: Vec<RecordBatch>,
    /// Their rows.
    rows: u64,
    laps: u64,
    /// Lap, and row in it, of the next batch.
    at: (u64, u64),
    gaps: Gaps,
}

impl SplitReader for KeptReader {
    fn next(&mut self, rows_max: usize) -> Result<Next, ConnectorError> {
        self.gaps.begin_read();
        if self.at.1 >= self.rows {
            self.at = (self.at.0 + 1, 0);
        }
        let (lap, row) = self.at;
        if lap >= self.laps {
            return Ok(Next::End);
        }
        let (batch, within) = (row as usize / BATCH_ROWS, row as usize % BATCH_ROWS);
        let batch = &self.own[batch];
        let rows = rows_max.min(batch.num_rows() - within);
        self.at.1 += rows as u64;
        let batch = self.lap.moved(batch.slice(within, rows), lap)?;
        self.gaps.end_read();
        Ok(Next::Batch(batch))
    }

    fn position(&self) -> Position {
        self.gaps.mark();
        Position::new(FORMAT, VERSION, &self.split, &[self.at.0, self.at.1])
    }
}

/// The gaps between the reads of a reader.
struct Gaps {
    shared: Arc<ReadGaps>,
    clock: Arc<dyn Clock>,
    /// A lock, since a position is asked for by a shared reference. Only the reader takes it.
    state: Mutex<GapState>,
}

#[derive(Default)]
struct GapState {
    /// The end of the last read, by the clock and by the processor time of the thread.
    read: Option<(Instant, u64)>,
    /// The mark whose work may lie in the gap, and the number of gaps that may still have some.
    mark: Option<(SeenMark, u32)>,
    marks: Vec<SeenMark>,
    usual: Vec<Gap>,
}

impl Gaps {
    fn new(shared: Arc<ReadGaps>, clock: Arc<dyn Clock>) -> Self {
        Self { shared, clock, state: Mutex::default() }
    }

    fn begin_read(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let Some((read, worked_ns)) = state.read.take() else {
            let mut observed = locked(&self.shared.0);
            observed.first_read.get_or_insert_with(|| (Instant::now(), process_ns()));
            return;
        };
        let worked_ns = self.clock.worked_ns().saturating_sub(worked_ns);
        let gap = Gap { passed: read.elapsed(), worked: Duration::from_nanos(worked_ns) };
        match &mut state.mark {
            Some((mark, left)) => {
                mark.gap = mark.gap.or_longer(gap);
                *left -= 1;
                if *left == 0 {
                    state.marks.extend(state.mark.take().map(|(mark, _)| mark));
                }
            }
            None if state.usual.len() < USUAL_MAX => state.usual.push(gap),
            None => {}
        }
    }

    fn end_read(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        state.read = Some((Instant::now(), self.clock.worked_ns()));
    }

    fn mark(&self) {
        let mut state = locked(&self.state);
        let mark = SeenMark { at: Instant::now(), gap: Gap::default() };
        let before = state.mark.replace((mark, GAPS_OF_MARK));
        state.marks.extend(before.map(|(mark, _)| mark));
    }
}

impl Drop for Gaps {
    /// A mark without reads behind it is that of the end of the input, and none of a checkpoint.
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let mut observed = locked(&self.shared.0);
        observed.marks.append(&mut state.marks);
        let open = state.mark.take().filter(|(_, left)| *left < GAPS_OF_MARK);
        observed.marks.extend(open.map(|(mark, _)| mark));
        observed.usual.append(&mut state.usual);
    }
}

#[cfg(test)]
mod tests {
    use dataflow::source::Source;

    use super::*;
    use crate::laps::testing::{open, rest, source};

    const ROWS: u64 = 2500;

    /// A reader of all rows.
    fn reader(source: &dyn Source, from: Option<&Position>) -> Box<dyn SplitReader> {
        open(source, &source.splits(1, None).unwrap()[0], from)
    }

    #[test]
    fn a_reader_goes_on_behind_the_rows_that_it_has_given() {
        let input = KeptInput::default();
        let source = source(&input, ROWS, 3);
        let all = rest(&mut *reader(&*source, None), 1000);
        assert_eq!(all.len() as u64, 3 * ROWS);
        let later = all[..ROWS as usize].iter().map(|(key, at)| (*key, at + ROWS as i64));
        assert_eq!(all[ROWS as usize..2 * ROWS as usize], later.collect::<Vec<_>>());
        for reads in 0..9 {
            let mut reader = reader(&*source, None);
            let mut given = 0;
            for _ in 0..reads {
                let Next::Batch(batch) = reader.next(1000).unwrap() else { panic!("an end") };
                given += batch.num_rows();
            }
            let mut again = self::reader(&*source, Some(&reader.position()));
            assert_eq!(rest(&mut *again, 777), all[given..], "behind {reads} reads");
        }
    }

    #[test]
    fn the_reads_behind_a_mark_are_told_from_the_usual_ones() {
        let input = KeptInput::default();
        let source = source(&input, ROWS, 1000);
        let mut reader = reader(&*source, None);
        let read = |reader: &mut dyn SplitReader, times| {
            (0..times).for_each(|_| drop(reader.next(1000).unwrap()));
        };
        read(&mut *reader, 10);
        reader.position();
        let pause = Duration::from_millis(20);
        std::thread::sleep(pause);
        read(&mut *reader, 10);
        // The end of the input asks for a position, too.
        reader.position();
        drop(reader);
        let observed = input.take();
        let [mark] = observed.marks[..] else { panic!("{observed:?}") };
        assert!(mark.gap.passed >= pause, "{mark:?}");
        assert!(mark.gap.worked < mark.gap.passed, "nothing was computed: {mark:?}");
        assert_eq!(observed.usual.len() as u32, 9 + 10 - GAPS_OF_MARK);
        assert!(observed.first_read.is_some() && input.reads_since().is_none());
    }
}
