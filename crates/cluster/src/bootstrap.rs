//! Bootstrap of nodes that a launcher started: how they find each other without a common parent.
//!
//! ```text
//!   each    listens, leaves its card {address, token}
//!   rank r  reads the cards of 0..r and connects with each, as its card says
//!           accepts r+1..N, who know the token of its own card
//! ```
//!
//! Every rank does the same; none waits for rank 0 in particular. A node that finds a card of an
//! earlier job is refused, or reaches no one, and looks again until the node of this job has
//! published its own. A node that dies meanwhile is forgotten by those that have met it, and they
//! wait for the next process of its rank.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs, UdpSocket};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::acceptor::Acceptor;
use crate::control::Control;
use crate::error::ClusterError;
use crate::launcher::Assignment;
use crate::mesh::{
    ANOTHER_JOB, Hello, Invitation, JOINED_ALREADY, JobToken, JoinDeadline, Peer, check_nodes,
    connect, listen,
};
use crate::rendezvous::{Card, CardExchange, host, left};
use crate::secure::{Identity, Peers, Security};

/// How a node joins the others.
#[derive(Debug, Clone)]
pub struct JoinOptions {
    /// Where it listens; `None` for the loopback address, or, where the job has other hosts, for
    /// the address of this host's name.
    pub listen: Option<SocketAddr>,
    /// The directory in which nodes publish their addresses; `None` for the one that the launcher
    /// suggests.
    pub directory: Option<PathBuf>,
    /// How long it waits for the others.
    pub limit: Duration,
    /// The directory of this node's certificate ([`certs::issue`](crate::certs::issue)); with it,
    /// nodes know each other by certificates, and what they tell each other is encrypted.
    pub certs: Option<PathBuf>,
    /// Whether it may listen beyond loopback without, where everything travels in the clear.
    pub insecure: bool,
}

impl Assignment {
    /// Connects with all other nodes of the job.
    ///
    /// # Errors
    /// When a node does not come in time, or the directory or the address cannot be used.
    pub fn join(&self, options: &JoinOptions) -> Result<Control, ClusterError> {
        self.join_or(options, &|_| ())
    }

    /// As [`join`](Self::join); `late` is called if not all have come in time, with the ranks that
    /// wait like this one, and this one, in ascending order. Until it returns this node's address
    /// stays published: of two ranks that are late at once, the second one sees the first one
    /// waiting or comes behind its call.
    ///
    /// # Errors
    /// As [`join`](Self::join).
    pub fn join_or(
        &self,
        options: &JoinOptions,
        late: &dyn Fn(&[u32]),
    ) -> Result<Control, ClusterError> {
        check_nodes(self.nodes)?;
        let deadline = JoinDeadline::of(options.limit);
        let security = match &options.certs {
            Some(directory) => {
                Security::Certificates(Arc::new(Identity::load(directory, Peers::Nodes)?))
            }
            None => Security::Token,
        };
        let listener = listen(self.address(options)?)?;
        let at = listener.local_addr().map_err(ClusterError::system("a socket's address"))?;
        let token = JobToken::random()?;
        let card = Card {
            rank: self.rank,
            nodes: self.nodes,
            at,
            process: std::process::id(),
            host: host(),
            token,
        };
        let cards = CardExchange::publish(self, options.directory.as_deref(), &card, deadline)?;
        let (rank, nodes) = (self.rank, self.nodes);
        let own = Invitation { rank, nodes, generation: 1, at, parent: 0, token, security };
        match Bootstrap::new(&listener, &own, &cards, deadline)?.run() {
            Ok(peers) => Control::start(&own, peers, None),
            Err(error) => {
                if left(deadline).is_none() {
                    late(&waiting(&own, &cards)?);
                }
                Err(error)
            }
        }
    }

