//! What a link between two workers carries: frames and bytes a second, and the time of one way.

use std::hint::{black_box, spin_loop};
use std::thread;
use std::time::{Duration, Instant};

use channel::{Class, Header, Link, LinkError, RingConfig};
use fabric::shm::{ShmFabric, ShmOptions};
use fabric::{Fabric, LinkId};
use millstream::FabricKind;

/// How long a stream is sent.
const SPAN: Duration = Duration::from_millis(300);
/// The kind of a stream's last frame.
const LAST: u8 = 1;

/// Bytes a second in one direction, in full slots of so many bytes.
///
/// # Errors
/// When the fabric refuses memory or a connection.
pub fn throughput(kind: FabricKind, slot_bytes: u32, slots: u32) -> Result<f64, LinkError> {
    let (mut here, mut there) = links(kind, slot_bytes, slots)?;
    thread::scope(|scope| {
        let sending = scope.spawn(move || -> Result<Link, LinkError> {
            let start = Instant::now();
            while start.elapsed() < SPAN {
                send(&mut here, Class::Data, Header::default(), slot_bytes as usize - 64)?;
            }
            send(&mut here, Class::Control, Header { kind: LAST, ..Header::default() }, 0)?;
            here.flush();
            // The other end may still need what this one has not told it.
            Ok(here)
        });
        let (mut bytes, start) = (0, Instant::now());
        let mut turns = 0;
        'receiving: loop {
            while let Some(frame) = there.recv()? {
                if frame.header.kind == LAST {
                    break 'receiving;
                }
                bytes += frame.payload.len();
                black_box(frame.payload.first());
            }
            there.poll()?;
            wait(&mut turns);
        }
        let rate = bytes as f64 / start.elapsed().as_secs_f64();
        sending.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        Ok(rate)
    })
}

/// The time of one way of a frame of 64 bytes: half of a round, both ends polling.
///
/// # Errors
/// When the fabric refuses memory or a connection.
pub fn one_way(kind: FabricKind, rounds: u32) -> Result<Duration, LinkError> {
    let (mut here, mut there) = links(kind, 4096, 16)?;
    thread::scope(|scope| {
        let echo = scope.spawn(move || -> Result<Link, LinkError> {
            for _ in 0..rounds {
                receive(&mut there)?;
                send(&mut there, Class::Data, Header::default(), 64)?;
                there.flush();
            }
            Ok(there)
        });
        let start = Instant::now();
        for _ in 0..rounds {
            send(&mut here, Class::Data, Header::default(), 64)?;
            here.flush();
            receive(&mut here)?;
        }
        let elapsed = start.elapsed();
        echo.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        Ok(elapsed / (2 * rounds))
    })
}

fn links(kind: FabricKind, slot_bytes: u32, slots: u32) -> Result<(Link, Link), LinkError> {
    let fabric: std::sync::Arc<dyn Fabric> = match kind {
        FabricKind::Shm => ShmFabric::new(ShmOptions { prefault: true, ..ShmOptions::default() })?,
        FabricKind::Tcp | FabricKind::Verbs => kind.open()?,
    };
    let here = fabric.offer(LinkId { local: 0, remote: 1 })?;
    let there = fabric.offer(LinkId { local: 1, remote: 0 })?;
    let (of_here, of_there) = (here.address(), there.address());
    let (here, there) = thread::scope(|scope| {
        let there = scope.spawn(move || there.connect(&of_here));
        let here = here.connect(&of_there);
        (here, there.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    let config = RingConfig { slots, slot_bytes, control_slots: 1, payload_crc: false };
    let mut here = Link::new(&*fabric, here?, config, 1)?;
    let mut there = Link::new(&*fabric, there?, config, 1)?;
    here.attach(&there.descriptor())?;
    there.attach(&here.descriptor())?;
    Ok((here, there))
}

/// Publishes a slot as soon as there is credit.
fn send(link: &mut Link, class: Class, header: Header, len: usize) -> Result<(), LinkError> {
    let mut turns = 0;
    loop {
        if let Some(slot) = link.reserve(class) {
            slot.publish(header, len);
            return Ok(());
        }
        link.flush();
        if !link.poll()? {
            wait(&mut turns);
        }
    }
}

fn receive(link: &mut Link) -> Result<(), LinkError> {
    let mut turns = 0;
    while link.recv()?.is_none() {
        wait(&mut turns);
        if turns.is_multiple_of(64) {
            link.poll()?;
        }
    }
    Ok(())
}

/// Spins, and now and then lets others have the processor: the other end may be among them.
fn wait(turns: &mut u32) {
    *turns = turns.wrapping_add(1);
    if turns.is_multiple_of(1 << 12) {
        thread::yield_now();
    }
    spin_loop();
}
