//! The broadcast exchange: rows go to every worker (W1), or each row to some workers. They are
//! encoded once and sent once to each process, which is the matter of a [`Distributor`].
//!
//! All inputs of an operator whose rows are broadcast have one exchange, since their frames are
//! counted together: progress goes straight from worker to worker, may overtake rows on their way
//! along a tree, and says how many frames it is behind.

mod distributor;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;

use self::distributor::Distributor;
use super::buffer::{Batching, Buffer};
use super::{Member, Outgoing, RowExchange};
use crate::error::DataflowError;
use crate::job::worker_set::WorkerSet;
use crate::job::{MultiPartitioner, ShuffleSettings};
use crate::rows::wire::{Cutter, Decoder, compact, take_rows};
use crate::runtime::net::Message;
use crate::runtime::place::WorkerContext;

/// Sets of workers for whom rows of an input wait; with one more all are sent.
const LISTS_MAX: usize = 1_024;

/// The sending and the receiving side of a broadcast on one worker.
pub(crate) struct Broadcast {
    ports: BTreeMap<usize, Port>,
    /// All workers, where rows of another input are for some of them: then there is no tree.
    all: Option<Arc<WorkerSet>>,
    distributor: Box<Distributor>,
}

/// The rows of an input.
struct Port {
    /// Leads each row to some workers, and not to all.
    multi_partitioner: Option<Arc<dyn MultiPartitioner>>,
    workers: u32,
    batching: Batching,
    /// Rows that wait to be sent, by the workers that they are for; by none those for all.
    buffers: RefCell<BTreeMap<Option<Arc<WorkerSet>>, Buffer>>,
    cutter: Cutter,
    decoder: Decoder,
}

/// An input, its columns, and what leads its rows to some workers and not to all.
pub(crate) type BroadcastPort = (usize, SchemaRef, Option<Arc<dyn MultiPartitioner>>);

impl Broadcast {
    /// Of the rows of some inputs of the operator `tag`. Nothing if there are none.
    pub(crate) fn of(
        tag: u32,
        ports: Vec<BroadcastPort>,
        place: &WorkerContext,
        shuffle: ShuffleSettings,
    ) -> Option<Self> {
        let first = ports.first()?.0;
        let lists = ports.iter().any(|(.., multi_partitioner)| multi_partitioner.is_some());
        let port = |(port, schema, multi_partitioner): BroadcastPort| {
            let of_port = Port {
                multi_partitioner,
                workers: place.workers,
                batching: Batching::new(&schema, place, shuffle),
                buffers: RefCell::default(),
                cutter: Cutter::default(),
                decoder: Decoder::new(&schema),
            };
            (port, of_port)
        };
        Some(Self {
            ports: ports.into_iter().map(port).collect(),
            all: lists.then(|| Arc::new(WorkerSet::all(0..place.workers))),
            distributor: Box::new(Distributor::new(tag, first as u32, place, lists)),
        })
    }

    fn decoder<'a>(&'a self) -> impl Fn(usize) -> Option<&'a Decoder> {
        |port: usize| self.ports.get(&port).map(|of_port| &of_port.decoder)
    }

    /// Sends the rows that wait for the same workers.
    async fn send_buffered(
        &self,
        member: &impl Member,
        port: usize,
        to: &Option<Arc<WorkerSet>>,
    ) -> Result<(), DataflowError> {
        let of_port = &self.ports[&port];
        let buffer = of_port.buffers.borrow_mut().remove(to);
        let batch = buffer.map(|mut buffer| buffer.take().batch()).transpose()?;
        let Some(batch) = batch.flatten() else { return Ok(()) };
        let to = to.as_ref().or(self.all.as_ref());
        self.distributor.push(member, port, &of_port.cutter, batch, to).await
    }

    /// Sends the rows of all buffers of which that is said.
    async fn send_each(
        &self,
        member: &impl Member,
        is_sent: impl Fn(&Port, &Buffer) -> bool,
    ) -> Result<(), DataflowError> {
        for (&port, of_port) in &self.ports {
            let sets: Vec<Option<Arc<WorkerSet>>> = {
                let buffers = of_port.buffers.borrow();
                let sent = buffers.iter().filter(|(_, buffer)| is_sent(of_port, buffer));
                sent.map(|(to, _)| to.clone()).collect()
            };
            for to in sets {
                self.send_buffered(member, port, &to).await?;
            }
        }
        Ok(())
    }
}

