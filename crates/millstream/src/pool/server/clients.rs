//! The connections of a server, and how far each has come.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cluster::{Attachment, Role, Service};
use fabric::EventFd;
use pool::wire::{ClientRequest, Rights, ServerResponse, length, split};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::ClientId;
use crate::FabricKind;

/// Clients at most.
const CLIENTS_MAX: usize = 1024;
/// Connections that have not said hello, at most; the oldest is dropped for one more.
const STRANGERS_MAX: usize = 64;
/// Within this time a connection has said hello.
const HELLO: Duration = Duration::from_secs(2);
/// Bytes of a hello at most.
const HELLO_BYTES_MAX: usize = 16 << 10;
/// Bytes of a message that any client may send at any time.
pub(super) const SHORT_BYTES_MAX: usize = 64 << 10;
/// Clients that send longer ones at the same time; others wait until it is their turn.
const LONG_MAX: usize = 16;

/// The connections.
#[derive(Default)]
pub(super) struct Clients {
    all: BTreeMap<ClientId, Client>,
    made: ClientId,
    /// Clients that may send a long message now.
    long: BTreeSet<ClientId>,
    /// Clients that wait for that.
    waits_for_turn: BTreeSet<ClientId>,
}

/// A connection.
pub(super) struct Client {
    attachment: Attachment,
    since: Instant,
    /// Once it has said hello.
    pub(super) greeted: Option<Greeted>,
    /// The request that waits for another thread; the next one is not read meanwhile.
    pub(super) waiting: Option<Waiting>,
    /// Its endpoint is being closed.
    pub(super) closing: bool,
}

/// A client that has been admitted.
pub(super) struct Greeted {
    pub(super) name: String,
    pub(super) rights: Rights,
    pub(super) endpoint: EndpointState,
}

/// The endpoint of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EndpointState {
    /// It has asked for none.
    None,
    /// A thread connects.
    Connecting(FabricKind),
    /// A mover has it.
    Ready(FabricKind),
}

/// A request that waits.
#[derive(Debug)]
pub(super) enum Waiting {
    /// For the endpoint.
    Endpoint(ClientRequest),
    /// For another client to be connected.
    Connect(ClientRequest),
    /// Since then for memory to come back.
    Room(ClientRequest, Instant),
    /// For the bytes of extents to be compared, which stops when this is dropped.
    Verify(#[expect(dead_code, reason = "it is held, not read")] Arc<()>),
    /// For the files of tables to be removed, with the answer then.
    Drop(Box<ServerResponse>),
    /// For what is held for another server to be saved.
    Part,
    /// For the key of an extent that was granted.
    Grant { load: u64, extent: u32, bytes: u32 },
    /// For the end of all writes into an extent.
    Seal { load: u64, extent: u32, used: u32, crc: u32 },
}

impl Clients {
    pub(super) fn add(&mut self, attachment: Attachment) {
        let strangers = self.all.iter().filter(|(_, client)| client.greeted.is_none());
        let oldest = strangers.clone().next().map(|(number, _)| *number);
        if let Some(oldest) = oldest.filter(|_| strangers.count() >= STRANGERS_MAX) {
            self.remove(oldest);
        }
        self.made += 1;
        let (since, greeted) = (Instant::now(), None);
        let client = Client { attachment, since, greeted, waiting: None, closing: false };
        self.all.insert(self.made, client);
    }

    /// Whether another client may say hello.
    pub(super) fn has_room(&self) -> bool {
        self.all.values().filter(|client| client.greeted.is_some()).count() < CLIENTS_MAX
    }

    pub(super) fn numbers(&self) -> Vec<ClientId> {
        self.all.keys().copied().collect()
    }

    pub(super) fn get(&mut self, client: ClientId) -> Option<&mut Client> {
        self.all.get_mut(&client)
    }

    /// The role that a client has proved, by this token or by its certificate.
    pub(super) fn role(&self, service: &Service, client: ClientId, token: &[u8]) -> Option<Role> {
        service.role(&self.all.get(&client)?.attachment, token)
    }

    pub(super) fn greeted(&mut self, client: ClientId) -> Option<&mut Greeted> {
        self.all.get_mut(&client)?.greeted.as_mut()
    }

    pub(super) fn remove(&mut self, client: ClientId) {
        self.all.remove(&client);
        self.long.remove(&client);
        self.waits_for_turn.remove(&client);
    }

    /// Clients that are not read until it is their turn: they are silent for that alone.
    pub(super) fn waits_for_turn(&self) -> impl Iterator<Item = ClientId> {
        self.waits_for_turn.iter().copied()
    }