    /// Where this node listens.
    fn address(&self, options: &JoinOptions) -> Result<SocketAddr, ClusterError> {
        let addr = match options.listen {
            Some(addr) => addr,
            None if self.leaves_host() => SocketAddr::new(own_address()?, 0),
            None => SocketAddr::from(([127, 0, 0, 1], 0)),
        };
        if addr.ip().is_unspecified() {
            return Err(ClusterError::NoAddress { detail: format!("{addr} is none") });
        }
        if !addr.ip().is_loopback() && options.certs.is_none() && !options.insecure {
            return Err(ClusterError::NotLoopback { addr });
        }
        Ok(addr)
    }
}

/// The connections of a node that joins the others. A node that dies meanwhile is forgotten,
/// so that the next process of its rank can take its place: all are there at once in the end.
struct Bootstrap<'a> {
    own: &'a Invitation,
    cards: &'a CardExchange,
    deadline: JoinDeadline,
    /// The ranks below this node's own, which it calls.
    below: Vec<Option<Peer>>,
    /// Those above, which call it.
    above: Acceptor<'a>,
    /// Ranks below that were met and have died since.
    lost: BTreeSet<u32>,
    /// Why the last call of a rank failed, if none has succeeded since.
    failed: Option<ClusterError>,
}

impl<'a> Bootstrap<'a> {
    fn new(
        listener: &'a TcpListener,
        own: &'a Invitation,
        cards: &'a CardExchange,
        deadline: JoinDeadline,
    ) -> Result<Self, ClusterError> {
        let below = (0..own.rank).map(|_| None).collect();
        let above = Acceptor::new(listener, own, None)?.welcoming();
        Ok(Self { own, cards, deadline, below, above, lost: BTreeSet::new(), failed: None })
    }

    /// The connections with all other nodes, by rank.
    fn run(mut self) -> Result<Vec<Option<Peer>>, ClusterError> {
        loop {
            self.call()?;
            self.forget_closed();
            let Some(rank) = self.missing(0..self.own.nodes) else {
                return Ok(self.into_peers());
            };
            if left(self.deadline).is_none() {
                return Err(self.late(rank));
            }
            self.above.turn()?;
        }
    }

    /// One of these ranks that is not connected: the lowest that has never been, or else the lowest
    /// that was lost.
    fn missing(&self, ranks: Range<u32>) -> Option<u32> {
        let missing = || ranks.clone().filter(|&rank| !self.has_met(rank));
        missing().find(|&rank| !self.has_lost(rank)).or_else(|| missing().next())
    }

    fn has_met(&self, rank: u32) -> bool {
        match self.below.get(rank as usize) {
            Some(peer) => peer.is_some(),
            None => rank == self.own.rank || self.above.has_joined(rank),
        }
    }

    fn has_lost(&self, rank: u32) -> bool {
        self.lost.contains(&rank) || self.above.has_lost(rank)
    }

    /// Connects with the missing ranks below, up to the first that cannot be found.
    fn call(&mut self) -> Result<(), ClusterError> {
        while let Some(rank) = self.missing(0..self.own.rank) {
            let Some(card) = self.cards.read(rank)? else { break };
            match call_at(&card, rank, self.own, self.deadline) {
                Ok(peer) => (self.below[rank as usize], self.failed) = (Some(peer), None),
                Err(error) => {
                    self.failed = Some(worth_another_look(error)?);
                    break;
                }
            }
        }
        Ok(())
    }

    fn forget_closed(&mut self) {
        for (rank, peer) in (0..).zip(&mut self.below) {
            if peer.take_if(|peer| peer.stream.is_closed()).is_some() {
                self.lost.insert(rank);
            }
        }
        self.above.forget_closed();
    }

    /// Says that a rank has not come in time.
    fn late(self, rank: u32) -> ClusterError {
        let seconds = self.deadline.limit.as_secs_f32();
        let join = |detail| ClusterError::Join { rank, detail };
        if self.has_lost(rank) {
            return join(format!(
                "it died while the nodes met, and has not come again within {seconds} s"
            ));
        }
        if rank > self.own.rank {
            return explain(self.above.late(rank, self.deadline), self.cards);
        }
        self.failed.unwrap_or_else(|| join(format!("{} within {seconds} s", self.cards.place())))
    }

