//! The connections of a server with others of its pool, which hold extents of its tables.
//!
//! ```text
//!   control thread ─ hold, release ─▶ a thread for each other server ══ messages ══▶ that server
//!                  ◀─ held, lost ────
//! ```
//!
//! Servers in memory hold extents for as long as the connection stands: it is made for the first
//! load, says each second that this server lives, and is not made again when it has ended: the home
//! gives the next one another number. A server that saves introduces itself, may do so again, and
//! may claim again on a connection that stands.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use fabric::EventFd;
use pool::PoolError;
use pool::home::{HoldRequest, Introduction, PeerId};
use pool::wire::{ClientRequest, ServerPlace, ServerResponse};

use super::mover::Event;
use crate::pool::client::{ControlLink, PoolOptions};

/// How often a server says that it lives.
const BEAT: Duration = Duration::from_secs(1);
/// Extents in one message at most: a longer message would wait until it is its turn among those of
/// loaders, and tables would be lost with a connection that waits for too long.
const EXTENTS_AT_A_TIME: usize = 4096;

/// A task for the thread of a connection.
enum LinkTask {
    Hold { load: u64, extents: Vec<(u32, u32)>, unused: Vec<u32> },
    Release(Vec<u32>),
    Claim(Box<Introduction>),
}

/// Sends an event.
type Tell<'a> = &'a dyn Fn(Event);

/// The connections; their threads end when this is dropped.
pub(super) struct Links {
    /// The name of this server.
    name: String,
    certs: Option<PathBuf>,
    events: Sender<Event>,
    signal: Arc<EventFd>,
    /// By server: the number of the connection, and its tasks. Those that have ended stay: what is
    /// sent to them is dropped.
    peers: HashMap<PeerId, (u64, Sender<LinkTask>)>,
}

impl Links {
    /// Without connections; `signal` is signalled after each event.
    pub(super) fn new(
        name: String,
        certs: Option<PathBuf>,
        events: Sender<Event>,
        signal: Arc<EventFd>,
    ) -> Self {
        Self { name, certs, events, signal, peers: HashMap::new() }
    }

    /// Has another server hold extents; an event has the outcome.
    pub(super) fn hold(&mut self, request: HoldRequest) {
        let HoldRequest { peer, place, load, extents, unused } = request;
        let tasks = match self.peers.get(&peer) {
            Some((_, tasks)) => tasks.clone(),
            None => match self.connect(peer, place) {
                Ok(tasks) => tasks,
                Err(error) => return self.tell(Event::PeerLost(peer, 0, error.to_string())),
            },
        };
        // A thread that has ended has sent an event.
        let _ = tasks.send(LinkTask::Hold { load, extents, unused });
    }

    /// Has another server release extents.
    pub(super) fn release(&self, peer: PeerId, extents: Vec<u32>) {
        if let Some((_, tasks)) = self.peers.get(&peer) {
            let _ = tasks.send(LinkTask::Release(extents));
        }
    }

    fn connect(&mut self, peer: PeerId, place: ServerPlace) -> std::io::Result<Sender<LinkTask>> {
        let (options, name) = (self.options(&place.address), self.name.clone());
        self.start(peer, 0, move |tell, received| {
            let mut link = connected(&place, &options)?;
            serve(&mut link, received, peer, &name, tell)
        })
    }

    /// Introduces this server to another one that saves, or claims again on the connection of that
    /// number, behind what was asked there before; events tell how far that has come.
    pub(super) fn introduce(&mut self, of: Introduction) {
        if let Some((number, tasks)) = self.peers.get(&of.peer)
            && *number >= of.link
        {
            // Nothing is said on a connection that has ended: its thread has sent an event.
            if *number == of.link {
                let _ = tasks.send(LinkTask::Claim(Box::new(of)));
            }
            return;
        }
        let options: Vec<PoolOptions> = of.addresses.iter().map(|at| self.options(at)).collect();
        let (name, peer, number) = (self.name.clone(), of.peer, of.link);
        let started = self.start(peer, number, move |tell, received| {
            let mut link = reached(of.of, &options)?;
            claim(&mut link, &of, &name, tell)?;
            serve(&mut link, received, peer, &name, tell)
        });
        if let Err(error) = started {
            self.tell(Event::PeerLost(peer, number, error.to_string()));
        }
    }

