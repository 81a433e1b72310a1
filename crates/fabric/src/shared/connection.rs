//! The one connection of a pair of processes, which the links of their workers share.
//!
//! The thread that finds the shared connection free drives it for all: it posts the links'
//! operations, takes what has completed or arrived, passes it to its link, and wakes that link's
//! owner. No thread waits for another: one that finds the connection taken leaves its request in
//! `due`, and the holder looks there once more after it lets go. The request is left before the
//! connection is tried and looked for after it is free, so that one of the two sees it.

use std::collections::HashMap;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use super::core::Core;
use super::network::Network;
use super::port::Port;
use super::wire::{Berth, HEADER_BYTES};
use crate::token::Token;
use crate::{Armed, Caps, FabricError, LinkId, Offer, RemoteKey};

/// Operations that a link can have outstanding; the link queues those that the connection has no
/// room for.
pub(super) const LINK_OPS_MAX: u32 = 256;

/// A connection of two processes.
pub(super) struct SharedConnection {
    /// This end's name.
    pub(super) token: Token,
    /// Where the peer finds it.
    pub(super) place: Vec<u8>,
    /// Moves the shared connection while workers sleep; without one they sleep on the shared
    /// connection themselves.
    network: Option<Arc<Network>>,
    setup: Mutex<Setup>,
    core: Mutex<Core>,
    /// Ports whose owners want something posted.
    due: Mutex<Vec<Arc<Port>>>,
    /// Threads that wait for the line's descriptor, or will in a moment.
    sleepers: AtomicU32,
    /// How often each worker of this process has driven the shared connection.
    polls: Mutex<HashMap<u32, Arc<AtomicU64>>>,
}

/// How far the connection has come.
enum Setup {
    Offered(Box<dyn Offer>),
    Joined { peer: Token, place: Vec<u8>, caps: Caps },
    Failed(String),
}

impl SharedConnection {
    pub(super) fn new(token: Token, offer: Box<dyn Offer>, network: Option<Arc<Network>>) -> Self {
        Self {
            token,
            place: offer.address(),
            network,
            setup: Mutex::new(Setup::Offered(offer)),
            core: Mutex::default(),
            due: Mutex::default(),
            sleepers: AtomicU32::new(0),
            polls: Mutex::default(),
        }
    }

    /// The peer's end, once it is connected.
    pub(super) fn joined(&self) -> Option<Token> {
        match &*self.setup.lock().unwrap_or_else(PoisonError::into_inner) {
            Setup::Joined { peer, .. } => Some(*peer),
            _ => None,
        }
    }

    /// A port for one more link; `None` when the shared connection is of no more use.
    ///
    /// # Errors
    /// When there are no descriptors left, or too many links.
    pub(super) fn port(&self, link: LinkId) -> Result<Option<Arc<Port>>, FabricError> {
        let added = self.with(Core::add);
        added.map_err(|source| FabricError::Connect { link: link.to_string(), source })
    }

    /// Makes the connection, or checks that it is the one that the peer means.
    ///
    /// # Errors
    /// When it cannot be made, or the peer means another one.
    pub(super) fn join(self: &Arc<Self>, peer: &Berth, link: LinkId) -> Result<Caps, FabricError> {
        let failed = |detail: String| FabricError::Connect {
            link: link.to_string(),
            source: std::io::Error::other(detail),
        };
        let mut setup = self.setup.lock().unwrap_or_else(PoisonError::into_inner);
        match &*setup {
            Setup::Joined { peer: joined, .. } if *joined != peer.connection => {
                let detail = "the connection that the two processes shared has ended: offer again";
                return Err(failed(detail.into()));
            }
            Setup::Joined { place, .. } if *place != peer.place => {
                return Err(FabricError::Malformed { what: "address" });
            }
            Setup::Joined { caps, .. } => return Ok(*caps),
            Setup::Failed(detail) => return Err(failed(detail.clone())),
            Setup::Offered(_) => {}
        }
        let gone = Setup::Failed("an earlier link of the two processes failed".into());
        let Setup::Offered(offer) = std::mem::replace(&mut *setup, gone) else {
            unreachable!("looked at above")
        };
        match offer.connect(&peer.place) {
            Ok(line) => {
                let caps = narrowed(line.caps());
                self.with(|core| core.raise(line));
                let (peer, place) = (peer.connection, peer.place.clone());
                *setup = Setup::Joined { peer, place, caps };
                if let Some(network) = &self.network {
                    network.add(self);
                }
                Ok(caps)
            }
            Err(error) => {
                *setup = Setup::Failed(error.to_string());
                self.lock().end();
                Err(match error {
                    FabricError::Connect { source, .. } => {
                        FabricError::Connect { link: link.to_string(), source }
                    }
                    other => other,
                })
            }
        }
    }

