//! Rows of two sides that meet by equal keys: one side lies in a hash table ([`Hashed`]), batches
//! of the other are probed against it as they lie ([`Pairing`]).
//!
//! Which rows of a batch have found no partner is known behind its pairs, and of the table when all
//! of the other side has been probed: then they are given out, where the kind of join asks for it.

mod key_ids;
mod shared;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::{
    ArrayRef, AsArray, BooleanArray, RecordBatch, RecordBatchOptions, UInt32Array, new_null_array,
};
use arrow::datatypes::{Schema, SchemaRef};
use key_ids::KeyIds;
use state::{KeyMap, NullKeys, Partitioner, StateError};

use crate::connector::join_filter::JoinFilter;
use crate::error::DataflowError;
use crate::job::JoinKind;
use crate::job::step::Step;
use crate::rows::chunks::Chunks;
use crate::rows::origin::Origin;
use crate::rows::selection::Selection;

/// What a join asks of a pair besides equal keys, and what it gives out.
#[derive(Clone, Copy)]
pub(crate) struct Terms<'a> {
    pub(crate) kind: JoinKind,
    /// Whether each row of the probed side is emitted alone, and behind its columns whether it has
    /// a partner; `kind` is then a semi-join of that side.
    pub(crate) marks: bool,
    /// A filter over `both`.
    pub(crate) on: Option<&'a Arc<dyn Step>>,
    pub(crate) schema: &'a SchemaRef,
    /// Left and right columns.
    pub(crate) both: &'a SchemaRef,
}

impl Terms<'_> {
    /// Which of some pairs, given as left and right columns, pass; `None` if all do.
    pub(crate) fn passed(
        &self,
        columns: &[ArrayRef],
        pairs: usize,
    ) -> Result<Option<Origin>, DataflowError> {
        let Some(on) = self.on else { return Ok(None) };
        let options = RecordBatchOptions::new().with_row_count(Some(pairs));
        let all = RecordBatch::try_new_with_options(self.both.clone(), columns.to_vec(), &options)?;
        match on.apply(&all)?.origin {
            Origin::All => Ok(None),
            Origin::Taken(_) => {
                let message = "the condition of a join is no filter";
                Err(DataflowError::Expression(message.into()))
            }
            kept => Ok(Some(kept)),
        }
    }

    /// Rows of one side alone, with NULL on the other side if that is shown too.
    pub(crate) fn single(&self, side: usize, own: Selection) -> Result<Selection, DataflowError> {
        if !self.kind.shows(1 - side) {
            return Ok(own.with_schema(self.schema.clone()));
        }
        let all = self.both.fields();
        let others = match side {
            0 => &all[own.width()..],
            _ => &all[..all.len() - own.width()],
        };
        let fields = others.iter().map(|field| field.as_ref().clone().with_nullable(true));
        let nulls = others.iter().map(|field| new_null_array(field.data_type(), own.len()));
        let options = RecordBatchOptions::new().with_row_count(Some(own.len()));
        let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        let nulls = RecordBatch::try_new_with_options(schema, nulls.collect(), &options)?;
        Ok(self.beside(side, own, Selection::of(nulls)))
    }

    /// Rows of one side beside as many of the other.
    fn beside(&self, side: usize, own: Selection, others: Selection) -> Selection {
        match side {
            0 => own.beside(others, self.schema.clone()),
            _ => others.beside(own, self.schema.clone()),
        }
    }
}

/// Rows that are found by their keys.
#[derive(Debug)]
pub(crate) struct Hashed {
    pub(crate) rows: Arc<Chunks>,
    ids: KeyIds,
    chains: Option<Chains>,
    /// Whether keys of rows are missing, because the query was stopped: then nobody looks them up.
    pub(crate) is_cut: bool,
    /// By column, the filter of its values, once it was asked for.
    filters: Mutex<BTreeMap<usize, Option<Arc<JoinFilter>>>>,
}

/// The rows of each key, where not each row has a key of its own, whose id is the row's number.
#[derive(Debug)]
struct Chains {
    /// By the id of a key its first row, + 1; the others follow in `next`, in the same way, which
    /// is empty where each key has one row.
    first: Vec<u32>,
    next: Vec<u32>,
}

