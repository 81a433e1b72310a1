//! A stream and a ping over a link between two threads.
//!
//! Both ends are of one process, but know each other only through the fabric. The receiver reads
//! all bytes and checks that each message is the next one: a figure of a wrong run does not come
//! out.

use std::hint::black_box;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use channel::{Class, Header, Link, LinkError, LinkStats, RingConfig, Transfer, Tuning};
use fabric::{Armed, Fabric, LinkId, Publish};

use super::raw::{read_all, spin, timed, two_ends};
use super::times::{RoundTimes, cpu_s};

/// The kind of a stream's last frame.
const LAST: u8 = 1;
/// How long who blocks sleeps at most: long beyond any wake-up.
const SLEEP: Duration = Duration::from_secs(1);

/// How an end waits for the other one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Looks again at once (S4).
    Spin,
    /// Sleeps until the system wakes it (Q4).
    Block,
}

/// How a link is used.
#[derive(Debug, Clone, Copy)]
pub struct LinkSetup {
    /// Its rings.
    pub ring: RingConfig,
    /// Options of its ends.
    pub tuning: Tuning,
    /// How they wait.
    pub wait: Wait,
    /// Bytes of a message: at least 8, which number it.
    pub message_bytes: usize,
    /// Messages are gathered in a frame while they make at most this many bytes (Q5); 0 gives each
    /// a frame.
    pub gather_bytes: usize,
    /// The peer is told after this many bytes of frames.
    pub flush_bytes: usize,
}

impl LinkSetup {
    /// Messages of this many bytes, a frame each, in a ring of 8 slots of 64 KiB or as much as a
    /// message needs; announced at 16 KiB (Q5).
    pub fn of(message_bytes: usize) -> Self {
        let slot_bytes = (message_bytes + 64).next_multiple_of(64).max(64 << 10) as u32;
        Self {
            ring: RingConfig { slot_bytes, ..RingConfig::default() },
            tuning: Tuning::default(),
            wait: Wait::Spin,
            message_bytes,
            gather_bytes: 0,
            flush_bytes: 16 << 10,
        }
    }

    /// Full slots of this many bytes, and this many of them.
    pub fn of_slots(slot_bytes: u32, slots: u32) -> Self {
        let full = Self::of(slot_bytes as usize - 64);
        Self { ring: RingConfig { slot_bytes, slots, ..full.ring }, ..full }
    }

    fn messages_of_a_frame(&self) -> usize {
        let most = self.ring.payload_max() / self.message_bytes;
        (self.gather_bytes / self.message_bytes).clamp(1, most.max(1))
    }
}

/// The measurements of a stream.
#[derive(Debug, Clone, Copy)]
pub struct StreamRun {
    /// From the first message until all were read.
    pub seconds: f64,
    /// Messages.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Counters of the sender and of the receiver.
    pub stats: [LinkStats; 2],
    /// Processor time of both.
    pub cpu_s: f64,
}

impl StreamRun {
    /// Bytes a second.
    pub fn rate(&self) -> f64 {
        self.bytes as f64 / self.seconds
    }

    /// Messages a second.
    pub fn message_rate(&self) -> f64 {
        self.messages as f64 / self.seconds
    }

    /// Work requests of both ends for each message.
    pub fn requests(&self) -> f64 {
        let posted = |stats: &LinkStats| stats.writes + stats.reads + stats.notices_sent;
        self.stats.iter().map(posted).sum::<u64>() as f64 / self.messages as f64
    }

    /// Completions of both ends for each message.
    pub fn completions(&self) -> f64 {
        self.stats.iter().map(|s| s.completions).sum::<u64>() as f64 / self.messages as f64
    }

    /// Bytes that are written or read for each message.
    pub fn wire_bytes(&self) -> f64 {
        let moved: u64 = self.stats.iter().map(|s| s.ring_bytes_sent + s.ring_bytes_read).sum();
        moved as f64 / self.messages as f64
    }

