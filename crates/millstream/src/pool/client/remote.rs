//! A memory server, as a client sees it: the control connection.

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cluster::{Attachment, ClusterError};
use fabric::{Endpoint, Fabric, LinkId};
use pool::PoolError;
use pool::wire::{ClientRequest, PROTOCOL, Rights, ServerPlace, ServerResponse, Welcome, split};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{PoolOptions, locked, unexpected};
use crate::FabricKind;
use crate::pairs::machine;
use crate::pool::MEMORY_SERVER_PORT;

/// Within this time a server answers, or it is gone.
pub(super) const ANSWER: Duration = Duration::from_secs(4);

/// The ends of a connection, for fabrics: the client dials.
const CLIENT_END: LinkId = LinkId { local: 0, remote: 1 };

/// A memory server.
#[derive(Debug)]
pub(super) struct Remote {
    pub(super) name: String,
    pub(super) address: String,
    /// Its incarnation; see [`Welcome::incarnation`].
    pub(super) incarnation: u32,
    /// See [`Welcome::identity`].
    pub(super) identity: u64,
    /// Whether this client may load and drop.
    pub(super) may_write: bool,
    /// Whether it keeps its tables in a directory.
    pub(super) keeps: bool,
    /// How its memory is read.
    pub(super) kind: FabricKind,
    control: Mutex<Attachment>,
    /// Why it is gone.
    lost: Mutex<Option<PoolError>>,
    /// Whether it is gone because it has not answered in time.
    has_timed_out: AtomicBool,
}

/// The data connection with a server.
pub(super) struct End {
    pub(super) fabric: Arc<dyn Fabric>,
    pub(super) endpoint: Box<dyn Endpoint>,
}

/// Connects with a server, and by the fabric that suits both.
///
/// # Errors
/// When it does not answer, refuses, or cannot be read by the fabric that was asked for.
pub(super) fn connect(address: &str, options: &PoolOptions) -> Result<(Remote, End), PoolError> {
    let unfit = |reason: String| PoolError::Unusable { address: address.to_owned(), reason };
    let (control, welcome) = greet(address, options)?;
    let host = machine();
    let kind = choose(options.fabric, &welcome, &host).map_err(unfit)?;
    tracing::debug!("memory server {} at {address} is read by {kind}", welcome.name);
    let Welcome { name, incarnation, identity, keeps, rights, .. } = welcome;
    let (lost, address, control) = (Mutex::default(), address.to_owned(), Mutex::new(control));
    let remote = Remote {
        name,
        address,
        incarnation,
        identity,
        may_write: rights == Rights::Write,
        keeps,
        kind,
        control,
        lost,
        has_timed_out: AtomicBool::new(false),
    };
    let end = remote.join().map_err(|error| match error {
        PoolError::Refused { reason } => {
            PoolError::Unreachable { address: remote.address.clone(), reason }
        }
        error => error,
    })?;
    Ok((remote, end))
}

/// Connects with a server for messages.
///
/// # Errors
/// When it does not answer, or refuses.
fn greet(address: &str, options: &PoolOptions) -> Result<(Attachment, Welcome), PoolError> {
    let unreachable =
        |reason: String| PoolError::Unreachable { address: address.to_owned(), reason };
    let (first, others) = resolve(address).map_err(unreachable)?;
    let (certs, token_file) = (options.certs.as_deref(), options.token_file.as_deref());
    let connect = |at| Attachment::connect(at, certs, token_file, ANSWER);
    let mut attached = connect(first);
    for at in others {
        if attached.is_err() {
            attached = connect(at);
        }
    }
    let unfit = |reason: String| PoolError::Unusable { address: address.to_owned(), reason };
    let (mut control, token) = attached.map_err(|error| match error {
        ClusterError::Attach { detail, .. } => unreachable(detail),
        ClusterError::NoToken { .. } => {
            unfit("it has left no token for this user, and may want a certificate".into())
        }
        error => unfit(error.to_string()),
    })?;
    let hello = ClientRequest::Hello {
        protocol: PROTOCOL,
        client: format!("process {} on {}", std::process::id(), host_name()),
        token,
        rights: Rights::Write,
    };
    let mut notices = None;
    let welcome = match converse(&mut control, &hello, &mut notices) {
        Ok(ServerResponse::Welcome(welcome)) => welcome,
        Ok(ServerResponse::Failed(error)) => return Err(unfit(error.to_string())),
        Ok(_) => return Err(unexpected()),
        Err(reason) => return Err(unreachable(reason)),
    };
    Ok((control, welcome))
}

