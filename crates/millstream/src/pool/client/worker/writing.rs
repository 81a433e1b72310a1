//! Loads: strips are given places in extents, and their blocks are written there in pieces.
//!
//! ```text
//!   strip ─▶ places (GRANT where an extent is full) ─▶ pieces of staging memory ═ WRITE ═▶ extent
//!   a full extent ─▶ a fenced READ: all has landed ─▶ release ─▶ SEAL
//! ```

use std::collections::VecDeque;
use std::sync::Arc;

use fabric::{Fabric, FabricError, Flags, OpId, PostError, RemoteKey, RemoteRange, Slab, Src};
use pool::PoolError;
use pool::access::{EncodedBlock, EncodedStrip};
use pool::manifest::{Block, Strip};
use pool::pointer::{BLOCK_ALIGN, ExtentId, Pointer};
use pool::wire::{ClientRequest, ServerResponse};

use super::super::remote::Remote;
use super::super::transfer::{LoadName, QueuedStrip, WriteQueue};
use super::super::unexpected;
use super::{Operation, Served, Work};

/// Bytes that are written by one operation at most.
const PIECE_BYTES: usize = 256 << 10;
/// Such operations of a server under way at most.
const PIECES: usize = 16;
/// Bytes of the first extent of a writer; each has twice as many as the one before …
const EXTENT_BYTES_FIRST: u32 = 256 << 10;
/// … up to these.
const EXTENT_BYTES: u32 = 16 << 20;
/// The bytes of an extent are a multiple of this.
const EXTENT_STEP: u32 = 64 << 10;

/// Registered memory that blocks are written from.
pub(super) struct Staging {
    slab: Slab,
    free: Vec<usize>,
    /// Extents whose writes landed while nobody could look after them.
    landed: Vec<(u64, u32)>,
}

impl Staging {
    pub(super) fn new(fabric: &dyn Fabric) -> Result<Self, FabricError> {
        // Behind the pieces: the word that fenced READs read into.
        let slab = fabric.slab(PIECES * PIECE_BYTES + BLOCK_ALIGN)?;
        Ok(Self { slab, free: (0..PIECES).collect(), landed: Vec::new() })
    }

    pub(super) fn free(&mut self, piece: usize) {
        self.free.push(piece);
    }

    pub(super) fn keep(&mut self, landed: Vec<(u64, u32)>) {
        self.landed.extend(landed);
    }

    pub(super) fn take_kept(&mut self) -> Vec<(u64, u32)> {
        std::mem::take(&mut self.landed)
    }
}

/// A writer.
pub(super) struct Write {
    queue: Arc<WriteQueue>,
    /// The extent that is filled.
    open: Option<Filling>,
    /// The extent of the blocks of a strip that do not fit there.
    next: Option<Filling>,
    /// Bytes of the next extent.
    next_bytes: u32,
    steps: VecDeque<Step>,
    /// Extents that are full and not sealed.
    finishing: Vec<Filling>,
}

#[derive(Debug, Clone, Copy)]
struct Filling {
    number: u32,
    key: RemoteKey,
    bytes: u32,
    used: u32,
    crc: u32,
}

/// The next steps on the connection, in order.
enum Step {
    Copy { key: RemoteKey, offset: u32, bytes: Vec<u8>, done: usize },
    Finish(Filling),
}

impl Write {
    pub(super) fn new(queue: Arc<WriteQueue>) -> Self {
        let (steps, finishing) = (VecDeque::new(), Vec::new());
        let (open, next) = (None, None);
        Self { queue, open, next, next_bytes: EXTENT_BYTES_FIRST, steps, finishing }
    }

    /// Names the writer among those of this thread, as long as it is there.
    fn name(&self) -> u64 {
        Arc::as_ptr(&self.queue).addr() as u64
    }

    /// Its load, if its strips go to this server.
    pub(super) fn load_on(&self, at: usize) -> Option<LoadName> {
        (self.queue.at == at && !self.queue.is_over()).then_some(self.queue.load)
    }

    /// Requests an extent for the blocks of a strip that do not fit where the last ones lie, so
    /// that the strip has its places on this server as a whole, or none.
    ///
    /// # Errors
    /// [`PoolError::Full`], and when the server refuses or is gone.
    fn make_room(&mut self, remote: &Remote, strip: &EncodedStrip) -> Result<(), PoolError> {
        let mut left = self.open.map_or(0, |open| u64::from(open.bytes - open.used));
        let lengths = strip.blocks.iter().map(|block| block.bytes.len() as u64);
        let mut lengths = lengths.filter(|length| *length > 0).skip_while(|length| {
            let fits = *length <= left;
            left = left.saturating_sub(length.next_multiple_of(BLOCK_ALIGN as u64));
            fits
        });
        let rest = lengths.by_ref().map(|length| length.next_multiple_of(BLOCK_ALIGN as u64));
        let rest: u64 = rest.sum();
        // More than an extent may have is requested as it is placed.
        if rest > 0 && rest <= u64::from(pool::home::EXTENT_BYTES_MAX) {
            self.next = Some(self.grant(remote, rest as u32)?);
        }
        Ok(())
    }

