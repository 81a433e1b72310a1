//! Tables of this server whose extents lie on other servers, too.
//!
//! ```text
//!   all writers have committed ─▶ Hold to each other server ─▶ all hold ─▶ the version appears
//!                                                      one does not ─▶ Release to all, no version
//!   the last version that has an extent goes ─▶ Release
//! ```
//!
//! Of servers in memory the connection to another one is the lease: when it ends, that server frees
//! the extents that it holds for this one, and the tables that lay there can be dropped or loaded
//! anew and nothing else. Servers that save [introduce themselves](super::introductions) instead.

use std::collections::{BTreeMap, BTreeSet};

use super::loads::{misuse, taking_part};
use super::{ClientId, Effect, Home};
use crate::error::PoolError;
use crate::manifest::{ExtentHolder, HOLDERS_MAX, Manifest};
use crate::pointer::ExtentId;
use crate::wire::{NAME_BYTES_MAX, ServerPlace};

/// The number of another server: that of [`ExtentId::server`].
pub type PeerId = u16;

/// Connections with other servers in the life of a server at most.
pub const PEERS_MAX: usize = 4096;

/// A request to another server.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HoldRequest {
    /// The server.
    pub peer: PeerId,
    /// Where it is.
    pub place: ServerPlace,
    /// The load.
    pub load: u64,
    /// The extents, each with its used bytes.
    pub extents: Vec<(u32, u32)>,
    /// Extents of the load that no version has.
    pub unused: Vec<u32>,
}

impl From<HoldRequest> for Effect {
    fn from(request: HoldRequest) -> Self {
        Effect::Hold(Box::new(request))
    }
}

/// A server that has extents of tables of this one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct OtherServer {
    pub(super) place: ServerPlace,
    /// The reason why the extents that it held are lost.
    pub(super) lost: Option<String>,
    /// Of a server that saves: the connection that stands or is being made.
    pub(super) link: Option<u64>,
    /// The address at which it was reached last.
    pub(super) reached: Option<String>,
    /// Extents that it should have, and has not.
    pub(super) missing: BTreeSet<u32>,
    /// Of a server that saves and was started anew: the incarnation before.
    pub(super) before: Option<u32>,
}

impl OtherServer {
    pub(super) fn new(place: ServerPlace) -> Self {
        let missing = BTreeSet::new();
        Self { place, lost: None, link: None, reached: None, missing, before: None }
    }
}

impl Home {
    /// The numbers of the servers over which a load is spread.
    ///
    /// # Errors
    /// When the client does not take part, and for too many servers.
    pub fn distribute(
        &mut self,
        client: ClientId,
        load: u64,
        servers: Vec<ServerPlace>,
    ) -> Result<Vec<PeerId>, PoolError> {
        taking_part(&mut self.loads, client, load)?;
        check_places(&servers)?;
        let numbers: Result<Vec<PeerId>, _> =
            servers.into_iter().map(|place| self.number_of(place)).collect();
        let numbers = numbers?;
        if let Some(state) = self.loads.get_mut(&load) {
            state.distribute_over(&numbers);
        }
        Ok(numbers)
    }

    /// The number of another server, which is there. One that saves keeps its number for as long as
    /// it has its directory, wherever it listens.
    pub(super) fn number_of(&mut self, place: ServerPlace) -> Result<PeerId, PoolError> {
        let saves = self.saves;
        let is = |of: &Option<OtherServer>| match of {
            Some(of) if saves => of.place.identity == place.identity,
            Some(of) => of.place == place && of.lost.is_none(),
            None => false,
        };
        if let Some(at) = self.others.iter().position(is) {
            return Ok(at as PeerId + 1);
        }
        let other = Some(OtherServer::new(place));
        if let Some(at) = self.others.iter().position(Option::is_none) {
            self.others[at] = other;
            return Ok(at as PeerId + 1);
        }
        if self.others.len() >= PEERS_MAX {
            let reason = format!("the server was connected with {PEERS_MAX} others: restart it");
            return Err(PoolError::Refused { reason });
        }
        self.others.push(other);
        Ok(self.others.len() as PeerId)
    }

    pub(super) fn other(&self, peer: PeerId) -> Option<&OtherServer> {
        self.others.get(usize::from(peer.checked_sub(1)?))?.as_ref()
    }

    pub(super) fn other_mut(&mut self, peer: PeerId) -> Option<&mut OtherServer> {
        self.others.get_mut(usize::from(peer.checked_sub(1)?))?.as_mut()
    }

