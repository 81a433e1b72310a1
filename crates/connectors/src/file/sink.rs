//! Rows into a file. One worker writes: a file has one end.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::record_batch::RecordBatch;
use dataflow::connector::{Options, TableDef};
use dataflow::error::ConnectorError;
use dataflow::sink::{
    ExclusiveTarget, Placement, Publishing, Room, RunId, Sink, SinkVisibility, SinkWriter,
    WriterContext,
};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

use super::PATH_HINT;
use super::atomic::{AtomicFile, is_replaced};
use super::encoder::{Encoder, Output};
use super::object_spool::{ObjectSpool, ObjectSpoolPlace};
use super::paths::{io_error, one_name};
use super::spool::{Spool, SpoolPlace};
use super::staged;
use crate::object::{self, Upload};
use crate::options::OptionReader;
use crate::queued::QueuedWriter;

/// A device or a pipe, whose reader may be slow: a thread writes what is queued for it.
struct Pipe(Arc<QueuedWriter>);

impl Write for Pipe {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let sent = self.0.send(bytes.to_vec());
        sent.map(|()| bytes.len()).map_err(std::io::Error::other)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Output for Pipe {
    /// Bytes written to a pipe cannot be taken back: nothing is left to do.
    fn commit(self: Box<Self>) -> Result<(), ConnectorError> {
        Ok(())
    }
}

/// A file to be written.
pub(super) struct FileSink {
    path: PathBuf,
    /// Those of the table: of a store, where the path is a URL.
    options: Options,
    encoder: Encoder,
}

impl FileSink {
    pub(super) fn new(table: &TableDef) -> Result<Self, ConnectorError> {
        let options = OptionReader(&table.options);
        let path = PathBuf::from(options.required("path", PATH_HINT)?);
        let encoder = Encoder::new(table, &path)?;
        Ok(Self { path, options: table.options.clone(), encoder })
    }

    fn output(&self) -> Result<Box<dyn Output>, ConnectorError> {
        match self.path.to_str().filter(|path| object::is_url(path)) {
            Some(url) => Ok(Box::new(Upload::begin(url, OptionReader(&self.options))?)),
            None => Ok(Box::new(AtomicFile::create(&self.path)?)),
        }
    }

    /// The way to a device or a pipe; `None` where the path is of a file or of an object.
    fn pipe(&self, context: &WriterContext) -> Result<Option<Arc<QueuedWriter>>, ConnectorError> {
        let is_pipe = |of: &fs::Metadata| !of.is_file() && !is_replaced(&self.path, of);
        let Some(of) = fs::metadata(&self.path).ok().filter(is_pipe) else { return Ok(None) };
        let (place, path) = (self.path.display().to_string(), self.path.clone());
        let queued = if of.file_type().is_fifo() {
            let open = move || {
                let to = open_pipe(&path).map_err(|error| io_error(&path, &error))?;
                Ok(to.map(|to| written_to(to, path.clone())))
            };
            QueuedWriter::start_opening(&place, &context.waker, open)?
        } else {
            let write = written_to(AtomicFile::create(&self.path)?, path);
            QueuedWriter::start(&place, &context.waker, write)?
        };
        Ok(Some(Arc::new(queued)))
    }

    /// Where rows are kept until the job has ended, if they are those of an object.
    fn object_spool(&self) -> Option<ObjectSpoolPlace<'_>> {
        let is_object = self.path.to_str().is_some_and(object::is_url);
        let (url, options) = (&*self.path, OptionReader(&self.options));
        is_object.then(|| ObjectSpoolPlace { url, options, schema: self.encoder.schema() })
    }

    /// Writes the file or object from rows that were staged.
    fn written(
        &self,
        each: impl FnOnce(&mut dyn SinkWriter) -> Result<(), ConnectorError>,
    ) -> Result<(), ConnectorError> {
        let mut writer: Box<dyn SinkWriter> = self.encoder.begin(&self.path, self.output()?)?;
        each(&mut *writer)?;
        writer.commit()
    }

    /// Where rows are kept until the job has ended, if they are those of a file.
    fn spool(&self) -> SpoolPlace<'_> {
        SpoolPlace { path: &self.path, schema: self.encoder.schema() }
    }
}

/// Writes all bytes that come.
fn written_to(
    mut to: impl Write,
    path: PathBuf,
) -> impl FnMut(&[u8]) -> Result<(), ConnectorError> {
    move |bytes| to.write_all(bytes).map_err(|error| io_error(&path, &error))
}

