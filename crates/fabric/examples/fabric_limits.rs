//! Throughput and latency of one host's transports between two threads:
//! `cargo run --release --example fabric_limits [shm|tcp]`.
//!
//! Prints the time that a write with a notice takes one way when both sides spin, and the bytes per
//! second of a stream of slots with a credit per slot, beside a bare ring of such slots without any
//! transport. Each figure is the best of many short runs, as on a machine that does other work most
//! runs lose a processor in between.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use fabric::shm::{ShmFabric, ShmOptions};
use fabric::tcp::{TcpFabric, TcpOptions};
use fabric::{
    Completion, Endpoint, Fabric, FabricError, Flags, LinkId, OpId, Publish, RemoteKey,
    RemoteRange, Slab, SlabRange, Src,
};

/// Bytes of a ring, as in the data plane's default of 8 slots of 64 KiB; a ring has at least 8
/// slots.
const RING_BYTES: usize = 512 << 10;
/// Runs of each measurement.
const RUNS: usize = 10;

/// One end, its ring of slots and the peer's.
struct Side {
    end: Box<dyn Endpoint>,
    memory: Slab,
    peer: RemoteKey,
    seen: Vec<Completion>,
}

fn main() -> Result<(), FabricError> {
    let shm: Arc<dyn Fabric> =
        ShmFabric::new(ShmOptions { prefault: true, ..ShmOptions::default() })?;
    let tcp: Arc<dyn Fabric> = TcpFabric::new(TcpOptions::default())?;
    for (fabric, turns, bytes) in [(&shm, 10_000, 64_usize << 20), (&tcp, 1_000, 64 << 20)] {
        let name = fabric.name();
        if std::env::args().nth(1).is_some_and(|only| only != name) {
            continue;
        }
        let ns = best(|| latency(fabric, turns, true).map(|ns| -ns))?;
        println!("{name}: one way with notice {:.0} ns", -ns);
        if fabric.caps().publish == Publish::InOrderPoll {
            let ns = best(|| latency(fabric, turns, false).map(|ns| -ns))?;
            println!("{name}: one way, polled word {:.0} ns", -ns);
        }
        for slot in [4 << 10, 64 << 10, 1 << 20] {
            // In turns, as virtual processors may move closer or further apart from run to run.
            let (mut rate, mut limit) = (0.0_f64, 0.0_f64);
            for _ in 0..RUNS {
                rate = rate.max(stream(fabric, slot, bytes)?);
                limit = limit.max(bare(slot, bytes)?);
            }
            println!("{name}: stream of {slot} byte slots {rate:.2} GB/s, bare ring {limit:.2}");
        }
    }
    Ok(())
}

/// The largest of many runs.
fn best(run: impl Fn() -> Result<f64, FabricError>) -> Result<f64, FabricError> {
    (0..RUNS).try_fold(f64::NEG_INFINITY, |best, _| run().map(|value| best.max(value)))
}

/// Two connected sides with rings of `slot` bytes.
fn pair(fabric: &Arc<dyn Fabric>, slot: usize) -> Result<[Side; 2], FabricError> {
    let slots = slots(slot);
    let a = fabric.offer(LinkId { local: 0, remote: 1 })?;
    let b = fabric.offer(LinkId { local: 1, remote: 0 })?;
    let (of_a, of_b) = (a.address(), b.address());
    let (a, b) = std::thread::scope(|scope| {
        let a = scope.spawn(move || a.connect(&of_b));
        let b = b.connect(&of_a);
        (a.join().expect("connect does not panic"), b)
    });
    let side = |end| -> Result<Side, FabricError> {
        let peer = RemoteKey { key: 0, base: 0, len: 0 };
        Ok(Side { end, memory: fabric.slab(2 * slots * slot)?, peer, seen: Vec::new() })
    };
    let (mut a, mut b) = (side(a?)?, side(b?)?);
    b.peer = a.end.export(&a.memory.range(0..slots * slot)?)?;
    a.peer = b.end.export(&b.memory.range(0..slots * slot)?)?;
    for side in [&mut a, &mut b] {
        side.end.post_recvs(slots as u32);
        side.end.submit();
    }
    Ok([a, b])
}

/// Slots of a ring.
fn slots(slot: usize) -> usize {
    (RING_BYTES / slot).max(8)
}

impl Side {
    fn write(&mut self, src: &SlabRange, offset: usize, imm: Option<u32>) {
        let dst = RemoteRange { key: self.peer, offset: offset as u64 };
        while self.end.budget().ops == 0 || imm.is_some() && self.end.budget().notices == 0 {
            self.end.poll(&mut self.seen);
        }
        let (src, id) = (Src::Slab(src), OpId(0));
        match imm {
            Some(imm) => self.end.write_notify(src, dst, imm, id, Flags::SIGNAL),
            None => self.end.write(src, dst, id, Flags::SIGNAL),
        }
        .expect("there is room");
        self.end.submit();
    }

