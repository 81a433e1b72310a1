//! Snapshots of workers as sections of a segment, and back.
//!
//! Each worker has a section `worker` that lists what it keeps, and behind it one Arrow stream for
//! each part of an operator's state:
//!
//! ```text
//! worker 0 │ aggregate-… part 0 │ aggregate-… part 1 │ worker 1 │ aggregate-… part 0 │ …
//! ```

use arrow::ipc::reader::StreamReader;
use arrow::ipc::writer::StreamWriter;
use arrow::record_batch::RecordBatch;
use checkpoint::CheckpointError;
use checkpoint::segment::{EncodedSegment, SegmentReader, SegmentWriter};
use dataflow::checkpoint::{
    OperatorSnapshot, SavedRows, SinkSnapshot, SplitSnapshot, WorkerSnapshot,
};
use dataflow::source::Position;

use super::ids::OperatorId;

/// The section that begins a worker.
const WORKER: &str = "worker";
/// The form of that section.
const VERSION: u8 = 1;

/// A job's operators by name and number.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OperatorNames<'a>(pub(crate) &'a [OperatorId]);

impl OperatorNames<'_> {
    fn of(&self, operator: u32) -> &str {
        self.0.get(operator as usize).map_or("", |id| &id.id)
    }

    fn number(&self, id: &str) -> Option<u32> {
        let found = self.0.iter().position(|operator| operator.id == id && !id.is_empty());
        found.map(|at| at as u32)
    }
}

#[derive(Default)]
struct Put(Vec<u8>);

impl Put {
    fn number(&mut self, number: u64) {
        self.0.extend(number.to_le_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.extend(bytes);
    }
}

struct Take<'a>(&'a [u8]);

impl<'a> Take<'a> {
    fn number(&mut self) -> Option<u64> {
        let (number, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*number))
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.number()?).ok()?;
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }

    fn text(&mut self) -> Option<&'a str> {
        std::str::from_utf8(self.bytes()?).ok()
    }

    fn list<T>(&mut self, mut each: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let count = self.number()?;
        // Each takes a byte at least: a length that lies reserves nothing.
        (0..count).map(|_| each(self)).collect()
    }
}

/// The snapshot of a worker, without rows.
fn listed(snapshot: &WorkerSnapshot, names: OperatorNames<'_>) -> Vec<u8> {
    let WorkerSnapshot { worker, round, operators, splits, sinks, late, bad, last } = snapshot;
    let mut put = Put(vec![VERSION]);
    for number in [u64::from(*worker), *round, *late, *bad, u64::from(*last)] {
        put.number(number);
    }
    put.number(operators.len() as u64);
    for OperatorSnapshot { operator, version, watermark, parts } in operators {
        put.bytes(names.of(*operator).as_bytes());
        put.number(u64::from(*version));
        put.number(watermark.cast_unsigned());
        put.number(parts.len() as u64);
    }
    put.number(splits.len() as u64);
    for SplitSnapshot { operator, position, greatest, ended, readers } in splits {
        put.bytes(names.of(*operator).as_bytes());
        put.bytes(&position.to_bytes());
        put.number(u64::from(greatest.is_some()));
        put.number(greatest.unwrap_or_default().cast_unsigned());
        put.number(u64::from(*ended));
        put.number(u64::from(*readers));
    }
    put.number(sinks.len() as u64);
    for SinkSnapshot { operator, staged } in sinks {
        put.bytes(names.of(*operator).as_bytes());
        put.bytes(staged);
    }
    put.0
}

/// A worker of a segment, and how many sections each of its operators has.
type Listed = (WorkerSnapshot, Vec<(Option<OperatorSnapshot>, u64)>);

