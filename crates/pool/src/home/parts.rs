//! Extents of tables that other servers have: this server lets loaders write them, and holds them
//! for the server that has the table.
//!
//! ```text
//!   loader:  grant ─▶ seal ─┐
//!   the table's server:     └─▶ hold ─▶ (a version has it) ─▶ release     all go with the client
//! ```
//!
//! A server that saves holds extents for the [directory](super::owners) of the other server, and
//! not for its connection.

use std::collections::BTreeSet;

use super::loads::{LOADS_MAX, check_count, misuse};
use super::owners::{HeldFor, PART_EXTENTS_MAX};
use super::{ClientId, Effect, Home};
use crate::error::PoolError;

/// The extents that a client writes on this server for a load of a table that another server has.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct Part {
    written: BTreeSet<u32>,
    sealed: BTreeSet<u32>,
}

impl Home {
    /// Sets an extent aside for a load of a table that another server has, which has numbered it.
    ///
    /// # Errors
    /// [`PoolError::Full`], and when there are as many loads or extents as there may be.
    pub fn grant_part(
        &mut self,
        client: ClientId,
        load: u64,
        bytes: u32,
    ) -> Result<u32, PoolError> {
        let part = self.parts.get(&(load, client));
        check_count(part.map_or(0, |part| part.written.len() + part.sealed.len()))?;
        if part.is_none() && self.parts.len() >= LOADS_MAX {
            let reason = format!("{LOADS_MAX} loads are under way, as many as there may be");
            return Err(PoolError::Refused { reason });
        }
        let number = self.reserve(load, bytes)?;
        self.parts.entry((load, client)).or_default().written.insert(number);
        Ok(number)
    }

    pub(super) fn writes_part(&self, client: ClientId, load: u64, extent: u32) -> bool {
        self.parts.get(&(load, client)).is_some_and(|part| part.written.contains(&extent))
    }

    pub(super) fn seal_part(
        &mut self,
        client: ClientId,
        load: u64,
        extent: u32,
        used: u32,
    ) -> Result<(), PoolError> {
        let refused = || misuse("an extent that it does not write, or that is shorter");
        let part = self.parts.get_mut(&(load, client)).ok_or_else(refused)?;
        let of = self.extents.get_mut(&extent).filter(|of| u64::from(used) <= of.bytes);
        let of = of.filter(|_| part.written.remove(&extent)).ok_or_else(refused)?;
        of.used = Some(used);
        part.sealed.insert(extent);
        Ok(())
    }

    /// Holds sealed extents of a load, with their used bytes, for the client that is the server of
    /// the table: all of them, or none. Those that are `unused` are freed. A server that saves
    /// holds them when [they were saved](Effect::SavePart).
    ///
    /// # Errors
    /// When one is not there any more, since its loader has ended, or is shorter, and when this
    /// server saves and the client has not introduced itself.
    pub fn hold(
        &mut self,
        client: ClientId,
        load: u64,
        extents: &[(u32, u32)],
        unused: &[u32],
    ) -> (Result<(), PoolError>, Vec<Effect>) {
        let held_for = match self.holder(client) {
            Ok(held_for) => held_for,
            Err(error) => return (Err(error), vec![]),
        };
        let of_load = (load, 0)..=(load, ClientId::MAX);
        let sealed: BTreeSet<u32> =
            self.parts.range(of_load.clone()).flat_map(|(_, part)| &part.sealed).copied().collect();
        let fits = |(number, bytes): &(u32, u32)| {
            let used = self.extents.get(number).and_then(|extent| extent.used);
            sealed.contains(number) && used.is_some_and(|used| *bytes <= used)
        };
        if !extents.iter().all(fits) {
            let gone = "an extent that is not sealed, or not there any more: its node has ended";
            return (Err(misuse(gone)), vec![]);
        }
        let held = self.held_for.entry(held_for).or_default();
        let all = held.len() + extents.len();
        if matches!(held_for, HeldFor::Directory(_)) && all > PART_EXTENTS_MAX {
            let reason = format!("{PART_EXTENTS_MAX} extents are held for a server at most");
            return (Err(PoolError::Refused { reason }), vec![]);
        }
        for (number, _) in extents {
            if let Some(extent) = self.extents.get_mut(number).filter(|_| held.insert(*number)) {
                (extent.versions, extent.load) = (extent.versions + 1, None);
            }
        }
        let mut freed: Vec<u32> = vec![];
        for (_, part) in self.parts.range_mut(of_load) {
            for (number, _) in extents {
                part.sealed.remove(number);
            }
            freed.extend(unused.iter().filter(|number| part.sealed.remove(number)));
        }
        self.parts.retain(|_, part| !part.written.is_empty() || !part.sealed.is_empty());
        let saved = if extents.is_empty() { None } else { self.save_part(held_for, Some(client)) };
        let freed = freed.into_iter().map(|number| self.free(number));
        (Ok(()), saved.into_iter().chain(freed).collect())
    }

