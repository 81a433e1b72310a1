//! The nodes that go on when others do not come back.
//!
//! The nodes of a launcher have no common parent that could decide. The first node that has waited
//! for too long creates a record of the nodes that wait, and all others obey it.

use bytes::Bytes;

use super::view::repeated;
use crate::error::CheckpointError;
use crate::store::{Created, ObjectName, Store};

/// Bytes of a record at most: 256 numbers.
const TEXT_BYTES_MAX: u64 = 4096;

fn record(job: &ObjectName, launch: &str) -> Result<ObjectName, CheckpointError> {
    if launch.contains('/') {
        return Err(CheckpointError::invalid(format!("{launch:?} cannot name a launch")));
    }
    job.join("members")?.join(&format!("of-{launch}"))
}

/// Numbers of nodes in ascending order, each below `nodes`, behind commas; `None` if a text is
/// anything else.
#[must_use]
pub fn ranks_of(text: &str, nodes: u32) -> Option<Vec<u32>> {
    let ranks: Option<Vec<u32>> = text.split(',').map(|rank| rank.parse().ok()).collect();
    ranks.filter(|ranks| ranks.is_sorted_by(|a, b| a < b) && ranks.iter().all(|of| *of < nodes))
}

/// Proposes the nodes of a launch that go on without the others; gives whether this proposal is the
/// one that counts, which is the first.
///
/// # Errors
/// When the store fails, or `launch` cannot be part of a name.
pub fn propose_members(
    store: &dyn Store,
    job: &ObjectName,
    launch: &str,
    ranks: &[u32],
) -> Result<bool, CheckpointError> {
    let ranks: Vec<String> = ranks.iter().map(u32::to_string).collect();
    let (name, bytes) = (record(job, launch)?, Bytes::from(ranks.join(",")));
    // A create is repeated if its answer was lost: the proposal counts, though this gives false.
    Ok(repeated(|| store.create(&name, &bytes))? == Created::New)
}

/// The nodes of a launch of `nodes` that go on without the others, in ascending order; `None` if
/// nobody has proposed any.
///
/// # Errors
/// When the store fails, or the record is none.
pub fn members(
    store: &dyn Store,
    job: &ObjectName,
    launch: &str,
    nodes: u32,
) -> Result<Option<Vec<u32>>, CheckpointError> {
    let name = record(job, launch)?;
    let Some(bytes) = repeated(|| store.get(&name, Some(0..TEXT_BYTES_MAX)))? else {
        return Ok(None);
    };
    let ranks = std::str::from_utf8(&bytes).ok().and_then(|text| ranks_of(text, nodes));
    let none = || CheckpointError::invalid(format!("{} names no nodes", store.place(&name)));
    ranks.map(Some).ok_or_else(none)
}

/// Removes the decisions of earlier launches of a job.
///
/// # Errors
/// When the store fails.
pub fn forget_members(store: &dyn Store, job: &ObjectName) -> Result<(), CheckpointError> {
    for object in store.list(Some(&job.join("members")?))? {
        repeated(|| store.delete(&object.name))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryStore;

    #[test]
    fn the_first_proposal_counts() {
        let (store, job) = (MemoryStore::default(), ObjectName::job("clicks").unwrap());
        assert_eq!(members(&store, &job, "17.0", 4).unwrap(), None);
        assert!(propose_members(&store, &job, "17.0", &[0, 2, 3]).unwrap());
        assert!(!propose_members(&store, &job, "17.0", &[2]).unwrap());
        assert_eq!(members(&store, &job, "17.0", 4).unwrap(), Some(vec![0, 2, 3]));
        assert!(members(&store, &job, "17.0", 3).is_err(), "it has no node 3");
        assert_eq!(members(&store, &job, "17.0.1", 3).unwrap(), None);
        assert!(propose_members(&store, &job, "../17", &[0]).is_err());
        forget_members(&store, &job).unwrap();
        assert_eq!(members(&store, &job, "17.0", 4).unwrap(), None);
    }

    #[test]
    fn ranks_are_read_strictly() {
        assert_eq!(ranks_of("0,2,3", 4), Some(vec![0, 2, 3]));
        assert_eq!(ranks_of("1", 2), Some(vec![1]));
        for text in ["", "0,0", "2,1", "0,4", "0,", "a", "0;1", "-1"] {
            assert_eq!(ranks_of(text, 4), None, "{text}");
        }
    }
}
