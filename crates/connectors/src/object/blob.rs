//! An object as stored bytes.

use std::io::{self, Read};
use std::ops::Range;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use bytes::Bytes;
use dataflow::error::ConnectorError;
use futures::TryStreamExt;
use object_store::{
    GetOptions, GetRange, OBJECT_STORE_COALESCE_DEFAULT, ObjectMeta, coalesce_ranges,
};
use tokio::sync::mpsc::{Receiver, error::TryRecvError};

use super::{ObjectStoreClient, SILENCE_MAX, silent};
use crate::format::{InputVersion, fnv};
use crate::remote::{ByteQueueReader, ByteQueueSender, Task, byte_queue, died, queue};
use crate::stored::{Blob, Fetch};

/// How long the columns of a row group may take to come.
const FETCH_MAX: Duration = Duration::from_secs(600);

/// An object as it was listed.
#[derive(Clone)]
pub(super) struct ObjectBlob {
    store: ObjectStoreClient,
    meta: ObjectMeta,
}

impl ObjectBlob {
    pub(super) fn new(store: ObjectStoreClient, meta: ObjectMeta) -> Self {
        Self { store, meta }
    }

    /// Asks for this version of the object and no other.
    fn options(&self) -> GetOptions {
        // A weak tag compares equal to nothing.
        let tag = self.meta.e_tag.clone().filter(|tag| !tag.starts_with("W/"));
        GetOptions::new().with_if_match(tag)
    }

    /// Refuses an answer of another version, from a server that did not look at the tag or has
    /// none: by its length, and by its tag or else the time of its change. A listing names that
    /// time to the millisecond, the header of an answer to the second.
    fn check(&self, answer: &ObjectMeta) -> object_store::Result<()> {
        let (was, is) = (&self.meta, answer);
        let is_same = match (&was.e_tag, &is.e_tag) {
            (Some(was), Some(is)) => strong(was) == strong(is),
            _ => {
                let [was, is] = [was, is].map(|meta| meta.last_modified.timestamp());
                // An answer without the header has the time 0.
                was == is || is == 0
            }
        };
        if was.size == is.size && is_same {
            return Ok(());
        }
        let (path, source) = (was.location.to_string(), "another version".into());
        Err(object_store::Error::Precondition { path, source })
    }

    /// A request for some of its bytes.
    fn get(
        &self,
        range: Range<u64>,
    ) -> impl Future<Output = object_store::Result<Bytes>> + Send + 'static {
        let options = self.options().with_range(Some(GetRange::Bounded(range)));
        let (store, blob) = (Arc::clone(&self.store.store), self.clone());
        async move {
            let answer = store.get_opts(&blob.meta.location, options).await?;
            blob.check(&answer.meta)?;
            answer.bytes().await
        }
    }
}

impl Blob for ObjectBlob {
    fn name(&self) -> String {
        self.store.name(self.meta.location.as_ref())
    }

    fn bytes(&self) -> u64 {
        self.meta.size
    }

    /// A store tells versions apart by tags.
    fn version(&self) -> InputVersion {
        let tag = self.meta.e_tag.as_deref().map(strong);
        let mark = tag.map_or(0, |tag| InputVersion::mark_of(tag.as_bytes().iter()));
        InputVersion { bytes: self.meta.size, mark }
    }

    fn stamp(&self) -> u64 {
        match &self.meta.e_tag {
            Some(tag) => fnv(strong(tag).as_bytes()),
            None => fnv(&self.meta.last_modified.timestamp_millis().to_le_bytes()),
        }
    }

    /// Gives [`WouldBlock`](io::ErrorKind::WouldBlock) while nothing has come.
    fn read(&self, waker: &Waker) -> Result<Box<dyn Read + Send>, ConnectorError> {
        let (sender, byte_queue) = byte_queue(waker);
        let blob = self.clone();
        let task = self.store.io.spawn(async move {
            if let Err(error) = pass_on(&blob, &sender).await {
                sender.fail(error).await;
            }
        });
        Ok(Box::new(Reading { byte_queue, _task: task }))
    }

    fn is_at_hand(&self) -> bool {
        false
    }

