//! The objects below a path of a store, for sinks: those that are seen, and those that are staged.
//!
//! ```text
//! out/_staged/.part-<run>-…   an object that is whole, and that a reader of out/ passes over
//! out/part-…                  a copy that the store makes of it when it is published
//! ```
//!
//! A staged object is one like any other. An upload that is left incomplete until the checkpoint is
//! stored would be cheaper to publish, but rules of buckets remove those after some days, and a
//! store does not tell which there are: what a killed run has left could not be found.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use dataflow::error::ConnectorError;
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    Error, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload,
};

use super::blob::ObjectBlob;
use super::list::list;
use super::{ObjectStoreClient, OptionReader, Upload, open, refuse, silent, written};
use crate::stored::Blob;

/// Where staged objects lie, below a directory.
const STAGED: &str = "_staged/";
/// Staged objects at most: more were not left by runs of one job.
const STAGED_MAX: usize = 1_000_000;
/// Objects of a directory or of a table at most.
const NAMES_MAX: usize = 1_000_000;
/// Requests of a publication on their way at the same time.
const REQUESTS_MAX: usize = 16;
/// How long a store may take to copy an object.
const COPY_MAX: Duration = Duration::from_secs(600);

/// A file or an object, with the time at which it was written last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AgedName {
    /// Below the directory that was listed.
    pub(crate) name: String,
    pub(crate) bytes: u64,
    /// Milliseconds since 1970.
    pub(crate) modified_ms: i64,
}

impl AgedName {
    /// A file of a directory; `None` if its file system has no time for it.
    pub(crate) fn of(name: String, metadata: &std::fs::Metadata) -> Option<Self> {
        let since = metadata.modified().ok()?.duration_since(UNIX_EPOCH).unwrap_or_default();
        let modified_ms = i64::try_from(since.as_millis()).ok()?;
        Some(Self { name, bytes: metadata.len(), modified_ms })
    }
}

/// The objects below a path.
#[derive(Clone)]
pub(crate) struct ObjectDirectory {
    store: ObjectStoreClient,
    /// With a `/` at its end; empty for a whole bucket.
    path: String,
}

impl ObjectDirectory {
    /// Bytes that an object may have to be published: stores copy five GiB at most.
    pub(crate) const OBJECT_BYTES_MAX: u64 = 4 << 30;

    /// The directory of a URL and the name in it, which is empty where the URL ends in `/`.
    ///
    /// # Errors
    /// When the URL is none of a store that can be written.
    pub(crate) fn open(
        url: &str,
        options: OptionReader<'_>,
    ) -> Result<(Self, String), ConnectorError> {
        let (store, path) = written(open(url, options)?)?;
        let (path, name) = match path.rfind('/') {
            Some(at) => (path[..=at].to_owned(), path[at + 1..].to_owned()),
            None => (String::new(), path),
        };
        Path::parse(&path).map_err(|error| refuse("path", error.to_string(), None))?;
        Ok((Self { store, path }, name))
    }

    /// The address of a name below it, for messages.
    pub(crate) fn place(&self, name: &str) -> String {
        self.store.name(&format!("{}{name}", self.path))
    }

    fn location(&self, name: &str) -> Result<Path, ConnectorError> {
        let location = Path::parse(format!("{}{name}", self.path));
        location.map_err(|error| refuse("path", error.to_string(), None))
    }

    /// The name of an object that is staged.
    pub(crate) fn staged(name: &str) -> String {
        format!("{STAGED}{name}")
    }

    /// The names of the objects and directories directly in it.
    pub(crate) fn entries(&self) -> Result<Vec<String>, ConnectorError> {
        let (inner, prefix) = (Arc::clone(&self.store.store), self.location("")?);
        let listed = async move { inner.list_with_delimiter(Some(&prefix)).await };
        let listed = self.store.ask(&self.place(""), listed)?;
        let objects = listed.objects.iter().map(|meta| &meta.location);
        let names = objects.chain(&listed.common_prefixes).filter_map(Path::filename);
        Ok(names.map(str::to_owned).collect())
    }

    /// The names of staged objects, without their directory.
    pub(crate) fn staged_names(&self) -> Result<Vec<String>, ConnectorError> {
        let prefix = format!("{}{STAGED}", self.path);
        let objects = list(&self.store, &self.place(STAGED), &prefix, STAGED_MAX)?;
        let names = objects.iter().filter_map(|meta| meta.location.filename());
        Ok(names.map(str::to_owned).collect())
    }

