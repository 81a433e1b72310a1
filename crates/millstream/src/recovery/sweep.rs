//! Output that earlier runs of a job have staged and that no checkpoint names: the next run removes
//! it.

use checkpoint::chain;
use checkpoint::{CheckpointError, CheckpointManifest, ObjectName, Store};
use dataflow::error::DataflowError;
use dataflow::job::JobGraph;
use dataflow::sink::RunId;

use super::ids::{FittedState, OperatorId};
use super::keeper;
use super::start::job_number;
use crate::error::Error;

/// Removes what earlier runs have staged and no checkpoint names that a run could go on from.
pub(super) fn sweep(
    store: &dyn Store,
    name: &ObjectName,
    (job, ids): (&JobGraph, &[OperatorId]),
    run: RunId,
) -> Result<(), Error> {
    let retained = chain::look(store, name)?.retained(store)?;
    let retained = retained.iter().map(|base| chain::read_checkpoint(store, name, base));
    sweep_others(store, name, (job, ids), run, retained.collect::<Result<_, _>>()?)
}

/// Removes what the runs up to a generation have staged, when the job has ended and its output is
/// published: no other run comes that would do it. Only what a kept checkpoint names stays.
pub(super) fn sweep_at_end(
    store: &dyn Store,
    name: &ObjectName,
    of: (&JobGraph, &[OperatorId]),
    generation: u64,
) {
    let run = RunId { job: job_number(store, name), generation: generation.saturating_add(1) };
    if let Err(error) = sweep_others(store, name, of, run, Vec::new()) {
        tracing::warn!(%error, "what was staged for the output stays");
    }
}

/// Removes what runs before this one have staged, but for what these checkpoints name, and those
/// that are kept by name.
fn sweep_others(
    store: &dyn Store,
    name: &ObjectName,
    (job, ids): (&JobGraph, &[OperatorId]),
    run: RunId,
    mut manifests: Vec<CheckpointManifest>,
) -> Result<(), Error> {
    manifests.extend(chain::kept(store, name)?.into_iter().filter_map(|kept| kept.manifest.ok()));
    let named = named_output(store, name, ids, &manifests)?;
    for (operator, named) in job.operators.iter().zip(&named) {
        let Some(sink) = operator.kind.spec().sink() else { continue };
        sink.sweep(run, named).map_err(DataflowError::from)?;
    }
    Ok(())
}

/// By operator, the staged output that checkpoints name.
fn named_output(
    store: &dyn Store,
    name: &ObjectName,
    ids: &[OperatorId],
    manifests: &[CheckpointManifest],
) -> Result<Vec<Vec<Vec<u8>>>, CheckpointError> {
    let mut named = vec![Vec::new(); ids.len()];
    for manifest in manifests {
        let fitted = FittedState::of(&manifest.operators, ids);
        // Output with a name that is too long for the record has it in the segments.
        let mut parts = manifest.sinks.iter().flat_map(|sink| &sink.parts);
        let workers = if parts.any(|part| part.staged.is_empty()) {
            let segments = &manifest.segments;
            Some(keeper::read(store, name, segments, fitted.names(), None)?.workers)
        } else {
            None
        };
        for (at, named) in named.iter_mut().enumerate() {
            if let Some(workers) = &workers {
                named.extend(keeper::staged_of(workers, at as u32));
                continue;
            }
            let own = manifest.sinks.iter().filter(|sink| Some(&*sink.id) == fitted.name(at));
            named.extend(own.flat_map(|sink| &sink.parts).map(|part| part.staged.clone()));
        }
    }
    Ok(named)
}

#[cfg(test)]
mod tests {
    use checkpoint::chain::SegmentUpload;
    use checkpoint::record::STAGED_BYTES_MAX;
    use checkpoint::{MemoryStore, Record, RecordBody};
    use dataflow::checkpoint::{SinkSnapshot, WorkerSnapshot};

    use super::super::encode::{Earlier, OperatorNames, encode};
    use super::super::manifest::manifest;
    use super::*;

    /// A directory of thousands of parts has a list that no record has room for.
    #[test]
    fn a_long_list_of_staged_files_is_in_the_segment_alone_and_is_found_there() {
        let id = |id: &str| OperatorId { id: id.into(), text: id.into(), remembers: true };
        let ids = [id("scan"), id("sink")];
        let lists = [3 * STAGED_BYTES_MAX, 5, STAGED_BYTES_MAX];
        let staged: Vec<Vec<u8>> = (1..).zip(lists).map(|(byte, long)| vec![byte; long]).collect();
        let workers: Vec<WorkerSnapshot> = (0..12)
            .map(|worker| {
                let sink = |staged: &Vec<u8>| SinkSnapshot {
                    operator: 1,
                    staged: staged.clone(),
                    unsynced: None,
                };
                let sinks = staged.iter().map(sink).collect();
                WorkerSnapshot { worker, sinks, ..WorkerSnapshot::default() }
            })
            .collect();
        let job = JobGraph { operators: Vec::new(), settings: Default::default() };
        let (store, name) = (MemoryStore::default(), ObjectName::job("j").unwrap());
        let of_checkpoint = manifest(&workers, (&job, &ids, &[None; 2]), 7, None);
        let mut segment = SegmentUpload::new(&store, &name, (1, 0, 7));
        let refers = Vec::new();
        let mut earlier = Earlier::new((&store, &name), &refers, &[]);
        encode(workers, OperatorNames(&ids), &mut earlier, &mut segment).unwrap();
        let segments = vec![segment.finish().unwrap()];
        let of_checkpoint = CheckpointManifest { segments, ..of_checkpoint };
        let bytes = of_checkpoint.sinks[0].parts.iter().map(|part| part.staged.len());
        assert_eq!(bytes.clone().filter(|bytes| *bytes == 5).count(), 12);
        assert_eq!(bytes.clone().filter(|bytes| *bytes == 0).count(), 12 + 5);
        let record = Record {
            job: "j".into(),
            record: 1,
            generation: 1,
            run: 1,
            kept: None,
            body: RecordBody::Manifest(of_checkpoint.clone()),
        };
        record.encode().unwrap();
        let named = named_output(&store, &name, &ids, &[of_checkpoint]).unwrap();
        assert!(named[0].is_empty());
        assert_eq!(named[1], vec![staged; 12].concat());
    }
}