/// A connection for messages alone, as one memory server has with another.
pub(in crate::pool) struct ControlLink {
    address: String,
    control: Attachment,
    welcome: Welcome,
}

impl ControlLink {
    /// Connects with the server at an address.
    ///
    /// # Errors
    /// When it does not answer, or refuses.
    pub(in crate::pool) fn connect(
        address: &str,
        options: &PoolOptions,
    ) -> Result<Self, PoolError> {
        let (control, welcome) = greet(address, options)?;
        Ok(Self { address: address.to_owned(), control, welcome })
    }

    pub(in crate::pool) fn address(&self) -> &str {
        &self.address
    }

    pub(in crate::pool) fn name(&self) -> &str {
        &self.welcome.name
    }

    pub(in crate::pool) fn incarnation(&self) -> u32 {
        self.welcome.incarnation
    }

    pub(in crate::pool) fn identity(&self) -> u64 {
        self.welcome.identity
    }

    /// Asks, and waits for the answer.
    ///
    /// # Errors
    /// The server's own, or [`PoolError::Lost`].
    pub(in crate::pool) fn call(
        &mut self,
        request: &ClientRequest,
    ) -> Result<ServerResponse, PoolError> {
        let mut broken = None;
        match converse(&mut self.control, request, &mut broken) {
            Ok(ServerResponse::Failed(error)) => Err(error),
            Ok(response) => Ok(response),
            Err(reason) => {
                let server = self.welcome.name.clone();
                Err(PoolError::Lost { server, reason: broken.unwrap_or(reason) })
            }
        }
    }
}

impl Remote {
    /// Asks, and waits for the answer.
    ///
    /// # Errors
    /// The server's own, or [`PoolError::Lost`].
    pub(super) fn call(&self, request: &ClientRequest) -> Result<ServerResponse, PoolError> {
        let mut control = locked(&self.control);
        if let Some(lost) = self.lost() {
            return Err(lost);
        }
        let (mut broken, begun) = (None, Instant::now());
        match converse(&mut control, request, &mut broken) {
            Ok(ServerResponse::Failed(error)) => Err(error),
            Ok(response) => Ok(response),
            Err(reason) => {
                self.has_timed_out.store(begun.elapsed() >= ANSWER, Ordering::Relaxed);
                Err(self.lose(broken.unwrap_or(reason)))
            }
        }
    }

    /// Asks over a new connection, when this one is gone.
    ///
    /// # Errors
    /// As [`Remote::call`], and when another server is there.
    pub(super) fn ask_anew(
        &self,
        options: &PoolOptions,
        request: &ClientRequest,
    ) -> Result<ServerResponse, PoolError> {
        let (mut control, welcome) = greet(&self.address, options)?;
        let gone = |reason| PoolError::Lost { server: self.name.clone(), reason };
        if welcome.name != self.name {
            return Err(gone(format!("'{}' is in its place", welcome.name)));
        }
        match converse(&mut control, request, &mut None) {
            Ok(ServerResponse::Failed(error)) => Err(error),
            answer => answer.map_err(gone),
        }
    }

    /// Joins with the server by the fabric.
    fn join(&self) -> Result<End, PoolError> {
        let failed = |error: fabric::FabricError| PoolError::Refused { reason: error.to_string() };
        let fabric = self.kind.open().map_err(failed)?;
        let offer = fabric.offer(CLIENT_END).map_err(failed)?;
        let request =
            ClientRequest::Connect { fabric: fabric.name().to_owned(), address: offer.address() };
        let ServerResponse::Address(address) = self.call(&request)? else {
            return Err(unexpected());
        };
        let endpoint = offer.connect(&address).map_err(failed)?;
        Ok(End { fabric, endpoint })
    }

