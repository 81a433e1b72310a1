//! Rounds: the same cut of the input at every operator, by markers that go behind the rows.
//!
//! ```text
//!  edge of this worker ── rows, marker r ──┐ held behind its marker
//!  edge of this worker ── rows, marker r ──┤
//!                                          ▼ all edges: the marker goes to the peers
//!  peer ── rows of r, marker r, rows of r+1 ─▶ Now … Marked, then Later: kept apart
//!                                          ▼ all edges and peers: complete
//!                        save, marker r to the operators behind, begin_next
//! ```
//!
//! A [`RoundAlignment`] stands for one instance of an operator. It is a plain value: no I/O, no
//! clock. An exhaustive model in `models/tests/rounds.rs` explores this very type.
//!
//! # Guarantees
//! - When it [is complete](RoundAlignment::is_complete), every row of the round has been taken, and
//!   none of the next one, if the caller lets an edge through only where it
//!   [may pass](RoundAlignment::may_pass), keeps apart what arrives [`Arrives::Later`], and sends
//!   its own marker behind all rows of the round.
//! - An edge or a peer that has ended counts as marked in all later rounds.
//! - Rows that are broadcast may overtake a marker, and a marker may overtake them: it says how
//!   many of them it is behind, and counts when so many are here.

/// The rounds of one instance of an operator: who has marked the one that is under way.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RoundAlignment {
    round: u64,
    /// The edges of this worker that lead to the instance.
    edges: Vec<EdgeMark>,
    /// By worker. Who sends nothing, as the worker itself, has ended.
    peers: Vec<PeerMark>,
    /// Whether the own marker is on its way to the peers.
    sent: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum EdgeMark {
    Open,
    Marked,
    Ended,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum PeerMark {
    Open,
    /// It has marked behind this number of broadcast frames, and some are not here.
    Behind(u64),
    Marked,
    Ended,
}

/// When rows of a peer are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Arrives {
    /// They belong to the round that is under way.
    Now,
    /// They belong to the next round, and are kept apart until this one is complete.
    Later,
}

/// A peer, or a caller, does what the protocol of rounds does not allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum RoundBreach {
    /// A colour is of no round that can be under way.
    #[error("its colour {colour} is neither that of round {round} nor of the next")]
    Colour {
        /// The colour: a round modulo 2^16.
        colour: u16,
        /// The round that is under way.
        round: u64,
    },
    /// Rows of a round come behind the marker of their sender.
    #[error("it comes behind the marker of round {round}")]
    BehindMarker {
        /// The round.
        round: u64,
    },
    /// A marker is of another round than the one that is under way.
    #[error("it marks round {marked} in round {round}")]
    Marker {
        /// The round that is marked.
        marked: u64,
        /// The round that is under way.
        round: u64,
    },
}

impl RoundAlignment {
    /// An instance that begins with `round`, with so many edges of its own worker. `sends` says of
    /// each worker whether its rows come here.
    pub fn new(round: u64, edges: usize, sends: impl IntoIterator<Item = bool>) -> Self {
        let peer = |sends: bool| if sends { PeerMark::Open } else { PeerMark::Ended };
        let peers = sends.into_iter().map(peer).collect();
        Self { round, edges: vec![EdgeMark::Open; edges], peers, sent: false }
    }

    /// The round that is under way.
    pub fn round(&self) -> u64 {
        self.round
    }

    /// Whether rows, progress, the end or the next marker of an edge may pass: it has not marked
    /// the round that is under way.
    pub fn may_pass(&self, edge: usize) -> bool {
        self.edges.get(edge) != Some(&EdgeMark::Marked)
    }

    /// An edge marks the round. True if it is the last: then what waits for peers is sent, behind
    /// it the marker, and [`RoundAlignment::sent`] follows.
    ///
    /// # Errors
    /// [`RoundBreach::Marker`] when it marks another round, or there is no such edge.
    pub fn mark_edge(&mut self, edge: usize, round: u64) -> Result<bool, RoundBreach> {
        let breach = RoundBreach::Marker { marked: round, round: self.round };
        let mark = self.edges.get_mut(edge).filter(|mark| **mark == EdgeMark::Open);
        let Some(mark) = mark.filter(|_| round == self.round) else { return Err(breach) };
        *mark = EdgeMark::Marked;
        Ok(self.is_due())
    }

