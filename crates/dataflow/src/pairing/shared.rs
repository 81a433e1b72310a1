//! The rows of a build, as a chain of probes looks them up.

use std::sync::Arc;

use super::{Hashed, KeyIds, Pairing};

/// Bytes of a table of keys that caches hold beside the rows that look it up.
const CACHED_BYTES: usize = 1 << 20;

impl Pairing {
    /// The rows that are looked up, to be looked up elsewhere too.
    pub(crate) fn shared(&self) -> Arc<Hashed> {
        self.hashed.clone()
    }
}

impl Hashed {
    /// The cost of the lookup of a row, compared with a key in a short span of numbers, which costs
    /// 1: a hash, the comparison of the key, and the wait for memory. It is a figure of a model and
    /// not a measured time, so that all runs over the same rows choose the same order.
    pub(crate) fn lookup_cost(&self) -> f64 {
        let links = self.chains.as_ref().map_or(0, |chains| chains.first.len());
        let bytes = self.ids.bytes() + links * size_of::<u32>();
        match (&self.ids, bytes <= CACHED_BYTES) {
            (KeyIds::Span(_), true) => 1.0,
            (KeyIds::Span(_), false) => 4.0,
            (KeyIds::Table(_), true) => 4.0,
            (KeyIds::Table(_), false) => 12.0,
        }
    }
}