    /// How often the sender found no place for a message, for each message.
    pub fn stalls(&self) -> f64 {
        let sender = &self.stats[0];
        let stalls = sender.credit_stalls + sender.staging_stalls + sender.queue_stalls;
        stalls as f64 / self.messages as f64
    }

    /// Processor seconds of both ends for a GiB.
    pub fn cpu_s_per_gib(&self) -> f64 {
        self.cpu_s / (self.bytes as f64 / f64::from(1 << 30))
    }
}

/// Sends messages for a while, in one direction.
///
/// # Errors
/// When the fabric refuses memory or a connection, or the link breaks.
pub fn stream(
    fabric: &dyn Fabric,
    setup: &LinkSetup,
    span: Duration,
) -> Result<StreamRun, LinkError> {
    let [mut here, mut there] = links(fabric, setup)?;
    let done = AtomicBool::new(false);
    let send = || {
        let sent = send_for(&mut here, setup, span);
        // The receiver may have to answer until all of this end's operations are over.
        done.store(true, Ordering::Release);
        sent
    };
    let (sent, received) = two_ends(send, || receive_all(&mut there, setup, &done));
    let (idle, (messages, bytes, seconds, cpu_s)) = (sent?, received?);
    let stats = [here.stats(), there.stats()];
    Ok(StreamRun { seconds, messages, bytes, stats, cpu_s: cpu_s + idle })
}

/// Sends until the time is over, and awaits that all of it is out; returns the processor time.
fn send_for(link: &mut Link, setup: &LinkSetup, span: Duration) -> Result<f64, LinkError> {
    let (start, before) = (Instant::now(), cpu_s());
    let (mut messages, mut unflushed) = (0u64, 0);
    let source = vec![1u8; setup.message_bytes];
    let many = setup.messages_of_a_frame();
    // Once at least: the processor may have been taken away meanwhile.
    loop {
        for _ in 0..16 {
            send(link, Class::Data, setup.wait, Header::default(), |payload| {
                for place in payload.chunks_exact_mut(setup.message_bytes).take(many) {
                    if setup.gather_bytes > 0 {
                        place.copy_from_slice(&source);
                    }
                    place[..8].copy_from_slice(&messages.to_le_bytes());
                    messages += 1;
                }
                many * setup.message_bytes
            })?;
            unflushed += many * setup.message_bytes;
            if unflushed >= setup.flush_bytes {
                link.flush();
                unflushed = 0;
            }
        }
        if start.elapsed() >= span {
            break;
        }
    }
    let last = Header { kind: LAST, ..Header::default() };
    send(link, Class::Control, setup.wait, last, |_| 0)?;
    link.flush();
    let mut turns = 0;
    while !link.is_drained() {
        if !link.poll()? {
            rest(link, setup.wait, &mut turns);
        }
    }
    Ok(cpu_s() - before)
}

/// Reads all messages; returns how many, their bytes, seconds and processor seconds.
fn receive_all(
    link: &mut Link,
    setup: &LinkSetup,
    done: &AtomicBool,
) -> Result<(u64, u64, f64, f64), LinkError> {
    let (start, before) = (Instant::now(), cpu_s());
    let (mut messages, mut bytes, mut turns) = (0u64, 0u64, 0);
    'receiving: loop {
        while let Some(frame) = link.recv()? {
            if frame.header.kind == LAST {
                break 'receiving;
            }
            black_box(read_all(&frame.payload));
            for message in frame.payload.chunks_exact(setup.message_bytes) {
                let number = message.first_chunk().map(|first| u64::from_le_bytes(*first));
                assert_eq!(number, Some(messages), "a message is lost, doubled or out of order");
                messages += 1;
            }
            bytes += frame.payload.len() as u64;
        }
        if !link.poll()? {
            rest(link, setup.wait, &mut turns);
        }
    }
    let (seconds, cpu) = (start.elapsed().as_secs_f64(), cpu_s() - before);
    while !done.load(Ordering::Acquire) {
        // The other end may have gone in between.
        if link.poll().is_err() {
            break;
        }
        spin(&mut turns);
    }
    Ok((messages, bytes, seconds, cpu))
}

