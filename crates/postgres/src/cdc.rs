//! The changes of a table as a source without an end.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use arrow::datatypes::SchemaRef;
use connectors::{OptionReader, refuse};
use dataflow::backlog::FlowBacklog;
use dataflow::bad::{BadRow, BadRows};
use dataflow::connector::TableDef;
use dataflow::error::ConnectorError;
use dataflow::position::refused;
use dataflow::source::{Next, Position, ReaderContext, Source, Split, SplitReader};

use crate::changes::ChangeColumns;
use crate::client::{PgConnection, Purpose};
use crate::errors::failed;
use crate::following::{FollowFrom, Following, Outlet};
use crate::pieces::{ChangeBatch, LogPlace, PieceEnd, shown};
use crate::ranges::{KeyText, ReadRanges};
use crate::table::{PgTable, patiently};

/// The name of positions: the place in the log, the changes of its transaction that were given, and
/// how far the job is. The note has the ranges of keys that were read, where they are needed.
const FORMAT: &str = "postgres-changes";
const VERSION: u32 = 1;
/// The version of positions with ranges. A build that does not know them would give changes that
/// rows were read with a second time: it refuses the number.
const RANGES_VERSION: u32 = 2;

/// How far a job is: nothing was given, rows of the snapshot were, or all of them.
const BEGINS: u64 = 0;
const IN_SNAPSHOT: u64 = 1;
const FOLLOWS: u64 = 2;

/// The bound of the queue to the reader, in pieces.
const PIECES_MAX: usize = 4;

/// Bytes of the name of a slot or a publication at most.
const NAME_BYTES_MAX: usize = 63;

/// A table whose changes are read.
pub(crate) struct CdcSource {
    table: PgTable,
    columns: ChangeColumns,
    name: String,
    /// `None`: each reader makes one that ends with it.
    slot: Option<String>,
    publication: String,
    has_snapshot: bool,
    /// The position up to which the server may remove its log.
    confirmed: Arc<AtomicU64>,
}

impl CdcSource {
    pub(crate) fn new(def: &TableDef, projection: &[usize]) -> Result<Self, ConnectorError> {
        let options = OptionReader(&def.options);
        let table = PgTable::new(options)?;
        let columns = ChangeColumns::new(def, projection)?;
        let slot = options.text("slot.name").map(str::to_owned);
        let is_letter =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        let is_name = |slot: &String| {
            (1..=NAME_BYTES_MAX).contains(&slot.len()) && slot.bytes().all(is_letter)
        };
        if let Some(slot) = slot.as_ref().filter(|slot| !is_name(slot)) {
            let message = format!("'{slot}' is no name of a slot");
            let hint = "a slot has a name of small letters, digits and '_'";
            return Err(refuse("slot.name", message, Some(hint.into())));
        }
        let publication = options.text("publication.name").map_or_else(
            || cut(format!("millstream_{}", table.name), NAME_BYTES_MAX),
            str::to_owned,
        );
        if publication.contains('\0') {
            return Err(refuse("publication.name", "has a zero in it", None));
        }
        let startup = options.choice("scan.startup.mode", &["initial", "latest-offset"])?;
        let confirmed = Arc::default();
        let (name, has_snapshot) = (def.name.clone(), startup != Some(1));
        Ok(Self { table, columns, name, slot, publication, has_snapshot, confirmed })
    }

    fn split_name(&self) -> String {
        format!("{}@{}", self.table.name, self.slot.as_deref().unwrap_or("changes"))
    }
}

/// The beginning of a name, cut to a number of bytes.
fn cut(mut name: String, bytes_max: usize) -> String {
    while name.len() > bytes_max {
        name.pop();
    }
    name
}

/// A name of a slot that no other reader has.
fn own_slot() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let (next, now) = (NEXT.fetch_add(1, Ordering::Relaxed), SystemTime::now());
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    format!("millstream_{}_{since:x}_{next}", std::process::id())
}

