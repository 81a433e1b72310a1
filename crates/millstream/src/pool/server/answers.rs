//! The response to each request, and to each event of the movers.

use std::time::Instant;

use cluster::Role;
use fabric::{Endpoint, FabricError, LinkId};
use pool::PoolError;
use pool::access::At;
use pool::home::LookRequest;
use pool::wire::{
    ClientRequest, MANIFEST_PIECE_BYTES, PROTOCOL, Rights, ServerResponse, StatementId, Welcome,
};

use super::clients::{EndpointState, Greeted, Waiting};
use super::mover::Command;
use super::{ClientId, Control};

/// Threads that connect clients at a time: each waits until its client has dialled.
const CONNECTING_MAX: usize = 64;

/// The ends of a connection, for fabrics: the client dials.
const SERVER_END: LinkId = LinkId { local: 1, remote: 0 };

impl Control {
    /// Answers a request, or defers it until another thread has done its part.
    pub(super) fn answer(&mut self, client: ClientId, request: ClientRequest) {
        if self.clients.greeted(client).is_none() {
            return self.hello(client, request);
        }
        let now_ns = self.now_ns();
        self.home.renew(now_ns, client);
        if changes_tables(&request)
            && let Err(error) = self.writer_name(client)
        {
            return self.tell(client, Err(error));
        }
        match request {
            ClientRequest::Grant { .. } if self.is_connecting(client) => {
                self.defer(client, Waiting::Endpoint(request));
            }
            ClientRequest::Grant { load, bytes, part } => {
                self.grant(client, (load, part), bytes, Instant::now());
            }
            ClientRequest::Seal { load, extent, used, crc } => {
                let may_seal = self.home.check_seal(client, load, extent);
                match may_seal.map(|()| self.extents.writer(extent)) {
                    Ok(Some((_, key))) => {
                        self.defer(client, Waiting::Seal { load, extent, used, crc });
                        self.ask_mover(client, Command::Revoke(client, extent, key));
                    }
                    Ok(None) => self.refuse(client, "the extent is not written by this client"),
                    Err(error) => self.tell(client, Err(error)),
                }
            }
            ClientRequest::Connect { .. } if self.connecting >= CONNECTING_MAX => {
                self.defer(client, Waiting::Connect(request));
            }
            ClientRequest::Verify { extents } => self.verify(client, &extents),
            ClientRequest::Drop { table } => self.drop_table(client, table),
            ClientRequest::Forget { name, living } => self.forget(client, &name, living),
            ClientRequest::Hold { load, extents, unused } => {
                self.hold(client, load, &extents, &unused);
            }
            request => {
                let answered = self.at_once(client, request);
                self.tell(client, answered);
            }
        }
    }

    /// The requests that need no other thread.
    fn at_once(
        &mut self,
        client: ClientId,
        request: ClientRequest,
    ) -> Result<ServerResponse, PoolError> {
        let now_ns = self.now_ns();
        Ok(match request {
            ClientRequest::Connect { fabric, address } => {
                ServerResponse::Address(self.connect(client, &fabric, address)?)
            }
            ClientRequest::Tables => ServerResponse::Tables(self.home.tables()),
            ClientRequest::Pin { table, at, snapshot } => self.pin(client, &table, at, snapshot)?,
            ClientRequest::Manifest { lease, from } => {
                let manifest = self.home.pinned(client, lease);
                let manifest = manifest.ok_or_else(|| refused("the lease has ended"))?;
                let from = usize::try_from(from).unwrap_or(usize::MAX).min(manifest.len());
                let to = manifest.len().min(from + MANIFEST_PIECE_BYTES);
                ServerResponse::Manifest(manifest[from..to].to_vec())
            }
            ClientRequest::Keys { extents } => ServerResponse::Keys(self.keys(client, &extents)?),
            ClientRequest::Unpin { lease } => {
                let effects = self.home.unpin(now_ns, client, lease);
                self.act(effects);
                ServerResponse::Done
            }
            ClientRequest::Beat => ServerResponse::Done,
            ClientRequest::Stat => ServerResponse::Stat(self.stat()),
            ClientRequest::Outcome { load, snapshot } => {
                match self.home.outcome(load, snapshot)? {
                    None => ServerResponse::UnderWay,
                    version => ServerResponse::Committed { version },
                }
            }
            ClientRequest::Look { table, statement, age_max_ns } => {
                let greeted = self.clients.greeted(client);
                let may_load = greeted.is_some_and(|of| of.rights == Rights::Write);
                let by = LookRequest { client, statement, may_load };
                ServerResponse::Look(self.home.look(now_ns, by, &table, age_max_ns)?)
            }
            ClientRequest::EndLook { table, outcome } => {
                self.home.end_look(now_ns, client, &table, outcome);
                ServerResponse::Done
            }
            request => self.of_load(client, request)?,
        })
    }

