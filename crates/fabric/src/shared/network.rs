//! One thread that moves the shared connections of a process while its workers sleep (Q4).

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use super::connection::{NO_LINE, SharedConnection};
use crate::{Armed, EventFd};

/// How long the thread sleeps when nothing happens.
const SLEEP_MAX: Duration = Duration::from_secs(1);

/// Polls the shared connections of a process, posts what waited for room and wakes the workers that
/// it is for.
///
/// The workers of a fabric that has one do not poll its shared connections: they post what they
/// have, and sleep on event descriptors of their own.
pub struct Network {
    connections: Mutex<Vec<Weak<SharedConnection>>>,
    event_fd: EventFd,
}

impl Network {
    /// One without a thread: its owner calls [`Network::turn`], as the simulator's do.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub fn driven() -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self { connections: Mutex::default(), event_fd: EventFd::new()? }))
    }

    /// One with a thread, which ends after the last fabric and endpoint that use it.
    ///
    /// # Errors
    /// When there are no descriptors or threads left.
    pub fn thread() -> io::Result<Arc<Self>> {
        let network = Self::driven()?;
        let weak = Arc::downgrade(&network);
        thread::Builder::new().name("network".into()).spawn(move || {
            let _guard = Guard(weak.clone());
            while let Some(network) = weak.upgrade() {
                network.turn(Some(SLEEP_MAX));
            }
        })?;
        Ok(network)
    }

    /// Lets each shared connection make progress; then sleeps, if asked to, until one can make
    /// more.
    pub fn turn(&self, sleep: Option<Duration>) {
        self.event_fd.clear();
        let connections: Vec<Arc<SharedConnection>> =
            self.lock().iter().filter_map(Weak::upgrade).collect();
        let mut descriptors = vec![self.event_fd.raw()];
        let mut ready = false;
        let mut asleep = Vec::with_capacity(connections.len());
        for connection in &connections {
            match connection.arm_thread() {
                Armed::Ready => {
                    ready = true;
                    continue;
                }
                Armed::Fd(NO_LINE) => self.remove(connection),
                Armed::Fd(fd) => descriptors.push(fd),
                Armed::Virtual => {}
            }
            asleep.push(connection);
        }
        if let Some(timeout) = sleep.filter(|_| !ready) {
            // A shared connection keeps its line, and so the descriptor, for as long as it is held
            // here.
            crate::wait(&descriptors, timeout);
        }
        asleep.into_iter().for_each(|connection| connection.risen());
    }

    pub(super) fn add(&self, connection: &Arc<SharedConnection>) {
        self.lock().push(Arc::downgrade(connection));
        self.event_fd.signal();
    }

    pub(super) fn event_fd(&self) -> &EventFd {
        &self.event_fd
    }

    fn remove(&self, connection: &Arc<SharedConnection>) {
        let gone =
            |known: &Weak<SharedConnection>| std::ptr::eq(known.as_ptr(), Arc::as_ptr(connection));
        self.lock().retain(|known| known.strong_count() > 0 && !gone(known));
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Weak<SharedConnection>>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Tells the workers when the thread that they rely on is lost.
struct Guard(Weak<Network>);

impl Drop for Guard {
    fn drop(&mut self) {
        if thread::panicking()
            && let Some(network) = self.0.upgrade()
        {
            let connections: Vec<_> = network.lock().iter().filter_map(Weak::upgrade).collect();
            connections.iter().for_each(|connection| connection.break_down());
        }
    }
}
