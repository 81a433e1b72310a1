//! One connection for all links of a pair of processes (Q3): a fabric over any other.
//!
//! ```text
//!   worker 0 ─ link ─ port ─┐                                   ┌─ port ─ link ─ worker 3
//!   worker 1 ─ link ─ port ─┼─── one connection of the fabric ──┼─ port ─ link ─ worker 4
//!   worker 2 ─ link ─ port ─┘               within              └─ port ─ link ─ worker 5
//! ```
//!
//! A link keeps the contract of the crate as if it had a connection of its own: its own queue, its
//! own receives, its own keys, its own end. Operations for which the shared connection has no room
//! wait at the link; the next driver posts them. Notices carry the number of the peer's port; where
//! the caller's number does not fit beside it, a message brings it (`wire`). Credits of many links
//! travel in one message.
//!
//! **Who drives the shared connection.** Without a [`Network`] the workers do when they poll: one
//! that finds it free moves it for all and wakes those it found something for (S4, `connection`).
//! With one, its thread does, and workers only post (Q4).
//!
//! **Who sleeps on it.** Of the workers that drive and have nothing to do one watches the line; the
//! others are woken by it, each on a descriptor of its own ([`sleep`]). One thread polls all links
//! of a worker, as they have their sleep in common.
//!
//! **One link's end** does not disturb the others: its keys are retired ([`Endpoint::retire`]), and
//! the peer is told. Like any connection, it does not survive the use of a key that was
//! *revoked*; on a device also a write that is under way to a link that was closed, for the device
//! ends the connection. Then every link of the shared connection fails once.
//!
//! **Published ranges** are read by all links of a shared connection as long as one of them stands
//! at the owner's end: a link that the owner has closed reads them no more when its end knows.
//!
//! **Limits.** A shared connection serves 4096 links in its life; the next offer fails, and says
//! so. Links are made on a shared connection as long as both ends use it; where one has left it,
//! they are made on a new one. Workers of the same process are joined by the inner fabric directly.

mod connection;
mod core;
mod endpoint;
mod network;
mod port;
mod sleep;
mod wire;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::multicast::Multicast;
use crate::pulse::Pulses;
use crate::token::Token;
use crate::{Caps, Endpoint, Fabric, FabricError, LinkId, Offer, RemoteKey, Slab, SlabRange};
use connection::SharedConnection;
use endpoint::SharedEndpoint;
use port::Port;
use wire::{Address, Berth, Mark};

pub use network::Network;
pub(crate) use wire::sent_on_shared_connection;

/// Tells in which process a worker is.
pub type ProcessOf = Arc<dyn Fn(u32) -> u32 + Send + Sync>;

/// A fabric whose links share connections. See the head of the module.
pub struct SharedFabric {
    me: Weak<SharedFabric>,
    inner: Arc<dyn Fabric>,
    process_of: ProcessOf,
    network: Option<Arc<Network>>,
    /// By process of this end and of the peer.
    connections: Mutex<HashMap<(u32, u32), Pair>>,
}

/// The shared connections of two processes. They live as long as their links.
#[derive(Default)]
struct Pair {
    /// On which links are offered.
    current: Weak<SharedConnection>,
    /// Beside one that is joined: the one that takes its place if the peer is on it no more.
    next: Weak<SharedConnection>,
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
            connections: Mutex::default(),
        })
    }

    /// A place on the shared connection of two processes, and where that is joined one on the next.
    fn seats(&self, link: LinkId, ends: (u32, u32)) -> Result<(Seat, Option<Seat>), FabricError> {
        let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        let pair = connections.entry(ends).or_default();
        let seat = match Seat::on(&pair.current, link)? {
            Some(seat) => seat,
            None => {
                let seat = self.seat_on(&mut pair.next, link, ends)?;
                *pair = Pair { current: Arc::downgrade(&seat.connection), next: Weak::new() };
                seat
            }
        };
        let spare_seat = match seat.joined {
            Some(_) => Some(self.seat_on(&mut pair.next, link, ends)?),
            None => None,
        };
        Ok((seat, spare_seat))
    }

    /// A place on this shared connection, or on a fresh one that takes its place.
    fn seat_on(
        &self,
        connection: &mut Weak<SharedConnection>,
        link: LinkId,
        ends: (u32, u32),
    ) -> Result<Seat, FabricError> {
        if let Some(seat) = Seat::on(connection, link)? {
            return Ok(seat);
        }
        let failed = |source| FabricError::Connect { link: link.to_string(), source };
        let token = Token::random().map_err(failed)?;
        let offer = self.inner.offer(LinkId { local: ends.0, remote: ends.1 })?;
        let fresh = Arc::new(SharedConnection::new(token, offer, self.network.clone()));
        *connection = Arc::downgrade(&fresh);
        match Seat::on(connection, link)? {
            Some(seat) => Ok(seat),
            None => unreachable!("a new connection takes links"),
        }
    }

    /// From now on links are offered on the shared connection that was the next.
    fn advance(&self, ends: (u32, u32), next: &Arc<SharedConnection>) {
        let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        let pair = connections.entry(ends).or_default();
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
        connection::narrowed(self.inner.caps())
    }

    fn slab(&self, bytes: usize) -> Result<Slab, FabricError> {
        self.inner.slab(bytes)
    }

    fn publish(&self, range: &SlabRange) -> Result<RemoteKey, FabricError> {
        self.inner.publish(range)
    }

    fn unpublish(&self, key: RemoteKey) {
        self.inner.unpublish(key);
    }

    fn seal(&self, slab: Slab) -> Result<Slab, FabricError> {
        self.inner.seal(slab)
    }

    fn check_limits(&self, slabs: u64) -> Result<(), FabricError> {
        self.inner.check_limits(slabs)
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
        let (seat, spare_seat) = self.seats(link, ends)?;
        Ok(Box::new(SharedOffer { fabric: self.me.clone(), ends, link, seat, spare_seat }))
    }
}

