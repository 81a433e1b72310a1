//! What a link counts.

use fabric::Slab;

use super::Link;

/// Counters of a link since its beginning, exact, and two gauges.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LinkStats {
    /// Frames published.
    pub frames_sent: u64,
    /// Those of them whose payloads stayed in the region.
    pub frames_lent: u64,
    /// Frames posted again over another connection.
    pub frames_again: u64,
    /// Bytes of their payloads.
    pub payload_bytes_sent: u64,
    /// Bytes written into the peer's ring: payloads, padding, trailers.
    pub ring_bytes_sent: u64,
    /// Writes posted that carry a frame: one a frame.
    pub writes: u64,
    /// Reads posted that fetch frames (W3): one a frame, and one more where a frame is longer than
    /// the one before; or one for each payload in the peer's region.
    pub reads: u64,
    /// Bytes that they asked for.
    pub ring_bytes_read: u64,
    /// Notices posted, of which
    pub notices_sent: u64,
    /// those that return credit, and
    pub credit_notices_sent: u64,
    /// those that announce sleep.
    pub sleep_notices_sent: u64,
    /// Notices received.
    pub notices_received: u64,
    /// What the endpoint reported: notices, and operations of ours that have completed.
    pub completions: u64,
    /// Frames taken from the ring, of which
    pub frames_received: u64,
    /// those of former statements, which nobody receives.
    pub frames_dropped: u64,
    /// Bytes of their payloads.
    pub payload_bytes_received: u64,
    /// Times that no slot could be reserved: no credit,
    pub credit_stalls: u64,
    /// or the staging slot's write had not completed,
    pub staging_stalls: u64,
    /// or the queue or the peer's receives were used up.
    pub queue_stalls: u64,
    /// Gauge: slots of our ring whose payloads live, received or still to be received. While it
    /// equals `slots` the peer cannot send anything; who waits for a frame then waits forever.
    pub held: u64,
    /// Gauge: frames published and not known to be released.
    pub in_flight: u64,
}

impl Link {
    /// The slabs of ring and staging, of which other links may have parts.
    pub fn slabs(&self) -> [&Slab; 2] {
        [self.ring.slab(), self.staging.slab()]
    }

    /// Counters.
    pub fn stats(&self) -> LinkStats {
        LinkStats {
            held: self.consumer.held() - u64::from(self.ring.uncollected()),
            in_flight: self.producer.in_flight()
                + self.again.saturating_sub(self.producer.published()),
            ..self.stats
        }
    }
}
