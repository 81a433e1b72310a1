//! Wake-ups by other threads: by those that write what a sink has queued, and those that wait for a
//! network on behalf of a source.
//!
//! Any thread may call the [`Waker`]. It interrupts the sleep of the worker, which then wakes all
//! coroutines that [wait](External::told); each looks whether what it waits for has happened.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, Wake, Waker};

use crate::runtime::local_exchange::Parker;

/// Notifications of a worker by other threads.
pub(crate) struct External {
    signal: Arc<Signal>,
    /// How often something was told.
    times: Cell<u64>,
    /// Coroutines that wait, each once.
    waiting: RefCell<Vec<Waker>>,
}

/// The part that other threads share.
struct Signal {
    told: AtomicBool,
    parker: Arc<Parker>,
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Both orders are sequential: either a worker that is about to sleep sees the flag, or the
        // parker is seen here to lie down.
        self.told.store(true, Ordering::SeqCst);
        self.parker.wake();
    }
}

impl External {
    /// Of the worker with this sleep.
    pub(crate) fn new(parker: Arc<Parker>) -> Self {
        let signal = Arc::new(Signal { told: AtomicBool::new(false), parker });
        Self { signal, times: Cell::new(0), waiting: RefCell::default() }
    }

    /// Tells the worker that something has happened.
    pub(crate) fn waker(&self) -> Waker {
        self.signal.clone().into()
    }

    /// Waits until something is told. A coroutine may give up waiting.
    pub(crate) async fn told(&self) {
        let before = self.times.get();
        poll_fn(|cx| {
            if self.times.get() != before {
                return Poll::Ready(());
            }
            let mut waiting = self.waiting.borrow_mut();
            if !waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
                waiting.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }

    /// Wakes the coroutines that wait, if something has happened since the last call.
    pub(crate) fn poll(&self) -> bool {
        let told = self.is_told() && self.signal.told.swap(false, Ordering::SeqCst);
        if told {
            self.times.set(self.times.get() + 1);
            self.waiting.borrow_mut().drain(..).for_each(Waker::wake);
        }
        told
    }

    /// Whether [`poll`](Self::poll) would wake them.
    pub(crate) fn is_told(&self) -> bool {
        self.signal.told.load(Ordering::SeqCst)
    }
}
