//! The entries of a checkpoint's manifest.

use std::collections::BTreeMap;

use checkpoint::record::{POSITION_BYTES_MAX, STAGED_BYTES_MAX};
use checkpoint::{
    CheckpointManifest, OperatorEntry, SinkEntry, SourceEntry, SplitEntry, StagedPart, TableEntry,
};
use dataflow::checkpoint::WorkerSnapshot;
use dataflow::error::DataflowError;
use dataflow::job::JobGraph;
use dataflow::time::to_millis;

use super::ids::OperatorId;
use crate::checkpoints::{BAD, LATE};
use crate::error::Error;

/// Bytes that all sinks together stage in a record at most. In hexadecimal digits they take twice
/// as many, of which a record has room for 64 MiB.
const STAGED_IN_RECORD_MAX: usize = 8 << 20;

/// The versions of the tables that a job reads.
pub(super) fn tables_of(job: &JobGraph) -> Vec<TableEntry> {
    let scans = job.operators.iter().flat_map(|operator| {
        let spec = operator.spec();
        spec.source().into_iter().chain(spec.side_table().map(|side| side.table))
    });
    let versions: BTreeMap<String, u64> = scans.filter_map(|scan| scan.source.version()).collect();
    versions.into_iter().map(|(table, version)| TableEntry { table, version }).collect()
}

/// The entries of a checkpoint for operators, sources and sinks.
pub(super) fn manifest(
    workers: &[WorkerSnapshot],
    (job, ids, marks): (&JobGraph, &[OperatorId], &[Option<[u64; 2]>]),
    number: u64,
    parent: Option<u64>,
) -> CheckpointManifest {
    let entry = |(at, of): (usize, &OperatorId)| {
        let operators = workers.iter().flat_map(|worker| &worker.operators);
        let own = operators.filter(|operator| operator.operator as usize == at);
        let watermark = own.map(|operator| to_millis(operator.watermark, job.time_unit(at))).max();
        OperatorEntry { id: of.id.clone(), text: of.text.clone(), watermark }
    };
    let operators = ids.iter().enumerate().filter(|(_, of)| of.remembers).map(entry).collect();
    let (mut sources, mut sinks, mut room) = (Vec::new(), Vec::new(), STAGED_IN_RECORD_MAX);
    for (at, of) in ids.iter().enumerate() {
        let splits: Vec<SplitEntry> = workers
            .iter()
            .flat_map(|worker| &worker.splits)
            .filter(|split| split.operator as usize == at)
            .map(|split| SplitEntry {
                name: split.position.split().to_owned(),
                // The segment has it too, and it alone if it is long. No run reads on from the end.
                position: Some(split.position.to_bytes())
                    .filter(|bytes| !split.ended && bytes.len() <= POSITION_BYTES_MAX)
                    .unwrap_or_default(),
                greatest: split.greatest,
                ended: split.ended,
            })
            .collect();
        if !splits.is_empty() {
            sources.push(SourceEntry { id: of.id.clone(), splits });
        }
        let sink = job.operators.get(at).and_then(|operator| operator.kind.spec().sink());
        // Staged bytes that are the rows themselves are in the segments alone.
        let in_record = !sink.is_some_and(|sink| sink.stages_rows());
        let mut parts = Vec::new();
        for worker in workers.iter().filter(|_| in_record) {
            let own = worker.sinks.iter().filter(|sink| sink.operator as usize == at);
            parts.extend(own.map(|sink| {
                let bytes = sink.staged.len();
                // Long lists, of thousands of files, are in the segments alone too.
                let staged = if bytes <= STAGED_BYTES_MAX.min(room) {
                    room -= bytes;
                    sink.staged.clone()
                } else {
                    Vec::new()
                };
                StagedPart { part: worker.worker, staged }
            }));
        }
        let mark = marks.get(at).copied().flatten();
        if !parts.is_empty() || mark.is_some() {
            sinks.push(SinkEntry { id: of.id.clone(), parts, mark });
        }
    }
    let counters = [
        (LATE.to_owned(), workers.iter().map(|worker| worker.late).sum()),
        (BAD.to_owned(), workers.iter().map(|worker| worker.bad).sum()),
    ];
    CheckpointManifest {
        number,
        parent,
        operators,
        sources,
        sinks,
        counters: counters.into(),
        ..CheckpointManifest::default()
    }
}

/// By operator, the mark that its sink has now.
pub(super) fn marks_of(job: &JobGraph) -> Result<Vec<Option<[u64; 2]>>, Error> {
    let marks = job.operators.iter().enumerate().map(|(at, operator)| {
        let Some(sink) = operator.kind.spec().sink() else { return Ok(None) };
        let mark = sink.mark();
        Ok(mark.map_err(|error| DataflowError::from(error).of_operator(at))?)
    });
    marks.collect()
}