/// Sends a message to and fro.
///
/// # Errors
/// As [`stream`].
pub fn ping(fabric: &dyn Fabric, setup: &LinkSetup, rounds: u32) -> Result<RoundTimes, LinkError> {
    let [mut here, mut there] = links(fabric, setup)?;
    let post = |link: &mut Link| -> Result<(), LinkError> {
        send(link, Class::Data, setup.wait, Header::default(), |_| setup.message_bytes)?;
        link.flush();
        Ok(())
    };
    let in_order = fabric.caps().publish == Publish::InOrderPoll;
    let polls = setup.wait == Wait::Spin && in_order && setup.ring.transfer == Transfer::Write;
    let await_frame = |link: &mut Link| -> Result<(), LinkError> {
        let mut turns = 0u32;
        loop {
            match link.recv()? {
                Some(frame) => {
                    black_box(read_all(&frame.payload));
                    return Ok(());
                }
                // Where slots are polled, completions and credit can wait.
                None if polls && !turns.is_multiple_of(256) => spin(&mut turns),
                None => {
                    if !link.poll()? {
                        rest(link, setup.wait, &mut turns);
                    }
                }
            }
        }
    };
    let done = AtomicBool::new(false);
    let echo = || -> Result<(), LinkError> {
        let mut answer = || -> Result<(), LinkError> {
            for _ in 0..rounds {
                await_frame(&mut there)?;
                post(&mut there)?;
            }
            // The last answer may lie here until the other end has read it.
            while setup.ring.transfer == Transfer::Read && there.stats().in_flight > 0 {
                there.poll()?;
            }
            Ok(())
        };
        let answered = answer();
        done.store(true, Ordering::Release);
        answered
    };
    let ask = || {
        let times = timed(rounds, |_| {
            post(&mut here)?;
            await_frame(&mut here)
        });
        let mut turns = 0;
        while times.is_ok() && !done.load(Ordering::Acquire) && here.poll().is_ok() {
            spin(&mut turns);
        }
        times
    };
    let (echoed, times) = two_ends(echo, ask);
    echoed.and(times)
}

fn links(fabric: &dyn Fabric, setup: &LinkSetup) -> Result<[Link; 2], LinkError> {
    let here = fabric.offer(LinkId { local: 0, remote: 1 })?;
    let there = fabric.offer(LinkId { local: 1, remote: 0 })?;
    let (of_here, of_there) = (here.address(), there.address());
    let (here, there) = thread::scope(|scope| {
        let there = scope.spawn(move || there.connect(&of_here));
        let here = here.connect(&of_there);
        (here, there.join().unwrap_or_else(|panic| resume_unwind(panic)))
    });
    let mut here = Link::new(fabric, here?, setup.ring, 1)?.tuned(setup.tuning);
    let mut there = Link::new(fabric, there?, setup.ring, 1)?.tuned(setup.tuning);
    here.attach(&there.descriptor())?;
    there.attach(&here.descriptor())?;
    Ok([here, there])
}

/// Publishes a slot as soon as there is credit; `fill` says how many of its bytes.
fn send(
    link: &mut Link,
    class: Class,
    wait: Wait,
    header: Header,
    fill: impl FnOnce(&mut [u8]) -> usize,
) -> Result<(), LinkError> {
    let mut turns = 0;
    loop {
        if let Some(mut slot) = link.reserve(class) {
            let len = fill(slot.payload_mut());
            slot.publish(header, len);
            return Ok(());
        }
        link.flush();
        if !link.poll()? {
            rest(link, wait, &mut turns);
        }
    }
}

/// Waits for the other end.
fn rest(link: &mut Link, wait: Wait, turns: &mut u32) {
    match wait {
        Wait::Spin => spin(turns),
        Wait::Block => {
            if let Armed::Fd(fd) = link.arm() {
                fabric::wait(&[fd], SLEEP);
            }
        }
    }
}
