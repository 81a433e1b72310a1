//! The join of a stream with what a versioned table was at the time of each row.
//!
//! The right side is append-only: a row of it is the version of its key from its time on, until
//! the next one. A left row waits until the watermark has passed its time, for then all versions up
//! to it have come; it meets the latest of them. Of each key the versions are kept that a left row
//! may still ask for: the latest that the watermark has passed, and those after it. So state is as
//! large as the table has keys, beside what waits.
//!
//! Of two versions of the same time the one counts whose columns are greater, whichever came first,
//! so that every run gives the same rows.

use std::collections::{BTreeMap, HashMap, VecDeque};

use arrow::array::{Array, BooleanArray, RecordBatch, UInt32Array, new_null_array};
use arrow::compute::{concat_batches, filter_record_batch, not, take_record_batch};
use arrow::datatypes::SchemaRef;
use arrow::row::OwnedRow;
use state::{KeyRows, NullKeys, gather};

use crate::checkpoint::SavedRows;
use crate::error::DataflowError;
use crate::job::{
    Description, InputBatches, JoinKind, KeyedOperator, KeyedState, Retention, RowOwner, SavedPart,
    SavedParts, SpillSpec, list,
};
use crate::operators::interval_join::TimedSide;
use crate::operators::keyed::{at_rest, no_part};
use crate::rows::keys::RowKeys;
use crate::rows::keys::columns_of;
use crate::rows::time::ticks;

/// A join of each left row with the version of its key at its time.
#[derive(Debug, Clone)]
pub struct TemporalJoin {
    /// The stream and the versions; not without keys.
    pub sides: [TimedSide; 2],
    /// Whether left rows without a version are given out too, with NULL on the right.
    pub outer: bool,
    /// Whether the version must be earlier than the row, rather than of its time or earlier.
    pub earlier: bool,
    /// Left and right columns.
    pub schema: SchemaRef,
}

impl KeyedOperator for TemporalJoin {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn create(&self) -> Box<dyn KeyedState> {
        Box::new(Versioned {
            spec: self.clone(),
            waiting: vec![],
            due: VecDeque::new(),
            versions: Versions::new(),
            passed: i64::MIN,
            held: 0,
        })
    }

    /// Left rows whose time may come, and the versions that they, or rows to come, may ask for.
    fn saved(&self) -> Option<SavedParts> {
        let side = |(number, side): (usize, &TimedSide)| SavedPart {
            schema: side.schema.clone(),
            owner: RowOwner::Input(number),
        };
        let parts = self.sides.iter().enumerate().map(side).collect();
        Some(SavedParts { version: 1, parts })
    }

    fn retention(&self, input: usize) -> Option<Retention> {
        Some(if input == 0 { Retention::Waiting } else { Retention::PerKey(1) })
    }

    fn spill_spec(&self, input: usize) -> Option<SpillSpec> {
        let TimedSide { keys, time, .. } = &self.sides[input];
        Some(SpillSpec { until: *time, apart: keys.clone(), keeps: true })
    }

    fn passes_on(&self, input: usize, column: usize) -> Option<usize> {
        Some(if input == 0 { column } else { self.sides[0].schema.fields().len() + column })
    }

    fn always_has(&self, input: usize) -> bool {
        input == 0 || !self.outer
    }

    fn describe(&self, columns: &[Vec<String>]) -> Description {
        let kind = if self.outer { JoinKind::Left } else { JoinKind::Inner };
        let keys = self.sides.each_ref().map(|side| side.keys.as_slice());
        let mut properties = kind.properties(columns, keys, None);
        let of = |side: usize| {
            list(columns.get(side).map_or(&[], Vec::as_slice), &[self.sides[side].time])
        };
        let compared = if self.earlier { "<" } else { "<=" };
        properties.push(("version", format!("latest with {} {compared} {}", of(1), of(0))));
        Description { name: "TemporalJoin", properties }
    }
}

/// Rows that wait, and what they may ask for.
struct Versioned {
    spec: TemporalJoin,
    /// Left rows whose time may come.
    waiting: Vec<Waiting>,
    /// Left rows whose time has come.
    due: VecDeque<Waiting>,
    versions: Versions,
    /// The watermark up to which rows have fallen due.
    passed: i64,
    held: usize,
}