    /// Polls until a notice came; returns how many came.
    fn notices(&mut self) -> u32 {
        loop {
            self.end.poll(&mut self.seen);
            let mut n = 0;
            for completion in self.seen.drain(..) {
                match completion {
                    Completion::Notify { .. } => n += 1,
                    Completion::Local { .. } => {}
                    other => panic!("{other:?}"),
                }
            }
            if n > 0 {
                return n;
            }
        }
    }

    /// Awaits turn `i`.
    fn turn(&mut self, i: u64, notice: bool) {
        if notice {
            let n = self.notices();
            self.end.post_recvs(n);
            return;
        }
        while self.memory.load(0, Ordering::Acquire) != i {
            std::hint::spin_loop();
        }
        self.end.poll(&mut self.seen);
        self.seen.clear();
    }

    fn play(&mut self, turns: u64, notice: bool, first: bool) -> Result<(), FabricError> {
        let out = self.memory.range(64..72)?;
        for i in 1..=turns {
            if !first {
                self.turn(i, notice);
            }
            self.memory.store(64, i, Ordering::Relaxed);
            self.write(&out, 0, notice.then_some(0));
            if first {
                self.turn(i, notice);
            }
        }
        Ok(())
    }
}

/// Nanoseconds one way of a word that goes to and fro.
fn latency(fabric: &Arc<dyn Fabric>, turns: u64, notice: bool) -> Result<f64, FabricError> {
    let [mut a, mut b] = pair(fabric, 4096)?;
    std::thread::scope(|scope| {
        let far = scope.spawn(|| b.play(turns, notice, false));
        let start = Instant::now();
        a.play(turns, notice, true)?;
        let ns = start.elapsed().as_nanos() as f64 / (2 * turns) as f64;
        far.join().expect("the far side ends")?;
        Ok(ns)
    })
}

/// Gigabytes per second through a ring of slots; the receiver reads every word.
fn stream(fabric: &Arc<dyn Fabric>, slot: usize, bytes: usize) -> Result<f64, FabricError> {
    let slots = slots(slot);
    let [mut a, mut b] = pair(fabric, slot)?;
    let total = bytes / slot;
    let ready = AtomicU64::new(0);
    let start = Instant::now();
    let b = std::thread::scope(|scope| -> Result<Side, FabricError> {
        let far = scope.spawn(|| {
            let (mut got, mut sum) = (0, 0_u64);
            while got < total {
                let n = b.notices() as usize;
                // Receives are the credit of slots here: what came is read before they are posted.
                for i in got..got + n {
                    let at = i % slots * slot;
                    for word in &b.memory.words()[at / 8..(at + slot) / 8] {
                        sum = sum.wrapping_add(word.load(Ordering::Relaxed));
                    }
                }
                got += n;
                b.end.post_recvs(n as u32);
                b.end.submit();
            }
            ready.store(sum, Ordering::Relaxed);
            b
        });
        for i in 0..total {
            let at = i % slots * slot;
            let src = a.memory.range(slots * slot + at..slots * slot + at + slot)?;
            a.memory.store(slots * slot + at + slot - 8, 1, Ordering::Relaxed);
            a.write(&src, at, Some(i as u32));
        }
        Ok(far.join().expect("the far side ends"))
    })?;
    let elapsed = start.elapsed().as_secs_f64();
    drop(b);
    assert_eq!(ready.load(Ordering::Relaxed), total as u64, "every slot arrived whole");
    Ok((total * slot) as f64 / elapsed / 1e9)
}

/// Gigabytes per second through a ring that is nothing but slots and two positions: what a
/// transport can reach.
fn bare(slot: usize, bytes: usize) -> Result<f64, FabricError> {
    let (slots, total) = (slots(slot), bytes / slot);
    let memory = Slab::heap(2 * slots * slot)?;
    let positions = Slab::heap(256)?;
    let (sent, used) = (positions.word(0), positions.word(128));
    let start = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut sum = 0_u64;
            for i in 0..total {
                while sent.load(Ordering::Acquire) as usize <= i {
                    std::hint::spin_loop();
                }
                let at = i % slots * slot;
                for word in &memory.words()[at / 8..(at + slot) / 8] {
                    sum = sum.wrapping_add(word.load(Ordering::Relaxed));
                }
                used.store(i as u64 + 1, Ordering::Release);
            }
            std::hint::black_box(sum);
        });
        for i in 0..total {
            while used.load(Ordering::Acquire) as usize + slots <= i {
                std::hint::spin_loop();
            }
            let (from, to) = ((slots + i % slots) * slot, i % slots * slot);
            // SAFETY: the positions give the slot to this thread; nobody else touches its source.
            unsafe { memory.copy_in(to, memory.bytes(from..from + slot)) };
            sent.store(i as u64 + 1, Ordering::Release);
        }
    });
    Ok((total * slot) as f64 / start.elapsed().as_secs_f64() / 1e9)
}