fn unlisted(bytes: &[u8], names: OperatorNames<'_>) -> Option<Listed> {
    let (&VERSION, rest) = bytes.split_first()? else { return None };
    let mut take = Take(rest);
    let worker = u32::try_from(take.number()?).ok()?;
    let (round, late, bad, last) =
        (take.number()?, take.number()?, take.number()?, take.number()? != 0);
    let operators = take.list(|take| {
        let operator = names.number(take.text()?);
        let version = u32::try_from(take.number()?).ok()?;
        let (watermark, sections) = (take.number()?.cast_signed(), take.number()?);
        let parts = Vec::new();
        let of = operator.map(|operator| OperatorSnapshot { operator, version, watermark, parts });
        Some((of, sections))
    })?;
    let splits = take.list(|take| {
        let operator = names.number(take.text()?);
        let position = Position::from_bytes(take.bytes()?).ok()?;
        let (has, greatest) = (take.number()?, take.number()?.cast_signed());
        let (ended, readers) = (take.number()? != 0, u32::try_from(take.number()?).ok()?);
        let greatest = (has != 0).then_some(greatest);
        Some(operator.map(|operator| SplitSnapshot {
            operator,
            position,
            greatest,
            ended,
            readers,
        }))
    })?;
    let sinks = take.list(|take| {
        let (operator, staged) = (names.number(take.text()?), take.bytes()?.to_vec());
        Some(operator.map(|operator| SinkSnapshot { operator, staged }))
    })?;
    let splits = splits.into_iter().flatten().collect();
    let sinks = sinks.into_iter().flatten().collect();
    let operators_of = Vec::new();
    let snapshot =
        WorkerSnapshot { worker, round, operators: operators_of, splits, sinks, late, bad, last };
    take.0.is_empty().then_some((snapshot, operators))
}

/// The segment of what workers keep.
///
/// # Errors
/// When rows cannot be encoded, or the segment exceeds a bound.
pub(crate) fn encode(
    workers: &[WorkerSnapshot],
    names: OperatorNames<'_>,
) -> Result<EncodedSegment, CheckpointError> {
    let mut segment = SegmentWriter::default();
    for worker in workers {
        segment.section(WORKER, worker.worker, 0, vec![listed(worker, names).into()])?;
        for operator in &worker.operators {
            for SavedRows { part, rows } in &operator.parts {
                let bytes = stream_of(rows).map_err(|error| CheckpointError::Invalid {
                    reason: format!("rows of '{}': {error}", names.of(operator.operator)),
                })?;
                let count = rows.num_rows() as u64;
                segment.section(names.of(operator.operator), *part, count, vec![bytes.into()])?;
            }
        }
    }
    segment.finish()
}

fn stream_of(rows: &RecordBatch) -> Result<Vec<u8>, arrow::error::ArrowError> {
    let mut writer = StreamWriter::try_new(Vec::new(), &rows.schema())?;
    writer.write(rows)?;
    writer.finish()?;
    writer.into_inner()
}

/// What `encode` has made a segment of. Rows of operators that the job does not have are left out.
/// Without `rows`, only what workers list is read.
///
/// # Errors
/// When the store fails or the segment is damaged.
pub(crate) fn decode(
    file: &str,
    segment: &SegmentReader<'_>,
    names: OperatorNames<'_>,
    rows: bool,
) -> Result<Vec<WorkerSnapshot>, CheckpointError> {
    let mut workers: Vec<WorkerSnapshot> = Vec::new();
    let mut sections = segment.sections().iter();
    while let Some(section) = sections.next() {
        let damaged = |reason: String| {
            let file = file.to_owned();
            CheckpointError::Damaged { file, offset: section.offset, reason }
        };
        if section.operator != WORKER {
            return Err(damaged("rows of no worker".into()));
        }
        let listed = unlisted(&segment.read(section)?, names);
        let listed = listed.ok_or_else(|| damaged("it does not list what a worker keeps".into()));
        let (mut worker, operators) = listed?;
        for (mut operator, count) in operators {
            for _ in 0..count {
                let Some(section) = sections.next() else {
                    return Err(damaged("it ends within a worker".into()));
                };
                let Some(operator) = operator.as_mut().filter(|_| rows) else { continue };
                let bytes = segment.read(section)?;
                let rows = rows_of(&bytes).map_err(|error| damaged(error.to_string()))?;
                let rows = rows.ok_or_else(|| damaged("a part without rows".into()))?;
                operator.parts.push(SavedRows { part: section.part, rows });
            }
            worker.operators.extend(operator);
        }
        workers.push(worker);
    }
    Ok(workers)
}

