//! Errors of stores and of what they hold.

use thiserror::Error;

/// Whether a call that failed may have changed the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WriteEffect {
    /// Nothing has changed, and nothing will by this call.
    None,
    /// The answer was lost: the call may have taken effect, or may yet take effect.
    Unknown,
}

/// A call to a store that failed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{place}: {message}")]
pub struct StoreError {
    /// The file or URL, without secrets.
    pub place: String,
    /// The cause, in words.
    pub message: String,
    /// Whether it may have taken effect.
    pub effect: WriteEffect,
}

impl StoreError {
    /// A failure that has changed nothing.
    #[must_use]
    pub fn refused(place: impl Into<String>, message: impl Into<String>) -> Self {
        Self { place: place.into(), message: message.into(), effect: WriteEffect::None }
    }

    /// A failure of which the caller cannot know whether it has changed anything.
    #[must_use]
    pub fn unknown(place: impl Into<String>, message: impl Into<String>) -> Self {
        Self { place: place.into(), message: message.into(), effect: WriteEffect::Unknown }
    }
}

/// Why a checkpoint cannot be stored or read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A file is not what was written.
    #[error("{file}, byte {offset}: {reason}")]
    Damaged {
        /// The object, as [`Store::place`](crate::Store::place) names it.
        file: String,
        /// Where the damage was found, in bytes from the beginning.
        offset: u64,
        /// The damage.
        reason: String,
    },
    /// A file that a record names is not there.
    #[error("{file} is missing")]
    Missing {
        /// The object, as [`Store::place`](crate::Store::place) names it.
        file: String,
    },
    /// A file was written by a later release.
    #[error("{file} has version {version} of its format, and this release reads up to {newest}")]
    Version {
        /// The object.
        file: String,
        /// Its version.
        version: u64,
        /// The newest version that this release reads.
        newest: u64,
    },
    /// Another run of the job has begun: this one must stop, and publish nothing.
    #[error("job '{job}' goes on elsewhere{by}: this run, generation {generation}, stops")]
    Fenced {
        /// The job.
        job: String,
        /// The generation of this run.
        generation: u64,
        /// The run that goes on, as ` as generation 8 on host3 (process 812)`; empty if unknown.
        by: String,
    },
    /// The answer to a write was lost, and asking again has not told its outcome either. The same
    /// record has to be asked again before any other.
    #[error("it is unknown whether record {record} of job '{job}' was written: {cause}")]
    Pending {
        /// The job.
        job: String,
        /// Its number in the chain.
        record: u64,
        /// The last failure.
        cause: StoreError,
    },
    /// The store does not decide between two runs of a job.
    #[error(
        "{place}: this store replaces what a conditional put (If-None-Match) must not replace, so \
         that two runs of a job could both believe that they go on"
    )]
    Unconditional {
        /// The object that was replaced.
        place: String,
    },
    /// A name, a number or a size that is out of bounds, given by the caller.
    #[error("{reason}")]
    Invalid {
        /// The mistake.
        reason: String,
    },
    /// Something that was asked for is not there.
    #[error("{what} is not there")]
    NotFound {
        /// The job, checkpoint or name.
        what: String,
    },
}

impl CheckpointError {
    pub(crate) fn damaged(file: &str, offset: u64, reason: impl Into<String>) -> Self {
        Self::Damaged { file: file.to_owned(), offset, reason: reason.into() }
    }

    pub(crate) fn invalid(reason: impl Into<String>) -> Self {
        Self::Invalid { reason: reason.into() }
    }
}
