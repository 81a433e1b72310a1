//! Tables that are caches: which client looks at an origin, and when.
//!
//! ```text
//!   look ─▶ current                                      the last look is young enough
//!        ─▶ due ─▶ (load, if it has changed) ─▶ end of the look    one client at a time
//!        ─▶ wait                                         it is looked at, and there is no version
//!        ─▶ resting                                      it could not be loaded a while ago
//! ```
//!
//! A client that has to wait asks again. One that ends, or is silent, looks no longer: then another
//! one does. While a client looks, statements of others read the version that is there; those of
//! its own wait, for they are to see what it finds.

use super::{ClientId, Home, no_table};
use crate::access::{LoadMode, LookOutcome, OriginLook, TableLoad};
use crate::error::PoolError;
use crate::manifest::{CachedOrigin, Manifest};
use crate::wire::{NAME_BYTES_MAX, StatementId, TABLES_MAX};

/// How long an origin that could not be read or loaded is left alone where there is a version, in
/// ns: statements need not all wait until a store does not answer.
pub const RETRY_NS: u64 = 10_000_000_000;

/// The looks at the origin of a table.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct OriginState {
    looking: Option<Looking>,
    /// When the last look began that found the newest version to be a copy.
    confirmed_ns: Option<u64>,
    /// Until then the origin is left alone.
    rests_until_ns: u64,
}

/// A client that looks.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Looking {
    client: ClientId,
    statement: StatementId,
    since_ns: u64,
}

/// The question of a client, whether it has to look at an origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LookRequest {
    /// The client.
    pub client: ClientId,
    /// Its statement.
    pub statement: StatementId,
    /// Whether it may load tables.
    pub may_load: bool,
}

impl Home {
    /// Whether a client that reads a table has to look at its origin, since nobody has for
    /// `age_max_ns`. It calls [`end_look`](Self::end_look) when it has.
    ///
    /// # Errors
    /// When the table is no cache, and when there is no version and the client may not load one.
    pub fn look(
        &mut self,
        now_ns: u64,
        by: LookRequest,
        table: &str,
        age_max_ns: u64,
    ) -> Result<OriginLook, PoolError> {
        if table.is_empty() || table.len() > NAME_BYTES_MAX {
            return Err(no_table(table));
        }
        if let Some(damaged) = self.damage_of(table) {
            return Err(damaged);
        }
        let newest = self.tables.get(table).map(|of| &self.versions[&(table.to_owned(), *of)]);
        if newest.is_some_and(|newest| newest.manifest.origin.is_none()) {
            return Err(no_cache(table));
        }
        // A statement reads the version that it has pinned first, on all nodes of its job.
        if self.memos.contains_key(&(by.statement, table.to_owned())) {
            return Ok(OriginLook::Current);
        }
        // A version whose blocks were lost with a server is loaded anew.
        let is_there = newest.is_some_and(|newest| self.loss_of(&newest.manifest).is_none());
        let state = self.origins.get(table);
        let is_young = |of: &OriginState| {
            of.confirmed_ns.is_some_and(|at| now_ns.saturating_sub(at) < age_max_ns)
        };
        if is_there && state.is_some_and(is_young) {
            return Ok(OriginLook::Current);
        }
        if is_there && state.is_some_and(|of| now_ns < of.rests_until_ns) {
            return Ok(OriginLook::Resting);
        }
        let other = state.and_then(|of| of.looking.as_ref()).filter(|of| of.client != by.client);
        if let Some(other) = other {
            let waits = !is_there || other.statement == by.statement;
            return Ok(if waits { OriginLook::Wait } else { OriginLook::Current });
        }
        if !by.may_load {
            return if is_there { Ok(OriginLook::Current) } else { Err(no_table(table)) };
        }
        if state.is_none() && self.origins.len() >= TABLES_MAX {
            let tables = &self.tables;
            self.origins.retain(|name, of| of.looking.is_some() || tables.contains_key(name));
            if self.origins.len() >= TABLES_MAX {
                let reason = format!("{TABLES_MAX} origins are looked at, as many as there may be");
                return Err(PoolError::Refused { reason });
            }
        }
        let LookRequest { client, statement, .. } = by;
        let state = self.origins.entry(table.to_owned()).or_default();
        state.looking = Some(Looking { client, statement, since_ns: now_ns });
        Ok(OriginLook::Due)
    }

    /// A client looks no longer. What one says that does not look has no effect.
    pub fn end_look(&mut self, now_ns: u64, client: ClientId, table: &str, outcome: LookOutcome) {
        let Some(state) = self.origins.get_mut(table) else { return };
        let Some(looking) = state.looking.take_if(|of| of.client == client) else { return };
        match outcome {
            // It may have changed since the look began.
            LookOutcome::Copy => {
                (state.confirmed_ns, state.rests_until_ns) = (Some(looking.since_ns), 0);
            }
            LookOutcome::Failed => state.rests_until_ns = now_ns.saturating_add(RETRY_NS),
            LookOutcome::Abandoned => {}
        }
        if !self.tables.contains_key(table) {
            self.origins.remove(table);
        }
    }