    /// The server of a table does not use extents any more. Those that are not held for it stay as
    /// they are.
    pub fn release(&mut self, client: ClientId, extents: &[u32]) -> Vec<Effect> {
        let Ok(held_for) = self.holder(client) else { return vec![] };
        self.end_holds(held_for, extents.iter().copied())
    }

    /// Extents are not held any more for a server: that is saved before their memory goes.
    pub(super) fn end_holds(
        &mut self,
        held_for: HeldFor,
        extents: impl Iterator<Item = u32>,
    ) -> Vec<Effect> {
        let Some(held) = self.held_for.get_mut(&held_for) else { return vec![] };
        let ended: Vec<u32> = extents.filter(|number| held.remove(number)).collect();
        let saved = if ended.is_empty() { None } else { self.save_part(held_for, None) };
        let freed = ended.into_iter().filter_map(|number| self.end_hold(number));
        saved.into_iter().chain(freed).collect()
    }

    fn end_hold(&mut self, number: u32) -> Option<Effect> {
        let extent = self.extents.get_mut(&number)?;
        extent.versions -= 1;
        (extent.versions == 0).then(|| self.free(number))
    }

    /// A client gives up its extents of a load.
    pub(super) fn end_part(&mut self, client: ClientId, load: u64) -> Vec<Effect> {
        let Some(part) = self.parts.remove(&(load, client)) else { return vec![] };
        part.written.into_iter().chain(part.sealed).map(|number| self.free(number)).collect()
    }

