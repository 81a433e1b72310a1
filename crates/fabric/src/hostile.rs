//! Entrances for fuzz targets and the replay of their corpora: bytes of a peer are read as this
//! crate reads them (`fuzz/`, `tests/corpus.rs`).
//!
//! Each function reads bytes that anybody may have made, and checks what holds whatever they are.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use crate::frames::{FrameEndpoint, Wire};
use crate::listener::{self, Greeting};
use crate::memory::IoPiece;
use crate::published::PublishedTable;
use crate::shared::sent_on_shared_connection;
use crate::{
    Armed, Atomics, Caps, Completion, Endpoint, ErrorKind, Flags, OpId, Publish, RemoteKey,
    RemoteRange, Slab, SlabRange, Src,
};

/// Bytes in front of the body of a frame, and where its parts are.
const HEADER_BYTES: usize = 44;
const LEN_AT: usize = 8;
const SUM_AT: usize = 12;
const KEY_AT: usize = 16;
const CHECK_AT: usize = 40;
/// The operations that name memory by its key.
const KEYED: std::ops::RangeInclusive<u8> = 1..=5;
/// The operation without a body whose length is that of the answer.
const READ: u8 = 3;

/// Memory of the end that listens: answers to its own operations, what it exports, what it has
/// exported and retired, and what it has published, which the peer may read.
const ANSWERS: usize = 80;
const EXPORTED: std::ops::Range<usize> = 4096..36 << 10;
const RETIRED: std::ops::Range<usize> = 40 << 10..44 << 10;
const PUBLISHED: std::ops::Range<usize> = 44 << 10..46 << 10;
const MEMORY_BYTES: usize = 48 << 10;
/// Receives that it has posted.
const RECVS: u32 = 8;
/// Reads and atomics of the peer that may wait for their answers.
const REPLIES_MAX: u32 = 4;

/// The effects of a peer's frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerEffects {
    /// Notices and messages that came of it.
    pub notices: usize,
    /// Operations of the end that listens that it has completed.
    pub completed: usize,
    /// How it ended the connection, if it did.
    pub ended: Option<ErrorKind>,
}

/// Takes frames, as from a TCP connection. The first byte says whether the connection is checked
/// (bit 0), and whether the bytes come as they are (bit 1) instead of with the right checksums; the
/// second one how many come at a time. The keys 1 and 2 stand for memory that is exported, and that
/// was, the key 3 for memory that is published.
///
/// # Panics
/// When memory changes that was not exported, or more comes out than can be meant.
pub fn frames(bytes: &[u8]) -> Option<PeerEffects> {
    let (&[how, chunk], frames) = bytes.split_first_chunk()?;
    let (checked, plain) = (how & 1 != 0, how & 2 != 0);
    let slab = Slab::heap(MEMORY_BYTES).ok()?;
    slab.words().iter().zip(0..).for_each(|(word, n)| word.store(n, Ordering::Relaxed));
    let (script, place) = (Arc::new(OnceLock::new()), Arc::new(AtomicUsize::new(0)));
    let wire = Script { script: script.clone(), place: place.clone(), chunk: usize::from(chunk) };
    let table = Arc::new(PublishedTable::default());
    let published = table.publish(&slab.range(PUBLISHED).ok()?).ok()?;
    let mut end = FrameEndpoint::new(caps(), wire, table, REPLIES_MAX, checked);
    let exported = end.export(&slab.range(EXPORTED).ok()?).ok()?;
    let retired = end.export(&slab.range(RETIRED).ok()?).ok()?;
    end.retire(retired);
    end.post_recvs(RECVS);
    ask(&mut end, &slab)?;
    let frames = sealed(frames, checked, plain, [exported.key, retired.key, published.key]);
    let length = script.get_or_init(|| frames).len();
    let mut seen = Vec::new();
    let is_end = |c: &Completion| matches!(c, Completion::Error { .. });
    loop {
        let before = place.load(Ordering::Relaxed);
        let events = end.poll(&mut seen);
        let stands = events == 0 && place.load(Ordering::Relaxed) == before;
        if stands && (before == length || seen.iter().any(is_end)) {
            break;
        }
    }
    let untouched = (ANSWERS..EXPORTED.start).chain(EXPORTED.end..MEMORY_BYTES).step_by(8);
    for at in untouched {
        assert_eq!(slab.load(at, Ordering::Relaxed), at as u64 / 8, "byte {at} has changed");
    }
    Some(effects(&seen, &end))
}

fn caps() -> Caps {
    Caps {
        publish: Publish::Notify,
        atomics: Atomics::Global,
        ordered_completions: true,
        names_refused: true,
        max_inline: 256,
        max_msg: 1 << 30,
        max_send: 1024,
        max_ops: 64,
    }
}

/// Posts one operation of each kind whose answer a peer may give: 1 to 4.
fn ask(end: &mut FrameEndpoint<Script>, slab: &Slab) -> Option<()> {
    let key = RemoteKey { key: 9, base: 0, len: 4096 };
    let at = |offset| RemoteRange { key, offset };
    end.write(Src::Inline(&[7; 8]), at(0), OpId(1), Flags::SIGNAL).ok()?;
    end.read(&slab.range(0..64).ok()?, at(64), OpId(2), Flags::SIGNAL).ok()?;
    end.fetch_add(at(8), 1, &slab.range(64..72).ok()?, OpId(3)).ok()?;
    end.compare_swap(at(16), 1, 2, &slab.range(72..ANSWERS).ok()?, OpId(4)).ok()
}

