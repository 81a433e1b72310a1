//! Groups of others: the operator's state has them until an epoch ends.

use std::cell::RefCell;
use std::rc::Rc;

use state::epoch::{Ended, EpochLength, LengthBounds};
use state::{GroupColumns, Partitioner, RowsByOwner};

use super::super::{Arrival, Member, Outgoing};
use super::content::{Chunk, Cut};
use super::deltas::{Deltas, Packer};
use crate::error::DataflowError;

/// How groups of others leave the state of an operator.
pub(super) struct MergedGroups {
    partitioner: RefCell<Partitioner>,
    deltas: Rc<Deltas>,
    length: RefCell<EpochLength>,
}

impl MergedGroups {
    pub(super) fn new(deltas: Rc<Deltas>, partitioner: Partitioner, epoch: LengthBounds) -> Self {
        let length = RefCell::new(EpochLength::new(epoch));
        Self { partitioner: RefCell::new(partitioner), deltas, length }
    }

    /// The operator folds all rows.
    pub(super) fn push(
        &self,
        member: &impl Member,
        rows: Outgoing<'_>,
    ) -> Result<(), DataflowError> {
        member.keep(Arrival::local(member, &rows), rows.batch)
    }

    /// Whether the epoch has read its bytes.
    pub(super) fn is_long(&self, member: &impl Member, bytes: u64, rows: u64) -> bool {
        self.length.borrow_mut().is_over(bytes, rows, || member.groups_max())
    }

    pub(super) fn cut(&self, member: &impl Member) -> Result<Cut, DataflowError> {
        let packer = |leader: u32| {
            let own = leader == member.worker();
            let room = if own { 0 } else { member.net().payload_max(leader) };
            self.deltas.packer(room)
        };
        let mut packers: Vec<_> = (0..member.net().size() as u32).map(packer).collect();
        let mut partitioner = self.partitioner.borrow_mut();
        let mut given = 0;
        let stayed = member.take_remote_groups(&mut partitioner, &mut |start, split, groups| {
            for leader in member.net().peers().filter(|&leader| split.rows(leader) > 0) {
                given += split.rows(leader) as u64;
                packers[leader as usize].add(start, split.select(leader, groups)?)?;
            }
            Ok(())
        })?;
        let chunks = |packer: Packer<'_>| -> Result<Vec<Chunk>, DataflowError> {
            Ok(packer.finish()?.into_iter().map(Chunk::encoded).collect())
        };
        let chunks = packers.into_iter().map(chunks).collect::<Result<_, _>>()?;
        Ok(Cut { chunks, given, stayed: stayed as u64 })
    }

    pub(super) fn ended(&self, member: &impl Member, ended: &Ended, delta_bytes: u64) {
        self.length.borrow_mut().ended(ended);
        member.net().metrics().count_groups_sent(member.tag(), ended.groups, delta_bytes);
    }

    pub(super) fn length(&self, _: &impl Member) -> u64 {
        self.length.borrow().bytes()
    }

    pub(super) fn led_here(
        &self,
        member: &impl Member,
        groups: GroupColumns,
    ) -> Result<GroupColumns, DataflowError> {
        let mut split = RowsByOwner::default();
        self.partitioner.borrow_mut().split(&groups, &mut split)?;
        Ok(split.select(member.worker(), &groups)?)
    }
}
