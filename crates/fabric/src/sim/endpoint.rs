//! The traits of the crate over the shared net. Each call takes the lock once.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::net::{EndId, Net};
use super::op::{Kind, Post};
use crate::multicast::Multicast;
use crate::{
    Armed, Budget, Caps, Completion, Endpoint, Fabric, FabricError, Flags, LinkId, Offer, OpId,
    PostError, RemoteKey, RemoteRange, Slab, SlabRange, Src,
};

pub(super) type Shared = Arc<Mutex<Net>>;

/// The lock. A panic about a breach of the contract leaves the net usable for a caller that catches
/// it.
pub(super) fn lock(net: &Shared) -> MutexGuard<'_, Net> {
    net.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A node of a [`SimNet`](super::SimNet).
pub struct SimFabric {
    pub(super) net: Shared,
    pub(super) node: u32,
    pub(super) caps: Caps,
}

impl Fabric for SimFabric {
    fn name(&self) -> &'static str {
        "sim"
    }

    fn caps(&self) -> Caps {
        self.caps
    }

    fn slab(&self, bytes: usize) -> Result<Slab, FabricError> {
        let slab = Slab::heap(bytes.next_multiple_of(8))?;
        let mut net = lock(&self.net);
        let slabs = &mut net.nodes.entry(self.node).or_default().slabs;
        slabs.retain(|slab| slab.strong_count() > 0);
        slabs.push(Arc::downgrade(slab.backing()));
        Ok(slab)
    }

    fn publish(&self, range: &SlabRange) -> Result<RemoteKey, FabricError> {
        lock(&self.net).publish(self.node, range)
    }

    fn unpublish(&self, key: RemoteKey) {
        lock(&self.net).unpublish(self.node, key);
    }

    fn multicast(&self) -> Option<&dyn Multicast> {
        let has = lock(&self.net).options.datagrams.bytes_max > 0;
        has.then_some(self)
    }

    fn offer(&self, link: LinkId) -> Result<Box<dyn Offer>, FabricError> {
        let offer = lock(&self.net).offer(self.node, link)?;
        Ok(Box::new(SimOffer { net: self.net.clone(), offer, caps: self.caps }))
    }
}

struct SimOffer {
    net: Shared,
    offer: u32,
    caps: Caps,
}

const MAGIC: &[u8; 8] = b"simlink1";

impl Offer for SimOffer {
    fn address(&self) -> Vec<u8> {
        let nonce = lock(&self.net).nonce.to_le_bytes();
        [&MAGIC[..], &nonce[..], &self.offer.to_le_bytes()[..]].concat()
    }

    fn connect(self: Box<Self>, peer: &[u8]) -> Result<Box<dyn Endpoint>, FabricError> {
        let mut net = lock(&self.net);
        let theirs = peer
            .strip_prefix(MAGIC)
            .and_then(|rest| rest.strip_prefix(&net.nonce.to_le_bytes()))
            .and_then(|rest| <[u8; 4]>::try_from(rest).ok())
            .ok_or(FabricError::Malformed { what: "address" })?;
        let end = net.connect(self.offer, u32::from_le_bytes(theirs))?;
        drop(net);
        Ok(Box::new(SimEndpoint { net: self.net.clone(), end, caps: self.caps }))
    }
}

struct SimEndpoint {
    net: Shared,
    end: EndId,
    caps: Caps,
}

impl SimEndpoint {
    fn post(&mut self, post: Post<'_>) -> Result<(), PostError> {
        lock(&self.net).post(self.end, post)
    }
}

impl Endpoint for SimEndpoint {
    fn caps(&self) -> Caps {
        self.caps
    }

    fn export(&mut self, range: &SlabRange) -> Result<RemoteKey, FabricError> {
        lock(&self.net).export(self.end, range)
    }

    fn revoke(&mut self, key: RemoteKey) {
        lock(&self.net).revoke(self.end, key);
    }

    fn retire(&mut self, key: RemoteKey) {
        lock(&self.net).retire_key(self.end, key);
    }

    fn write(
        &mut self,
        src: Src<'_>,
        dst: RemoteRange,
        id: OpId,
        flags: Flags,
    ) -> Result<(), PostError> {
        let (kind, len) = (Kind::Write, src.len());
        self.post(Post { kind, src, answer: None, len, dst, notice: None, id, flags })
    }

    fn write_notify(
        &mut self,
        src: Src<'_>,
        dst: RemoteRange,
        imm: u32,
        id: OpId,
        flags: Flags,
    ) -> Result<(), PostError> {
        let (kind, len) = (Kind::Write, src.len());
        self.post(Post { kind, src, answer: None, len, dst, notice: Some(imm), id, flags })
    }

    fn read(
        &mut self,
        dst: &SlabRange,
        src: RemoteRange,
        id: OpId,
        flags: Flags,
    ) -> Result<(), PostError> {
        let (answer, len) = (Some(dst), dst.len());
        let (kind, empty) = (Kind::Read, Src::Empty);
        self.post(Post { kind, src: empty, answer, len, dst: src, notice: None, id, flags })
    }

    fn fetch_add(
        &mut self,
        dst: RemoteRange,
        add: u64,
        old: &SlabRange,
        id: OpId,
    ) -> Result<(), PostError> {
        self.post(atomic(Kind::Add(add), dst, old, id))
    }

    fn compare_swap(
        &mut self,
        dst: RemoteRange,
        expect: u64,
        swap: u64,
        old: &SlabRange,
        id: OpId,
    ) -> Result<(), PostError> {
        self.post(atomic(Kind::Swap(expect, swap), dst, old, id))
    }

    fn send(&mut self, bytes: &[u8], id: OpId) -> Result<(), PostError> {
        let key = RemoteKey { key: 0, base: 0, len: 0 };
        self.post(Post {
            kind: Kind::Send,
            src: Src::Inline(bytes),
            answer: None,
            len: bytes.len(),
            dst: RemoteRange { key, offset: 0 },
            notice: None,
            id,
            flags: Flags::SIGNAL,
        })
    }

    fn post_recvs(&mut self, n: u32) {
        lock(&self.net).post_receives(self.end, n);
    }

    fn submit(&mut self) {
        lock(&self.net).submit(self.end);
    }

    fn poll(&mut self, out: &mut Vec<Completion>) -> usize {
        lock(&self.net).poll(self.end, out)
    }

    fn has_news(&mut self) -> bool {
        lock(&self.net).has_events(self.end)
    }

    fn arm(&mut self) -> Armed {
        if lock(&self.net).has_events(self.end) { Armed::Ready } else { Armed::Virtual }
    }

    fn budget(&self) -> Budget {
        lock(&self.net).budget(self.end)
    }

    fn close(&mut self) {
        lock(&self.net).close(self.end);
    }
}

impl Drop for SimEndpoint {
    fn drop(&mut self) {
        lock(&self.net).forget(self.end);
    }
}

fn atomic(kind: Kind, dst: RemoteRange, old: &SlabRange, id: OpId) -> Post<'_> {
    let (src, flags) = (Src::Empty, Flags::SIGNAL);
    Post { kind, src, answer: Some(old), len: 8, dst, notice: None, id, flags }
}