    /// A client has ended: others look.
    pub(super) fn end_looks_of(&mut self, client: ClientId) {
        for state in self.origins.values_mut() {
            state.looking.take_if(|of| of.client == client);
        }
    }
}

/// The error that a table was not loaded as a cache.
fn no_cache(table: &str) -> PoolError {
    let detail = format!("table '{table}' of the pool is no cache of an origin");
    PoolError::Mismatch { detail }
}

/// Refuses a load that would make something else of a cache, or a cache of something else.
pub(super) fn check_origin(newest: &Manifest, load: &TableLoad) -> Result<(), PoolError> {
    let name = |origin: &Option<CachedOrigin>| origin.as_ref().map(|origin| origin.name.clone());
    let (is, wanted) = (name(&newest.origin), name(&load.origin));
    match is {
        None if wanted.is_none() => Ok(()),
        None => Err(no_cache(&load.table)),
        Some(_) if is == wanted && load.mode == LoadMode::Overwrite => Ok(()),
        Some(is) => {
            let table = &load.table;
            let detail =
                format!("table '{table}' of the pool is a cache of {is}, and of that alone");
            Err(PoolError::Mismatch { detail })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::At;
    use crate::manifest::{Definition, Layout};

    const AGE_NS: u64 = 1_000;

    fn statement(number: u32) -> StatementId {
        StatementId { job: 1, statement: number }
    }

    /// A client that may load, in a statement of its own number.
    fn of(client: ClientId) -> LookRequest {
        LookRequest { client, statement: statement(client as u32), may_load: true }
    }

    fn load(mode: LoadMode, mark: Option<u64>) -> TableLoad {
        let columns = vec![Layout::Fixed(1)];
        let definition = Definition { schema: vec![], columns, buckets: vec![], strip_rows: 1 };
        let origin = mark.map(|mark| CachedOrigin { name: "/d.csv".into(), mark });
        TableLoad { table: "t".into(), definition, mode, origin }
    }

    /// Loads a version without rows.
    fn loaded(home: &mut Home, client: ClientId, load: TableLoad) -> u64 {
        let number = home.begin(client, "a", load, statement(client as u32), 1).unwrap();
        let (version, _) = home.commit(client, number, 0, vec![], true);
        version.unwrap().unwrap()
    }

    /// A pool that has a cache, looked at by client 1 at the time 0.
    fn cached() -> Home {
        let mut home = Home::new(0, 1 << 20);
        assert_eq!(home.look(0, of(1), "t", AGE_NS), Ok(OriginLook::Due));
        assert_eq!(loaded(&mut home, 1, load(LoadMode::Create, Some(7))), 1);
        home.end_look(500, 1, "t", LookOutcome::Copy);
        home
    }

    #[test]
    fn one_client_looks_and_the_others_wait_for_a_version() {
        let mut home = Home::new(0, 1 << 20);
        assert_eq!(home.look(0, of(1), "t", AGE_NS), Ok(OriginLook::Due));
        assert_eq!(home.look(1, of(2), "t", AGE_NS), Ok(OriginLook::Wait));
        // It has ended in the middle.
        home.closed(2, 1);
        assert_eq!(home.look(3, of(2), "t", AGE_NS), Ok(OriginLook::Due));
        home.end_look(4, 1, "t", LookOutcome::Copy);
        assert_eq!(home.look(4, of(3), "t", AGE_NS), Ok(OriginLook::Wait), "1 looks no longer");
        loaded(&mut home, 2, load(LoadMode::Create, Some(7)));
        // The version is there: who is of another statement need not wait for the last word.
        assert_eq!(home.look(5, of(3), "t", AGE_NS), Ok(OriginLook::Current));
        home.end_look(6, 2, "t", LookOutcome::Copy);
        assert_eq!(home.tables.len(), 1);
        assert_eq!(home.origins["t"].confirmed_ns, Some(3));
    }

    #[test]
    fn an_origin_is_looked_at_again_when_its_age_counts_from_the_beginning_of_the_look() {
        let mut home = cached();
        assert_eq!(home.look(999, of(2), "t", AGE_NS), Ok(OriginLook::Current));
        assert_eq!(home.look(999, of(2), "t", 0), Ok(OriginLook::Due), "it asks for no age");
        home.end_look(999, 2, "t", LookOutcome::Copy);
        assert_eq!(home.look(1_998, of(2), "t", AGE_NS), Ok(OriginLook::Current));
        assert_eq!(home.look(1_999, of(2), "t", AGE_NS), Ok(OriginLook::Due));
        // Others read what is there; the nodes of the same statement wait.
        assert_eq!(home.look(1_999, of(3), "t", AGE_NS), Ok(OriginLook::Current));
        let same = LookRequest { client: 4, ..of(2) };
        assert_eq!(home.look(1_999, same, "t", AGE_NS), Ok(OriginLook::Wait));
        assert_eq!(loaded(&mut home, 2, load(LoadMode::Overwrite, Some(8))), 2);
        home.end_look(2_500, 2, "t", LookOutcome::Copy);
        assert_eq!(home.look(2_998, same, "t", AGE_NS), Ok(OriginLook::Current));
    }

    #[test]
    fn who_plans_behind_the_first_node_of_a_job_does_not_look_for_another_version() {
        let mut home = cached();
        // Node 0 of statement 2 looks, and pins what it found.
        assert_eq!(home.look(2_000, of(2), "t", 0), Ok(OriginLook::Due));
        home.end_look(2_000, 2, "t", LookOutcome::Copy);
        let pin = home.pin(2, "t", At::Newest, Some(statement(2))).unwrap();
        let node = LookRequest { client: 3, ..of(2) };
        assert_eq!(home.look(2_001, node, "t", 0), Ok(OriginLook::Current));
        // Another statement loads the next version; the job reads the one that it has pinned.
        assert_eq!(home.look(2_002, of(4), "t", 0), Ok(OriginLook::Due));
        assert_eq!(loaded(&mut home, 4, load(LoadMode::Overwrite, Some(8))), 2);
        home.end_look(2_003, 4, "t", LookOutcome::Copy);
        assert_eq!(home.look(2_004, node, "t", 0), Ok(OriginLook::Current));
        let other = home.pin(3, "t", At::Newest, Some(statement(2))).unwrap();
        assert_eq!((pin.version, other.version), (1, 1));
        assert_eq!(home.look(2_005, of(5), "t", 0), Ok(OriginLook::Due));
    }

    #[test]
    fn an_origin_that_is_away_is_left_alone_while_there_is_a_version() {
        let mut home = cached();
        assert_eq!(home.look(1_000, of(2), "t", AGE_NS), Ok(OriginLook::Due));
        home.end_look(1_000, 2, "t", LookOutcome::Failed);
        assert_eq!(home.look(999 + RETRY_NS, of(3), "t", AGE_NS), Ok(OriginLook::Resting));
        assert_eq!(home.look(1_000 + RETRY_NS, of(3), "t", AGE_NS), Ok(OriginLook::Due));
        // A client that did not look at all says nothing of it.
        home.end_look(1_000 + RETRY_NS, 3, "t", LookOutcome::Abandoned);
        assert_eq!(home.look(1_000 + RETRY_NS, of(2), "t", AGE_NS), Ok(OriginLook::Due));
        // Without one, each that asks tries.
        let mut home = Home::new(0, 1 << 20);
        assert_eq!(home.look(0, of(1), "t", AGE_NS), Ok(OriginLook::Due));
        home.end_look(1, 1, "t", LookOutcome::Failed);
        assert_eq!(home.look(1, of(2), "t", AGE_NS), Ok(OriginLook::Due));
        assert_eq!(home.origins.len(), 1);
        home.closed(2, 2);
        // A table that was dropped is loaded again.
        let mut home = cached();
        home.drop_table("t").unwrap();
        assert_eq!(home.look(10, of(3), "t", AGE_NS), Ok(OriginLook::Due));
    }

    #[test]
    fn who_may_not_load_reads_what_is_there() {
        let mut home = Home::new(0, 1 << 20);
        let reader = LookRequest { may_load: false, ..of(9) };
        assert!(matches!(home.look(0, reader, "t", 0), Err(PoolError::NoTable { .. })));
        let mut home = cached();
        assert_eq!(home.look(1 << 40, reader, "t", AGE_NS), Ok(OriginLook::Current));
        assert_eq!(home.look(1 << 40, of(2), "t", AGE_NS), Ok(OriginLook::Due));
    }

    #[test]
    fn a_table_is_a_cache_of_one_origin_or_none() {
        let mut home = cached();
        for (mode, wrong) in
            [(LoadMode::Overwrite, None), (LoadMode::Append, None), (LoadMode::Append, Some(7))]
        {
            let begun = home.begin(1, "a", load(mode, wrong), statement(1), 1);
            assert!(matches!(begun, Err(PoolError::Mismatch { .. })), "{mode:?} {wrong:?}");
        }
        let mut other = load(LoadMode::Overwrite, Some(7));
        other.origin = Some(CachedOrigin { name: "/e.csv".into(), mark: 7 });
        let begun = home.begin(1, "a", other, statement(1), 1);
        assert!(matches!(begun, Err(PoolError::Mismatch { .. })), "{begun:?}");
        let mut home = Home::new(0, 1 << 20);
        loaded(&mut home, 1, load(LoadMode::Create, None));
        assert_eq!(home.look(0, of(1), "t", AGE_NS), Err(no_cache("t")));
        let begun = home.begin(1, "a", load(LoadMode::Overwrite, Some(7)), statement(1), 1);
        assert_eq!(begun, Err(no_cache("t")));
    }
}
