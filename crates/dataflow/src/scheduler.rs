//! The worker's coroutine scheduler (S4).
//!
//! One thread, one run queue, first in first out: compute coroutines (read a batch, fold it into
//! state) and network coroutines (take a frame, send one) take turns, and who has nothing to do is
//! parked and costs nothing. The order of turns depends on nothing but the order of wake-ups, so
//! that a simulated run repeats itself.
//!
//! It has no threads, no input or output and no clock: the worker polls its links, asks its clock,
//! and wakes.

use std::cell::{Cell, RefCell};
use std::collections::{BinaryHeap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use crate::error::DataflowError;

/// What a coroutine comes to.
pub(crate) type Outcome = Result<(), DataflowError>;

/// A coroutine that was spawned and has not ended; `None` while it runs and after it ended.
type Task = Option<Pin<Box<dyn Future<Output = Outcome>>>>;

/// Runs coroutines of one worker.
pub(crate) struct Scheduler {
    tasks: Vec<Task>,
    wakers: Vec<Arc<TaskWaker>>,
    /// The operator that a coroutine is of.
    owners: Vec<Option<usize>>,
    queue: Arc<Mutex<VecDeque<usize>>>,
    /// Whether each is waited for.
    counted: Vec<bool>,
    running: usize,
}

impl Scheduler {
    pub(crate) fn new() -> Self {
        let queue = Arc::new(Mutex::new(VecDeque::new()));
        Self {
            tasks: Vec::new(),
            wakers: Vec::new(),
            owners: Vec::new(),
            queue,
            counted: Vec::new(),
            running: 0,
        }
    }

    /// Adds a coroutine, ready to run. Its future is dropped when it ends.
    pub(crate) fn spawn(&mut self, future: impl Future<Output = Outcome> + 'static) {
        self.add(None, future, true);
    }

    /// As [`Scheduler::spawn`], a coroutine of an operator.
    pub(crate) fn spawn_of(
        &mut self,
        owner: usize,
        future: impl Future<Output = Outcome> + 'static,
    ) {
        self.add(Some(owner), future, true);
    }

    /// As [`Scheduler::spawn_of`], for a coroutine whose end nobody waits for.
    pub(crate) fn spawn_beside(
        &mut self,
        owner: usize,
        future: impl Future<Output = Outcome> + 'static,
    ) {
        self.add(Some(owner), future, false);
    }

    fn add(
        &mut self,
        owner: Option<usize>,
        future: impl Future<Output = Outcome> + 'static,
        counted: bool,
    ) {
        let id = self.tasks.len();
        self.owners.push(owner);
        self.tasks.push(Some(Box::pin(future)));
        self.wakers.push(Arc::new(TaskWaker {
            id,
            queued: Mutex::new(false),
            queue: self.queue.clone(),
        }));
        self.wakers[id].wake_by_ref();
        self.counted.push(counted);
        self.running += usize::from(counted);
    }

    /// Coroutines that have not ended, of those that are waited for.
    pub(crate) fn running(&self) -> usize {
        self.running
    }

    /// True when a coroutine is ready to run.
    pub(crate) fn has_ready(&self) -> bool {
        !lock(&self.queue).is_empty()
    }

    /// Gives one turn to each coroutine that is ready now, and tells whose each was when it is
    /// over.
    ///
    /// # Errors
    /// The first failure of a coroutine; the others stay as they are.
    pub(crate) fn turn(&mut self, mut over: impl FnMut(Option<usize>)) -> Outcome {
        let ready = lock(&self.queue).len();
        for _ in 0..ready {
            let Some(id) = lock(&self.queue).pop_front() else { break };
            *lock(&self.wakers[id].queued) = false;
            let Some(mut task) = self.tasks[id].take() else { continue };
            let waker = Waker::from(self.wakers[id].clone());
            let polled = task.as_mut().poll(&mut Context::from_waker(&waker));
            over(self.owners[id]);
            match polled {
                Poll::Pending => self.tasks[id] = Some(task),
                Poll::Ready(outcome) => {
                    self.running -= usize::from(self.counted[id]);
                    outcome?;
                }
            }
        }
        Ok(())
    }
}

/// Puts its coroutine into the run queue, once however often it is called.
struct TaskWaker {
    id: usize,
    queued: Mutex<bool>,
    queue: Arc<Mutex<VecDeque<usize>>>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut queued = lock(&self.queued);
        if !*queued {
            *queued = true;
            lock(&self.queue).push_back(self.id);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Lets the other coroutines run before this one goes on.
pub(crate) async fn yield_now() {
    let mut yielded = false;
    std::future::poll_fn(|cx| {
        if yielded {
            return Poll::Ready(());
        }
        yielded = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// A condition that coroutines of one worker wait for. Waiting is by re-checking: whoever changes
/// what others may wait for calls [`Event::notify`].
#[derive(Default)]
pub(crate) struct Event {
    waiting: RefCell<Vec<Waker>>,
}

impl Event {
    /// Wakes all who wait.
    pub(crate) fn notify(&self) {
        for waker in self.waiting.borrow_mut().drain(..) {
            waker.wake();
        }
    }

    /// Waits until `check` gives a value; it is asked at once and after each [`Event::notify`].
    pub(crate) async fn wait_for<T>(&self, mut check: impl FnMut() -> Option<T>) -> T {
        std::future::poll_fn(|cx| match check() {
            Some(value) => Poll::Ready(value),
            None => {
                self.waiting.borrow_mut().push(cx.waker().clone());
                Poll::Pending
            }
        })
        .await
    }
}

/// Lets one coroutine in at a time.
#[derive(Default)]
pub(crate) struct Gate {
    taken: Cell<bool>,
    left: Event,
}

/// Leaves the gate when dropped.
pub(crate) struct Turn<'a>(&'a Gate);

impl Gate {
    /// Waits for a turn.
    pub(crate) async fn enter(&self) -> Turn<'_> {
        self.left.wait_for(|| (!self.taken.replace(true)).then_some(())).await;
        Turn(self)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.taken.set(false);
        self.0.left.notify();
    }
}

/// Coroutines that wait for a time.
#[derive(Default)]
pub(crate) struct Timers {
    now_ns: Cell<u64>,
    waiting: RefCell<BinaryHeap<Timer>>,
}

impl Timers {
    /// Waits until the worker's clock has reached `at_ns`.
    pub(crate) async fn sleep_until(self: &Rc<Self>, at_ns: u64) {
        let mut registered = false;
        std::future::poll_fn(|cx| {
            if self.now_ns.get() >= at_ns {
                return Poll::Ready(());
            }
            if !registered {
                registered = true;
                let waker = cx.waker().clone();
                self.waiting.borrow_mut().push(Timer { at_ns, waker });
            }
            Poll::Pending
        })
        .await;
    }

    /// The worker's time.
    pub(crate) fn now_ns(&self) -> u64 {
        self.now_ns.get()
    }

    /// Wakes all whose time has come.
    pub(crate) fn advance(&self, now_ns: u64) {
        self.now_ns.set(now_ns);
        let mut waiting = self.waiting.borrow_mut();
        while waiting.peek().is_some_and(|timer| timer.at_ns <= now_ns) {
            if let Some(timer) = waiting.pop() {
                timer.waker.wake();
            }
        }
    }

    /// When the next coroutine wants to be woken.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        self.waiting.borrow().peek().map(|timer| timer.at_ns)
    }
}

struct Timer {
    at_ns: u64,
    waker: Waker,
}

impl PartialEq for Timer {
    fn eq(&self, other: &Self) -> bool {
        self.at_ns == other.at_ns
    }
}

impl Eq for Timer {}

impl PartialOrd for Timer {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Timer {
    /// The earliest is the greatest: `BinaryHeap` gives the greatest first.
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        other.at_ns.cmp(&self.at_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coroutines_take_turns_in_order() {
        let log = Rc::new(RefCell::new(Vec::new()));
        let mut scheduler = Scheduler::new();
        for name in ["a", "b"] {
            let log = log.clone();
            scheduler.spawn(async move {
                for i in 0..3 {
                    log.borrow_mut().push(format!("{name}{i}"));
                    yield_now().await;
                }
                Ok(())
            });
        }
        while scheduler.has_ready() {
            scheduler.turn(|_| ()).unwrap();
        }
        assert_eq!(*log.borrow(), ["a0", "b0", "a1", "b1", "a2", "b2"]);
        assert_eq!(scheduler.running(), 0);
    }

    #[test]
    fn a_parked_coroutine_runs_when_notified_and_not_before() {
        let event = Rc::new(Event::default());
        let open = Rc::new(Cell::new(false));
        let mut scheduler = Scheduler::new();
        scheduler.spawn({
            let (event, open) = (event.clone(), open.clone());
            async move {
                event.wait_for(|| open.get().then_some(())).await;
                Ok(())
            }
        });
        scheduler.turn(|_| ()).unwrap();
        assert!(!scheduler.has_ready());
        event.notify();
        scheduler.turn(|_| ()).unwrap();
        assert_eq!(scheduler.running(), 1, "the condition does not hold yet");
        open.set(true);
        event.notify();
        scheduler.turn(|_| ()).unwrap();
        assert_eq!(scheduler.running(), 0);
    }

    #[test]
    fn who_runs_beside_is_not_waited_for() {
        let turns = Rc::new(Cell::new(0));
        let mut scheduler = Scheduler::new();
        scheduler.spawn(async { Ok(()) });
        scheduler.spawn_beside(0, {
            let turns = turns.clone();
            async move {
                loop {
                    turns.set(turns.get() + 1);
                    yield_now().await;
                }
            }
        });
        assert_eq!(scheduler.running(), 1);
        scheduler.turn(|_| ()).unwrap();
        assert_eq!((scheduler.running(), scheduler.has_ready()), (0, true));
        scheduler.turn(|_| ()).unwrap();
        assert_eq!(turns.get(), 2);
    }

    #[test]
    fn timers_wake_in_order_of_time() {
        let timers = Rc::new(Timers::default());
        let log = Rc::new(RefCell::new(Vec::new()));
        let mut scheduler = Scheduler::new();
        for at in [30, 10, 20] {
            let (timers, log) = (timers.clone(), log.clone());
            scheduler.spawn(async move {
                timers.sleep_until(at).await;
                log.borrow_mut().push(at);
                Ok(())
            });
        }
        scheduler.turn(|_| ()).unwrap();
        assert_eq!(timers.next_ns(), Some(10));
        for now in [9, 10, 25, 30] {
            timers.advance(now);
            scheduler.turn(|_| ()).unwrap();
        }
        assert_eq!(*log.borrow(), [10, 20, 30]);
        assert_eq!(timers.next_ns(), None);
    }

    #[test]
    fn whose_turn_it_was_is_told() {
        let mut scheduler = Scheduler::new();
        let turn = || async {
            yield_now().await;
            Ok(())
        };
        scheduler.spawn_of(3, turn());
        scheduler.spawn(turn());
        scheduler.spawn_beside(1, turn());
        let mut told = vec![];
        while scheduler.has_ready() {
            scheduler.turn(|owner| told.push(owner)).unwrap();
        }
        assert_eq!(told, [Some(3), None, Some(1), Some(3), None, Some(1)]);
    }

    #[test]
    fn a_failure_ends_the_turn() {
        let mut scheduler = Scheduler::new();
        scheduler.spawn(async { Err(DataflowError::Expression("divide by zero".into())) });
        assert!(scheduler.turn(|_| ()).is_err());
    }
}
