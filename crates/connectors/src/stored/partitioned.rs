//! Files of which something is known before they are opened: files that cannot match are never
//! opened.
//!
//! Names of files have columns of their table, and a list of files may have summaries of others.
//! The files are chosen by these alone, so the others are not read; the source of the files
//! that are left is made when it is first used. No row of a file that is left out is read, and its
//! bad rows are not counted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use arrow::array::Array;
use arrow::datatypes::SchemaRef;
use dataflow::connector::Options;
use dataflow::error::ConnectorError;
use dataflow::predicate::{ColumnPredicate, ColumnSummary};
use dataflow::source::{
    ColumnBounds, NeededRows, Position, Pruning, ReaderContext, Source, Split, SplitReader,
};

use super::{Blob, source};
use crate::format::{Kind, TargetColumns};
use crate::options::OptionReader;

/// Summaries of files, from a list of them.
pub(crate) trait FileSummaries: Send + Sync {
    /// The summaries of the output columns at `places` in the file with this index; `None` if
    /// nothing is known, or the file may have bad rows.
    fn of(&self, file: usize, places: &BTreeSet<usize>) -> Option<BTreeMap<usize, ColumnSummary>>;
}

/// Blobs of one kind, whose names have columns.
pub(crate) struct PartitionedSource {
    /// All blobs, and the indices of those that are left.
    blobs: Arc<[Arc<dyn Blob>]>,
    left: Vec<usize>,
    kind: Kind,
    options: Options,
    target: Arc<TargetColumns>,
    summaries: Option<Arc<dyn FileSummaries>>,
    pruning: Option<Pruning>,
    opened: OnceLock<Result<Option<Arc<dyn Source>>, ConnectorError>>,
}

impl PartitionedSource {
    /// # Errors
    /// When the name of a blob has a value that its column cannot hold.
    pub(crate) fn new(
        blobs: Vec<Arc<dyn Blob>>,
        kind: Kind,
        options: Options,
        target: Arc<TargetColumns>,
    ) -> Result<Self, ConnectorError> {
        for blob in &blobs {
            for position in 0..target.projected.fields().len() {
                target.constant(position, &blob.name())?;
            }
        }
        let left = (0..blobs.len()).collect();
        let (blobs, summaries, pruning) = (blobs.into(), None, None);
        let opened = OnceLock::new();
        Ok(Self { blobs, left, kind, options, target, summaries, pruning, opened })
    }

    /// The same files, of which more is known.
    pub(crate) fn with_summaries(self, summaries: Arc<dyn FileSummaries>) -> Self {
        Self { summaries: Some(summaries), ..self }
    }

    /// Whether a blob may have rows that match.
    fn may_match(&self, blob: usize, kept: &ColumnPredicate) -> bool {
        let name = self.blobs[blob].name();
        let known = self.summaries.as_ref().and_then(|of| of.of(blob, &kept.columns()));
        let known = known.unwrap_or_default();
        kept.may_match(&|position| match self.target.constant(position, &name) {
            Ok(Some(value)) => {
                let is_null = value.is_null(0);
                let of = (!is_null).then_some(value);
                let (nulls, rows) = (Some(u64::from(is_null)), Some(1));
                ColumnSummary { least: of.clone(), greatest: of, nulls, rows, members: None }
            }
            _ => known.get(&position).cloned().unwrap_or_default(),
        })
    }

    fn make(&self) -> Result<Option<Arc<dyn Source>>, ConnectorError> {
        if self.left.is_empty() {
            return Ok(None);
        }
        let blobs = self.left.iter().map(|blob| Arc::clone(&self.blobs[*blob])).collect();
        let options = OptionReader(&self.options);
        let made = source(blobs, self.kind, options, Arc::clone(&self.target));
        let made = match made {
            // All files are opened, to tell a column that other files have from one that none has.
            Err(ConnectorError::Column { .. }) if self.left.len() < self.blobs.len() => {
                source(self.blobs.to_vec(), self.kind, options, Arc::clone(&self.target))?;
                let blobs = self.left.iter().map(|blob| Arc::clone(&self.blobs[*blob])).collect();
                source(blobs, self.kind, options, self.target.of_several())
            }
            made => made,
        }?;
        let pruned = self.pruning.as_ref().and_then(|pruning| made.pruned(pruning));
        Ok(Some(pruned.unwrap_or(made)))
    }

    fn opened(&self) -> Result<Option<&Arc<dyn Source>>, ConnectorError> {
        match self.opened.get_or_init(|| self.make()) {
            Ok(source) => Ok(source.as_ref()),
            Err(error) => Err(error.clone()),
        }
    }
}

impl Source for PartitionedSource {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.target.projected)
    }

    fn bounded(&self) -> bool {
        true
    }

    fn splits(
        &self,
        workers: u32,
        time_column: Option<usize>,
    ) -> Result<Vec<Split>, ConnectorError> {
        let source = self.opened()?;
        source.map_or_else(|| Ok(vec![]), |source| source.splits(workers, time_column))
    }

    fn splits_in_order(&self, workers: u32) -> Result<Vec<Split>, ConnectorError> {
        let source = self.opened()?;
        source.map_or_else(|| Ok(vec![]), |source| source.splits_in_order(workers))
    }

    fn bounds(&self, column: usize) -> ColumnBounds {
        let source = self.opened().ok().flatten();
        source.map_or_else(ColumnBounds::default, |source| source.bounds(column))
    }

    fn distinct(&self, column: usize) -> Option<u64> {
        self.opened().ok().flatten().and_then(|source| source.distinct(column))
    }

    fn pruned(&self, by: &Pruning) -> Option<Arc<dyn Source>> {
        let left = self.left.iter().copied().filter(|blob| self.may_match(*blob, &by.kept));
        let pruning = match &self.pruning {
            None => by.clone(),
            Some(before) => before.and(by),
        };
        Some(Arc::new(Self {
            blobs: Arc::clone(&self.blobs),
            left: left.collect(),
            kind: self.kind,
            options: self.options.clone(),
            target: Arc::clone(&self.target),
            summaries: self.summaries.clone(),
            pruning: Some(pruning),
            opened: OnceLock::new(),
        }))
    }

    fn listen(&self, needed: NeededRows) -> Option<Arc<dyn Source>> {
        self.opened().ok().flatten().and_then(|source| source.listen(needed))
    }

    fn validate(&self) -> Result<(), ConnectorError> {
        self.opened().map(drop)
    }

    fn describe_pruning(&self) -> Option<String> {
        let kept = &self.pruning.as_ref()?.kept;
        let (left, all) = (self.left.len(), self.blobs.len());
        let within = self.opened().ok().flatten().and_then(|source| source.describe_pruning());
        Some(match within {
            Some(within) => format!("files {left} of {all}, {within}"),
            None => format!("files {left} of {all}, by {}", kept.describe(&self.target.projected)),
        })
    }

    fn open(
        &self,
        split: &Split,
        from: Option<&Position>,
        context: &ReaderContext,
    ) -> Result<Box<dyn SplitReader>, ConnectorError> {
        match self.opened()? {
            Some(source) => source.open(split, from, context),
            None => Err(dataflow::position::refused(&split.name, "no file is left".into())),
        }
    }
}
