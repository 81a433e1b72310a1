//! Wake-ups by other threads: by those that write what a sink has queued, those that wait for a
//! network on behalf of a source, and those that stop the job.
//!
//! Any thread may call the [`Waker`]. It interrupts the sleep of the worker, which then wakes all
//! coroutines that [wait](External::notified_or_at); each looks whether what it waits for has
//! happened. None is lost: a coroutine asks [how often](External::notifications) the worker was
//! notified before it looks, and does not wait if that has changed.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, Wake, Waker};

use crate::runtime::local_exchange::Parker;
use crate::runtime::scheduler::{Timers, either};

/// Notifications of a worker by other threads.
pub(crate) struct External {
    signal: Arc<Signal>,
    /// Notifications so far.
    times: Cell<u64>,
    /// Coroutines that wait, each once.
    waiting: RefCell<Vec<Waker>>,
}

/// The part that other threads share.
struct Signal {
    pending: AtomicBool,
    parker: Arc<Parker>,
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Both orders are sequential: either a worker that is about to sleep sees the flag, or the
        // parker is seen here to be parked.
        self.pending.store(true, Ordering::SeqCst);
        self.parker.wake();
    }
}

impl External {
    /// Of the worker with this sleep.
    pub(crate) fn new(parker: Arc<Parker>) -> Self {
        let signal = Arc::new(Signal { pending: AtomicBool::new(false), parker });
        Self { signal, times: Cell::new(0), waiting: RefCell::default() }
    }

    /// Tells the worker that something has happened.
    pub(crate) fn waker(&self) -> Waker {
        self.signal.clone().into()
    }

    /// How often the worker was notified: asked before a coroutine looks for what it may wait for.
    pub(crate) fn notifications(&self) -> u64 {
        self.times.get()
    }

    /// Waits until the worker has been notified more often than `seen` times, or until a time if
    /// there is one. A coroutine may give up waiting.
    pub(crate) async fn notified_or_at(
        &self,
        seen: u64,
        timers: &Rc<Timers>,
        until_ns: Option<u64>,
    ) {
        let over = async {
            match until_ns {
                Some(until_ns) => timers.sleep_until(until_ns).await,
                None => std::future::pending().await,
            }
        };
        either(self.notified(seen), over).await;
    }

    async fn notified(&self, seen: u64) {
        poll_fn(|cx| {
            if self.times.get() != seen {
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
        let notified = self.is_notified() && self.signal.pending.swap(false, Ordering::SeqCst);
        if notified {
            self.times.set(self.times.get() + 1);
            self.waiting.borrow_mut().drain(..).for_each(Waker::wake);
        }
        notified
    }

    /// Whether [`poll`](Self::poll) would wake them.
    pub(crate) fn is_notified(&self) -> bool {
        self.signal.pending.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::scheduler::{Scheduler, yield_now};

    /// A coroutine that looks, is interrupted, and then waits for a notification or 100 ns.
    fn waiting() -> (Scheduler, Rc<External>, Rc<Timers>) {
        let external = Rc::new(External::new(Arc::new(Parker::new().unwrap())));
        let (timers, mut scheduler) = (Rc::new(Timers::default()), Scheduler::new());
        let (own, clock) = (external.clone(), timers.clone());
        scheduler.spawn(async move {
            let seen = own.notifications();
            yield_now().await;
            own.notified_or_at(seen, &clock, Some(100)).await;
            Ok(())
        });
        scheduler.turn(|_| ()).unwrap();
        (scheduler, external, timers)
    }

    fn notify(external: &External) {
        let waker = external.waker();
        std::thread::spawn(move || waker.wake()).join().unwrap();
    }

    #[test]
    fn a_notification_between_looking_and_waiting_is_not_lost() {
        let (mut scheduler, external, _) = waiting();
        notify(&external);
        assert!(external.is_notified() && external.poll() && !external.is_notified());
        scheduler.turn(|_| ()).unwrap();
        assert_eq!(scheduler.running(), 0);
    }

    #[test]
    fn a_coroutine_that_waits_runs_when_it_is_notified_or_its_time_has_come() {
        let (mut scheduler, external, timers) = waiting();
        scheduler.turn(|_| ()).unwrap();
        assert!(!external.poll() && !scheduler.has_ready());
        notify(&external);
        assert!(external.poll() && scheduler.has_ready());
        scheduler.turn(|_| ()).unwrap();
        assert_eq!((scheduler.running(), timers.next_ns()), (0, None));

        let (mut scheduler, _, timers) = waiting();
        scheduler.turn(|_| ()).unwrap();
        timers.advance(100);
        scheduler.turn(|_| ()).unwrap();
        assert_eq!(scheduler.running(), 0);
    }
}
