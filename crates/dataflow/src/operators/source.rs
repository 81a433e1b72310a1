//! Reads a source on one worker and pushes its rows.
//!
//! Who waits for the end of a window does not wait for the rows behind it: a batch that reaches
//! there is cut, once, and the watermark in front of its second part goes ahead of that.

use std::rc::Rc;
use std::sync::Arc;

use arrow::record_batch::RecordBatch;

use crate::error::DataflowError;
use crate::job::Fusion;
use crate::operators::downstream::Downstream;
use crate::runtime::pace::Pace;
use crate::runtime::place::{STOP_SEEN_WITHIN_NS, Signals};
use crate::runtime::reader::{Read, Reader};
use crate::runtime::scheduler::{Timers, yield_now};

/// Reads all flows and pushes their rows, until they end or a stop is asked for; in step with the
/// sources that they meet, if there are some. Rows of a fused scan are folded as they were read, as
/// far as the data allows it.
///
/// # Errors
/// When the source or what is behind it fails.
pub(crate) async fn feed(
    mut reader: Reader,
    behind: impl Downstream,
    fusion: Option<Fusion>,
    pace: Option<Pace>,
    timers: Rc<Timers>,
    signals: Arc<Signals>,
) -> Result<(), DataflowError> {
    let mut idle = false;
    loop {
        if let Some(pace) = &pace {
            pace.turn().await;
        }
        if signals.is_stopped() {
            drop(pace);
            return behind.end(reader.watermark()).await;
        }
        match reader.next()? {
            Read::Batch(flow, batch) => {
                if std::mem::take(&mut idle) {
                    reader.catch_up(behind.resume().await?);
                }
                let awaited = |watermark| behind.ends_window(watermark);
                let mut rest = batch;
                if let Some(rows) = reader.rows_before(flow, &rest, awaited) {
                    let first = rest.slice(0, rows);
                    rest = rest.slice(rows, rest.num_rows() - rows);
                    take(&mut reader, (flow, first), &behind, fusion, pace.as_ref()).await?;
                }
                take(&mut reader, (flow, rest), &behind, fusion, pace.as_ref()).await?;
                yield_now().await;
            }
            Read::Wait(until_ns) => {
                let was_idle = std::mem::replace(&mut idle, reader.is_idle());
                if was_idle && !idle {
                    // Rows are known to come, and hold the watermark back from now on.
                    reader.catch_up(behind.resume().await?);
                }
                if let Some(pace) = &pace {
                    pace.reached(None);
                }
                behind.advance(reader.watermark(), idle).await?;
                // A stop must not wait for a source that has long nothing to say.
                let soon = timers.now_ns().saturating_add(STOP_SEEN_WITHIN_NS);
                timers.sleep_until(until_ns.min(soon)).await;
            }
            Read::End => {
                drop(pace);
                return behind.end(i64::MAX).await;
            }
        }
    }
}

/// Takes rows of a flow to where they belong.
async fn take(
    reader: &mut Reader,
    (flow, batch): (usize, RecordBatch),
    behind: &impl Downstream,
    fusion: Option<Fusion>,
    pace: Option<&Pace>,
) -> Result<(), DataflowError> {
    behind.count_read(batch.num_rows());
    reader.on_the_way(flow, batch.num_rows());
    let awaited = |watermark| behind.ends_window(watermark);
    if let Some(watermark) = reader.watermark_before(flow, &batch, awaited) {
        behind.advance(watermark, false).await?;
        yield_now().await;
    }
    let fused = fusion.and_then(|fusion| Some((fusion, reader.fusible(flow, &batch)?)));
    let rest = match fused {
        Some((fusion, rows)) => {
            let folded = behind.fold(rows, &fusion).await;
            let rows =
                folded.map_err(|error| error.of_record(|row| reader.reading().place(row)))?;
            reader.consumed(flow, batch, rows)
        }
        None => Some(batch),
    };
    let count = rest.as_ref().map_or(0, RecordBatch::num_rows);
    reader.on_the_way(flow, count);
    let rows = match rest {
        Some(batch) => reader.take(flow, batch)?,
        None => None,
    };
    if let Some(pace) = pace {
        pace.reached(Some(reader.reached_ms(flow)));
    }
    if let Some(rows) = rows {
        // Rows without event time were left out, and the others moved up.
        let whole = rows.batch.num_rows() == count;
        behind.push(rows).await.map_err(|error| {
            error.of_record(|row| reader.reading().place(row.filter(|_| whole)))
        })?;
    }
    reader.at_rest();
    behind.advance(reader.watermark(), false).await
}
