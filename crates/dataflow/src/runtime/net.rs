//! What joins one worker with the others, shared by its coroutines: a link with each worker of
//! another process, and a queue each way with each one of its own, by which rows are handed over
//! without being encoded (Q7).
//!
//! All queries of a job travel over one link or queue per pair of workers, told apart by the
//! operator in their envelope (Q1), so that the memory of rings does not grow with the number of
//! queries. **A receiver consumes every frame without waiting for anything that arrives**: so a
//! frame of one query never blocks another for good.

mod blocked;
mod content;
mod flush;
mod in_flight;
mod path;
mod peer;
mod ready;
mod send_windows;

use std::cell::{Cell, RefCell, RefMut};
use std::ops::Range;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use arrow::record_batch::RecordBatch;
use bytes::Bytes;
use channel::{Class, Link, LinkError, RegionFrame, SharedRegion};
use fabric::{Armed, ErrorKind};

use self::blocked::{BlockedFrame, BlockedFrames};
use self::content::Content;
pub(crate) use self::in_flight::{Limits, PayloadsInFlight};
use self::path::Path;
use self::peer::Peer;
use self::ready::ReadyList;
pub(crate) use self::send_windows::SendWindows;
use crate::error::DataflowError;
use crate::rows::wire::{Cutter, Picks, RowsLayout, bytes_of};
use crate::runtime::frame::{Envelope, Frame};
use crate::runtime::local_exchange::{Load, Parker};
use crate::runtime::metrics::Metrics;
use crate::runtime::place::WorkerContext;
use crate::runtime::reconnect::{LinkEvent, Reconnector};
use crate::runtime::scheduler::Event;

/// Bytes of a payload that is put together from several frames, at most.
pub(crate) const REASSEMBLED_BYTES_MAX: usize = 256 << 20;

/// What joins one worker with the others.
pub(crate) struct Net {
    peers: Vec<Option<Peer>>,
    /// Whose links are asked at each step.
    ready: ReadyList,
    /// How other threads of its process wake this worker.
    parker: Arc<Parker>,
    /// This worker is parked: it has asked to be woken.
    parked: Cell<bool>,
    /// Something was passed or taken within the process since the last [`Net::take_exchanged`].
    exchanged: Cell<bool>,
    /// Frames that wait for credit or for room in a window.
    blocked: BlockedFrames,
    /// Some path has moved, or somebody has something for several of them.
    any_moved: Event,
    /// Makes links whole whose connection broke.
    reconnector: RefCell<Option<Box<dyn Reconnector>>>,
    /// What travels by the network's own multicast.
    in_flight: Option<RefCell<PayloadsInFlight>>,
    /// From where peers read what is for many of them (W3), if links are configured so.
    region: Option<Arc<SharedRegion>>,
    metrics: Arc<Metrics>,
}

/// A frame with its whole payload.
pub(crate) struct Message {
    pub(crate) envelope: Envelope,
    pub(crate) load: Load,
}

impl Net {
    /// Takes the links with workers of other processes, indexed by worker, and who mends them; if
    /// nobody does, a connection that breaks ends the job.
    pub(crate) fn new(
        links: Vec<Option<Link>>,
        reconnector: Option<Box<dyn Reconnector>>,
        in_flight: Option<PayloadsInFlight>,
        place: &WorkerContext,
        metrics: Arc<Metrics>,
    ) -> Self {
        let WorkerContext { worker: own, process, settings, .. } = place;
        let region = links.iter().flatten().find_map(|link| link.region().cloned());
        let beside = |worker: u32| worker != *own && process.workers().contains(&worker);
        let path = |(worker, link): (u32, Option<Link>)| match link {
            _ if beside(worker) => Some(Path::Queue(process.end(*own, worker, settings.ring))),
            Some(link) => Some(Path::of(link)),
            None => None,
        };
        Self {
            ready: ReadyList::new(links.len()),
            peers: (0..).zip(links).map(path).map(|path| path.map(Peer::new)).collect(),
            parker: process.parker(*own),
            parked: Cell::new(false),
            exchanged: Cell::new(false),
            blocked: BlockedFrames::default(),
            any_moved: Event::default(),
            reconnector: RefCell::new(reconnector),
            in_flight: in_flight.map(RefCell::new),
            region,
            metrics,
        }
    }