/// A port that waits for its peer's.
struct Seat {
    connection: Arc<SharedConnection>,
    port: Arc<Port>,
    /// The peer's end of the shared connection, if it was joined already.
    joined: Option<Token>,
    connected: bool,
}

impl Seat {
    /// A port of this shared connection, if it takes links.
    fn on(connection: &Weak<SharedConnection>, link: LinkId) -> Result<Option<Self>, FabricError> {
        let Some(connection) = connection.upgrade() else { return Ok(None) };
        let joined = connection.joined();
        let port = connection.port(link)?;
        Ok(port.map(|port| Self { connection, port, joined, connected: false }))
    }

    fn berth(&self) -> Berth {
        Berth {
            connection: self.connection.token,
            joined: self.joined,
            port: self.port.number,
            place: self.connection.place.clone(),
        }
    }

    /// Joins the shared connection with the peer's.
    fn connect(mut self, peer: &Berth, link: LinkId) -> Result<SharedEndpoint, FabricError> {
        let caps = self.connection.join(peer, link)?;
        self.connected = true;
        self.port.outgoing().peer = Some(peer.port);
        let theirs = Mark::new(&peer.connection, peer.port);
        let (connection, port) = (self.connection.clone(), self.port.clone());
        Ok(SharedEndpoint::new(connection, port, caps, theirs))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if !self.connected {
            self.connection.close(&self.port, &[], false);
            self.connection.with(|core| core.forget(&self.port));
        }
    }
}

/// One side of a link that is being made.
struct SharedOffer {
    fabric: Weak<SharedFabric>,
    ends: (u32, u32),
    link: LinkId,
    seat: Seat,
    spare_seat: Option<Seat>,
}

impl Offer for SharedOffer {
    fn address(&self) -> Vec<u8> {
        let spare_berth = self.spare_seat.as_ref().map(Seat::berth);
        Address { link: self.link, berth: self.seat.berth(), spare_berth }.encode()
    }

    fn connect(self: Box<Self>, peer: &[u8]) -> Result<Box<dyn Endpoint>, FabricError> {
        let Address { link, berth, spare_berth } = Address::decode(peer)?;
        if (link.local, link.remote) != (self.link.remote, self.link.local) {
            return Err(FabricError::Malformed { what: "address: it is of another link" });
        }
        // Both sides see the same of both, and so decide the same. A shared connection that one of
        // them knew to be joined is the one that the other has offered on, unless that has changed
        // since.
        let same = self.seat.joined.is_none_or(|theirs| theirs == berth.connection)
            && berth.joined.is_none_or(|ours| ours == self.seat.connection.token);
        if same {
            return Ok(Box::new(self.seat.connect(&berth, self.link)?));
        }
        let theirs = spare_berth.as_ref().unwrap_or(&berth);
        let seat = match self.spare_seat {
            None => self.seat,
            Some(spare_seat) => {
                if let Some(fabric) = self.fabric.upgrade() {
                    fabric.advance(self.ends, &spare_seat.connection);
                }
                spare_seat
            }
        };
        Ok(Box::new(seat.connect(theirs, self.link)?))
    }
}