    /// The names of the objects directly in a directory below it, behind the name `from` of that if
    /// it is given.
    pub(crate) fn names_in(
        &self,
        directory: &str,
        from: Option<&str>,
    ) -> Result<Vec<String>, ConnectorError> {
        let (inner, prefix) = (Arc::clone(&self.store.store), self.location(directory)?);
        let offset = from.map(|from| self.location(&format!("{directory}/{from}"))).transpose()?;
        let below = prefix.clone();
        let listed = async move {
            let mut found = match &offset {
                Some(offset) => inner.list_with_offset(Some(&prefix), offset),
                None => inner.list(Some(&prefix)),
            };
            let mut names = Vec::new();
            while names.len() <= NAMES_MAX
                && let Some(meta) = found.try_next().await?
            {
                let mut parts = meta.location.prefix_match(&below).into_iter().flatten();
                if let (Some(name), None) = (parts.next(), parts.next()) {
                    names.push(name.as_ref().to_owned());
                }
            }
            Ok(names)
        };
        let place = self.place(directory);
        let names = self.store.ask(&place, listed)?;
        if names.len() > NAMES_MAX {
            let message = format!("more than {NAMES_MAX} objects are in it");
            return Err(ConnectorError::Io { place, message, hint: None });
        }
        Ok(names)
    }

    /// All objects below a directory of it, with their times; the directory is empty for all.
    pub(crate) fn aged(&self, directory: &str) -> Result<Vec<AgedName>, ConnectorError> {
        let below = self.location(directory)?;
        let prefix = format!("{}{directory}", self.path);
        let objects = list(&self.store, &self.place(directory), &prefix, NAMES_MAX)?;
        let name = |meta: ObjectMeta| {
            let parts: Vec<_> = meta.location.prefix_match(&below)?.collect();
            let parts: Vec<&str> = parts.iter().map(AsRef::as_ref).collect();
            let modified_ms = meta.last_modified.timestamp_millis();
            Some(AgedName { name: parts.join("/"), bytes: meta.size, modified_ms })
        };
        Ok(objects.into_iter().filter_map(name).collect())
    }

    /// All bytes of an object; `None` if it is not there.
    pub(crate) fn get(&self, name: &str) -> Result<Option<Bytes>, ConnectorError> {
        let (inner, location) = (Arc::clone(&self.store.store), self.location(name)?);
        self.store.ask(&self.place(name), async move {
            match inner.get(&location).await {
                Err(Error::NotFound { .. }) => Ok(None),
                found => found?.bytes().await.map(Some),
            }
        })
    }

    /// Makes an object unless it is there. Gives whether it was made; that it was not is also the
    /// answer where a first request has made it, and was repeated.
    pub(crate) fn create(&self, name: &str, bytes: &Bytes) -> Result<bool, ConnectorError> {
        let (inner, location) = (Arc::clone(&self.store.store), self.location(name)?);
        let payload = PutPayload::from(bytes.clone());
        self.store.ask(&self.place(name), async move {
            match inner.put_opts(&location, payload, PutOptions::from(PutMode::Create)).await {
                Ok(_) => Ok(true),
                Err(Error::AlreadyExists { .. }) => Ok(false),
                Err(error) => Err(error),
            }
        })
    }

    /// The objects with these names below it.
    pub(crate) fn blobs(&self, names: &[String]) -> Result<Vec<Arc<dyn Blob>>, ConnectorError> {
        if names.is_empty() {
            return Ok(vec![]);
        }
        // A listing has a thousand of them an answer.
        let all = list(&self.store, &self.place(""), &self.path, NAMES_MAX)?;
        let all: HashMap<String, ObjectMeta> =
            all.into_iter().map(|meta| (meta.location.to_string(), meta)).collect();
        let blob = |name: &String| {
            let location = self.location(name)?.to_string();
            let meta = all.get(&location).cloned().ok_or_else(|| ConnectorError::Io {
                place: self.place(name),
                message: "no such object, though the table has it".into(),
                hint: Some("it was removed while the query began, or by somebody else".into()),
            })?;
            Ok(Arc::new(ObjectBlob::new(self.store.clone(), meta)) as Arc<dyn Blob>)
        };
        names.iter().map(blob).collect()
    }

    /// Begins an object.
    pub(crate) fn upload(&self, name: &str) -> Result<Upload, ConnectorError> {
        Upload::later(self.store.clone(), self.location(name)?.as_ref())
    }

    /// An object; `None` if it is not there.
    pub(crate) fn blob(&self, name: &str) -> Result<Option<Arc<dyn Blob>>, ConnectorError> {
        let (inner, location) = (Arc::clone(&self.store.store), self.location(name)?);
        let head = async move { head(&*inner, &location).await };
        let meta = self.store.ask(&self.place(name), head)?;
        Ok(meta.map(|meta| Arc::new(ObjectBlob::new(self.store.clone(), meta)) as Arc<dyn Blob>))
    }

