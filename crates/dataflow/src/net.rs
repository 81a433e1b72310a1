//! The links of one worker, shared by its coroutines.
//!
//! All queries of a job travel over one link per pair of workers, told apart by the header's tag
//! (Q1), so that the memory of rings does not grow with the number of queries. **A receiver
//! consumes every frame without waiting for anything that arrives over the fabric**: so a frame of
//! one query never blocks another for good.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use arrow::record_batch::RecordBatch;
use bytes::Bytes;
use channel::{Class, Header, Link};
use fabric::Armed;

use crate::error::DataflowError;
use crate::frame::{Kind, MORE};
use crate::metrics::Metrics;
use crate::scheduler::Event;
use crate::wire::{Encoded, Encoder};

/// Bytes of a payload that is put together from several frames, at most.
pub(crate) const REASSEMBLED_BYTES_MAX: usize = 256 << 20;

/// The links of one worker.
pub(crate) struct Net {
    peers: Vec<Option<Peer>>,
    /// The operators of whose frames one waits for credit, once for each.
    waiting: RefCell<Vec<u32>>,
    /// Some link has moved, or somebody has something for several links.
    stirred: Event,
    metrics: Arc<Metrics>,
}

/// One link.
struct Peer {
    link: RefCell<Link>,
    /// Something happened: a frame came, a credit, a completion.
    moved: Event,
    /// Payloads of which more is to come, by kind and tag.
    partial: RefCell<HashMap<(u8, u32), Vec<u8>>>,
    /// The other side needs nothing more of us.
    heard_bye: Cell<bool>,
    /// The other side knows that we need nothing more of it.
    bye_heard: Cell<bool>,
    /// The link failed after the goodbye, as it does when the other side was faster.
    gone: Cell<bool>,
}

/// A frame with its whole payload.
pub(crate) struct Message {
    pub(crate) kind: Kind,
    pub(crate) header: Header,
    pub(crate) payload: Bytes,
}

impl Net {
    /// Takes the links, indexed by worker; `None` for the worker itself.
    pub(crate) fn new(links: Vec<Option<Link>>, metrics: Arc<Metrics>) -> Self {
        let peer = |link| Peer {
            link: RefCell::new(link),
            moved: Event::default(),
            partial: RefCell::new(HashMap::new()),
            heard_bye: Cell::new(false),
            bye_heard: Cell::new(false),
            gone: Cell::new(false),
        };
        let peers = links.into_iter().map(|link| link.map(peer)).collect();
        Self { peers, waiting: RefCell::default(), stirred: Event::default(), metrics }
    }

    /// Whether something cannot be sent before others have taken what was sent.
    pub(crate) fn is_waiting_for_credit(&self) -> bool {
        !self.waiting.borrow().is_empty()
    }

    /// Adds time in which frames waited for credit to the operators that they are of.
    pub(crate) fn add_backpressured(&self, ns: u64) {
        for (at, operator) in self.metrics.operators().iter().enumerate() {
            if self.waiting.borrow().contains(&(at as u32)) {
                Metrics::add(&operator.backpressured_ns, ns);
            }
        }
    }

    /// Workers of the job.
    pub(crate) fn size(&self) -> usize {
        self.peers.len()
    }

    /// The workers at the other ends.
    pub(crate) fn peers(&self) -> impl Iterator<Item = u32> {
        self.peers.iter().enumerate().filter(|(_, peer)| peer.is_some()).map(|(i, _)| i as u32)
    }

    /// Lets every link make progress and wakes who waited for it. True if anything happened.
    ///
    /// # Errors
    /// When a link has failed that was still needed.
    pub(crate) fn poll(&self) -> Result<bool, DataflowError> {
        let mut moved = false;
        for (worker, peer) in self.each().filter(|(_, peer)| !peer.gone.get()) {
            let polled = peer.link.borrow_mut().poll();
            match polled {
                Ok(true) => {
                    moved = true;
                    peer.moved.notify();
                }
                Ok(false) => {}
                Err(_) if peer.heard_bye.get() => {
                    peer.gone.set(true);
                    peer.moved.notify();
                }
                Err(source) => return Err(DataflowError::Link { worker, source }),
            }
        }
        if moved {
            self.stir();
        }
        Ok(moved)
    }

    /// What wakes who waits for any link to move.
    pub(crate) fn stirred(&self) -> &Event {
        &self.stirred
    }

    /// Wakes who waits for any link to move.
    pub(crate) fn stir(&self) {
        self.stirred.notify();
    }