    /// An edge has no more rows. True as for [`RoundAlignment::mark_edge`]: an edge that has ended
    /// holds no marker back. Where all have ended, the end goes to the peers in place of a marker.
    pub fn end_edge(&mut self, edge: usize) -> bool {
        if let Some(mark) = self.edges.get_mut(edge) {
            *mark = EdgeMark::Ended;
        }
        self.is_due()
    }

    /// Whether the own marker has to be sent.
    fn is_due(&self) -> bool {
        !self.sent
            && !self.edges.contains(&EdgeMark::Open)
            && self.edges.contains(&EdgeMark::Marked)
    }

    /// The own marker is on its way to all peers, behind all rows of the round.
    pub fn sent(&mut self) {
        self.sent = true;
    }

    /// Whether the own marker is sent and the round is not complete: nothing may be sent then.
    pub fn is_marked(&self) -> bool {
        self.sent
    }

    /// When rows or progress of a peer are taken that came by the link with it, in its order.
    ///
    /// # Errors
    /// [`RoundBreach::Colour`] and [`RoundBreach::BehindMarker`].
    pub fn arrives(&self, from: u32, colour: u16) -> Result<Arrives, RoundBreach> {
        let arrives = self.relayed(colour)?;
        let marked = matches!(self.peer(from), Some(PeerMark::Behind(_) | PeerMark::Marked));
        match arrives {
            Arrives::Now if marked => Err(RoundBreach::BehindMarker { round: self.round }),
            arrives => Ok(arrives),
        }
    }

    /// The same of rows that were relayed, and may have been overtaken by the marker of their
    /// source.
    ///
    /// # Errors
    /// [`RoundBreach::Colour`].
    pub fn relayed(&self, colour: u16) -> Result<Arrives, RoundBreach> {
        match colour.wrapping_sub(self.round as u16) {
            0 => Ok(Arrives::Now),
            1 => Ok(Arrives::Later),
            _ => Err(RoundBreach::Colour { colour, round: self.round }),
        }
    }

    /// A peer marks the round, behind so many broadcast frames for this instance, of which
    /// `received` are here.
    ///
    /// # Errors
    /// [`RoundBreach::Marker`] when it marks another round, or one twice, or has ended.
    pub fn mark_peer(
        &mut self,
        from: u32,
        round: u64,
        broadcast_before: u64,
        received: u64,
    ) -> Result<(), RoundBreach> {
        if round != self.round || self.peer(from) != Some(PeerMark::Open) {
            return Err(RoundBreach::Marker { marked: round, round: self.round });
        }
        self.peers[from as usize] = PeerMark::Behind(broadcast_before);
        self.received(from, received);
        Ok(())
    }

    /// So many broadcast frames of a peer are here.
    pub fn received(&mut self, from: u32, received: u64) {
        if let Some(mark) = self.peers.get_mut(from as usize)
            && matches!(*mark, PeerMark::Behind(before) if before <= received)
        {
            *mark = PeerMark::Marked;
        }
    }

    /// A peer has no more rows, and all that it has sent is here.
    pub fn end_peer(&mut self, from: u32) {
        if let Some(mark) = self.peers.get_mut(from as usize) {
            *mark = PeerMark::Ended;
        }
    }

    fn peer(&self, from: u32) -> Option<PeerMark> {
        self.peers.get(from as usize).copied()
    }

    /// Whether every edge and every peer has marked the round or ended, and all of its rows are
    /// here. False where all have ended: there are no more rounds.
    pub fn is_complete(&self) -> bool {
        let marked = self.edges.contains(&EdgeMark::Marked);
        let edges = !self.edges.contains(&EdgeMark::Open) && (self.sent || !marked);
        let peers = |mark: &PeerMark| matches!(mark, PeerMark::Marked | PeerMark::Ended);
        edges && self.peers.iter().all(peers) && (marked || self.peers.contains(&PeerMark::Marked))
    }

