//! The rows of one input of a shuffle: who leads each, and those that wait to be sent.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::UInt32Array;
use arrow::compute::take_record_batch;
use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use fabric::Clock;
use state::{Frequent, Partitioner};

use super::buffer::Buffer;
use crate::error::DataflowError;
use crate::job::worker_set::WorkerSet;
use crate::job::{Lead, Route, Spread, halves};
use crate::rows::wire::{Decoder, Encoder, own_views};
use crate::runtime::place::Place;

/// Sets of workers for whom rows of a port wait; with one more all are sent.
const LISTS_MAX: usize = 1_024;

/// Where rows for every worker wait.
pub(super) const ALL: usize = 0;

/// The leader of all rows where there are no keys.
const KEYLESS_LEADER: u32 = 0;

/// The rows of one input.
pub(crate) struct Port {
    worker: u32,
    partitioner: RefCell<Partitioner>,
    pub(super) workers: u32,
    /// Whether half of the workers lead keys, and not all.
    halved: bool,
    pub(super) lead: Lead,
    /// Whose turn it is, where each worker gets a row in turn.
    pub(super) turn: Cell<u32>,
    /// Leads rows in place of a hash of the keys.
    route: Option<Arc<dyn Route>>,
    /// Leads each row to several workers.
    pub(super) spread: Option<Arc<dyn Spread>>,
    /// Rows that wait to be sent, by the workers that they are for.
    listed: RefCell<BTreeMap<Arc<WorkerSet>, Buffer>>,
    keys: Vec<usize>,
    schema: SchemaRef,
    row_bytes: usize,
    /// Bytes of rows for the same workers that are sent together (Q5), and how long the oldest may
    /// wait for others (W4).
    bytes_together: usize,
    wait_ns: u64,
    clock: Arc<dyn Clock>,
    pub(super) encoder: RefCell<Encoder>,
    pub(super) decoder: Decoder,
    /// Rows that wait to be sent, by leader.
    waiting: RefCell<Vec<Buffer>>,
    scratch: RefCell<Scratch>,
}

#[derive(Default)]
struct Scratch {
    owners: Vec<u32>,
    rows: Vec<Vec<u32>>,
}

impl Port {
    /// Rows of `schema`, led by the columns `keys`.
    pub(crate) fn new(schema: &SchemaRef, keys: &[usize], place: &Place) -> Self {
        let workers = place.workers;
        let width =
            |field: &arrow::datatypes::FieldRef| field.data_type().primitive_width().unwrap_or(16);
        Self {
            worker: place.worker,
            partitioner: RefCell::new(Partitioner::new(workers)),
            workers,
            halved: false,
            lead: Lead::ByKey,
            turn: Cell::new(0),
            route: None,
            spread: None,
            listed: RefCell::default(),
            keys: keys.to_vec(),
            bytes_together: place.settings.shuffle_bytes,
            wait_ns: place.settings.shuffle_wait_ns,
            clock: place.clock.clone(),
            row_bytes: schema.fields().iter().map(width).sum::<usize>().max(1),
            encoder: RefCell::new(Encoder::new(schema)),
            decoder: Decoder::new(schema),
            schema: schema.clone(),
            waiting: RefCell::new((0..workers).map(|_| Buffer::default()).collect()),
            scratch: RefCell::new(Scratch {
                owners: Vec::new(),
                rows: vec![Vec::new(); workers as usize + 1],
            }),
        }
    }

    /// The same rows, led by half of the workers if `halved`; by a function or otherwise than by
    /// key they are led to all the same.
    pub(crate) fn halved(self, halved: bool) -> Self {
        let leaders = if halved { halves::leaders(self.workers) } else { self.workers };
        Self { halved, partitioner: RefCell::new(Partitioner::new(leaders)), ..self }
    }

    /// The same rows, led by a function if there is one.
    pub(crate) fn routed(self, route: Option<Arc<dyn Route>>) -> Self {
        Self { route, ..self }
    }

    /// The same rows, each led to several workers by a function if there is one.
    pub(crate) fn spread(self, spread: Option<Arc<dyn Spread>>) -> Self {
        Self { spread, ..self }
    }

    /// The same rows, led otherwise.
    pub(crate) fn led(self, lead: Lead) -> Self {
        Self { lead, ..self }
    }

    /// The worker of each row.
    fn owners(&self, batch: &RecordBatch, owners: &mut Vec<u32>) -> Result<(), DataflowError> {
        let keys: Vec<_> = self.keys.iter().map(|&key| batch.column(key).clone()).collect();
        match &self.route {
            _ if self.lead == Lead::InTurn => {
                let first = self.turn.get();
                let next =
                    |row: usize| ((u64::from(first) + row as u64) % u64::from(self.workers)) as u32;
                *owners = (0..batch.num_rows()).map(next).collect();
                self.turn.set(next(batch.num_rows()));
            }
            Some(route) => {
                owners.clear();
                route.route(batch, self.workers, owners)?;
                let fits = owners.len() == batch.num_rows();
                if !fits || owners.iter().any(|&owner| owner >= self.workers) {
                    let message = format!(
                        "a route gave {} workers up to {} for {} rows, of {} workers",
                        owners.len(),
                        owners.iter().max().unwrap_or(&0),
                        batch.num_rows(),
                        self.workers
                    );
                    return Err(DataflowError::Expression(message));
                }
            }
            None if keys.is_empty() => *owners = vec![KEYLESS_LEADER; batch.num_rows()],
            None => {
                self.partitioner.borrow_mut().owners_of(&keys, owners)?;
                if self.halved {
                    owners.iter_mut().for_each(|owner| *owner = halves::leader(*owner));
                }
            }
        }
        Ok(())
    }

