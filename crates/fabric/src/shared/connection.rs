//! The one connection of a pair of processes, which the links of their workers share.
//!
//! The thread that finds the shared connection free drives it for all: it posts the links'
//! operations, takes what has completed or arrived, passes it to its link, and wakes that link's
//! owner. No thread waits for another: one that finds the connection taken leaves its request in
//! `due`, and the holder looks there once more after it lets go. The request is left before the
//! connection is tried and looked for after it is free, so that one of the two sees it.

use std::collections::HashMap;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use super::core::Core;
use super::network::Network;
use super::port::Port;
use super::sleep::Parker;
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
    /// The network's thread waits for the line's descriptor, or will in a moment.
    sleeps: AtomicBool,
    /// By worker of this process.
    parkers: Mutex<HashMap<u32, Arc<Parker>>>,
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
            sleeps: AtomicBool::new(false),
            parkers: Mutex::default(),
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
        let parker = self.parker(link.local);
        let added = self.with(|core| core.add(parker));
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

    fn parker(&self, worker: u32) -> Arc<Parker> {
        let mut parkers = self.parkers.lock().unwrap_or_else(PoisonError::into_inner);
        parkers.entry(worker).or_default().clone()
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
        self.serve_due();
        result
    }

    /// Ends a link: takes back its keys, and tells the peer if it does not know.
    pub(super) fn close(&self, port: &Port, exports: &[RemoteKey], tell: bool) {
        self.with(|core| core.close(port, exports, tell));
        self.rouse_thread();
    }

    /// Polls, if asked to, and lets the owner of a port sleep, if nothing has come for it: what
    /// comes from now on makes the descriptor that this gives readable. Workers that drive call it,
    /// and [`Parker::rise`] behind the sleep.
    pub(super) fn arm(&self, poll: bool, port: &Port) -> Armed {
        let armed = self.lock().lay_down(self, poll, port);
        self.serve_due();
        armed
    }

    /// Polls, and lets the network's thread sleep on the line's descriptor until
    /// [`SharedConnection::risen`].
    pub(super) fn arm_thread(&self) -> Armed {
        let armed = {
            let mut core = self.lock();
            core.progress(self, true);
            let armed = core.arm();
            self.sleeps.store(armed != Some(Armed::Ready), Ordering::Relaxed);
            armed.unwrap_or(Armed::Fd(NO_LINE))
        };
        self.serve_due();
        armed
    }

    /// The network's thread has woken.
    pub(super) fn risen(&self) {
        self.sleeps.store(false, Ordering::Relaxed);
    }

    /// Whether the network's thread waits for the line's descriptor. Changed by who holds the
    /// shared connection, and by the thread when it has woken: then it is armed in vain.
    pub(super) fn has_sleeping_thread(&self) -> bool {
        self.sleeps.load(Ordering::Relaxed)
    }

    /// Wakes the network's thread.
    pub(super) fn rouse_thread(&self) {
        if let Some(network) = &self.network {
            network.event_fd().signal();
        }
    }

    fn serve_due(&self) {
        if !self.due().is_empty() {
            self.serve(false);
        }
    }

    /// The line cannot be used any more: every link fails.
    pub(super) fn break_down(&self) {
        self.lock().break_down();
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
        self.rouse_thread();
    }
}

/// Stands for the descriptor of a line that is over.
pub(super) const NO_LINE: RawFd = -1;

/// The capabilities of a link on a line.
pub(super) fn narrowed(caps: Caps) -> Caps {
    let max_send = caps.max_send.saturating_sub(HEADER_BYTES);
    Caps { max_send, max_ops: caps.max_ops.min(LINK_OPS_MAX), ..caps }
}