impl Source for CdcSource {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.columns.schema)
    }

    fn bounded(&self) -> bool {
        false
    }

    fn repeats(&self) -> bool {
        false
    }

    fn replays(&self) -> bool {
        self.slot.is_some()
    }

    fn splits(&self, _: u32, _: Option<usize>) -> Result<Vec<Split>, ConnectorError> {
        Ok(vec![Split { name: self.split_name(), ..Split::default() }])
    }

    fn settle(&self, positions: &[Position]) {
        for position in positions {
            if let Ok([lsn, _, FOLLOWS]) = numbers_of(position, &self.split_name()) {
                // Release: the thread tells the server what a checkpoint has.
                self.confirmed.fetch_max(lsn, Ordering::Release);
            }
        }
    }

    fn validate(&self) -> Result<(), ConnectorError> {
        let place = self.table.place();
        let there = patiently(&place, self.table.start_timeout, &|| false, || {
            let mut connection = PgConnection::open(&self.table.server, Purpose::Queries)?;
            let level = connection.query("SHOW wal_level")?;
            Ok((level, self.table.columns(&mut connection)?))
        })?;
        let (level, there) = there;
        if level.first().and_then(|row| row.first()) != Some(&Some("logical".into())) {
            let message = "the server does not keep changes of rows";
            return Err(failed(&place, message, "set wal_level = logical, and start it again"));
        }
        let missing = |name: &&String| there.iter().all(|own| own.name != **name);
        match self.columns.fields.iter().find(missing) {
            None => Ok(()),
            Some(name) => {
                let near = connectors::nearest(name, there.iter().map(|own| own.name.as_str()));
                Err(ConnectorError::Column {
                    column: name.clone(),
                    message: "the table in Postgres has no such column".into(),
                    hint: near.map(|near| format!("did you mean '{near}'?")),
                })
            }
        }
    }

    fn describe(&self) -> Option<String> {
        let slot = self.slot.as_ref().map(|slot| format!("slot '{slot}'"));
        let slot = slot.unwrap_or_else(|| "a slot of its own".into());
        Some(format!("changes of table '{}' by {slot}", self.table.name))
    }

    fn open(
        &self,
        split: &Split,
        from: Option<&Position>,
        context: &ReaderContext,
    ) -> Result<Box<dyn SplitReader>, ConnectorError> {
        let numbers = from.map(|from| numbers_of(from, &split.name)).transpose()?;
        let from = from_position(split, numbers, from.map_or(&[], |from| from.note()))?;
        let at = ReaderPlace::of(&from);
        let backlog = context.backlog.of_flow();
        let following = Following {
            table: self.table.clone(),
            columns: self.columns.clone(),
            slot: self.slot.clone().unwrap_or_else(own_slot),
            publication: self.publication.clone(),
            is_temporary: self.slot.is_none(),
            has_snapshot: self.has_snapshot,
            is_new: numbers.is_none(),
            confirmed: Arc::clone(&self.confirmed),
            backlog: Arc::downgrade(&backlog),
        };
        let (to, pieces) = sync_channel(PIECES_MAX);
        let wanted = Arc::new(());
        let still = Arc::downgrade(&wanted);
        let outlet = Outlet { to, waker: context.waker.clone(), wanted: still };
        let place = self.table.place();
        let started = thread::Builder::new()
            .name("millstream-postgres".into())
            .spawn(move || following.run(from, &outlet));
        started.map_err(|error| {
            failed(&place, format!("cannot start its thread: {error}"), "allow more threads")
        })?;
        let (split, table, columns) = (split.name.clone(), self.name.clone(), self.columns.clone());
        let bad = Arc::clone(&context.bad);
        let reader = ChangeReader {
            split,
            table,
            place,
            columns,
            pieces,
            rest: None,
            at,
            bad,
            _wanted: wanted,
            _backlog: backlog,
            failed: None,
        };
        Ok(Box::new(reader))
    }
}

/// The version of a position that has these bytes beside its numbers.
fn version_of(note: &[u8]) -> u32 {
    if note.is_empty() { VERSION } else { RANGES_VERSION }
}

