//! The connections of a server with others of its pool, which hold extents of its tables.
//!
//! ```text
//!   control thread ─ hold, release ─▶ a thread for each other server ══ messages ══▶ that server
//!                  ◀─ held, lost ────
//! ```
//!
//! A connection is what those servers hold extents for: it is made for the first load, says each
//! second that this server lives, and is not made again when it has ended.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use fabric::EventFd;
use pool::PoolError;
use pool::home::{HoldRequest, PeerId};
use pool::wire::{ClientRequest, KEYS_MAX, ServerPlace};

use super::mover::Event;
use crate::pool::client::{ControlLink, PoolOptions};

/// How often a server says that it lives.
const BEAT: Duration = Duration::from_secs(1);

/// A task for the thread of a connection.
enum LinkTask {
    Hold { load: u64, extents: Vec<(u32, u32)>, unused: Vec<u32> },
    Release(Vec<u32>),
}

/// The connections; their threads end when this is dropped.
pub(super) struct Links {
    certs: Option<PathBuf>,
    events: Sender<Event>,
    signal: Arc<EventFd>,
    peers: HashMap<PeerId, Sender<LinkTask>>,
}

impl Links {
    /// Without connections; `signal` is signalled after each event.
    pub(super) fn new(certs: Option<PathBuf>, events: Sender<Event>, signal: Arc<EventFd>) -> Self {
        Self { certs, events, signal, peers: HashMap::new() }
    }

    /// Has another server hold extents, which is told by an event.
    pub(super) fn hold(&mut self, request: HoldRequest) {
        let HoldRequest { peer, place, load, extents, unused } = request;
        let tasks = match self.peers.get(&peer) {
            Some(tasks) => tasks.clone(),
            None => match self.connect(peer, place) {
                Ok(tasks) => tasks,
                Err(error) => return self.tell(Event::PeerLost(peer, error.to_string())),
            },
        };
        // A thread that has ended has said so.
        let _ = tasks.send(LinkTask::Hold { load, extents, unused });
    }

    /// Has another server release extents.
    pub(super) fn release(&self, peer: PeerId, extents: Vec<u32>) {
        if let Some(tasks) = self.peers.get(&peer) {
            let _ = tasks.send(LinkTask::Release(extents));
        }
    }

    /// The connection with another server has ended.
    pub(super) fn forget(&mut self, peer: PeerId) {
        self.peers.remove(&peer);
    }

    fn connect(&mut self, peer: PeerId, place: ServerPlace) -> std::io::Result<Sender<LinkTask>> {
        let (tasks, received) = channel();
        let mut options = PoolOptions::new(vec![place.address.clone()]);
        options.certs.clone_from(&self.certs);
        let (events, signal) = (self.events.clone(), Arc::clone(&self.signal));
        std::thread::Builder::new().name("link".into()).spawn(move || {
            let tell = |event| {
                // The server may have ended meanwhile.
                let _ = events.send(event);
                signal.signal();
            };
            let ended = connected(&place, &options).and_then(|mut link| {
                serve(&mut link, &received, &|load, held| tell(Event::Held(load, peer, held)))
            });
            if let Err(error) = ended {
                tell(Event::PeerLost(peer, error.to_string()));
            }
        })?;
        self.peers.insert(peer, tasks.clone());
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

/// Does tasks in order until there are no more.
///
/// # Errors
/// When the other server is gone.
fn serve(
    link: &mut ControlLink,
    tasks: &Receiver<LinkTask>,
    held: &dyn Fn(u64, Result<(), String>),
) -> Result<(), PoolError> {
    loop {
        match tasks.recv_timeout(BEAT) {
            Ok(LinkTask::Hold { load, extents, unused }) => {
                match hold(link, load, &extents, unused) {
                    Ok(()) => held(load, Ok(())),
                    Err(lost @ PoolError::Lost { .. }) => return Err(lost),
                    Err(error) => held(load, Err(error.to_string())),
                }
            }
            Ok(LinkTask::Release(extents)) => {
                for some in extents.chunks(KEYS_MAX) {
                    link.call(&ClientRequest::Release { extents: some.to_vec() })?;
                }
            }
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
    mut unused: Vec<u32>,
) -> Result<(), PoolError> {
    unused.truncate(KEYS_MAX);
    let mut held = extents.chunks(KEYS_MAX);
    let extents = held.next().unwrap_or_default().to_vec();
    link.call(&ClientRequest::Hold { load, extents, unused })?;
    for some in held {
        let request = ClientRequest::Hold { load, extents: some.to_vec(), unused: vec![] };
        link.call(&request)?;
    }
    Ok(())
}