    /// The counter of how often this worker has driven the shared connection.
    pub(super) fn polls(&self, worker: u32) -> Arc<AtomicU64> {
        let mut polls = self.polls.lock().unwrap_or_else(PoisonError::into_inner);
        polls.entry(worker).or_default().clone()
    }

    /// Whether workers drive the shared connection when they poll.
    pub(super) fn spins(&self) -> bool {
        self.network.is_none()
    }

    /// The port has something to post.
    pub(super) fn mark(&self, port: &Arc<Port>) {
        if !port.due.swap(true, Ordering::AcqRel) {
            self.due().push(port.clone());
        }
    }

    /// Lets the shared connection make progress unless somebody else does: posts, and polls if
    /// asked to.
    pub(super) fn serve(&self, mut poll: bool) {
        loop {
            let mut core = match self.core.try_lock() {
                Ok(core) => core,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                // The holder serves `due` before and after it lets go.
                Err(TryLockError::WouldBlock) => return,
            };
            core.progress(self, poll);
            drop(core);
            poll = false;
            if self.due().is_empty() {
                return;
            }
        }
    }

    /// Does something with the shared connection, and lets it post what that brought.
    pub(super) fn with<R>(&self, act: impl FnOnce(&mut Core) -> R) -> R {
        let mut core = self.lock();
        let result = act(&mut core);
        core.progress(self, false);
        drop(core);
        if !self.due().is_empty() {
            self.serve(false);
        }
        result
    }

    /// Ends a link: takes back its keys, and tells the peer if it does not know.
    pub(super) fn close(&self, port: &Port, exports: &[RemoteKey], tell: bool) {
        self.with(|core| core.close(port, exports, tell));
        if let Some(network) = &self.network {
            network.event_fd().signal();
        }
    }

    /// Polls, if asked to, and prepares to sleep on the line's descriptor. `park` is asked whether
    /// the caller can sleep, when everything that came until it last polled was delivered; what
    /// came since makes the line ready, or its descriptor readable. A caller that may wait calls
    /// [`SharedConnection::unparked`] later, unless the event descriptor of its port has woken it.
    pub(super) fn arm(&self, poll: bool, park: impl FnOnce() -> bool) -> Armed {
        let armed = {
            let mut core = self.lock();
            core.progress(self, poll);
            let armed = core.arm();
            if armed != Some(Armed::Ready) && park() {
                self.sleepers.fetch_add(1, Ordering::Relaxed);
                armed.unwrap_or(Armed::Fd(NO_LINE))
            } else {
                Armed::Ready
            }
        };
        if !self.due().is_empty() {
            self.serve(false);
        }
        armed
    }

    /// A thread that slept on the line has woken.
    pub(super) fn unparked(&self) {
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether anybody waits for the line's descriptor. Changed by who holds the shared connection,
    /// and by those who rise: for them the descriptor may be armed in vain.
    pub(super) fn has_sleepers(&self) -> bool {
        self.sleepers.load(Ordering::Relaxed) > 0
    }

    /// Wakes the threads that sleep on the line.
    pub(super) fn rouse<'a>(&self, ports: impl Iterator<Item = &'a Arc<Port>>) {
        for port in ports {
            if port.wake() {
                self.woken();
            }
        }
        if let Some(network) = &self.network {
            network.event_fd().signal();
        }
    }

    /// A port's owner was woken by its event descriptor.
    pub(super) fn woken(&self) {
        if self.spins() {
            self.unparked();
        }
    }

    /// The line cannot be used any more: every link fails.
    pub(super) fn break_down(&self) {
        self.lock().break_down(self);
    }

    pub(super) fn take_due(&self) -> Vec<Arc<Port>> {
        std::mem::take(&mut *self.due())
    }

    fn due(&self) -> MutexGuard<'_, Vec<Arc<Port>>> {
        self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for SharedConnection {
    fn drop(&mut self) {
        if let Some(network) = &self.network {
            network.event_fd().signal();
        }
    }
}

/// Stands for the descriptor of a line that is over.
pub(super) const NO_LINE: RawFd = -1;

/// The capabilities of a link on a line.
pub(super) fn narrowed(caps: Caps) -> Caps {
    let max_send = caps.max_send.saturating_sub(HEADER_BYTES);
    Caps { max_send, max_ops: caps.max_ops.min(LINK_OPS_MAX), ..caps }
}