impl Hashed {
    /// Rows of several batches, which have the columns `keys`; `nulls` says whether NULL in a key
    /// is equal to NULL.
    pub(crate) fn new(
        batches: Vec<RecordBatch>,
        schema: &SchemaRef,
        keys: &[usize],
        nulls: NullKeys,
    ) -> Result<Self, DataflowError> {
        Self::unless(&|| false, batches, schema, keys, nulls)
    }

    /// As [`Hashed::new`], until the query is `stopped`, which is asked again and again.
    pub(crate) fn unless(
        stopped: &dyn Fn() -> bool,
        batches: Vec<RecordBatch>,
        schema: &SchemaRef,
        keys: &[usize],
        nulls: NullKeys,
    ) -> Result<Self, DataflowError> {
        let rows = Chunks::new(batches);
        let mut ids = Vec::with_capacity(rows.rows());
        let span = match nulls {
            NullKeys::Nothing => KeyIds::span(&rows, keys, &mut ids)?,
            NullKeys::Equal => None,
        };
        let (of_keys, end) = match span {
            Some(span) => span,
            None => KeyIds::table(stopped, &rows, schema, keys, nulls, &mut ids)?,
        };
        let is_cut = ids.len() < rows.rows();
        let in_turn = ids.iter().copied().eq(0..rows.rows() as u32);
        let chains = (!in_turn).then(|| Chains::new(end, &ids));
        Ok(Self { rows: Arc::new(rows), ids: of_keys, chains, is_cut, filters: Mutex::default() })
    }

    /// How many rows there are, and a number that the same rows have in any order: the sum of their
    /// hashes. Columns of values that have no hash do not count.
    pub(crate) fn fingerprint(&self) -> (u64, u64) {
        // With one owner there are no hashes.
        let mut partitioner = Partitioner::new(2);
        let (mut owners, mut sum) = (vec![], 0u64);
        for batch in self.rows.batches() {
            let hashed = |column: &&ArrayRef| {
                let column = std::slice::from_ref(*column);
                partitioner.owners_of(column, &mut owners).is_ok()
            };
            let columns: Vec<ArrayRef> = batch.columns().iter().filter(hashed).cloned().collect();
            if !columns.is_empty() && partitioner.owners_of(&columns, &mut owners).is_ok() {
                let hashes = partitioner.hashes().iter();
                sum = hashes.fold(sum, |sum, hash| sum.wrapping_add(*hash));
            }
        }
        (self.rows.rows() as u64, sum)
    }

    /// The filter of the values of a column in all rows, if such values have one. The workers of a
    /// process that share the rows make it once.
    pub(crate) fn filter(&self, column: usize) -> Result<Option<Arc<JoinFilter>>, DataflowError> {
        let mut filters = self.filters.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(made) = filters.get(&column) {
            return Ok(made.clone());
        }
        let keys: Vec<ArrayRef> =
            self.rows.batches().iter().map(|batch| batch.column(column).clone()).collect();
        let filter = JoinFilter::new(&keys)?.map(Arc::new);
        filters.insert(column, filter.clone());
        Ok(filter)
    }

    /// The first row of a key, + 1; 0 if there is none.
    #[inline]
    fn first(&self, id: u32) -> u32 {
        match &self.chains {
            Some(chains) => chains.first.get(id as usize).copied().unwrap_or(0),
            None if (id as usize) < self.rows.rows() => id + 1,
            None => 0,
        }
    }

    /// The row behind a row of the same key; both + 1.
    #[inline]
    fn next(&self, at: u32) -> u32 {
        self.chains
            .as_ref()
            .map_or(0, |chains| chains.next.get(at as usize - 1).copied().unwrap_or(0))
    }

    /// What stands in `column` beside the column `key`, as a map, if the rows have one.
    pub(crate) fn map(&self, key: usize, column: usize) -> Result<Option<KeyMap>, StateError> {
        match self.rows.batches() {
            [rows] => KeyMap::of(rows.column(key), rows.column(column)),
            _ => Ok(None),
        }
    }

