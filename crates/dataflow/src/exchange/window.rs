//! Windows: bounds on the bytes of an input's rows that wait, for each sender, in an operator that
//! may not be able to process them when they come.
//!
//! ```text
//!   sender                                            receiver
//!   push ── waits for room in the window
//!        ── waits for credit of the ring ──▶ frame ──▶ leaves the ring at once
//!                                                       │ waits in the operator
//!        ◀── Consumed { position } ───────────────────  ▼ is processed
//! ```
//!
//! An input has windows if its operator asks for them ([`Port::waits`](super::Port)). The rows of
//! other inputs become state when they come, which `millstream.state_bytes` bounds. The own rows of
//! a worker have a window as those of other workers have; it is returned without a frame.
//!
//! Only the coroutine that pushes waits, and never the worker, which goes on to take frames off the
//! rings: the windows of its inputs bound them. So the operators behind can go on. [`SendWindow`]
//! and [`ReceiveWindow`] make all decisions; the models explore them.

use std::cell::RefCell;

use channel::protocol::{ReceiveWindow, SendWindow};

use super::acks::Acks;
use super::{Arrival, Member};
use crate::error::DataflowError;
use crate::runtime::frame::Frame;
use crate::runtime::net::SendWindows;
use crate::runtime::place::WorkerContext;

/// The windows of an input on one worker: towards each receiver, and of each sender.
pub(super) struct InputWindows {
    port: u32,
    send: SendWindows,
    receive: RefCell<Vec<ReceiveWindow>>,
    acks: Acks,
}

impl InputWindows {
    /// The windows of an input, with all workers.
    pub(super) fn new(port: usize, place: &WorkerContext) -> Self {
        Self::of_bytes(port, place, place.settings.receive_bytes)
    }

    /// The same, with windows of `bytes` in place of the setting. It must be the same on
    /// each worker.
    pub(super) fn of_bytes(port: usize, place: &WorkerContext, bytes: u64) -> Self {
        let workers = place.workers as usize;
        Self {
            port: port as u32,
            send: SendWindows::new(vec![SendWindow::new(bytes); workers]),
            receive: RefCell::new(vec![ReceiveWindow::new(bytes); workers]),
            acks: Acks::new(place.workers),
        }
    }

    /// The windows that this worker keeps within when it sends.
    pub(super) fn sending(&self) -> &SendWindows {
        &self.send
    }

    /// Waits for room for rows of this worker that stay on it. Gives the bytes that they take.
    pub(super) async fn keep_room(
        &self,
        member: &impl Member,
        payload: usize,
    ) -> Result<u64, DataflowError> {
        let own = member.worker();
        member.net().wait_for_window(own, member.tag(), &self.send, payload).await;
        self.receive(own, payload)
    }

    /// Counts rows of a worker that came in a frame. Gives the bytes that they take.
    ///
    /// # Errors
    /// When their sender had no room for them.
    pub(super) fn receive(&self, from: u32, payload: usize) -> Result<u64, DataflowError> {
        let received = self.receive.borrow_mut()[from as usize].receive(payload);
        let malformed = |detail: String| DataflowError::Frame { worker: from, detail };
        received.map_err(|breach| malformed(breach.to_string()))
    }

    /// The operator has processed rows.
    pub(super) fn consumed(&self, member: &impl Member, of: Arrival) {
        let returned = self.receive.borrow_mut()[of.source as usize].consume(of.bytes);
        match returned {
            // Both ends of the window are on this worker.
            Some(position) if of.source == member.worker() => {
                let consumed = self.send.consumed(of.source, position);
                debug_assert!(consumed.is_ok(), "{consumed:?}");
                member.net().notify_waiters();
            }
            Some(position) => self.acks.add(of.source, position),
            None => {}
        }
    }

    /// A receiver reports the position up to which it has processed the rows of this worker.
    ///
    /// # Errors
    /// When they were not sent.
    pub(super) fn give_back(
        &self,
        member: &impl Member,
        from: u32,
        position: u64,
    ) -> Result<(), DataflowError> {
        let malformed = |detail: String| DataflowError::Frame { worker: from, detail };
        self.send.consumed(from, position).map_err(|breach| malformed(breach.to_string()))?;
        member.net().notify_waiters();
        Ok(())
    }

    /// All rows of a worker are taken from now on; `position` reports that to it.
    pub(super) fn needs_no_more(&self, from: u32, position: u64) {
        self.receive.borrow_mut()[from as usize].open();
        self.acks.add(from, position);
    }

    /// A receiver takes all rows of this worker from now on.
    pub(super) fn open(&self, member: &impl Member, from: u32) {
        self.send.open(from);
        member.net().notify_waiters();
    }

    /// Reports to senders the positions up to which their rows are processed, until
    /// [`InputWindows::close`].
    pub(super) async fn acknowledge(&self, member: &impl Member) {
        self.acks.run(member, self.port, |position, _| Frame::Consumed { position }).await;
    }

    /// No other worker has rows any more, and none waits.
    pub(super) fn close(&self) {
        self.acks.close();
    }
}
