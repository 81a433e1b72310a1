//! One connection for all links of a pair of processes (Q3): a fabric over any other.
//!
//! ```text
//!   worker 0 ─ link ─ port ─┐                                  ┌─ port ─ link ─ worker 3
//!   worker 1 ─ link ─ port ─┼─ trunk ─── connection ─── trunk ─┼─ port ─ link ─ worker 4
//!   worker 2 ─ link ─ port ─┘       of the inner fabric        └─ port ─ link ─ worker 5
//! ```
//!
//! A link keeps the contract of the crate as if it had a connection of its own: its own queue, its
//! own receives, its own keys, its own end. What the trunk has no room for waits at the link, and
//! is posted by whoever drives the trunk next. Notices carry the number of the peer's port; where
//! the caller's number does not fit beside it, a message brings it (`wire`). Credits of many links
//! travel in one message.
//!
//! **Who drives the trunk.** Without a [`Network`] the workers do when they poll: one that finds it
//! free moves it for all and wakes those it found something for (S4, `trunk`). With one, its thread
//! does, and workers only post (Q4).
//!
//! **One link's end** does not disturb the others: its keys are retired ([`Endpoint::retire`]), and
//! the peer is told. What it does not survive, as no connection does: a key that was *revoked* and
//! is used all the same; on a device also a write that is under way to a link that was closed, for
//! the device ends the connection. Then every link of the trunk is told once.
//!
//! **Limits.** A trunk serves 4096 links in its life; the next offer fails, and says so. Links are
//! made on a trunk as long as both ends use it; where one has left it, they are made on a new one.
//! Workers of the same process are joined by the inner fabric directly.

mod core;
mod endpoint;
mod network;
mod port;
mod trunk;
mod wire;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::multicast::Multicast;
use crate::pulse::Pulses;
use crate::token::Token;
use crate::{Caps, Endpoint, Fabric, FabricError, LinkId, Offer, Slab};
use endpoint::SharedEndpoint;
use port::Port;
use trunk::Trunk;
use wire::{Address, Berth, Mark};

pub use network::Network;
pub(crate) use wire::said_on_a_trunk;

/// Tells in which process a worker is.
pub type ProcessOf = Arc<dyn Fn(u32) -> u32 + Send + Sync>;

/// A fabric whose links share connections. See the head of the module.
pub struct SharedFabric {
    me: Weak<SharedFabric>,
    inner: Arc<dyn Fabric>,
    process_of: ProcessOf,
    network: Option<Arc<Network>>,
    /// By process of this end and of the peer.
    trunks: Mutex<HashMap<(u32, u32), Pair>>,
}

/// The trunks of two processes. They live as long as their links.
#[derive(Default)]
struct Pair {
    /// On which links are offered.
    current: Weak<Trunk>,
    /// Beside one that is joined: the one that takes its place if the peer is on it no more.
    next: Weak<Trunk>,
}

impl SharedFabric {
    /// Links over `inner`; `network` moves them where workers shall not.
    pub fn new(
        inner: Arc<dyn Fabric>,
        process_of: ProcessOf,
        network: Option<Arc<Network>>,
    ) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            inner,
            process_of,
            network,
            trunks: Mutex::default(),
        })
    }

    /// A place on the trunk of two processes, and where that is joined one on the next.
    fn seats(&self, link: LinkId, ends: (u32, u32)) -> Result<(Seat, Option<Seat>), FabricError> {
        let mut trunks = self.trunks.lock().unwrap_or_else(PoisonError::into_inner);
        let pair = trunks.entry(ends).or_default();
        let seat = match Seat::on(&pair.current, link)? {
            Some(seat) => seat,
            None => {
                let seat = self.seat_on(&mut pair.next, link, ends)?;
                *pair = Pair { current: Arc::downgrade(&seat.trunk), next: Weak::new() };
                seat
            }
        };
        let spare = match seat.joined {
            Some(_) => Some(self.seat_on(&mut pair.next, link, ends)?),
            None => None,
        };
        Ok((seat, spare))
    }

    /// A place on this trunk, or on a fresh one that takes its place.
    fn seat_on(
        &self,
        trunk: &mut Weak<Trunk>,
        link: LinkId,
        ends: (u32, u32),
    ) -> Result<Seat, FabricError> {
        if let Some(seat) = Seat::on(trunk, link)? {
            return Ok(seat);
        }
        let failed = |source| FabricError::Connect { link: link.to_string(), source };
        let token = Token::random().map_err(failed)?;
        let offer = self.inner.offer(LinkId { local: ends.0, remote: ends.1 })?;
        let fresh = Arc::new(Trunk::new(token, offer, self.network.clone()));
        *trunk = Arc::downgrade(&fresh);
        match Seat::on(trunk, link)? {
            Some(seat) => Ok(seat),
            None => unreachable!("a new trunk takes links"),
        }
    }

    /// From now on links are offered on the trunk that was the next.
    fn advance(&self, ends: (u32, u32), next: &Arc<Trunk>) {
        let mut trunks = self.trunks.lock().unwrap_or_else(PoisonError::into_inner);
        let pair = trunks.entry(ends).or_default();
        if std::ptr::eq(pair.next.as_ptr(), Arc::as_ptr(next)) {
            pair.current = std::mem::take(&mut pair.next);
        }
    }
}

