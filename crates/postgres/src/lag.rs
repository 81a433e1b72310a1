//! How far a slot is behind, and what the server keeps for it.

use std::time::{Duration, Instant};

use crate::client::{PgConnection, Purpose, literal};
use crate::errors::PgError;
use crate::following::Following;

/// How often the server is asked.
const ASKED_EVERY: Duration = Duration::from_secs(5);
/// How long no connection is made when none could be: the log is not read while one is tried.
const CONNECTED_AGAIN: Duration = Duration::from_secs(60);
/// How long it may take to answer.
const ANSWERED: Duration = Duration::from_secs(5);
/// Bytes of the log that the server keeps for a slot before that is worth a warning.
const KEPT_MUCH: u64 = 1 << 30;

/// Asks from time to time how much of its log the server keeps for a slot.
#[derive(Default)]
pub(crate) struct SlotLag {
    queries: Option<PgConnection>,
    /// When it is time again; `None` before the first time.
    next: Option<Instant>,
    is_told: bool,
}

impl SlotLag {
    /// Asks, if it is time, and keeps what the server says. `read` is the place up to which the log
    /// was read.
    pub(crate) fn look(&mut self, of: &Following, read: u64) {
        if self.next.is_some_and(|next| Instant::now() < next) {
            return;
        }
        let Some(backlog) = of.backlog.upgrade() else { return };
        // It is no failure of the job if nobody answers: the numbers stay.
        let is_new = self.queries.is_none();
        let answer = self.ask(of);
        let pause = if is_new && answer.is_err() { CONNECTED_AGAIN } else { ASKED_EVERY };
        self.next = Some(Instant::now() + pause);
        match answer {
            Ok((end, kept_from)) => {
                let (pending, retained) = (end.saturating_sub(read), end.saturating_sub(kept_from));
                backlog.set_log(pending, retained);
                if retained > KEPT_MUCH && !self.is_told {
                    self.is_told = true;
                    tracing::warn!(
                        "{}: the server keeps {retained} bytes of its log for the slot '{}': what \
                         no checkpoint of a job with --state has",
                        of.table.place(),
                        of.slot
                    );
                }
            }
            Err(error) => {
                tracing::debug!(target: "postgres", ?error, "{}: its lag", of.table.place());
                self.queries = None;
            }
        }
    }

    /// The end of the log, and the place from which on it is kept for the slot.
    fn ask(&mut self, of: &Following) -> Result<(u64, u64), PgError> {
        let queries = match &mut self.queries {
            Some(queries) => queries,
            none => {
                let queries = PgConnection::open(&of.table.server, Purpose::Queries)?;
                queries.set_timeout(ANSWERED)?;
                none.insert(queries)
            }
        };
        let rows = queries.query(&format!(
            "SELECT pg_current_wal_lsn() - '0/0', restart_lsn - '0/0' FROM pg_replication_slots \
             WHERE slot_name = {}",
            literal(&of.slot)
        ))?;
        let number = |at: usize| rows.first()?.get(at)?.as_ref()?.parse().ok();
        number(0).zip(number(1)).ok_or_else(|| PgError::Breach("a slot has no place".into()))
    }
}
