//! Reads of published memory: by copies with several on their way, and in place.
//!
//! The owner polls and does nothing else; the reader goes through its memory block by block and
//! looks at every word of what it has got.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use channel::LinkError;
use fabric::{
    Completion, Endpoint, Fabric, Flags, LinkId, MappedRange, OpId, PostError, RemoteKey,
    RemoteRange, Slab,
};

use super::raw::{read_all, spin, two_ends};
use super::times::cpu_s;

/// Bytes of the memory that is read, more than caches near a processor have.
const MEMORY_BYTES: usize = 64 << 20;

/// How published memory is read.
#[derive(Debug, Clone, Copy)]
pub struct ReadSetup {
    /// Bytes of a block, which divide the memory: a power of two up to 1 MiB.
    pub block_bytes: usize,
    /// Reads on their way at a time; `None` to read in place.
    pub window: Option<usize>,
}

/// The measurements of a reader.
#[derive(Debug, Clone, Copy)]
pub struct ReadRun {
    /// From the first read until the last block was looked at.
    pub seconds: f64,
    /// Blocks.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Processor time of the owner.
    pub owner_cpu_s: f64,
}

impl ReadRun {
    /// Bytes a second.
    pub fn rate(&self) -> f64 {
        self.bytes as f64 / self.seconds
    }
}

/// Published memory with its owner and a reader of it.
pub struct Published {
    fabric: Arc<dyn Fabric>,
    owner: Box<dyn Endpoint>,
    reader: Box<dyn Endpoint>,
    key: RemoteKey,
    /// The sum of all words.
    sum: u64,
}

impl Published {
    /// Seals and publishes memory of a fabric, which is its own reader.
    ///
    /// # Errors
    /// When the fabric refuses memory or a connection.
    pub fn new(fabric: &Arc<dyn Fabric>) -> Result<Self, LinkError> {
        let slab = fabric.slab(MEMORY_BYTES)?;
        let mut sum = 0_u64;
        for (word, n) in slab.words().iter().zip(1_u64..) {
            let value = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            word.store(value, Ordering::Relaxed);
            sum = sum.wrapping_add(value);
        }
        let slab = fabric.seal(slab)?;
        let key = fabric.publish(&slab.range(0..MEMORY_BYTES)?)?;
        let owner = fabric.offer(LinkId { local: 0, remote: 1 })?;
        let reader = fabric.offer(LinkId { local: 1, remote: 0 })?;
        let (of_owner, of_reader) = (owner.address(), reader.address());
        let (owner, reader) = two_ends(|| owner.connect(&of_reader), || reader.connect(&of_owner));
        Ok(Self { fabric: fabric.clone(), owner: owner?, reader: reader?, key, sum })
    }

    /// Reads for a while, whole rounds of the memory; `None` where it cannot be read in place.
    ///
    /// # Errors
    /// When the connection breaks.
    pub fn read(&mut self, setup: ReadSetup, span: Duration) -> Result<Option<ReadRun>, LinkError> {
        let Self { fabric, owner, reader, key, sum } = self;
        let window = setup.window.unwrap_or(0);
        let staging = fabric.slab((window * setup.block_bytes).max(64))?;
        let over = AtomicBool::new(false);
        let serve = || {
            let (before, mut turns, mut seen) = (cpu_s(), 0, Vec::new());
            while !over.load(Ordering::Acquire) {
                if owner.poll(&mut seen) == 0 {
                    spin(&mut turns);
                }
                seen.clear();
            }
            cpu_s() - before
        };
        let read = || {
            let run = match setup.window {
                None => in_place(&mut **reader, *key, *sum, setup, span),
                Some(window) => {
                    by_copies(&mut **reader, *key, *sum, (&staging, window), setup, span).map(Some)
                }
            };
            over.store(true, Ordering::Release);
            run
        };
        let (owner_cpu_s, run) = two_ends(serve, read);
        Ok(run?.map(|run| ReadRun { owner_cpu_s, ..run }))
    }
}

impl Drop for Published {
    fn drop(&mut self) {
        self.fabric.unpublish(self.key);
    }
}

/// The memory of a key, where it can be mapped.
fn mapped(end: &mut dyn Endpoint, key: RemoteKey) -> Result<Option<MappedRange>, LinkError> {
    loop {
        match end.mapped(key) {
            Ok(range) => return Ok(range),
            Err(PostError::Full) => drop(polled(end)?),
            Err(error) => return Err(failed(error)),
        }
    }
}

fn failed(error: PostError) -> LinkError {
    LinkError::Protocol { detail: format!("a read was refused: {error}") }
}

/// The completions of one poll.
fn polled(end: &mut dyn Endpoint) -> Result<Vec<Completion>, LinkError> {
    let mut seen = Vec::new();
    end.poll(&mut seen);
    for completion in &seen {
        if let Completion::Error { kind, .. } = completion {
            return Err(LinkError::Disconnected { kind: *kind });
        }
    }
    Ok(seen)
}

fn in_place(
    end: &mut dyn Endpoint,
    key: RemoteKey,
    sum: u64,
    setup: ReadSetup,
    span: Duration,
) -> Result<Option<ReadRun>, LinkError> {
    let Some(range) = mapped(end, key)? else { return Ok(None) };
    let (start, mut blocks) = (Instant::now(), 0);
    while blocks == 0 || start.elapsed() < span {
        let mut seen = 0_u64;
        for block in range.chunks_exact(setup.block_bytes) {
            seen = seen.wrapping_add(black_box(read_all(black_box(block))));
            blocks += 1;
        }
        assert_eq!(seen, sum, "the memory is not what was published");
    }
    Ok(Some(run_of(start, blocks, setup)))
}

fn by_copies(
    end: &mut dyn Endpoint,
    key: RemoteKey,
    sum: u64,
    (staging, window): (&Slab, usize),
    setup: ReadSetup,
    span: Duration,
) -> Result<ReadRun, LinkError> {
    let block = setup.block_bytes;
    let all = (MEMORY_BYTES / block) as u64;
    let post = |end: &mut dyn Endpoint, number: u64| {
        let place = (number as usize % window) * block;
        let dst = staging.range(place..place + block)?;
        let src = RemoteRange { key, offset: number % all * block as u64 };
        end.read(&dst, src, OpId(number), Flags::SIGNAL).map_err(failed)
    };
    let (start, mut posted, mut taken, mut turns) = (Instant::now(), 0, 0, 0);
    let (mut seen, mut last) = (0_u64, all);
    while taken < last {
        while posted < last && posted < taken + window as u64 {
            post(end, posted)?;
            posted += 1;
        }
        end.submit();
        let completions = polled(end)?;
        if completions.is_empty() {
            spin(&mut turns);
        }
        for completion in completions {
            let Completion::Local { id } = completion else { continue };
            let place = (id.0 as usize % window) * block / 8;
            let words = &staging.words()[place..place + block / 8];
            let add = |sum: u64, word: &std::sync::atomic::AtomicU64| {
                sum.wrapping_add(word.load(Ordering::Relaxed))
            };
            seen = seen.wrapping_add(words.iter().fold(0, add));
            taken += 1;
        }
        if taken == last {
            assert_eq!(seen, sum, "the memory is not what was published");
            if start.elapsed() < span {
                (seen, last) = (0, last + all);
            }
        }
    }
    Ok(run_of(start, taken, setup))
}

fn run_of(start: Instant, blocks: u64, setup: ReadSetup) -> ReadRun {
    let bytes = blocks * setup.block_bytes as u64;
    ReadRun { seconds: start.elapsed().as_secs_f64(), blocks, bytes, owner_cpu_s: 0.0 }
}
