//! An object that appears whole or not at all.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dataflow::error::ConnectorError;
use object_store::path::Path;
use object_store::{MultipartUpload, ObjectStoreExt};
use tokio::sync::oneshot;

use super::{ObjectStoreClient, OptionReader, open, refuse, written};
use crate::remote::{Task, died};

/// Bytes of a part: S3 takes none smaller, but for the last.
const PART_BYTES: usize = 8 << 20;

/// Parts of an object at most, as S3 has it.
const PARTS_OF_OBJECT_MAX: usize = 10_000;

/// Parts on their way at the same time: with the one being filled, all the memory of an upload.
const PARTS_MAX: usize = 4;

/// How long giving up may take: it is done on a thread that has better things to do.
const ABORT_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes on their way to an object.
pub(crate) struct Upload {
    store: ObjectStoreClient,
    place: String,
    location: Path,
    /// From the first part that was sent off, until it is completed or given up.
    upload: Option<Box<dyn MultipartUpload>>,
    part: Vec<u8>,
    /// Parts that were sent off.
    parts: usize,
    sent: VecDeque<(oneshot::Receiver<object_store::Result<()>>, Task)>,
}

impl Upload {
    /// Begins an upload to `url`: so that a bucket that cannot be written is found early.
    pub(crate) fn begin(url: &str, options: OptionReader<'_>) -> Result<Self, ConnectorError> {
        let (store, path) = written(open(url, options)?)?;
        if path.is_empty() || path.ends_with('/') {
            return Err(refuse("path", "a sink writes a single object: add its name", None));
        }
        let mut upload = Self::later(store, &path)?;
        upload.start()?;
        Ok(upload)
    }

    /// An upload that asks nothing of the store before it has a part: a small object is one
    /// request, and leaves nothing behind if it is not made.
    pub(super) fn later(store: ObjectStoreClient, path: &str) -> Result<Self, ConnectorError> {
        let location =
            Path::parse(path).map_err(|error| refuse("path", error.to_string(), None))?;
        let (place, sent) = (store.name(path), VecDeque::new());
        Ok(Self { store, place, location, upload: None, part: Vec::new(), parts: 0, sent })
    }

    fn start(&mut self) -> Result<(), ConnectorError> {
        let (inner, location) = (Arc::clone(&self.store.store), self.location.clone());
        let begun = async move { inner.put_multipart(&location).await };
        self.upload = Some(self.store.ask(&self.place, begun)?);
        Ok(())
    }

    /// Makes the object of its parts.
    pub(crate) fn commit(mut self) -> Result<(), ConnectorError> {
        if self.upload.is_none() && self.parts == 0 {
            let (inner, location) = (Arc::clone(&self.store.store), self.location.clone());
            let bytes = Bytes::from(std::mem::take(&mut self.part));
            let put = async move { inner.put(&location, bytes.into()).await };
            return self.store.ask(&self.place, put).map(drop);
        }
        if !self.part.is_empty() {
            self.send_part()?;
        }
        while !self.sent.is_empty() {
            self.wait_for_part()?;
        }
        let Some(mut upload) = self.upload.take() else { return Ok(()) };
        let completed = async move {
            let done = upload.complete().await;
            if done.is_err() {
                // The first error counts; a second one says nothing new.
                let _ = upload.abort().await;
            }
            done
        };
        self.store.ask(&self.place, completed).map(drop)
    }

    fn send_part(&mut self) -> Result<(), ConnectorError> {
        if self.sent.len() == PARTS_MAX {
            self.wait_for_part()?;
        }
        if self.parts == PARTS_OF_OBJECT_MAX {
            return Err(ConnectorError::Io {
                place: self.place.clone(),
                message: format!("more than {PARTS_OF_OBJECT_MAX} parts of {PART_BYTES} bytes"),
                hint: Some("write Parquet, or several objects by several INSERTs".into()),
            });
        }
        if self.parts == 0 && self.upload.is_none() {
            self.start()?;
        }
        self.parts += 1;
        let Some(upload) = &mut self.upload else { return Err(died(&self.place)) };
        let bytes = Bytes::from(std::mem::take(&mut self.part));
        let part = upload.put_part(bytes.into());
        let (done, result) = oneshot::channel();
        let task = self.store.io.spawn(async move {
            // Nobody is left to tell only if the upload is being given up.
            let _ = done.send(part.await);
        });
        self.sent.push_back((result, task));
        Ok(())
    }

    /// Waits for the oldest part that is on its way.
    fn wait_for_part(&mut self) -> Result<(), ConnectorError> {
        let Some((result, _task)) = self.sent.pop_front() else { return Ok(()) };
        let (store, place) = (self.store.clone(), self.place.clone());
        self.store.io.wait(async move {
            let part = result.await.map_err(|_| died(&place))?;
            part.map_err(|error| store.error_at(&place, &error))
        })
    }
}

impl Write for Upload {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(PART_BYTES - self.part.len());
        self.part.extend_from_slice(&bytes[..taken]);
        if self.part.len() == PART_BYTES {
            self.send_part().map_err(io::Error::other)?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        let Some(mut upload) = self.upload.take() else { return };
        self.sent.clear();
        let place = self.place.clone();
        let given_up = self.store.io.wait(async move {
            match tokio::time::timeout(ABORT_TIMEOUT, upload.abort()).await {
                Ok(Ok(())) => Ok(()),
                _ => Err(died(&place)),
            }
        });
        if given_up.is_err() {
            let place = &self.place;
            tracing::warn!(place, "parts stay behind: a rule of the bucket should remove them");
        }
    }
}