/// Left rows and their times.
struct Waiting {
    batch: RecordBatch,
    times: Vec<i64>,
}

/// The versions of all keys.
struct Versions {
    /// Batches with the number of versions in them that are still asked for.
    parts: BTreeMap<u32, (RecordBatch, usize)>,
    next: u32,
    keys: RowKeys,
    /// By the id of the key, and by time.
    by_key: Vec<BTreeMap<i64, Version>>,
    /// Versions that came since old ones were forgotten.
    fresh: usize,
    bytes: usize,
}

/// A version: where its row is, and its columns in a form that can be compared.
struct Version {
    part: u32,
    row: u32,
    columns: OwnedRow,
}

/// Bytes of a version beside its row.
const VERSION_BYTES: usize = 64;

impl Versions {
    fn new() -> Self {
        let (parts, keys) = (BTreeMap::new(), RowKeys::new(NullKeys::Nothing));
        Self { parts, next: 0, keys, by_key: vec![], fresh: 0, bytes: 0 }
    }

    fn push(&mut self, side: &TimedSide, batch: RecordBatch) -> Result<(), DataflowError> {
        let times = times_of(side, &batch)?;
        let mut ids = vec![];
        let keys = columns_of(&batch, &side.keys);
        let keys = self.keys.intern(&keys, batch.num_rows(), &mut ids)?;
        self.by_key.resize_with(keys, BTreeMap::new);
        let columns = if batch.columns().iter().all(|c| KeyRows::supports(c.data_type())) {
            batch.columns().to_vec()
        } else {
            vec![batch.column(side.time).clone()]
        };
        let rows = KeyRows::exact(&columns)?;
        let part = self.next;
        self.next += 1;
        self.bytes += batch.get_array_memory_size();
        self.parts.insert(part, (batch, 0));
        for (row, (&time, &id)) in times.iter().zip(&ids).enumerate() {
            // The key of a row may be NULL.
            let Some(of) = self.by_key.get_mut(id as usize) else { continue };
            let version = Version { part, row: row as u32, columns: rows.row(row).owned() };
            if of.get(&time).is_some_and(|known| known.columns >= version.columns) {
                continue;
            }
            let weight = |version: &Version| version.columns.row().data().len() + VERSION_BYTES;
            self.bytes += weight(&version);
            self.fresh += 1;
            if let Some((_, count)) = self.parts.get_mut(&part) {
                *count += 1;
            }
            if let Some(old) = of.insert(time, version) {
                self.bytes -= weight(&old);
                self.forget(old.part);
            }
        }
        // Nobody asks for a batch without a version.
        if self.parts.get(&part).is_some_and(|(_, count)| *count == 0) {
            self.drop_part(part);
        }
        Ok(())
    }

    /// One version less of a batch.
    fn forget(&mut self, part: u32) {
        let Some((_, count)) = self.parts.get_mut(&part) else { return };
        *count -= 1;
        if *count == 0 {
            self.drop_part(part);
        }
    }

    fn drop_part(&mut self, part: u32) {
        if let Some((batch, _)) = self.parts.remove(&part) {
            self.bytes -= batch.get_array_memory_size();
        }
    }

    /// Where the latest version of a key until `time` is.
    fn at(&self, id: u32, time: i64) -> Option<(u32, u32)> {
        let (_, version) = self.by_key.get(id as usize)?.range(..=time).next_back()?;
        Some((version.part, version.row))
    }

    /// Forgets versions that were replaced before `watermark`, when there are enough new ones to be
    /// worth a look at all keys; and puts the others together where most rows of the batches are
    /// forgotten.
    fn forget_before(&mut self, watermark: i64) -> Result<(), DataflowError> {
        if self.fresh <= self.by_key.len() {
            return Ok(());
        }
        self.fresh = 0;
        let mut gone = vec![];
        for versions in &mut self.by_key {
            while let Some((&second, _)) = versions.iter().nth(1) {
                if second >= watermark {
                    break;
                }
                gone.extend(versions.pop_first().map(|(_, version)| version));
            }
        }
        for version in gone {
            self.bytes -= version.columns.row().data().len() + VERSION_BYTES;
            self.forget(version.part);
        }
        let rows: usize = self.parts.values().map(|(batch, _)| batch.num_rows()).sum();
        let used: usize = self.parts.values().map(|(_, count)| count).sum();
        if rows > 4_096 && rows > 2 * used { self.compact() } else { Ok(()) }
    }

