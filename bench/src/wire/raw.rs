//! Limits of the machine itself, without any of our transports, with which figures of wires
//! are held against.
//!
//! Each is the least that moves the bytes: no frames, no checks, no credit beyond a flag a slot.
//! Both sides do with the bytes what the sides of a link do: the source is memory that is there,
//! and the receiver reads all of them.
#![allow(unsafe_code)]

use std::convert::Infallible;
use std::hint::{black_box, spin_loop};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::panic::resume_unwind;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fabric::{Fabric, FabricError};

use super::times::RoundTimes;

/// Bytes of one call, as iperf3 has them.
const STREAM_BYTES: usize = 128 << 10;

/// The processors that this thread may use; none where the system does not tell.
fn processors() -> Vec<usize> {
    // SAFETY: the set is plain bits, all of which may be zero; the call gets its own size and
    // writes nothing else. 0 is the calling thread.
    unsafe {
        let mut allowed: libc::cpu_set_t = std::mem::zeroed();
        if libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut allowed) != 0 {
            return Vec::new();
        }
        let places = libc::CPU_SETSIZE as usize;
        (0..places).filter(|&cpu| libc::CPU_ISSET(cpu, &allowed)).collect()
    }
}

/// The processor of an end: the first, or another one for the other end, so that the two never wait
/// for one processor while a second is free.
fn processor(end: usize) -> Option<usize> {
    let all = processors();
    all.get(end % all.len().max(1)).copied()
}

/// Binds the calling thread to the processor of an end. Does nothing where the system refuses.
fn bind(end: usize) {
    let Some(cpu) = processor(end) else { return };
    // SAFETY: as above; the call reads the set and nothing else.
    unsafe {
        let mut one: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut one);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const one);
    }
}

/// Runs the two ends on two processors and returns what both return.
pub(super) fn two_ends<A: Send, B: Send>(
    one: impl FnOnce() -> A + Send,
    other: impl FnOnce() -> B + Send,
) -> (A, B) {
    thread::scope(|scope| {
        let one = scope.spawn(|| {
            bind(0);
            one()
        });
        let other = scope.spawn(|| {
            bind(1);
            other()
        });
        let other = other.join().unwrap_or_else(|panic| resume_unwind(panic));
        (one.join().unwrap_or_else(|panic| resume_unwind(panic)), other)
    })
}

/// Adds up all bytes: what a receiver does at least that looks at everything.
pub(super) fn read_all(bytes: &[u8]) -> u64 {
    let mut sums = [0u64; 8];
    let (lines, rest) = bytes.as_chunks::<64>();
    for line in lines {
        let (words, _) = line.as_chunks::<8>();
        for (sum, word) in sums.iter_mut().zip(words) {
            *sum = sum.wrapping_add(u64::from_le_bytes(*word));
        }
    }
    let rest: u64 = rest.iter().map(|&byte| u64::from(byte)).sum();
    sums.iter().fold(rest, |sum, lane| sum.wrapping_add(*lane))
}

/// Looks again at once for a while, as a pause of the processor takes longer than what is awaited;
/// then pauses, and now and then lets others have the processor: the other end may be among them.
pub(super) fn spin(turns: &mut u32) {
    *turns = turns.wrapping_add(1);
    if turns.is_multiple_of(1 << 14) {
        thread::yield_now();
    } else if *turns > 64 {
        spin_loop();
    }
}

/// Bytes a second through a ring of slots in memory of this fabric: copy a slot, set its flag, wait
/// until it is cleared.
///
/// # Errors
/// When there is no memory.
pub fn ring(
    fabric: &dyn Fabric,
    slot_bytes: usize,
    slots: usize,
    span: Duration,
) -> Result<f64, FabricError> {
    let ring = fabric.slab(slots * slot_bytes)?;
    let source = vec![1u8; slots * slot_bytes];
    let flags: Vec<[AtomicU64; 8]> = (0..slots).map(|_| Default::default()).collect();
    let wait = |slot: usize, empty: bool| {
        let mut turns = 0;
        loop {
            let flag = flags[slot][0].load(Ordering::Acquire);
            if (flag == 0) == empty {
                return flag;
            }
            spin(&mut turns);
        }
    };
    let write = || {
        let start = Instant::now();
        for position in 0.. {
            let slot = position % slots;
            wait(slot, true);
            let last = start.elapsed() >= span;
            let bytes = &source[slot * slot_bytes..][..slot_bytes];
            // SAFETY: the slot is empty: its reader has left it, and reads it again only after the
            // flag below.
            unsafe { ring.copy_in(slot * slot_bytes, bytes) };
            flags[slot][0].store(1 + u64::from(last), Ordering::Release);
            if last {
                return;
            }
        }
    };
    let read = || {
        let start = Instant::now();
        let mut position = 0;
        loop {
            let slot = position % slots;
            let flag = wait(slot, false);
            // SAFETY: the slot is full, and its writer waits for the flag to be cleared.
            black_box(read_all(unsafe { ring.bytes(slot * slot_bytes..(slot + 1) * slot_bytes) }));
            flags[slot][0].store(0, Ordering::Release);
            position += 1;
            if flag == 2 {
                return (position * slot_bytes) as f64 / start.elapsed().as_secs_f64();
            }
        }
    };
    Ok(two_ends(write, read).1)
}

