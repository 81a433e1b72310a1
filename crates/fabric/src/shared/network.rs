//! One thread that moves the trunks of a process while its workers sleep (Q4).

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use super::trunk::{NO_LINE, Trunk};
use crate::{Armed, Bell};

/// How long the thread sleeps when nothing happens.
const SLEEP_MAX: Duration = Duration::from_secs(1);

/// Polls the trunks of a process, posts what waited for room and wakes the workers that it is for.
///
/// The workers of a fabric that has one do not poll its trunks: they post what they have, and sleep
/// on bells of their own.
pub struct Network {
    trunks: Mutex<Vec<Weak<Trunk>>>,
    bell: Bell,
}

impl Network {
    /// One without a thread: its owner calls [`Network::turn`], as the simulator's do.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub fn driven() -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self { trunks: Mutex::default(), bell: Bell::new()? }))
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

    /// Lets each trunk make progress; then sleeps, if asked to, until one can make more.
    pub fn turn(&self, sleep: Option<Duration>) {
        self.bell.silence();
        let trunks: Vec<Arc<Trunk>> = self.lock().iter().filter_map(Weak::upgrade).collect();
        let mut descriptors = vec![self.bell.raw()];
        let mut ready = false;
        let mut asleep = Vec::with_capacity(trunks.len());
        for trunk in &trunks {
            match trunk.arm(|| true) {
                Armed::Ready => {
                    ready = true;
                    continue;
                }
                Armed::Fd(NO_LINE) => self.remove(trunk),
                Armed::Fd(fd) => descriptors.push(fd),
                Armed::Virtual => {}
            }
            asleep.push(trunk);
        }
        if let Some(timeout) = sleep.filter(|_| !ready) {
            // A trunk keeps its line, and so the descriptor, for as long as it is held here.
            crate::wait(&descriptors, timeout);
        }
        asleep.into_iter().for_each(|trunk| trunk.risen());
    }

    pub(super) fn add(&self, trunk: &Arc<Trunk>) {
        self.lock().push(Arc::downgrade(trunk));
        self.bell.ring();
    }

    pub(super) fn bell(&self) -> &Bell {
        &self.bell
    }

    fn remove(&self, trunk: &Arc<Trunk>) {
        let gone = |known: &Weak<Trunk>| std::ptr::eq(known.as_ptr(), Arc::as_ptr(trunk));
        self.lock().retain(|known| known.strong_count() > 0 && !gone(known));
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Weak<Trunk>>> {
        self.trunks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Tells the workers when the thread that they rely on is lost.
struct Guard(Weak<Network>);

impl Drop for Guard {
    fn drop(&mut self) {
        if thread::panicking()
            && let Some(network) = self.0.upgrade()
        {
            let trunks: Vec<_> = network.lock().iter().filter_map(Weak::upgrade).collect();
            trunks.iter().for_each(|trunk| trunk.break_down());
        }
    }
}
