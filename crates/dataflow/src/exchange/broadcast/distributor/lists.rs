//! Rows for some workers (W1): encoded once, and sent once to each process that has one of them,
//! to the relay there, behind a list of their workers. The relay passes them to these workers by
//! reference.
//!
//! There is no tree: each process gets other frames than the next, and they are numbered for each.
//! A worker is told with its watermark how many it gets, those that it passes on as a relay
//! included; so it waits for as many.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use arrow::record_batch::RecordBatch;
use bytes::Bytes;
use channel::broadcast::RelayBreach;

use super::outbound::{Encoded, parts_of};
use super::{BroadcastFrame, Distributor, Way};
use crate::error::DataflowError;
use crate::exchange::Member;
use crate::job::worker_set::WorkerSet;
use crate::runtime::net::Net;

/// What a source knows of its lists.
pub(super) struct Lists {
    /// By worker: the batches that it gets, or passes on.
    given: RefCell<Vec<u64>>,
    /// By relay: the frames that it was sent.
    open: RefCell<BTreeMap<u32, Open>>,
}

/// Frames that a relay was sent.
#[derive(Default)]
struct Open {
    /// How many it has passed on.
    passed: u64,
    /// Of the others, in order, their numbers at the source.
    numbers: VecDeque<u64>,
}

impl Lists {
    /// Of a source among so many workers.
    pub(super) fn of(workers: u32) -> Self {
        Self { given: RefCell::new(vec![0; workers as usize]), open: RefCell::default() }
    }

    pub(super) fn given_to(&self, worker: u32) -> u64 {
        self.given.borrow()[worker as usize]
    }

    /// Workers get a batch.
    pub(super) fn give(&self, to: &[u32]) {
        let mut given = self.given.borrow_mut();
        to.iter().for_each(|&worker| given[worker as usize] += 1);
    }

    /// The number of the next frame for a relay.
    pub(super) fn number(&self, relay: u32) -> u64 {
        let open = self.open.borrow();
        open.get(&relay).map_or(0, |open| open.passed + open.numbers.len() as u64)
    }

    /// A frame, so numbered at the source, was sent to a relay.
    pub(super) fn sent(&self, relay: u32, number: u64) {
        self.open.borrow_mut().entry(relay).or_default().numbers.push_back(number);
    }

    /// A relay has passed on all frames before `upto` that it was sent. Gives the number behind the
    /// last of them at the source.
    ///
    /// # Errors
    /// [`RelayBreach::Acknowledged`] when it was sent fewer.
    pub(super) fn passed(&self, relay: u32, upto: u64) -> Result<u64, RelayBreach> {
        let mut open = self.open.borrow_mut();
        let refused = RelayBreach::Acknowledged { upto };
        let Some(Open { passed, numbers }) = open.get_mut(&relay) else { return Err(refused) };
        if upto < *passed || upto - *passed > numbers.len() as u64 {
            return Err(refused);
        }
        let now = numbers.drain(..(upto - *passed) as usize);
        *passed = upto;
        Ok(now.max().map_or(0, |number| number + 1))
    }
}

impl Distributor {
    /// Bytes of a frame that rows may take.
    pub(super) fn room(&self, net: &Net) -> Result<usize, DataflowError> {
        let room = net.payload_room();
        if self.way != Way::Lists {
            return Ok(room);
        }
        let list = WorkerSet::bytes_max(self.process.workers().len() as u32);
        room.checked_sub(list).filter(|room| *room > 0).ok_or_else(|| {
            let message = "slots are too small for a list of workers: SET millstream.slot_bytes";
            DataflowError::Expression(message.into())
        })
    }

    /// Gives rows to some workers, in as many frames as they need.
    pub(super) async fn push_listed(
        &self,
        member: &impl Member,
        port: u32,
        batch: RecordBatch,
        Encoded { payload, encode_ns, .. }: Encoded,
        to: &Arc<WorkerSet>,
    ) -> Result<(), DataflowError> {
        let own = self.process.rank();
        let mut ranks: Vec<u32> = to.iter().map(|worker| self.process.rank_of(worker)).collect();
        ranks.dedup();
        let others = ranks.into_iter().filter(|&rank| rank != own);
        let relays: Vec<u32> =
            others.map(|rank| self.process.relay_of(rank, self.worker)).collect();
        let getting: WorkerSet = to.iter().chain(relays.iter().copied()).collect();
        let getting = getting.iter().filter(|&worker| worker != self.worker);
        self.lists.give(&getting.collect::<Vec<_>>());
        let mut batch = Some(batch);
        let parts = parts_of(&payload, self.room(member.net())?);
        let encode_ns = encode_ns / parts.len() as u64;
        for (payload, more) in parts {
            // The last part brings the rows to workers of this process.
            let batch = batch.take_if(|_| !more);
            let mut targets = relays.clone();
            if !more {
                targets.extend(self.locals_of(Some(to)));
            }
            let frame = BroadcastFrame {
                port,
                colour: member.colour(),
                complete_before: self.next_number() + 1,
                more,
                placeholder: None,
                payload,
                owned: true,
                lent: None,
                batch,
                to: Some(to.clone()),
            };
            self.enqueue(member, frame, Some(targets), encode_ns).await?;
        }
        Ok(())
    }

    /// The list for the process of a relay.
    pub(super) fn list_for(&self, relay: u32, to: &WorkerSet) -> Vec<u8> {
        let count = self.process.workers().len() as u32;
        let first = self.process.rank_of(relay) * count;
        let mut list = vec![0; WorkerSet::bytes_max(count)];
        let bytes = to.within(first..first + count).encode(count, &mut list);
        list.truncate(bytes);
        list
    }

    /// The workers of this process that a frame is for, and the rest of its payload.
    pub(super) fn listed(&self, payload: &Bytes) -> Result<(Arc<WorkerSet>, Bytes), String> {
        let own = self.process.workers();
        let (set, used) = WorkerSet::decode(own.len() as u32, payload)?;
        let workers = set.iter().map(|worker| own.start + worker).collect();
        Ok((Arc::new(workers), payload.slice(used..)))
    }
}