    /// Another server, if messages reach it.
    fn reachable(&self, peer: PeerId) -> Option<&OtherServer> {
        let other = self.other(peer)?;
        (other.lost.is_none() && (!self.saves || other.link.is_some())).then_some(other)
    }

    /// The requests by which other servers hold extents of a load, by server.
    pub(super) fn holds(
        &self,
        load: u64,
        extents: &[(ExtentId, u32)],
        unused: &[ExtentId],
    ) -> Vec<HoldRequest> {
        let used = extents.iter().map(|(extent, _)| extent.server);
        let peers: BTreeSet<PeerId> = used.chain(unused.iter().map(|of| of.server)).collect();
        let request = |peer: PeerId| {
            let place = self.reachable(peer)?.place.clone();
            let here = extents.iter().filter(|(extent, _)| extent.server == peer);
            let extents = here.map(|(extent, used)| (extent.number, *used)).collect();
            let here = unused.iter().filter(|extent| extent.server == peer);
            let unused = here.map(|extent| extent.number).collect();
            Some(HoldRequest { peer, place, load, extents, unused })
        };
        peers.into_iter().filter_map(request).collect()
    }

    /// Asks other servers, as far as they are there, to free extents of a load that they do not
    /// hold, and that no version will have.
    pub(super) fn discard(&self, load: u64, extents: &[ExtentId]) -> Vec<Effect> {
        self.holds(load, &[], extents).into_iter().map(Effect::from).collect()
    }

    /// Whether a version that is kept, or that is to appear, has an extent of another server.
    pub(super) fn has_elsewhere(&self, extent: ExtentId) -> bool {
        self.elsewhere.contains_key(&extent) || self.saving.values().any(|of| of.has(extent))
    }

    /// Another server holds the extents of a load, or does not.
    pub fn held(&mut self, load: u64, peer: PeerId, held: Result<(), String>) -> Vec<Effect> {
        let Some(version) = self.saving.get_mut(&load) else { return vec![] };
        if !version.waits.remove(&peer) {
            return vec![];
        }
        match held {
            Ok(()) if !version.waits.is_empty() => vec![],
            Ok(()) => self.is_held(load),
            Err(reason) => {
                let name = self.other(peer).map_or("", |of| of.place.name.as_str());
                let reason = format!("memory server '{name}' does not hold its part: {reason}");
                self.end_saving(load, Err(reason))
            }
        }
    }

    /// The connection of this number with another server has ended; of servers in memory there is
    /// one, 0, and with it what was held there has gone.
    pub fn peer_lost(&mut self, peer: PeerId, link: u64, reason: &str) -> Vec<Effect> {
        let saves = self.saves;
        let Some(other) = self.other_mut(peer) else { return vec![] };
        if saves && other.link != Some(link) {
            // Another connection is in its place.
            return vec![];
        }
        if saves {
            other.link = None;
        } else {
            other.lost.get_or_insert_with(|| reason.to_owned());
        }
        let name = other.place.name.clone();
        // What a server has saved is there again with it.
        let waits = self.saving.iter().filter(|(_, version)| {
            !saves && version.elsewhere.iter().any(|(extent, _)| extent.server == peer)
                || version.waits.contains(&peer)
        });
        let waits: Vec<u64> = waits.map(|(load, _)| *load).collect();
        let reason = format!("memory server '{name}' is gone: {reason}");
        waits.into_iter().flat_map(|load| self.end_saving(load, Err(reason.clone()))).collect()
    }

    /// The name of another server.
    pub fn peer_name(&self, peer: PeerId) -> Option<&str> {
        Some(&self.other(peer)?.place.name)
    }

    /// The servers that hold extents.
    pub(super) fn holders_of(&self, extents: &[(ExtentId, u32)]) -> Vec<ExtentHolder> {
        let numbers = extents.iter().map(|(extent, _)| extent.server);
        let numbers: BTreeSet<PeerId> = numbers.collect();
        let holder = |number| {
            let ServerPlace { name, identity, .. } = &self.other(number)?.place;
            Some(ExtentHolder { number, name: name.clone(), identity: *identity })
        };
        numbers.into_iter().filter_map(holder).collect()
    }