/// Opens a pipe that has a name; `None` as long as nobody reads it. An ordinary opening would wait
/// for a reader, and could not be ended.
fn open_pipe(path: &Path) -> io::Result<Option<File>> {
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let to = match OpenOptions::new().write(true).custom_flags(flags).open(path) {
        Err(error) if error.raw_os_error() == Some(Errno::NXIO.raw_os_error()) => return Ok(None),
        opened => opened?,
    };
    // The thread that writes may wait for a slow reader.
    fcntl_setfl(&to, fcntl_getfl(&to)? - OFlags::NONBLOCK)?;
    Ok(Some(to))
}

impl Sink for FileSink {
    fn placement(&self) -> Placement {
        Placement::Gather
    }

    fn replaces(&self) -> Option<ExclusiveTarget> {
        let place = match self.path.to_str().filter(|path| object::is_url(path)) {
            Some(url) => Some(url.to_owned()),
            // A device or a pipe takes the rows of both.
            None if fs::metadata(&self.path).is_ok_and(|file| !is_replaced(&self.path, &file)) => {
                None
            }
            None => Some(one_name(&self.path).display().to_string()),
        };
        place.map(ExclusiveTarget::whole)
    }

    fn staging(&self) -> SinkVisibility {
        match self.path.to_str().filter(|path| object::is_url(path)) {
            Some(_) => SinkVisibility::Retained,
            None if self.replaces().is_none() && self.encoder.writes_by_row() => {
                SinkVisibility::AsTheyCome
            }
            None if self.replaces().is_none() => SinkVisibility::AtEnd,
            None => SinkVisibility::Retained,
        }
    }

    fn publish(&self, staged: &[Vec<u8>], how: Publishing) -> Result<(), ConnectorError> {
        if !how.last {
            return Ok(());
        }
        staged.iter().try_for_each(|staged| {
            if let Some(spool) = self.object_spool() {
                if how.again && spool.is_gone(staged)? {
                    return spool.remove(staged);
                }
                self.written(|writer| spool.each(staged, |batch| writer.write(batch)))?;
                return spool.remove(staged);
            }
            if how.again && self.spool().is_gone(staged)? {
                if self.path.exists() {
                    return Ok(());
                }
                return Err(staged::unmounted(&self.path, 1));
            }
            let rows = self.spool().read(staged)?;
            self.written(|writer| rows.each(|batch| writer.write(batch)))?;
            self.spool().remove(staged)
        })
    }

    fn sweep(&self, run: RunId, kept: &[Vec<u8>]) -> Result<(), ConnectorError> {
        match self.object_spool() {
            Some(spool) => spool.sweep(run, kept),
            None => self.spool().sweep(run, kept),
        }
    }

    fn open(&self, context: &WriterContext) -> Result<Box<dyn SinkWriter>, ConnectorError> {
        if let Some(queued) = self.pipe(context)? {
            let file = Box::new(Pipe(Arc::clone(&queued)));
            let writer: Box<dyn SinkWriter> = self.encoder.begin(&self.path, file)?;
            return Ok(Box::new(PipeWriter { writer: Some(writer), queued }));
        }
        match (&context.staging, self.object_spool()) {
            (Some(staging), Some(spool)) => Ok(Box::new(ObjectSpool::begin(&spool, staging)?)),
            (Some(staging), None) => Ok(Box::new(Spool::begin(&self.spool(), staging)?)),
            (None, _) => Ok(self.encoder.begin(&self.path, self.output()?)?),
        }
    }
}

/// Writes to a device or a pipe.
struct PipeWriter {
    /// Until all rows are queued.
    writer: Option<Box<dyn SinkWriter>>,
    queued: Arc<QueuedWriter>,
}

impl SinkWriter for PipeWriter {
    fn room(&mut self) -> Room {
        self.queued.room()
    }

    fn write(&mut self, batch: &RecordBatch) -> Result<(), ConnectorError> {
        self.writer.as_mut().map_or(Ok(()), |writer| writer.write(batch))
    }

    fn flush(&mut self) -> Result<(), ConnectorError> {
        self.queued.drain().map(drop)
    }

    fn settle(&mut self) -> Result<Room, ConnectorError> {
        if let Some(writer) = &mut self.writer {
            writer.settle()?;
        }
        self.queued.drain()
    }

    fn drain(&mut self) -> Result<Room, ConnectorError> {
        self.writer.take().map_or(Ok(()), |writer| writer.commit())?;
        self.queued.drain()
    }

    fn commit(mut self: Box<Self>) -> Result<(), ConnectorError> {
        self.drain()?;
        self.queued.finish()
    }
}
