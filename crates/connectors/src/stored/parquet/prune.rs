//! Leaves out row groups if the footers say that none of their rows can match.
//!
//! Matching rows, bad rows and their counters must not depend on the row groups that are left out.
//! So a row group is left out only if it cannot have a bad row: every value of the type of each
//! column that is read fits the declared type, and a column that is declared NOT NULL has no NULL
//! according to its statistics.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use dataflow::predicate::{ColumnPredicate, ColumnSummary};
use dataflow::source::{NeededRows, Pruning};

use super::matching::{MatchRate, RowPredicate};
use super::statistics::{GroupStatistics, always_fits};
use super::{ParquetFile, ParquetSource};
use crate::format::TargetColumns;

/// The row groups that were left out of a source.
#[derive(Clone)]
pub(super) struct Pruned {
    pub(super) by: Pruning,
    /// The number of row groups before any was left out.
    groups: usize,
    rate: Arc<MatchRate>,
}

/// The statistics of one file, of some columns: kept from one of its row groups to the next.
#[derive(Default)]
pub(super) struct LastStatistics(Mutex<Option<(usize, Arc<FileStatistics>)>>);

impl LastStatistics {
    /// The statistics of a file, of the columns of a predicate.
    fn of(
        &self,
        number: usize,
        kept: &ColumnPredicate,
        make: impl FnOnce() -> FileStatistics,
    ) -> Arc<FileStatistics> {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((of, statistics)) = &*last
            && *of == number
            && statistics.columns.keys().copied().eq(kept.columns())
        {
            return statistics.clone();
        }
        let made = Arc::new(make());
        *last = Some((number, made.clone()));
        made
    }
}

/// The rows that joins need, asked for before each row group is read.
#[derive(Clone)]
pub(super) struct Listening {
    needed: NeededRows,
    /// Of the rows of one run.
    rate: Arc<MatchRate>,
}

impl ParquetSource {
    /// The same source, which asks `needed` for the rows that joins need.
    pub(super) fn listening(&self, needed: NeededRows) -> Self {
        let (files, target) = (Arc::clone(&self.files), Arc::clone(&self.target));
        let (flows, pruned) = (self.flows.clone(), self.pruned.clone());
        let listening = Some(Listening { needed, rate: Arc::default() });
        Self { files, flows, target, pruned, listening, last: LastStatistics::default() }
    }

    /// The source without the row groups that cannot match.
    pub(super) fn without_groups(&self, by: &Pruning) -> Option<Self> {
        let mut file_statistics = None;
        let mut flows = Vec::with_capacity(self.flows.len());
        for &(number, group) in &self.flows {
            let statistics = match &mut file_statistics {
                Some((of, statistics)) if *of == number => statistics,
                other => {
                    let file = &self.files[number];
                    &mut other.insert((number, FileStatistics::new(file, &self.target, &by.kept))).1
                }
            };
            if statistics.may_match(group, &by.kept) {
                flows.push((number, group));
            }
        }
        if flows.len() == self.flows.len() && !by.within_splits {
            return None;
        }
        let (files, target) = (Arc::clone(&self.files), Arc::clone(&self.target));
        let pruned = match &self.pruned {
            None => Pruned { by: by.clone(), groups: self.flows.len(), rate: Arc::default() },
            Some(Pruned { by: before, groups, .. }) => {
                Pruned { by: before.and(by), groups: *groups, rate: Arc::default() }
            }
        };
        let (pruned, listening) = (Some(pruned), self.listening.clone());
        Some(Self { files, flows, target, pruned, listening, last: LastStatistics::default() })
    }

    /// The predicate on the rows of a row group, if some of them may be left out.
    pub(super) fn row_predicate(&self, file: usize, group: usize) -> Option<RowPredicate> {
        let pruned = self.pruned.as_ref().filter(|of| of.by.within_splits);
        let listening = self.listening.as_ref();
        let needed = listening.and_then(|of| Some(((of.needed)()?, Arc::clone(&of.rate))));
        let of_joins = needed.is_some() && pruned.is_none();
        let (kept, rate) = match (pruned, needed) {
            (None, None) => return None,
            (Some(pruned), None) => (pruned.by.kept.clone(), Arc::clone(&pruned.rate)),
            (None, Some(needed)) => needed,
            (Some(pruned), Some((needed, rate))) => {
                (ColumnPredicate::All(vec![pruned.by.kept.clone(), needed]), rate)
            }
        };
        let new = || FileStatistics::new(&self.files[file], &self.target, &kept);
        let statistics = self.last.of(file, &kept, new);
        if statistics.may_be_bad(group) {
            return None;
        }
        let may_match = statistics.may_match(group, &kept);
        Some(RowPredicate { kept, may_match, of_joins, rate })
    }

    /// For EXPLAIN.
    pub(super) fn describe_pruned(&self) -> Option<String> {
        let Pruned { by, groups, .. } = self.pruned.as_ref()?;
        let (left, by) = (self.flows.len(), by.kept.describe(&self.target.projected));
        Some(format!("row groups {left} of {groups}, by {by}"))
    }
}

/// The statistics in the footer of a file, of the columns of a predicate.
struct FileStatistics {
    columns: BTreeMap<usize, GroupStatistics>,
    /// The columns that are declared NOT NULL and are nullable in the file.
    not_null: Vec<GroupStatistics>,
    fits: bool,
}

impl FileStatistics {
    fn new(file: &ParquetFile, target: &TargetColumns, kept: &ColumnPredicate) -> Self {
        let of = |position| GroupStatistics::new(file, target, position);
        let columns = kept.columns().into_iter().map(|position| (position, of(position)));
        let not_null = (0..target.projected.fields().len()).filter(|position| {
            let column = target.column_at(*position).and_then(|at| file.mapping.column_of(at));
            let is_null = column.is_some_and(|at| file.metadata.schema().field(at).is_nullable());
            is_null && !target.projected.field(*position).is_nullable()
        });
        Self {
            columns: columns.collect(),
            not_null: not_null.map(of).collect(),
            fits: file.fits(target),
        }
    }

    fn may_match(&self, group: usize, kept: &ColumnPredicate) -> bool {
        let known = |position: usize| match self.columns.get(&position) {
            Some(statistics) => statistics.of(group),
            None => ColumnSummary::default(),
        };
        self.may_be_bad(group) || kept.may_match(&known)
    }

    /// Whether a row group may have bad rows.
    fn may_be_bad(&self, group: usize) -> bool {
        let may_be_null = |column: &GroupStatistics| column.of(group).nulls != Some(0);
        !self.fits || self.not_null.iter().any(may_be_null)
    }
}

impl ParquetFile {
    /// Whether each value of the columns that are read fits the declared type.
    pub(super) fn fits(&self, target: &TargetColumns) -> bool {
        target.columns_read().into_iter().all(|declared| {
            let Some(column) = self.mapping.column_of(declared) else { return true };
            let of = self.metadata.schema().field(column).data_type();
            always_fits(of, target.declared.field(declared).data_type())
        })
    }
}