    /// Removes objects. One that is not there is no error.
    pub(crate) fn remove(&self, names: &[String]) -> Result<(), ConnectorError> {
        let locations: Result<Vec<Path>, _> =
            names.iter().map(|name| self.location(name)).collect();
        let locations = futures::stream::iter(locations?.into_iter().map(Ok)).boxed();
        let inner = Arc::clone(&self.store.store);
        // A thousand are one request.
        self.store.ask(&self.place(""), async move {
            let mut deleted = inner.delete_stream(locations);
            while let Some(one) = deleted.next().await {
                match one {
                    Ok(_) | Err(Error::NotFound { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(())
        })
    }

    /// Gives staged objects, by name, their visible names. One that has it already stays as it is.
    /// With `again`, one that has no name any more was published, and somebody has taken it.
    ///
    /// # Errors
    /// When another object has the name, or a staged one is gone.
    pub(crate) fn publish(
        &self,
        parts: &[(String, String)],
        again: bool,
    ) -> Result<(), ConnectorError> {
        let visible: Vec<String> = parts.iter().map(|(_, visible)| visible.clone()).collect();
        let staged: Vec<String> = parts.iter().map(|(staged, _)| staged.clone()).collect();
        let from: Result<Vec<Path>, _> = staged.iter().map(|name| self.location(name)).collect();
        let from = from?;
        self.each(&visible, |inner, to, at| {
            let from = from[at].clone();
            async move { copy(&*inner, &from, &to, again).await }
        })?;
        self.remove(&staged)
    }

    /// Makes a request for each name, some at a time, and waits for all.
    fn each<F: Future<Output = object_store::Result<()>> + Send + 'static>(
        &self,
        names: &[String],
        request: impl Fn(Arc<dyn ObjectStore>, Path, usize) -> F,
    ) -> Result<(), ConnectorError> {
        let longest = self.store.retry_timeout.saturating_add(COPY_MAX);
        let mut requests = Vec::with_capacity(names.len());
        for (at, name) in names.iter().enumerate() {
            let (store, place) = (self.store.clone(), self.place(name));
            let asked = request(Arc::clone(&store.store), self.location(name)?, at);
            requests.push(async move {
                match tokio::time::timeout(longest, asked).await {
                    Ok(answer) => answer.map_err(|error| store.staged_error(&place, &error)),
                    Err(_) => Err(silent(&place, longest)),
                }
            });
        }
        self.store.io.wait(async move {
            let mut answers = futures::stream::iter(requests).buffer_unordered(REQUESTS_MAX);
            while answers.try_next().await?.is_some() {}
            Ok(())
        })
    }
}

impl ObjectStoreClient {
    /// The error of a request about something that is staged.
    fn staged_error(&self, place: &str, error: &Error) -> ConnectorError {
        let (message, hint) = match error {
            Error::NotFound { path, .. } => (
                format!("rows of the checkpoint were staged as '{path}', which is gone"),
                "nobody else may remove what is staged; --from none begins anew",
            ),
            Error::AlreadyExists { .. } => (
                "there is an object of that name that this job has not written".to_owned(),
                "give each job a directory of its own",
            ),
            other => return self.error_at(place, other),
        };
        ConnectorError::Io { place: place.to_owned(), message, hint: Some(hint.into()) }
    }
}

async fn head(store: &dyn ObjectStore, of: &Path) -> object_store::Result<Option<ObjectMeta>> {
    match store.head(of).await {
        Err(Error::NotFound { .. }) => Ok(None),
        found => found.map(Some),
    }
}

/// Copies a staged object to where it is seen, unless it is there.
async fn copy(
    store: &dyn ObjectStore,
    from: &Path,
    to: &Path,
    again: bool,
) -> object_store::Result<()> {
    let path = from.to_string();
    match (head(store, from).await?, head(store, to).await?) {
        (Some(_), None) => store.copy(from, to).await,
        // Published before, and what was staged is removed.
        (None, Some(_)) => Ok(()),
        (Some(staged), Some(visible)) if again && staged.size == visible.size => Ok(()),
        (Some(_), Some(_)) => {
            let source = "another object".into();
            Err(Error::AlreadyExists { path: to.to_string(), source })
        }
        (None, None) if again => {
            tracing::info!(part = %to, "it was published, and taken");
            Ok(())
        }
        (None, None) => Err(Error::NotFound { path, source: "it is gone".into() }),
    }
}
