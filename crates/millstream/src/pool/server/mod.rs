//! A memory server: one thread that decides and answers, and movers that own endpoints.
//!
//! ```text
//!   clients ══ requests ══▶ control thread: Home, Extents ── Command ──▶ movers: endpoints
//!           ◀═ responses ══                               ◀─ Event ────
//! ```
//!
//! Beside the movers, checkers go through the bytes of extents, and with a directory a store keeps
//! tables there; they answer by events, too.
//!
//! Invariants: one request of a client is answered before the next one is read; a client that has
//! not said hello costs a socket and a few bytes; endpoints of a client are closed before anything
//! of it is freed; memory is counted before it is taken, and until it has come back; the control
//! thread looks at its clients again after each request and effect, the longest of which encodes a
//! manifest.

mod answers;
mod checker;
mod clients;
mod directory;
mod extents;
mod limits;
mod links;
mod loading;
mod mover;
mod restart;
mod store;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cluster::Service;
use fabric::{Endpoint, EventFd, FabricError};
use pool::home::{Effect, Home};
use pool::wire::{ServerResponse, Stat};

use super::fabrics::{self, OpenFabric};
use crate::FabricKind;
use crate::error::Error;
use crate::pairs::machine;
use checker::Checker;
use clients::Clients;
use directory::Directory;
use extents::{Extents, Freeing};
use links::Links;
use mover::{Command, Event, Mover};
use restart::Found;
use store::{Store, StoreTask};

pub(super) use pool::home::ClientId;

/// Where a memory server listens, and clients look for one, unless another address is given.
pub const MEMORY_SERVER_PORT: u16 = 7740;

/// How often the server looks at its clock.
const TICK: Duration = Duration::from_millis(250);

/// How often a client is told that another thread still works on its request.
const TELLS: Duration = Duration::from_secs(1);

/// How long memory is given back, or one client is answered, before the others have their turn.
const SLICE: Duration = Duration::from_millis(10);

/// How long nobody is accepted after the system had no descriptor for one.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

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
    /// A file in which a token for readers is left, where there are no certificates: who shows it
    /// may read, and neither load nor drop.
    pub read_token: Option<PathBuf>,
    /// Threads that serve reads of clients that do not map its memory.
    pub threads: usize,
    /// A client that is silent for so long has ended.
    pub lease: Duration,
    /// Where it keeps its tables, so that they are there after a restart.
    pub directory: Option<PathBuf>,
}

