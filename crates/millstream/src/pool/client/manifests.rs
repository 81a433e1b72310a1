//! The manifests that a client has read: a version never changes, and one that is pinned again is
//! not sent again. So a reader keeps the upper level of each table and index that it reads (I11).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use pool::manifest::Manifest;

/// Bytes of manifests, as they are sent, that a client keeps at most.
const KEPT_BYTES_MAX: u64 = 64 << 20;

/// The last manifest of each table that was read over the connections of a client.
#[derive(Debug, Default)]
pub(super) struct ManifestCache(Mutex<Cached>);

#[derive(Debug, Default)]
struct Cached {
    /// By the server that has the table, and the table.
    by_table: HashMap<(usize, String), CachedManifest>,
    /// Of all.
    bytes: u64,
}

#[derive(Debug)]
struct CachedManifest {
    version: u64,
    bytes: u64,
    manifest: Arc<Manifest>,
}

impl ManifestCache {
    /// That of a version, if it is kept and has this many bytes.
    pub(super) fn get(
        &self,
        (server, table, version): &(usize, String, u64),
        bytes: u64,
    ) -> Option<Arc<Manifest>> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = kept.by_table.get(&(*server, table.clone()))?;
        let is_same = (found.version, found.bytes) == (*version, bytes);
        is_same.then(|| Arc::clone(&found.manifest))
    }

    /// Keeps that of a version in place of the one before. When all together are too large, the
    /// others are given up.
    pub(super) fn put(
        &self,
        (server, table, version): &(usize, String, u64),
        bytes: u64,
        manifest: &Arc<Manifest>,
    ) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Cached { by_table, bytes: all } = &mut *kept;
        let at = (*server, table.clone());
        *all -= by_table.remove(&at).map_or(0, |before| before.bytes);
        if *all + bytes > KEPT_BYTES_MAX {
            by_table.clear();
            *all = 0;
        }
        if bytes <= KEPT_BYTES_MAX {
            *all += bytes;
            let (version, manifest) = (*version, Arc::clone(manifest));
            by_table.insert(at, CachedManifest { version, bytes, manifest });
        }
    }
}

#[cfg(test)]
mod tests {
    use pool::manifest::{Definition, Layout};

    use super::*;

    fn manifest(table: &str, version: u64) -> Arc<Manifest> {
        let columns = vec![Layout::Fixed(8)];
        Arc::new(Manifest {
            table: table.into(),
            version,
            definition: Definition { schema: vec![], columns, buckets: vec![], strip_rows: 8 },
            strips: vec![],
            partitions: vec![0, 0],
            extents: vec![],
            holders: vec![],
            origin: None,
        })
    }

    fn key(server: usize, table: &str, version: u64) -> (usize, String, u64) {
        (server, table.to_owned(), version)
    }

    #[test]
    fn the_last_of_each_table_is_kept_within_the_bound() {
        let cache = ManifestCache::default();
        let put = |server, table: &str, version, bytes| {
            cache.put(&key(server, table, version), bytes, &manifest(table, version));
        };
        let has = |server, table: &str, version, bytes| {
            let found = cache.get(&key(server, table, version), bytes);
            found.inspect(|of| assert_eq!((&*of.table, of.version), (table, version))).is_some()
        };
        assert!(!has(0, "a", 1, 10));
        put(0, "a", 1, 10);
        put(1, "b", 1, 20);
        assert!(has(0, "a", 1, 10) && has(1, "b", 1, 20));
        assert!(!has(1, "a", 1, 10) && !has(0, "a", 2, 10) && !has(0, "a", 1, 11));
        put(0, "a", 2, 12);
        assert!(has(0, "a", 2, 12) && !has(0, "a", 1, 10));
        // One that fits together with the others, one that does not, and one that never does.
        put(0, "c", 1, KEPT_BYTES_MAX - 32);
        assert!(has(0, "a", 2, 12) && has(1, "b", 1, 20) && has(0, "c", 1, KEPT_BYTES_MAX - 32));
        put(0, "d", 1, 1);
        assert!(!has(0, "a", 2, 12) && !has(0, "c", 1, KEPT_BYTES_MAX - 32) && has(0, "d", 1, 1));
        put(0, "d", 2, KEPT_BYTES_MAX + 1);
        assert!(!has(0, "d", 1, 1) && !has(0, "d", 2, KEPT_BYTES_MAX + 1));
        put(0, "e", 1, KEPT_BYTES_MAX);
        assert!(has(0, "e", 1, KEPT_BYTES_MAX));
    }
}
