//! The plan of one worker, whatever carries its integers.

use std::collections::VecDeque;

use crate::wire::cpu_s;

use super::ShuffleError;

/// Rows that are made before the worker looks again at what came.
const MADE: u64 = 4096;
/// Chunks that may wait for one worker before no more rows are made.
const WAITING_MAX: usize = 4;
/// Turns without anything to do after which a worker sleeps.
const IDLE_TURNS: u32 = 64;

/// How large the plan is.
#[derive(Debug, Clone, Copy)]
pub struct ShufflePlan {
    /// This worker.
    pub rank: usize,
    /// All workers: two at least.
    pub nodes: usize,
    /// Rows that each of them makes: an integer, and as much beside it as a row has bytes.
    pub rows: u64,
    /// Words of a row, the integer among them.
    pub row_words: usize,
    /// Rows for one worker leave when there are this many bytes of them (Q5).
    pub threshold_bytes: usize,
}

impl ShufflePlan {
    /// Words of a full chunk: of whole rows.
    pub(super) fn chunk_words(&self) -> usize {
        (self.threshold_bytes / 8 / self.row_words).max(1) * self.row_words
    }

    /// The rows of the second shuffle: how many, and the sum of their words. Computed once more,
    /// one by one.
    pub fn right(&self) -> (u64, u64) {
        let total = self.rows * self.nodes as u64;
        let beside = |value: u64| {
            (1..self.row_words as u64).map(|word| value + word).fold(0, u64::wrapping_add)
        };
        let of = |value: u64| changed(value).wrapping_add(beside(value));
        (total, (0..total).map(of).fold(0, u64::wrapping_add))
    }
}

/// The counts of a worker.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ShuffleCounts {
    /// Rows that came out of the second shuffle here.
    pub rows: u64,
    /// The sum of their words, modulo 2⁶⁴.
    pub sum: u64,
    /// Chunks that went to other workers.
    pub chunks: u64,
    /// Times that a worker slept.
    pub sleeps: u64,
    /// Processor time, in seconds.
    pub cpu_s: f64,
}

impl ShuffleCounts {
    /// Adds another worker's.
    pub(super) fn add(&mut self, other: &Self) {
        self.rows += other.rows;
        self.sum = self.sum.wrapping_add(other.sum);
        self.chunks += other.chunks;
        self.sleeps += other.sleeps;
        self.cpu_s += other.cpu_s;
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let words = [self.rows, self.sum, self.chunks, self.sleeps, self.cpu_s.to_bits()];
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (words, []) = bytes.as_chunks::<8>() else { return None };
        let words: [_; 5] = words.try_into().ok()?;
        let [rows, sum, chunks, sleeps, cpu] = words.map(u64::from_le_bytes);
        Some(Self { rows, sum, chunks, sleeps, cpu_s: f64::from_bits(cpu) })
    }
}

/// The kind of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Integers of a shuffle.
    Rows(u8),
    /// No more of a shuffle come from that worker; after the second, it needs nothing more.
    End(u8),
}

/// The transport of chunks.
pub(super) trait Means {
    /// Sends a chunk to another worker if there is room now.
    fn send(&mut self, to: usize, kind: Kind, values: &[u64]) -> Result<bool, ShuffleError>;

    /// Starts what was sent, and gives what came to `take`. True when anything moved.
    fn turn(&mut self, take: &mut dyn FnMut(Kind, &[u64])) -> Result<bool, ShuffleError>;

    /// Sleeps until there is something to take or room to send.
    fn sleep(&mut self) -> Result<(), ShuffleError>;
}

/// The worker of an integer.
fn place(value: u64, nodes: usize) -> usize {
    let mut mixed = value.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^= mixed >> 29;
    mixed = mixed.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (((mixed >> 32) * nodes as u64) >> 32) as usize
}

/// Maps an integer between the shuffles, so that most belong to another worker then.
fn changed(value: u64) -> u64 {
    value * 3 / 2
}

/// Rows on their way to one worker in one shuffle: all chunks but the last are full.
#[derive(Default)]
struct SendBuffer(VecDeque<Vec<u64>>);

/// All that waits to be sent.
struct Outgoing {
    size: ShufflePlan,
    /// By shuffle and worker.
    send_buffers: [Vec<SendBuffer>; 2],
    /// Chunks to be filled again.
    free: Vec<Vec<u64>>,
    chunks: u64,
}

impl Outgoing {
    fn new(size: ShufflePlan) -> Self {
        let send_buffers = || (0..size.nodes).map(|_| SendBuffer::default()).collect();
        Self { size, send_buffers: [send_buffers(), send_buffers()], free: Vec::new(), chunks: 0 }
    }