impl Port {
    /// Puts rows to those that wait for the same workers; gives the workers for whom enough wait.
    fn put(&self, batch: &RecordBatch) -> Result<Vec<Option<Arc<WorkerSet>>>, DataflowError> {
        let mut buffers = self.buffers.borrow_mut();
        match &self.multi_partitioner {
            // A small part of larger arrays is copied once, and not by each worker that keeps it.
            None => {
                let batch = compact(batch.clone());
                self.batching.put_all(buffers.entry(None).or_default(), batch);
            }
            Some(multi_partitioner) => {
                for (set, rows) in self.listed(multi_partitioner.as_ref(), batch)? {
                    let buffer = buffers.entry(Some(Arc::new(set))).or_default();
                    self.batching.put_all(buffer, take_rows(batch, &rows)?);
                }
            }
        }
        let crowded = buffers.len() > LISTS_MAX;
        let full = buffers.iter().filter(|(_, buffer)| crowded || self.batching.is_full(buffer));
        Ok(full.map(|(to, _)| to.clone()).collect())
    }

    /// The rows of a batch by the workers that they are for.
    fn listed(
        &self,
        partitioner: &dyn MultiPartitioner,
        batch: &RecordBatch,
    ) -> Result<BTreeMap<WorkerSet, Vec<u32>>, DataflowError> {
        let mut sets = vec![];
        partitioner.partition(batch, self.workers, &mut sets)?;
        let end = sets.iter().map(WorkerSet::end).max().unwrap_or(0);
        if sets.len() != batch.num_rows() || end > self.workers {
            let (sets, rows, workers) = (sets.len(), batch.num_rows(), self.workers);
            let message = format!(
                "a partitioner gave {sets} sets of workers before {end} for {rows} rows, of \
                 {workers} workers"
            );
            return Err(DataflowError::Expression(message));
        }
        let mut rows: BTreeMap<WorkerSet, Vec<u32>> = BTreeMap::new();
        for (row, set) in sets.into_iter().enumerate().filter(|(_, set)| !set.is_empty()) {
            rows.entry(set).or_default().push(row as u32);
        }
        Ok(rows)
    }
}

impl<M: Member> RowExchange<M> for Broadcast {
    async fn push(
        &self,
        member: &M,
        rows: Outgoing<'_>,
    ) -> Result<Option<RecordBatch>, DataflowError> {
        for to in self.ports[&rows.port].put(&rows.batch)? {
            self.send_buffered(member, rows.port, &to).await?;
        }
        Ok(None)
    }

    async fn flush(&self, member: &M) -> Result<(), DataflowError> {
        self.send_each(member, |_, _| true).await
    }

    fn end(&self, member: &M) {
        self.distributor.end();
        member.net().notify_waiters();
    }

    fn receive(
        &self,
        member: &M,
        from: u32,
        message: Message,
    ) -> Result<Option<u32>, DataflowError> {
        self.distributor.receive(member, from, message, self.decoder())
    }

    fn due(&self, _: &M) -> Option<u64> {
        let first = |of_port: &Port| {
            let buffers = of_port.buffers.borrow();
            buffers.values().filter_map(|buffer| of_port.batching.due_ns(buffer)).min()
        };
        self.ports.values().filter_map(first).min()
    }

    async fn send_due(&self, member: &M, now_ns: u64) -> Result<(), DataflowError> {
        self.send_each(member, |of_port, buffer| of_port.batching.is_due(buffer, now_ns)).await
    }

    async fn relay(&self, member: &M) {
        self.distributor.run(member.net(), || member.others_have_ended()).await;
    }

    fn poll(&self, member: &M) -> Result<Vec<u32>, DataflowError> {
        self.distributor.poll(member, self.decoder())
    }

    fn deadline(&self, _: &M, now_ns: u64) -> Result<Option<u64>, DataflowError> {
        self.distributor.deadline(now_ns)
    }

    fn sent_before(&self, _: &M, to: u32) -> u64 {
        self.distributor.given_to(to)
    }

    fn received_before(&self, _: &M, from: u32) -> u64 {
        self.distributor.received(from)
    }
}
