//! The requests that other threads do a part of: loads, comparisons, the end of a table; and what
//! those threads have done.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fabric::{FabricError, RemoteKey, Slab};
use pool::PoolError;
use pool::home::{Effect, Home};
use pool::wire::{ClientRequest, ServerResponse};

use super::answers::refused;
use super::checker::Check;
use super::clients::Waiting;
use super::mover::{Command, Event};
use super::store::StoreTask;
use super::{ClientId, Control};

/// How long an extent is not granted because memory is on its way back.
const ROOM: Duration = Duration::from_secs(2);

impl Control {
    /// Answers a request that had to wait, or has it wait again.
    pub(super) fn retry(&mut self, client: ClientId, waiting: Waiting) {
        match waiting {
            Waiting::Room(ClientRequest::Grant { load, bytes, part }, since) => {
                self.grant(client, (load, part), bytes, since);
            }
            Waiting::Connect(request) => self.answer(client, request),
            _ => {}
        }
    }

    /// Grants an extent to a client that asks for it since then; `part` tells whether the load is
    /// one of another server's table.
    pub(super) fn grant(
        &mut self,
        client: ClientId,
        (load, part): (u64, bool),
        bytes: u32,
        since: Instant,
    ) {
        let ask = |home: &mut Home| {
            if part {
                home.grant_part(client, load, bytes)
            } else {
                home.grant(client, load, bytes)
            }
        };
        let granted = match ask(&mut self.home) {
            Err(PoolError::Full { .. }) if since.elapsed() < ROOM => {
                let effects = self.home.forget_statements();
                self.act(effects);
                if self.home.is_freeing() {
                    let request = ClientRequest::Grant { load, bytes, part };
                    return self.defer(client, Waiting::Room(request, since));
                }
                ask(&mut self.home)
            }
            granted => granted,
        };
        let granted = granted.and_then(|extent| {
            let range = self.extents.make(extent, bytes, client);
            range.map(|range| (extent, range)).map_err(|error| {
                let error = error.to_string();
                let effects = self.home.abort(client, load, &error);
                self.act(effects);
                refused(&error)
            })
        });
        match granted {
            Ok((extent, range)) => {
                self.defer(client, Waiting::Grant { load, extent, bytes });
                self.ask_mover(client, Command::Export(client, extent, range));
            }
            Err(error) => {
                // A load that finds no room asks again, for less and for other strips.
                let full = matches!(error, PoolError::Full { .. }).then_some((client, load));
                if full.is_some() && self.full == full {
                    return self.clients.tell(client, &ServerResponse::Failed(error));
                }
                self.full = full.or(self.full);
                self.tell(client, Err(error));
            }
        }
    }

    /// Has the bytes of extents compared with what was written.
    pub(super) fn verify(&mut self, client: ClientId, numbers: &[u32]) {
        let distinct: BTreeSet<u32> = numbers.iter().copied().collect();
        if distinct.len() < numbers.len() {
            return self.refuse(client, "an extent is named twice");
        }
        let mut extents = Vec::with_capacity(numbers.len());
        for number in numbers {
            match self.extents.hold(*number) {
                Some((slab, used, crc)) => extents.push((*number, slab, used, crc)),
                None => {
                    extents.into_iter().for_each(|(held, ..)| self.let_go(held));
                    return self.refuse(client, &format!("there is no extent {number}"));
                }
            }
        }
        let waiting = Arc::new(());
        let waits = Arc::downgrade(&waiting);
        self.defer(client, Waiting::Verify(waiting));
        self.verifier.ask(Check::Verify { client, extents, waits });
    }

    /// Drops a table; the client hears it when the table will not come back by a restart.
    pub(super) fn drop_table(&mut self, client: ClientId, table: String) {
        let effects = match self.home.drop_table(&table) {
            Ok(effects) => effects,
            Err(error) => return self.tell(client, Err(error)),
        };
        self.remove_tables(client, vec![table], ServerResponse::Done);
        self.act(effects);
        let effects = self.home.forget_statements();
        self.act(effects);
    }

