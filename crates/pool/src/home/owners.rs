//! The servers whose tables have parts on this one, if it saves them.
//!
//! Extents are held for the directory of the other server, whatever becomes of a connection: it
//! introduces itself by its identity, and the connection of the highest number speaks for it.

use std::collections::BTreeSet;

use super::loads::misuse;
use super::{ClientId, Effect, Extent, Home};
use crate::error::PoolError;
use crate::wire::NAME_BYTES_MAX;

/// Servers for which extents are saved, or that have introduced themselves, at most.
pub const OWNERS_MAX: usize = 4096;

/// Extents that are held for one of them at most: those of several tables.
pub const PART_EXTENTS_MAX: usize = 1 << 24;

/// The holder of extents of this server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum HeldFor {
    /// A server in memory: they go with its connection.
    Connection(ClientId),
    /// The server with the directory of this identity.
    Directory(u64),
}

/// Another server that keeps its tables.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct PartOwner {
    name: String,
    /// The connection that speaks for it.
    client: Option<ClientId>,
    /// Its number.
    link: u64,
    /// What it has claimed until it has named all.
    claimed: BTreeSet<u32>,
}

impl PartOwner {
    fn new(name: String) -> Self {
        Self { name, client: None, link: 0, claimed: BTreeSet::new() }
    }
}

/// The extents that are held for another server.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HeldPart {
    /// The identity of the other server.
    pub owner: u64,
    /// Its name.
    pub name: String,
    /// The extents with their used bytes; the numbers rise.
    pub extents: Vec<(u32, u32)>,
    /// The client that is answered when this is saved.
    pub client: Option<ClientId>,
}

impl Home {
    /// Another server introduces itself and names extents that it has here; gives those that are
    /// not held for it. With the `last` ones everything else that is held for it is freed.
    ///
    /// # Errors
    /// When this server does not save, or knows too many others, and when a connection of a higher
    /// number speaks for the other one.
    pub fn claim(
        &mut self,
        client: ClientId,
        (identity, name): (u64, String),
        link: u64,
        extents: &[u32],
        last: bool,
    ) -> (Result<Vec<u32>, PoolError>, Vec<Effect>) {
        let refused = |reason: String| (Err(PoolError::Refused { reason }), vec![]);
        if !self.saves {
            return refused("this server keeps no tables in a directory (--dir)".to_owned());
        }
        if identity == self.identity || name.len() > NAME_BYTES_MAX {
            return (Err(misuse("a server that cannot be another one")), vec![]);
        }
        if !self.owners.contains_key(&identity) && self.owners.len() >= OWNERS_MAX {
            return refused(format!("it knows {OWNERS_MAX} other servers, as many as it may"));
        }
        let owner = self.owners.entry(identity).or_insert_with(|| PartOwner::new(name.clone()));
        if owner.client != Some(client) && link <= owner.link {
            return refused("a later connection is in the place of this one".to_owned());
        }
        if owner.client != Some(client) {
            (owner.client, owner.link, owner.name) = (Some(client), link, name);
            owner.claimed.clear();
        }
        let held_for = HeldFor::Directory(identity);
        let held = self.held_for.entry(held_for).or_default();
        let (here, missing): (Vec<u32>, Vec<u32>) =
            extents.iter().partition(|number| held.contains(number));
        owner.claimed.extend(here);
        if !last {
            return (Ok(missing), vec![]);
        }
        let claimed = std::mem::take(&mut owner.claimed);
        let gone: Vec<u32> = held.difference(&claimed).copied().collect();
        (Ok(missing), self.end_holds(held_for, gone.into_iter()))
    }

    /// For whom a client has extents held.
    ///
    /// # Errors
    /// When this server saves, and no server speaks by this connection.
    pub(super) fn holder(&self, client: ClientId) -> Result<HeldFor, PoolError> {
        if !self.saves {
            return Ok(HeldFor::Connection(client));
        }
        let speaks = self.owners.iter().find(|(_, owner)| owner.client == Some(client));
        let identity = speaks.map(|(identity, _)| HeldFor::Directory(*identity));
        identity.ok_or_else(|| misuse("extents for a server that has not introduced itself"))
    }