    fn options(&self, address: &str) -> PoolOptions {
        let mut options = PoolOptions::new(vec![address.to_owned()]);
        options.certs.clone_from(&self.certs);
        options
    }

    /// Starts the thread of a connection, in place of one that there may be: that ends when it has
    /// done what it was told.
    fn start(
        &mut self,
        peer: PeerId,
        number: u64,
        run: impl FnOnce(Tell<'_>, &Receiver<LinkTask>) -> Result<(), PoolError> + Send + 'static,
    ) -> std::io::Result<Sender<LinkTask>> {
        let (tasks, received) = channel();
        self.peers.insert(peer, (number, tasks.clone()));
        let (events, signal) = (self.events.clone(), Arc::clone(&self.signal));
        std::thread::Builder::new().name("link".into()).spawn(move || {
            let tell = |event| {
                // The server may have ended meanwhile.
                let _ = events.send(event);
                signal.signal();
            };
            if let Err(error) = run(&tell, &received) {
                // The caller names the server.
                let reason = match error {
                    PoolError::Lost { reason, .. } => reason,
                    error => error.to_string(),
                };
                tell(Event::PeerLost(peer, number, reason));
            }
        })?;
        Ok(tasks)
    }

    fn tell(&self, event: Event) {
        let _ = self.events.send(event);
        self.signal.signal();
    }
}

/// Connects with the server that a loader has named, and with no other.
fn connected(place: &ServerPlace, options: &PoolOptions) -> Result<ControlLink, PoolError> {
    let link = ControlLink::connect(&place.address, options)?;
    if link.name() != place.name || link.incarnation() != place.incarnation {
        let (server, reason) = (place.name.clone(), "another one is in its place".to_owned());
        return Err(PoolError::Lost { server, reason });
    }
    Ok(link)
}

/// Connects with the server of an identity, at the first of these addresses where it is.
fn reached(identity: u64, options: &[PoolOptions]) -> Result<ControlLink, PoolError> {
    let reason = "nobody has said where it is".to_owned();
    let mut error = PoolError::Lost { server: String::new(), reason };
    for options in options {
        let Some(address) = options.addresses.first() else { continue };
        match ControlLink::connect(address, options) {
            Ok(link) if link.identity() == identity => return Ok(link),
            Ok(link) => {
                let (server, reason) = (link.name().to_owned(), "it has another directory");
                error = PoolError::Lost { server, reason: reason.to_owned() };
            }
            Err(failed) => error = failed,
        }
    }
    Err(error)
}

/// Claims the extents of this server, and tells which of them are not there.
///
/// # Errors
/// When the other server is gone, or refuses.
fn claim(
    link: &mut ControlLink,
    of: &Introduction,
    name: &str,
    tell: Tell<'_>,
) -> Result<(), PoolError> {
    let (mut missing, mut rest) = (vec![], &of.extents[..]);
    loop {
        let (some, behind) = rest.split_at(rest.len().min(EXTENTS_AT_A_TIME));
        let (identity, name, extents) = (of.identity, name.to_owned(), some.to_vec());
        let last = behind.is_empty();
        let (link_number, all) = (of.link, last && of.all);
        let request =
            ClientRequest::Claim { identity, name, link: link_number, extents, last: all };
        match link.call(&request)? {
            ServerResponse::Missing(some) => missing.extend(some),
            _ => return Err(PoolError::Malformed { what: "answer" }),
        }
        if last {
            let address = link.address().to_owned();
            tell(Event::Introduced(of.peer, of.link, address, missing));
            return Ok(());
        }
        rest = behind;
    }
}

/// Does tasks in order until there are no more.
///
/// # Errors
/// When the other server is gone.
fn serve(
    link: &mut ControlLink,
    tasks: &Receiver<LinkTask>,
    peer: PeerId,
    name: &str,
    tell: Tell<'_>,
) -> Result<(), PoolError> {
    let held = |load, held| tell(Event::Held(load, peer, held));
    loop {
        match tasks.recv_timeout(BEAT) {
            Ok(LinkTask::Hold { load, extents, unused }) => {
                match hold(link, load, &extents, &unused) {
                    Ok(()) => held(load, Ok(())),
                    Err(lost @ PoolError::Lost { .. }) => return Err(lost),
                    Err(error) => held(load, Err(error.to_string())),
                }
            }
            Ok(LinkTask::Release(extents)) => {
                for some in extents.chunks(EXTENTS_AT_A_TIME) {
                    link.call(&ClientRequest::Release { extents: some.to_vec() })?;
                }
            }
            Ok(LinkTask::Claim(of)) => claim(link, &of, name, tell)?,
            Err(RecvTimeoutError::Timeout) => drop(link.call(&ClientRequest::Beat)?),
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
    }
}

/// Has extents held, in messages of a bounded length. Where one is refused the home releases all.
fn hold(
    link: &mut ControlLink,
    load: u64,
    extents: &[(u32, u32)],
    unused: &[u32],
) -> Result<(), PoolError> {
    requests(load, extents, unused).try_for_each(|request| link.call(&request).map(drop))
}

/// The messages of [`hold`]. Extents that no version has come first: they are freed whether the
/// others are there or not.
fn requests(
    load: u64,
    extents: &[(u32, u32)],
    unused: &[u32],
) -> impl Iterator<Item = ClientRequest> {
    let unused = unused.chunks(EXTENTS_AT_A_TIME).map(move |some| (vec![], some.to_vec()));
    let held = extents.chunks(EXTENTS_AT_A_TIME).map(|some| (some.to_vec(), vec![]));
    unused.chain(held).map(move |(extents, unused)| ClientRequest::Hold { load, extents, unused })
}

#[cfg(test)]
mod tests {
    use super::super::clients::SHORT_BYTES_MAX;
    use super::*;

    #[test]
    fn a_connection_that_has_ended_is_not_made_again() {
        // Nobody listens there any more.
        let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let (name, address) = ("m1".into(), address.to_string());
        let place = ServerPlace { name, address, identity: 1, incarnation: 1 };
        let hold = |load| HoldRequest {
            peer: 1,
            place: place.clone(),
            load,
            extents: vec![(1, 1)],
            unused: vec![],
        };
        let (events, received) = channel();
        let mut links = Links::new("m0".into(), None, events, Arc::new(EventFd::new().unwrap()));
        links.hold(hold(1));
        assert!(matches!(received.recv(), Ok(Event::PeerLost(1, 0, _))));
        links.hold(hold(2));
        drop(links);
        assert!(received.recv().is_err(), "no thread is left, and none has said anything");
    }

    #[test]
    fn all_extents_are_named_once_in_messages_that_wait_for_no_turn() {
        for (held, unused) in [(0, 0), (1, 0), (0, 9000), (4096, 4097), (9000, 3)] {
            let extents: Vec<(u32, u32)> = (0..held).map(|number| (number, 1)).collect();
            let unused: Vec<u32> = (0..unused).map(|number| number + held).collect();
            let (mut all_held, mut all_unused) = (vec![], vec![]);
            for request in requests(7, &extents, &unused) {
                assert!(request.encode().len() <= SHORT_BYTES_MAX);
                let ClientRequest::Hold { load: 7, extents, unused } = request else {
                    panic!("{request:?}");
                };
                all_held.extend(extents);
                all_unused.extend(unused);
            }
            assert_eq!((all_held, all_unused), (extents, unused));
        }
    }
}
