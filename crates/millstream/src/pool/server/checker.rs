//! Threads that go through the bytes of extents, so that no decision waits for that.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

use fabric::{EventFd, Slab};

use super::ClientId;
use super::extents::checksum;
use super::mover::Event;
use crate::pool::fabrics::OpenFabric;

/// The error of an extent with other bytes than its writer says.
const NOT_WRITTEN: &str = "what arrived in an extent is not what was written";

/// A task of a checker.
pub(super) enum Check {
    /// Seals an extent to which nobody has a key any more, and compares its bytes.
    Seal { client: ClientId, number: u32, slab: Slab, used: u32, crc: u32 },
    /// Compares the bytes of sealed extents: the number, the memory, used bytes and checksum; for
    /// as long as somebody waits for that.
    Verify { client: ClientId, extents: Vec<(u32, Slab, u32, u32)>, waits: Weak<()> },
}

/// The handle of a thread, which ends when this is dropped.
pub(super) struct Checker {
    tasks: Option<Sender<Check>>,
    thread: Option<JoinHandle<()>>,
}

impl Checker {
    /// Starts it; `signal` is signalled after each event.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub(super) fn start(
        name: &str,
        fabrics: Arc<[OpenFabric]>,
        events: Sender<Event>,
        signal: Arc<EventFd>,
    ) -> std::io::Result<Self> {
        let (tasks, received) = channel();
        let thread = std::thread::Builder::new().name(name.into());
        let thread = thread.spawn(move || run(&received, &fabrics, &events, &signal))?;
        Ok(Self { tasks: Some(tasks), thread: Some(thread) })
    }

    pub(super) fn ask(&self, task: Check) {
        if let Some(tasks) = &self.tasks {
            // It ends with this handle alone.
            let _ = tasks.send(task);
        }
    }
}

impl Drop for Checker {
    fn drop(&mut self) {
        self.tasks = None;
        if let Some(thread) = self.thread.take()
            && let Err(panic) = thread.join()
        {
            tracing::error!("a checker has panicked: {panic:?}");
        }
    }
}

fn run(tasks: &Receiver<Check>, fabrics: &[OpenFabric], events: &Sender<Event>, signal: &EventFd) {
    while let Ok(task) = tasks.recv() {
        let event = match task {
            Check::Seal { client, number, slab, used, crc } => {
                let sealed = fabrics[0].fabric.seal(slab).map_err(|error| error.to_string());
                let sealed = sealed.and_then(|slab| {
                    let arrived = checksum(&slab, used);
                    let is_whole = arrived.is_some_and(|arrived| arrived == crc);
                    is_whole.then_some((slab, used, crc)).ok_or_else(|| NOT_WRITTEN.to_owned())
                });
                Event::Sealed(client, number, sealed)
            }
            Check::Verify { client, extents, waits } => {
                let is_damaged = |(_, slab, used, crc): &&(u32, Slab, u32, u32)| {
                    waits.strong_count() > 0 && checksum(slab, *used) != Some(*crc)
                };
                let damaged = extents.iter().find(is_damaged).map(|(number, ..)| *number);
                let numbers = extents.iter().map(|(number, ..)| *number).collect();
                drop(extents);
                Event::Verified(client, numbers, damaged)
            }
        };
        if events.send(event).is_err() {
            return;
        }
        signal.signal();
    }
}
