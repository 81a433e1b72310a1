//! Snapshots that are written and read again.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use arrow::array::{
    ArrayRef, AsArray, Int64Array, StringArray, StringViewArray, UInt8Array, UInt64Array,
};
use arrow::datatypes::UInt64Type;
use bytes::Bytes;
use checkpoint::MemoryStore;
use checkpoint::chain::{PIECE_BYTES, References};
use dataflow::checkpoint::UnreadRows;
use dataflow::error::DataflowError;

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
        stored: vec![],
    };
    let position = Position::new("csv", 1, "a.csv", &[u64::from(worker), 9]);
    let (greatest, ended, readers) = (Some(-5), worker == 1, 2);
    let split = SplitSnapshot { operator: 0, position, greatest, ended, readers };
    WorkerSnapshot {
        worker,
        round: 12,
        operators: vec![operator(1, vec![part(0, 1), part(0, 2), part(3, 3)]), operator(2, vec![])],
        splits: vec![split],
        sinks: vec![SinkSnapshot { operator: 2, staged: vec![0, 255], unsynced: None }],
        late: 3,
        bad: 4,
        last: worker == 1,
    }
}

fn store(workers: Vec<WorkerSnapshot>, names: &[OperatorId]) -> (Arc<dyn Store>, SegmentEntry) {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let job = job();
    let mut segment = SegmentUpload::new(&*store, &job, (1, 0, 12));
    let refers = vec![];
    let mut earlier = Earlier::new((&*store, &job), &refers, &[]);
    encode(workers, OperatorNames(names), &mut earlier, &mut segment).unwrap();
    let entry = segment.finish().unwrap();
    (store, entry)
}

fn job() -> ObjectName {
    ObjectName::job("j").unwrap()
}

/// The snapshots of a segment, with all rows in memory.
fn read(store: &Arc<dyn Store>, entry: &SegmentEntry, names: &[OperatorId]) -> Vec<WorkerSnapshot> {
    let loading = Loading::new(store.clone(), 2);
    let mut decoded = Decoded::default();
    let names = OperatorNames(names);
    decode(&**store, &job(), entry, names, Some(&loading), &mut decoded).unwrap();
    let Decoded { mut workers, .. } = decoded;
    for operator in workers.iter_mut().flat_map(|worker| &mut worker.operators) {
        let mut parts = vec![];
        let keep = |saved| {
            parts.push(saved);
            Ok::<_, DataflowError>(())
        };
        operator.each(keep).unwrap();
        let again: usize = operator.stored.iter().map(|rows| rows.read().unwrap().count()).sum();
        assert_eq!(again, parts.len());
        (operator.parts, operator.stored) = (parts, vec![]);
    }
    workers
}

#[test]
fn what_workers_keep_is_read_again_by_the_names_of_operators() {
    let names = ids(&["source", "groups", "sink"]);
    let workers = [snapshot(0), snapshot(1)];
    let (store, entry) = store(workers.to_vec(), &names);
    assert_eq!(format!("{:?}", read(&store, &entry, &names)), format!("{workers:?}"));

    // The operators have other numbers now, and one of them is gone.
    let names = ids(&["sink", "source"]);
    let workers = read(&store, &entry, &names);
    let first = &workers[0];
    assert_eq!((first.operators.len(), first.operators[0].operator), (1, 0));
    assert_eq!((first.splits[0].operator, first.sinks[0].operator), (1, 0));
    let mut listed = Decoded::default();
    decode(&*store, &job(), &entry, OperatorNames(&names), None, &mut listed).unwrap();
    assert!(
        listed.workers.iter().all(|worker| worker.operators.iter().all(|of| of.stored.is_empty()))
    );
}