fn effects(seen: &[Completion], end: &FrameEndpoint<Script>) -> PeerEffects {
    let count = |of: fn(&Completion) -> bool| seen.iter().filter(|c| of(c)).count();
    let notices = count(|c| matches!(c, Completion::Notify { .. } | Completion::Recv { .. }));
    let completed = count(|c| matches!(c, Completion::Local { .. }));
    assert!(notices <= RECVS as usize && completed <= 4, "more than can be: {seen:?}");
    let ended = seen.iter().find_map(|completion| match completion {
        Completion::Error { kind, .. } if *kind != ErrorKind::Flushed => Some(*kind),
        _ => None,
    });
    assert!(ended.is_none() || end.budget().ops == 0, "it goes on behind its end");
    PeerEffects { notices, completed, ended }
}

/// The frames with their keys, and with their checksums unless they are to stay `plain`.
fn sealed(mut frames: &[u8], checked: bool, plain: bool, keys: [u64; 3]) -> Vec<u8> {
    let (mut out, mut number) = (Vec::new(), 0_u64);
    while let Some((header, rest)) = frames.split_first_chunk::<HEADER_BYTES>() {
        let mut header = *header;
        let part = |at: usize| at..at + 4;
        let key = header[KEY_AT..].first_chunk().map_or(0, |key| u64::from_le_bytes(*key));
        let real = (key as usize).checked_sub(1).and_then(|at| keys.get(at));
        if let Some(real) = real.filter(|_| KEYED.contains(&header[0])) {
            header[KEY_AT..KEY_AT + 8].copy_from_slice(&real.to_le_bytes());
        }
        let len = header[LEN_AT..].first_chunk().map_or(0, |len| u32::from_le_bytes(*len));
        let len = if header[0] == READ { 0 } else { rest.len().min(len as usize) };
        let (body, behind) = rest.split_at(len);
        if !plain {
            let sum = if checked && len > 0 { crc32c::crc32c(body) } else { 0 };
            header[part(SUM_AT)].copy_from_slice(&sum.to_le_bytes());
            let check = crc32c::crc32c(&number.to_le_bytes());
            let check = crc32c::crc32c_append(check, &header[..CHECK_AT]);
            let check = if checked { check } else { 0 };
            header[part(CHECK_AT)].copy_from_slice(&check.to_le_bytes());
        }
        out.extend_from_slice(&header);
        out.extend_from_slice(body);
        (frames, number) = (behind, number + 1);
    }
    out.extend_from_slice(frames);
    out
}

/// A wire whose other end has said all that it will, and takes everything.
struct Script {
    /// The keys in it are known only when the connection stands.
    script: Arc<OnceLock<Vec<u8>>>,
    place: Arc<AtomicUsize>,
    /// Bytes of a read at most; 0 for as many as fit.
    chunk: usize,
}

impl Wire for Script {
    fn write<'a>(
        &mut self,
        pieces: impl Iterator<Item = IoPiece<'a>>,
    ) -> io::Result<Option<usize>> {
        Ok(Some(pieces.map(|piece| piece.len()).sum()))
    }

    fn read(
        &mut self,
        head: Option<(&SlabRange, usize)>,
        rest: &mut [u8],
    ) -> io::Result<Option<usize>> {
        let at = self.place.load(Ordering::Relaxed);
        let direct = head.as_ref().map_or(0, |(range, from)| range.len() - from);
        let most = if self.chunk == 0 { usize::MAX } else { self.chunk };
        let script = self.script.get().map_or(&[][..], Vec::as_slice);
        let n = (script.len() - at).min(direct + rest.len()).min(most);
        if n == 0 {
            return Ok(None);
        }
        let (first, last) = script[at..at + n].split_at(n.min(direct));
        if let Some((range, from)) = head {
            range.place(from, first);
        }
        rest[..last.len()].copy_from_slice(last);
        self.place.store(at + n, Ordering::Relaxed);
        Ok(Some(n))
    }

    fn end(&mut self) {}

    fn arm(&mut self, _: bool) -> Armed {
        Armed::Ready
    }
}

/// What is said before a connection carries frames, and what is told of where to make one; the
/// first byte chooses: a greeting, an address, or what travels on a connection that links share.
/// True when it is one.
///
/// # Panics
/// When it is another one behind being written again.
pub fn greeting(bytes: &[u8]) -> bool {
    let Some((kind, bytes)) = bytes.split_first() else { return false };
    match kind % 3 {
        0 => {
            let greeting = bytes.first_chunk().and_then(Greeting::decode);
            let again = greeting.map(|greeting| Greeting::decode(&greeting.encode()));
            assert_eq!(again.flatten(), greeting);
            greeting.is_some()
        }
        1 => {
            let Some((magic, _)) = bytes.split_first_chunk() else { return false };
            let Some((token, at)) = listener::parse(magic, bytes) else { return false };
            assert_eq!(listener::address(magic, &token, at), bytes);
            true
        }
        _ => sent_on_shared_connection(bytes),
    }
}
