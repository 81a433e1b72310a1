//! Checkpoints in a bucket: a store of `checkpoint`, under a URL.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use checkpoint::store::LISTED_MAX;
use checkpoint::{Created, ObjectName, ObjectWriter, Store, StoreError, StoredObject};
use dataflow::connector::Options;
use dataflow::error::ConnectorError;
use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{
    Error, GetOptions, GetRange, ObjectMeta, ObjectStoreExt, PutMode, PutOptions, PutPayload,
    WriteMultipart,
};

use super::{ObjectStoreClient, open};
use crate::options::{OptionReader, refuse};

/// Bytes that are written by one request; more are sent in parts.
const PUT_BYTES_MAX: u64 = 16 << 20;
/// Bytes of a part. S3 takes 10,000 of them.
const PART_BYTES: usize = 8 << 20;
/// Parts on their way at the same time.
const PARTS_MAX: usize = 4;
/// How long a call may take: a segment is large.
const CALL_MAX: Duration = Duration::from_secs(600);

/// The objects of checkpoints below a URL.
///
/// [`Store::create`] is a put with `If-None-Match: *`. [`checkpoint::chain::Chain::begin`] refuses
/// a store that does not honour it.
#[derive(Clone)]
pub struct BucketStore {
    store: ObjectStoreClient,
    /// The path of the URL, with a `/` behind it; empty for a whole bucket.
    root: String,
}

impl BucketStore {
    /// A store below `s3://bucket/path`. Options are those of a table (`s3.endpoint`, …); what they
    /// leave open comes from the environment. Nothing is asked of the server yet.
    ///
    /// # Errors
    /// When the URL is none of a store that can be written, or an option is wrong.
    pub fn open(url: &str, options: &Options) -> Result<Self, ConnectorError> {
        let (store, path) = open(url, OptionReader(options))?;
        if !store.lists {
            let hint = Some("--state takes a directory or s3://bucket/path".to_owned());
            return Err(refuse("path", "a web server cannot hold checkpoints", hint));
        }
        let path = Path::parse(path.trim_end_matches('/'));
        let path = path.map_err(|error| refuse("path", error.to_string(), None))?;
        let root = if path.as_ref().is_empty() { String::new() } else { format!("{path}/") };
        Ok(Self { store, root })
    }

    fn path(&self, name: &str) -> Path {
        // Parts of a name have no characters that paths encode.
        Path::from(format!("{}{name}", self.root))
    }

    fn prefix(&self, name: Option<&ObjectName>) -> Path {
        name.map_or_else(|| Path::from(self.root.as_str()), |name| self.path(name.as_str()))
    }

    fn place_of(&self, path: &Path) -> String {
        self.store.name(path.as_ref())
    }

    /// Runs a request to its end.
    fn ask<T: Send + 'static>(
        &self,
        path: &Path,
        request: impl Future<Output = object_store::Result<T>> + Send + 'static,
    ) -> Result<T, StoreError> {
        let place = self.place_of(path);
        let (store, at) = (self.store.clone(), place.clone());
        let answer = self.store.io.wait(async move {
            Ok(match tokio::time::timeout(CALL_MAX, request).await {
                Ok(answer) => answer.map_err(|error| failed(&store, &at, &error)),
                Err(_) => {
                    let message = format!("no answer within {} s", CALL_MAX.as_secs());
                    Err(StoreError::unknown(at, message))
                }
            })
        });
        answer.unwrap_or_else(|error| Err(StoreError::unknown(place, error.to_string())))
    }

    /// The size of an object; `None` if it is not there.
    fn size(&self, path: &Path) -> Result<Option<u64>, StoreError> {
        let (inner, location) = (Arc::clone(&self.store.store), path.clone());
        self.ask(path, async move { found(inner.head(&location).await) })
            .map(|meta| meta.map(|meta| meta.size))
    }

    /// An object of a listing; `None` if it has a name that no checkpoint gives.
    fn object(&self, meta: &ObjectMeta) -> Option<StoredObject> {
        let name = meta.location.as_ref().strip_prefix(&self.root)?;
        let name = ObjectName::new(name).ok()?;
        let modified_ms = meta.last_modified.timestamp_millis();
        Some(StoredObject { name, bytes: meta.size, modified_ms })
    }
}

impl Store for BucketStore {
    fn create(&self, name: &ObjectName, bytes: &Bytes) -> Result<Created, StoreError> {
        let path = self.path(name.as_str());
        let (inner, location, payload) =
            (Arc::clone(&self.store.store), path.clone(), PutPayload::from(bytes.clone()));
        self.ask(&path, async move {
            let options = PutOptions::from(PutMode::Create);
            match inner.put_opts(&location, payload, options).await {
                Ok(_) => Ok(Created::New),
                // Also where somebody else creates it at this moment: whoever asks reads it then.
                Err(Error::AlreadyExists { .. }) => Ok(Created::Exists),
                Err(error) => Err(error),
            }
        })
    }

    fn put(&self, name: &ObjectName, parts: &[Bytes]) -> Result<(), StoreError> {
        let path = self.path(name.as_str());
        let bytes: u64 = parts.iter().map(|part| part.len() as u64).sum();
        if bytes > PUT_BYTES_MAX {
            let mut writer = self.writer(name)?;
            // Cheap: the bytes are shared.
            parts.iter().try_for_each(|part| writer.write(part.clone()))?;
            return writer.finish();
        }
        let (inner, location) = (Arc::clone(&self.store.store), path.clone());
        let payload: PutPayload = parts.iter().cloned().collect();
        self.ask(&path, async move { inner.put(&location, payload).await.map(drop) })
    }