fn of_texts(texts: &ArrayRef) -> OperatorSnapshot {
    let rows = RecordBatch::try_from_iter([("text", texts.clone())]).unwrap();
    let slice = |at: usize| SavedRows { part: 0, rows: rows.slice(10 * at, 10) };
    let parts = (0..rows.num_rows() / 10).map(slice).collect();
    OperatorSnapshot { operator: 0, version: 1, watermark: 0, parts, stored: vec![] }
}

#[test]
fn texts_are_written_once_however_many_slices_they_are_in() {
    let names = ids(&["rows"]);
    let texts: Vec<String> = (0..1000).map(|at| format!("{at:0>100}")).collect();
    let views: ArrayRef = Arc::new(StringViewArray::from_iter_values(&texts));
    let bytes = views.as_string_view().total_buffer_bytes_used() as u64;
    let operators = vec![of_texts(&views)];
    let snapshot = WorkerSnapshot { operators, ..WorkerSnapshot::default() };
    let (store, entry) = store(vec![snapshot], &names);
    assert!(bytes > 90_000 && entry.bytes < 2 * bytes, "{} of {bytes} bytes", entry.bytes);
    let read = read(&store, &entry, &names);
    let parts = read[0].operators[0].parts.iter();
    let read = parts.flat_map(|saved| saved.rows.column(0).as_string_view().iter());
    assert!(read.flatten().eq(texts.iter().map(String::as_str)));
}

/// Rows on a disk. It counts the bytes that were read and are not dropped.
struct OnDisk {
    bytes: usize,
    held: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

/// Memory that is counted.
struct Counted(Vec<u8>, Arc<AtomicUsize>);

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.1.fetch_sub(self.0.len(), Relaxed);
    }
}

impl UnreadRows for OnDisk {
    fn read(&self) -> Result<Vec<RecordBatch>, DataflowError> {
        let bytes = vec![1; self.bytes];
        let held = self.held.fetch_add(bytes.len(), Relaxed) + bytes.len();
        self.most.fetch_max(held, Relaxed);
        let bytes = Bytes::from_owner(Counted(bytes, self.held.clone()));
        let buffer = arrow::buffer::Buffer::from(bytes);
        let numbers: ArrayRef = Arc::new(UInt8Array::new(buffer.into(), None));
        Ok(vec![RecordBatch::try_from_iter([("number", numbers)])?])
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}

#[test]
fn rows_on_a_disk_are_read_one_batch_at_a_time() {
    const BATCH: usize = 800_000;
    let (held, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let on_disk = || OnDisk { bytes: BATCH, held: held.clone(), most: most.clone() };
    let stored = |part| StoredRows { part, rows: Arc::new(on_disk()) };
    let stored = (0..40).map(|at| stored(at / 20)).collect();
    let parts = vec![];
    let operator = OperatorSnapshot { operator: 0, version: 1, watermark: 0, parts, stored };
    let snapshot = WorkerSnapshot { operators: vec![operator], ..WorkerSnapshot::default() };
    let (store, entry) = store(vec![snapshot], &ids(&["rows"]));
    assert!(entry.bytes as usize > 3 * PIECE_BYTES, "{} bytes", entry.bytes);
    assert_eq!((held.load(Relaxed), most.load(Relaxed)), (0, BATCH));
    let segment = chain::open_segment(&*store, &job(), &entry).unwrap();
    let sections = &segment.sections()[1..];
    let most = (SECTION_BYTES + 2 * BATCH) as u64;
    assert!(sections.iter().all(|section| section.bytes < most), "{sections:?}");
    assert_eq!(sections.iter().map(|section| section.rows).sum::<u64>(), 40 * BATCH as u64);
    assert!(sections.iter().all(|section| section.part < 2) && sections.len() >= 8);
    let read = read(&store, &entry, &ids(&["rows"]));
    assert_eq!(read[0].operators[0].parts.len(), 40);
}

fn entry(at: u32) -> SegmentEntry {
    SegmentEntry { file: format!("{at}.seg"), bytes: 1 << 40, crc: at }
}

fn section(at: u32) -> SectionEntry {
    let (operator, offset) = ("groups".to_owned(), 64 * u64::from(at));
    SectionEntry { operator, part: at, rows: 9, offset, bytes: 5, crc: u32::MAX }
}

/// Rows of a number, which is the first byte of each.
struct Numbered(u64, Storing);

/// The way in which rows are stored.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Storing {
    Together,
    Apart,
    InTheChain,
}

impl UnreadRows for Numbered {
    fn read(&self) -> Result<Vec<RecordBatch>, DataflowError> {
        assert_ne!(self.1, Storing::InTheChain, "they are not here");
        // The rest of a value is such that no column is narrow.
        let rest = (0..ROWS as u64).map(|row| row.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 8);
        let numbers = rest.map(|rest| self.0 << 56 | rest);
        let numbers: ArrayRef = Arc::new(UInt64Array::from_iter_values(numbers));
        Ok(vec![RecordBatch::try_from_iter([("number", numbers)])?])
    }

