//! The files to which DataFusion's operators spill, on the disk of a worker.

use std::io::{self, Write};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use bytes::Bytes;
use datafusion::error::{DataFusionError, Result as DfResult};
use datafusion::execution::{SpillFile, SpillWriter, TempFileFactory};
use futures::{Stream, stream};
use state::{Disk, DiskFile, Spilled};

/// Bytes that are written and read at once.
const CHUNK_BYTES: usize = 256 << 10;

/// Makes files on a disk.
pub(super) struct OnDisk {
    disk: Arc<dyn Disk>,
    spilled: Arc<Mutex<Spilled>>,
}

impl OnDisk {
    /// Files on `disk`; `spilled` counts the bytes written and read.
    pub(super) fn new(disk: Arc<dyn Disk>, spilled: Arc<Mutex<Spilled>>) -> Self {
        Self { disk, spilled }
    }
}

impl TempFileFactory for OnDisk {
    fn create_temp_file(&self, _: &str) -> DfResult<Arc<dyn SpillFile>> {
        let file = self.disk.create().map_err(DataFusionError::from)?;
        count(&self.spilled, |spilled| spilled.runs += 1);
        let written = Arc::new(RwLock::new(Written { file, bytes: 0 }));
        Ok(Arc::new(OneFile { written, spilled: self.spilled.clone() }))
    }
}

fn count(spilled: &Mutex<Spilled>, with: impl FnOnce(&mut Spilled)) {
    with(&mut spilled.lock().unwrap_or_else(PoisonError::into_inner));
}

/// A file, and its length in bytes.
struct Written {
    file: Box<dyn DiskFile>,
    bytes: u64,
}

struct OneFile {
    written: Arc<RwLock<Written>>,
    spilled: Arc<Mutex<Spilled>>,
}

/// The error of a file, with its name.
fn named(written: &Written, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", written.file.name()))
}

/// The bytes of a file from a position on, and the position behind them.
fn chunk(
    written: &RwLock<Written>,
    spilled: &Mutex<Spilled>,
    from: u64,
) -> DfResult<Option<(Bytes, u64)>> {
    let written = written.read().unwrap_or_else(PoisonError::into_inner);
    let mut bytes = vec![0; (written.bytes.saturating_sub(from) as usize).min(CHUNK_BYTES)];
    if bytes.is_empty() {
        return Ok(None);
    }
    written.file.read(from, &mut bytes).map_err(|error| named(&written, error))?;
    let until = from + bytes.len() as u64;
    count(spilled, |spilled| spilled.read_bytes += until - from);
    Ok(Some((Bytes::from(bytes), until)))
}

impl SpillFile for OneFile {
    fn size(&self) -> Option<u64> {
        Some(self.written.read().unwrap_or_else(PoisonError::into_inner).bytes)
    }

    fn read_stream(&self) -> DfResult<Pin<Box<dyn Stream<Item = DfResult<Bytes>> + Send>>> {
        let (written, spilled) = (self.written.clone(), self.spilled.clone());
        let next = move |from| std::future::ready(chunk(&written, &spilled, from));
        Ok(Box::pin(stream::try_unfold(0, next)))
    }

    fn open_writer(&self) -> DfResult<Box<dyn SpillWriter>> {
        let (written, spilled) = (self.written.clone(), self.spilled.clone());
        Ok(Box::new(Writer { written, spilled, waiting: Vec::with_capacity(CHUNK_BYTES) }))
    }
}

/// Writes many bytes at a time.
struct Writer {
    written: Arc<RwLock<Written>>,
    spilled: Arc<Mutex<Spilled>>,
    waiting: Vec<u8>,
}

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.waiting.extend_from_slice(bytes);
        if self.waiting.len() >= CHUNK_BYTES {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let mut written = self.written.write().unwrap_or_else(PoisonError::into_inner);
        let appended = written.file.append(&self.waiting);
        appended.map_err(|error| named(&written, error))?;
        written.bytes += self.waiting.len() as u64;
        count(&self.spilled, |spilled| spilled.bytes += self.waiting.len() as u64);
        self.waiting.clear();
        Ok(())
    }
}

impl SpillWriter for Writer {
    fn finish(&mut self) -> DfResult<()> {
        self.flush()?;
        let mut written = self.written.write().unwrap_or_else(PoisonError::into_inner);
        let finished = written.file.finish();
        finished.map_err(|error| named(&written, error).into())
    }
}
