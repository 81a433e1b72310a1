//! What was sent starts, on all links together: those that share a connection need one system call.

use channel::Link;

use super::Net;
use super::peer::Peer;

impl Net {
    /// Starts what was sent since the last call.
    pub(crate) fn flush(&self) {
        self.each_ready(|peer| {
            if !peer.gone.get() {
                peer.path.gather();
            }
        });
        self.submit();
    }

    /// Starts what was posted: links that share a connection together.
    pub(super) fn submit(&self) {
        self.each_ready(|peer| peer.path.submit());
    }

    /// The peers on the ready list: on links of others nothing was posted.
    fn each_ready(&self, mut act: impl FnMut(&Peer)) {
        self.ready.for_each(|worker| self.peers[worker as usize].iter().for_each(&mut act));
    }

    /// Takes the links away, for the next statement: indexed by worker, without those that are away
    /// or have ended. The peers may still wait to hear that their last frames have come: an
    /// endpoint says so at the poll behind the one that has taken them.
    pub(crate) fn take_links(&self) -> Vec<Option<Link>> {
        let polled = |peer: &Peer| peer.path.poll().is_ok();
        for _ in 0..2 {
            let failed = self.each().filter(|(_, peer)| !peer.gone.get() && !polled(peer));
            failed.for_each(|(_, peer)| peer.gone.set(true));
            self.each().for_each(|(_, peer)| peer.path.submit());
        }
        let whole = |peer: &&Peer| !peer.gone.get();
        self.peers.iter().map(|peer| peer.as_ref().filter(whole)?.path.take()).collect()
    }
}
