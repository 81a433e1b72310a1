//! From a URL to objects: one, those of a directory, or those that a pattern matches, in an order
//! that is the same on every node.

use std::sync::Arc;

use dataflow::error::ConnectorError;
use futures::TryStreamExt;
use glob::{MatchOptions, Pattern};
use object_store::path::Path;
use object_store::{Error, ObjectMeta, ObjectStoreExt};

use super::blob::ObjectBlob;
use super::{ObjectStoreClient, OptionReader, open, refuse};
use crate::format::Kind;
use crate::options::nearest;
use crate::stored::Blob;

/// Objects of a listing at most: a pattern that goes through more was not meant.
const OBJECTS_MAX: usize = 1_000_000;

/// The directory that a table of Delta Lake has.
const TABLE_LOG: &str = "_delta_log";

/// Objects that are looked through for a name like one that does not exist.
const NEIGHBOURS_MAX: usize = 1_000;

/// The objects that `url` names, sorted. A directory (a name that ends in `/`, or that is only the
/// beginning of names) stands for the objects directly in it; hidden ones (`.name`, `_name`) and,
/// where no format is `given`, those with an extension of no format are passed over.
pub(crate) fn expand(
    url: &str,
    options: OptionReader<'_>,
    given: Option<Kind>,
) -> Result<Vec<Arc<dyn Blob>>, ConnectorError> {
    let (store, path) = open(url, options)?;
    let objects = if store.lists && path.contains(['*', '?', '[']) {
        matching(&store, &path)?
    } else if path.is_empty() || path.ends_with('/') {
        directory(&store, &path, given)?
    } else {
        one(&store, &path, given)?
    };
    let blob = |meta| Arc::new(ObjectBlob::new(store.clone(), meta)) as Arc<dyn Blob>;
    Ok(objects.into_iter().map(blob).collect())
}

fn one(
    store: &ObjectStoreClient,
    path: &str,
    given: Option<Kind>,
) -> Result<Vec<ObjectMeta>, ConnectorError> {
    let place = store.name(path);
    let location = parse(path)?;
    let head = {
        let (store, location) = (Arc::clone(&store.store), location);
        async move {
            match store.head(&location).await {
                Err(Error::NotFound { .. }) => Ok(None),
                found => found.map(Some),
            }
        }
    };
    if let Some(meta) = store.ask(&place, head)? {
        return Ok(vec![meta]);
    }
    let missing =
        |hint| ConnectorError::Io { place: place.clone(), message: "no such object".into(), hint };
    if !store.lists {
        return Err(missing(None));
    }
    match directory(store, &format!("{path}/"), given) {
        Ok(objects) => Ok(objects),
        // Neither an object nor a directory.
        Err(_) => {
            let names = neighbours(store, path)?;
            let near = nearest(path, names.iter().map(String::as_str));
            Err(missing(near.map(|near| format!("did you mean '{}'?", store.name(near)))))
        }
    }
}

fn matching(store: &ObjectStoreClient, pattern: &str) -> Result<Vec<ObjectMeta>, ConnectorError> {
    let place = store.name(pattern);
    let compiled = Pattern::new(pattern)
        .map_err(|error| refuse("path", format!("'{place}' is no glob: {error}"), None))?;
    let special = pattern.find(['*', '?', '[']).unwrap_or(pattern.len());
    let prefix = pattern[..special].rsplit_once('/').map_or("", |(prefix, _)| prefix);
    let wanted = MatchOptions { require_literal_separator: true, ..MatchOptions::default() };
    let mut objects = list(store, &place, prefix, OBJECTS_MAX)?;
    objects.retain(|meta| meta.size > 0 && compiled.matches_with(meta.location.as_ref(), wanted));
    sorted(objects).ok_or_else(|| ConnectorError::Io {
        place,
        message: "no object matches".into(),
        hint: Some("'*' stands for a part of a name, '**' for directories".into()),
    })
}

fn directory(
    store: &ObjectStoreClient,
    path: &str,
    given: Option<Kind>,
) -> Result<Vec<ObjectMeta>, ConnectorError> {
    let place = store.name(path);
    if !store.lists {
        let message = "a web server does not tell what is in a directory";
        return Err(ConnectorError::Io { place, message: message.into(), hint: None });
    }
    let prefix = parse(path)?;
    let listed = {
        let inner = Arc::clone(&store.store);
        async move { inner.list_with_delimiter(Some(&prefix)).await }
    };
    let listed = store.ask(&place, listed)?;
    if listed.common_prefixes.iter().any(|below| below.filename() == Some(TABLE_LOG)) {
        return Err(ConnectorError::Io {
            place,
            message: "it is a table of Delta Lake, whose log says which objects are there".into(),
            hint: Some("read it by 'connector' = 'delta', or name objects by a pattern".into()),
        });
    }
    let mut objects = listed.objects;
    objects.retain(|meta| {
        let name = meta.location.filename().unwrap_or_default();
        let known = given.is_some() || Kind::of(name).is_some();
        known && meta.size > 0 && !name.starts_with(['.', '_'])
    });
    sorted(objects).ok_or_else(|| ConnectorError::Io {
        place,
        message: "no objects of a known format are directly in it".into(),
        hint: Some("directories below it are read through a glob: '…/**/*.csv'".into()),
    })
}

/// Objects whose name begins with a directory.
pub(super) fn list(
    store: &ObjectStoreClient,
    place: &str,
    prefix: &str,
    at_most: usize,
) -> Result<Vec<ObjectMeta>, ConnectorError> {
    let prefix = parse(prefix)?;
    let inner = Arc::clone(&store.store);
    let listed = async move {
        let mut found = inner.list(Some(&prefix));
        let mut objects = Vec::new();
        while objects.len() <= at_most
            && let Some(meta) = found.try_next().await?
        {
            objects.push(meta);
        }
        Ok(objects)
    };
    let objects = store.ask(place, listed)?;
    if objects.len() > OBJECTS_MAX {
        return Err(ConnectorError::Io {
            place: place.to_owned(),
            message: format!("more than {OBJECTS_MAX} objects begin like this"),
            hint: Some("make the part before the first '*' longer".into()),
        });
    }
    Ok(objects)
}

/// Names beside a path that does not exist.
fn neighbours(store: &ObjectStoreClient, path: &str) -> Result<Vec<String>, ConnectorError> {
    let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
    let objects = list(store, &store.name(path), parent, NEIGHBOURS_MAX)?;
    Ok(objects.into_iter().map(|meta| meta.location.to_string()).collect())
}

fn sorted(mut objects: Vec<ObjectMeta>) -> Option<Vec<ObjectMeta>> {
    objects.sort_by(|a, b| a.location.cmp(&b.location));
    (!objects.is_empty()).then_some(objects)
}

fn parse(path: &str) -> Result<Path, ConnectorError> {
    Path::parse(path).map_err(|error| refuse("path", error.to_string(), None))
}