    /// The requests of loaders, and of other servers that have tables.
    fn of_load(
        &mut self,
        client: ClientId,
        request: ClientRequest,
    ) -> Result<ServerResponse, PoolError> {
        Ok(match request {
            ClientRequest::Begin { load, snapshot, writers } => {
                let name = self.writer_name(client)?;
                ServerResponse::Load(self.home.begin(client, &name, load, snapshot, writers)?)
            }
            ClientRequest::Commit { load, writer, strips, last } => {
                let (version, effects) = self.home.commit(client, load, writer, strips, last);
                self.act(effects);
                match version? {
                    None if self.home.is_ending(load) => ServerResponse::UnderWay,
                    version => ServerResponse::Committed { version },
                }
            }
            ClientRequest::HandIn { load, writer, strips, last } => {
                let (version, effects) = self.home.hand_in(client, load, writer, strips, last);
                self.act(effects);
                ServerResponse::Committed { version: version? }
            }
            ClientRequest::Replace { load, writer, strips } => {
                let (replaced, effects) = self.home.replace(client, load, writer, strips);
                self.act(effects);
                replaced?;
                ServerResponse::Done
            }
            ClientRequest::Abort { load, reason } => {
                let effects = self.home.abort(client, load, &reason);
                self.act(effects);
                ServerResponse::Done
            }
            ClientRequest::Distribute { load, servers } => {
                ServerResponse::Numbers(self.home.distribute(client, load, servers)?)
            }
            ClientRequest::Release { extents } => {
                let effects = self.home.release(client, &extents);
                self.act(effects);
                ServerResponse::Done
            }
            ClientRequest::Relocate { servers } => {
                let effects = self.home.relocate(servers)?;
                self.act(effects);
                ServerResponse::Done
            }
            ClientRequest::Claim { identity, name, link, extents: of, last } => {
                let (missing, effects) = self.home.claim(client, (identity, name), link, &of, last);
                self.act(effects);
                ServerResponse::Missing(missing?)
            }
            ClientRequest::Hello { .. }
            | ClientRequest::Hold { .. }
            | ClientRequest::Forget { .. }
            | ClientRequest::Connect { .. }
            | ClientRequest::Tables
            | ClientRequest::Pin { .. }
            | ClientRequest::Manifest { .. }
            | ClientRequest::Keys { .. }
            | ClientRequest::Unpin { .. }
            | ClientRequest::Beat
            | ClientRequest::Stat
            | ClientRequest::Look { .. }
            | ClientRequest::EndLook { .. }
            | ClientRequest::Outcome { .. }
            | ClientRequest::Drop { .. }
            | ClientRequest::Verify { .. }
            | ClientRequest::Grant { .. }
            | ClientRequest::Seal { .. } => {
                return Err(refused("the request comes out of turn"));
            }
        })
    }

    fn pin(
        &mut self,
        client: ClientId,
        table: &str,
        at: At,
        snapshot: Option<StatementId>,
    ) -> Result<ServerResponse, PoolError> {
        if self.home.is_full_of_statements() {
            let effects = self.home.forget_statements();
            self.act(effects);
        }
        let pin = self.home.pin(client, table, at, snapshot)?;
        let manifest_bytes = pin.manifest.len() as u64;
        Ok(ServerResponse::Pinned { version: pin.version, lease: pin.lease, manifest_bytes })
    }