    /// Starts what was sent since the last call.
    pub(crate) fn flush(&self) {
        for (_, peer) in self.each().filter(|(_, peer)| !peer.gone.get()) {
            peer.link.borrow_mut().flush();
        }
    }

    /// Prepares to sleep on all links; appends what to wait for. True when something is there
    /// already: then its coroutines are awake, for arming takes in what has just arrived.
    pub(crate) fn arm(&self, descriptors: &mut Vec<RawFd>) -> bool {
        let mut ready = false;
        for (_, peer) in self.each().filter(|(_, peer)| !peer.gone.get()) {
            let armed = peer.link.borrow_mut().arm();
            match armed {
                Armed::Fd(fd) => descriptors.push(fd),
                Armed::Ready => {
                    ready = true;
                    peer.moved.notify();
                    self.stir();
                }
                Armed::Virtual => {}
            }
        }
        ready
    }

    /// Adds to a counter of this worker.
    pub(crate) fn count(&self, counter: impl Fn(&Metrics) -> &AtomicU64, n: u64) {
        Metrics::add(counter(&self.metrics), n);
    }

    /// Ends all links.
    pub(crate) fn close(&self) {
        for (_, peer) in self.each() {
            peer.link.borrow_mut().close();
        }
    }

    /// The next frame from a worker, waiting for one; `None` when both sides have said goodbye and
    /// know it.
    ///
    /// # Errors
    /// When the link failed or the frame is malformed.
    pub(crate) async fn recv(&self, from: u32) -> Result<Option<Message>, DataflowError> {
        let peer = self.peer(from);
        loop {
            let next = || match peer.parted() {
                true => Some(Ok(None)),
                false => peer.link.borrow_mut().recv().transpose().map(|frame| frame.map(Some)),
            };
            let received = peer.moved.wait_for(next).await;
            let link_failed = |source| DataflowError::Link { worker: from, source };
            let Some(frame) = received.map_err(link_failed)? else { return Ok(None) };
            let malformed = |detail: String| DataflowError::Frame { worker: from, detail };
            let header = frame.header;
            let kind = Kind::decode(header.kind)
                .ok_or_else(|| malformed(format!("there is no frame of kind {}", header.kind)))?;
            match kind {
                Kind::Bye => {
                    peer.heard_bye.set(true);
                    self.send(from, Class::Control, Kind::ByeHeard.header(), |_| 0).await;
                }
                Kind::ByeHeard => {
                    peer.bye_heard.set(true);
                    peer.moved.notify();
                }
                // Parts of several sources may come between each other: the exchange collects them.
                Kind::Cast | Kind::Copy | Kind::List => {
                    let payload = Bytes::from_owner(frame.payload);
                    return Ok(Some(Message { kind, header, payload }));
                }
                _ => {
                    let payload = Bytes::from_owner(frame.payload);
                    if let Some(payload) = peer.reassemble(&header, payload).map_err(malformed)? {
                        return Ok(Some(Message { kind, header, payload }));
                    }
                }
            }
        }
    }

    /// Sends a frame, waiting for credit. `fill` writes the payload and returns its length.
    pub(crate) async fn send(
        &self,
        to: u32,
        class: Class,
        header: Header,
        mut fill: impl FnMut(&mut [u8]) -> usize,
    ) {
        let peer = self.peer(to);
        let mut sent =
            || (peer.gone.get() || self.try_fill(peer, class, header, &mut fill)).then_some(());
        if sent().is_some() {
            return;
        }
        self.wait_for_credit(header.tag, &peer.moved, sent).await;
    }

    /// Waits until others have taken something, for the operator `tag`.
    pub(crate) async fn wait_for_credit<T>(
        &self,
        tag: u32,
        event: &Event,
        check: impl FnMut() -> Option<T>,
    ) -> T {
        self.waiting.borrow_mut().push(tag);
        let found = event.wait_for(check).await;
        let mut waiting = self.waiting.borrow_mut();
        if let Some(at) = waiting.iter().position(|&other| other == tag) {
            waiting.swap_remove(at);
        }
        found
    }

    /// Sends a frame if there is credit; `fill` is called only then. True when it was sent, or the
    /// other side needs nothing more.
    pub(crate) fn try_send(
        &self,
        to: u32,
        class: Class,
        header: Header,
        fill: &mut dyn FnMut(&mut [u8]) -> usize,
    ) -> bool {
        let peer = self.peer(to);
        peer.gone.get() || self.try_fill(peer, class, header, fill)
    }

