//! Payloads by the network's own multicast: along the tree goes a placeholder in place of the
//! payload, and the payload goes to all relays at once, as datagrams. Retention is up to
//! [`channel::broadcast::InFlightPayloads`], requests for missing ones are up to
//! [`channel::broadcast::ExpectedPayloads`], and [`crate::runtime::net`] puts the datagrams
//! together; this module drives all three.
//!
//! Where the network loses too much ([`MulticastChoice::Auto`]), the source goes back to the tree.

use bytes::Bytes;
use channel::Class;
use channel::broadcast::InFlightPayloads;

use super::inbound::not_relay;
use super::{BroadcastFrame, Distributor, Relayed};
use crate::job::MulticastChoice;
use crate::runtime::frame::Frame;
use crate::runtime::net::Net;

/// Payloads for which a datagram is worth it.
const BYTES_MIN: usize = 4096;
/// Frames after which it is known what the network loses.
const TRIED_MIN: u64 = 16;
/// How long a relay waits for a payload before it asks for it, and for how long it sleeps then:
/// datagrams wake nobody.
const NACK_NS: u64 = 1_000_000;
const LOOK_NS: u64 = 50_000;

/// What a source gives to the network.
pub(super) struct InFlight {
    choice: MulticastChoice,
    /// Payloads, and how many of their parts are on their way.
    flight: InFlightPayloads<(Bytes, usize)>,
    /// Frames sent by the network, and those of them that were asked for again.
    sent: u64,
    repeated: u64,
    /// Some parts found no room.
    crowded: bool,
}

impl InFlight {
    /// Of a source with these relays, each of which may have `open_max` frames open.
    pub(super) fn new(choice: MulticastChoice, relays: &[u32], open_max: usize) -> Self {
        let flight = InFlightPayloads::new(relays, open_max);
        Self { choice, flight, sent: 0, repeated: 0, crowded: false }
    }

    /// Whether a payload of so many bytes is for the network.
    pub(super) fn carries(&self, bytes: usize) -> bool {
        let relays = self.flight.members() as u32;
        let lossy = self.sent >= TRIED_MIN && self.repeated * 4 > self.sent * u64::from(relays);
        match self.choice {
            MulticastChoice::Auto if bytes < BYTES_MIN || lossy => false,
            choice => bytes > 0 && choice.is_for(relays + 1),
        }
    }

    /// Whether one more payload can be kept.
    pub(super) fn has_room(&self) -> bool {
        self.flight.has_room()
    }

    /// Whether every relay has had everything.
    pub(super) fn is_over(&self) -> bool {
        self.flight.is_over()
    }

    /// Takes the payload of a frame, for the network and for who asks.
    pub(super) fn launch(&mut self, seq: u64, payload: Bytes) {
        self.sent += 1;
        self.flight.add(seq, (payload, 0));
    }

    /// Tells what came of it, at the end.
    pub(super) fn report(&self, worker: u32) {
        if self.sent > 0 {
            let (sent, repeated) = (self.sent, self.repeated);
            tracing::debug!(worker, sent, repeated, "payloads went by the network's multicast");
        }
    }
}

impl Distributor {
    /// Sends what there is room for: parts to the network, payloads to who lacks them. Gives the
    /// relay for whom a payload waits.
    pub(super) fn pump_in_flight(&self, net: &Net) -> Option<u32> {
        let InFlight { flight, crowded, .. } = &mut *self.in_flight.borrow_mut();
        if let Some(mut in_flight) = net.in_flight() {
            let mut payloads = flight.retained_mut();
            *crowded = !payloads.all(|(seq, (payload, parts))| {
                in_flight.send((self.tag, self.worker, seq), payload, parts)
            });
        }
        while let Some((relay, seq, (payload, _))) = flight.next_repair() {
            let envelope = self.envelope(Frame::Repair { number: seq });
            if !net.try_send(relay, Class::Data, envelope, &[payload]) {
                return Some(relay);
            }
            net.count(|metrics| &metrics.broadcast_frames, 1);
            net.count(|metrics| &metrics.broadcast_bytes, payload.len() as u64);
            flight.repaired();
            self.stalled.borrow_mut().remove(&relay);
        }
        None
    }

    /// A relay has a placeholder of this worker's and not its payload.
    pub(super) fn receive_nack(&self, from: u32, number: u64) -> Result<(), String> {
        let mut in_flight = self.in_flight.borrow_mut();
        in_flight.repeated += 1;
        in_flight.flight.reports_missing(from, number).map_err(|breach| breach.to_string())
    }

