//! The end of a build: its rows are together, and become a hash table.

use std::sync::Arc;

use arrow::compute::concat_batches;

use super::status::{InputStatus, passes_of};
use super::waiting::Waiting;
use super::{HashJoinRun, TOGETHER_BYTES_MAX, Table};
use crate::error::DataflowError;
use crate::exchange::Member;
use crate::job::hash_join::{BUILD, PROBE};
use crate::operators::downstream::Downstream;
use crate::pairing::{Hashed, Pairing, ProbeSide};

impl<D: Downstream> HashJoinRun<D> {
    /// Waits for the parts of a pulled build that the other workers of this process have read.
    pub(super) async fn gather(&self) -> Result<(), DataflowError> {
        let tag = self.instance.tag;
        let Waiting { batches, .. } = self.build.take();
        let own = self.status.get().is_whole_build();
        let own = own.then(|| batches.into_iter().map(|((), batch)| batch).collect());
        self.process.gather(tag, own, self.external.waker());
        loop {
            let seen = self.external.notifications();
            if let Some(rows) = self.process.gathered(tag) {
                self.gathered.set(Some(rows.is_some()));
                for batch in rows.unwrap_or_default() {
                    self.look_at(&batch);
                    self.build.borrow_mut().push((), batch);
                }
                return self.account();
            }
            self.external.notified_or_at(seen, &self.timers, None).await;
        }
    }

    /// Whether all rows of the build have come, of which the workers have this status.
    pub(super) fn has_whole_build(&self, status: InputStatus) -> bool {
        status.is_whole_build() && self.gathered.get().unwrap_or(true)
    }

    /// Makes the table of the build, which has ended on all workers.
    pub(super) fn finish_build(&self) -> Result<(), DataflowError> {
        let Waiting { batches, bytes, .. } = self.build.take();
        // A process has the whole of a pulled build, and knows of its rows what all others do.
        let status = if self.spec.is_pulled {
            self.status.get().and(self.status_of_all())
        } else {
            self.status_of_all()
        };
        let side = &self.spec.sides[BUILD];
        let pairing = if self.has_whole_build(status) && self.spilled.borrow().is_none() {
            let make = || {
                let mut batches: Vec<_> = batches.into_iter().map(|((), batch)| batch).collect();
                if bytes <= TOGETHER_BYTES_MAX {
                    batches = vec![concat_batches(&side.schema, &batches)?];
                }
                let stopped = || self.signals.is_stopped();
                Hashed::unless(&stopped, batches, &side.schema, &side.keys, self.spec.nulls)
            };
            let hashed = if self.spec.is_replicated() {
                self.process.table(self.instance.tag, make)?
            } else {
                Arc::new(make()?)
            };
            self.is_cut.set(hashed.is_cut);
            let probe = ProbeSide { side: PROBE, keys: &self.spec.sides[PROBE].keys };
            let made = (hashed.bytes(), Pairing::new(probe, [], hashed, self.spec.kind));
            Some(made).filter(|_| !self.is_cut.get())
        } else {
            None
        };
        let passes = passes_of(self.spec.variant, status);
        let (bytes, pairing) = pairing.map_or((0, None), |(bytes, of)| (bytes, Some(of)));
        self.listeners.announce(|key| match &pairing {
            Some(pairing) => pairing.table().filter(side.keys[key]),
            None => Ok(None),
        })?;
        *self.table.borrow_mut() = Some(Table { pairing, bytes, passes });
        let scans = self.listeners.waits_since();
        if let Some(since) = self.waits_since.get().into_iter().chain(scans).min() {
            self.count(|of| &of.build_wait_ns, self.timers.now_ns().saturating_sub(since));
        }
        self.instance.clock_moved.notify();
        self.account()
    }
}