    /// Rows by their numbers.
    fn by_number(&self, terms: Terms<'_>, numbers: UInt32Array) -> Selection {
        Selection::by_number(terms.schema.clone(), self.rows.clone(), numbers)
    }

    /// Bytes held.
    pub(crate) fn bytes(&self) -> usize {
        let links = self.chains.as_ref().map_or(0, |chains| chains.first.len() + chains.next.len());
        self.rows.bytes() + self.ids.bytes() + links * size_of::<u32>()
    }
}

impl Chains {
    /// Of rows with keys of these ids, of which there are so many.
    fn new(keys: usize, ids: &[u32]) -> Self {
        let (mut first, mut next) = (vec![0; keys], vec![0; ids.len()]);
        let mut several = false;
        for (row, &id) in ids.iter().enumerate().rev() {
            if let Some(first) = first.get_mut(id as usize) {
                next[row] = std::mem::replace(first, row as u32 + 1);
                several |= next[row] != 0;
            }
        }
        Self { first, next: if several { next } else { vec![] } }
    }
}

/// The side whose rows are looked up.
pub(crate) struct ProbeSide<'a> {
    /// 0 is left, 1 right.
    pub(crate) side: usize,
    /// The columns of its key.
    pub(crate) keys: &'a [usize],
}

/// Batches of one side on their way past the rows of the other.
pub(crate) struct Pairing {
    hashed: Arc<Hashed>,
    /// The side that is probed, and its keys.
    side: usize,
    keys: Vec<usize>,
    waiting: VecDeque<Selection>,
    probing: Option<Probing>,
    /// Of the rows of the table, where the kind of join asks for those with or without a partner.
    met: Met,
}

/// A batch on its way past the table.
struct Probing {
    rows: Selection,
    /// The id of the key of each row.
    ids: Vec<u32>,
    /// The row that is probed, and the row of the table to look at, + 1; before the first of a row,
    /// nothing.
    row: usize,
    at: Option<u32>,
    met: Met,
}

/// Which rows have found a partner; empty where nobody asks.
struct Met {
    rows: Vec<bool>,
    /// How many of them were given out or passed over.
    done: usize,
}

/// Some of the rows of a join, and of which probed row each is; where rows of the table are given
/// out alone, of which of those.
pub(crate) type Paired = (Selection, UInt32Array);

/// Pairs: rows of a batch, and of the table.
type Pairs = [UInt32Array; 2];

impl Pairing {
    /// The batches are of one side; the table has the other.
    pub(crate) fn new(
        probe: ProbeSide<'_>,
        batches: impl Into<VecDeque<RecordBatch>>,
        hashed: Arc<Hashed>,
        kind: JoinKind,
    ) -> Self {
        let ProbeSide { side, keys } = probe;
        let met = Met::new(kind, 1 - side, hashed.rows.rows());
        let waiting = batches.into().into_iter().map(Selection::of).collect();
        Self { hashed, side, keys: keys.to_vec(), waiting, probing: None, met }
    }

    /// The rows that are looked up.
    pub(crate) fn table(&self) -> &Hashed {
        &self.hashed
    }

    /// Adds rows of the side that is probed.
    pub(crate) fn push(&mut self, rows: Selection) {
        self.waiting.push_back(rows);
    }

    /// The next rows, at most `rows_max`; `None` when there are no more.
    pub(crate) fn next(
        &mut self,
        terms: Terms<'_>,
        rows_max: usize,
    ) -> Result<Option<Paired>, DataflowError> {
        match self.next_probed(terms, rows_max)? {
            None => self.next_of_table(terms, rows_max),
            probed => Ok(probed),
        }
    }

