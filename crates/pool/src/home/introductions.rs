//! Servers that save, and the other servers that have saved parts of their tables.
//!
//! ```text
//!   relocate, decide ─▶ Introduce: connect, claim ─▶ introduced ─▶ hold, release … ─▶ peer_lost
//! ```
//!
//! A server that saves has its tables again after a restart, and so have the others their parts. So
//! a connection between them may end at any time: with the next one a server says which extents its
//! tables have there, and everything else that was held for it is freed. A part that was held for a
//! version that was never saved goes by that, and so does one whose release was lost.

use std::collections::BTreeSet;

use super::distribution::{OtherServer, PEERS_MAX, PeerId, check_places};
use super::loads::misuse;
use super::{Effect, Home};
use crate::error::PoolError;
use crate::manifest::Manifest;
use crate::pointer::ExtentId;
use crate::wire::ServerPlace;

/// An introduction of this server to another one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Introduction {
    /// The other server.
    pub peer: PeerId,
    /// The number of the connection: later ones have higher numbers, also after a restart.
    pub link: u64,
    /// The addresses at which the other server may be, the likeliest first.
    pub addresses: Vec<String>,
    /// The identity of the other server.
    pub of: u64,
    /// The identity of this server.
    pub identity: u64,
    /// The extents that its tables have there.
    pub extents: Vec<u32>,
    /// Whether there are no others; it is not known while a table is damaged.
    pub all: bool,
}

impl Home {
    /// Other servers that save are at these places: this server introduces itself to those with
    /// which it has no connection, or that were started anew.
    ///
    /// # Errors
    /// For too many servers, in one request or in the life of this one.
    pub fn relocate(&mut self, servers: Vec<ServerPlace>) -> Result<Vec<Effect>, PoolError> {
        check_places(&servers)?;
        let mut effects = vec![];
        for place in servers {
            if !self.saves || place.identity == self.identity {
                continue;
            }
            let peer = self.number_of(place.clone())?;
            let Some(other) = self.other_mut(peer) else { continue };
            let is_new = other.place.incarnation != place.incarnation;
            if let Some(link) = other.link.filter(|_| is_new) {
                effects.extend(self.peer_lost(peer, link, "it was started anew"));
            }
            if let Some(other) = self.other_mut(peer).filter(|of| of.link.is_none()) {
                other.place = place;
                effects.extend(self.introduce(peer));
            }
        }
        Ok(effects)
    }

    /// Introduces this server, if it saves, to those of these others with which it has no
    /// connection.
    pub(super) fn reach(&mut self, peers: impl Iterator<Item = PeerId>) -> Vec<Effect> {
        if !self.saves {
            return vec![];
        }
        let peers: BTreeSet<PeerId> = peers.collect();
        let has_none = |peer: &PeerId| self.other(*peer).is_some_and(|of| of.link.is_none());
        let peers: Vec<PeerId> = peers.into_iter().filter(has_none).collect();
        peers.into_iter().filter_map(|peer| self.introduce(peer)).collect()
    }

    fn introduce(&mut self, peer: PeerId) -> Option<Effect> {
        self.links += 1;
        let (link, identity, all) = (self.links, self.identity, self.damaged.is_empty());
        let extents = self.extents_on(peer).into_iter().collect();
        let other = self.other_mut(peer)?;
        other.link = Some(link);
        let named = Some(other.place.address.clone()).filter(|address| !address.is_empty());
        let before = other.reached.clone().filter(|address| Some(address) != named.as_ref());
        let addresses = named.into_iter().chain(before).collect();
        let of = other.place.identity;
        let introduction = Introduction { peer, link, addresses, of, identity, extents, all };
        Some(Effect::Introduce(Box::new(introduction)))
    }

    /// Extents of another server that tables have, or will have: those of a version that is being
    /// saved are held already, or its load fails with the connection.
    fn extents_on(&self, peer: PeerId) -> BTreeSet<u32> {
        let on = |number| ExtentId { server: peer, number };
        let kept = self.elsewhere.range(on(0)..=on(u32::MAX)).map(|(extent, _)| extent.number);
        let held = self.saving.values().filter(|version| !version.waits.contains(&peer));
        let held = held.flat_map(|version| &version.elsewhere);
        let held = held.filter(|(extent, _)| extent.server == peer);
        kept.chain(held.map(|(extent, _)| extent.number)).collect()
    }

    /// Another server was reached at an address, and has all claimed extents but these.
    pub fn introduced(&mut self, peer: PeerId, link: u64, address: &str, missing: Vec<u32>) {
        let Some(other) = self.other_mut(peer).filter(|of| of.link == Some(link)) else { return };
        (other.reached, other.missing) = (Some(address.to_owned()), missing.into_iter().collect());
    }

    /// Gives the servers that have parts of a saved version the numbers by which it names them;
    /// false when they do not agree with another version.
    pub(super) fn know_again(&mut self, manifest: &Manifest) -> bool {
        for holder in &manifest.holders {
            let number = usize::from(holder.number);
            if number == 0 || number > PEERS_MAX {
                return false;
            }
            let (name, identity) = (holder.name.clone(), holder.identity);
            let knows = |of: &OtherServer| of.place.identity == identity;
            let has_another_number = |(at, of): (usize, &Option<OtherServer>)| {
                at + 1 != number && of.as_ref().is_some_and(knows)
            };
            if self.others.iter().enumerate().any(has_another_number) {
                return false;
            }
            if self.others.len() < number {
                self.others.resize(number, None);
            }
            let place = ServerPlace { name, address: String::new(), identity, incarnation: 0 };
            let other = self.others[number - 1].get_or_insert_with(|| OtherServer::new(place));
            if !knows(other) {
                return false;
            }
        }
        true
    }

    /// A server of this name never comes back: tables with a part there are dropped, and what is
    /// held for it is freed. One that is there, of the identity `living`, is not meant. Gives the
    /// tables, and how many extents go.
    ///
    /// # Errors
    /// When the server is connected, and while a version of such a table is being saved.
    pub fn forget(
        &mut self,
        name: &str,
        living: Option<u64>,
    ) -> Result<(Vec<String>, u32, Vec<Effect>), PoolError> {
        let is_meant = |of: &str, identity: u64| of == name && Some(identity) != living;
        let of_servers = |manifest: &Manifest| {
            manifest.holders.iter().any(|holder| is_meant(&holder.name, holder.identity))
        };
        let newest = self.tables.iter().filter(|(table, version)| {
            of_servers(&self.versions[&((*table).clone(), **version)].manifest)
        });
        let tables: Vec<String> = newest.map(|(table, _)| table.clone()).collect();
        // Whichever version it is: its table cannot be dropped until it is saved.
        let is_dropped =
            |version: &Manifest| of_servers(version) || tables.contains(&version.table);
        if self.saving.values().any(|version| is_dropped(&version.manifest)) {
            return Err(misuse("a table with a part there, and a version of it is being saved"));
        }
        let (extents, mut effects) = self.forget_owners(&is_meant)?;
        for table in &tables {
            effects.extend(self.drop_table(table)?);
        }
        Ok((tables, extents, effects))
    }
}