    /// Has what is held for another server saved.
    pub(super) fn save_part(&self, held_for: HeldFor, client: Option<ClientId>) -> Option<Effect> {
        let HeldFor::Directory(owner) = held_for else { return None };
        let name = self.owners.get(&owner)?.name.clone();
        let used = |number: &u32| Some((*number, self.extents.get(number)?.used?));
        let extents = self.held_for.get(&held_for)?.iter().filter_map(used).collect();
        Some(Effect::SavePart(Box::new(HeldPart { owner, name, extents, client })))
    }

    /// A connection has ended; what it spoke for stays.
    pub(super) fn end_owner(&mut self, client: ClientId) {
        for owner in self.owners.values_mut().filter(|owner| owner.client == Some(client)) {
            (owner.client, owner.claimed) = (None, BTreeSet::new());
        }
    }

    /// Has again what was held for another server before a restart; `bytes_of` tells the bytes of
    /// an extent's memory by its used ones.
    ///
    /// # Errors
    /// When it does not agree with what is there; [`PoolError::Full`].
    pub fn restore_part(
        &mut self,
        part: HeldPart,
        bytes_of: impl Fn(u32) -> u64,
    ) -> Result<(), PoolError> {
        let HeldPart { owner, name, extents, .. } = part;
        let is_strange = |number: u32| self.extents.contains_key(&number) || number == u32::MAX;
        let is_known = self.owners.contains_key(&owner) || owner == self.identity;
        if is_known || extents.iter().any(|(number, _)| is_strange(*number)) {
            return Err(PoolError::Malformed { what: "part" });
        }
        let needed = extents.iter().map(|(_, used)| bytes_of(*used)).sum();
        let free = self.bytes_max - self.bytes;
        if needed > free {
            return Err(PoolError::Full { needed, free });
        }
        self.bytes += needed;
        let held = self.held_for.entry(HeldFor::Directory(owner)).or_default();
        for (number, used) in extents {
            held.insert(number);
            let (bytes, used) = (bytes_of(used), Some(used));
            self.extents.insert(number, Extent { bytes, used, load: None, versions: 1 });
            self.extents_made = self.extents_made.max(number + 1);
        }
        self.owners.insert(owner, PartOwner::new(name));
        Ok(())
    }