    /// Gives up a server that never comes back.
    pub(super) fn forget(&mut self, client: ClientId, name: &str, living: Option<u64>) {
        match self.home.forget(name, living) {
            Ok((tables, extents, effects)) => {
                let answer = ServerResponse::Forgotten { tables: tables.clone(), extents };
                self.remove_tables(client, tables, answer);
                self.act(effects);
            }
            Err(error) => self.tell(client, Err(error)),
        }
    }

    /// Answers a client when tables will not come back by a restart.
    fn remove_tables(&mut self, client: ClientId, tables: Vec<String>, answer: ServerResponse) {
        match &self.store {
            Some(store) => {
                store.ask(StoreTask::Drop { client, tables });
                self.defer(client, Waiting::Drop(Box::new(answer)));
            }
            None => self.tell(client, Ok(answer)),
        }
    }

    /// Tables were removed from the disk, or could not be.
    fn dropped(&mut self, client: ClientId, dropped: Result<(), String>) {
        let Some(of) = self.clients.get(client) else { return };
        let Some(Waiting::Drop(answer)) = of.waiting.take_if(|of| matches!(of, Waiting::Drop(_)))
        else {
            return;
        };
        let answer = dropped.map(|()| *answer).map_err(|reason| {
            refused(&format!("the table is dropped, and its file may be left: {reason}"))
        });
        self.tell(client, answer);
    }

    /// Holds extents for the server that has their table; the answer waits until that is saved.
    pub(super) fn hold(
        &mut self,
        client: ClientId,
        load: u64,
        extents: &[(u32, u32)],
        unused: &[u32],
    ) {
        let (held, effects) = self.home.hold(client, load, extents, unused);
        let is_of = |effect: &Effect| match effect {
            Effect::SavePart(part) => part.client == Some(client),
            _ => false,
        };
        if effects.iter().any(is_of) {
            self.defer(client, Waiting::Part);
        } else {
            self.tell(client, held.map(|()| ServerResponse::Done));
        }
        self.act(effects);
    }

    /// Another thread has done something.
    pub(super) fn happened(&mut self, event: Event) {
        match event {
            Event::Exported(client, extent, key) => self.exported(client, extent, key),
            Event::Revoked(client, extent) => self.revoked(client, extent),
            Event::Sealed(client, extent, sealed) => self.sealed(client, extent, sealed),
            Event::Verified(client, numbers, damaged) => {
                numbers.into_iter().for_each(|number| self.let_go(number));
                let intact = damaged.map_or(Ok(ServerResponse::Done), |number| {
                    Err(refused(&format!("extent {number} is damaged")))
                });
                self.tell_waiting(client, &|waiting| matches!(waiting, Waiting::Verify(_)), intact);
            }
            Event::LetGo(extent) => self.let_go(extent),
            Event::Saved(load, saved) => {
                let effects = self.home.saved(load, saved);
                self.act(effects);
            }
            Event::Held(load, peer, held) => {
                let effects = self.home.held(load, peer, held);
                self.act(effects);
            }
            Event::PeerLost(peer, link, reason) => {
                let name = self.home.peer_name(peer).unwrap_or_default();
                tracing::warn!("memory server '{name}' is gone: {reason}");
                let effects = self.home.peer_lost(peer, link, &reason);
                self.act(effects);
            }
            Event::Introduced(peer, link, address, missing) => {
                if !missing.is_empty() {
                    let count = missing.len();
                    tracing::error!("the memory server at {address} has lost {count} extents");
                }
                self.home.introduced(peer, link, &address, missing);
            }
            Event::PartSaved(client, saved) => {
                let saved = saved.map(|()| ServerResponse::Done);
                let saved = saved.map_err(|reason| refused(&format!("not saved: {reason}")));
                self.tell_waiting(client, &|waiting| matches!(waiting, Waiting::Part), saved);
            }
            Event::Then(effect) => self.say(effect),
            Event::Dropped(client, dropped) => self.dropped(client, dropped),
            Event::Closed(client) => {
                self.clients.remove(client);
                let now_ns = self.now_ns();
                let effects = self.home.closed(now_ns, client);
                self.act(effects);
            }
        }
    }

