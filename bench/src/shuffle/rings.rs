//! Chunks through rings: one each way for each pair of workers (Q1), made as a job makes them.

use std::time::Duration;

use channel::{Class, Header, Link, LinkError, RingConfig};
use fabric::{Armed, Fabric, LinkId};
use zerocopy::{FromBytes, IntoBytes};

use super::worker::{Kind, Means, ShufflePlan};
use super::{Gather, ShuffleError};

/// How long a worker sleeps at most: long beyond any wake-up.
const SLEEP: Duration = Duration::from_secs(1);
/// Bytes of a ring.
const RING_BYTES: u32 = 512 << 10;
/// The kind of an end; rows have 0, and their shuffle for tag.
const END: u8 = 1;

/// The links of a worker; none with itself.
pub(super) struct Rings(Vec<Option<Link>>);

impl Rings {
    /// Joins this worker with all others.
    pub(super) fn join(
        fabric: &dyn Fabric,
        size: &ShufflePlan,
        gather: &Gather<'_>,
    ) -> Result<Self, ShuffleError> {
        // As much memory whatever the threshold is: as 8 slots of 64 KiB, in slots of a chunk.
        let slot_bytes = (size.chunk_words() * 8 + 64).next_multiple_of(64).max(128) as u32;
        let slots = (RING_BYTES / slot_bytes).clamp(8, 64);
        let ring = RingConfig { slot_bytes, slots, ..RingConfig::default() };
        let others = || (0..size.nodes).filter(|&other| other != size.rank);
        let mut offers = Vec::new();
        for other in others() {
            let link = LinkId { local: size.rank as u32, remote: other as u32 };
            offers.push(fabric.offer(link).map_err(LinkError::from)?);
        }
        let addresses = offers.iter().map(|offer| offer.address()).collect();
        let addresses = for_each_pair(size, gather, "addresses", addresses)?;
        let ends: Vec<_> = std::thread::scope(|scope| {
            let each = offers.into_iter().zip(&addresses);
            let connecting: Vec<_> =
                each.map(|(offer, address)| scope.spawn(move || offer.connect(address))).collect();
            connecting
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|p| std::panic::resume_unwind(p)))
                .collect()
        });
        let mut links = Vec::new();
        for end in ends {
            links.push(Link::new(fabric, end.map_err(LinkError::from)?, ring, 1)?);
        }
        let descriptors = links.iter().map(Link::descriptor).collect();
        let descriptors = for_each_pair(size, gather, "rings", descriptors)?;
        for (link, descriptor) in links.iter_mut().zip(&descriptors) {
            link.attach(descriptor)?;
        }
        let mut all: Vec<Option<Link>> = links.into_iter().map(Some).collect();
        all.insert(size.rank, None);
        Ok(Self(all))
    }
}

/// Gives each other worker what is for it, and returns what each has for this one.
pub(super) fn for_each_pair(
    size: &ShufflePlan,
    gather: &Gather<'_>,
    step: &str,
    mut parts: Vec<Vec<u8>>,
) -> Result<Vec<Vec<u8>>, ShuffleError> {
    parts.insert(size.rank, Vec::new());
    let mut bytes = Vec::new();
    for part in &parts {
        bytes.extend_from_slice(&(part.len() as u32).to_le_bytes());
        bytes.extend_from_slice(part);
    }
    let all = gather(step, bytes).map_err(ShuffleError::Control)?;
    let mut mine = Vec::new();
    for (rank, bytes) in all.iter().enumerate().filter(|(rank, _)| *rank != size.rank) {
        let mut rest = &bytes[..];
        let mut part = None;
        for _ in 0..=size.rank {
            part = rest.split_first_chunk::<4>().and_then(|(len, tail)| {
                let (part, tail) = tail.split_at_checked(u32::from_le_bytes(*len) as usize)?;
                rest = tail;
                Some(part.to_vec())
            });
        }
        let malformed = || ShuffleError::Control(format!("process {rank} sent a malformed {step}"));
        mine.push(part.ok_or_else(malformed)?);
    }
    Ok(mine)
}

impl Means for Rings {
    fn send(&mut self, to: usize, kind: Kind, values: &[u64]) -> Result<bool, ShuffleError> {
        let Some(link) = self.0.get_mut(to).and_then(Option::as_mut) else { return Ok(true) };
        let (class, kind, stage) = match kind {
            Kind::Rows(stage) => (Class::Data, 0, stage),
            Kind::End(stage) => (Class::Control, END, stage),
        };
        let Some(mut slot) = link.reserve(class) else { return Ok(false) };
        let bytes = values.as_bytes();
        slot.payload_mut()[..bytes.len()].copy_from_slice(bytes);
        slot.publish(Header { kind, operator: stage.into(), ..Header::default() }, bytes.len());
        Ok(true)
    }

    fn turn(&mut self, take: &mut dyn FnMut(Kind, &[u64])) -> Result<bool, ShuffleError> {
        let mut moved = false;
        for link in self.0.iter_mut().flatten() {
            link.flush();
            // A peer that has said its last goes.
            let polled = link.poll();
            while let Some(frame) = link.recv()? {
                moved = true;
                let stage = frame.header.operator as u8;
                match frame.header.kind {
                    END => take(Kind::End(stage), &[]),
                    // Payloads start at a multiple of 64 bytes, and hold whole integers.
                    _ => take(
                        Kind::Rows(stage),
                        <[u64]>::ref_from_bytes(&frame.payload).unwrap_or_default(),
                    ),
                }
            }
            moved |= polled?;
        }
        Ok(moved)
    }

    fn sleep(&mut self) -> Result<(), ShuffleError> {
        let mut descriptors = Vec::new();
        for link in self.0.iter_mut().flatten() {
            match link.arm() {
                Armed::Fd(fd) => descriptors.push(fd),
                _ => return Ok(()),
            }
        }
        fabric::wait(&descriptors, SLEEP);
        Ok(())
    }
}
