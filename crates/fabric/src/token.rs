//! Random names that a peer cannot guess: of offers, of exports.

use std::fmt;
use std::io;

use rustix::rand::{GetRandomFlags, getrandom};

/// 128 random bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Token([u8; Token::BYTES]);

impl Token {
    /// Bytes of a token.
    pub(crate) const BYTES: usize = 16;

    /// A fresh one.
    ///
    /// # Errors
    /// When the operating system gives no randomness.
    pub(crate) fn random() -> io::Result<Self> {
        let mut bytes = [0; Self::BYTES];
        let mut filled = 0;
        while filled < bytes.len() {
            match getrandom(&mut bytes[filled..], GetRandomFlags::empty()) {
                Ok(n) => filled += n,
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(Self(bytes))
    }

    pub(crate) fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        Self(bytes)
    }

    pub(crate) fn bytes(&self) -> &[u8; Self::BYTES] {
        &self.0
    }

    /// 64 of the bits.
    pub(crate) fn word(&self) -> u64 {
        self.0[..8].iter().fold(0, |word, byte| word << 8 | u64::from(*byte))
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