/// A word that goes to and fro between two threads, each with a cache line of its own.
pub fn ping_pong(rounds: u32) -> RoundTimes {
    #[repr(align(128))]
    #[derive(Default)]
    struct Line(AtomicU64);
    let (there, back) = (Line::default(), Line::default());
    let await_value = |line: &Line, value| {
        let mut turns = 0;
        while line.0.load(Ordering::Acquire) != value {
            spin(&mut turns);
        }
    };
    let echo = || {
        for round in 1..=u64::from(rounds) {
            await_value(&there, round);
            back.0.store(round, Ordering::Release);
        }
    };
    let ask = || -> Result<RoundTimes, Infallible> {
        timed(rounds, |round| {
            there.0.store(u64::from(round) + 1, Ordering::Release);
            await_value(&back, u64::from(round) + 1);
            Ok(())
        })
    };
    let Ok(times) = two_ends(echo, ask).1;
    times
}

/// The times of this many rounds.
pub(super) fn timed<E>(
    rounds: u32,
    mut round: impl FnMut(u32) -> Result<(), E>,
) -> Result<RoundTimes, E> {
    let mut times = Vec::with_capacity(rounds as usize);
    let mut before = Instant::now();
    for i in 0..rounds {
        round(i)?;
        let now = Instant::now();
        times.push((now - before).as_nanos() as f64);
        before = now;
    }
    Ok(RoundTimes::of_rounds(times))
}

fn sockets() -> io::Result<[TcpStream; 2]> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let near = TcpStream::connect(listener.local_addr()?)?;
    let (far, _) = listener.accept()?;
    for stream in [&near, &far] {
        stream.set_nodelay(true)?;
    }
    Ok([near, far])
}

/// This many bytes that go to and fro over a TCP socket; who waits asks for them over and over, or
/// blocks.
///
/// # Errors
/// When the system gives no socket.
pub fn socket_ping(bytes: usize, rounds: u32, spins: bool) -> io::Result<RoundTimes> {
    let [mut near, mut far] = sockets()?;
    near.set_nonblocking(spins)?;
    far.set_nonblocking(spins)?;
    let message = vec![7u8; bytes];
    let receive = |stream: &mut TcpStream, buffer: &mut [u8]| -> io::Result<()> {
        let mut filled = 0;
        while filled < buffer.len() {
            match stream.read(&mut buffer[filled..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => filled += n,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => spin_loop(),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    };
    let echo = || -> io::Result<()> {
        let mut buffer = vec![0; bytes];
        for _ in 0..rounds {
            receive(&mut far, &mut buffer)?;
            far.write_all(&buffer)?;
        }
        Ok(())
    };
    let ask = || {
        let mut buffer = vec![0; bytes];
        timed(rounds, |_| {
            near.write_all(&message)?;
            receive(&mut near, &mut buffer)
        })
    };
    let (echoed, times) = two_ends(echo, ask);
    echoed.and(times)
}

/// Bytes a second over a TCP socket whose ends block, as iperf3 measures it.
///
/// # Errors
/// When the system gives no socket.
pub fn socket_stream(span: Duration) -> io::Result<f64> {
    let [mut near, mut far] = sockets()?;
    let start = Instant::now();
    let send = move || -> io::Result<()> {
        let bytes = vec![1u8; STREAM_BYTES];
        while start.elapsed() < span {
            near.write_all(&bytes)?;
        }
        Ok(())
    };
    let receive = || -> io::Result<f64> {
        let (mut buffer, mut received) = (vec![0; STREAM_BYTES], 0);
        loop {
            match far.read(&mut buffer)? {
                0 => return Ok(received as f64 / start.elapsed().as_secs_f64()),
                n => received += n,
            }
        }
    };
    let (sent, rate) = two_ends(send, receive);
    sent.and(rate)
}

/// Bytes a second that iperf3 reports for one stream over loopback between the same processors;
/// `None` where it is not installed.
pub fn iperf3(span: Duration) -> Option<f64> {
    struct Server(Child);
    impl Drop for Server {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
    let port = TcpListener::bind("127.0.0.1:0").ok()?.local_addr().ok()?.port().to_string();
    let mut command = Command::new("iperf3");
    command.args(["-s", "-1", "-p", &port]).stdout(Stdio::null()).stderr(Stdio::null());
    let _server = Server(command.spawn().ok()?);
    let seconds = span.as_secs().max(1).to_string();
    let ends = format!("{},{}", processor(0)?, processor(1)?);
    // The server takes a moment until it listens.
    for _ in 0..50 {
        let client = Command::new("iperf3")
            .args(["-c", "127.0.0.1", "-p", &port, "-t", &seconds, "-A", &ends, "-J"])
            .output()
            .ok()?;
        let output_text: serde_json::Value = serde_json::from_slice(&client.stdout).ok()?;
        if let Some(bits) = output_text["end"]["sum_received"]["bits_per_second"].as_f64() {
            return Some(bits / 8.0);
        }
        thread::sleep(Duration::from_millis(20));
    }
    None
}