    /// A client has ended: its parts of loads are freed, and if it is a server, the extents that
    /// are held for it.
    pub(super) fn end_parts_of(&mut self, client: ClientId) -> Vec<Effect> {
        let of = |(load, by): &(u64, ClientId)| (*by == client).then_some(*load);
        let loads: Vec<u64> = self.parts.keys().filter_map(of).collect();
        let mut effects: Vec<Effect> =
            loads.into_iter().flat_map(|load| self.end_part(client, load)).collect();
        let held = self.held_for.remove(&HeldFor::Connection(client)).unwrap_or_default();
        effects.extend(held.into_iter().filter_map(|number| self.end_hold(number)));
        self.end_owner(client);
        effects
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::{LoadMode, TableLoad};
    use crate::manifest::{Definition, Layout};
    use crate::wire::{ServerPlace, StatementId};

    const LOADER: ClientId = 1;
    const OTHER: ClientId = 2;
    const SERVER: ClientId = 3;

    /// A server with a sealed extent of load 9 and one that is written.
    fn written() -> (Home, u32, u32) {
        let mut home = Home::new(0, 1 << 20);
        let extents = [(); 2].map(|()| home.grant_part(LOADER, 9, 64).unwrap());
        assert_eq!(home.seal(LOADER, 9, extents[0], 60), Ok(()));
        (home, extents[0], extents[1])
    }

    #[test]
    fn what_is_held_stays_until_it_is_released_or_its_server_ends() {
        for ends in [false, true] {
            let (mut home, sealed, open) = written();
            let (held, effects) = home.hold(SERVER, 9, &[(sealed, 60)], &[]);
            assert_eq!((held, effects), (Ok(()), vec![]));
            assert_eq!(home.published(sealed), Some(60));
            assert_eq!(home.closed(0, LOADER), [Effect::Free(open)]);
            assert_eq!(home.release(OTHER, &[sealed]), [], "it holds nothing");
            let freed =
                if ends { home.closed(0, SERVER) } else { home.release(SERVER, &[sealed, sealed]) };
            assert_eq!(freed, [Effect::Free(sealed)]);
            [sealed, open].into_iter().for_each(|extent| home.freed(extent));
            assert_eq!((home.stat().bytes, home.parts.len()), (0, 0));
        }
    }

    #[test]
    fn what_is_not_sealed_or_longer_or_of_another_load_is_not_held() {
        let (mut home, sealed, open) = written();
        for (load, extents) in [
            (9, vec![(sealed, 60), (open, 1)]),
            (9, vec![(sealed, 61)]),
            (8, vec![(sealed, 60)]),
            (9, vec![(u32::MAX, 0)]),
        ] {
            let (held, effects) = home.hold(SERVER, load, &extents, &[]);
            assert!(held.is_err() && effects.is_empty(), "{load} {extents:?}");
        }
        assert_eq!(home.published(sealed), None);
        // Twice the same is held once.
        assert_eq!(home.hold(SERVER, 9, &[(sealed, 9), (sealed, 60)], &[]).0, Ok(()));
        assert_eq!(home.release(SERVER, &[sealed]), [Effect::Free(sealed)]);
    }

    #[test]
    fn nobody_seals_or_gives_up_what_another_client_writes() {
        let (mut home, sealed, open) = written();
        assert!(home.seal(OTHER, 9, open, 1).is_err());
        assert!(home.seal(LOADER, 9, open, 65).is_err(), "it has 64 bytes");
        assert!(home.seal(LOADER, 9, sealed, 1).is_err(), "it is sealed");
        assert_eq!(home.abort(OTHER, 9, ""), []);
        assert_eq!(home.abort(LOADER, 8, ""), []);
        // An extent that no version has goes at once, and the rest with its loader.
        assert_eq!(home.hold(SERVER, 9, &[], &[sealed, open]).1, [Effect::Free(sealed)]);
        assert_eq!(home.abort(LOADER, 9, ""), [Effect::Free(open)]);
    }

    #[test]
    fn a_server_that_meets_too_many_is_not_spread() {
        let columns = vec![Layout::Fixed(1)];
        let definition = Definition { schema: vec![], columns, buckets: vec![], strip_rows: 1 };
        let (table, mode) = ("t".into(), LoadMode::Create);
        let load = TableLoad { table, definition, mode, origin: None };
        let statement = StatementId { job: 1, statement: 1 };
        let place = |incarnation| {
            let (name, address, identity) = ("m".into(), "a".into(), 1);
            ServerPlace { name, address, identity, incarnation }
        };
        let mut home = Home::new(0, 1 << 20);
        let number = home.begin(LOADER, "l", load, statement, 1).unwrap();
        assert!(home.distribute(OTHER, number, vec![place(1)]).is_err(), "it takes no part");
        assert_eq!(home.distribute(LOADER, number, vec![place(1), place(1)]), Ok(vec![1, 1]));
        assert!(home.distribute(LOADER, number, vec![place(0); 256]).is_err());
        for incarnation in 2..=4096 {
            let numbers = home.distribute(LOADER, number, vec![place(incarnation)]);
            assert_eq!(numbers, Ok(vec![incarnation as u16]));
        }
        assert!(home.distribute(LOADER, number, vec![place(5000)]).is_err());
        assert_eq!(home.distribute(LOADER, number, vec![place(7)]), Ok(vec![7]));
    }
}
