//! Tables of this server whose extents lie on other servers, too.
//!
//! ```text
//!   all writers have committed ─▶ Hold to each other server ─▶ all hold ─▶ the version appears
//!                                                      one does not ─▶ Release to all, no version
//!   the last version that has an extent goes ─▶ Release
//! ```
//!
//! The connection to another server is the lease: when it ends, that server frees what it holds for
//! this one, and the tables that lay there can be dropped or loaded anew and nothing else.

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

/// A server that has extents of tables of this one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct OtherServer {
    place: ServerPlace,
    /// Why what it held is lost.
    lost: Option<String>,
}

impl Home {
    /// The numbers of the servers over which a load is spread.
    ///
    /// # Errors
    /// When the client does not take part, when this server keeps its tables in a directory, and
    /// for too many servers.
    pub fn distribute(
        &mut self,
        client: ClientId,
        load: u64,
        servers: Vec<ServerPlace>,
    ) -> Result<Vec<PeerId>, PoolError> {
        taking_part(&mut self.loads, client, load)?;
        if self.saves {
            return Err(misuse("other servers, and this one keeps its tables in a directory"));
        }
        let is_long = |place: &ServerPlace| {
            place.name.len() > NAME_BYTES_MAX || place.address.len() > NAME_BYTES_MAX
        };
        if servers.len() > HOLDERS_MAX || servers.iter().any(is_long) {
            return Err(misuse("more servers, or longer names, than there may be"));
        }
        let numbers: Result<Vec<PeerId>, _> =
            servers.into_iter().map(|place| self.number_of(place)).collect();
        let numbers = numbers?;
        if let Some(state) = self.loads.get_mut(&load) {
            state.distribute_over(&numbers);
        }
        Ok(numbers)
    }

    fn number_of(&mut self, place: ServerPlace) -> Result<PeerId, PoolError> {
        let is = |of: &OtherServer| of.place == place && of.lost.is_none();
        if let Some(at) = self.others.iter().position(is) {
            return Ok(at as PeerId + 1);
        }
        if self.others.len() >= PEERS_MAX {
            let reason = format!("the server was connected with {PEERS_MAX} others: restart it");
            return Err(PoolError::Refused { reason });
        }
        self.others.push(OtherServer { place, lost: None });
        Ok(self.others.len() as PeerId)
    }

    fn other(&self, peer: PeerId) -> Option<&OtherServer> {
        self.others.get(usize::from(peer.checked_sub(1)?))
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
            let place = self.other(peer).filter(|other| other.lost.is_none())?.place.clone();
            let here = extents.iter().filter(|(extent, _)| extent.server == peer);
            let extents = here.map(|(extent, used)| (extent.number, *used)).collect();
            let here = unused.iter().filter(|extent| extent.server == peer);
            let unused = here.map(|extent| extent.number).collect();
            Some(HoldRequest { peer, place, load, extents, unused })
        };
        peers.into_iter().filter_map(request).collect()
    }

    /// Another server holds the extents of a load, or does not.
    pub fn held(&mut self, load: u64, peer: PeerId, held: Result<(), String>) -> Vec<Effect> {
        let Some(version) = self.saving.get_mut(&load) else { return vec![] };
        if !version.waits.remove(&peer) {
            return vec![];
        }
        match held {
            Ok(()) if !version.waits.is_empty() => vec![],
            Ok(()) => self.end_saving(load, Ok(())),
            Err(reason) => {
                let name = self.other(peer).map_or("", |of| of.place.name.as_str());
                let reason = format!("memory server '{name}' does not hold its part: {reason}");
                self.end_saving(load, Err(reason))
            }
        }
    }

    /// The connection with another server has ended, and with it what was held there.
    pub fn peer_lost(&mut self, peer: PeerId, reason: &str) -> Vec<Effect> {
        let at = usize::from(peer).checked_sub(1);
        let Some(other) = at.and_then(|at| self.others.get_mut(at)) else { return vec![] };
        other.lost.get_or_insert_with(|| reason.to_owned());
        let name = other.place.name.clone();
        let waits = self.saving.iter().filter(|(_, version)| {
            version.elsewhere.iter().any(|(extent, _)| extent.server == peer)
                || version.waits.contains(&peer)
        });
        let waits: Vec<u64> = waits.map(|(load, _)| *load).collect();
        let reason = format!("memory server '{name}' is gone: {reason}");
        waits.into_iter().flat_map(|load| self.end_saving(load, Err(reason.clone()))).collect()
    }

    /// The servers that hold extents.
    pub(super) fn holders_of(&self, extents: &[(ExtentId, u32)]) -> Vec<ExtentHolder> {
        let numbers = extents.iter().map(|(extent, _)| extent.server);
        let numbers: BTreeSet<PeerId> = numbers.collect();
        let holder = |number| {
            let ServerPlace { name, incarnation, .. } = &self.other(number)?.place;
            Some(ExtentHolder { number, name: name.clone(), incarnation: *incarnation })
        };
        numbers.into_iter().filter_map(holder).collect()
    }

    /// The error of a version whose blocks lay on a server that is gone.
    pub(super) fn loss_of(&self, manifest: &Manifest) -> Option<PoolError> {
        let lost = |holder: &ExtentHolder| {
            let reason = self.other(holder.number)?.lost.as_ref()?;
            let table = &manifest.table;
            let reason = format!("{reason}; a part of table '{table}' lay there: load it again");
            Some(PoolError::Lost { server: holder.name.clone(), reason })
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

    /// Tells other servers, as far as they are there, that their extents are not used.
    pub(super) fn releases(&self, extents: impl Iterator<Item = ExtentId>) -> Vec<Effect> {
        let mut by_peer: BTreeMap<PeerId, Vec<u32>> = BTreeMap::new();
        for extent in extents {
            if self.other(extent.server).is_some_and(|other| other.lost.is_none()) {
                by_peer.entry(extent.server).or_default().push(extent.number);
            }
        }
        by_peer.into_iter().map(|(peer, extents)| Effect::Release(peer, extents)).collect()
    }
}
