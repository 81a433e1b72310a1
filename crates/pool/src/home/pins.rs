//! Versions that are pinned.

use std::collections::btree_map::Entry;
use std::sync::Arc;

use super::{ClientId, Effect, Home, LEASES_MAX, no_table};
use crate::access::At;
use crate::error::PoolError;
use crate::wire::StatementId;

/// For how long the nodes of a statement get the same version after the last of them has let it
/// go, in ns: one may be late.
const MEMO_NS: u64 = 60_000_000_000;

/// Statements whose version is remembered at most: those of 16 clients that have as many leases as
/// they may, so that no client alone stops the others.
const MEMOS_MAX: usize = 16 * LEASES_MAX;

/// A version that a client reads.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Lease {
    pub(super) client: ClientId,
    table: String,
    version: u64,
    snapshot: Option<StatementId>,
}

/// The version that the nodes of a statement get.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Memo {
    version: u64,
    leases: u32,
    /// Without leases: when it is forgotten.
    until_ns: u64,
}

/// A version that was pinned.
#[derive(Debug, Clone)]
pub struct Pin {
    /// Its number.
    pub version: u64,
    /// The lease that holds it.
    pub lease: u64,
    /// Its manifest, encoded.
    pub manifest: Arc<Vec<u8>>,
}

impl Home {
    /// Pins a version for a client. A snapshot is the statement whose nodes get the same newest
    /// version.
    ///
    /// # Errors
    /// [`PoolError::NoTable`], [`PoolError::NoVersion`], and where a client has too many leases.
    pub fn pin(
        &mut self,
        client: ClientId,
        table: &str,
        at: At,
        snapshot: Option<StatementId>,
    ) -> Result<Pin, PoolError> {
        if self.held.get(&client).is_some_and(|held| *held >= LEASES_MAX) {
            let reason = format!("this client has {LEASES_MAX} leases, as many as it may have");
            return Err(PoolError::Refused { reason });
        }
        if let Some(damaged) = self.damage_of(table) {
            return Err(damaged);
        }
        let newest = *self.tables.get(table).ok_or_else(|| no_table(table))?;
        let snapshot = snapshot.filter(|_| at == At::Newest);
        let asked = snapshot.map(|snapshot| (snapshot, table.to_owned()));
        let version = match (at, asked.as_ref().and_then(|asked| self.memos.get(asked))) {
            (At::Version(version), _) => version,
            (At::Newest, Some(memo)) => memo.version,
            (At::Newest, None) => newest,
        };
        let is_new = |asked| !self.memos.contains_key(asked);
        if self.memos.len() >= MEMOS_MAX && asked.as_ref().is_some_and(is_new) {
            let reason = format!("{MEMOS_MAX} statements read tables, as many as may do so");
            return Err(PoolError::Refused { reason });
        }
        let at = (table.to_owned(), version);
        let lost = self.versions.get(&at).and_then(|of| self.loss_of(&of.manifest));
        let Some(pinned) = self.versions.get_mut(&at) else {
            let reason = format!("the newest one is {newest}, and others are not kept");
            return Err(PoolError::NoVersion { table: table.into(), version, reason });
        };
        if let Some(lost) = lost {
            return Err(lost);
        }
        pinned.pins += 1;
        pinned.leases += 1;
        let manifest = pinned.bytes.clone();
        if let Some(asked) = asked {
            match self.memos.entry(asked) {
                Entry::Occupied(memo) => memo.into_mut().leases += 1,
                Entry::Vacant(empty) => {
                    // The statement holds the version, too.
                    pinned.pins += 1;
                    empty.insert(Memo { version, leases: 1, until_ns: 0 });
                }
            }
        }
        self.numbered += 1;
        let lease = self.numbered;
        *self.held.entry(client).or_default() += 1;
        self.leases.insert(lease, Lease { client, table: table.into(), version, snapshot });
        Ok(Pin { version, lease, manifest })
    }

    /// The encoded manifest of a version that a client has pinned.
    pub fn pinned(&self, client: ClientId, lease: u64) -> Option<Arc<Vec<u8>>> {
        let lease = self.leases.get(&lease).filter(|lease| lease.client == client)?;
        let version = self.versions.get(&(lease.table.clone(), lease.version))?;
        Some(version.bytes.clone())
    }

    /// A client does not use a lease any more. One that it has not is none of its business.
    pub fn unpin(&mut self, now_ns: u64, client: ClientId, lease: u64) -> Vec<Effect> {
        match self.leases.get(&lease) {
            Some(of) if of.client == client => self.end_lease(now_ns, lease),
            _ => vec![],
        }
    }

    /// The leases of a client, to tell it that they have ended.
    pub fn leases_of(&self, client: ClientId) -> impl Iterator<Item = u64> {
        let of = move |(number, lease): (&u64, &Lease)| (lease.client == client).then_some(*number);
        self.leases.iter().filter_map(of)
    }

    pub(super) fn end_lease(&mut self, now_ns: u64, lease: u64) -> Vec<Effect> {
        let Some(Lease { client, table, version, snapshot }) = self.leases.remove(&lease) else {
            return vec![];
        };
        if let Entry::Occupied(mut held) = self.held.entry(client) {
            *held.get_mut() -= 1;
            if *held.get() == 0 {
                held.remove();
            }
        }
        if let Some(snapshot) = snapshot
            && let Some(memo) = self.memos.get_mut(&(snapshot, table.clone()))
        {
            memo.leases -= 1;
            memo.until_ns = now_ns.saturating_add(MEMO_NS);
        }
        if let Some(version) = self.versions.get_mut(&(table.clone(), version)) {
            version.leases -= 1;
        }
        self.let_go(&table, version)
    }

    /// Whether no more statements are remembered until some are forgotten, whose nodes have all let
    /// go.
    pub fn is_full_of_statements(&self) -> bool {
        self.memos.len() >= MEMOS_MAX
    }

    /// Forgets the statements whose nodes have all let go, though one may be late: space is worth
    /// more.
    pub fn forget_statements(&mut self) -> Vec<Effect> {
        self.forget_memos(u64::MAX)
    }

    /// Forgets the statements whose nodes have all let go for a while.
    pub(super) fn forget_memos(&mut self, now_ns: u64) -> Vec<Effect> {
        let over = |memo: &Memo| memo.leases == 0 && now_ns >= memo.until_ns;
        let memos = self.memos.iter().filter(|(_, memo)| over(memo));
        let memos: Vec<_> = memos.map(|(at, memo)| (at.clone(), memo.version)).collect();
        let mut effects = vec![];
        for (at, version) in memos {
            self.memos.remove(&at);
            effects.extend(self.let_go(&at.1, version));
        }
        effects
    }

    /// One pin of a version less.
    fn let_go(&mut self, table: &str, number: u64) -> Vec<Effect> {
        if let Some(version) = self.versions.get_mut(&(table.to_owned(), number)) {
            version.pins -= 1;
        }
        self.forget_unused(table, number)
    }
}