    fn hello(&mut self, client: ClientId, request: ClientRequest) {
        let ClientRequest::Hello { protocol, client: name, token, rights } = request else {
            return self.close(client, "it has not said hello");
        };
        let role = self.clients.role(&self.service, client, &token);
        let rights = if role == Some(Role::Owner) { rights } else { Rights::Read };
        let reason = if protocol != PROTOCOL {
            Some("it speaks another version of the protocol: run the same release everywhere")
        } else if role.is_none() {
            Some("the client does not show the token of this server")
        } else if !self.clients.has_room() {
            Some("the server has as many clients as it may have")
        } else {
            None
        };
        if let Some(reason) = reason {
            self.refuse(client, reason);
            return self.close(client, reason);
        }
        if let Some(of) = self.clients.get(client) {
            of.greeted = Some(Greeted { name, rights, endpoint: EndpointState::None });
        }
        let now_ns = self.now_ns();
        self.home.renew(now_ns, client);
        let fabrics = self.fabrics.iter().map(|open| open.fabric.name().to_owned()).collect();
        let (name, host) = (self.options.name.clone(), self.host.clone());
        let (incarnation, identity) = (self.incarnation, self.identity);
        let keeps = self.store.is_some();
        let welcome = Welcome { name, host, fabrics, rights, incarnation, identity, keeps };
        self.tell(client, Ok(ServerResponse::Welcome(welcome)));
    }

    /// Makes this side of a connection of a fabric. The client connects when it has its address, so
    /// that a thread waits for it.
    fn connect(
        &mut self,
        client: ClientId,
        fabric: &str,
        address: Vec<u8>,
    ) -> Result<Vec<u8>, PoolError> {
        let open = self.fabrics.iter().find(|open| open.fabric.name() == fabric);
        let open = open.ok_or_else(|| refused("the server does not have that fabric"))?;
        let greeted = self.clients.greeted(client).filter(|of| of.endpoint == EndpointState::None);
        let greeted = greeted.ok_or_else(|| refused("this client has a connection already"))?;
        let kind = open.kind;
        let failed = |error: &dyn std::fmt::Display| refused(&format!("cannot connect: {error}"));
        let offer = open.fabric.offer(SERVER_END).map_err(|error| failed(&error))?;
        let own = offer.address();
        let (connects, wakes) = (self.connects.clone(), std::sync::Arc::clone(&self.wakes));
        let thread = std::thread::Builder::new().name("connect".into()).spawn(move || {
            // The server may have ended meanwhile.
            let _ = connects.send((client, offer.connect(&address)));
            wakes.signal();
        });
        thread.map_err(|error| failed(&error))?;
        self.connecting += 1;
        greeted.endpoint = EndpointState::Connecting(kind);
        Ok(own)
    }

    /// A thread has connected a client, or failed to.
    pub(super) fn connected(
        &mut self,
        client: ClientId,
        endpoint: Result<Box<dyn Endpoint>, FabricError>,
    ) {
        let Some(of) = self.clients.get(client).filter(|of| !of.closing) else { return };
        let Some(greeted) = &mut of.greeted else { return };
        match (endpoint, greeted.endpoint) {
            (Ok(endpoint), EndpointState::Connecting(kind)) => {
                greeted.endpoint = EndpointState::Ready(kind);
                // A table that is being dropped, or compared, goes on.
                let waiting = of.waiting.take_if(|of| matches!(of, Waiting::Endpoint(_)));
                self.ask_mover(client, Command::Add(client, endpoint));
                if let Some(Waiting::Endpoint(request)) = waiting {
                    self.answer(client, request);
                }
            }
            (Err(error), _) => self.close(client, &error.to_string()),
            (Ok(_), _) => {}
        }
    }