impl Default for MemoryOptions {
    fn default() -> Self {
        Self {
            bytes: 1 << 30,
            name: "m0".into(),
            listen: SocketAddr::from(([127, 0, 0, 1], MEMORY_SERVER_PORT)),
            fabric: FabricKind::Auto,
            certs: None,
            read_token: None,
            threads: 1,
            lease: Duration::from_nanos(pool::home::LEASE_NS),
            directory: None,
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
    stats: MemoryStats,
    thread: Option<JoinHandle<Stat>>,
}

/// The state of a server, as it was some hundred milliseconds ago at most.
#[derive(Debug, Clone, Default)]
pub struct MemoryStats(Arc<Mutex<Stat>>);

impl MemoryStats {
    /// The state.
    pub fn get(&self) -> Stat {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, stat: Stat) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = stat;
    }
}

impl MemoryServer {
    /// Starts it.
    ///
    /// # Errors
    /// When the address is in use or beyond loopback without certificates, when this machine has
    /// less memory, when its directory is another server's, cannot be read, or has more than
    /// `bytes`, and when the system gives no thread or fabric.
    pub fn start(options: MemoryOptions) -> Result<Self, Error> {
        check_memory(&options)?;
        limits::raise_descriptors();
        let readers = options.read_token.as_deref();
        let service = Service::listen(options.listen, options.certs.as_deref(), readers)?;
        let address = service.address();
        let fabrics = fabrics::of_server(options.fabric, address.ip())?;
        let names = fabrics.iter().map(|open| open.fabric.name()).collect();
        let kept = restored(&options, &fabrics)?;
        let refused =
            |source| Error::from(cluster::ClusterError::System { what: "a thread", source });
        let (stop, wakes) = (Arc::new(AtomicBool::new(false)), EventFd::new().map_err(refused)?);
        let wakes = Arc::new(wakes);
        let control =
            Control::new(options, service, fabrics, kept, Arc::clone(&wakes)).map_err(refused)?;
        let (until, stats) = (Arc::clone(&stop), MemoryStats::default());
        stats.set(control.stat());
        let reported = stats.clone();
        let thread = std::thread::Builder::new().name("memory server".into());
        let thread = thread.spawn(move || control.run(&until, &reported)).map_err(refused)?;
        Ok(Self { address, fabrics: names, stop, wakes, stats, thread: Some(thread) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The names of the fabrics by which it is read.
    pub fn fabrics(&self) -> &[&'static str] {
        &self.fabrics
    }

    /// Its state, for those who look at it from time to time.
    pub fn stats(&self) -> MemoryStats {
        self.stats.clone()
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

/// The tables of a server's directory, if it has one.
fn restored(
    options: &MemoryOptions,
    fabrics: &[OpenFabric],
) -> Result<Option<(Directory, Found)>, Error> {
    let Some(path) = &options.directory else { return Ok(None) };
    let open = || {
        let directory = Directory::open(path)?;
        let found = restart::read(&directory, &*fabrics[0].fabric, options.bytes)?;
        Ok((directory, found))
    };
    open().map(Some).map_err(|error: std::io::Error| Error::Usage {
        message: format!("the directory {} cannot be used: {error}", path.display()),
        hint: "--dir names a directory that this memory server alone uses".into(),
    })
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
    /// Effects that were decided and are done in slices, in order.
    effects: VecDeque<Effect>,
    movers: Vec<Mover>,
    sealer: Checker,
    verifier: Checker,
    store: Option<Store>,
    links: Links,
    /// See [`pool::wire::Welcome::incarnation`].
    incarnation: u32,
    /// See [`pool::wire::Welcome::identity`].
    identity: u64,
    events: Receiver<Event>,
    /// Endpoints that were connected by threads of their own.
    connected: Receiver<Connected>,
    connects: Sender<Connected>,
    /// Threads that connect.
    connecting: usize,
    refusals: u64,
    /// The load that was refused last for want of room: it counts once, however often it asks.
    full: Option<(ClientId, u64)>,
    /// Until then nobody is accepted: the system had no descriptor.
    accepts_from: Option<Instant>,
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
        kept: Option<(Directory, Found)>,
        wakes: Arc<EventFd>,
    ) -> std::io::Result<Self> {
        let (sender, events) = channel();
        let (connects, connected) = channel();
        let mover = |number| Mover::start(number, sender.clone(), Arc::clone(&wakes));
        let movers = (0..options.threads.max(1)).map(mover).collect::<Result<_, _>>()?;
        let checker =
            |name| Checker::start(name, Arc::clone(&fabrics), sender.clone(), Arc::clone(&wakes));
        let lease_ns = u64::try_from(options.lease.as_nanos()).unwrap_or(u64::MAX);
        let incarnation = super::random()? as u32;
        let (name, certs) = (options.name.clone(), options.certs.clone());
        let links = Links::new(name, certs, sender.clone(), Arc::clone(&wakes));
        let (identity, starts) = match &kept {
            Some((directory, _)) => directory.identity(),
            None => (super::random()?, 1),
        };
        let home = Home::new(0, options.bytes)
            .with_identity(identity, starts)
            .with_lease_ns(lease_ns)
            .with_extents_max(limits::extents_max(fabrics[0].kind))
            .with_incarnation(incarnation);
        let (home, extents, store) = match kept {
            None => (home, Extents::new(Arc::clone(&fabrics)), None),
            Some((directory, found)) => {
                let (home, fabrics) = (home.with_saving(), Arc::clone(&fabrics));
                let (home, extents, files) = restart::restore(home, fabrics, found)?;
                let signal = Arc::clone(&wakes);
                (home, extents, Some(Store::start(directory, files, sender.clone(), signal)?))
            }
        };
        Ok(Self {
            home,
            extents,
            options,
            service,
            host: machine(),
            clients: Clients::default(),
            effects: VecDeque::new(),
            movers,
            sealer: checker("sealer")?,
            verifier: checker("verifier")?,
            store,
            links,
            incarnation,
            identity,
            fabrics,
            events,
            connected,
            connects,
            connecting: 0,
            refusals: 0,
            full: None,
            accepts_from: None,
            wakes,
            started: Instant::now(),
        })
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn run(mut self, stop: &AtomicBool, stats: &MemoryStats) -> Stat {
        let (mut more, mut reported) = (false, Instant::now());
        let mut announced = reported;
        while !stop.load(Ordering::Acquire) {
            let accepts = self.accepts_from.is_none_or(|from| Instant::now() >= from);
            let limit = if more { Duration::ZERO } else { TICK };
            self.clients.wait(accepts.then_some(&self.service), &self.wakes, limit);
            self.wakes.clear();
            if accepts {
                self.accept();
            }
            while let Ok(event) = self.events.try_recv() {
                self.happened(event);
            }
            while let Ok((client, endpoint)) = self.connected.try_recv() {
                self.connecting -= 1;
                self.connected(client, endpoint);
            }
            for (client, waiting) in self.clients.take_retried() {
                self.retry(client, waiting);
            }
            more = self.listen();
            let now_ns = self.now_ns();
            self.clients.waits_for_turn().for_each(|client| self.home.renew(now_ns, client));
            if announced.elapsed() >= TELLS {
                announced = Instant::now();
                self.tell_working(now_ns);
            }
            let effects = self.home.tick(now_ns);
            self.act(effects);
            more |= self.do_effects();
            if reported.elapsed() >= TICK {
                stats.set(self.stat());
                reported = Instant::now();
            }
        }
        self.stat()
    }

    /// Tells clients that their requests are worked on. They are silent for that alone.
    fn tell_working(&mut self, now_ns: u64) {
        for client in self.clients.waits_for_work() {
            self.home.renew(now_ns, client);
            self.clients.tell(client, &ServerResponse::Working);
        }
    }

    fn accept(&mut self) {
        let (accepted, starved) = self.service.accept();
        accepted.into_iter().for_each(|attachment| self.clients.add(attachment));
        if starved && self.accepts_from.is_none() {
            tracing::warn!("clients wait: the system has no descriptor for their connections");
        }
        self.accepts_from = starved.then(|| Instant::now() + ACCEPT_PAUSE);
    }

    /// Reads of all clients, and answers them: of each as much as its slice admits. True when one
    /// may have more to say.
    fn listen(&mut self) -> bool {
        let mut more = false;
        for client in self.clients.numbers() {
            let begun = Instant::now();
            while let Some(request) = self.clients.request(client) {
                match request {
                    Ok(request) => self.answer(client, request),
                    Err(reason) => {
                        self.close(client, &reason);
                        break;
                    }
                }
                if begun.elapsed() >= SLICE {
                    more = true;
                    break;
                }
            }
        }
        more
    }

    /// Has done what the home has decided, as soon as it is its turn.
    fn act(&mut self, effects: Vec<Effect>) {
        self.effects.extend(effects);
    }

    /// Does what the home has decided, for a slice; true when there is more.
    fn do_effects(&mut self) -> bool {
        let begun = Instant::now();
        while let Some(effect) = self.effects.pop_front() {
            match effect {
                Effect::Free(extent) => self.free(extent),
                Effect::Save(version) => {
                    if let Some(store) = &self.store {
                        store.ask(StoreTask::Version(version));
                    }
                }
                Effect::SavePart(part) => {
                    if let Some(store) = &self.store {
                        store.ask(StoreTask::Part(part));
                    }
                }
                Effect::Hold(_) | Effect::Release(..) | Effect::Introduce(_) => match &self.store {
                    Some(store) => store.ask(StoreTask::Then(effect)),
                    None => self.say(effect),
                },
                Effect::Close(client, why) => self.close(client, why),
            }
            if begun.elapsed() >= SLICE {
                break;
            }
        }
        !self.effects.is_empty()
    }

    /// Says something to another server.
    fn say(&mut self, effect: Effect) {
        match effect {
            Effect::Hold(request) => self.links.hold(*request),
            Effect::Release(peer, extents) => self.links.release(peer, extents),
            Effect::Introduce(of) => self.links.introduce(*of),
            _ => {}
        }
    }

    /// Gives the memory of an extent back.
    fn free(&mut self, extent: u32) {
        match self.extents.free(extent) {
            Freeing::Now => self.home.freed(extent),
            Freeing::Revoke(writer, key) => {
                self.ask_mover(writer, Command::Revoke(writer, extent, key));
            }
            Freeing::Later => {}
        }
        if let Some(store) = &self.store {
            store.ask(StoreTask::Free(extent));
        }
    }

    fn stat(&self) -> Stat {
        let mut served = (0, 0);
        for open in self.fabrics.iter() {
            let (reads, bytes) = open.fabric.served();
            served = (served.0 + reads, served.1 + bytes);
        }
        Stat {
            name: self.options.name.clone(),
            mapped: self.clients.mapped(),
            reads: served.0,
            read_bytes: served.1,
            refusals: self.refusals,
            ..self.home.stat()
        }
    }
}
