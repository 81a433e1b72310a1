//! The exchange of an input, whichever it is: the one place that knows all of them. Calls are
//! dispatched by a branch, and none is boxed.

use arrow::record_batch::RecordBatch;
use state::GroupColumns;
use state::epoch::Progress;

use super::{Arrival, Broadcast, Forward, Gather, Member, Merge, Outgoing, RowExchange, Shuffle};
use crate::error::DataflowError;
use crate::runtime::net::Message;

/// One of the exchanges.
pub(crate) enum AnyExchange {
    Forward(Forward),
    Merge(Box<Merge>),
    Shuffle(Box<Shuffle>),
    Broadcast(Box<Broadcast>),
    Gather(Box<Gather>),
}

/// Calls a method of whichever exchange it is.
macro_rules! dispatch {
    ($edge:expr, $exchange:ident => $call:expr) => {
        match $edge {
            AnyExchange::Forward($exchange) => $call,
            AnyExchange::Merge($exchange) => $call,
            AnyExchange::Shuffle($exchange) => $call,
            AnyExchange::Broadcast($exchange) => $call,
            AnyExchange::Gather($exchange) => $call,
        }
    };
}

impl<M: Member> RowExchange<M> for AnyExchange {
    async fn push(
        &self,
        member: &M,
        rows: Outgoing<'_>,
    ) -> Result<Option<RecordBatch>, DataflowError> {
        dispatch!(self, exchange => exchange.push(member, rows).await)
    }

    async fn flush(&self, member: &M) -> Result<(), DataflowError> {
        dispatch!(self, exchange => exchange.flush(member).await)
    }

    async fn announce(&self, member: &M, progress: Progress) -> Result<(), DataflowError> {
        dispatch!(self, exchange => exchange.announce(member, progress).await)
    }

    fn carries_progress(&self, member: &M) -> bool {
        dispatch!(self, exchange => exchange.carries_progress(member))
    }

    async fn resume(&self, member: &M, progress: Progress) -> Result<Option<i64>, DataflowError> {
        dispatch!(self, exchange => exchange.resume(member, progress).await)
    }

    fn end(&self, member: &M) {
        dispatch!(self, exchange => exchange.end(member));
    }

    fn receive(
        &self,
        member: &M,
        from: u32,
        message: Message,
    ) -> Result<Option<u32>, DataflowError> {
        dispatch!(self, exchange => exchange.receive(member, from, message))
    }

    fn due(&self, member: &M) -> Option<u64> {
        dispatch!(self, exchange => exchange.due(member))
    }

    async fn send_due(&self, member: &M, now_ns: u64) -> Result<(), DataflowError> {
        dispatch!(self, exchange => exchange.send_due(member, now_ns).await)
    }

    async fn acknowledge(&self, member: &M) {
        dispatch!(self, exchange => exchange.acknowledge(member).await);
    }

    async fn relay(&self, member: &M) {
        dispatch!(self, exchange => exchange.relay(member).await);
    }

    fn poll(&self, member: &M) -> Result<Vec<u32>, DataflowError> {
        dispatch!(self, exchange => exchange.poll(member))
    }

    fn deadline(&self, member: &M, now_ns: u64) -> Result<Option<u64>, DataflowError> {
        dispatch!(self, exchange => exchange.deadline(member, now_ns))
    }

    fn consumed(&self, member: &M, of: Arrival) {
        dispatch!(self, exchange => exchange.consumed(member, of));
    }

    fn others_ended(&self, member: &M) {
        dispatch!(self, exchange => exchange.others_ended(member));
    }

    fn satisfied(&self, member: &M) {
        dispatch!(self, exchange => exchange.satisfied(member));
    }

    fn is_satisfied(&self, member: &M) -> bool {
        dispatch!(self, exchange => exchange.is_satisfied(member))
    }

    async fn settle(&self, member: &M) {
        dispatch!(self, exchange => exchange.settle(member).await);
    }

    fn sent_before(&self, member: &M, to: u32) -> u64 {
        dispatch!(self, exchange => exchange.sent_before(member, to))
    }

    fn received_before(&self, member: &M, from: u32) -> u64 {
        dispatch!(self, exchange => exchange.received_before(member, from))
    }

    fn sends_rows(&self, member: &M) -> bool {
        dispatch!(self, exchange => exchange.sends_rows(member))
    }

    fn is_long(&self, member: &M) -> bool {
        dispatch!(self, exchange => exchange.is_long(member))
    }

    async fn relieve(&self, member: &M) -> Result<(), DataflowError> {
        dispatch!(self, exchange => exchange.relieve(member).await)
    }

    fn bytes(&self, member: &M) -> usize {
        dispatch!(self, exchange => exchange.bytes(member))
    }

    fn led_here(&self, member: &M, groups: GroupColumns) -> Result<GroupColumns, DataflowError> {
        dispatch!(self, exchange => exchange.led_here(member, groups))
    }
}