    /// Sends rows in as many frames as they need, waiting for credit.
    ///
    /// # Errors
    /// When a column's type cannot travel.
    pub(crate) async fn send_rows(
        &self,
        to: u32,
        header: Header,
        encoder: &RefCell<Encoder>,
        batch: &RecordBatch,
    ) -> Result<(), DataflowError> {
        let batch = encoder.borrow().prepare(batch)?;
        let room = self.payload_max(to);
        let mut rows = Encoder::rows_fitting(&batch, room);
        let mut done = 0;
        while done < batch.num_rows() {
            let take = rows.min(batch.num_rows() - done);
            let encoded = encoder.borrow_mut().encode(&batch.slice(done, take))?;
            if encoded.len() > room && take > 1 {
                rows = take / 2;
                continue;
            }
            self.send_encoded(to, header, &encoded).await;
            done += take;
        }
        Ok(())
    }

    /// Says goodbye to all. A link has done its work when [`Net::recv`] gives `None`: before, one
    /// side might still wait for what the other has only posted.
    pub(crate) async fn bye(&self) {
        for (worker, _) in self.each() {
            self.send(worker, Class::Control, Kind::Bye.header(), |_| 0).await;
        }
    }

    /// Whether everything that was sent has left.
    pub(crate) fn is_drained(&self) -> bool {
        self.each().all(|(_, peer)| peer.gone.get() || peer.link.borrow().is_drained())
    }

    async fn send_encoded(&self, to: u32, header: Header, encoded: &Encoded) {
        let room = self.payload_max(to);
        if encoded.len() <= room {
            let fill = |out: &mut [u8]| {
                encoded.write_to(out);
                encoded.len()
            };
            return self.send(to, Class::Data, header, fill).await;
        }
        self.send_payload(to, header, &encoded.payload()).await;
    }

    /// Sends a payload; in parts if it does not fit one slot.
    pub(crate) async fn send_payload(&self, to: u32, mut header: Header, payload: &[u8]) {
        let flags = header.flags;
        let parts = payload.chunks(self.payload_max(to));
        let last = parts.len() - 1;
        for (i, part) in parts.enumerate() {
            header.flags = if i < last { flags | MORE } else { flags };
            let fill = |out: &mut [u8]| {
                out[..part.len()].copy_from_slice(part);
                part.len()
            };
            self.send(to, Class::Data, header, fill).await;
        }
    }

    fn try_fill(
        &self,
        peer: &Peer,
        class: Class,
        header: Header,
        fill: &mut dyn FnMut(&mut [u8]) -> usize,
    ) -> bool {
        let mut link = peer.link.borrow_mut();
        let Some(mut slot) = link.reserve(class) else { return false };
        let len = fill(slot.payload_mut());
        slot.publish(header, len);
        Metrics::add(&self.metrics.frames_out, 1);
        Metrics::add(&self.metrics.bytes_out, len as u64);
        true
    }

    /// Bytes of a frame's payload at most.
    pub(crate) fn payload_max(&self, to: u32) -> usize {
        self.peer(to).link.borrow().config().payload_max()
    }

    /// Bytes of a frame's payload at most, whichever worker it is for.
    pub(crate) fn payload_room(&self) -> usize {
        self.peers().map(|to| self.payload_max(to)).min().unwrap_or(usize::MAX)
    }

    fn peer(&self, worker: u32) -> &Peer {
        self.peers[worker as usize].as_ref().expect("a worker has no link to itself")
    }

    fn each(&self) -> impl Iterator<Item = (u32, &Peer)> {
        self.peers.iter().enumerate().filter_map(|(i, peer)| Some((i as u32, peer.as_ref()?)))
    }
}

impl Peer {
    /// Whether both sides need nothing more of each other, and know it.
    fn parted(&self) -> bool {
        self.heard_bye.get() && (self.bye_heard.get() || self.gone.get())
    }

    /// Collects the parts of a payload; gives it when it is whole.
    fn reassemble(&self, header: &Header, payload: Bytes) -> Result<Option<Bytes>, String> {
        let key = (header.kind, header.tag);
        let mut partial = self.partial.borrow_mut();
        if header.flags & MORE == 0 && !partial.contains_key(&key) {
            return Ok(Some(payload));
        }
        let whole = partial.entry(key).or_default();
        if whole.len() + payload.len() > REASSEMBLED_BYTES_MAX {
            return Err(format!("a payload exceeds {REASSEMBLED_BYTES_MAX} bytes"));
        }
        whole.extend_from_slice(&payload);
        if header.flags & MORE != 0 {
            return Ok(None);
        }
        // A fresh allocation is not aligned for Arrow by itself; the decoder copies what is not.
        Ok(partial.remove(&key).map(Bytes::from))
    }
}