    fn writer<'a>(&'a self, name: &ObjectName) -> Result<Box<dyn ObjectWriter + 'a>, StoreError> {
        let path = self.path(name.as_str());
        let (inner, location) = (Arc::clone(&self.store.store), path.clone());
        let upload = self.ask(&path, async move {
            let upload = inner.put_multipart(&location).await?;
            Ok(WriteMultipart::new_with_chunk_size(upload, PART_BYTES))
        })?;
        Ok(Box::new(Upload { store: self, path, upload: Some(upload) }))
    }

    fn get(
        &self,
        name: &ObjectName,
        range: Option<Range<u64>>,
    ) -> Result<Option<Bytes>, StoreError> {
        let path = self.path(name.as_str());
        // Servers answer a range that is empty, or begins behind the end, by an error.
        if let Some(range) = &range
            && (range.start > 0 || range.end == 0)
        {
            let Some(size) = self.size(&path)? else { return Ok(None) };
            if range.start >= size.min(range.end) {
                return Ok(Some(Bytes::new()));
            }
        }
        let range = range.map(GetRange::Bounded);
        let (inner, location) = (Arc::clone(&self.store.store), path.clone());
        self.ask(&path, async move {
            let options = GetOptions::new().with_range(range);
            match found(inner.get_opts(&location, options).await)? {
                Some(answer) => answer.bytes().await.map(Some),
                None => Ok(None),
            }
        })
    }

    fn list(&self, prefix: Option<&ObjectName>) -> Result<Vec<StoredObject>, StoreError> {
        let path = self.prefix(prefix);
        let (inner, location) = (Arc::clone(&self.store.store), path.clone());
        let metas: Vec<ObjectMeta> = self.ask(&path, async move {
            let mut listed = inner.list(Some(&location));
            let mut metas = Vec::new();
            while let Some(meta) = listed.try_next().await? {
                if metas.len() == LISTED_MAX {
                    let source = format!("it has more than {LISTED_MAX} objects").into();
                    return Err(Error::Generic { store: "listing", source });
                }
                metas.push(meta);
            }
            Ok(metas)
        })?;
        let mut objects: Vec<_> = metas.iter().filter_map(|meta| self.object(meta)).collect();
        objects.sort();
        Ok(objects)
    }

    fn children(&self, prefix: Option<&ObjectName>) -> Result<Vec<String>, StoreError> {
        let path = self.prefix(prefix);
        let (inner, location) = (Arc::clone(&self.store.store), path.clone());
        let listed =
            self.ask(&path, async move { inner.list_with_delimiter(Some(&location)).await })?;
        let objects = listed.objects.into_iter().map(|meta| meta.location);
        let paths = listed.common_prefixes.into_iter().chain(objects);
        let part = |path: Path| path.filename().map(str::to_owned);
        let mut parts: Vec<String> =
            paths.filter_map(part).filter(|part| ObjectName::new(part.as_str()).is_ok()).collect();
        parts.sort_unstable();
        parts.dedup();
        Ok(parts)
    }

    fn delete(&self, name: &ObjectName) -> Result<(), StoreError> {
        let path = self.path(name.as_str());
        let (inner, location) = (Arc::clone(&self.store.store), path.clone());
        self.ask(&path, async move { found(inner.delete(&location).await).map(drop) })
    }

    fn place(&self, name: &ObjectName) -> String {
        self.place_of(&self.path(name.as_str()))
    }
}

/// An object on its way in parts.
struct Upload<'a> {
    store: &'a BucketStore,
    path: Path,
    /// Until it is finished or has failed.
    upload: Option<WriteMultipart>,
}

impl ObjectWriter for Upload<'_> {
    fn write(&mut self, bytes: Bytes) -> Result<(), StoreError> {
        let Some(mut upload) = self.upload.take() else {
            return Err(StoreError::refused(self.store.place_of(&self.path), "it has failed"));
        };
        let upload = self.store.ask(&self.path, async move {
            if let Err(error) = upload.wait_for_capacity(PARTS_MAX).await {
                // The first error counts.
                let _ = upload.abort().await;
                return Err(error);
            }
            upload.put(bytes);
            Ok(upload)
        })?;
        self.upload = Some(upload);
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<(), StoreError> {
        let Some(upload) = self.upload.take() else {
            return Err(StoreError::refused(self.store.place_of(&self.path), "it has failed"));
        };
        self.store.ask(&self.path, async move { upload.finish().await.map(drop) })
    }
}

impl Drop for Upload<'_> {
    fn drop(&mut self) {
        if let Some(upload) = self.upload.take() {
            // A server keeps the parts of an upload that is not given up, and charges for them.
            let _ = self.store.ask(&self.path, async move { upload.abort().await });
        }
    }
}

/// `None` for what is not there.
fn found<T>(answer: object_store::Result<T>) -> object_store::Result<Option<T>> {
    match answer {
        Err(Error::NotFound { .. }) => Ok(None),
        other => other.map(Some),
    }
}

/// The error of a store. One that a server has refused has changed nothing; after any other, a
/// write may have taken effect.
fn failed(store: &ObjectStoreClient, place: &str, error: &Error) -> StoreError {
    let message = store.cause(error);
    match error {
        Error::NotFound { .. } => StoreError::refused(place, "no such object or bucket"),
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => {
            StoreError::refused(place, format!("access is refused: {message}"))
        }
        Error::NotSupported { .. } | Error::NotImplemented { .. } | Error::InvalidPath { .. } => {
            StoreError::refused(place, message)
        }
        _ => StoreError::unknown(place, message),
    }
}
