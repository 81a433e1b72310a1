//! A table whose changes are followed, and the outlet to its reader.

use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{SyncSender, TrySendError};
use std::sync::{Arc, Weak};
use std::task::Waker;
use std::time::Duration;

use dataflow::backlog::FlowBacklog;
use dataflow::error::ConnectorError;

use crate::changes::ChangeColumns;
use crate::pieces::{ChangeBatch, LogPlace};
use crate::ranges::ReadRanges;
use crate::table::PgTable;

/// How long to wait until the reader may have room.
const ROOM_PAUSE: Duration = Duration::from_millis(5);
/// How long to wait before a connection that was lost is made again.
pub(crate) const LOST_PAUSE: Duration = Duration::from_millis(250);

/// Where a job begins, or goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FollowFrom {
    /// With a slot that is made.
    Anew,
    /// Within the rows that were there when the slot was made, at this place.
    Rows(LogPlace, ReadRanges),
    /// In the log; with the ranges while they are needed.
    Log(LogPlace, Option<Arc<ReadRanges>>),
}

/// How the changes of a table are followed.
pub(crate) struct Following {
    pub(crate) table: PgTable,
    pub(crate) columns: ChangeColumns,
    pub(crate) slot: String,
    pub(crate) publication: String,
    /// Whether the slot ends with the connection.
    pub(crate) is_temporary: bool,
    /// Whether the rows that are there when the job begins are given first.
    pub(crate) has_snapshot: bool,
    /// Whether the job begins anew: a slot of that name is of a run before.
    pub(crate) is_new: bool,
    /// The position up to which the server may remove its log.
    pub(crate) confirmed: Arc<AtomicU64>,
    /// How far it is behind, for metrics.
    pub(crate) backlog: Weak<FlowBacklog>,
}

/// Where the thread puts what it has.
pub(crate) struct Outlet {
    pub(crate) to: SyncSender<Result<ChangeBatch, ConnectorError>>,
    pub(crate) waker: Waker,
    pub(crate) wanted: Weak<()>,
}

impl Outlet {
    /// Gives something, or gives it back after a while if there is no room.
    pub(crate) fn try_give(&self, given: ChangeBatch) -> Option<ChangeBatch> {
        match self.to.try_send(Ok(given)) {
            Err(TrySendError::Full(Ok(given))) => {
                std::thread::sleep(ROOM_PAUSE);
                Some(given)
            }
            _ => {
                self.waker.wake_by_ref();
                None
            }
        }
    }

    /// Gives something; `false` if nobody wants it any more.
    pub(crate) fn give(&self, given: ChangeBatch) -> bool {
        let is_wanted = self.to.send(Ok(given)).is_ok();
        self.waker.wake_by_ref();
        is_wanted
    }

    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted.strong_count() > 0
    }
}