    /// Where it is, for another server.
    pub(super) fn place(&self) -> ServerPlace {
        let (name, address) = (self.name.clone(), self.address.clone());
        let (identity, incarnation) = (self.identity, self.incarnation);
        ServerPlace { name, address, identity, incarnation }
    }

    pub(super) fn is_there(&self) -> bool {
        locked(&self.lost).is_none()
    }

    /// The error of a server that is gone.
    pub(super) fn lost(&self) -> Option<PoolError> {
        locked(&self.lost).clone()
    }

    /// The error of a server that is gone because it has not answered in time.
    pub(super) fn timed_out(&self) -> Option<PoolError> {
        self.lost().filter(|_| self.has_timed_out.load(Ordering::Relaxed))
    }

    /// The server is gone; the first reason counts.
    pub(super) fn lose(&self, reason: String) -> PoolError {
        self.end(PoolError::Lost { server: self.name.clone(), reason })
    }

    /// The connections have ended by this error; the first one counts.
    pub(super) fn end(&self, error: PoolError) -> PoolError {
        let mut lost = locked(&self.lost);
        if lost.is_none() {
            // A statement that needs the server fails, and says so.
            tracing::debug!("the connection with a memory server has ended: {error}");
        }
        lost.get_or_insert(error).clone()
    }
}

/// Sends a request and waits for its answer, for as long as the server says that it works on it. A
/// notice that a lease has ended goes to `broken`.
///
/// # Errors
/// Why there will be no answer, in words.
fn converse(
    control: &mut Attachment,
    request: &ClientRequest,
    broken: &mut Option<String>,
) -> Result<ServerResponse, String> {
    let words = |error: std::io::Error| error.to_string();
    let mut deadline = Instant::now() + ANSWER;
    control.send(&request.encode());
    loop {
        while let Some((body, taken)) =
            split(control.received()).map_err(|error| error.to_string())?
        {
            let response = ServerResponse::decode(body).map_err(|error| error.to_string());
            control.take(taken);
            match response? {
                ServerResponse::Broken { reason, .. } => *broken = Some(reason),
                ServerResponse::Working => deadline = Instant::now() + ANSWER,
                response => return Ok(response),
            }
        }
        // A last message of the server says more than the failed write.
        let sent = control.flush();
        if control.read().map_err(words)? {
            continue;
        }
        sent.map_err(words)?;
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(format!("it has not answered within {} s", ANSWER.as_secs()));
        }
        let mut flags = PollFlags::IN;
        if control.holds_bytes() {
            flags |= PollFlags::OUT;
        }
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        // An interrupted wait is an early look.
        let _ = poll(&mut [PollFd::new(&*control, flags)], Some(&left));
    }
}

/// How the memory of a server is read from here.
fn choose(asked: FabricKind, welcome: &Welcome, host: &str) -> Result<FabricKind, String> {
    let has = |kind: FabricKind| welcome.fabrics.contains(&kind.to_string());
    let here = welcome.host == host;
    match asked {
        FabricKind::Mpi => Err("a memory server is not read by mpi".into()),
        FabricKind::Auto => {
            let all = [FabricKind::Shm, FabricKind::Verbs, FabricKind::Tcp];
            let fits = |kind: &FabricKind| has(*kind) && (*kind != FabricKind::Shm || here);
            let kind = all.into_iter().find(fits);
            kind.ok_or_else(|| format!("it is read by {} alone", welcome.fabrics.join(", ")))
        }
        FabricKind::Shm if !here => Err("it is on another machine: --pool-fabric tcp".into()),
        kind if has(kind) => Ok(kind),
        kind => Err(format!("it is read by {}, and not by {kind}", welcome.fabrics.join(", "))),
    }
}

/// The addresses of a name: the first, and others.
fn resolve(address: &str) -> Result<(SocketAddr, Vec<SocketAddr>), String> {
    if !address.contains(':') {
        return Err(format!("the port is missing, as in {address}:{MEMORY_SERVER_PORT}"));
    }
    let mut all = address.to_socket_addrs().map_err(|error| error.to_string())?;
    let first = all.next().ok_or("there is no such host")?;
    Ok((first, all.collect()))
}

fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}
