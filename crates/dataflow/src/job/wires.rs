//! How the workers of two processes are connected: chosen for a job.

use channel::HUGE_PAGE_BYTES;

/// Choices about the connections between processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Wires {
    /// Who has a connection.
    pub connection: Connection,
    /// Who moves connections that workers share.
    pub progress: ProgressMode,
    /// Slots of a ring that are freed before their credit is worth a notice of its own (Q2); 0
    /// leaves it to the link.
    pub credit_slots: u32,
    /// Which rows carry checksums.
    pub checksum: Checksum,
    /// The pages of rings.
    pub ring_pages: RingPages,
}

/// The pages of the system in which rings lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum RingPages {
    /// Huge pages, where the rings of workers of the same two processes fill one.
    #[default]
    Auto,
    /// Huge pages, also where little of one is used.
    Huge,
    /// Each ring has memory of its own, in the pages that the system gives for its size.
    Small,
}

impl RingPages {
    /// Whether the rings between the workers of two processes lie in one slab, for which huge pages
    /// are asked. Together they have `bytes` bytes.
    pub fn are_beside(self, bytes: u64) -> bool {
        match self {
            Self::Auto => bytes >= HUGE_PAGE_BYTES,
            Self::Huge => true,
            Self::Small => false,
        }
    }
}

/// What carries checksums between two processes: what arrives otherwise than it was sent ends the
/// connection, and is sent again over another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Checksum {
    /// Whatever travels by TCP. Devices check what they carry, and shared memory carries nothing.
    #[default]
    Auto,
    /// Rows over any transport.
    On,
    /// Nothing but the heads of frames.
    Off,
}

/// Who has a connection with another process (Q3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Connection {
    /// What suits the transport.
    #[default]
    Auto,
    /// A process: its workers share it.
    Process,
    /// Each worker, with each worker of the other process.
    Worker,
}

/// Who moves connections that workers share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ProgressMode {
    /// The workers, whenever they poll (S4).
    #[default]
    Spin,
    /// A thread of the process, which sleeps when nothing happens (Q4).
    Thread,
}