    /// Adds a row: its integer, which says where it goes, and the words beside it.
    fn push(&mut self, stage: u8, value: u64, beside: impl Iterator<Item = u64>) {
        let chunk = self.size.chunk_words();
        let queue = &mut self.send_buffers[usize::from(stage)][place(value, self.size.nodes)].0;
        if queue.back().is_none_or(|last| last.len() >= chunk) {
            queue.push_back(self.free.pop().unwrap_or_else(|| Vec::with_capacity(chunk)));
        }
        if let Some(last) = queue.back_mut() {
            last.push(value);
            last.extend(beside);
        }
    }

    /// Whether more may be made.
    fn has_room(&self) -> bool {
        self.send_buffers.iter().flatten().all(|send_buffers| send_buffers.0.len() <= WAITING_MAX)
    }

    /// Sends full chunks, and with `all` those that are not full; true when something went.
    fn send(&mut self, means: &mut impl Means, stage: u8, all: bool) -> Result<bool, ShuffleError> {
        let mut moved = false;
        for to in (0..self.size.nodes).filter(|&to| to != self.size.rank) {
            let queue = &mut self.send_buffers[usize::from(stage)][to].0;
            while let Some(first) = queue.front() {
                let full = first.len() == self.size.chunk_words();
                if !(full || all) || !means.send(to, Kind::Rows(stage), first)? {
                    break;
                }
                moved = true;
                self.chunks += 1;
                let mut sent = queue.pop_front().unwrap_or_default();
                sent.clear();
                self.free.push(sent);
            }
        }
        Ok(moved)
    }

    /// Takes what is for this worker itself: workers of a node hand over directly.
    fn own(&mut self, stage: u8) -> Option<Vec<u64>> {
        self.send_buffers[usize::from(stage)][self.size.rank].0.pop_front()
    }

    fn is_empty(&self, stage: u8) -> bool {
        self.send_buffers[usize::from(stage)].iter().all(|send_buffers| send_buffers.0.is_empty())
    }
}

/// The rows that a worker has received.
#[derive(Default)]
struct Seen {
    outcome: ShuffleCounts,
    /// Workers that have ended each shuffle, and then all.
    ended: [usize; 3],
}

/// Runs the plan.
pub(super) fn work(
    means: &mut impl Means,
    size: &ShufflePlan,
) -> Result<ShuffleCounts, ShuffleError> {
    let before = cpu_s();
    let others = size.nodes - 1;
    let (mut out, mut seen) = (Outgoing::new(*size), Seen::default());
    let mut made = size.rank as u64 * size.rows;
    let last = made + size.rows;
    // Ends that were told, to how many workers each.
    let mut reported = [0; 3];
    let mut idle = 0;
    while seen.ended[2] < others || reported[2] < others {
        let mut moved = means.turn(&mut |kind, values| take(&mut out, &mut seen, kind, values))?;
        for stage in [0, 1] {
            while let Some(mut own) = out.own(stage) {
                take(&mut out, &mut seen, Kind::Rows(stage), &own);
                own.clear();
                out.free.push(own);
                moved = true;
            }
        }
        // What is told of each shuffle follows from the one before.
        let over =
            [made == last, reported[0] == others && seen.ended[0] == others, reported[1] == others];
        for stage in [0, 1] {
            moved |= out.send(means, stage, over[usize::from(stage)])?;
        }
        for stage in 0..3u8 {
            let at = usize::from(stage);
            let ready = match stage {
                2 => seen.ended[1] == others && over[2],
                _ => over[at] && out.is_empty(stage),
            };
            while ready && reported[at] < others {
                let to = reported[at] + usize::from(reported[at] >= size.rank);
                if !means.send(to, Kind::End(stage), &[])? {
                    break;
                }
                reported[at] += 1;
                moved = true;
            }
        }
        if made < last && out.has_room() {
            let end = last.min(made + MADE);
            let words = size.row_words as u64;
            let row = |value: u64| (1..words).map(move |word| value + word);
            (made..end).for_each(|value| out.push(0, value, row(value)));
            made = end;
            moved = true;
        }
        idle = if moved { 0 } else { idle + 1 };
        if idle > IDLE_TURNS {
            means.sleep()?;
            seen.outcome.sleeps += 1;
            idle = 0;
        }
    }
    means.turn(&mut |_, _| {})?;
    Ok(ShuffleCounts { chunks: out.chunks, cpu_s: cpu_s() - before, ..seen.outcome })
}

fn take(out: &mut Outgoing, seen: &mut Seen, kind: Kind, values: &[u64]) {
    match kind {
        Kind::Rows(0) => {
            let rows = values.chunks_exact(out.size.row_words);
            for row in rows {
                let Some((&value, beside)) = row.split_first() else { continue };
                out.push(1, changed(value), beside.iter().copied());
            }
        }
        Kind::Rows(_) => {
            seen.outcome.rows += (values.len() / out.size.row_words) as u64;
            let sum = values.iter().copied().fold(0, u64::wrapping_add);
            seen.outcome.sum = seen.outcome.sum.wrapping_add(sum);
        }
        Kind::End(stage) => seen.ended[usize::from(stage).min(2)] += 1,
    }
}