/// The numbers of a position, with ranges or without.
fn numbers_of(position: &Position, split: &str) -> Result<[u64; 3], ConnectorError> {
    position.numbers(FORMAT, version_of(position.note()), split)
}

/// Where a position leads to.
fn from_position(
    split: &Split,
    numbers: Option<[u64; 3]>,
    note: &[u8],
) -> Result<FollowFrom, ConnectorError> {
    let ranges = || {
        let ranges = ReadRanges::of_bytes(note);
        ranges.map_err(|_| refused(&split.name, "its ranges are damaged".into()))
    };
    match numbers {
        None | Some([_, _, BEGINS]) => Ok(FollowFrom::Anew),
        Some([lsn, given, FOLLOWS]) => {
            let ranges = if note.is_empty() { None } else { Some(Arc::new(ranges()?)) };
            Ok(FollowFrom::Log(LogPlace { lsn, given }, ranges))
        }
        Some([lsn, _, IN_SNAPSHOT]) if !note.is_empty() => {
            Ok(FollowFrom::Rows(LogPlace { lsn, given: 0 }, ranges()?))
        }
        Some(_) => {
            let message = "the job ended while it read the rows that were there at its begin, \
                           of a table without a primary key: begin anew, --from none";
            Err(refused(&split.name, message.into()))
        }
    }
}

/// How far a reader is.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ReaderPlace {
    /// The numbers of its position.
    numbers: [u64; 3],
    /// The ranges, and the last key that was read.
    ranges: Option<(Arc<ReadRanges>, KeyText)>,
}

impl ReaderPlace {
    fn of(from: &FollowFrom) -> Self {
        let with = |ranges: &Arc<ReadRanges>| (Arc::clone(ranges), ranges.upto().to_vec());
        match from {
            FollowFrom::Anew => Self { numbers: [0, 0, BEGINS], ranges: None },
            FollowFrom::Rows(at, ranges) => Self {
                numbers: [at.lsn, 0, IN_SNAPSHOT],
                ranges: Some(with(&Arc::new(ranges.clone()))),
            },
            FollowFrom::Log(at, ranges) => {
                Self { numbers: [at.lsn, at.given, FOLLOWS], ranges: ranges.as_ref().map(with) }
            }
        }
    }

    /// The place behind a piece.
    fn behind(end: PieceEnd, last: Option<KeyText>) -> Self {
        match end {
            PieceEnd::Rows { lsn, ranges } => {
                Self { numbers: [lsn, 0, IN_SNAPSHOT], ranges: ranges.zip(last) }
            }
            PieceEnd::Log { place, ranges } => Self::of(&FollowFrom::Log(place, ranges)),
        }
    }

    /// It as a position in the split.
    fn position(&self, split: &str) -> Position {
        let ranges = self.ranges.as_ref();
        let note = ranges.map_or_else(Vec::new, |(ranges, upto)| ranges.to_bytes(upto));
        Position::new(FORMAT, version_of(&note), split, &self.numbers).with_note(note)
    }
}

/// The reader of changes that a thread follows.
struct ChangeReader {
    split: String,
    table: String,
    place: String,
    columns: ChangeColumns,
    pieces: Receiver<Result<ChangeBatch, ConnectorError>>,
    /// The rest of a piece that had more changes than were asked for.
    rest: Option<ChangeBatch>,
    at: ReaderPlace,
    bad: Arc<BadRows>,
    /// While it is there, the thread goes on.
    _wanted: Arc<()>,
    /// It counts as long as it is there.
    _backlog: Arc<FlowBacklog>,
    failed: Option<ConnectorError>,
}

