//! Frames of a broadcast that stay in the region of their worker, from where its children read them
//! (W3): each is written once, whatever the number of children.

use std::sync::Arc;

use bytes::Bytes;
use channel::SharedRegion;
use channel::broadcast::Relay;

use super::outbound::Encoded;
use super::{BroadcastFrame, Distributor, Way};
use crate::rows::wire::RowsLayout;
use crate::runtime::net::Net;

impl Distributor {
    /// Where rows for all are written: the region, if there is one, they fit one of its slots, and
    /// they go along the tree and not by the network's own multicast.
    pub(super) fn region_for<'a>(
        &self,
        net: &'a Net,
        rows: &RowsLayout<'_>,
    ) -> Option<&'a Arc<SharedRegion>> {
        let by_tree = self.way == Way::Tree && net.in_flight().is_none();
        let fits = |region: &&Arc<SharedRegion>| (1..=region.payload_max()).contains(&rows.len());
        net.region().filter(fits).filter(|_| by_tree)
    }

    /// Writes these rows into the region. Waits while no slot of it is free: some child has not
    /// read what is there.
    pub(super) async fn encode_into(
        &self,
        region: &Arc<SharedRegion>,
        net: &Net,
        rows: &RowsLayout<'_>,
    ) -> Encoded {
        let reserve = || region.reserve();
        let mut slot = net.wait_for_credit(self.tag, net.any_moved(), reserve).await;
        let start = self.clock.now_ns();
        rows.write_to(slot.payload_mut());
        #[cfg(test)]
        crate::rows::wire::count_into_slot(rows.len());
        let frame = slot.seal(rows.len());
        let encode_ns = self.clock.now_ns().saturating_sub(start);
        net.count(|metrics| &metrics.broadcast_encode_ns, encode_ns);
        Encoded { payload: Bytes::from_owner(frame.clone()), lent: Some(frame), encode_ns }
    }

    /// Copies a frame that was just taken into the region, if several children are to be sent it: a
    /// copy for each would be more. Half of the region is left to rows of this worker, and where
    /// less is free the frame goes as if there were no region.
    pub(super) fn lend_again(&self, net: &Net, relay: &mut Relay<BroadcastFrame>, seq: u64) {
        let children = relay.awaiting().len();
        let Some(region) = net.region().filter(|_| self.way == Way::Tree && children > 1) else {
            return;
        };
        let Some(frame) = relay.frame_mut(seq) else { return };
        let fits = (1..=region.payload_max()).contains(&frame.payload.len());
        if !fits || frame.placeholder.is_some() || 2 * region.free() <= region.slots() {
            return;
        }
        let Some(mut slot) = region.reserve() else { return };
        slot.payload_mut()[..frame.payload.len()].copy_from_slice(&frame.payload);
        #[cfg(test)]
        crate::rows::wire::count_into_region_again(frame.payload.len());
        let lent = slot.seal(frame.payload.len());
        frame.payload = Bytes::from_owner(lent.clone());
        frame.owned = true;
        frame.lent = Some(lent);
    }
}
