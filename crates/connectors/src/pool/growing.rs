//! Tables that grow while they are written: when it is time, a worker hands in its rows, and goes
//! on by another writer of the same load.
//!
//! ```text
//!   it is time ─▶ rows that wait ─▶ short strips ─▶ sealed ─▶ handed in ─▶ …
//!                      └─ stay, and more come ─▶ one strip in place of the short one
//! ```
//!
//! Of each partition a worker has at most one short strip in the newest version, unless it has to
//! write some early ('load.bytes'): the table has as many strips as its rows need, however many
//! versions have appeared.

use std::sync::Arc;

use arrow::record_batch::RecordBatch;
use dataflow::error::ConnectorError;
use dataflow::sink::WriterContext;

use super::commit_clock::CommitClock;
use super::errors::refused;
use super::sink::PoolWriter;

/// How a worker writes a table that grows.
pub(super) struct Growth {
    clock: Arc<CommitClock>,
    context: WriterContext,
    /// The time when it has last begun to hand in.
    times: u64,
    stage: Stage,
    /// The short strips that it hands in: their positions among those that it has written, and
    /// their partitions.
    short: Vec<(usize, u32)>,
    /// Rows that came while it handed in.
    late: Vec<RecordBatch>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// It takes rows.
    Open,
    /// It waits until all that it has written is sealed.
    HandingIn,
    /// No row follows.
    Ended,
}

impl Growth {
    pub(super) fn new(clock: &Arc<CommitClock>, context: &WriterContext) -> Self {
        clock.wakes(context.waker.clone());
        Self {
            clock: Arc::clone(clock),
            context: context.clone(),
            times: clock.times(),
            stage: Stage::Open,
            short: vec![],
            late: vec![],
        }
    }

    /// Keeps rows that come while the worker hands in; gives them back if it does not.
    pub(super) fn keep(&mut self, batch: RecordBatch) -> Option<RecordBatch> {
        self.clock.written(batch.get_array_memory_size() as u64);
        if self.stage == Stage::HandingIn {
            self.late.push(batch);
            return None;
        }
        Some(batch)
    }

    pub(super) fn is_handing_in(&self) -> bool {
        self.stage == Stage::HandingIn
    }

    pub(super) fn end(&mut self) {
        self.stage = Stage::Ended;
    }
}

impl PoolWriter {
    /// Begins to hand in when it is time, and goes on with it as far as it goes without waiting.
    ///
    /// # Errors
    /// When the load has failed.
    pub(super) fn grow(&mut self) -> Result<(), ConnectorError> {
        let Some(growth) = &mut self.growth else { return Ok(()) };
        let times = growth.clock.times();
        if growth.stage == Stage::Open && times != growth.times {
            (growth.times, growth.stage) = (times, Stage::HandingIn);
            self.write_short_strips()?;
        }
        self.hand_on();
        // Lists name what stays.
        self.writer.replace(std::mem::take(&mut self.replaced));
        if self.growth.as_ref().is_some_and(Growth::is_handing_in)
            && self.failed.is_none()
            && self.strips.is_empty()
            && self.writer.is_sealed().map_err(refused)?
        {
            self.hand_in()?;
        }
        Ok(())
    }

    /// Writes the rows that wait and are new as short strips; they wait on.
    fn write_short_strips(&mut self) -> Result<(), ConnectorError> {
        let mut short = vec![];
        let partitions: Vec<u32> = self.waiting.keys().copied().collect();
        for partition in partitions {
            let schema = &self.columns.schema;
            let Some(waiting) = self.waiting.get_mut(&partition) else { continue };
            let Some(rows) = waiting.new_rows(schema, &self.table)? else { continue };
            self.replaced.extend(waiting.short.take().map(|strip| (partition, strip)));
            short.push((self.written, partition));
            self.write_strip(partition, &rows);
        }
        if let Some(growth) = &mut self.growth {
            growth.short = short;
        }
        Ok(())
    }

    /// Hands in what was written, which is sealed, and opens another writer.
    fn hand_in(&mut self) -> Result<(), ConnectorError> {
        let Some(growth) = &mut self.growth else { return Ok(()) };
        let WriterContext { worker, waker, .. } = growth.context.clone();
        let next = self.loading.writer(worker, waker).map_err(refused)?;
        let writer = std::mem::replace(&mut self.writer, next);
        let placed = writer.hand_in().map_err(refused)?;
        for (at, partition) in growth.short.drain(..) {
            let strip = placed.get(at).map(|(_, strip)| strip.clone());
            if let Some(waiting) = self.waiting.get_mut(&partition) {
                waiting.short = strip;
            }
        }
        growth.stage = Stage::Open;
        self.written = 0;
        std::mem::take(&mut growth.late).into_iter().try_for_each(|batch| self.divide(batch))
    }
}
