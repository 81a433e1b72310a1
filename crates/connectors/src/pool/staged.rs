//! Tables that grow with the checkpoints of their job: each row once, whatever fails.
//!
//! ```text
//! worker   rows ─▶ staged, as a part of the checkpoint      leader   ─▶ recorded ─▶ one version
//! ```
//!
//! A load that is given up with its client leaves nothing in a pool. So the rows of a round lie in
//! the checkpoint itself, and the leader loads them when that is recorded. The record has the
//! version and the rows of the table before: a run that goes on and finds the next version there,
//! with just the rows that it would load, knows that they were.

use std::sync::Arc;
use std::task::{Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use arrow::ipc::CompressionType;
use arrow::ipc::reader::StreamReader;
use arrow::ipc::writer::{IpcWriteOptions, StreamWriter};
use arrow::record_batch::RecordBatch;
use dataflow::error::ConnectorError;
use dataflow::sink::{Publishing, Room, SinkWriter, StagedOutput, WriterContext};
use pool::PoolError;
use pool::access::Loading;

use super::columns::StoredColumns;
use super::errors::{damaged, refused};
use super::sink::{PoolSink, stored};

/// The first bytes of staged rows: their encoding.
const MAGIC: &[u8; 4] = b"MSP1";
/// Bytes that a worker stages for a checkpoint at most, packed.
const STAGED_BYTES_MAX: usize = 256 << 20;
/// How long a run that goes on waits at most until nobody else loads the table: for longer than the
/// lease of a client that has ended lasts.
const BEGUN_WITHIN: Duration = Duration::from_secs(15);
/// How long the leader sleeps at most before it asks again whether the pool has room.
pub(super) const ASKED_AGAIN: Duration = Duration::from_millis(20);

/// Rows of a checkpoint.
pub(super) struct StagedRows {
    rows: u64,
    batches: Vec<RecordBatch>,
}

impl StagedRows {
    /// The rows that a [`StagingWriter`] has staged.
    ///
    /// # Errors
    /// When nobody has staged these bytes.
    pub(super) fn of(table: &str, staged: &[u8]) -> Result<Self, ConnectorError> {
        let Some(bytes) = staged.strip_prefix(MAGIC) else {
            return Err(damaged(table, "the checkpoint has other rows for it"));
        };
        if bytes.is_empty() {
            return Ok(Self { rows: 0, batches: vec![] });
        }
        let batches = StreamReader::try_new(bytes, None).and_then(Iterator::collect);
        let batches: Vec<RecordBatch> =
            batches.map_err(|error| damaged(table, format!("the checkpoint's rows: {error}")))?;
        let rows = batches.iter().map(|batch| batch.num_rows() as u64).sum();
        Ok(Self { rows, batches })
    }
}

/// Keeps the rows of a worker until they are part of a checkpoint.
pub(super) struct StagingWriter {
    table: String,
    columns: StoredColumns,
    /// From the first row of a round on.
    open: Option<StreamWriter<Vec<u8>>>,
}

impl StagingWriter {
    pub(super) fn new(table: String, columns: StoredColumns) -> Self {
        Self { table, columns, open: None }
    }

    fn begin(&self) -> Result<StreamWriter<Vec<u8>>, arrow::error::ArrowError> {
        let packed = Some(CompressionType::LZ4_FRAME);
        let options = IpcWriteOptions::default().try_with_compression(packed)?;
        StreamWriter::try_new_with_options(MAGIC.to_vec(), &self.columns.schema, options)
    }
}

impl SinkWriter for StagingWriter {
    fn write(&mut self, batch: &RecordBatch) -> Result<(), ConnectorError> {
        let batch = stored(batch, &self.columns.schema, &self.table)?;
        let open = match self.open.take() {
            Some(open) => Ok(open),
            None => self.begin(),
        };
        let written = open.and_then(|mut open| {
            open.write(&batch)?;
            Ok(open)
        });
        let open = written.map_err(|error| damaged(&self.table, error.to_string()))?;
        if open.get_ref().len() > STAGED_BYTES_MAX {
            return Err(ConnectorError::Io {
                place: format!("pool table '{}'", self.table),
                message: format!(
                    "a worker has more than {STAGED_BYTES_MAX} bytes of rows since the last \
                     checkpoint"
                ),
                hint: Some("take them more often: SET 'millstream.checkpoint' = '1 s'".into()),
            });
        }
        self.open = Some(open);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), ConnectorError> {
        Ok(())
    }

    fn stage(&mut self, _: u64, _: bool) -> Result<StagedOutput, ConnectorError> {
        let Some(open) = self.open.take() else { return Ok(MAGIC.to_vec().into()) };
        let staged = open.into_inner();
        Ok(staged.map_err(|error| damaged(&self.table, error.to_string()))?.into())
    }

    /// A writer that stages is dropped in place of a commit.
    fn commit(self: Box<Self>) -> Result<(), ConnectorError> {
        Err(damaged(&self.table, "rows that are kept for checkpoints are published by their job"))
    }
}

/// Wakes the thread that publishes.
pub(super) struct Unparks(pub(super) Thread);

impl Wake for Unparks {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl PoolSink {
    /// The newest version of the table, and its rows; zeros where there is no table.
    pub(super) fn version_and_rows(&self) -> Result<[u64; 2], ConnectorError> {
        let tables = self.access().tables().map_err(refused)?;
        let own = tables.iter().find(|table| table.name == self.load().table);
        Ok(own.map_or([0; 2], |table| [table.version, table.rows]))
    }

    /// Lets a version appear that has these rows beside those of the one before, if they are not
    /// there already.
    pub(super) fn publish_rows(
        &self,
        staged: Vec<StagedRows>,
        how: Publishing,
    ) -> Result<(), ConnectorError> {
        let rows: u64 = staged.iter().map(|staged| staged.rows).sum();
        if rows == 0 {
            return Ok(());
        }
        // Nobody else writes the table from here on, so that it stays as it is found now.
        let loading = self.begun_alone(how.again)?;
        if let Some(before) = how.mark.or(how.again.then_some([0; 2])) {
            let now = self.version_and_rows()?;
            // The first version of a table has the number 1 only if none of its name went before.
            let is_next = now[0] == before[0].saturating_add(1) || before[0] == 0;
            if is_next && now[1] == before[1].saturating_add(rows) {
                return Ok(());
            }
            if now != before {
                return Err(self.changed(before, now));
            }
        }
        let waker = Waker::from(Arc::new(Unparks(thread::current())));
        let context = WriterContext { worker: 0, waker, staging: None };
        let mut writer = self.writer(&loading, &context, None)?;
        for batch in staged.iter().flat_map(|staged| &staged.batches) {
            while writer.room() == Room::Full {
                thread::park_timeout(ASKED_AGAIN);
            }
            writer.write(batch)?;
        }
        while writer.drain()? == Room::Full {
            thread::park_timeout(ASKED_AGAIN);
        }
        Box::new(writer).commit()
    }

    /// Begins the load of a table that nobody else loads.
    fn begun_alone(&self, again: bool) -> Result<Arc<dyn Loading>, ConnectorError> {
        self.begun(|load| patiently(again, || self.access().begin_alone(load, 1)))
    }

    /// The error that nobody knows whether the rows of a checkpoint are in the table.
    pub(super) fn changed(&self, before: [u64; 2], now: [u64; 2]) -> ConnectorError {
        let ([was, had], [is, has]) = (before, now);
        ConnectorError::Io {
            place: format!("pool table '{}'", self.load().table),
            message: format!(
                "the job has left it with version {was} and {had} rows, and it has version {is} \
                 and {has} rows: somebody else has written it since"
            ),
            hint: Some(
                "load no table of a job with checkpoints, or begin anew: --from none".into(),
            ),
        }
    }
}

/// Begins a load; if it is `patient`, it waits while another one is under way. The pool may take a
/// while until it has noticed that a run before has ended, or has saved its last version.
pub(super) fn patiently<T>(
    patient: bool,
    mut begin: impl FnMut() -> Result<T, PoolError>,
) -> Result<T, PoolError> {
    let since = Instant::now();
    loop {
        match begin() {
            Err(PoolError::Refused { .. }) if patient && since.elapsed() < BEGUN_WITHIN => {
                thread::sleep(ASKED_AGAIN);
            }
            begun => return begun,
        }
    }
}
