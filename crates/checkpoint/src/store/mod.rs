//! Stores: where the objects of checkpoints lie.
//!
//! A store is a flat set of named objects. [`Store::create`] is the only call that the correctness
//! of a chain rests on: of several callers that create one name, one succeeds.

mod directory;
mod memory;
mod name;

use std::ops::Range;

use bytes::Bytes;

pub use directory::DirectoryStore;
pub use memory::{Faults, MemoryStore, StoreCall};
pub use name::{JOB_BYTES_MAX, NAME_BYTES_MAX, ObjectName, PART_BYTES_MAX};

use crate::error::StoreError;

/// Objects that a listing gives at most; more is an error, so that a store that does not end its
/// listing cannot fill the memory.
pub const LISTED_MAX: usize = 1 << 20;

/// The answer to [`Store::create`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Created {
    /// The object was not there, and is now.
    New,
    /// An object of this name was there before, and is unchanged. It may be one that the same
    /// caller has created by a call whose answer was lost.
    Exists,
}

/// An object of a listing.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct StoredObject {
    /// Its name.
    pub name: ObjectName,
    /// Its size in bytes.
    pub bytes: u64,
    /// When it was last written, by the clock of the store: milliseconds since 1970.
    pub modified_ms: i64,
}

/// An object that is being written. Dropping it gives it up: there is no object, or the one that
/// there was.
pub trait ObjectWriter {
    /// Writes bytes behind those before. The writer may keep a few of them until there are enough
    /// for a request.
    ///
    /// # Errors
    /// When the store cannot be reached or refuses.
    fn write(&mut self, bytes: Bytes) -> Result<(), StoreError>;

    /// Nothing more comes: the object appears, and is durable.
    ///
    /// # Errors
    /// When the store cannot be reached or refuses.
    fn finish(self: Box<Self>) -> Result<(), StoreError>;
}

/// Gathers an object in memory, for a store that writes whole ones.
struct GatheringWriter<'a, S: ?Sized> {
    store: &'a S,
    name: ObjectName,
    parts: Vec<Bytes>,
}

impl<S: Store + ?Sized> ObjectWriter for GatheringWriter<'_, S> {
    fn write(&mut self, bytes: Bytes) -> Result<(), StoreError> {
        self.parts.push(bytes);
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<(), StoreError> {
        self.store.put(&self.name, &self.parts)
    }
}

/// Named objects that outlive the process. Every call may take long: none is for a worker's thread.
///
/// After a call has succeeded its effect is durable, and all later calls of all processes see it. A
/// call that fails tells whether it may have taken effect ([`StoreError::effect`]).
pub trait Store: Send + Sync {
    /// Creates an object, unless one of this name is there. It appears as a whole or not at all.
    ///
    /// # Errors
    /// When the store cannot be reached or refuses.
    fn create(&self, name: &ObjectName, bytes: &Bytes) -> Result<Created, StoreError>;

    /// Writes an object as a whole, in place of one that may be there. Its bytes are `parts`, one
    /// behind the other.
    ///
    /// # Errors
    /// When the store cannot be reached or refuses.
    fn put(&self, name: &ObjectName, parts: &[Bytes]) -> Result<(), StoreError>;

    /// Begins to write an object as a whole, piece by piece, in place of one that may be there. It
    /// is not seen before [`ObjectWriter::finish`].
    ///
    /// # Errors
    /// When the store cannot be reached or refuses.
    fn writer<'a>(&'a self, name: &ObjectName) -> Result<Box<dyn ObjectWriter + 'a>, StoreError> {
        Ok(Box::new(GatheringWriter { store: self, name: name.clone(), parts: Vec::new() }))
    }

    /// The bytes of an object, or those of a range of it; `None` if there is no such object. A
    /// range that reaches beyond the end gives fewer bytes.
    ///
    /// # Errors
    /// When the store cannot be reached or refuses.
    fn get(
        &self,
        name: &ObjectName,
        range: Option<Range<u64>>,
    ) -> Result<Option<Bytes>, StoreError>;

    /// The objects whose names begin with `prefix` and `/`, sorted by name; all objects for `None`.
    ///
    /// # Errors
    /// When the store cannot be reached or refuses, or has more than [`LISTED_MAX`] of them.
    fn list(&self, prefix: Option<&ObjectName>) -> Result<Vec<StoredObject>, StoreError>;

    /// The parts directly below `prefix`: the jobs of a store for `None`, sorted.
    ///
    /// # Errors
    /// As [`list`](Self::list).
    fn children(&self, prefix: Option<&ObjectName>) -> Result<Vec<String>, StoreError> {
        let depth = prefix.map_or(0, |prefix| prefix.as_str().len() + 1);
        let mut parts: Vec<String> = self
            .list(prefix)?
            .iter()
            .filter_map(|object| object.name.as_str().get(depth..)?.split('/').next())
            .map(str::to_owned)
            .collect();
        parts.sort_unstable();
        parts.dedup();
        Ok(parts)
    }

    /// Deletes an object, if it is there.
    ///
    /// # Errors
    /// When the store cannot be reached or refuses.
    fn delete(&self, name: &ObjectName) -> Result<(), StoreError>;

    /// Removes the empty folders of a name, where the store has folders.
    ///
    /// # Errors
    /// When the store cannot be reached or refuses.
    fn remove_folder(&self, name: &ObjectName) -> Result<(), StoreError> {
        let _ = name;
        Ok(())
    }

    /// Removes what processes that are dead have left below `prefix` of their writes, and gives how
    /// many files there were.
    ///
    /// # Errors
    /// When the store cannot be reached or refuses.
    fn clean(&self, prefix: &ObjectName) -> Result<u64, StoreError> {
        let _ = prefix;
        Ok(0)
    }

    /// An object as messages name it: a path or a URL, without secrets.
    fn place(&self, name: &ObjectName) -> String;
}