    /// The next result rows of the batches so far, at most `rows_max`; `None` when there are no
    /// more.
    pub(crate) fn next_probed(
        &mut self,
        terms: Terms<'_>,
        rows_max: usize,
    ) -> Result<Option<Paired>, DataflowError> {
        loop {
            if let Some(mut probing) = self.probing.take() {
                let paired = self.probe(terms, &mut probing, rows_max)?;
                if paired.is_some() {
                    self.probing = Some(probing);
                    return Ok(paired);
                }
            }
            let Some(rows) = self.waiting.pop_front() else { return Ok(None) };
            let ids = self.hashed.ids.find(&rows, &self.keys)?;
            let met = Met::new(terms.kind, self.side, ids.len());
            self.probing = Some(Probing { rows, ids, row: 0, at: None, met });
        }
    }

    /// The next rows of the table that are emitted alone, when all of the other side has been
    /// probed; at most `rows_max`, and `None` when there are no more.
    pub(crate) fn next_of_table(
        &mut self,
        terms: Terms<'_>,
        rows_max: usize,
    ) -> Result<Option<Paired>, DataflowError> {
        let Self { hashed, met, side, .. } = self;
        let take = |rows: &UInt32Array| Ok(hashed.by_number(terms, rows.clone()));
        met.singles(terms, 1 - *side, take, rows_max)
    }

    /// Begins a batch that looks up several tables, one after another: `met` says whether each of
    /// its rows has found a partner in the tables before, if the kind of join needs that.
    pub(crate) fn begin(
        &mut self,
        batch: RecordBatch,
        terms: Terms<'_>,
        met: Option<Vec<bool>>,
    ) -> Result<(), DataflowError> {
        let rows = Selection::of(batch);
        let ids = self.hashed.ids.find(&rows, &self.keys)?;
        let met = match met {
            Some(rows) => Met { rows, done: 0 },
            None => Met::new(terms.kind, self.side, ids.len()),
        };
        self.probing = Some(Probing { rows, ids, row: 0, at: None, met });
        Ok(())
    }

    /// The next pairs of the batch that was begun, at most `rows_max`; `None` when there are no
    /// more.
    pub(crate) fn next_pairs(
        &mut self,
        terms: Terms<'_>,
        rows_max: usize,
    ) -> Result<Option<Paired>, DataflowError> {
        let Some(mut probing) = self.probing.take() else { return Ok(None) };
        let paired = self.pairs(terms, &mut probing, rows_max);
        self.probing = Some(probing);
        paired
    }

    /// Leaves the batch that was begun; gives whether each of its rows has a partner, if the kind
    /// of join needs that.
    pub(crate) fn leave(&mut self) -> Option<Vec<bool>> {
        self.probing.take().map(|probing| probing.met.rows)
    }

    /// The next rows of a batch; `None` when it is through.
    fn probe(
        &mut self,
        terms: Terms<'_>,
        probing: &mut Probing,
        rows_max: usize,
    ) -> Result<Option<Paired>, DataflowError> {
        let paired = self.pairs(terms, probing, rows_max)?;
        if paired.is_some() {
            return Ok(paired);
        }
        let Probing { rows: probed, met, .. } = probing;
        met.singles(terms, self.side, |rows| probed.take(rows), rows_max)
    }

    /// The next pairs of a batch; `None` when there are no more.
    fn pairs(
        &mut self,
        terms: Terms<'_>,
        probing: &mut Probing,
        rows_max: usize,
    ) -> Result<Option<Paired>, DataflowError> {
        if terms.on.is_none() && !terms.kind.widens() {
            probing.mark(&self.hashed, &mut self.met);
        }
        while probing.row < probing.rows.len() {
            let pairs = probing.pairs(&self.hashed, rows_max);
            if let Some(paired) = self.paired(terms, probing, pairs)? {
                return Ok(Some(paired));
            }
        }
        Ok(None)
    }

