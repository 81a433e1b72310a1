//! Servers that save, and the other servers that have saved parts of their tables.
//!
//! ```text
//!   relocate, decide ─▶ Introduce: connect, claim ─▶ introduced ─▶ hold, release … ─▶ peer_lost
//! ```
//!
//! A server that saves has its tables again after a restart, and so have the others their parts. So
//! a connection between them may end at any time: with the next one a server says which extents its
//! tables have there, and everything else that was held for it is freed. A part that was held for a
//! version that was never saved goes by that, and so does one whose release was lost. While a table
//! is damaged it is not known what else it has there, and nothing is freed: when the last such
//! table is dropped, the server claims again on the connections that stand.

use std::collections::{BTreeMap, BTreeSet};

use super::distribution::{OtherServer, PEERS_MAX, PeerId, check_places};
use super::loads::misuse;
use super::saving::PreparedVersion;
use super::{Effect, Home};
use crate::error::PoolError;
use crate::manifest::{ExtentHolder, Manifest};
use crate::pointer::ExtentId;
use crate::wire::ServerPlace;

/// An introduction of this server to another one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Introduction {
    /// The other server.
    pub peer: PeerId,
    /// The number of the connection: later ones have higher numbers, also after a restart. One that
    /// stands has its number again when this server claims again.
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
            // A client may have met it before it was started anew, and come behind another one.
            let is_old = other.before == Some(place.incarnation);
            let is_new = other.place.incarnation != place.incarnation && !is_old;
            if is_new {
                other.before = Some(other.place.incarnation);
            }
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
        let link = self.links;
        self.other_mut(peer)?.link = Some(link);
        // A hold that waits there for an answer fails with the connection that has ended.
        let is_held = |version: &PreparedVersion| !version.waits.contains(&peer);
        self.introduction(peer, link, &is_held)
    }

    /// Claims again on all connections that stand, if no table is damaged any more: what the tables
    /// that were dropped have had there is freed.
    pub(super) fn claim_again(&self) -> Vec<Effect> {
        if !self.saves || !self.damaged.is_empty() {
            return vec![];
        }
        let numbers = 1..=self.others.len() as PeerId;
        let linked = numbers.filter_map(|peer| Some((peer, self.other(peer)?.link?)));
        // The holds of a version were asked for on the same connection before.
        linked.filter_map(|(peer, link)| self.introduction(peer, link, &|_| true)).collect()
    }

    fn introduction(
        &self,
        peer: PeerId,
        link: u64,
        is_held: &dyn Fn(&PreparedVersion) -> bool,
    ) -> Option<Effect> {
        let (identity, all) = (self.identity, self.damaged.is_empty());
        let extents = self.extents_on(peer, is_held).into_iter().collect();
        let other = self.other(peer)?;
        let named = Some(other.place.address.clone()).filter(|address| !address.is_empty());
        let before = other.reached.clone().filter(|address| Some(address) != named.as_ref());
        let addresses = named.into_iter().chain(before).collect();
        let of = other.place.identity;
        let introduction = Introduction { peer, link, addresses, of, identity, extents, all };
        Some(Effect::Introduce(Box::new(introduction)))
    }

    /// Extents of another server that tables have, or will have: those of versions that are being
    /// saved, as far as they are held when the claim arrives.
    fn extents_on(
        &self,
        peer: PeerId,
        is_held: &dyn Fn(&PreparedVersion) -> bool,
    ) -> BTreeSet<u32> {
        let on = |number| ExtentId { server: peer, number };
        let kept = self.elsewhere.range(on(0)..=on(u32::MAX)).map(|(extent, _)| extent.number);
        let held = self.saving.values().filter(|version| is_held(version));
        let held = held.flat_map(|version| &version.elsewhere);
        let held = held.filter(|(extent, _)| extent.server == peer);
        kept.chain(held.map(|(extent, _)| extent.number)).collect()
    }

    /// Another server was reached at an address, and has all claimed extents but these. Those of a
    /// load that has failed meanwhile are nobody's.
    pub fn introduced(&mut self, peer: PeerId, link: u64, address: &str, mut missing: Vec<u32>) {
        missing.retain(|number| self.has_elsewhere(ExtentId { server: peer, number: *number }));
        let Some(other) = self.other_mut(peer).filter(|of| of.link == Some(link)) else { return };
        (other.reached, other.missing) = (Some(address.to_owned()), missing.into_iter().collect());
    }

    /// Gives the servers that have parts of a saved version the numbers by which it names them: all
    /// of them, or none and false when they do not agree with another version.
    pub(super) fn know_again(&mut self, holders: &[ExtentHolder]) -> bool {
        let mut known = BTreeMap::new();
        let others = (1..).zip(&self.others);
        let others = others.filter_map(|(number, of)| Some((number, of.as_ref()?.place.identity)));
        for (number, identity) in others {
            known.insert(identity, number);
        }
        let mut used: BTreeSet<PeerId> = known.values().copied().collect();
        for holder in holders {
            if holder.number == 0 || usize::from(holder.number) > PEERS_MAX {
                return false;
            }
            match known.insert(holder.identity, holder.number) {
                Some(before) if before != holder.number => return false,
                Some(_) => {}
                None if !used.insert(holder.number) => return false,
                None => {}
            }
        }
        for holder in holders {
            let number = usize::from(holder.number);
            if self.others.len() < number {
                self.others.resize(number, None);
            }
            let (name, identity) = (holder.name.clone(), holder.identity);
            let place = ServerPlace { name, address: String::new(), identity, incarnation: 0 };
            self.others[number - 1].get_or_insert_with(|| OtherServer::new(place));
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::saving::SavedVersion;
    use super::*;
    use crate::manifest::{Definition, Layout};
    use crate::wire::StatementId;

    /// A saved version with parts on these servers: the number, the identity and an extent of each.
    fn version(table: &str, parts: &[(PeerId, u64, u32)]) -> SavedVersion {
        let holder = |(number, identity, _): &(PeerId, u64, u32)| {
            let (number, identity) = (*number, *identity);
            ExtentHolder { number, name: format!("m{identity}"), identity }
        };
        let extent = |(server, _, number): &(PeerId, u64, u32)| {
            (ExtentId { server: *server, number: *number }, 1)
        };
        let columns = vec![Layout::Fixed(1)];
        let manifest = Manifest {
            table: table.into(),
            version: 1,
            definition: Definition { schema: vec![], columns, buckets: vec![], strip_rows: 1 },
            strips: vec![],
            partitions: vec![0, 0],
            extents: parts.iter().map(extent).collect(),
            holders: parts.iter().map(holder).collect(),
            origin: None,
        };
        let (manifest, bytes) = (Arc::new(manifest), Arc::new(vec![0; 8]));
        let snapshot = StatementId { job: 1, statement: 1 };
        SavedVersion { load: 1, snapshot, manifest, bytes, goes_on: false }
    }

    fn place(identity: u64) -> ServerPlace {
        ServerPlace {
            name: format!("m{identity}"),
            address: "a:1".into(),
            identity,
            incarnation: 1,
        }
    }

    fn home() -> Home {
        Home::new(0, 1 << 20).with_saving().with_identity(100, 1)
    }

    /// The number of another server.
    fn number(home: &mut Home, identity: u64) -> PeerId {
        home.number_of(place(identity)).unwrap()
    }

    #[test]
    fn a_version_that_is_refused_gives_no_server_a_number() {
        let mut home = home();
        home.restore(version("a", &[(1, 7, 1), (2, 8, 1)]), |_| 64).unwrap();
        let before = home.clone();
        for refused in [
            &[(5, 9, 1), (3, 7, 1)][..],
            &[(5, 9, 1), (2, 10, 9)],
            &[(5, 9, 1), (5, 10, 1)],
            &[(5, 9, 1), (6, 9, 1)],
            &[(5, 9, 1), (0, 10, 1)],
            &[(5, 9, 1), (PEERS_MAX as PeerId + 1, 10, 1)],
            // The extent is the first table's.
            &[(5, 9, 1), (1, 7, 1)],
        ] {
            assert!(home.restore(version("b", refused), |_| 64).is_err(), "{refused:?}");
            assert_eq!(home, before, "{refused:?}");
        }
        home.restore(version("b", &[(5, 9, 1), (1, 7, 2)]), |_| 64).unwrap();
        let numbers = [7, 8, 9, 10].map(|identity| number(&mut home, identity));
        assert_eq!(numbers, [1, 2, 5, 3]);
    }

    #[test]
    fn servers_with_parts_of_a_damaged_table_keep_their_numbers() {
        let damaged = version("d", &[(1, 7, 1), (3, 8, 1)]);
        let mut home = home();
        home.set_damaged("d", "a bit".into(), &damaged.manifest.holders);
        assert_eq!([9, 8, 7, 10].map(|identity| number(&mut home, identity)), [2, 3, 1, 4]);
        // It comes back beside a table that was loaded meanwhile.
        let mut home = self::home();
        home.restore(version("b", &[(2, 9, 1), (3, 8, 2)]), |_| 64).unwrap();
        home.restore(damaged, |_| 64).unwrap();
    }

    #[test]
    fn a_client_that_met_a_server_before_it_was_started_anew_ends_no_connection() {
        let mut home = home();
        let of = |incarnation| vec![ServerPlace { incarnation, ..place(7) }];
        let first = 1 << 32;
        assert_eq!(claims(home.relocate(of(1)).unwrap()).len(), 1);
        let again = claims(home.relocate(of(2)).unwrap());
        assert_eq!(again, [(1, first + 2, vec![], true)]);
        for late in [1, 2, 1] {
            assert_eq!(home.relocate(of(late)), Ok(vec![]));
        }
        assert_eq!(claims(home.relocate(of(3)).unwrap()), [(1, first + 3, vec![], true)]);
        // Where nothing stands, each place is tried.
        assert_eq!(home.peer_lost(1, first + 3, "it ended"), []);
        assert_eq!(claims(home.relocate(of(2)).unwrap()).len(), 1);
    }

    /// The introductions among some effects: the number of the connection, and what is claimed.
    fn claims(effects: Vec<Effect>) -> Vec<(PeerId, u64, Vec<u32>, bool)> {
        let claim = |effect| match effect {
            Effect::Introduce(of) => Some((of.peer, of.link, of.extents, of.all)),
            _ => None,
        };
        effects.into_iter().filter_map(claim).collect()
    }

    #[test]
    fn all_is_claimed_on_connections_that_stand_when_no_table_is_damaged_any_more() {
        let mut home = home();
        home.restore(version("a", &[(1, 7, 4), (2, 8, 5)]), |_| 64).unwrap();
        home.set_damaged("d", "a bit".into(), &version("d", &[(3, 9, 1)]).manifest.holders);
        home.set_damaged("e", "a bit".into(), &[]);
        let first = 1 << 32;
        let claimed = claims(home.relocate(vec![place(7), place(9)]).unwrap());
        let of = |all| vec![(1, first + 1, vec![4], all), (3, first + 2, vec![], all)];
        assert_eq!(claimed, of(false));
        assert_eq!(home.drop_table("d"), Ok(vec![]), "it is not known yet what 'e' has there");
        assert_eq!(claims(home.drop_table("e").unwrap()), of(true));
        // The connections stand as before.
        assert_eq!(home.relocate(vec![place(7), place(9)]), Ok(vec![]));
        assert_eq!(home.peer_lost(1, first + 1, "it ended"), []);
        let again = claims(home.relocate(vec![place(7)]).unwrap());
        assert_eq!(again, [(1, first + 3, vec![4], true)]);
        // What is missing of no version is no loss.
        home.introduced(1, first + 3, "a:1", vec![77]);
        assert!(!home.tables()[0].damaged);
        home.introduced(1, first + 3, "a:1", vec![4, 77]);
        assert!(home.tables()[0].damaged);
    }
}