    /// The round is complete and saved, and the operators behind have its marker: the next one is
    /// under way, which begins with what was kept apart.
    pub fn begin_next(&mut self) {
        debug_assert!(self.is_complete(), "a round ends when it is complete");
        self.round += 1;
        self.sent = false;
        for mark in self.edges.iter_mut().filter(|mark| **mark == EdgeMark::Marked) {
            *mark = EdgeMark::Open;
        }
        for mark in self.peers.iter_mut().filter(|mark| **mark == PeerMark::Marked) {
            *mark = PeerMark::Open;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_is_complete_when_all_edges_and_peers_have_marked_it() {
        let mut of = RoundAlignment::new(7, 2, [false, true, true]);
        assert_eq!(of.mark_edge(0, 7), Ok(false));
        assert!(!of.may_pass(0) && of.may_pass(1) && !of.is_complete());
        assert_eq!(of.mark_peer(1, 7, 3, 2), Ok(()));
        assert_eq!(of.arrives(1, 7), Err(RoundBreach::BehindMarker { round: 7 }));
        assert_eq!((of.arrives(1, 8), of.relayed(7)), (Ok(Arrives::Later), Ok(Arrives::Now)));
        of.end_peer(2);
        assert_eq!(of.mark_edge(1, 7), Ok(true));
        assert!(!of.is_complete(), "the own marker is not sent");
        of.sent();
        assert!(!of.is_complete(), "a broadcast is under way");
        of.received(1, 3);
        assert!(of.is_complete());
        of.begin_next();
        assert_eq!(of.round(), 8);
        assert!(of.may_pass(0) && !of.is_complete());
    }

    #[test]
    fn ends_count_as_markers_of_all_later_rounds_and_are_no_rounds_themselves() {
        let mut of = RoundAlignment::new(0, 2, [false, true]);
        assert!(!of.end_edge(0));
        assert_eq!(of.mark_edge(1, 0), Ok(true));
        of.sent();
        assert_eq!(of.mark_peer(1, 0, 0, 0), Ok(()));
        assert!(of.is_complete());
        of.begin_next();
        assert!(!of.end_edge(1), "an end takes the place of the marker");
        assert_eq!(of.mark_peer(1, 1, 0, 0), Ok(()));
        assert!(of.is_complete(), "the peer goes on");
        of.begin_next();
        of.end_peer(1);
        assert!(!of.is_complete(), "there are no more rounds");
    }

    #[test]
    fn an_end_behind_the_marker_of_another_edge_sends_it() {
        let mut of = RoundAlignment::new(0, 2, [false]);
        assert_eq!(of.mark_edge(1, 0), Ok(false));
        assert!(of.end_edge(0));
    }

    #[test]
    fn other_rounds_are_breaches() {
        let mut of = RoundAlignment::new(u64::from(u16::MAX), 1, [false, true]);
        assert_eq!(of.arrives(1, 0), Ok(Arrives::Later), "colours go round");
        for colour in [1, u16::MAX - 1] {
            let breach = Err(RoundBreach::Colour { colour, round: u64::from(u16::MAX) });
            assert_eq!(of.arrives(1, colour), breach);
        }
        let breach = |marked| Err(RoundBreach::Marker { marked, round: u64::from(u16::MAX) });
        assert_eq!(of.mark_peer(1, 0, 0, 0), breach(0));
        assert_eq!(of.mark_peer(2, u64::from(u16::MAX), 0, 0), breach(u64::from(u16::MAX)));
        assert_eq!(of.mark_peer(1, u64::from(u16::MAX), 0, 0), Ok(()));
        assert_eq!(of.mark_peer(1, u64::from(u16::MAX), 0, 0), breach(u64::from(u16::MAX)));
        assert_eq!(of.mark_edge(0, 1), Err(RoundBreach::Marker { marked: 1, round: 65_535 }));
        assert!(of.mark_edge(1, u64::from(u16::MAX)).is_err(), "there is no such edge");
    }
}