    /// The error of a version whose blocks lay on a server that is gone.
    pub(super) fn loss_of(&self, manifest: &Manifest) -> Option<PoolError> {
        let table = &manifest.table;
        let lost = |holder: &ExtentHolder| {
            let (other, server) = (self.other(holder.number)?, &holder.name);
            let is_missing = |(extent, _): &(ExtentId, u32)| {
                extent.server == holder.number && other.missing.contains(&extent.number)
            };
            if !other.missing.is_empty() && manifest.extents.iter().any(is_missing) {
                let reason = format!("memory server '{server}' has lost its part: load it again");
                return Some(PoolError::Damaged { table: table.clone(), reason });
            }
            let reason = other.lost.as_ref()?;
            let reason = format!(
                "{reason}; a part of table '{table}' lay there: drop it, and load it again"
            );
            Some(PoolError::Lost { server: server.clone(), reason })
        };
        manifest.holders.iter().find_map(lost)
    }

    /// A version that had these extents has gone.
    pub(super) fn release_elsewhere(
        &mut self,
        extents: impl Iterator<Item = ExtentId>,
    ) -> Vec<Effect> {
        let mut unused = vec![];
        for extent in extents {
            let Some(versions) = self.elsewhere.get_mut(&extent) else { continue };
            *versions -= 1;
            if *versions == 0 {
                self.elsewhere.remove(&extent);
                unused.push(extent);
            }
        }
        self.releases(unused.into_iter())
    }

    /// Other servers, as far as they are there, release extents that they hold.
    pub(super) fn releases(&self, extents: impl Iterator<Item = ExtentId>) -> Vec<Effect> {
        let mut by_peer: BTreeMap<PeerId, Vec<u32>> = BTreeMap::new();
        for extent in extents {
            if self.reachable(extent.server).is_some() {
                by_peer.entry(extent.server).or_default().push(extent.number);
            }
        }
        by_peer.into_iter().map(|(peer, extents)| Effect::Release(peer, extents)).collect()
    }
}