    /// Keys of extents of kept versions, for the fabric of a client.
    fn keys(&mut self, client: ClientId, extents: &[u32]) -> Result<Vec<Vec<u8>>, PoolError> {
        let kind = match self.clients.greeted(client).map(|greeted| greeted.endpoint) {
            Some(EndpointState::Ready(kind) | EndpointState::Connecting(kind)) => kind,
            _ => return Err(refused("this client has no connection to read by")),
        };
        let key = |number: &u32| {
            let published = self.home.published(*number);
            let key = published.and_then(|_| self.extents.key(*number, kind));
            key.map(|key| key.encode().to_vec())
        };
        let keys: Option<Vec<_>> = extents.iter().map(key).collect();
        keys.ok_or_else(|| refused("there is no such extent"))
    }

    /// Ends the connections of a client. What is its own is freed when its endpoint is closed.
    pub(super) fn close(&mut self, client: ClientId, why: &str) {
        let leases: Vec<u64> = self.home.leases_of(client).collect();
        let Some(of) = self.clients.get(client).filter(|of| !of.closing) else { return };
        of.closing = true;
        let name = of.greeted.as_ref().map_or("a stranger", |greeted| greeted.name.as_str());
        tracing::info!(client = name, why, "a client has ended");
        for lease in leases {
            self.clients.tell(client, &ServerResponse::Broken { lease, reason: why.to_owned() });
        }
        self.clients.hang_up(client);
        self.ask_mover(client, Command::Close(client));
    }

    fn is_connecting(&mut self, client: ClientId) -> bool {
        let endpoint = self.clients.greeted(client).map(|greeted| greeted.endpoint);
        matches!(endpoint, Some(EndpointState::Connecting(_)))
    }

    /// The name of a client that may change tables.
    pub(super) fn writer_name(&mut self, client: ClientId) -> Result<String, PoolError> {
        match self.clients.greeted(client) {
            Some(greeted) if greeted.rights == Rights::Write => Ok(greeted.name.clone()),
            _ => Err(refused("this client may read tables, and neither load nor drop them")),
        }
    }

    pub(super) fn defer(&mut self, client: ClientId, waiting: Waiting) {
        if let Some(of) = self.clients.get(client) {
            of.waiting = Some(waiting);
        }
    }

    pub(super) fn ask_mover(&self, client: ClientId, command: Command) {
        let at = usize::try_from(client).unwrap_or(0) % self.movers.len();
        self.movers[at].ask(command);
    }

    pub(super) fn refuse(&mut self, client: ClientId, reason: &str) {
        self.tell(client, Err(refused(reason)));
    }

    pub(super) fn tell(&mut self, client: ClientId, answer: Result<ServerResponse, PoolError>) {
        // What follows from the end of a load is not refused once more, and who makes a table asks
        // for it before.
        use PoolError::{GivenUp, NoTable};
        let is_refusal = !matches!(answer, Ok(_) | Err(GivenUp { .. } | NoTable { .. }));
        self.refusals += u64::from(is_refusal);
        self.clients.tell(client, &answer.unwrap_or_else(ServerResponse::Failed));
    }
}

/// Whether a request is one of a client that loads or drops tables, or of another server.
fn changes_tables(request: &ClientRequest) -> bool {
    use ClientRequest::{
        Abort, Begin, Claim, Commit, Distribute, Drop, Forget, Grant, HandIn, Hold, Release,
        Relocate, Replace, Seal,
    };
    let of_load = matches!(
        request,
        Begin { .. }
            | Grant { .. }
            | Distribute { .. }
            | Seal { .. }
            | Commit { .. }
            | Replace { .. }
            | HandIn { .. }
            | Abort { .. }
    );
    let of_server =
        matches!(request, Hold { .. } | Release { .. } | Relocate { .. } | Claim { .. });
    of_load || of_server || matches!(request, Drop { .. } | Forget { .. })
}

pub(super) fn refused(reason: &str) -> PoolError {
    PoolError::Refused { reason: reason.to_owned() }
}