impl Fabric for SharedFabric {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn caps(&self) -> Caps {
        trunk::narrowed(self.inner.caps())
    }

    fn slab(&self, bytes: usize) -> Result<Slab, FabricError> {
        self.inner.slab(bytes)
    }

    fn pulses(&self) -> Option<&Pulses> {
        self.inner.pulses()
    }

    fn multicast(&self) -> Option<&dyn Multicast> {
        self.inner.multicast()
    }

    fn offer(&self, link: LinkId) -> Result<Box<dyn Offer>, FabricError> {
        let ends = ((self.process_of)(link.local), (self.process_of)(link.remote));
        if ends.0 == ends.1 {
            return self.inner.offer(link);
        }
        let (seat, spare) = self.seats(link, ends)?;
        Ok(Box::new(SharedOffer { fabric: self.me.clone(), ends, link, seat, spare }))
    }
}

/// A port that waits for its peer's.
struct Seat {
    trunk: Arc<Trunk>,
    port: Arc<Port>,
    /// The peer's end of the trunk, if it was joined already.
    joined: Option<Token>,
    connected: bool,
}

impl Seat {
    /// A port of this trunk, if it takes links.
    fn on(trunk: &Weak<Trunk>, link: LinkId) -> Result<Option<Self>, FabricError> {
        let Some(trunk) = trunk.upgrade() else { return Ok(None) };
        let joined = trunk.joined();
        let port = trunk.port(link)?;
        Ok(port.map(|port| Self { trunk, port, joined, connected: false }))
    }

    fn berth(&self) -> Berth {
        Berth {
            trunk: self.trunk.token,
            joined: self.joined,
            port: self.port.number,
            place: self.trunk.place.clone(),
        }
    }

    /// Joins the trunk with the peer's.
    fn connect(mut self, peer: &Berth, link: LinkId) -> Result<SharedEndpoint, FabricError> {
        let caps = self.trunk.join(peer, link)?;
        self.connected = true;
        self.port.outgoing().peer = Some(peer.port);
        let theirs = Mark::new(&peer.trunk, peer.port);
        let (trunk, port) = (self.trunk.clone(), self.port.clone());
        Ok(SharedEndpoint::new(trunk, port, caps, link.local, theirs))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if !self.connected {
            self.trunk.close(&self.port, &[], false);
            self.trunk.with(|core| core.forget(&self.port));
        }
    }
}

/// One side of a link that is being made.
struct SharedOffer {
    fabric: Weak<SharedFabric>,
    ends: (u32, u32),
    link: LinkId,
    seat: Seat,
    spare: Option<Seat>,
}

impl Offer for SharedOffer {
    fn address(&self) -> Vec<u8> {
        let spare = self.spare.as_ref().map(Seat::berth);
        Address { link: self.link, berth: self.seat.berth(), spare }.encode()
    }

    fn connect(self: Box<Self>, peer: &[u8]) -> Result<Box<dyn Endpoint>, FabricError> {
        let Address { link, berth, spare } = Address::decode(peer)?;
        if (link.local, link.remote) != (self.link.remote, self.link.local) {
            return Err(FabricError::Malformed { what: "address: it is of another link" });
        }
        // Both sides see the same of both, and so decide the same. A trunk that one of them knew to
        // be joined is the one that the other has offered on, unless that has changed since.
        let same = self.seat.joined.is_none_or(|theirs| theirs == berth.trunk)
            && berth.joined.is_none_or(|ours| ours == self.seat.trunk.token);
        if same {
            return Ok(Box::new(self.seat.connect(&berth, self.link)?));
        }
        let theirs = spare.as_ref().unwrap_or(&berth);
        let seat = match self.spare {
            None => self.seat,
            Some(spare) => {
                if let Some(fabric) = self.fabric.upgrade() {
                    fabric.advance(self.ends, &spare.trunk);
                }
                spare
            }
        };
        Ok(Box::new(seat.connect(theirs, self.link)?))
    }
}