    /// Frees what is held for servers that never come back; gives how many extents.
    pub(super) fn forget_owners(
        &mut self,
        is_meant: &dyn Fn(&str, u64) -> bool,
    ) -> Result<(u32, Vec<Effect>), PoolError> {
        let meant = self.owners.iter().filter(|(identity, of)| is_meant(&of.name, **identity));
        let meant: Vec<(u64, bool)> =
            meant.map(|(identity, of)| (*identity, of.client.is_some())).collect();
        if meant.iter().any(|(_, speaks)| *speaks) {
            let reason = "the memory server to be forgotten is connected: stop it".to_owned();
            return Err(PoolError::Refused { reason });
        }
        let (mut count, mut effects) = (0, vec![]);
        for (identity, _) in meant {
            let held_for = HeldFor::Directory(identity);
            let held = self.held_for.get(&held_for).cloned().unwrap_or_default();
            count += held.len() as u32;
            effects.extend(self.end_holds(held_for, held.into_iter()));
            self.held_for.remove(&held_for);
            self.owners.remove(&identity);
        }
        Ok((count, effects))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOADER: ClientId = 1;
    const FIRST: ClientId = 2;
    const LATER: ClientId = 3;
    const OWNER: u64 = 77;

    fn owner() -> (u64, String) {
        (OWNER, "m0".into())
    }

    /// A server that saves, with two sealed extents of load 9.
    fn written() -> (Home, [u32; 2]) {
        let mut home = Home::new(0, 1 << 20).with_saving().with_identity(5, 1);
        let extents = [(); 2].map(|()| {
            let extent = home.grant_part(LOADER, 9, 64).unwrap();
            home.seal(LOADER, 9, extent, 60).unwrap();
            extent
        });
        (home, extents)
    }

    #[test]
    fn extents_are_held_for_the_directory_and_the_latest_connection_speaks_for_it() {
        let (mut home, [first, second]) = written();
        let of = [(first, 60), (second, 60)];
        assert!(home.hold(FIRST, 9, &of, &[]).0.is_err(), "it has not introduced itself");
        assert_eq!(home.claim(FIRST, owner(), 4, &[7], true), (Ok(vec![7]), vec![]));
        let (held, effects) = home.hold(FIRST, 9, &of, &[]);
        let [Effect::SavePart(part)] = &effects[..] else { panic!("{effects:?}") };
        assert_eq!((held, &part.extents[..], part.client), (Ok(()), &of[..], Some(FIRST)));
        assert_eq!(home.closed(0, FIRST), [], "they stay");
        assert_eq!(home.claim(LATER, owner(), 6, &[first], false), (Ok(vec![]), vec![]));
        assert!(home.claim(FIRST, owner(), 5, &[], true).0.is_err(), "it was on its way for long");
        assert_eq!(home.release(FIRST, &[first]), []);
        let (missing, effects) = home.claim(LATER, owner(), 6, &[], true);
        let [Effect::SavePart(part), Effect::Free(freed)] = &effects[..] else {
            panic!("{effects:?}")
        };
        assert_eq!((missing, &part.extents[..], *freed), (Ok(vec![]), &of[..1], second));
        assert_eq!(home.release(LATER, &[first]).last(), Some(&Effect::Free(first)));
        [first, second].into_iter().for_each(|extent| home.freed(extent));
        assert_eq!(home.stat().bytes, 0);
    }

    #[test]
    fn a_part_is_there_again_and_goes_with_a_server_that_is_forgotten() {
        let mut home = Home::new(0, 1 << 20).with_saving().with_identity(5, 1);
        let part = |owner, extents: Vec<(u32, u32)>| HeldPart {
            owner,
            name: "m0".into(),
            extents,
            client: None,
        };
        home.restore_part(part(OWNER, vec![(3, 60), (4, 1)]), |_| 64).unwrap();
        for wrong in [part(OWNER, vec![]), part(8, vec![(3, 1)]), part(5, vec![])] {
            assert!(home.restore_part(wrong, |_| 64).is_err());
        }
        assert_eq!((home.published(3), home.stat().bytes), (Some(60), 128));
        let large = home.restore_part(part(9, vec![(9, 1)]), |_| 2 << 20);
        assert!(matches!(large, Err(PoolError::Full { .. })), "{large:?}");
        // One that is there is not meant, and one that is connected is refused.
        assert_eq!(home.forget("m0", Some(OWNER)), Ok((vec![], 0, vec![])));
        assert_eq!(home.claim(FIRST, owner(), 1, &[3], false).0, Ok(vec![]));
        assert!(home.forget("m0", None).is_err());
        home.closed(0, FIRST);
        let (tables, extents, effects) = home.forget("m0", Some(6)).unwrap();
        assert!(tables.is_empty() && effects.contains(&Effect::Free(4)), "{effects:?}");
        assert_eq!((extents, home.stat().extents), (2, 0));
    }

    #[test]
    fn a_server_knows_a_bounded_number_of_others() {
        let mut memory = Home::new(0, 1 << 20);
        assert!(memory.claim(FIRST, owner(), 1, &[], true).0.is_err(), "it saves nothing");
        let mut home = Home::new(0, 1 << 20).with_saving().with_identity(5, 1);
        assert!(home.claim(FIRST, (5, "m1".into()), 1, &[], true).0.is_err(), "it is itself");
        for number in 0..OWNERS_MAX as u64 {
            assert!(home.claim(number, (100 + number, "m".into()), 1, &[], true).0.is_ok());
        }
        assert!(home.claim(FIRST, owner(), 1, &[], true).0.is_err());
    }
}
