//! A memory server: one thread that decides and answers, and movers that own endpoints.
//!
//! ```text
//!   clients ══ requests ══▶ control thread: Home, Extents ── Command ──▶ movers: endpoints
//!           ◀═ responses ══                               ◀─ Event ────
//! ```
//!
//! Invariants: one request of a client is answered before the next one is read; a client that has
//! not said hello costs a socket and a few bytes; endpoints of a client are closed before anything
//! of it is freed; memory is counted before it is taken.

mod answers;
mod clients;
mod extents;
mod mover;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cluster::Service;
use fabric::{Endpoint, EventFd, FabricError};
use pool::home::{Effect, Home};
use pool::wire::Stat;

use super::fabrics::{self, OpenFabric};
use crate::FabricKind;
use crate::error::Error;
use crate::pairs::machine;
use clients::Clients;
use extents::Extents;
use mover::{Event, Mover};

pub(super) use pool::home::ClientId;

/// Where a memory server listens, and clients look for one, unless another address is given.
pub const MEMORY_SERVER_PORT: u16 = 7740;

/// How often the server looks at its clock.
const TICK: Duration = Duration::from_millis(250);

/// How a memory server is set up.
#[derive(Debug, Clone)]
pub struct MemoryOptions {
    /// Bytes that it may hold: blocks of tables, and their manifests.
    pub bytes: u64,
    /// Its name, for messages.
    pub name: String,
    /// Where it listens.
    pub listen: SocketAddr,
    /// How clients read it.
    pub fabric: FabricKind,
    /// Its certificate; without one it listens on loopback alone.
    pub certs: Option<PathBuf>,
    /// Threads that serve reads of clients that do not map its memory.
    pub threads: usize,
    /// A client that is silent for so long has ended.
    pub lease: Duration,
}

impl Default for MemoryOptions {
    fn default() -> Self {
        Self {
            bytes: 1 << 30,
            name: "m0".into(),
            listen: SocketAddr::from(([127, 0, 0, 1], MEMORY_SERVER_PORT)),
            fabric: FabricKind::Auto,
            certs: None,
            threads: 1,
            lease: Duration::from_nanos(pool::home::LEASE_NS),
        }
    }
}

/// A memory server of this process, until it is dropped.
#[derive(Debug)]
pub struct MemoryServer {
    address: SocketAddr,
    fabrics: Vec<&'static str>,
    stop: Arc<AtomicBool>,
    wakes: Arc<EventFd>,
    thread: Option<JoinHandle<Stat>>,
}

impl MemoryServer {
    /// Starts it.
    ///
    /// # Errors
    /// When the address is in use or beyond loopback without certificates, when this machine has
    /// less memory, and when the system gives no thread or fabric.
    pub fn start(options: MemoryOptions) -> Result<Self, Error> {
        check_memory(&options)?;
        let service = Service::listen(options.listen, options.certs.as_deref())?;
        let address = service.address();
        let fabrics = fabrics::of_server(options.fabric, address.ip())?;
        let names = fabrics.iter().map(|open| open.fabric.name()).collect();
        let refused =
            |source| Error::from(cluster::ClusterError::System { what: "a thread", source });
        let (stop, wakes) = (Arc::new(AtomicBool::new(false)), EventFd::new().map_err(refused)?);
        let wakes = Arc::new(wakes);
        let control =
            Control::new(options, service, fabrics, Arc::clone(&wakes)).map_err(refused)?;
        let until = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name("memory server".into());
        let thread = thread.spawn(move || control.run(&until)).map_err(refused)?;
        Ok(Self { address, fabrics: names, stop, wakes, thread: Some(thread) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The names of the fabrics by which it is read.
    pub fn fabrics(&self) -> &[&'static str] {
        &self.fabrics
    }

    /// Whether it still serves.
    pub fn is_running(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Ends it, and gives its last state: what clients lose.
    pub fn stop(mut self) -> Stat {
        self.end().unwrap_or_default()
    }

    fn end(&mut self) -> Option<Stat> {
        self.stop.store(true, Ordering::Release);
        self.wakes.signal();
        let ended = self.thread.take()?.join();
        Some(ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    }
}

impl Drop for MemoryServer {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.end();
        }
    }
}

/// Refuses a budget that the machine does not have.
fn check_memory(options: &MemoryOptions) -> Result<(), Error> {
    match crate::memory::of_machine() {
        Some(machine) if options.bytes > machine => Err(Error::Usage {
            message: format!(
                "a memory server of {} bytes does not fit this machine, which has {machine}",
                options.bytes
            ),
            hint: "give less with --bytes; a container may have less than its machine".into(),
        }),
        _ => Ok(()),
    }
}

/// The thread that decides.
struct Control {
    options: MemoryOptions,
    service: Service,
    fabrics: Arc<[OpenFabric]>,
    host: String,
    home: Home,
    extents: Extents,
    clients: Clients,
    movers: Vec<Mover>,
    events: Receiver<Event>,
    /// Endpoints that were connected by threads of their own.
    connected: Receiver<Connected>,
    connects: Sender<Connected>,
    /// Signalled for events and endpoints.
    wakes: Arc<EventFd>,
    started: Instant,
}

/// The end of a connection that a client has asked for.
type Connected = (ClientId, Result<Box<dyn Endpoint>, FabricError>);

impl Control {
    fn new(
        options: MemoryOptions,
        service: Service,
        fabrics: Arc<[OpenFabric]>,
        wakes: Arc<EventFd>,
    ) -> std::io::Result<Self> {
        let (sender, events) = channel();
        let (connects, connected) = channel();
        let mover = |number| Mover::start(number, sender.clone(), Arc::clone(&wakes));
        let movers = (0..options.threads.max(1)).map(mover).collect::<Result<_, _>>()?;
        let lease_ns = u64::try_from(options.lease.as_nanos()).unwrap_or(u64::MAX);
        let home = Home::new(0, options.bytes).with_lease_ns(lease_ns);
        Ok(Self {
            home,
            extents: Extents::new(Arc::clone(&fabrics)),
            options,
            service,
            fabrics,
            host: machine(),
            clients: Clients::default(),
            movers,
            events,
            connected,
            connects,
            wakes,
            started: Instant::now(),
        })
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn run(mut self, stop: &AtomicBool) -> Stat {
        while !stop.load(Ordering::Acquire) {
            self.clients.wait(&self.service, &self.wakes, TICK);
            self.wakes.clear();
            for attachment in self.service.accept() {
                self.clients.add(attachment);
            }
            while let Ok(event) = self.events.try_recv() {
                self.moved(event);
            }
            while let Ok((client, endpoint)) = self.connected.try_recv() {
                self.connected(client, endpoint);
            }
            self.listen();
            let effects = self.home.tick(self.now_ns());
            self.act(effects);
        }
        self.stat()
    }

    /// Reads of all clients, and answers them.
    fn listen(&mut self) {
        for client in self.clients.numbers() {
            while let Some(request) = self.clients.request(client) {
                match request {
                    Ok(request) => self.answer(client, request),
                    Err(reason) => {
                        self.close(client, &reason);
                        break;
                    }
                }
            }
        }
    }

    /// Does what the home has decided.
    fn act(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Free(extent) => self.free(extent),
                Effect::Close(client, why) => self.close(client, why),
            }
        }
    }

    fn stat(&self) -> Stat {
        Stat { name: self.options.name.clone(), ..self.home.stat() }
    }
}