    /// Gives the blocks of a strip their places.
    fn place(&mut self, remote: &Remote, strip: EncodedStrip) -> Result<Strip, PoolError> {
        let EncodedStrip { rows, blocks } = strip;
        let blocks: Result<Vec<Block>, _> =
            blocks.into_iter().map(|block| self.place_block(remote, block)).collect();
        Ok(Strip { rows, blocks: blocks? })
    }

    fn place_block(&mut self, remote: &Remote, block: EncodedBlock) -> Result<Block, PoolError> {
        let EncodedBlock { bytes, codec, nulls, least, greatest } = block;
        let length = u32::try_from(bytes.len())
            .map_err(|_| PoolError::Refused { reason: "a block has more than 4 GiB".into() })?;
        let server = self.queue.server;
        let mut at = Pointer { extent: ExtentId { server: 0, number: 0 }, offset: 0 };
        if length > 0 {
            let fits =
                |open: &Filling| open.used.checked_add(length).is_some_and(|to| to <= open.bytes);
            let mut open = match self.open.take() {
                Some(open) if fits(&open) => open,
                full => {
                    self.steps.extend(full.map(Step::Finish));
                    match self.next.take() {
                        Some(next) if fits(&next) => next,
                        _ => self.grant(remote, length)?,
                    }
                }
            };
            at = Pointer { extent: ExtentId { server, number: open.number }, offset: open.used };
            let padded = length.next_multiple_of(BLOCK_ALIGN as u32).min(open.bytes - open.used);
            open.crc = crc32c::crc32c_append(open.crc, &bytes);
            let padding = [0; BLOCK_ALIGN];
            open.crc = crc32c::crc32c_append(open.crc, &padding[..(padded - length) as usize]);
            self.steps.push_back(Step::Copy { key: open.key, offset: open.used, bytes, done: 0 });
            open.used += padded;
            self.open = Some(open);
        }
        Ok(Block { at, bytes: length, codec, nulls, least, greatest })
    }

    /// Requests an extent of at least `bytes` bytes.
    fn grant(&mut self, remote: &Remote, needed: u32) -> Result<Filling, PoolError> {
        let needed = needed.checked_next_multiple_of(EXTENT_STEP).unwrap_or(needed);
        let ask = |bytes: u32| {
            let (load, part) = (self.queue.load.number, self.queue.server != 0);
            let request = ClientRequest::Grant { load, bytes, part };
            match remote.call(&request)? {
                ServerResponse::Extent { number, bytes, key } => {
                    let key = RemoteKey::decode(&key).map_err(|_| unexpected())?;
                    Ok(Filling { number, key, bytes, used: 0, crc: 0 })
                }
                _ => Err(unexpected()),
            }
        };
        let wanted = self.next_bytes.max(needed);
        let granted = match ask(wanted) {
            // Where little is left, the little may do.
            Err(PoolError::Full { .. }) if needed < wanted => ask(needed),
            granted => granted,
        }?;
        self.next_bytes = (self.next_bytes * 2).min(EXTENT_BYTES);
        Ok(granted)
    }
}

impl Work {
    /// Goes on with all writers as far as it goes without waiting for the network.
    pub(super) fn go_on_writing(&mut self) {
        let ends = &mut self.ends;
        self.writes.retain_mut(|write| {
            let served = &mut ends[write.queue.at];
            if !write.queue.is_over() {
                if let Some(lost) = served.remote.lost() {
                    write.queue.fail(lost);
                } else if let Err(error) = served.go_on(write) {
                    write.queue.fail(error);
                }
            }
            let over = write.queue.is_over();
            if over {
                served.forget(write);
            }
            !over
        });
    }

    pub(super) fn give_up_writing(&mut self, at: usize, load: u64, reason: &str) {
        let served = &mut self.ends[at];
        let reason = if reason.is_empty() { "another of its writers has ended" } else { reason };
        self.writes.retain_mut(|write| {
            let given_up = write.queue.at == at && write.queue.load.number == load;
            if given_up {
                served.forget(write);
                write.queue.fail(PoolError::GivenUp { reason: reason.into() });
            }
            !given_up
        });
    }