    fn bytes(&self) -> usize {
        ROWS * size_of::<u64>()
    }

    fn id(&self) -> Option<RowsId> {
        Some((self.0, 3))
    }

    fn is_apart(&self) -> bool {
        self.1 == Storing::Apart
    }

    fn is_recorded(&self) -> bool {
        self.1 == Storing::InTheChain
    }
}

const ROWS: usize = 100_000;

/// Two workers with these rows.
fn two_workers(of: [&[u64]; 2], storing: Storing) -> Vec<WorkerSnapshot> {
    let worker = |worker: u32| {
        let stored = of[worker as usize].iter();
        let stored =
            stored.map(|&at| StoredRows { part: 0, rows: Arc::new(Numbered(at, storing)) });
        let parts = vec![SavedRows { part: 0, rows: rows(7) }];
        let (operator, stored) = (0, stored.collect());
        let operator = OperatorSnapshot { operator, version: 1, watermark: 0, parts, stored };
        WorkerSnapshot { worker, operators: vec![operator], ..WorkerSnapshot::default() }
    };
    vec![worker(0), worker(1)]
}

/// The checkpoint of two workers with these rows: its segment, and the numbers of all rows that
/// it has, as they are read again.
fn numbered(
    store: &Arc<dyn Store>,
    references: &mut References<StoredId>,
    round: u64,
    (of, storing): ([&[u64]; 2], Storing),
) -> (SegmentEntry, BTreeSet<SegmentEntry>) {
    let names = ids(&["rows"]);
    let workers = two_workers(of, storing);
    let refers = references.usable(&ids_of(&workers));
    let job = job();
    let mut segment = SegmentUpload::new(&**store, &job, (1, 0, round));
    let mut earlier = Earlier::new((&**store, &job), &refers, references.recorded_sections());
    let new = encode(workers, OperatorNames(&names), &mut earlier, &mut segment).unwrap();
    let entry = segment.finish().unwrap();
    let new = new.into_iter().map(|(section, rows)| {
        let place = SectionPlace { segment: entry.clone(), section };
        StoredSection { place, rows }
    });
    references.stored(round, refers.into_iter().chain(new).collect());
    for (worker, kept) in read(store, &entry, &names).iter().enumerate() {
        let mut found: BTreeMap<u64, usize> = BTreeMap::new();
        for SavedRows { rows, .. } in &kept.operators[0].parts {
            let Some(numbers) = rows.column(0).as_primitive_opt::<UInt64Type>() else {
                continue;
            };
            numbers.values().iter().for_each(|row| *found.entry(row >> 56).or_default() += 1);
        }
        let expected = of[worker].iter().map(|&number| (number, ROWS));
        assert_eq!(found, expected.collect(), "worker {worker} of round {round}");
    }
    let mut decoded = Decoded::default();
    decode(&**store, &job, &entry, OperatorNames(&names), None, &mut decoded).unwrap();
    let all = of.iter().flat_map(|of| *of).count() * ROWS * size_of::<u64>();
    assert!(decoded.bytes["rows"] > all as u64, "also those of sections that are referred to");
    (entry, decoded.referred)
}

#[test]
fn rows_that_do_not_change_are_written_once() {
    use Storing::Together;
    const BYTES: u64 = 8 * ROWS as u64;
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let mut references = References::default();
    let all: Vec<u64> = (0..20).collect();
    let (first, referred) = numbered(&store, &mut references, 1, ([&all, &[100]], Together));
    assert!(first.bytes > 21 * BYTES && referred.is_empty());
    // It is not known to be in the chain.
    let (second, referred) = numbered(&store, &mut references, 2, ([&all, &[100]], Together));
    assert!(second.bytes > 21 * BYTES && referred.is_empty());
    references.recorded(1);
    let more = [&all[..], &[20]].concat();
    let (third, referred) = numbered(&store, &mut references, 3, ([&more, &[100, 101]], Together));
    assert!(third.bytes < 3 * BYTES && referred == [first.clone()].into());
    references.recorded(3);
    // Sections that have lost some of their rows are written again, as far as there are rows.
    let fewer = &more[3..];
    let (fourth, referred) = numbered(&store, &mut references, 4, ([fewer, &[100, 101]], Together));
    assert!(fourth.bytes < 10 * BYTES && referred == [first, third].into());
    references.recorded(4);
    let (fifth, referred) = numbered(&store, &mut references, 5, ([&[4, 19, 22], &[]], Together));
    assert!(fifth.bytes > 3 * BYTES && referred.is_empty(), "{referred:?}");
}

#[test]
fn rows_that_are_only_in_the_chain_are_referred_to_or_copied() {
    use Storing::{Apart, InTheChain};
    const BYTES: u64 = 8 * ROWS as u64;
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let mut references = References::default();
    let all: Vec<u64> = (0..20).collect();
    let (first, _) = numbered(&store, &mut references, 1, ([&all, &[100]], Apart));
    references.recorded(1);
    let (second, referred) = numbered(&store, &mut references, 2, ([&all, &[100]], InTheChain));
    assert!(second.bytes < BYTES / 10 && referred == [first.clone()].into());
    references.recorded(2);
    // Eleven of 21 sections are needed: the others need not be written.
    let (third, referred) = numbered(&store, &mut references, 3, ([&all[9..], &[]], InTheChain));
    assert!(third.bytes < BYTES / 10 && referred == [first].into());
    references.recorded(3);
    let (fourth, referred) = numbered(&store, &mut references, 4, ([&all[16..], &[]], InTheChain));
    assert!((4 * BYTES..5 * BYTES).contains(&fourth.bytes) && referred.is_empty());
    // That round is given up: sections are copied from the one before.
    let (fifth, _) = numbered(&store, &mut references, 5, ([&all[17..], &[]], InTheChain));
    assert!((3 * BYTES..4 * BYTES).contains(&fifth.bytes));
    references.recorded(5);
    let (sixth, referred) = numbered(&store, &mut references, 6, ([&all[17..], &[]], InTheChain));
    assert!(sixth.bytes < BYTES / 10 && referred == [fifth.clone()].into());
    references.recorded(6);

    let file = ObjectName::new(format!("j/seg/{}", fifth.file)).unwrap();
    store.delete(&file).unwrap();
    let job = job();
    let mut segment = SegmentUpload::new(&*store, &job, (1, 0, 7));
    let refers = vec![];
    let mut earlier = Earlier::new((&*store, &job), &refers, references.recorded_sections());
    let names = ids(&["rows"]);
    let workers = two_workers([&all[19..], &[]], InTheChain);
    let lost = encode(workers, OperatorNames(&names), &mut earlier, &mut segment);
    assert!(matches!(lost, Err(CheckpointError::Missing { .. })) && earlier.is_lost());
}

/// Groups as a block has them: a slice, keys and counts.
struct Block(RecordBatch);

impl UnreadRows for Block {
    fn read(&self) -> Result<Vec<RecordBatch>, DataflowError> {
        Ok(vec![self.0.clone()])
    }

