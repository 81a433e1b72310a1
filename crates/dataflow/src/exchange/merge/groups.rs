//! Groups of others: the operator's state has them until an epoch ends.

use std::cell::RefCell;

use state::epoch::{Ended, EpochLength, LengthBounds};
use state::{GroupColumns, Partitioner, RowsByOwner};

use super::super::{Arrival, Member, Outgoing};
use super::content::{Chunk, Cut};
use super::deltas::{Delta, part_of};
use crate::error::DataflowError;

/// How groups of others leave the state of an operator.
pub(super) struct MergedGroups {
    partitioner: RefCell<Partitioner>,
    length: RefCell<EpochLength>,
}

impl MergedGroups {
    pub(super) fn new(partitioner: Partitioner, epoch: LengthBounds) -> Self {
        let length = RefCell::new(EpochLength::new(epoch));
        Self { partitioner: RefCell::new(partitioner), length }
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
        let mut deltas: Vec<Delta> = vec![];
        deltas.resize_with(member.net().size(), Delta::default);
        let mut partitioner = self.partitioner.borrow_mut();
        let mut given = 0;
        let stayed = member.take_remote_groups(&mut partitioner, &mut |start, split, groups| {
            let part = part_of(groups)?;
            for leader in member.net().peers() {
                given += split.rows(leader) as u64;
                deltas[leader as usize].add(start, &part, split, leader)?;
            }
            Ok(())
        })?;
        let mut chunks: Vec<Vec<Chunk>> = vec![vec![]; deltas.len()];
        for leader in member.net().peers() {
            let delta = std::mem::take(&mut deltas[leader as usize]);
            let cut = delta.cut(member.net().payload_max(leader))?;
            chunks[leader as usize] = cut.into_iter().map(Chunk::of_groups).collect();
        }
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
