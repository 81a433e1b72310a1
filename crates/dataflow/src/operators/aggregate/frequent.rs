//! Frequent keys in front of a shuffle: a row of a key that is frequent is folded where it was
//! read, and what came together is sent to the key's leader when a window may fire.
//!
//! By `shuffle` alone each row of a frequent key travels, all of them to one leader, which then has
//! more to do than the others. By `merge` alone the rows of rare keys are folded twice, for hardly
//! two of them meet. Here each kind of key goes the way that is cheaper for it. Which are frequent
//! a sample tells ([`state::Frequent`]), whether it was worth it the groups that were sent.
//!
//! Groups go before the watermark on the same link, as rows do: a leader that knows how far a
//! worker is has its groups.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use arrow::datatypes::DataType;
use arrow::record_batch::RecordBatch;
use state::{Frequent, GroupBy, KeyMode, Partitioner, RowsByOwner, Slices, StateOptions};

use super::Grouping;
use super::fold::Folder;
use crate::error::DataflowError;
use crate::exchange::{Delta, DeltaChunk, Member, part_of};
use crate::job::{Aggregation, Exchange, FrequentKeys};
use crate::operators::downstream::Downstream;
use crate::runtime::frame::Frame;
use crate::runtime::metrics::Metrics;
use crate::runtime::place::WorkerContext;

/// Bytes of groups after which they are delivered at the latest: some caches full.
const BYTES_MAX: usize = 4 << 20;
/// And the part of the operator's share of the budget.
const BUDGET_PART: usize = 16;

/// So many rows of a group must meet, or it is cheaper to send them: a group costs as much as
/// several.
const ROWS_MIN: u64 = 4;
/// Rows after which that is judged: a single delivery may come right behind another.
const JUDGED_ROWS: u64 = 1 << 16;

/// Groups of frequent keys that others lead.
pub(super) struct HeavyHitters {
    choice: FrequentKeys,
    frequent: RefCell<Frequent>,
    group_by: Arc<GroupBy>,
    slices: RefCell<Slices>,
    folder: RefCell<Folder>,
    /// Rows in them.
    rows: Cell<u64>,
    /// Rows and groups of deliveries that were not judged yet.
    delivered: Cell<(u64, u64)>,
    /// Tells leaders as the shuffle does.
    partitioner: RefCell<Partitioner>,
}

impl HeavyHitters {
    /// For a grouping that gains by it: one whose groups have a bound, however many rows there are.
    pub(super) fn of(
        spec: &Aggregation,
        place: &WorkerContext,
        choice: FrequentKeys,
    ) -> Option<Self> {
        let fits =
            spec.exchange == Exchange::Shuffle && !spec.keys.is_empty() && !spec.has_sessions();
        let states = spec.group_by.state_types();
        let bounded =
            states.iter().all(|of| of.primitive_width().is_some() || *of == DataType::Boolean);
        // A worker that only reads keeps no groups.
        let keeps_all = place.stateful() == place.workers;
        if choice == FrequentKeys::Off || !fits || !bounded || !keeps_all {
            return None;
        }
        // An array of all keys between the frequent ones would be given out with its holes.
        let key_mode = Some(KeyMode::Hash);
        let group_by = Arc::new(GroupBy {
            keys: spec.group_by.keys.clone(),
            aggregates: spec.group_by.aggregates.clone(),
            options: StateOptions { key_mode, ..spec.group_by.options.clone() },
        });
        Some(Self {
            choice,
            frequent: RefCell::new(Frequent::new(place.workers, choice == FrequentKeys::On)),
            folder: RefCell::new(Folder::new(spec)),
            rows: Cell::new(0),
            delivered: Cell::new((0, 0)),
            partitioner: RefCell::new(Partitioner::new(place.workers)),
            slices: RefCell::new(Slices::new(&group_by)),
            group_by,
        })
    }

    /// What tells the rows.
    pub(super) fn frequent(&self) -> &RefCell<Frequent> {
        &self.frequent
    }

    /// Bytes of the groups.
    pub(super) fn bytes(&self) -> usize {
        self.slices.borrow().bytes()
    }

    /// Bytes that the groups have, or may come to, of so many for all state of the operator.
    pub(super) fn reserved(&self, share: usize) -> usize {
        self.bytes().max(bytes_max(share))
    }

