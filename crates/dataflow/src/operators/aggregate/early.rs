//! Windows that have not ended, looked at every so often.
//!
//! Every interval of the worker's clock, a worker lets the others have what it keeps for them (with
//! `merge` the epoch ends, with `shuffle` rows that wait are sent, and groups of frequent keys),
//! and gives out what it knows of the windows of the keys that it leads. Nothing is taken out of
//! the state. What it knows is of each flow the rows up to some row, so that an early row is the
//! aggregate of such rows, and later ones are of more; how far each flow is depends on when its
//! worker's changes came. (With `shuffle`, rows that are late for some of their windows travel
//! behind the others of their batch.)
//!
//! Early rows and those of windows that have fired are given out by one coroutine: the last row of
//! a key and window is the final one.

use state::Triggered;

use super::Grouping;
use crate::error::DataflowError;
use crate::exchange::Member;
use crate::job::EARLY;
use crate::operators::downstream::Downstream;

impl<D: Downstream> Grouping<D> {
    /// An interval is over. Rows must not be pushed meanwhile.
    pub(super) async fn look_early(&self) -> Result<(), DataflowError> {
        if !self.ended.get() {
            self.deliver().await?;
            self.instance.inputs.flush(self).await?;
        }
        self.look.set(true);
        self.leader().1.notify();
        Ok(())
    }

    /// Gives out what has changed.
    pub(super) async fn emit_early(&self) -> Result<(), DataflowError> {
        let mut more = true;
        while more {
            let (mut changed, mut rows) = (Vec::new(), 0);
            while more && rows < self.rows_max {
                let part = self.bounded().early()?;
                more = part.is_some();
                if let Some(part) = part.map(|part| self.own_of(part)).transpose()? {
                    rows += part.columns.rows();
                    changed.push(part);
                }
            }
            self.publish_bytes()?;
            if rows > 0 {
                self.emit(changed, EARLY).await?;
            }
        }
        self.publish_bytes()
    }

    /// The groups that this worker leads.
    fn own_of(&self, part: Triggered) -> Result<Triggered, DataflowError> {
        Ok(Triggered { columns: self.instance.inputs.led_here(self, part.columns)?, ..part })
    }
}