    /// All columns of a row group at once: ranges that are near each other are one request.
    fn fetch(&self, ranges: Vec<Range<u64>>, waker: &Waker) -> Option<Box<dyn Fetch>> {
        let (done, pieces) = queue(1, waker);
        let (blob, place, asked) = (self.clone(), self.name(), ranges.clone());
        let task = self.store.io.spawn(async move {
            let fetch = |range| blob.get(range);
            let got = coalesce_ranges(&asked, fetch, OBJECT_STORE_COALESCE_DEFAULT);
            let longest = blob.store.retry_timeout.saturating_add(FETCH_MAX);
            let got = match tokio::time::timeout(longest, got).await {
                Ok(got) => got.map_err(|error| blob.store.error_at(&place, &error)),
                Err(_) => Err(silent(&place, longest)),
            };
            done.send(got).await;
        });
        let blob = Some(self.clone());
        Some(Box::new(Fetching { blob, ranges, pieces, _task: task }))
    }

    fn read_at(&self, offset: u64, length: usize) -> io::Result<Bytes> {
        let end = offset.saturating_add(length as u64).min(self.meta.size);
        if offset >= end {
            return Ok(Bytes::new());
        }
        self.store.ask(&self.name(), self.get(offset..end)).map_err(io::Error::other)
    }
}

/// A tag without the mark that it is a weak one.
fn strong(tag: &str) -> &str {
    tag.trim_start_matches("W/")
}

async fn pass_on(blob: &ObjectBlob, sender: &ByteQueueSender) -> Result<(), ConnectorError> {
    let (store, place) = (&blob.store, blob.name());
    let answer = store.store.get_opts(&blob.meta.location, blob.options()).await;
    let answer = answer.and_then(|answer| blob.check(&answer.meta).map(|()| answer));
    let mut pieces = answer.map_err(|error| store.error_at(&place, &error))?.into_stream();
    loop {
        match tokio::time::timeout(SILENCE_MAX, pieces.try_next()).await {
            Err(_) => return Err(silent(&place, SILENCE_MAX)),
            Ok(Err(error)) => return Err(store.error_at(&place, &error)),
            Ok(Ok(None)) => return Ok(()),
            Ok(Ok(Some(piece))) => {
                if !sender.send(piece).await {
                    return Ok(());
                }
            }
        }
    }
}

/// An object that is being read.
struct Reading {
    byte_queue: ByteQueueReader,
    _task: Task,
}

impl Read for Reading {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.byte_queue.read(into)
    }
}

/// Ranges of an object on their way.
struct Fetching {
    blob: Option<ObjectBlob>,
    ranges: Vec<Range<u64>>,
    pieces: Receiver<Result<Vec<Bytes>, ConnectorError>>,
    _task: Task,
}

impl Fetch for Fetching {
    fn poll(&mut self) -> Result<Option<Arc<dyn Blob>>, ConnectorError> {
        let pieces = match self.pieces.try_recv() {
            Ok(pieces) => pieces?,
            Err(TryRecvError::Empty) => return Ok(None),
            Err(TryRecvError::Disconnected) => return Err(died("object")),
        };
        let ranges = std::mem::take(&mut self.ranges);
        let pieces = ranges.into_iter().zip(pieces).collect();
        let fetched = self.blob.take().map(|blob| Fetched { blob, pieces });
        Ok(fetched.map(|fetched| Arc::new(fetched) as Arc<dyn Blob>))
    }
}

/// An object of which some ranges are at hand.
struct Fetched {
    blob: ObjectBlob,
    pieces: Vec<(Range<u64>, Bytes)>,
}

impl Blob for Fetched {
    fn name(&self) -> String {
        self.blob.name()
    }

    fn bytes(&self) -> u64 {
        self.blob.bytes()
    }

    fn read(&self, waker: &Waker) -> Result<Box<dyn Read + Send>, ConnectorError> {
        self.blob.read(waker)
    }

    fn read_at(&self, offset: u64, length: usize) -> io::Result<Bytes> {
        let end = offset.saturating_add(length as u64).min(self.bytes());
        let held = self.pieces.iter().find(|(range, bytes)| {
            range.contains(&offset) && end <= range.start + bytes.len() as u64
        });
        match held {
            Some((range, bytes)) => {
                let from = (offset - range.start) as usize;
                Ok(bytes.slice(from..from + (end - offset) as usize))
            }
            None => self.blob.read_at(offset, length),
        }
    }
}
