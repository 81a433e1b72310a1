//! Datagrams to many receivers at once: the network makes the copies. A capability that a fabric
//! may have ([`Fabric::multicast`](crate::Fabric::multicast)).
//!
//! ```text
//!   member ──send──▶ network ──▶ every other member of the group, or some, or none
//! ```
//!
//! The guarantees, and nothing beyond them:
//!
//! * **M1** A datagram arrives whole, with the bytes that were sent, or not at all.
//! * **M2** It may get lost, come more than once, late, or before one that was sent earlier. Nobody
//!   is told. A member that does not poll for a while loses what finds no room.
//! * **M3** A member does not get what it has sent itself. Members of one process get each other's.
//! * **M4** What arrives was sent by one that knows the group's name, which is secret. Which one it
//!   was, is for the datagram to say.
//! * **M5** Nothing that others do makes `send` wait or fail.
//!
//! So whoever needs every byte sends beside it, over an endpoint, what the datagrams should have
//! been, and lets the receiver fetch what it lacks.

use std::fmt;

use crate::token::Token;
use crate::{FabricError, PostError};

/// The name of a group: random, and known to its members alone.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Group([u8; Group::BYTES]);

impl Group {
    /// Bytes of a name.
    pub const BYTES: usize = 16;

    /// The group of this name.
    pub fn new(name: [u8; Self::BYTES]) -> Self {
        Self(name)
    }

    /// A group of a fresh name.
    ///
    /// # Errors
    /// When the operating system gives no randomness.
    pub fn random() -> std::io::Result<Self> {
        Ok(Self(*Token::random()?.bytes()))
    }

    /// One of the groups of a family, which have names of their own.
    pub fn branch(&self, number: u32) -> Self {
        let mut name = self.0;
        let places = name.iter_mut().rev().zip(number.to_le_bytes());
        places.for_each(|(place, byte)| *place ^= byte);
        Self(name)
    }

    /// Its name.
    pub fn name(&self) -> &[u8; Self::BYTES] {
        &self.0
    }
}

/// As much of the name as may be shown.
impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Group({:02x}{:02x}…)", self.0[0], self.0[1])
    }
}

/// A fabric whose network copies datagrams.
pub trait Multicast: Send + Sync {
    /// Bytes of a datagram.
    fn datagram_max(&self) -> usize;

    /// Becomes a member; earlier datagrams are not delivered.
    ///
    /// # Errors
    /// When the device or the network has no room for another group or member.
    fn join(&self, group: Group) -> Result<Box<dyn GroupMember>, FabricError>;
}

/// A member of a group, owned by one thread; it leaves when it is dropped.
pub trait GroupMember: Send {
    /// Bytes of a datagram, as [`Multicast::datagram_max`].
    fn datagram_max(&self) -> usize;

    /// Sends a datagram to the others, at once.
    ///
    /// # Errors
    /// Nothing was sent: [`PostError::TooLarge`]; [`PostError::Full`] while those before are on
    /// their way out, which `poll` notices; [`PostError::Closed`] when the device is broken.
    fn send(&mut self, bytes: &[u8]) -> Result<(), PostError>;

    /// Emits the datagrams that have come, each once it is whole; returns how many.
    fn poll(&mut self, take: &mut dyn FnMut(&[u8])) -> usize;
}