impl SplitReader for ChangeReader {
    fn next(&mut self, rows_max: usize) -> Result<Next, ConnectorError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        loop {
            let mut piece = match self.rest.take() {
                Some(rest) => rest,
                None => match self.pieces.try_recv() {
                    Ok(Ok(piece)) => piece,
                    Ok(Err(error)) => return Err(self.failed.insert(error).clone()),
                    Err(TryRecvError::Empty) => return Ok(Next::Pending),
                    Err(TryRecvError::Disconnected) => {
                        let error = failed(&self.place, "its thread has died", "report this");
                        return Err(self.failed.insert(error).clone());
                    }
                },
            };
            let given = piece.split(rows_max.max(1));
            self.rest = Some(piece).filter(|rest| !rest.changes.is_empty());
            if let Some(end) = given.end {
                let last = given.changes.last().map(|change| change.key.clone());
                self.at = ReaderPlace::behind(end, last);
            }
            for (place, reason) in given.bad {
                let place = format!("{}:{}", self.split, shown(place.lsn));
                let table = self.table.clone();
                self.bad.add(BadRow { table, place, reason, text: String::new() });
            }
            if !given.changes.is_empty() {
                let rows = self.columns.rows(&given.changes);
                return rows.map(Next::Batch).map_err(|error| {
                    let lsn = given.changes.first().map_or(0, |change| change.lsn);
                    error.at(&format!("{} at {}", self.place, shown(lsn)))
                });
            }
        }
    }

    fn position(&self) -> Position {
        self.at.position(&self.split)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use arrow::datatypes::{DataType, Field, Schema};

    use super::*;
    use crate::ranges::SeenTransactions;

    const SPLIT: &str = "t@slot";

    fn source() -> CdcSource {
        let options = [
            ("url", "postgresql://localhost:5432/postgres"),
            ("table-name", "t"),
            ("username", "postgres"),
            ("slot.name", "slot"),
        ];
        let options = options.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let schema = Arc::new(Schema::new(vec![Field::new("op", DataType::Utf8, true)]));
        let def = TableDef {
            name: "t".into(),
            schema,
            options: options.into(),
            metadata: BTreeMap::new(),
            buckets: vec![],
        };
        CdcSource::new(&def, &[0]).unwrap()
    }

    #[test]
    fn a_position_with_ranges_is_refused_by_a_build_that_does_not_know_them() {
        let seen = SeenTransactions::of("10:20:12").unwrap();
        let ranges = ReadRanges { columns: vec!["k".into()], ..ReadRanges::default() };
        let mut ranges = ranges.with(seen, 99).unwrap();
        ranges.ranges[0].upto = vec!["7".into()];
        let at = LogPlace { lsn: 50, given: 3 };
        let begin = LogPlace { lsn: 40, given: 0 };
        let cases = [
            (FollowFrom::Anew, 1, 0),
            (FollowFrom::Rows(begin, ranges.clone()), 2, 0),
            (FollowFrom::Log(at, None), 1, 50),
            (FollowFrom::Log(at, Some(Arc::new(ranges))), 2, 50),
        ];
        for (from, version, confirmed) in cases {
            let position = ReaderPlace::of(&from).position(SPLIT);
            let position = Position::from_bytes(&position.to_bytes()).unwrap();
            let is_of = |version| position.numbers::<3>(FORMAT, version, SPLIT).is_ok();
            assert_eq!([is_of(1), is_of(2)], [version == 1, version == 2], "{from:?}");
            let numbers = numbers_of(&position, SPLIT).unwrap();
            let split = Split { name: SPLIT.into(), ..Split::default() };
            assert_eq!(from_position(&split, Some(numbers), position.note()).unwrap(), from);
            // The server may forget what lies before either kind, once the rows are read.
            let source = source();
            source.settle(&[position]);
            assert_eq!(source.confirmed.load(Ordering::Acquire), confirmed, "{from:?}");
        }
        // Neither number says that the other kind is there.
        let numbers = [50, 3, FOLLOWS];
        let none = Position::new(FORMAT, RANGES_VERSION, SPLIT, &numbers);
        let some = Position::new(FORMAT, VERSION, SPLIT, &numbers).with_note(vec![1]);
        assert!(numbers_of(&none, SPLIT).is_err() && numbers_of(&some, SPLIT).is_err());
    }
}