    /// A relay has all payloads of this worker before a number.
    pub(super) fn receive_payload_ack(&self, from: u32, before: u64) -> Result<(), String> {
        if before > self.next_number() {
            return Err(format!("it acknowledges payload {before}, which was never sent"));
        }
        let mut in_flight = self.in_flight.borrow_mut();
        in_flight
            .flight
            .acknowledged_payloads(from, before)
            .map_err(|breach| breach.to_string())?;
        self.room.notify();
        Ok(())
    }

    /// Puts the payload of the next frame of a source in its place, if that is a placeholder. False
    /// while it is not here.
    pub(super) fn land(&self, net: &Net, source: u32, relayed: &mut Relayed) -> bool {
        let Some((seq, frame)) = relayed.relay.upcoming() else { return true };
        let Some(bytes) = frame.lacks() else { return true };
        let landed = net
            .in_flight()
            .and_then(|mut in_flight| in_flight.take((self.tag, source, seq), bytes));
        let Some(payload) = landed else {
            relayed.expected.awaits(seq, self.clock.now_ns());
            return false;
        };
        self.arrives(net, source, relayed, payload);
        net.count(|metrics| &metrics.broadcast_multicast_received, 1);
        true
    }

    /// A payload that was asked for has come.
    pub(super) fn fill(
        &self,
        net: &Net,
        source: u32,
        seq: u64,
        payload: &Bytes,
    ) -> Result<(), String> {
        let mut relayed = self.relayed.borrow_mut();
        let relayed = relayed.get_mut(&source).ok_or_else(|| not_relay(source))?;
        let upcoming = relayed.relay.upcoming().filter(|(next, _)| *next == seq);
        // One that has landed in the meantime is not needed any more.
        let Some(bytes) = upcoming.and_then(|(_, frame)| frame.lacks()) else { return Ok(()) };
        if payload.len() != bytes {
            let sent = payload.len();
            return Err(format!("payload {seq} is of {bytes} bytes, and {sent} were sent"));
        }
        self.arrives(net, source, relayed, Bytes::copy_from_slice(payload));
        net.count(|metrics| &metrics.broadcast_fetched, 1);
        Ok(())
    }

    /// The payload of the next frame of a source is here.
    fn arrives(&self, net: &Net, source: u32, relayed: &mut Relayed, payload: Bytes) {
        let Some((seq, frame)) = relayed.relay.upcoming() else { return };
        (frame.payload, frame.owned) = (payload, true);
        relayed.expected.payload_arrived();
        if let Some(mut in_flight) = net.in_flight() {
            in_flight.pass((self.tag, source, seq));
        }
    }

    /// Asks for payloads that have not come, and says which have.
    pub(super) fn acknowledge_payloads(&self) {
        let now = self.clock.now_ns();
        for (&source, relayed) in self.relayed.borrow_mut().iter_mut() {
            let Relayed { relay, expected, .. } = relayed;
            if let Some(number) = expected.next_request(now, NACK_NS) {
                self.control(source, Frame::Nack { number });
            }
            if expected.ack_due(relay.upcoming().is_none() || expected.is_awaiting()) {
                self.control(source, Frame::PayloadAck { before: relay.next() });
            }
        }
    }

    /// Whether parts of a payload find no room.
    pub(super) fn is_crowded(&self) -> bool {
        self.in_flight.borrow().crowded
    }

    /// The sources of which a payload is awaited.
    pub(super) fn awaited(&self) -> Vec<u32> {
        let relayed = self.relayed.borrow();
        let awaited = relayed.iter().filter(|(_, relayed)| relayed.expected.is_awaiting());
        awaited.map(|(&source, _)| source).collect()
    }

    /// When to look again, where nothing wakes.
    pub(super) fn look_ns(&self, now_ns: u64) -> Option<u64> {
        let relayed = self.relayed.borrow();
        let waits = relayed.values().any(|relayed| relayed.expected.is_patient());
        (self.is_crowded() || waits).then_some(now_ns.saturating_add(LOOK_NS))
    }
}

impl BroadcastFrame {
    /// Bytes of its payload, if that is not here.
    fn lacks(&self) -> Option<usize> {
        self.placeholder.filter(|_| self.payload.is_empty()).map(|bytes| bytes as usize)
    }
}