/// Refuses more servers than a table may have, and long names.
pub(super) fn check_places(servers: &[ServerPlace]) -> Result<(), PoolError> {
    let is_long = |place: &ServerPlace| {
        place.name.len() > NAME_BYTES_MAX || place.address.len() > NAME_BYTES_MAX
    };
    if servers.len() > HOLDERS_MAX || servers.iter().any(is_long) {
        return Err(misuse("more servers, or longer names, than there may be"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::{LoadMode, TableLoad};
    use crate::manifest::{Block, Codec, Definition, Layout, Strip};
    use crate::pointer::Pointer;
    use crate::wire::StatementId;

    const LOADERS: [ClientId; 2] = [1, 2];
    const STATEMENT: StatementId = StatementId { job: 1, statement: 1 };
    /// A server of tables, as a client of the one that holds their extents.
    const SERVER: ClientId = 9;

    fn place(incarnation: u32) -> ServerPlace {
        let (name, address) = ("m1".into(), "m1:1".into());
        ServerPlace { name, address, identity: incarnation.into(), incarnation }
    }

    /// A load of a table by some nodes, spread over `servers`.
    fn begun(home: &mut Home, table: &str, nodes: usize, servers: u32) -> u64 {
        let columns = vec![Layout::Fixed(1)];
        let definition = Definition { schema: vec![], columns, buckets: vec![], strip_rows: 1 };
        let (table, mode) = (table.into(), LoadMode::Create);
        let load = TableLoad { table, definition, mode, origin: None };
        let mut number = 0;
        for client in &LOADERS[..nodes] {
            number = home.begin(*client, "l", load.clone(), STATEMENT, nodes as u32).unwrap();
        }
        for incarnation in 1..=servers {
            home.distribute(LOADERS[0], number, vec![place(incarnation)]).unwrap();
        }
        number
    }

    fn strip(server: PeerId, number: u32) -> (u32, Strip) {
        let at = Pointer { extent: ExtentId { server, number }, offset: 0 };
        let block = Block { at, bytes: 1, codec: Codec::Plain, nulls: 0, least: 0, greatest: 0 };
        (0, Strip { rows: 1, blocks: vec![block] })
    }

    /// Does with one server what another one asks of it.
    fn deliver(holder: &mut Home, effects: &[Effect]) -> Vec<Effect> {
        let mut freed = vec![];
        for effect in effects {
            freed.extend(match effect {
                Effect::Hold(of) => holder.hold(SERVER, of.load, &of.extents, &of.unused).1,
                Effect::Release(_, extents) => holder.release(SERVER, extents),
                _ => vec![],
            });
        }
        freed
    }

    #[test]
    fn a_load_that_names_an_extent_of_another_version_takes_nothing_from_it() {
        for appears_first in [true, false] {
            let (mut home, mut holder) = (Home::new(0, 1 << 20), Home::new(0, 1 << 20));
            let (right, wrong) = (begun(&mut home, "t", 1, 1), begun(&mut home, "u", 1, 1));
            let extent = holder.grant_part(LOADERS[0], right, 64).unwrap();
            holder.seal(LOADERS[0], right, extent, 1).unwrap();
            let strips = vec![strip(1, extent)];
            let (_, holds) = home.commit(LOADERS[0], right, 0, strips.clone(), true);
            assert_eq!(deliver(&mut holder, &holds), []);
            if appears_first {
                assert_eq!(home.held(right, 1, Ok(())), []);
            }
            let (committed, effects) = home.commit(LOADERS[0], wrong, 0, strips, true);
            assert!(committed.is_err(), "{committed:?}");
            assert_eq!(deliver(&mut holder, &effects), []);
            assert_eq!(holder.published(extent), Some(1));
            if !appears_first {
                assert_eq!(home.held(right, 1, Ok(())), []);
            }
            let tables: Vec<String> = home.tables().into_iter().map(|table| table.name).collect();
            assert_eq!(tables, ["t"]);
            let released = home.drop_table("t").unwrap();
            assert_eq!(deliver(&mut holder, &released), [Effect::Free(extent)]);
        }
    }

    #[test]
    fn a_node_that_has_committed_leaves_nothing_on_other_servers_when_its_load_is_given_up() {
        let (mut home, mut holder) = (Home::new(0, 1 << 20), Home::new(0, 1 << 20));
        let load = begun(&mut home, "t", 2, 1);
        let extents = LOADERS.map(|client| {
            let extent = holder.grant_part(client, load, 64).unwrap();
            holder.seal(client, load, extent, 1).unwrap();
            extent
        });
        let strips = vec![strip(1, extents[0])];
        assert_eq!(home.commit(LOADERS[0], load, 0, strips, true), (Ok(None), vec![]));
        // The other node ends before it has committed.
        assert_eq!(holder.closed(0, LOADERS[1]), [Effect::Free(extents[1])]);
        let given_up = home.closed(0, LOADERS[1]);
        assert_eq!(deliver(&mut holder, &given_up), [Effect::Free(extents[0])]);
        assert_eq!(holder.closed(0, LOADERS[0]), []);
    }

    #[test]
    fn a_part_that_is_not_held_since_another_node_has_ended_is_freed_whole() {
        let (mut home, mut holder) = (Home::new(0, 1 << 20), Home::new(0, 1 << 20));
        let load = begun(&mut home, "t", 2, 1);
        let mut holds = vec![];
        let extents = LOADERS.map(|client| {
            let extent = holder.grant_part(client, load, 64).unwrap();
            holder.seal(client, load, extent, 1).unwrap();
            let strips = vec![strip(1, extent)];
            holds = home.commit(client, load, client as u32 - 1, strips, true).1;
            extent
        });
        assert_eq!(holder.closed(0, LOADERS[1]), [Effect::Free(extents[1])]);
        assert_eq!(deliver(&mut holder, &holds), [], "it holds all of it or nothing");
        let failed = home.held(load, 1, Err("it is not there".into()));
        assert_eq!(deliver(&mut holder, &failed), [Effect::Free(extents[0])]);
        assert!(home.outcome(load, STATEMENT).is_err());
    }

    #[test]
    fn extents_of_a_load_that_is_spread_leave_room_for_lists_of_blocks() {
        for (servers, granted) in [(0, 64), (1, 62)] {
            let mut home = Home::new(0, 64 << 10);
            let load = begun(&mut home, "t", 1, servers);
            // The definition takes some bytes of the last one.
            let kib = |home: &mut Home| home.grant(LOADERS[0], load, 1 << 10);
            let count = std::iter::from_fn(|| kib(&mut home).ok()).count();
            assert_eq!(count, granted - 1);
            let Err(PoolError::Full { needed: 1024, free }) = kib(&mut home) else { panic!() };
            assert!(free < 1024);
        }
    }

    #[test]
    fn a_version_lies_on_as_many_servers_as_a_manifest_may_name() {
        for (servers, appears) in [(HOLDERS_MAX, true), (HOLDERS_MAX + 1, false)] {
            let mut home = Home::new(0, 1 << 24);
            let load = begun(&mut home, "t", 1, servers as u32);
            let strips = (1..=servers as PeerId).map(|server| strip(server, 0)).collect();
            let (committed, _) = home.commit(LOADERS[0], load, 0, strips, true);
            assert_eq!(committed.is_ok(), appears, "{servers}: {committed:?}");
        }
    }
}
