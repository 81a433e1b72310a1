//! A thread that owns the endpoints of some clients: it lets them read and write.
//!
//! Over shared memory clients map extents and nothing happens here; over TCP every READ is answered
//! by this thread. Everything about an endpoint is requested by a command and announced by an
//! event: a peer that is stopped in the middle of a copy holds up this thread alone, and no
//! decision.

use std::collections::HashMap;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use fabric::{Armed, Completion, Endpoint, EventFd, FabricError, RemoteKey, Slab, SlabRange, wait};

use pool::home::{Effect, PeerId};

use super::ClientId;

/// After so long the thread looks at its endpoints, whatever wakes it.
const LOOK: Duration = Duration::from_secs(1);

/// A command to a mover.
pub(super) enum Command {
    /// Takes the endpoint of a client, in place of one that it has.
    Add(ClientId, Box<dyn Endpoint>),
    /// Lets the client write to an extent.
    Export(ClientId, u32, SlabRange),
    /// Ends that, and drops all that is known of it here.
    Revoke(ClientId, u32, RemoteKey),
    /// Closes the endpoint of a client.
    Close(ClientId),
}

/// An event of a mover, of a checker or of the store.
pub(super) enum Event {
    /// The key by which a client writes to an extent.
    Exported(ClientId, u32, Result<RemoteKey, FabricError>),
    /// The client does not write to the extent any more.
    Revoked(ClientId, u32),
    /// No read or write of the client is served any more.
    Closed(ClientId),
    /// An extent that a client has written is sealed: its memory, used bytes and checksum.
    Sealed(ClientId, u32, Result<(Slab, u32, u32), String>),
    /// Extents were compared for a client; one is damaged.
    Verified(ClientId, Vec<u32>, Option<u32>),
    /// The store does not use the memory of an extent any more.
    LetGo(u32),
    /// The version of a load was saved, or could not be.
    Saved(u64, Result<(), String>),
    /// Another server holds its part of a load, or does not.
    Held(u64, PeerId, Result<(), String>),
    /// The connection of this number with another server has ended.
    PeerLost(PeerId, u64, String),
    /// This server has introduced itself to another one, at this address; which of its extents are
    /// not there.
    Introduced(PeerId, u64, String, Vec<u32>),
    /// What is held for another server was saved, or could not be: the client waits for that.
    PartSaved(ClientId, Result<(), String>),
    /// All that was to be saved before this is on the disk.
    Then(Effect),
    /// A table was removed from the disk for a client, or could not be.
    Dropped(ClientId, Result<(), String>),
}

/// The handle of the thread, which ends when this is dropped.
pub(super) struct Mover {
    commands: Option<Sender<Command>>,
    wakes: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl Mover {
    /// Starts it; `signal` is signalled after each event.
    ///
    /// # Errors
    /// When the system gives no thread or descriptor.
    pub(super) fn start(
        number: usize,
        events: Sender<Event>,
        signal: Arc<EventFd>,
    ) -> std::io::Result<Self> {
        let (commands, received) = channel();
        let wakes = Arc::new(EventFd::new()?);
        let work =
            Work { received, wakes: Arc::clone(&wakes), events, signal, ends: HashMap::new() };
        let thread = std::thread::Builder::new().name(format!("mover {number}"));
        let thread = thread.spawn(move || work.run())?;
        Ok(Self { commands: Some(commands), wakes, thread: Some(thread) })
    }

    pub(super) fn ask(&self, command: Command) {
        if let Some(commands) = &self.commands {
            // It ends with this handle alone.
            let _ = commands.send(command);
            self.wakes.signal();
        }
    }
}

impl Drop for Mover {
    fn drop(&mut self) {
        self.commands = None;
        self.wakes.signal();
        if let Some(thread) = self.thread.take()
            && let Err(panic) = thread.join()
        {
            tracing::error!("a mover has panicked: {panic:?}");
        }
    }
}

struct Work {
    received: Receiver<Command>,
    wakes: Arc<EventFd>,
    events: Sender<Event>,
    signal: Arc<EventFd>,
    ends: HashMap<ClientId, Box<dyn Endpoint>>,
}

impl Work {
    fn run(mut self) {
        let mut completions = Vec::new();
        while self.obey() {
            let mut descriptors: Vec<RawFd> = vec![self.wakes.raw()];
            let mut ready = false;
            self.ends.retain(|client, end| {
                end.poll(&mut completions);
                let broken = completions
                    .drain(..)
                    .any(|completion| matches!(completion, Completion::Error { .. }));
                if broken {
                    tracing::debug!(client, "the connection of a client has ended");
                    return false;
                }
                end.submit();
                match end.arm() {
                    Armed::Fd(descriptor) => descriptors.push(descriptor),
                    Armed::Ready => ready = true,
                    Armed::Virtual => {}
                }
                true
            });
            if !ready {
                wait(&descriptors, LOOK);
            }
            self.wakes.clear();
        }
    }

    /// Does what was asked; false when nobody asks any more.
    fn obey(&mut self) -> bool {
        loop {
            let event = match self.received.try_recv() {
                Ok(Command::Add(client, end)) => {
                    self.ends.insert(client, end);
                    continue;
                }
                Ok(Command::Export(client, extent, range)) => {
                    let key = match self.ends.get_mut(&client) {
                        Some(end) => end.export(&range),
                        None => Err(FabricError::Malformed { what: "request of a closed client" }),
                    };
                    // The range may not be there any more when the extent is sealed.
                    drop(range);
                    Event::Exported(client, extent, key)
                }
                Ok(Command::Revoke(client, extent, key)) => {
                    if let Some(end) = self.ends.get_mut(&client) {
                        end.revoke(key);
                    }
                    Event::Revoked(client, extent)
                }
                Ok(Command::Close(client)) => {
                    if let Some(mut end) = self.ends.remove(&client) {
                        end.close();
                    }
                    Event::Closed(client)
                }
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            };
            if self.events.send(event).is_err() {
                return false;
            }
            self.signal.signal();
        }
    }
}
