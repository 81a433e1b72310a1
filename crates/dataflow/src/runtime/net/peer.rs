//! Another worker, as the links know it.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use bytes::Bytes;

use super::REASSEMBLED_BYTES_MAX;
use super::path::Path;
use crate::runtime::frame::Envelope;
use crate::runtime::local_exchange::Load;
use crate::runtime::scheduler::Event;

/// Another worker.
pub(super) struct Peer {
    pub(super) path: Path,
    /// Something happened: a frame came, a credit, a completion.
    pub(super) moved: Event,
    /// Payloads of which more is to come, by kind, operator and port.
    partial: RefCell<HashMap<(u8, u32, u32), Vec<u8>>>,
    /// The other side needs nothing more of us.
    pub(super) heard_bye: Cell<bool>,
    /// The other side knows that we need nothing more of it.
    pub(super) bye_heard: Cell<bool>,
    /// The path ended after the goodbye, as it does when the other side was faster.
    pub(super) gone: Cell<bool>,
}

impl Peer {
    pub(super) fn new(path: Path) -> Self {
        Self {
            path,
            moved: Event::default(),
            partial: RefCell::default(),
            heard_bye: Cell::new(false),
            bye_heard: Cell::new(false),
            gone: Cell::new(false),
        }
    }

    /// Whether both sides need nothing more of each other, and know it.
    pub(super) fn parted(&self) -> bool {
        self.heard_bye.get() && (self.bye_heard.get() || self.gone.get())
    }

    /// The path has ended, and nothing more is needed of it.
    pub(super) fn leave(&self) {
        self.gone.set(true);
        // It reads nothing any more of what was lent to it.
        if let Path::Link(_) = self.path {
            self.path.close();
        }
        self.moved.notify();
    }

    /// Collects the parts of a payload; gives it when it is whole.
    pub(super) fn reassemble(
        &self,
        envelope: &Envelope,
        load: Load,
    ) -> Result<Option<Load>, String> {
        let key = (envelope.frame.kind(), envelope.operator, envelope.port);
        let mut partial = self.partial.borrow_mut();
        if !envelope.more && !partial.contains_key(&key) {
            return Ok(Some(load));
        }
        let (whole, payload) = (partial.entry(key).or_default(), load.bytes());
        if whole.len() + payload.len() > REASSEMBLED_BYTES_MAX {
            return Err(format!("a payload exceeds {REASSEMBLED_BYTES_MAX} bytes"));
        }
        whole.extend_from_slice(&payload);
        if envelope.more {
            return Ok(None);
        }
        // A fresh allocation is not aligned for Arrow by itself; the decoder copies what is not.
        Ok(partial.remove(&key).map(|whole| Load::Own(Bytes::from(whole))))
    }
}