    /// Takes rows of frequent keys.
    ///
    /// # Errors
    /// When state cannot be updated or cannot travel.
    pub(super) async fn push(
        &self,
        grouping: &Grouping<impl Downstream>,
        rows: &RecordBatch,
    ) -> Result<(), DataflowError> {
        self.folder.borrow_mut().fold(rows, None, &mut self.slices.borrow_mut())?;
        self.rows.set(self.rows.get() + rows.num_rows() as u64);
        if let Some(operator) = grouping.metrics.operators().get(grouping.instance.tag as usize) {
            Metrics::add(&operator.rows_combined, rows.num_rows() as u64);
        }
        let share = grouping.accounting.share(grouping.instance.tag);
        let (bytes, merged) = (self.bytes(), grouping.merged.borrow().bytes());
        if bytes > bytes_max(share) || bytes + merged > share {
            self.deliver(grouping).await
        } else {
            Ok(())
        }
    }

    /// Sends the groups to their leaders. No rows must be pushed meanwhile.
    async fn deliver(&self, grouping: &Grouping<impl Downstream>) -> Result<(), DataflowError> {
        let rows = self.rows.take();
        if rows == 0 {
            return Ok(());
        }
        let (groups, chunks) = self.take_groups(grouping)?;
        self.judge(rows, groups);
        let tag = grouping.instance.tag;
        let envelope = grouping.envelope(0, Frame::Groups);
        let mut bytes = 0;
        for (leader, chunk) in chunks {
            bytes += chunk.payload_bytes() as u64;
            grouping.instance.net.send_layout(leader, envelope, &chunk.layout()?).await;
        }
        grouping.metrics.count_groups_sent(tag, groups, bytes);
        grouping.publish_bytes()
    }

    /// Learns from a delivery whether it is worth it.
    fn judge(&self, rows: u64, groups: u64) {
        let (before, of_these) = self.delivered.get();
        let (rows, groups) = (before + rows, of_these + groups);
        if rows < JUDGED_ROWS {
            return self.delivered.set((rows, groups));
        }
        self.delivered.set((0, 0));
        if rows < ROWS_MIN * groups && self.choice == FrequentKeys::Auto {
            self.frequent.borrow_mut().forget();
        }
    }

    /// Takes out all groups: how many they are, and chunks of them with their leaders.
    fn take_groups(
        &self,
        grouping: &Grouping<impl Downstream>,
    ) -> Result<(u64, Vec<(u32, DeltaChunk)>), DataflowError> {
        let mut slices = self.slices.borrow_mut();
        let mut partitioner = self.partitioner.borrow_mut();
        let net = &grouping.instance.net;
        let mut deltas: Vec<_> = net.peers().map(|leader| (leader, Delta::default())).collect();
        let (mut split, mut groups) = (RowsByOwner::default(), 0);
        while let Some(start) = slices.first() {
            while let Some(part) = slices.take_delta(start)? {
                partitioner.split(&part, &mut split)?;
                assert_eq!(split.rows(grouping.instance.worker), 0, "the own are not set apart");
                groups += part.rows() as u64;
                let part = part_of(&part)?;
                for (leader, delta) in &mut deltas {
                    delta.add(start, &part, &split, *leader)?;
                }
            }
        }
        let mut chunks = vec![];
        // Memory of emptied slices is for the next ones, but not that of many.
        if slices.bytes() > bytes_max(grouping.accounting.share(grouping.instance.tag)) / 2 {
            *slices = Slices::new(&self.group_by);
        }
        for (leader, delta) in deltas {
            let cut = delta.cut(net.payload_max(leader))?;
            chunks.extend(cut.into_iter().map(|chunk| (leader, chunk)));
        }
        Ok((groups, chunks))
    }
}

/// Bytes that groups have at most, of so many for all state of the operator.
fn bytes_max(share: usize) -> usize {
    (share / BUDGET_PART).min(BYTES_MAX)
}

impl<D: Downstream> Grouping<D> {
    /// Sends what is in front of a shuffle, if there is one. No rows must be pushed meanwhile.
    ///
    /// # Errors
    /// When state cannot travel.
    pub(super) async fn deliver(&self) -> Result<(), DataflowError> {
        match &self.front {
            Some(front) => front.deliver(self).await,
            None => Ok(()),
        }
    }
}
