//! How fast memory is: streaming reads, and random updates.

use std::hint::black_box;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use memmap2::{Advice, MmapMut};
use zerocopy::{FromBytes, IntoBytes};

/// Bytes that all threads read over and over: beyond any cache. The third level of servers, which
/// they share, has up to half of it.
const STREAMS_BYTES: usize = 1 << 30;
/// Bytes of a page: buffers are whole pages, and so whole words.
const PAGE_BYTES: usize = 4096;
/// Bytes that each of many threads reads.
const STREAM_BYTES_MIN: usize = 128 << 20;
/// Words between two looks at the clock.
const CHUNK_WORDS: usize = 1 << 18;
/// How long a stream is read.
const STREAM_SPAN: Duration = Duration::from_millis(60);
/// Updates of a measurement.
const UPDATES: u64 = 1 << 24;

/// Memory of at least this many bytes, whole pages: large ones where the system gives them.
fn mapped(bytes: usize) -> std::io::Result<MmapMut> {
    let mut map = MmapMut::map_anon(bytes.next_multiple_of(PAGE_BYTES))?;
    #[cfg(target_os = "linux")]
    let _ = map.advise(Advice::HugePage);
    // Pages that were never written are one page of zeros.
    map.iter_mut().step_by(PAGE_BYTES).for_each(|byte| *byte = 1);
    Ok(map)
}

/// Buffers to be read by this many threads.
pub struct StreamBuffers(Vec<MmapMut>);

impl StreamBuffers {
    /// A buffer for each thread.
    ///
    /// # Errors
    /// When there is not so much memory.
    pub fn new(threads: usize) -> std::io::Result<Self> {
        let bytes = (STREAMS_BYTES / threads.max(1)).max(STREAM_BYTES_MIN);
        Ok(Self((0..threads).map(|_| mapped(bytes)).collect::<Result<_, _>>()?))
    }

    /// Bytes a second that `threads` threads (of those that there are buffers for) read together,
    /// each its own buffer from front to back.
    pub fn read(&self, threads: usize) -> f64 {
        let maps = &self.0[..threads.min(self.0.len())];
        let barrier = Barrier::new(maps.len());
        let rates = thread::scope(|scope| {
            let reading: Vec<_> =
                maps.iter().map(|map| scope.spawn(|| read_for(map, &barrier))).collect();
            reading.into_iter().map(|thread| thread.join().unwrap_or(0.0)).collect::<Vec<_>>()
        });
        rates.iter().sum()
    }
}

fn read_for(map: &MmapMut, barrier: &Barrier) -> f64 {
    let words = <[u64]>::ref_from_bytes(map).unwrap_or(&[]);
    barrier.wait();
    let (start, mut bytes) = (Instant::now(), 0);
    while start.elapsed() < STREAM_SPAN {
        for part in words.chunks(CHUNK_WORDS) {
            // Several sums, so that none waits for its own last addition.
            let mut sums = [0u64; 16];
            for words in part.as_chunks::<16>().0 {
                sums.iter_mut().zip(words).for_each(|(sum, &word)| *sum = sum.wrapping_add(word));
            }
            black_box(sums);
            bytes += part.len() * 8;
        }
    }
    bytes as f64 / start.elapsed().as_secs_f64()
}

/// Random additions to 8-byte words a second in a table of this many bytes, a power of two, on one
/// thread.
///
/// # Errors
/// When there is not so much memory.
pub fn random_updates(bytes: usize) -> std::io::Result<f64> {
    let mut map = mapped(bytes.next_power_of_two())?;
    let words = <[u64]>::mut_from_bytes(map.as_mut_bytes()).unwrap_or(&mut []);
    let shift = 64 - words.len().trailing_zeros();
    let start = Instant::now();
    for i in 0..UPDATES {
        // A step of the golden ratio visits all words, no two neighbours soon after each other;
        // the multiplication makes the order look random to the prefetcher.
        let at = (i.wrapping_mul(i | 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> shift) as usize;
        words[at] = words[at].wrapping_add(i);
    }
    let rate = UPDATES as f64 / start.elapsed().as_secs_f64();
    black_box(&words);
    Ok(rate)
}

/// Bytes of memory that are free or can be made so; `None` where the system does not tell.
pub(crate) fn available() -> Option<u64> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_number_of_threads_reads_memory() {
        // By three a gibibyte cannot be divided.
        let rate = StreamBuffers::new(3).unwrap().read(3);
        assert!(rate.is_finite() && rate > 0.0, "{rate}");
    }
}
