//! The payloads that are neither rows nor groups. Lists of workers are those of
//! [`WorkerSet`](crate::job::worker_set::WorkerSet).

/// In place of a payload that travels by the network's own multicast: how long it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placeholder {
    /// Bytes of the payload, at least one.
    pub bytes: u32,
}

impl Placeholder {
    /// The bytes on the wire.
    #[must_use]
    pub fn encode(self) -> [u8; 4] {
        self.bytes.to_le_bytes()
    }

    /// The inverse of [`Placeholder::encode`].
    ///
    /// # Errors
    /// The malformed part.
    pub fn decode(payload: &[u8]) -> Result<Self, String> {
        match <[u8; 4]>::try_from(payload).map(u32::from_le_bytes) {
            Ok(bytes @ 1..) => Ok(Self { bytes }),
            Ok(0) => Err("a placeholder stands for no bytes".into()),
            Err(_) => Err(format!("a placeholder has {} bytes, not 4", payload.len())),
        }
    }
}

/// The payload of a [`TreeUpdate`](super::Frame::TreeUpdate): the receiver's children.
#[must_use]
pub fn encode_children(children: &[u32]) -> Vec<u8> {
    children.iter().flat_map(|child| child.to_le_bytes()).collect()
}

/// The inverse of [`encode_children`], in a job of `workers` workers.
///
/// # Errors
/// When bytes are left over, or a child is none of the workers or comes twice.
pub fn decode_children(payload: &[u8], workers: u32) -> Result<Vec<u32>, String> {
    let (words, rest) = payload.as_chunks::<4>();
    if !rest.is_empty() {
        return Err(format!("a list of children has {} bytes too many", rest.len()));
    }
    let children: Vec<u32> = words.iter().map(|word| u32::from_le_bytes(*word)).collect();
    let mut sorted = children.clone();
    sorted.sort_unstable();
    let twice = sorted.windows(2).any(|pair| pair[0] == pair[1]);
    if twice || sorted.last().is_some_and(|&child| child >= workers) {
        return Err(format!("children {children:?} are not some of {workers} workers"));
    }
    Ok(children)
}
