//! The log of a connection as changes of the table, transaction by transaction.

use std::sync::Arc;

use crate::changes::{Change, since_1970};
use crate::client::quoted;
use crate::errors::PgError;
use crate::following::Following;
use crate::overlap::{Overlap, Sight};
use crate::pgoutput::{LogMessage, LoggedValue, OldRow, PgRelation};
use crate::pieces::{ChangeBatch, Doubt, LogPlace, PieceEnd, shown};

/// Relations that are remembered at most.
const RELATIONS_MAX: usize = 1024;

/// A transaction that has begun.
#[derive(Debug, Clone, Copy)]
struct OpenTransaction {
    /// The place of its commit.
    lsn: u64,
    time_us: Option<i64>,
    /// The lower half of its number.
    number: u32,
}

/// The transactions of a connection.
pub(crate) struct LogDecoder<'a> {
    of: &'a Following,
    relations: Vec<PgRelation>,
    open: Option<OpenTransaction>,
    /// Its changes so far.
    seen: u64,
    /// The place behind what was read.
    pub(crate) at: LogPlace,
    /// While the log has changes that rows were read with.
    overlap: Option<Overlap>,
    /// Whether the place has moved without a change that is given.
    has_moved: bool,
    given: ChangeBatch,
}

impl<'a> LogDecoder<'a> {
    /// Begins behind a place; with the ranges while they are needed.
    pub(crate) fn new(of: &'a Following, at: LogPlace, overlap: Option<Overlap>) -> Self {
        Self {
            of,
            relations: vec![],
            open: None,
            seen: 0,
            at,
            overlap,
            has_moved: false,
            given: ChangeBatch::none(),
        }
    }

    /// Takes a message, and moves the place.
    pub(crate) fn take(&mut self, message: &LogMessage) -> Result<(), PgError> {
        match message {
            LogMessage::Begin { commit_lsn, time_us, transaction } => {
                let lsn = *commit_lsn;
                if self.at.given > 0 && lsn != self.at.lsn {
                    return Err(PgError::Own {
                        message: format!("the transaction at {} is gone", shown(self.at.lsn)),
                        hint: "begin anew: --from none".into(),
                    });
                }
                self.at.lsn = lsn;
                self.seen = 0;
                let (time_us, number) = (since_1970(*time_us), *transaction);
                self.open = Some(OpenTransaction { lsn, time_us, number });
            }
            LogMessage::Commit { end_lsn } => {
                if self.seen < self.at.given {
                    return Err(PgError::Breach("a transaction has lost changes".into()));
                }
                self.at = LogPlace { lsn: *end_lsn, given: 0 };
                self.open = None;
            }
            LogMessage::PgRelation(relation) => {
                self.relations.retain(|other| other.oid != relation.oid);
                if self.relations.len() >= RELATIONS_MAX {
                    return Err(PgError::Breach("too many tables".into()));
                }
                self.relations.push(relation.clone());
            }
            LogMessage::Insert { oid, new } => self.change("c", *oid, None, Some(new))?,
            LogMessage::Update { oid, old, new } => {
                self.change("u", *oid, old.as_ref(), Some(new))?
            }
            LogMessage::Delete { oid, old } => self.change("d", *oid, Some(old), None)?,
            LogMessage::Truncate { oids } => {
                for oid in oids {
                    self.change("t", *oid, None, None)?;
                }
            }
            LogMessage::Other => {}
        }
        Ok(())
    }

    fn change(
        &mut self,
        op: &'static str,
        oid: u32,
        old: Option<&OldRow>,
        new: Option<&Vec<LoggedValue>>,
    ) -> Result<(), PgError> {
        let Some(open) = self.open else {
            return Err(PgError::Breach("a change outside of a transaction".into()));
        };
        let relation = self.relations.iter().find(|relation| relation.oid == oid);
        let relation = relation.ok_or_else(|| PgError::Breach("a change of no table".into()))?;
        let own = [quoted(&relation.schema), quoted(&relation.name)].join(".");
        if own != self.of.table.quoted && quoted(&relation.name) != self.of.table.quoted {
            return Ok(());
        }
        self.seen += 1;
        // It was given before the connection was lost.
        if self.seen <= self.at.given {
            return Ok(());
        }
        self.at.given = self.seen;
        let sight = |overlap: &Overlap| overlap.sight(open.number, open.lsn);
        let sight = self.overlap.as_ref().map_or(Sight::None, sight);
        let doubt = match (sight, &self.overlap) {
            (Sight::All, _) => {
                self.has_moved = true;
                return Ok(());
            }
            (Sight::Some, Some(_)) if op == "t" => {
                return Err(PgError::Own {
                    message: "the table was truncated while its rows were read".into(),
                    hint: "begin anew: --from none".into(),
                });
            }
            (Sight::Some, Some(overlap)) => Some(overlap.doubt(relation, old, new, open.number)?),
            (Sight::Some, None) | (Sight::None, _) => None,
        };
        let columns = &self.of.columns;
        let before = old.map(|old| columns.side(relation, &old.values, None)).transpose();
        let after = new.map(|new| columns.side(relation, new, old)).transpose();
        let (lsn, number, time_us) = (open.lsn, self.seen, open.time_us);
        match before.and_then(|before| Ok((before, after?))) {
            Ok((before, after)) => {
                let at = self.given.changes.len();
                self.given.doubts.extend(doubt.map(|doubt| Doubt { at, ..doubt }));
                let key = vec![];
                self.given.push(Change { op, before, after, lsn, number, time_us, key });
            }
            Err(reason) => self.given.bad.push((LogPlace { lsn, given: number }, reason)),
        }
        Ok(())
    }

    /// The log has gone on without changes of the table.
    pub(crate) fn pass(&mut self, end: u64) {
        if self.open.is_none() && self.at.given == 0 && end > self.at.lsn {
            self.at = LogPlace { lsn: end, given: 0 };
            self.has_moved = true;
        }
    }

    /// Whether something is to be given now.
    pub(crate) fn is_due(&self, has_more: bool) -> bool {
        let has_some = !self.given.changes.is_empty() || !self.given.bad.is_empty();
        self.given.is_full() || !has_more && (has_some || self.has_moved)
    }

    /// The changes to give, without those that rows were read with.
    pub(crate) fn given(&mut self) -> Result<ChangeBatch, PgError> {
        if let Some(overlap) = &mut self.overlap {
            overlap.resolve(&self.of.table, &mut self.given)?;
        }
        let (place, given) = (self.at, std::mem::replace(&mut self.given, ChangeBatch::none()));
        self.overlap.take_if(|overlap| self.open.is_none() && !overlap.ranges.overlap(place.lsn));
        self.has_moved = false;
        let ranges = self.overlap.as_ref().map(|overlap| Arc::clone(&overlap.ranges));
        Ok(ChangeBatch { end: Some(PieceEnd::Log { place, ranges }), ..given })
    }
}
