//! Changes of the time in which the rows were read, when they were read with several snapshots: a
//! change is given if the row of its key was read without it.

use std::sync::Arc;

use crate::changes::Change;
use crate::client::{PgConnection, Purpose};
use crate::errors::PgError;
use crate::key::TableKey;
use crate::pgoutput::{LoggedValue, OldRow, PgRelation};
use crate::pieces::{ChangeBatch, Doubt};
use crate::ranges::{KeyText, ReadRanges};
use crate::table::PgTable;

/// Whether the snapshots of all ranges see a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sight {
    All,
    None,
    Some,
}

/// The ranges, while the log has changes that rows were read with.
pub(crate) struct Overlap {
    pub(crate) ranges: Arc<ReadRanges>,
    key: Option<TableKey>,
    queries: Option<PgConnection>,
}

impl Overlap {
    pub(crate) fn new(ranges: Arc<ReadRanges>) -> Self {
        Self { ranges, key: None, queries: None }
    }

    /// The snapshots that see a transaction with this commit.
    pub(crate) fn sight(&self, transaction: u32, commit_lsn: u64) -> Sight {
        if !self.ranges.overlap(commit_lsn) {
            return Sight::None;
        }
        let mut seen = self.ranges.ranges.iter().map(|range| range.seen.sees(transaction));
        let first = seen.next().unwrap_or(false);
        match (first, seen.all(|other| other == first)) {
            (_, false) => Sight::Some,
            (true, true) => Sight::All,
            (false, true) => Sight::None,
        }
    }

    /// The keys of a change.
    ///
    /// # Errors
    /// When the log does not have them.
    pub(crate) fn doubt(
        &self,
        relation: &PgRelation,
        old: Option<&OldRow>,
        new: Option<&Vec<LoggedValue>>,
        transaction: u32,
    ) -> Result<Doubt, PgError> {
        let of = |values: &[LoggedValue], or: Option<&[LoggedValue]>| {
            let text = |name: &String| {
                let at = relation.columns.iter().position(|column| column == name)?;
                match (values.get(at)?, or.and_then(|or| or.get(at))) {
                    (LoggedValue::Text(text), _) => Some(text.clone()),
                    (LoggedValue::Unsent, Some(LoggedValue::Text(text))) => Some(text.clone()),
                    _ => None,
                }
            };
            let key: Option<KeyText> = self.ranges.columns.iter().map(text).collect();
            key.ok_or_else(|| PgError::Own {
                message: "a change of the time in which rows were read has not their key".into(),
                hint: "leave primary key and REPLICA IDENTITY as they are; begin anew: --from none"
                    .into(),
            })
        };
        let old = old.map(|old| old.values.as_slice());
        let after = new.map(|new| of(new, old)).transpose()?;
        // Of an update that leaves the key as it is, the log has the new row alone.
        let before = match (old, new) {
            (Some(old), _) => Some(of(old, None)?),
            (None, _) => None,
        };
        Ok(Doubt { at: 0, transaction, before, after })
    }

    /// Drops the changes that rows were read with.
    ///
    /// # Errors
    /// When the server is away.
    pub(crate) fn resolve(
        &mut self,
        table: &PgTable,
        piece: &mut ChangeBatch,
    ) -> Result<(), PgError> {
        let doubts = std::mem::take(&mut piece.doubts);
        if doubts.is_empty() {
            return Ok(());
        }
        let keys: Vec<KeyText> = doubts
            .iter()
            .flat_map(|doubt| [&doubt.before, &doubt.after].into_iter().flatten().cloned())
            .collect();
        let mut found = self.find(table, &keys)?.into_iter();
        let changes = std::mem::take(&mut piece.changes);
        let mut doubts = doubts.into_iter().peekable();
        for (at, change) in changes.into_iter().enumerate() {
            let Some(doubt) = doubts.next_if(|doubt| doubt.at == at) else {
                piece.changes.push(change);
                continue;
            };
            let mut is_seen = |key: &Option<KeyText>| {
                key.as_ref()?;
                let range = self.ranges.ranges.get(found.next()?)?;
                Some(range.seen.sees(doubt.transaction))
            };
            let (before, after) = (is_seen(&doubt.before), is_seen(&doubt.after));
            piece.changes.extend(unseen(change, before, after));
        }
        Ok(())
    }

    /// The number of the range of each key.
    fn find(&mut self, table: &PgTable, keys: &[KeyText]) -> Result<Vec<usize>, PgError> {
        let queries = match &mut self.queries {
            Some(queries) => queries,
            none => none.insert(PgConnection::open(&table.server, Purpose::Queries)?),
        };
        let key = match &mut self.key {
            Some(key) => key,
            none => {
                let key = TableKey::of(table, queries)?;
                let key = key.filter(|key| key.names() == self.ranges.columns);
                none.insert(key.ok_or_else(|| PgError::Own {
                    message: "the table has another key than when the job began".into(),
                    hint: "begin anew: --from none".into(),
                })?)
            }
        };
        let rows = queries.query(&key.find_ranges(keys, &self.ranges))?;
        let number = |row: &Vec<Option<String>>| row.first()?.as_ref()?.parse().ok();
        let numbers: Option<Vec<usize>> = rows.iter().map(number).collect();
        numbers
            .filter(|numbers| numbers.len() == keys.len())
            .ok_or_else(|| PgError::Breach("a key is in no range".into()))
    }
}

/// The rest of a change where the row before it, or the one after it, was read with it.
fn unseen(mut change: Change, before: Option<bool>, after: Option<bool>) -> Option<Change> {
    match (before, after) {
        (Some(true), Some(true)) | (None, Some(true)) | (Some(true), None) => None,
        // The row has gone from a range that was read without that.
        (Some(false), Some(true)) => {
            (change.op, change.after) = ("d", None);
            Some(change)
        }
        // It has come to one.
        (Some(true), Some(false)) => {
            (change.op, change.before) = ("c", None);
            Some(change)
        }
        (None | Some(false), None | Some(false)) => Some(change),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_given_as_far_as_rows_were_read_without_it() {
        let side = |text: &str| Some(vec![Some(text.to_owned())]);
        let change = Change {
            op: "u",
            before: side("old"),
            after: side("new"),
            lsn: 1,
            number: 1,
            time_us: None,
            key: vec![],
        };
        let of = |before, after| {
            unseen(change.clone(), before, after)
                .map(|left| (left.op, left.before.is_some(), left.after.is_some()))
        };
        assert_eq!(of(Some(false), Some(false)), Some(("u", true, true)));
        assert_eq!(of(None, Some(false)), Some(("u", true, true)));
        assert_eq!(of(Some(false), Some(true)), Some(("d", true, false)));
        assert_eq!(of(Some(true), Some(false)), Some(("c", false, true)));
        for (before, after) in [(Some(true), Some(true)), (None, Some(true)), (Some(true), None)] {
            assert_eq!(of(before, after), None);
        }
    }
}