    fn bytes(&self) -> usize {
        self.0.get_array_memory_size()
    }

    fn id(&self) -> Option<RowsId> {
        Some((self.0.num_rows() as u64, 0))
    }

    fn is_apart(&self) -> bool {
        true
    }
}

#[test]
fn blocks_of_groups_are_narrow_and_come_back() {
    const GROUPS: i64 = 16_384;
    let block = |groups: i64| {
        let count = groups as usize;
        let keys = Int64Array::from_iter_values((0..groups).map(|at| (1 << 40) | (at * 5)));
        let counts = Int64Array::from_iter_values((0..groups).map(|at| at % 200));
        let slices: ArrayRef = Arc::new(Int64Array::from_value(1_735_689_600_000, count));
        let all = [("slice", slices), ("key", Arc::new(keys)), ("count", Arc::new(counts))];
        RecordBatch::try_from_iter(all).unwrap()
    };
    // The last one has more bytes than a section: it is written in pieces, which are as they were.
    let blocks = [block(GROUPS), block(1), block(GROUPS * 20)];
    let stored = |block: &RecordBatch| {
        let rows: Arc<dyn UnreadRows> = Arc::new(Block(block.clone()));
        StoredRows { part: 0, rows }
    };
    let (parts, stored) = (vec![], blocks.iter().map(stored).collect());
    let operator = OperatorSnapshot { operator: 0, version: 1, watermark: 0, parts, stored };
    let snapshot = WorkerSnapshot { operators: vec![operator], ..WorkerSnapshot::default() };
    let names = ids(&["groups"]);
    let (store, entry) = store(vec![snapshot], &names);
    let segment = chain::open_segment(&*store, &job(), &entry).unwrap();
    let bytes: Vec<u64> = segment.sections().iter().skip(1).map(|of| of.bytes).collect();
    assert_eq!(bytes.len(), 3);
    let rows = GROUPS as u64;
    // Four bytes of a key, which is beyond 65,536, and one of a count.
    assert!((5 * rows..6 * rows).contains(&bytes[0]), "{bytes:?}");
    assert!(bytes[1] < 2048 && bytes[2] > 24 * 20 * rows, "{bytes:?}");
    let read = read(&store, &entry, &names);
    let mut parts = read[0].operators[0].parts.iter().map(|saved| saved.rows.clone());
    assert_eq!(parts.next().as_ref(), Some(&blocks[0]));
    assert_eq!(parts.next().as_ref(), Some(&blocks[1]));
    let rest: Vec<RecordBatch> = parts.collect();
    assert!(rest.len() > 1);
    let rest = arrow::compute::concat_batches(&blocks[2].schema(), &rest).unwrap();
    assert_eq!(rest, blocks[2]);
}

#[test]
fn a_list_that_is_cut_is_refused() {
    let names = ids(&["source", "groups", "sink"]);
    let place = SectionPlace { segment: entry(7), section: section(8) };
    let bytes = listed(&snapshot(0), &[&place], OperatorNames(&names));
    let (_, places) = unlisted(&bytes, OperatorNames(&names)).unwrap();
    assert_eq!(places, [place]);
    assert!(unlisted(&bytes, OperatorNames(&names)).is_some());
    for end in 0..bytes.len() {
        assert!(unlisted(&bytes[..end], OperatorNames(&names)).is_none(), "{end}");
    }
    let longer = [&bytes[..], &[0]].concat();
    assert!(unlisted(&longer, OperatorNames(&names)).is_none());
    let later = [&[VERSION + 1], &bytes[1..]].concat();
    assert!(unlisted(&later, OperatorNames(&names)).is_none());
}