    /// The rows of each leader, and as those of the worker behind the last one the rows of others
    /// that `frequent` tells.
    pub(super) fn split(
        &self,
        batch: &RecordBatch,
        frequent: Option<&RefCell<Frequent>>,
    ) -> Result<Vec<(u32, RecordBatch)>, DataflowError> {
        let Scratch { owners, rows } = &mut *self.scratch.borrow_mut();
        self.owners(batch, owners)?;
        if let Some(frequent) = frequent {
            let partitioner = self.partitioner.borrow();
            let mut frequent = frequent.borrow_mut();
            frequent.redirect(partitioner.hashes(), owners, self.worker, self.workers);
        }
        rows.iter_mut().for_each(Vec::clear);
        for (row, &owner) in owners.iter().enumerate() {
            rows[owner as usize].push(row as u32);
        }
        let each = rows.iter().enumerate().filter(|(_, rows)| !rows.is_empty());
        each.map(|(owner, rows)| Ok((owner as u32, take_rows(batch, rows)?))).collect()
    }

    /// Puts rows to those that wait for the same workers; gives those who wait for enough.
    pub(super) fn list(
        &self,
        spread: &dyn Spread,
        batch: &RecordBatch,
    ) -> Result<Vec<Arc<WorkerSet>>, DataflowError> {
        let mut sets = vec![];
        spread.spread(batch, self.workers, &mut sets)?;
        let end = sets.iter().map(WorkerSet::end).max().unwrap_or(0);
        if sets.len() != batch.num_rows() || end > self.workers {
            let (sets, rows, workers) = (sets.len(), batch.num_rows(), self.workers);
            let message = format!(
                "a spread gave {sets} sets of workers before {end} for {rows} rows, of {workers} \
                 workers"
            );
            return Err(DataflowError::Expression(message));
        }
        let mut rows: BTreeMap<WorkerSet, Vec<u32>> = BTreeMap::new();
        for (row, set) in sets.into_iter().enumerate().filter(|(_, set)| !set.is_empty()) {
            rows.entry(set).or_default().push(row as u32);
        }
        let mut listed = self.listed.borrow_mut();
        for (set, rows) in rows {
            let waiting = listed.entry(Arc::new(set)).or_default();
            waiting.put(take_rows(batch, &rows)?, self.clock.now_ns());
        }
        let crowded = listed.len() > LISTS_MAX;
        let full = listed.iter().filter(|(_, waiting)| crowded || self.is_full(waiting));
        Ok(full.map(|(set, _)| set.clone()).collect())
    }

    /// Puts rows to those that wait for a leader, or for every worker.
    pub(super) fn put(&self, to: usize, part: RecordBatch) {
        self.waiting.borrow_mut()[to].put(part, self.clock.now_ns());
    }

    fn is_full(&self, waiting: &Buffer) -> bool {
        waiting.rows() * self.row_bytes >= self.bytes_together
    }

    /// Whether so many rows wait for a leader that they leave.
    pub(super) fn is_full_for(&self, to: usize) -> bool {
        self.is_full(&self.waiting.borrow()[to])
    }

    /// When some rows will have waited long enough.
    fn due_ns(&self, waiting: &Buffer) -> Option<u64> {
        Some(waiting.since_ns()?.saturating_add(self.wait_ns))
    }

    /// When the first of all will have waited long enough.
    pub(super) fn first_due_ns(&self) -> Option<u64> {
        let (waiting, listed) = (self.waiting.borrow(), self.listed.borrow());
        waiting.iter().chain(listed.values()).filter_map(|waiting| self.due_ns(waiting)).min()
    }

    /// The leaders, and the sets of workers, whose rows have waited long enough.
    pub(super) fn due(&self, now_ns: u64) -> (Vec<usize>, Vec<Arc<WorkerSet>>) {
        let due = |waiting: &Buffer| self.due_ns(waiting).is_some_and(|due| due <= now_ns);
        let (waiting, listed) = (self.waiting.borrow(), self.listed.borrow());
        let places = (0..).zip(waiting.iter()).filter(|(_, waiting)| due(waiting));
        let sets = listed.iter().filter(|(_, waiting)| due(waiting));
        (places.map(|(to, _)| to).collect(), sets.map(|(set, _)| set.clone()).collect())
    }

    /// The sets of workers for whom rows wait.
    pub(super) fn sets(&self) -> Vec<Arc<WorkerSet>> {
        self.listed.borrow().keys().cloned().collect()
    }

    /// Takes out the rows that wait for a leader, or for every worker.
    pub(super) fn take(&self, to: usize) -> Result<Option<RecordBatch>, DataflowError> {
        Ok(self.waiting.borrow_mut()[to].take(&self.schema)?)
    }

    /// Takes out the rows that wait for some workers.
    pub(super) fn take_listed(&self, to: &WorkerSet) -> Result<Option<RecordBatch>, DataflowError> {
        let listed = self.listed.borrow_mut().remove(to);
        Ok(listed.map(|mut waiting| waiting.take(&self.schema)).transpose()?.flatten())
    }
}

/// Rows of a batch in memory of their own: they may wait, and a slot must not be held for so long.
fn take_rows(batch: &RecordBatch, rows: &[u32]) -> Result<RecordBatch, DataflowError> {
    Ok(own_views(take_record_batch(batch, &UInt32Array::from(rows.to_vec()))?))
}
