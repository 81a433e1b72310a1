//! The exchanges of an operator as its worker drives them, which knows nothing else of the
//! operator.

use std::future::Future;
use std::pin::Pin;

use super::{InstanceRounds, Member};
use crate::error::DataflowError;
use crate::runtime::net::Message;
use crate::runtime::scheduler::Event;

/// A part of the work of an operator, which a coroutine of the worker awaits.
pub(crate) type Task<'a, T = ()> = Pin<Box<dyn Future<Output = Result<T, DataflowError>> + 'a>>;

/// An operator that is joined with its instances on other workers.
pub(crate) trait Connected {
    /// Takes a frame of another worker.
    ///
    /// # Errors
    /// When it is malformed, or state or sink fail.
    fn receive(&self, from: u32, message: Message) -> Result<(), DataflowError>;

    /// Its rounds, if the job has some.
    fn rounds(&self) -> Option<&InstanceRounds>;

    /// An edge of this worker has ended; if it is the last, that has been sent to the others. True
    /// if the marker of a round has to be sent.
    fn end_edge(&self, edge: u32) -> bool;

    /// Takes rows that came without a frame: by the network's own multicast.
    ///
    /// # Errors
    /// When they are malformed, or state fails.
    fn poll(&self) -> Result<(), DataflowError>;

    /// Until when another worker must have taken something, if it has been waited for.
    ///
    /// # Errors
    /// [`DataflowError::Stalled`] when that time has come.
    fn deadline(&self, now_ns: u64) -> Result<Option<u64>, DataflowError>;

    /// The event that tells that [`Connected::due`] may have changed.
    fn buffered(&self) -> &Event;

    /// When rows that wait to be sent together have waited long enough.
    fn due(&self) -> Option<u64>;

    /// Sends the rows that have waited long enough. None must be pushed meanwhile.
    fn send_due(&self, now_ns: u64) -> Task<'_>;

    /// Acknowledges what other workers wait for, until they wait for nothing more.
    fn acknowledge(&self) -> Task<'_>;

    /// Sends what waits for links, and passes on what others send, until all workers have ended.
    fn relay(&self) -> Task<'_>;
}

impl<M: Member> Connected for M {
    fn receive(&self, from: u32, message: Message) -> Result<(), DataflowError> {
        self.inputs().receive(self, from, message)
    }

    fn rounds(&self) -> Option<&InstanceRounds> {
        self.instance().rounds.as_ref()
    }

    fn end_edge(&self, edge: u32) -> bool {
        self.rounds().is_some_and(|rounds| rounds.end_edge(self, edge))
    }

    fn poll(&self) -> Result<(), DataflowError> {
        self.inputs().poll(self)
    }

    fn deadline(&self, now_ns: u64) -> Result<Option<u64>, DataflowError> {
        self.inputs().deadline(self, now_ns)
    }

    fn buffered(&self) -> &Event {
        self.inputs().buffered()
    }

    fn due(&self) -> Option<u64> {
        self.inputs().due(self)
    }

    fn send_due(&self, now_ns: u64) -> Task<'_> {
        Box::pin(self.inputs().send_due(self, now_ns))
    }

    fn acknowledge(&self) -> Task<'_> {
        Box::pin(self.inputs().acknowledge(self))
    }

    fn relay(&self) -> Task<'_> {
        Box::pin(async {
            self.inputs().relay(self).await;
            Ok(())
        })
    }
}
