//! The forward exchange: rows stay on the worker that has them, because they are together already
//! or because rows of another input come to them.

use arrow::record_batch::RecordBatch;

use super::{Arrival, Member, Outgoing, RowExchange, refused};
use crate::error::DataflowError;
use crate::runtime::net::Message;

/// Sends nothing.
pub(crate) struct Forward;

impl<M: Member> RowExchange<M> for Forward {
    async fn push(
        &self,
        member: &M,
        rows: Outgoing<'_>,
    ) -> Result<Option<RecordBatch>, DataflowError> {
        member.keep(Arrival::local(member, &rows), rows.batch)?;
        Ok(None)
    }

    fn carries_progress(&self, _: &M) -> bool {
        true
    }

    fn receive(&self, _: &M, from: u32, message: Message) -> Result<Option<u32>, DataflowError> {
        Err(refused(from, message.envelope.frame))
    }

    fn sends_rows(&self, _: &M) -> bool {
        false
    }
}