    /// What travels by the network's own multicast, if it has one.
    pub(crate) fn in_flight(&self) -> Option<RefMut<'_, PayloadsInFlight>> {
        self.in_flight.as_ref().map(RefCell::borrow_mut)
    }

    /// From where peers read what is for many of them, if there is such memory.
    pub(crate) fn region(&self) -> Option<&Arc<SharedRegion>> {
        self.region.as_ref()
    }

    /// Whether something cannot be sent before others have taken what was sent.
    pub(crate) fn is_waiting_for_credit(&self) -> bool {
        !self.blocked.is_empty()
    }

    /// Adds time in which frames waited for credit to the operators that they are of.
    pub(crate) fn add_backpressured(&self, ns: u64) {
        self.blocked.add_backpressured(&self.metrics, ns);
    }

    /// Workers of the job.
    pub(crate) fn size(&self) -> usize {
        self.peers.len()
    }

    /// The workers at the other ends.
    pub(crate) fn peers(&self) -> impl Iterator<Item = u32> {
        self.peers.iter().enumerate().filter(|(_, peer)| peer.is_some()).map(|(i, _)| i as u32)
    }

    /// Lets every path make progress and wakes who waited for it. True if anything happened.
    ///
    /// # Errors
    /// When one has failed that was still needed.
    pub(crate) fn poll(&self) -> Result<bool, DataflowError> {
        let parked = self.parked.take();
        if parked {
            self.parker.unpark();
        }
        let moved = Cell::new(false);
        let ask = |worker| self.ask(worker, &moved);
        self.ready.ask_ready(ask)?;
        // Parking has armed every link.
        self.ready.ask_others(parked || !moved.get(), ask)?;
        self.submit();
        let mut moved = moved.get() | self.take_link_events()?;
        moved |= self.in_flight().is_some_and(|mut in_flight| in_flight.poll());
        if moved {
            self.notify_waiters();
        }
        Ok(moved)
    }

    /// Lets the path to a worker make progress. True if it had something to do.
    fn ask(&self, worker: u32, moved: &Cell<bool>) -> Result<bool, DataflowError> {
        let peer = self.peers[worker as usize].as_ref().filter(|peer| !peer.gone.get());
        let Some(peer) = peer else { return Ok(false) };
        match peer.path.poll() {
            Ok(None) => return Ok(false),
            Ok(Some(false)) => {}
            Ok(Some(true)) => {
                moved.set(true);
                peer.moved.notify();
            }
            Err(source) => self.part(worker, peer, source)?,
        }
        Ok(true)
    }

    /// What is to be done about a link that has failed.
    fn part(&self, worker: u32, peer: &Peer, source: LinkError) -> Result<(), DataflowError> {
        let mut reconnector = self.reconnector.borrow_mut();
        if peer.heard_bye.get() {
            peer.leave();
            self.notify_waiters();
            if let Some(reconnector) = &mut *reconnector {
                reconnector.decline(worker);
            }
            return Ok(());
        }
        let of_link = matches!(peer.path, Path::Link(_));
        match &mut *reconnector {
            Some(reconnector) if of_link && matches!(source, LinkError::Disconnected { .. }) => {
                if let Some(link) = peer.path.take() {
                    reconnector.reconnect(worker, link, source);
                }
                Ok(())
            }
            _ => Err(DataflowError::Link { worker, source }),
        }
    }

    /// Takes back links that go on over another connection. True if anything happened.
    fn take_link_events(&self) -> Result<bool, DataflowError> {
        let next = || self.reconnector.borrow_mut().as_mut()?.next_event();
        let mut moved = false;
        while let Some(event) = next() {
            moved = true;
            match event {
                LinkEvent::Lost { worker } => {
                    let peer = self.peer(worker);
                    let kind = ErrorKind::Disconnected;
                    if !peer.gone.get() {
                        self.part(worker, peer, LinkError::Disconnected { kind })?;
                    }
                }
                LinkEvent::Reconnected { worker, link } => {
                    Metrics::add(&self.metrics.reconnected_links, 1);
                    self.peer(worker).path.restore(*link);
                    self.ready.put(worker);
                    self.peer(worker).moved.notify();
                }
                LinkEvent::Declined { worker } => {
                    self.peer(worker).heard_bye.set(true);
                    self.peer(worker).leave();
                }
                LinkEvent::Failed(error) => return Err(error),
            }
        }
        Ok(moved)
    }

    /// Notified when anything moves.
    pub(crate) fn any_moved(&self) -> &Event {
        &self.any_moved
    }

    /// Wakes the coroutines that wait for anything to move.
    pub(crate) fn notify_waiters(&self) {
        self.any_moved.notify();
    }

    /// Whether something was handed over or taken within the process since the last call: then
    /// another worker of it may have something to do.
    pub(crate) fn take_exchanged(&self) -> bool {
        self.exchanged.take()
    }

    /// Prepares to sleep; appends what to wait for. True when something is there already: then its
    /// coroutines are awake, for arming takes in what has just arrived.
    pub(crate) fn arm(&self, descriptors: &mut Vec<RawFd>) -> bool {
        let mut ready = false;
        self.parked.set(true);
        descriptors.push(self.parker.park());
        for (_, peer) in self.each().filter(|(_, peer)| !peer.gone.get()) {
            match peer.path.arm() {
                // Links that share a connection have one in common.
                Armed::Fd(fd) if descriptors.last() == Some(&fd) => {}
                Armed::Fd(fd) => descriptors.push(fd),
                Armed::Ready => {
                    ready = true;
                    peer.moved.notify();
                    self.notify_waiters();
                }
                Armed::Virtual => {}
            }
        }
        ready
    }

    /// The counters of this worker.
    pub(crate) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Adds to a counter of this worker.
    pub(crate) fn count(&self, counter: impl Fn(&Metrics) -> &AtomicU64, n: u64) {
        Metrics::add(counter(&self.metrics), n);
    }

    /// Adds rows that an operator has sent to other processes.
    pub(crate) fn count_sent(&self, operator: u32, rows: usize, bytes: usize) {
        self.metrics.count_sent(operator, rows, bytes);
    }

    /// Ends all paths.
    pub(crate) fn close(&self) {
        for (_, peer) in self.each() {
            peer.path.close();
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
            let next = || {
                if peer.parted() {
                    Some(Ok(None))
                } else {
                    peer.path.recv().transpose().map(|frame| frame.map(Some))
                }
            };
            let received = peer.moved.wait_for(next).await;
            let link_failed = |source| DataflowError::Link { worker: from, source };
            let Some((header, load)) = received.map_err(link_failed)? else { return Ok(None) };
            if let Path::Queue(_) = peer.path {
                self.exchanged.set(true);
            }
            let malformed = |detail: String| DataflowError::Frame { worker: from, detail };
            let envelope = Envelope::decode(&header, load.len()).map_err(malformed)?;
            match envelope.frame {
                Frame::Bye => {
                    peer.heard_bye.set(true);
                    self.send(from, Class::Control, Envelope::of_link(Frame::ByeAck)).await;
                }
                Frame::ByeAck => {
                    peer.bye_heard.set(true);
                    peer.moved.notify();
                }
                // Parts of several sources may come between each other: the exchange collects them.
                Frame::Broadcast { .. }
                | Frame::BroadcastCopy { .. }
                | Frame::BroadcastList { .. } => return Ok(Some(Message { envelope, load })),
                _ => {
                    if let Some(load) = peer.reassemble(&envelope, load).map_err(malformed)? {
                        return Ok(Some(Message { envelope, load }));
                    }
                }
            }
        }
    }

    /// Sends a frame without a payload, waiting for credit.
    pub(crate) async fn send(&self, to: u32, class: Class, envelope: Envelope) {
        self.post(to, class, envelope, &Content::Parts(&[])).await;
    }

    /// Waits until others have taken something, for the operator `tag`.
    pub(crate) async fn wait_for_credit<T>(
        &self,
        tag: u32,
        event: &Event,
        check: impl FnMut() -> Option<T>,
    ) -> T {
        self.blocked.wait(BlockedFrame { operator: tag, for_window: false }, event, check).await
    }

    /// Waits until there is room in the window of a worker for a frame with a payload of this
    /// length, which then counts as sent.
    pub(crate) async fn wait_for_window(
        &self,
        to: u32,
        tag: u32,
        windows: &SendWindows,
        payload: usize,
    ) {
        if windows.reserve(to, payload) {
            return;
        }
        let is_gone = || self.peers[to as usize].as_ref().is_some_and(|peer| peer.gone.get());
        let check = || (windows.reserve(to, payload) || is_gone()).then_some(());
        let waiting = BlockedFrame { operator: tag, for_window: true };
        self.blocked.wait(waiting, &self.any_moved, check).await;
    }

    /// Sends a frame of these bytes, one part after the other, if there is credit. True when it was
    /// sent, or the other side needs nothing more.
    pub(crate) fn try_send(
        &self,
        to: u32,
        class: Class,
        envelope: Envelope,
        parts: &[&[u8]],
    ) -> bool {
        self.try_post(to, class, envelope, &Content::Parts(parts))
    }

    /// Sends a frame whose payload lies in the region, as [`Net::try_send`].
    pub(crate) fn try_lend(&self, to: u32, envelope: Envelope, payload: &RegionFrame) -> bool {
        self.try_post(to, Class::Data, envelope, &Content::Lent(payload))
    }

    /// Hands rows to a worker of this process, if there is room. True as for [`Net::try_send`].
    pub(crate) fn try_hand(&self, to: u32, envelope: Envelope, batch: &RecordBatch) -> bool {
        self.try_give(self.peer(to), Class::Data, envelope, || Load::of_rows(batch))
    }

    /// Sends rows in as many frames as they need, or hands them over; waits for room in a window,
    /// if there are any, and for credit.
    ///
    /// # Errors
    /// When a column's type cannot travel.
    pub(crate) async fn send_rows(
        &self,
        to: u32,
        envelope: Envelope,
        cutter: &Cutter,
        windows: Option<&SendWindows>,
        picks: &Picks,
    ) -> Result<(), DataflowError> {
        if self.is_beside(to) {
            let Some(batch) = picks.batch()? else { return Ok(()) };
            let bytes = bytes_of(&batch);
            if let Some(windows) = windows {
                self.wait_for_window(to, envelope.operator, windows, bytes).await;
            }
            self.hand(to, envelope, || Load::Rows { batch: batch.clone(), bytes }).await;
            return Ok(());
        }
        let whole = windows.map_or(usize::MAX, |windows| windows.payload_max(to));
        let room = self.payload_max(to).min(whole);
        let mut done = 0;
        while done < picks.rows() {
            let layout = cutter.cut(picks, done, room)?;
            if let Some(windows) = windows {
                self.wait_for_window(to, envelope.operator, windows, layout.len()).await;
            }
            self.send_layout(to, envelope, &layout).await;
            self.metrics.count_sent(envelope.operator, layout.rows(), layout.len());
            done += layout.rows();
        }
        Ok(())
    }

    /// Sends some rows to a worker of another process, in one frame, or in parts if they do not fit
    /// one slot.
    ///
    /// # Errors
    /// When a column's type cannot travel.
    pub(crate) async fn send_picked(
        &self,
        to: u32,
        envelope: Envelope,
        picks: &Picks,
        rows: Range<usize>,
    ) -> Result<(), DataflowError> {
        let layout = RowsLayout::of(picks, rows, &[])?;
        self.send_layout(to, envelope, &layout).await;
        self.metrics.count_sent(envelope.operator, layout.rows(), layout.len());
        Ok(())
    }

    /// Says goodbye to all. A link has done its work when [`Net::recv`] gives `None`: before, one
    /// side might still wait for what the other has only posted.
    pub(crate) async fn bye(&self) {
        for (worker, _) in self.each() {
            self.send(worker, Class::Control, Envelope::of_link(Frame::Bye)).await;
        }
    }

    /// Whether everything that was sent has left.
    pub(crate) fn is_drained(&self) -> bool {
        self.each().all(|(_, peer)| peer.gone.get() || peer.path.is_drained())
    }

    /// Writes rows or groups straight into a slot; a row that is larger than one goes in parts.
    pub(crate) async fn send_layout(&self, to: u32, envelope: Envelope, layout: &RowsLayout<'_>) {
        if layout.len() <= self.payload_max(to) {
            return self.post(to, Class::Data, envelope, &Content::Rows(layout)).await;
        }
        self.send_payload(to, envelope, &layout.payload()).await;
    }

    /// Sends a payload, in parts if it does not fit one slot; or hands it over.
    pub(crate) async fn send_payload(&self, to: u32, envelope: Envelope, payload: &Bytes) {
        if self.is_beside(to) {
            return self.hand(to, envelope, || Load::Own(payload.clone())).await;
        }
        let parts = payload.chunks(self.payload_max(to));
        let last = parts.len() - 1;
        for (i, part) in parts.enumerate() {
            let envelope = Envelope { more: i < last, ..envelope };
            self.post(to, Class::Data, envelope, &Content::Parts(&[part])).await;
        }
    }

    /// Sends a frame, waiting for credit.
    async fn post(&self, to: u32, class: Class, envelope: Envelope, content: &Content<'_>) {
        let peer = self.peer(to);
        self.insist(peer, envelope.operator, || self.try_post(to, class, envelope, content)).await;
    }

    /// Hands something to a worker of this process, waiting for room.
    pub(crate) async fn hand(&self, to: u32, envelope: Envelope, load: impl Fn() -> Load) {
        let peer = self.peer(to);
        self.insist(peer, envelope.operator, || self.try_give(peer, Class::Data, envelope, &load))
            .await;
    }

    /// Tries until it succeeds, whenever something has moved.
    async fn insist(&self, peer: &Peer, tag: u32, attempt: impl Fn() -> bool) {
        if !attempt() {
            self.wait_for_credit(tag, &peer.moved, || attempt().then_some(())).await;
        }
    }

    fn try_post(&self, to: u32, class: Class, envelope: Envelope, content: &Content<'_>) -> bool {
        let peer = self.peer(to);
        let Path::Link(joint) = &peer.path else {
            return self.try_give(peer, class, envelope, || Load::Own(content.payload()));
        };
        if peer.gone.get() {
            return true;
        }
        let Some(link) = &mut *joint.link.borrow_mut() else { return false };
        self.ready.put(to);
        let lent = match content {
            Content::Lent(payload) if link.lends(payload) => Some(*payload),
            _ => None,
        };
        let Some(mut slot) = link.reserve(class) else { return false };
        let len = if let Some(payload) = lent {
            slot.lend(envelope.encode(), payload);
            payload.as_ref().len()
        } else {
            let len = content.write_to(slot.payload_mut());
            #[cfg(test)]
            crate::rows::wire::count_into_slot(len);
            slot.publish(envelope.encode(), len);
            len
        };
        Metrics::add(&self.metrics.frames_sent, 1);
        Metrics::add(&self.metrics.bytes_sent, len as u64);
        true
    }

    fn try_give(
        &self,
        peer: &Peer,
        class: Class,
        envelope: Envelope,
        load: impl FnOnce() -> Load,
    ) -> bool {
        let Path::Queue(end) = &peer.path else {
            unreachable!("rows are passed by reference within a process")
        };
        if peer.gone.get() {
            return true;
        }
        if !end.has_room(class) {
            return false;
        }
        let load = load();
        let rows = if let Load::Rows { batch, .. } = &load { batch.num_rows() } else { 0 };
        Metrics::add(&self.metrics.local_rows, rows as u64);
        if let Some(operator) = self.metrics.operators().get(envelope.operator as usize) {
            Metrics::add(&operator.local_rows, rows as u64);
        }
        Metrics::add(&self.metrics.local_bytes, end.give(envelope.encode(), load));
        self.exchanged.set(true);
        true
    }

    /// Whether a worker is another one of this process.
    pub(crate) fn is_beside(&self, worker: u32) -> bool {
        matches!(self.peer(worker).path, Path::Queue(_))
    }

    /// Bytes of a frame's payload at most.
    pub(crate) fn payload_max(&self, to: u32) -> usize {
        self.peer(to).path.payload_max()
    }

    /// Bytes of a frame's payload at most, whichever worker it is for.
    pub(crate) fn payload_room(&self) -> usize {
        self.peers().map(|to| self.payload_max(to)).min().unwrap_or(usize::MAX)
    }

    fn peer(&self, worker: u32) -> &Peer {
        self.peers[worker as usize].as_ref().expect("a worker is not joined with itself")
    }

    fn each(&self) -> impl Iterator<Item = (u32, &Peer)> {
        self.peers.iter().enumerate().filter_map(|(i, peer)| Some((i as u32, peer.as_ref()?)))
    }
}