    /// Clients whose request another thread may work on for long: they hear nothing meanwhile, and
    /// their requests are not read.
    pub(super) fn waits_for_work(&self) -> Vec<ClientId> {
        let long = |of: &Client| {
            matches!(of.waiting, Some(Waiting::Verify(_) | Waiting::Drop(_) | Waiting::Part))
        };
        let clients = self.all.iter().filter(|(_, of)| !of.closing && long(of));
        clients.map(|(number, _)| *number).collect()
    }

    /// Takes the requests that wait for what may be there now.
    pub(super) fn take_retried(&mut self) -> Vec<(ClientId, Waiting)> {
        let retried =
            |of: &mut Client| matches!(of.waiting, Some(Waiting::Connect(_) | Waiting::Room(..)));
        let clients = self.all.iter_mut().filter_map(|(number, of)| {
            let waiting = if retried(of) { of.waiting.take() } else { None };
            waiting.map(|waiting| (*number, waiting))
        });
        clients.collect()
    }

    /// How many map the memory of the server.
    pub(super) fn mapped(&self) -> u32 {
        let greeted = self.all.values().filter_map(|client| client.greeted.as_ref());
        let maps = |of: &&Greeted| of.endpoint == EndpointState::Ready(FabricKind::Shm);
        greeted.filter(maps).count() as u32
    }

    /// The next request of a client; `None` until it has come whole, an error when the client has
    /// ended or does not keep to the protocol.
    pub(super) fn request(&mut self, number: ClientId) -> Option<Result<ClientRequest, String>> {
        let client = self.all.get_mut(&number)?;
        if client.closing {
            return None;
        }
        if let Err(error) = client.attachment.flush() {
            return Some(Err(error.to_string()));
        }
        if client.waiting.is_some() || client.attachment.holds_bytes() {
            return None;
        }
        loop {
            match split(client.attachment.received()) {
                Ok(Some((body, taken))) => {
                    let request = ClientRequest::decode(body).map_err(|error| error.to_string());
                    client.attachment.take(taken);
                    self.long.remove(&number);
                    return Some(request);
                }
                Ok(None) => {}
                Err(error) => return Some(Err(error.to_string())),
            }
            let unknown = client.greeted.is_none();
            let (announced, received) =
                (length(client.attachment.received()), client.attachment.received().len());
            if unknown && announced.max(received) > HELLO_BYTES_MAX {
                return Some(Err("its hello is longer than any may be".into()));
            }
            if announced > SHORT_BYTES_MAX && !self.long.contains(&number) {
                if self.long.len() >= LONG_MAX {
                    self.waits_for_turn.insert(number);
                    return None;
                }
                self.waits_for_turn.remove(&number);
                self.long.insert(number);
            }
            match client.attachment.read() {
                Ok(true) => {}
                Ok(false) if unknown && client.since.elapsed() >= HELLO => {
                    return Some(Err("it has not said hello in time".into()));
                }
                Ok(false) => return None,
                Err(error) => return Some(Err(error.to_string())),
            }
        }
    }

    /// Ends the connection; the client stays until its endpoint is closed.
    pub(super) fn hang_up(&mut self, client: ClientId) {
        if let Some(client) = self.all.get_mut(&client) {
            client.attachment.end();
        }
    }

    /// Answers a client. Whether it hears that is found by the next look at it.
    pub(super) fn tell(&mut self, client: ClientId, response: &ServerResponse) {
        if let Some(client) = self.all.get_mut(&client) {
            client.attachment.send(&response.encode());
            let _ = client.attachment.flush();
        }
    }

    /// Waits until a client or another thread says something, or somebody connects where that is
    /// listened to.
    pub(super) fn wait(&self, service: Option<&Service>, wakes: &EventFd, limit: Duration) {
        let mut fds = vec![PollFd::from_borrowed_fd(wakes.as_fd(), PollFlags::IN)];
        fds.extend(service.map(|service| PollFd::new(service, PollFlags::IN)));
        let reads = |(number, client): &(&ClientId, &Client)| {
            !client.closing && !self.waits_for_turn.contains(number)
        };
        for (_, client) in self.all.iter().filter(reads) {
            let descriptor: BorrowedFd<'_> = client.attachment.as_fd();
            let reads = client.waiting.is_none() && !client.attachment.holds_bytes();
            let mut flags = if reads { PollFlags::IN } else { PollFlags::empty() };
            if client.attachment.holds_bytes() {
                flags |= PollFlags::OUT;
            }
            // One that only waits for us would wake us by its end over and over.
            if !flags.is_empty() {
                fds.push(PollFd::from_borrowed_fd(descriptor, flags));
            }
        }
        let limit = Timespec { tv_sec: 0, tv_nsec: limit.as_nanos() as i64 };
        // An interrupted wait is an early look.
        let _ = poll(&mut fds, Some(&limit));
    }
}