    /// The rows of all versions.
    fn rows(&self) -> Result<Vec<RecordBatch>, DataflowError> {
        let mut of_part: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for version in self.by_key.iter().flat_map(BTreeMap::values) {
            of_part.entry(version.part).or_default().push(version.row);
        }
        let rows = |(part, rows): (u32, Vec<u32>)| {
            let (batch, _) = self.parts.get(&part)?;
            Some(take_record_batch(batch, &UInt32Array::from(rows)))
        };
        Ok(of_part.into_iter().filter_map(rows).collect::<Result<_, _>>()?)
    }

    /// Bytes held.
    fn bytes(&self) -> usize {
        let keys = self.by_key.len() * size_of::<BTreeMap<i64, Version>>();
        self.bytes + self.keys.bytes() + keys
    }

    fn compact(&mut self) -> Result<(), DataflowError> {
        let mut of_part: BTreeMap<u32, Vec<&mut Version>> = BTreeMap::new();
        for version in self.by_key.iter_mut().flat_map(BTreeMap::values_mut) {
            of_part.entry(version.part).or_default().push(version);
        }
        let part = self.next;
        let (mut batches, mut count) = (vec![], 0);
        for (from, versions) in of_part {
            let Some((batch, _)) = self.parts.get(&from) else { continue };
            let rows: Vec<u32> = versions.iter().map(|version| version.row).collect();
            batches.push(take_record_batch(batch, &UInt32Array::from(rows))?);
            for version in versions {
                (version.part, version.row) = (part, count as u32);
                count += 1;
            }
        }
        let Some(first) = batches.first() else { return Ok(()) };
        let whole = concat_batches(&first.schema(), &batches)?;
        let old: usize = self.parts.values().map(|(batch, _)| batch.get_array_memory_size()).sum();
        self.bytes = self.bytes - old + whole.get_array_memory_size();
        self.parts = BTreeMap::from([(part, (whole, count))]);
        self.next += 1;
        Ok(())
    }
}

impl Versioned {
    /// Puts the rows before `watermark` on their way out.
    fn fall_due(&mut self, watermark: i64) -> Result<(), DataflowError> {
        for waiting in std::mem::take(&mut self.waiting) {
            let Waiting { batch, times } = waiting;
            self.held -= batch.get_array_memory_size();
            let is_due = |&time: &i64| time < watermark || watermark == i64::MAX;
            let due: BooleanArray = times.iter().map(|time| Some(is_due(time))).collect();
            let rest = times.iter().copied().filter(|time| !is_due(time)).collect::<Vec<_>>();
            if rest.len() < times.len() {
                let batch = filter_record_batch(&batch, &due)?;
                self.held += batch.get_array_memory_size();
                let times = times.into_iter().filter(is_due).collect();
                self.due.push_back(Waiting { batch, times });
            }
            if !rest.is_empty() {
                let batch = filter_record_batch(&batch, &not(&due)?)?;
                self.held += batch.get_array_memory_size();
                self.waiting.push(Waiting { batch, times: rest });
            }
        }
        Ok(())
    }

