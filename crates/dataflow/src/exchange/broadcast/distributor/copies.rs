//! A copy for each worker: the baseline without W1.
//!
//! The source numbers frames as ever, but each is for one worker alone. So a copy says up to where
//! its receiver may take the source's frames as received: to the end of the *round*, the copies of
//! the same rows for all.

use arrow::record_batch::RecordBatch;
use bytes::Bytes;

use super::outbound::{Encoded, parts_of};
use super::{BroadcastFrame, Distributor};
use crate::error::DataflowError;
use crate::exchange::rounds::deliver;
use crate::exchange::{Arrival, Member};
use crate::rows::wire::{Decoder, RowsLayout};
use crate::runtime::frame::Envelope;
use crate::runtime::net::{Message, REASSEMBLED_BYTES_MAX};

/// The number of a copy, and what it says of others.
pub(super) struct CopyNumber {
    pub(super) number: u64,
    /// All frames of the source before this one that are for the receiver have come with it.
    pub(super) complete_before: u64,
}

impl Distributor {
    /// Gives rows to the workers of this process by reference, and encodes them for each other one.
    /// The first copy is encoded already.
    pub(super) async fn push_copies(
        &self,
        member: &impl Member,
        port: u32,
        batch: RecordBatch,
        rows: &RowsLayout<'_>,
        first: Encoded,
    ) -> Result<(), DataflowError> {
        let (net, own) = (member.net(), self.process.workers());
        let others: Vec<u32> = net.peers().filter(|worker| !own.contains(worker)).collect();
        let room = net.payload_room();
        let parts = parts_of(&first.payload, room).len();
        let colour = member.colour();
        let complete_before = self.next_number() + 1 + (others.len() * parts) as u64;
        let local = BroadcastFrame::local(port, colour, complete_before, batch);
        self.enqueue(member, local, Some(self.locals()), 0).await?;
        let mut encoded = Some(first);
        for worker in others {
            let Encoded { payload, encode_ns, .. } = match encoded.take() {
                Some(first) => first,
                None => self.encode(net, rows),
            };
            for (payload, more) in parts_of(&payload, room) {
                let frame = BroadcastFrame {
                    port,
                    colour,
                    complete_before,
                    more,
                    placeholder: None,
                    payload,
                    owned: true,
                    lent: None,
                    batch: None,
                    to: None,
                };
                self.enqueue(member, frame, Some(vec![worker]), encode_ns / parts as u64).await?;
            }
        }
        debug_assert_eq!(
            self.next_number(),
            complete_before,
            "copies of the same rows are equally long"
        );
        Ok(())
    }

    /// Takes a copy, or a part of one, that `from` has made for this worker.
    pub(super) fn take_copy<'a>(
        &self,
        member: &impl Member,
        from: u32,
        CopyNumber { number, complete_before }: CopyNumber,
        message: Message,
        decoder: impl Fn(usize) -> Option<&'a Decoder>,
    ) -> Result<(), String> {
        let Envelope { port, colour, more, .. } = message.envelope;
        let payload = self.whole_copy(from, more, message.load.bytes())?;
        self.acknowledge(from, from, number);
        let Some(payload) = payload else { return Ok(()) };
        let received = &mut self.received.borrow_mut()[from as usize];
        if complete_before <= number || complete_before < *received {
            return Err(format!(
                "a copy numbered {number} says that {complete_before} frames are here"
            ));
        }
        *received = complete_before;
        let decoder = decoder(port as usize).ok_or(format!("there is no input {port}"))?;
        let (batch, _) = decoder.decode(payload)?;
        let arrival = Arrival { port: port as usize, source: from, colour, slice: None, bytes: 0 };
        deliver(member, arrival, batch, true).map_err(|error| error.to_string())
    }

    /// Puts the parts of a payload together; gives it when it is whole.
    fn whole_copy(&self, from: u32, more: bool, payload: Bytes) -> Result<Option<Bytes>, String> {
        let mut partial = self.partial.borrow_mut();
        if !more && !partial.contains_key(&from) {
            return Ok(Some(payload));
        }
        let whole = partial.entry(from).or_default();
        if whole.len() + payload.len() > REASSEMBLED_BYTES_MAX {
            return Err(format!("a payload exceeds {REASSEMBLED_BYTES_MAX} bytes"));
        }
        whole.extend_from_slice(&payload);
        Ok(if more { None } else { partial.remove(&from).map(Bytes::from) })
    }
}