fn rows_of(bytes: &[u8]) -> Result<Option<RecordBatch>, arrow::error::ArrowError> {
    StreamReader::try_new(bytes, None)?.next().transpose()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Int64Array, StringArray};
    use checkpoint::chain::{open_segment, store_segment};
    use checkpoint::{MemoryStore, ObjectName};

    use super::*;

    fn ids(names: &[&str]) -> Vec<OperatorId> {
        let id = |name: &&str| OperatorId {
            id: (*name).to_owned(),
            text: (*name).to_owned(),
            remembers: true,
        };
        names.iter().map(id).collect()
    }

    fn rows(from: i64) -> RecordBatch {
        let numbers: ArrayRef = Arc::new(Int64Array::from(vec![Some(from), None]));
        let texts: ArrayRef = Arc::new(StringArray::from(vec!["ü", ""]));
        RecordBatch::try_from_iter([("number", numbers), ("text", texts)]).unwrap()
    }

    fn snapshot(worker: u32) -> WorkerSnapshot {
        let part = |part, from| SavedRows { part, rows: rows(from) };
        let operator = |operator, parts| OperatorSnapshot {
            operator,
            version: 4,
            watermark: i64::MIN + 7,
            parts,
        };
        let position = Position::new("csv", 1, "a.csv", &[u64::from(worker), 9]);
        let (greatest, ended, readers) = (Some(-5), worker == 1, 2);
        let split = SplitSnapshot { operator: 0, position, greatest, ended, readers };
        WorkerSnapshot {
            worker,
            round: 12,
            operators: vec![
                operator(1, vec![part(0, 1), part(0, 2), part(3, 3)]),
                operator(2, vec![]),
            ],
            splits: vec![split],
            sinks: vec![SinkSnapshot { operator: 2, staged: vec![0, 255] }],
            late: 3,
            bad: 4,
            last: worker == 1,
        }
    }

    #[test]
    fn what_workers_keep_is_read_again_by_the_names_of_operators() {
        let names = ids(&["source", "groups", "sink"]);
        let workers = [snapshot(0), snapshot(1)];
        let segment = encode(&workers, OperatorNames(&names)).unwrap();
        let (store, job) = (MemoryStore::default(), ObjectName::job("j").unwrap());
        let entry = store_segment(&store, &job, (1, 0, 12), &segment).unwrap();
        let reader = open_segment(&store, &job, &entry).unwrap();
        let read = decode("f", &reader, OperatorNames(&names), true).unwrap();
        assert_eq!(format!("{read:?}"), format!("{workers:?}"));

        // The operators have other numbers now, and one of them is gone.
        let names = ids(&["sink", "source"]);
        let read = decode("f", &reader, OperatorNames(&names), true).unwrap();
        let first = &read[0];
        assert_eq!((first.operators.len(), first.operators[0].operator), (1, 0));
        assert_eq!((first.splits[0].operator, first.sinks[0].operator), (1, 0));
        let listed = decode("f", &reader, OperatorNames(&names), false).unwrap();
        assert!(listed.iter().all(|worker| worker.operators.iter().all(|of| of.parts.is_empty())));
    }

    #[test]
    fn a_list_that_is_cut_is_refused() {
        let names = ids(&["source", "groups", "sink"]);
        let bytes = listed(&snapshot(0), OperatorNames(&names));
        assert!(unlisted(&bytes, OperatorNames(&names)).is_some());
        for end in 0..bytes.len() {
            assert!(unlisted(&bytes[..end], OperatorNames(&names)).is_none(), "{end}");
        }
        let longer = [&bytes[..], &[0]].concat();
        assert!(unlisted(&longer, OperatorNames(&names)).is_none());
    }
}