    /// All writes into an extent have landed: it is sealed.
    pub(super) fn landed(&mut self, at: usize, writer: u64, extent: u32) {
        let served = &mut self.ends[at];
        let Some(write) = self.writes.iter_mut().find(|write| write.name() == writer) else {
            return;
        };
        let found = write.finishing.iter().position(|filling| filling.number == extent);
        let Some(found) = found else { return };
        let Filling { number, key, used, crc, .. } = write.finishing.swap_remove(found);
        served.end.endpoint.release(key);
        let load = write.queue.load.number;
        let request = ClientRequest::Seal { load, extent: number, used, crc };
        if let Err(error) = served.remote.call(&request) {
            write.queue.fail(error);
        }
    }
}

impl Served {
    fn go_on(&mut self, write: &mut Write) -> Result<(), PoolError> {
        loop {
            while let Some(step) = write.steps.pop_front() {
                let (undone, result) = self.step(write, step);
                if let Some(step) = undone {
                    write.steps.push_front(step);
                }
                match result {
                    Ok(()) => {}
                    Err(PostError::Full) => return Ok(()),
                    Err(error @ PostError::Closed) => {
                        // Why is found out where all learn of it.
                        self.failed.get_or_insert_with(|| error.to_string());
                        return Ok(());
                    }
                    Err(error) => {
                        let reason = format!("a block cannot be written: {error}");
                        return Err(PoolError::Refused { reason });
                    }
                }
            }
            let Some(queued) = write.queue.next() else { break };
            match write.make_room(&self.remote, &queued.strip) {
                Ok(()) => {}
                Err(full @ PoolError::Full { .. }) => {
                    write.queue.refuse(queued, full);
                    continue;
                }
                Err(error) => return Err(error),
            }
            let QueuedStrip { number, partition, strip } = queued;
            let strip = write.place(&self.remote, strip)?;
            write.queue.placed(number, partition, strip);
        }
        if write.queue.has_ended() {
            if let Some(open) = write.open.take() {
                write.steps.push_back(Step::Finish(open));
                return self.go_on(write);
            }
            if write.finishing.is_empty() {
                write.queue.sealed();
            }
        }
        Ok(())
    }

    /// Does a step, or gives back what is left of it.
    fn step(&mut self, write: &mut Write, step: Step) -> (Option<Step>, Result<(), PostError>) {
        match step {
            Step::Copy { key, offset, bytes, mut done } => {
                while done < bytes.len() {
                    let piece = &bytes[done..bytes.len().min(done + PIECE_BYTES)];
                    let to = RemoteRange { key, offset: u64::from(offset) + done as u64 };
                    if let Err(error) = self.copy(piece, to) {
                        return (Some(Step::Copy { key, offset, bytes, done }), Err(error));
                    }
                    done += piece.len();
                    write.queue.sent(piece.len());
                }
                (None, Ok(()))
            }
            Step::Finish(filling) => match self.fence(write.name(), &filling) {
                Ok(()) => {
                    write.finishing.push(filling);
                    (None, Ok(()))
                }
                Err(error) => (Some(Step::Finish(filling)), Err(error)),
            },
        }
    }

    /// Writes a piece.
    fn copy(&mut self, bytes: &[u8], to: RemoteRange) -> Result<(), PostError> {
        let Some(piece) = self.staging.free.pop() else { return Err(PostError::Full) };
        let from = piece * PIECE_BYTES;
        let range = self.staging.slab.range(from..from + bytes.len());
        let range = range.map_err(|_| PostError::OutOfBounds)?;
        range.place(0, bytes);
        let id = self.next_operation();
        let posted = self.end.endpoint.write(Src::Slab(&range), to, OpId(id), Flags::SIGNAL);
        match posted {
            Ok(()) => {
                self.operations.insert(id, Operation::Piece(piece));
            }
            Err(_) => self.staging.free(piece),
        }
        posted
    }

    /// Asks to be told when all that was written before has landed.
    fn fence(&mut self, writer: u64, filling: &Filling) -> Result<(), PostError> {
        let word = PIECES * PIECE_BYTES;
        let range = self.staging.slab.range(word..word + size_of::<u64>());
        let range = range.map_err(|_| PostError::OutOfBounds)?;
        let from = RemoteRange { key: filling.key, offset: 0 };
        let id = self.next_operation();
        self.end.endpoint.read(&range, from, OpId(id), Flags::FENCE | Flags::SIGNAL)?;
        self.operations.insert(id, Operation::Landed { writer, extent: filling.number });
        Ok(())
    }

    /// Gives up what a writer was given and has not sealed.
    fn forget(&mut self, write: &mut Write) {
        let steps = write.steps.drain(..).filter_map(|step| match step {
            Step::Finish(filling) => Some(filling),
            Step::Copy { .. } => None,
        });
        let mut open: Vec<Filling> =
            write.open.take().into_iter().chain(write.next.take()).collect();
        open.extend(steps);
        open.append(&mut write.finishing);
        if self.remote.is_there() {
            open.iter().for_each(|filling| self.end.endpoint.release(filling.key));
        }
    }
}