    /// Answers a client that waits for this.
    fn tell_waiting(
        &mut self,
        client: ClientId,
        is: &dyn Fn(&Waiting) -> bool,
        answer: Result<ServerResponse, PoolError>,
    ) {
        let waits = self.clients.get(client).filter(|of| of.waiting.as_ref().is_some_and(is));
        if let Some(of) = waits {
            of.waiting = None;
            self.tell(client, answer);
        }
    }

    /// Another thread does not use the memory of an extent any more.
    fn let_go(&mut self, extent: u32) {
        if self.extents.let_go(extent) {
            self.home.freed(extent);
        }
    }

    fn exported(&mut self, client: ClientId, number: u32, key: Result<RemoteKey, FabricError>) {
        let waiting = self.clients.get(client).and_then(|of| match of.waiting {
            Some(Waiting::Grant { load, extent, bytes }) if extent == number => {
                of.waiting = None;
                Some((load, bytes))
            }
            _ => None,
        });
        let is_there = self.extents.exported(number, key.as_ref().ok().copied());
        let answer = match key {
            Ok(key) if !is_there => {
                // Its load was given up meanwhile.
                self.ask_mover(client, Command::Revoke(client, number, key));
                Err(given_up())
            }
            Ok(key) => {
                let bytes = waiting.map_or(0, |(_, bytes)| bytes);
                Ok(ServerResponse::Extent { number, bytes, key: key.encode().to_vec() })
            }
            Err(error) => {
                let error = error.to_string();
                if !is_there {
                    self.home.freed(number);
                }
                if let Some((load, _)) = waiting {
                    let effects = self.home.abort(client, load, &error);
                    self.act(effects);
                }
                Err(refused(&error))
            }
        };
        if waiting.is_some() {
            self.tell(client, answer);
        }
    }

    fn revoked(&mut self, client: ClientId, number: u32) {
        let waiting = self.clients.get(client).and_then(|of| match of.waiting {
            Some(Waiting::Seal { extent, used, crc, .. }) if extent == number => Some((used, crc)),
            _ => None,
        });
        match (waiting, self.extents.take_open(number)) {
            (Some((used, crc)), Some(slab)) => {
                self.sealer.ask(Check::Seal { client, number, slab, used, crc });
            }
            (waiting, slab) => {
                // It is that of a load that was given up, whose memory has come back.
                self.extents.was_sealing(number, false);
                drop(slab);
                self.home.freed(number);
                if waiting.is_some() {
                    let is_seal = |of: &Waiting| matches!(of, Waiting::Seal { .. });
                    self.tell_waiting(client, &is_seal, Err(given_up()));
                }
            }
        }
    }

    fn sealed(&mut self, client: ClientId, number: u32, sealed: Result<(Slab, u32, u32), String>) {
        let load = self.clients.get(client).and_then(|of| match of.waiting {
            Some(Waiting::Seal { load, extent, .. }) if extent == number => {
                of.waiting = None;
                Some(load)
            }
            _ => None,
        });
        // The load was given up meanwhile, or is when the end of its client is dealt with. Nobody
        // else has the memory.
        if !self.extents.was_sealing(number, sealed.is_ok() && load.is_some()) {
            drop(sealed);
            self.home.freed(number);
            if load.is_some() {
                self.tell(client, Err(given_up()));
            }
            return;
        }
        let Some(load) = load else { return };
        let published = sealed.and_then(|(slab, used, crc)| {
            self.extents.publish(number, slab, used, crc).map(|()| used)
        });
        let sealed = published.map_err(|error| refused(&error));
        let sealed = sealed.and_then(|used| self.home.seal(client, load, number, used));
        match (&sealed, &self.store) {
            (Ok(()), Some(store)) => {
                if let Some((slab, used, crc)) = self.extents.hold(number) {
                    store.ask(StoreTask::Extent { number, slab, used, crc });
                }
            }
            (Ok(()), None) => {}
            (Err(error), _) => {
                let effects = self.home.abort(client, load, &error.to_string());
                self.act(effects);
            }
        }
        self.tell(client, sealed.map(|()| ServerResponse::Done));
    }
}

/// The answer to a request of a load that has ended meanwhile.
fn given_up() -> PoolError {
    PoolError::GivenUp { reason: "while a request of it was under way".into() }
}
