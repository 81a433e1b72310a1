//! The cost of a ring over shared memory between two threads: bytes a second in large slots, frames
//! a second in small ones, and the time of one way. `cargo run --release -p millstream-channel
//! --example ring_limits`

use std::error::Error;
use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use channel::{Class, Header, Link, RingConfig};
use fabric::shm::{ShmFabric, ShmOptions};
use fabric::{Fabric, LinkId};

/// How long each figure is measured.
const SPAN: Duration = Duration::from_millis(300);
/// Repetitions, of which the best counts: the machine is shared.
const REPEATS: usize = 5;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Outcome<()> {
    for (name, slot_bytes, slots) in [("64 KiB", 65536, 8), ("4 KiB", 4096, 16)] {
        let best = best(|| throughput(slot_bytes, slots, slot_bytes as usize - 64))?;
        let bare = best_of(|| bare(slot_bytes as usize, slots as usize));
        println!(
            "{name} slots: {:.2} GB/s; a bare ring {:.2} GB/s ({:.0} %)",
            best.1 / 1e9,
            bare / 1e9,
            100.0 * best.1 / bare
        );
    }
    let (frames, _) = best(|| throughput(4096, 16, 64))?;
    println!("64 B frames: {:.2} M/s", frames / 1e6);
    println!("one way: {:.0} ns", best_of(|| -latency().unwrap_or(f64::INFINITY)).abs());
    Ok(())
}

fn best(run: impl Fn() -> Outcome<(f64, f64)>) -> Outcome<(f64, f64)> {
    let mut best = (0.0, 0.0);
    for _ in 0..REPEATS {
        let (frames, bytes) = run()?;
        if frames > best.0 {
            best = (frames, bytes);
        }
    }
    Ok(best)
}

fn best_of(run: impl Fn() -> f64) -> f64 {
    (0..REPEATS).map(|_| run()).fold(f64::NEG_INFINITY, f64::max)
}

fn links(slot_bytes: u32, slots: u32) -> Outcome<(Link, Link)> {
    let fabric = ShmFabric::new(ShmOptions { prefault: true, ..ShmOptions::default() })?;
    let here = fabric.offer(LinkId { local: 0, remote: 1 })?;
    let there = fabric.offer(LinkId { local: 1, remote: 0 })?;
    let (of_here, of_there) = (here.address(), there.address());
    let (here, there) = std::thread::scope(|scope| {
        let there = scope.spawn(move || there.connect(&of_here));
        (here.connect(&of_there), there.join())
    });
    let there = there.map_err(|_| "the other end panicked")??;
    let config = RingConfig { slots, slot_bytes, control_slots: 1, ..RingConfig::default() };
    let mut here = Link::new(&*fabric, here?, config, 1)?;
    let mut there = Link::new(&*fabric, there, config, 1)?;
    here.attach(&there.descriptor())?;
    there.attach(&here.descriptor())?;
    Ok((here, there))
}

/// Frames and bytes a second in one direction. Staging is filled once and each payload is looked at
/// in one place, as with the bare ring: the figures are of the ring and not of its users.
fn throughput(slot_bytes: u32, slots: u32, len: usize) -> Outcome<(f64, f64)> {
    let (mut tx, mut rx) = links(slot_bytes, slots)?;
    std::thread::scope(|scope| {
        let sender = scope.spawn(move || -> Outcome<Link> {
            let start = Instant::now();
            while start.elapsed() < SPAN {
                for _ in 0..64 {
                    match tx.reserve(Class::Data) {
                        Some(slot) => slot.publish(Header::default(), len),
                        None => {
                            tx.flush();
                            if !tx.poll()? {
                                spin_loop();
                            }
                        }
                    }
                }
            }
            finish(&mut tx)?;
            Ok(tx)
        });
        let (mut frames, mut bytes, start) = (0u64, 0u64, Instant::now());
        'receiving: loop {
            while let Some(frame) = rx.recv()? {
                if frame.header.kind == 1 {
                    break 'receiving;
                }
                frames += 1;
                bytes += frame.payload.len() as u64;
                black_box(frame.payload[0]);
            }
            rx.poll()?;
        }
        let seconds = start.elapsed().as_secs_f64();
        sender.join().map_err(|_| "the sender panicked")??;
        Ok((frames as f64 / seconds, bytes as f64 / seconds))
    })
}

fn finish(link: &mut Link) -> Outcome<()> {
    while link.reserve(Class::Control).is_none() {
        link.poll()?;
    }
    if let Some(slot) = link.reserve(Class::Control) {
        slot.publish(Header { kind: 1, ..Header::default() }, 0);
    }
    link.flush();
    Ok(())
}

/// Nanoseconds of half a round of a 64-byte frame.
fn latency() -> Outcome<f64> {
    const ROUNDS: u32 = 200_000;
    let (mut a, mut b) = links(4096, 16)?;
    std::thread::scope(|scope| {
        let echo = scope.spawn(move || -> Outcome<Link> {
            for _ in 0..ROUNDS {
                receive(&mut b)?;
                post(&mut b)?;
            }
            Ok(b)
        });
        let start = Instant::now();
        for _ in 0..ROUNDS {
            post(&mut a)?;
            receive(&mut a)?;
        }
        let nanos = start.elapsed().as_nanos() as f64;
        echo.join().map_err(|_| "the echo panicked")??;
        Ok(nanos / f64::from(2 * ROUNDS))
    })
}

fn post(link: &mut Link) -> Outcome<()> {
    loop {
        if let Some(slot) = link.reserve(Class::Data) {
            slot.publish(Header::default(), 64);
            link.flush();
            return Ok(());
        }
        link.poll()?;
    }
}

fn receive(link: &mut Link) -> Outcome<()> {
    let mut turns = 0u32;
    while link.recv()?.is_none() {
        turns += 1;
        if turns.is_multiple_of(64) {
            link.poll()?;
        }
        spin_loop();
    }
    Ok(())
}

/// Bytes a second of the least that a ring can do: copy a slot, set its word, wait for the word to
/// be cleared.
fn bare(slot_bytes: usize, slots: usize) -> f64 {
    let words = slot_bytes / 8;
    let ring: Vec<AtomicU64> = (0..slots * words).map(|_| AtomicU64::new(0)).collect();
    let flags: Vec<[AtomicU64; 8]> = (0..slots).map(|_| Default::default()).collect();
    let source = vec![1u64; slots * words];
    std::thread::scope(|scope| {
        let (ring, flags) = (&ring, &flags);
        scope.spawn(move || {
            let start = Instant::now();
            let mut position = 0;
            loop {
                let slot = position % slots;
                while flags[slot][0].load(Ordering::Acquire) != 0 {
                    spin_loop();
                }
                let last = start.elapsed() >= SPAN;
                let to = ring[slot * words].as_ptr();
                // SAFETY: the slot is inside of the ring, and its reader has cleared the flag and
                // left it.
                unsafe { to.copy_from_nonoverlapping(source[slot * words..].as_ptr(), words) };
                flags[slot][0].store(1 + u64::from(last), Ordering::Release);
                position += 1;
                if last {
                    return;
                }
            }
        });
        let (mut position, start) = (0, Instant::now());
        loop {
            let slot = position % slots;
            let flag = loop {
                match flags[slot][0].load(Ordering::Acquire) {
                    0 => spin_loop(),
                    flag => break flag,
                }
            };
            black_box(ring[slot * words].load(Ordering::Relaxed));
            flags[slot][0].store(0, Ordering::Release);
            position += 1;
            if flag == 2 {
                return (position * slot_bytes) as f64 / start.elapsed().as_secs_f64();
            }
        }
    })
}