    /// Some rows of a batch with their versions; nothing if none has one.
    fn meet(&self, rows: &Waiting) -> Result<Option<RecordBatch>, DataflowError> {
        let [left, right] = &self.spec.sides;
        let mut ids = vec![];
        let keys = columns_of(&rows.batch, &left.keys);
        self.versions.keys.find(&keys, rows.batch.num_rows(), &mut ids)?;
        // The first of the arrays is one NULL: where there is no version.
        let mut parts: Vec<&RecordBatch> = vec![];
        let mut known: HashMap<u32, usize> = HashMap::new();
        let (mut own, mut versions) = (vec![], vec![]);
        for (row, (&time, &id)) in rows.times.iter().zip(&ids).enumerate() {
            let until = if self.spec.earlier { time.saturating_sub(1) } else { time };
            let version = self.versions.at(id, until);
            let found =
                version.and_then(|(part, at)| Some((part, at, self.versions.parts.get(&part)?)));
            match found {
                Some((part, at, (batch, _))) => {
                    let part = *known.entry(part).or_insert_with(|| {
                        parts.push(batch);
                        parts.len()
                    });
                    versions.push((part, at as usize));
                }
                None if self.spec.outer => versions.push((0, 0)),
                None => continue,
            }
            own.push(row as u32);
        }
        if own.is_empty() {
            return Ok(None);
        }
        let mut columns =
            take_record_batch(&rows.batch, &UInt32Array::from(own))?.columns().to_vec();
        for (at, field) in right.schema.fields().iter().enumerate() {
            let nothing = new_null_array(field.data_type(), 1);
            let arrays = parts.iter().map(|part| part.column(at).as_ref());
            let arrays: Vec<&dyn Array> = std::iter::once(nothing.as_ref()).chain(arrays).collect();
            columns.push(gather(&arrays, &versions)?);
        }
        Ok(Some(RecordBatch::try_new(self.spec.schema.clone(), columns)?))
    }
}

impl KeyedState for Versioned {
    fn push(&mut self, input: usize, batch: RecordBatch) -> Result<(), DataflowError> {
        if input == 1 {
            return self.versions.push(&self.spec.sides[1], batch);
        }
        let times = times_of(&self.spec.sides[0], &batch)?;
        self.held += batch.get_array_memory_size();
        self.waiting.push(Waiting { batch, times });
        Ok(())
    }

    fn advance(
        &mut self,
        watermark: i64,
        rows_max: usize,
    ) -> Result<Option<RecordBatch>, DataflowError> {
        if self.due.is_empty() && watermark > self.passed {
            self.passed = watermark;
            self.fall_due(watermark)?;
        }
        while let Some(mut rows) = self.due.pop_front() {
            self.held -= rows.batch.get_array_memory_size();
            if rows.times.len() > rows_max {
                let rest = rows.times.split_off(rows_max);
                let batch = rows.batch.slice(rows_max, rest.len());
                self.held += batch.get_array_memory_size();
                self.due.push_front(Waiting { batch, times: rest });
                rows.batch = rows.batch.slice(0, rows_max);
            }
            if let Some(batch) = self.meet(&rows)? {
                return Ok(Some(batch));
            }
        }
        match self.passed {
            i64::MAX => self.versions = Versions::new(),
            passed => self.versions.forget_before(passed)?,
        }
        Ok(None)
    }

    fn drain(&mut self) -> Result<InputBatches, DataflowError> {
        let all = std::mem::take(&mut self.waiting).into_iter().map(|rows| (0, rows.batch));
        Ok(all.inspect(|(_, rows)| self.held -= rows.get_array_memory_size()).collect())
    }

    fn save(&mut self) -> Result<Vec<SavedRows>, DataflowError> {
        at_rest(self.due.is_empty())?;
        let waiting = self.waiting.iter().map(|rows| (0, rows.batch.clone()));
        let versions = self.versions.rows()?.into_iter().map(|rows| (1, rows));
        Ok(waiting.chain(versions).map(|(part, rows)| SavedRows { part, rows }).collect())
    }

    fn load(&mut self, SavedRows { part, rows }: SavedRows) -> Result<(), DataflowError> {
        if part as usize >= self.spec.sides.len() {
            return Err(no_part(part));
        }
        self.push(part as usize, rows)
    }

    fn bytes(&self) -> usize {
        self.held + self.versions.bytes()
    }
}

fn times_of(side: &TimedSide, batch: &RecordBatch) -> Result<Vec<i64>, DataflowError> {
    let times = ticks(batch.column(side.time)).map(|times| times.to_vec());
    times.ok_or_else(|| DataflowError::Expression("the time of a join is not a timestamp".into()))
}

#[cfg(test)]
mod tests;
