//! Applies a peer's frame to this side.

use std::sync::atomic::Ordering;

use super::endpoint::{Export, FrameEndpoint};
use super::frame::{Header, Op, Unfit};
use super::parser::Next;
use super::wire::Wire;
use crate::published::{PUBLISHED_READ_MAX, PublishedPlace};
use crate::{Completion, ErrorKind, OpId, RemoteKey, SlabRange};

/// Why a connection has to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Breach {
    /// Key or range of this operation are not what was exported.
    Refused { id: u64 },
    /// More notices or messages than receives (G9).
    NotReady,
    /// Not what the protocol allows.
    Malformed,
    /// Not what the peer has sent.
    Damaged,
    /// The peer refused this operation of ours.
    Nak { id: u64 },
}

impl<W: Wire> FrameEndpoint<W> {
    /// Applies all that was read.
    pub(super) fn apply_all(&mut self) -> Result<(), Breach> {
        loop {
            match self.parser.next() {
                Next::Frame(header) => self.apply(header)?,
                Next::Placed(header) => self.placed(&header)?,
                Next::Starved => return Ok(()),
                Next::Unfit(Unfit::Malformed) => return Err(Breach::Malformed),
                Next::Unfit(Unfit::Damaged) => return Err(Breach::Damaged),
            }
        }
    }

    fn apply(&mut self, header: Header) -> Result<(), Breach> {
        match header.op {
            Op::Write | Op::WriteNotify => {
                if header.len == 0 {
                    return self.placed(&header);
                }
                let (range, retired) = self.exported(&header, header.len as usize)?;
                self.parser.begin(header, range);
                self.parser.lose(|_| retired);
            }
            Op::Read if header.offset & RemoteKey::PUBLISHED != 0 => {
                let (key, offset, len) = (header.key, header.offset, header.len as usize);
                let place = PublishedPlace { key, offset, len };
                if len > PUBLISHED_READ_MAX || !self.published.has(place) {
                    return Err(Breach::Refused { id: header.id });
                }
                self.count_reply()?;
                let reply = Header { len: header.len, ..Header::new(Op::ReadData, header.id) };
                self.push_published(reply, place);
            }
            Op::Read => {
                let (range, _) = self.exported(&header, header.len as usize)?;
                let reply = Header { len: header.len, ..Header::new(Op::ReadData, header.id) };
                self.reply(reply, Some(range))?;
            }
            Op::FetchAdd | Op::CompareSwap => {
                let old = self.apply_atomic(&header)?;
                self.reply(Header { offset: old, ..Header::new(Op::Word, header.id) }, None)?;
            }
            Op::Send => {
                self.receive()?;
                self.applied += 1;
                let bytes = self.parser.small(&header).to_vec();
                self.events.push(Completion::Recv { bytes });
            }
            Op::Credit => {
                self.peer_granted = self.peer_granted.max(header.offset);
                if !self.acknowledge(header.key) {
                    return Err(Breach::Malformed);
                }
            }
            Op::ReadData => {
                let range = self.answered(&header)?;
                if range.len() != header.len as usize {
                    return Err(Breach::Malformed);
                }
                self.parser.begin(header, range);
            }
            Op::Word => {
                let old = self.answered(&header)?;
                old.slab().store(old.offset(), header.offset, Ordering::Release);
                self.answer_taken();
            }
            Op::Nak => return Err(Breach::Nak { id: header.id }),
        }
        Ok(())
    }

    /// The body of this frame is where it belongs.
    fn placed(&mut self, header: &Header) -> Result<(), Breach> {
        match header.op {
            Op::Write => self.applied += 1,
            Op::WriteNotify => {
                self.receive()?;
                self.applied += 1;
                self.events.push(Completion::Notify { imm: header.imm });
            }
            Op::ReadData => self.answer_taken(),
            _ => {}
        }
        Ok(())
    }

    /// The memory that the peer means, and whether it is retired.
    fn exported(&self, header: &Header, len: usize) -> Result<(SlabRange, bool), Breach> {
        let refused = Breach::Refused { id: header.id };
        if len > self.caps.max_msg {
            return Err(refused);
        }
        let Export { range, retired } = self.exports.get(&header.key).ok_or(refused)?;
        let offset = header.offset.checked_sub(range.offset() as u64).ok_or(refused)?;
        let offset = usize::try_from(offset).map_err(|_| refused)?;
        Ok((range.part(offset, len).map_err(|_| refused)?, *retired))
    }

    /// Uses one of our receives.
    fn receive(&mut self) -> Result<(), Breach> {
        if self.received == self.granted {
            return Err(Breach::NotReady);
        }
        self.received += 1;
        Ok(())
    }

    fn apply_atomic(&mut self, header: &Header) -> Result<u64, Breach> {
        let (word, retired) = self.exported(header, 8)?;
        if !word.offset().is_multiple_of(8) {
            return Err(Breach::Refused { id: header.id });
        }
        let operands = self.parser.small(header);
        let operand = |i: usize| {
            operands.get(8 * i..8 * i + 8).and_then(|b| b.try_into().ok()).map(u64::from_le_bytes)
        };
        let word = word.slab().word(word.offset());
        match (header.op, operands.len(), operand(0), operand(1)) {
            (Op::FetchAdd, 8, ..) | (Op::CompareSwap, 16, ..) if retired => {
                Ok(word.load(Ordering::Acquire))
            }
            (Op::FetchAdd, 8, Some(add), None) => Ok(word.fetch_add(add, Ordering::AcqRel)),
            (Op::CompareSwap, 16, Some(expect), Some(swap)) => {
                match word.compare_exchange(expect, swap, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(old) | Err(old) => Ok(old),
                }
            }
            _ => Err(Breach::Malformed),
        }
    }

    fn reply(&mut self, header: Header, body: Option<SlabRange>) -> Result<(), Breach> {
        self.count_reply()?;
        self.push_reply(header, body);
        Ok(())
    }

    /// One more question waits for its answer.
    fn count_reply(&mut self) -> Result<(), Breach> {
        if self.replies == self.replies_max {
            return Err(Breach::Malformed);
        }
        self.replies += 1;
        Ok(())
    }

    /// Where the answer to our oldest question goes: questions are answered in order.
    fn answered(&self, header: &Header) -> Result<SlabRange, Breach> {
        let (seq, range) = self.awaiting.front().ok_or(Breach::Malformed)?;
        if self.operations.id(*seq) == Some(OpId(header.id)) {
            Ok(range.clone())
        } else {
            Err(Breach::Malformed)
        }
    }

    fn answer_taken(&mut self) {
        if let Some((seq, _)) = self.awaiting.pop_front() {
            self.operations.done(seq);
        }
        self.release_held();
    }

    /// Ends the connection for the reason that was found.
    pub(super) fn end(&mut self, breach: Breach) {
        match breach {
            Breach::Refused { id } => {
                self.send_nak(id);
                self.fail(None, ErrorKind::Disconnected);
            }
            Breach::NotReady => self.fail(None, ErrorKind::ReceiverNotReady),
            Breach::Malformed => self.fail(None, ErrorKind::Disconnected),
            Breach::Damaged => self.fail(None, ErrorKind::Damaged),
            Breach::Nak { id } => self.fail(Some(OpId(id)), ErrorKind::RemoteAccess),
        }
    }
}