    fn into_peers(self) -> Vec<Option<Peer>> {
        let mut peers = self.below;
        peers.resize_with(self.own.nodes as usize, || None);
        for node in self.above.into_joined() {
            let Hello { rank, process, .. } = node.hello;
            peers[rank as usize] = Some(Peer { stream: node.stream, process, inbox: Vec::new() });
        }
        peers
    }
}

/// The ranks whose cards are of nodes that live, and this one.
fn waiting(own: &Invitation, cards: &CardExchange) -> Result<Vec<u32>, ClusterError> {
    let mut waiting = Vec::new();
    for rank in 0..own.nodes {
        if rank == own.rank || cards.read(rank)?.is_some_and(|card| card.lives()) {
            waiting.push(rank);
        }
    }
    Ok(waiting)
}

/// The address by which other hosts reach this one: that of its name, or else the one that it uses
/// towards the world.
fn own_address() -> Result<IpAddr, ClusterError> {
    let name = host();
    let named = (name.as_str(), 0).to_socket_addrs().into_iter().flatten();
    let useful = |ip: &IpAddr| !ip.is_loopback() && !ip.is_unspecified();
    if let Some(ip) = named.map(|addr| addr.ip()).find(useful) {
        return Ok(ip);
    }
    // Nothing is sent: the kernel only chooses the address that it would send from.
    let towards = UdpSocket::bind(("0.0.0.0", 0)).and_then(|socket| {
        socket.connect(("192.0.2.1", 9))?;
        socket.local_addr()
    });
    match towards.map(|addr| addr.ip()) {
        Ok(ip) if useful(&ip) => Ok(ip),
        _ => Err(ClusterError::NoAddress {
            detail: format!("its name {name} has no address that other hosts can reach"),
        }),
    }
}

fn call_at(
    card: &Card,
    rank: u32,
    own: &Invitation,
    deadline: JoinDeadline,
) -> Result<Peer, ClusterError> {
    let wrong = |detail: String| ClusterError::Join { rank, detail };
    if (card.rank, card.nodes) != (rank, own.nodes) {
        return Err(wrong(format!("it is node {} of {}", card.rank, card.nodes)));
    }
    let here = host();
    if card.at.ip().is_loopback() && card.host != here {
        let detail = format!("it listens on {} of host {}, this is {here}", card.at, card.host);
        return Err(wrong(detail));
    }
    let hello = Hello::new(&Invitation { token: card.token, ..own.clone() }, own.at.port());
    let (peer, _) = connect(card.at, rank, hello, &own.security, deadline)?;
    Ok(Peer { process: card.process, ..peer })
}

/// Why a node is refused for now: by one of an earlier job, or by one that does not know yet that
/// the last process of this rank has died.
const TEMPORARY: [&str; 2] = [ANOTHER_JOB, JOINED_ALREADY];

/// Gives the error back if the next look may find another node.
fn worth_another_look(error: ClusterError) -> Result<ClusterError, ClusterError> {
    match &error {
        ClusterError::Refused { reason, .. } if !TEMPORARY.contains(&reason.as_str()) => Err(error),
        ClusterError::Stranger { .. } => Err(error),
        _ => Ok(error),
    }
}

/// Says where a node that never came was looked for.
fn explain(error: ClusterError, cards: &CardExchange) -> ClusterError {
    match error {
        ClusterError::Join { rank, detail } => {
            let detail = match cards.read(rank) {
                Ok(Some(card)) => format!("{detail}; it should be at {} of {}", card.at, card.host),
                Ok(None) => format!("{detail}, and {}", cards.place()),
                Err(_) => detail,
            };
            ClusterError::Join { rank, detail }
        }
        error => error,
    }
}

#[cfg(test)]
mod tests;