    /// Pairs that pass the filter, as rows, if pairs are given out.
    fn paired(
        &mut self,
        terms: Terms<'_>,
        probing: &mut Probing,
        mut pairs: Pairs,
    ) -> Result<Option<Paired>, DataflowError> {
        if pairs[0].is_empty() {
            return Ok(None);
        }
        let mut joined = None;
        if terms.on.is_some() {
            let both = Terms { schema: terms.both, ..terms };
            let all = self.joined(both, probing, &pairs)?.materialized()?;
            match terms.passed(all.columns(), pairs[0].len())? {
                Some(Origin::Mask(kept)) => {
                    for rows in &mut pairs {
                        *rows = arrow::compute::filter(rows, &kept)?.as_primitive().clone();
                    }
                }
                _ => joined = Some(Selection::of(all).with_schema(terms.schema.clone())),
            }
        }
        for (met, rows) in [&mut probing.met, &mut self.met].into_iter().zip(&pairs) {
            if !met.rows.is_empty() {
                rows.values().iter().for_each(|&row| met.rows[row as usize] = true);
            }
        }
        if !terms.kind.widens() || pairs[0].is_empty() {
            return Ok(None);
        }
        let rows = match joined {
            Some(rows) => rows,
            None => self.joined(terms, probing, &pairs)?,
        };
        let [own, _] = pairs;
        Ok(Some((rows, own)))
    }

    /// Pairs as rows.
    fn joined(
        &self,
        terms: Terms<'_>,
        probing: &Probing,
        [own, other]: &Pairs,
    ) -> Result<Selection, DataflowError> {
        let other = self.hashed.by_number(terms, other.clone());
        Ok(terms.beside(self.side, probing.rows.take(own)?, other))
    }
}

impl Probing {
    /// The next pairs of equal keys, at most `rows_max`.
    fn pairs(&mut self, hashed: &Hashed, rows_max: usize) -> Pairs {
        let most = rows_max.min(self.ids.len() - self.row);
        let (mut own, mut other) = (Vec::with_capacity(most), Vec::with_capacity(most));
        while self.row < self.ids.len() && own.len() < rows_max {
            let mut at = self.at.take().unwrap_or_else(|| hashed.first(self.ids[self.row]));
            while at != 0 && own.len() < rows_max {
                own.push(self.row as u32);
                other.push(at - 1);
                at = hashed.next(at);
            }
            match at {
                0 => self.row += 1,
                more => self.at = Some(more),
            }
        }
        [own.into(), other.into()]
    }

    /// Notes which rows of either side have a partner, where that is all that is asked.
    fn mark(&mut self, hashed: &Hashed, met: &mut Met) {
        for (row, &id) in self.ids.iter().enumerate().skip(self.row) {
            let mut at = hashed.first(id);
            if at != 0 && !self.met.rows.is_empty() {
                self.met.rows[row] = true;
            }
            // All rows of a key have met if the first has.
            while at != 0 && met.rows.get(at as usize - 1) == Some(&false) {
                met.rows[at as usize - 1] = true;
                at = hashed.next(at);
            }
        }
        self.row = self.ids.len();
    }
}

impl Met {
    /// Of so many rows of a side.
    fn new(kind: JoinKind, side: usize, rows: usize) -> Self {
        let asked = if kind.alone(side).is_some() { rows } else { 0 };
        Self { rows: vec![false; asked], done: 0 }
    }

    /// The next rows of a side that are given out alone.
    fn singles(
        &mut self,
        terms: Terms<'_>,
        side: usize,
        take: impl FnOnce(&UInt32Array) -> Result<Selection, DataflowError>,
        rows_max: usize,
    ) -> Result<Option<Paired>, DataflowError> {
        let Some(with) = terms.kind.alone(side) else { return Ok(None) };
        let (mut rows, first) = (vec![], self.done);
        while self.done < self.rows.len() && rows.len() < rows_max {
            if terms.marks || self.rows[self.done] == with {
                rows.push(self.done as u32);
            }
            self.done += 1;
        }
        if rows.is_empty() {
            return Ok(None);
        }
        let rows = UInt32Array::from(rows);
        let own = take(&rows)?;
        if !terms.marks {
            return Ok(Some((terms.single(side, own)?, rows)));
        }
        let marks: ArrayRef = Arc::new(BooleanArray::from(self.rows[first..self.done].to_vec()));
        let marks = Selection::of(RecordBatch::try_from_iter([("mark", marks)])?);
        Ok(Some((own.beside(marks, terms.schema.clone()), rows)))
    }
}
