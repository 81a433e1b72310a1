//! The worker's coroutine scheduler (S4).
//!
//! One thread, one run queue, first in first out: compute coroutines (read a batch, fold it into
//! state) and network coroutines (take a frame, send one) take turns, and who has nothing to do is
//! parked and costs nothing. The order of turns depends on nothing but the order of wake-ups, so
//! that a simulated run repeats itself.
//!
//! It has no threads, no input or output and no clock: the worker polls its links, asks its clock,
//! and wakes. A waker may be given to another thread all the same; one that stays here takes no
//! lock and no atomic read-modify-write, each of which would cost as much as the rest of a turn.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use crate::error::DataflowError;

/// What a coroutine comes to.
pub(crate) type Outcome = Result<(), DataflowError>;

/// A coroutine that was spawned; `None` after it ended.
type Task = Option<Pin<Box<dyn Future<Output = Outcome>>>>;

/// Runs coroutines of one worker.
pub(crate) struct Scheduler {
    tasks: Vec<Task>,
    links: Vec<Arc<TaskWaker>>,
    /// The same as the coroutines get them.
    wakers: Vec<Waker>,
    /// The operator that a coroutine is of.
    owners: Vec<Option<usize>>,
    queue: Arc<Queue>,
    /// What was taken out of the queue for this turn; the last is the next.
    ready: Vec<usize>,
    /// The coroutine that has the turn, or had it last.
    current: usize,
    /// Whether each is waited for.
    counted: Vec<bool>,
    running: usize,
}

impl Scheduler {
    pub(crate) fn new() -> Self {
        Self {
            tasks: Vec::new(),
            links: Vec::new(),
            wakers: Vec::new(),
            owners: Vec::new(),
            queue: Arc::new(Queue::new()),
            ready: Vec::new(),
            current: 0,
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
        let queue = self.queue.clone();
        let link = Arc::new(TaskWaker { id, next: AtomicUsize::new(IDLE), queue });
        link.wake_by_ref();
        self.wakers.push(Waker::from(link.clone()));
        self.links.push(link);
        self.counted.push(counted);
        self.running += usize::from(counted);
    }

    /// Coroutines that have not ended, of those that are waited for.
    pub(crate) fn running(&self) -> usize {
        self.running
    }

    /// The operator of the coroutine that has the turn, or had it last.
    pub(crate) fn owner(&self) -> Option<usize> {
        self.owners.get(self.current).copied().flatten()
    }

    /// True when a coroutine is ready to run.
    pub(crate) fn has_ready(&self) -> bool {
        let queue = &self.queue;
        !self.ready.is_empty()
            || queue.newest.load(Ordering::Relaxed) != LAST
            || queue.woken_elsewhere.load(Ordering::Acquire)
    }

    /// Gives one turn to each coroutine that is ready now, and tells whose each was when it is
    /// over.
    ///
    /// # Errors
    /// The first failure of a coroutine; the others stay as they are.
    pub(crate) fn turn(&mut self, mut over: impl FnMut(Option<usize>)) -> Outcome {
        self.take_ready();
        while let Some(id) = self.ready.pop() {
            // From here on who wakes it has it run once more.
            self.links[id].next.store(IDLE, Ordering::Relaxed);
            let Some(task) = &mut self.tasks[id] else { continue };
            self.current = id;
            let polled = task.as_mut().poll(&mut Context::from_waker(&self.wakers[id]));
            over(self.owners[id]);
            if let Poll::Ready(outcome) = polled {
                self.tasks[id] = None;
                self.running -= usize::from(self.counted[id]);
                let owner = self.owners[id];
                outcome.map_err(|error| match owner {
                    Some(at) => error.of_operator(at),
                    None => error,
                })?;
            }
        }
        Ok(())
    }

    /// Empties the queue, behind what a failure may have left of the turn before.
    fn take_ready(&mut self) {
        let queue = &self.queue;
        if queue.woken_elsewhere.swap(false, Ordering::Acquire) {
            for id in lock(&queue.elsewhere).drain(..) {
                self.links[id].enqueue();
            }
        }
        let left = self.ready.len();
        let mut id = queue.newest.load(Ordering::Relaxed);
        queue.newest.store(LAST, Ordering::Relaxed);
        while id != LAST {
            self.ready.push(id);
            id = self.links[id].next.load(Ordering::Relaxed);
        }
        self.ready.rotate_left(left);
    }
}

/// Says of a coroutine that it is not in the run queue.
const IDLE: usize = usize::MAX;
/// Behind the oldest in the run queue.
const LAST: usize = usize::MAX - 1;

/// The run queue: a list that leads from who was woken last to who was woken first. Only the thread
/// of the scheduler goes along it, so that its links need no ordering; wakes by other threads go
/// through a lock, and are put behind the others at the next turn.
struct Queue {
    home: usize,
    newest: AtomicUsize,
    /// Whether there is something in `elsewhere`.
    woken_elsewhere: AtomicBool,
    elsewhere: Mutex<Vec<usize>>,
}

impl Queue {
    /// The queue of a scheduler of this thread.
    fn new() -> Self {
        let newest = AtomicUsize::new(LAST);
        let woken_elsewhere = AtomicBool::new(false);
        Self { home: here(), newest, woken_elsewhere, elsewhere: Mutex::new(Vec::new()) }
    }
}

/// Something that tells this thread from all others that are there.
fn here() -> usize {
    thread_local! {
        static HERE: u8 = const { 0 };
    }
    HERE.with(|here| std::ptr::from_ref(here).addr())
}

/// Puts its coroutine into the run queue, once however often it is called.
struct TaskWaker {
    id: usize,
    /// Who was woken before it: an id, [`LAST`], or [`IDLE`] where it is not in the queue. It stays
    /// until its turn.
    next: AtomicUsize,
    queue: Arc<Queue>,
}

impl TaskWaker {
    /// Done by the thread of the scheduler alone.
    fn enqueue(&self) {
        if self.next.load(Ordering::Relaxed) == IDLE {
            let newest = &self.queue.newest;
            self.next.store(newest.load(Ordering::Relaxed), Ordering::Relaxed);
            newest.store(self.id, Ordering::Relaxed);
        }
    }
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.queue.home == here() {
            return self.enqueue();
        }
        // The flag is set behind what it speaks of, and taken down before that is taken.
        lock(&self.queue.elsewhere).push(self.id);
        self.queue.woken_elsewhere.store(true, Ordering::Release);
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

/// Runs tasks side by side until all have ended, or one fails.
pub(crate) async fn all(mut tasks: Vec<Pin<Box<dyn Future<Output = Outcome> + '_>>>) -> Outcome {
    std::future::poll_fn(|cx| {
        let mut at = 0;
        while let Some(task) = tasks.get_mut(at) {
            match task.as_mut().poll(cx) {
                Poll::Pending => at += 1,
                Poll::Ready(Ok(())) => drop(tasks.remove(at)),
                Poll::Ready(failed) => return Poll::Ready(failed),
            }
        }
        if tasks.is_empty() { Poll::Ready(Ok(())) } else { Poll::Pending }
    })
    .await
}

/// Waits for the first of two.
pub(crate) async fn either(first: impl Future, second: impl Future) {
    let (mut first, mut second) = (std::pin::pin!(first), std::pin::pin!(second));
    std::future::poll_fn(|cx| {
        let ready = first.as_mut().poll(cx).is_ready() || second.as_mut().poll(cx).is_ready();
        if ready { Poll::Ready(()) } else { Poll::Pending }
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

/// A lock that one coroutine has at a time; others wait for it without blocking the worker.
#[derive(Default)]
pub(crate) struct AsyncMutex {
    taken: Cell<bool>,
    left: Event,
}

/// Unlocks the mutex when dropped.
pub(crate) struct AsyncMutexGuard<'a>(&'a AsyncMutex);

impl AsyncMutex {
    /// Waits until no other coroutine has it.
    pub(crate) async fn lock(&self) -> AsyncMutexGuard<'_> {
        self.left.wait_for(|| (!self.taken.replace(true)).then_some(())).await;
        AsyncMutexGuard(self)
    }

    /// Locks it, unless another coroutine has it.
    pub(crate) fn try_lock(&self) -> Option<AsyncMutexGuard<'_>> {
        (!self.taken.replace(true)).then(|| AsyncMutexGuard(self))
    }
}

impl Drop for AsyncMutexGuard<'_> {
    fn drop(&mut self) {
        self.0.taken.set(false);
        self.0.left.notify();
    }
}

/// Coroutines that wait for a time.
#[derive(Default)]
pub(crate) struct Timers {
    now_ns: Cell<u64>,
    /// By the time and, of one time, in the order in which they began to wait.
    waiting: RefCell<BTreeMap<TimerKey, Waker>>,
    started: Cell<u64>,
}

/// When a coroutine wants to be woken, and the number of its wait.
type TimerKey = (u64, u64);

impl Timers {
    /// Waits until the worker's clock has reached `at_ns`. A coroutine may give up waiting.
    pub(crate) async fn sleep_until(&self, at_ns: u64) {
        let mut timer = Timer { timers: self, key: None };
        std::future::poll_fn(|cx| {
            if self.now_ns.get() >= at_ns {
                return Poll::Ready(());
            }
            timer.start(at_ns, cx.waker());
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
        while let Some(first) = waiting.first_entry().filter(|first| first.key().0 <= now_ns) {
            first.remove().wake();
        }
    }

    /// When the next coroutine wants to be woken.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        self.waiting.borrow().first_key_value().map(|((at_ns, _), _)| *at_ns)
    }
}

/// A wait for a time; dropping it ends it.
struct Timer<'a> {
    timers: &'a Timers,
    /// Once it has started.
    key: Option<TimerKey>,
}

impl Timer<'_> {
    /// Has the coroutine woken, if it is not waiting already.
    fn start(&mut self, at_ns: u64, waker: &Waker) {
        if self.key.is_none() {
            let number = self.timers.started.get();
            self.timers.started.set(number + 1);
            self.key = Some((at_ns, number));
            self.timers.waiting.borrow_mut().insert((at_ns, number), waker.clone());
        }
    }
}

impl Drop for Timer<'_> {
    fn drop(&mut self) {
        if let Some(key) = &self.key {
            self.timers.waiting.borrow_mut().remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

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
    fn who_is_woken_by_another_thread_runs_behind_those_that_were_woken_here() {
        let (mut scheduler, ran) = (Scheduler::new(), Rc::new(RefCell::new(Vec::new())));
        let wakers = Arc::new(Mutex::new(Vec::new()));
        for name in 0..3 {
            let (ran, wakers) = (ran.clone(), wakers.clone());
            scheduler.spawn(std::future::poll_fn(move |cx| {
                ran.borrow_mut().push(name);
                lock(&wakers).push(cx.waker().clone());
                Poll::Pending
            }));
        }
        scheduler.turn(|_| {}).unwrap();
        assert!(!scheduler.has_ready(), "all are parked");
        let own = lock(&wakers).clone();
        let theirs = own.clone();
        let woken = std::thread::spawn(move || {
            // Twice is once.
            [1, 0, 0].map(|at: usize| theirs[at].wake_by_ref())
        });
        woken.join().unwrap();
        assert!(scheduler.has_ready());
        own[2].wake_by_ref();
        own[0].wake_by_ref();
        ran.borrow_mut().clear();
        scheduler.turn(|_| {}).unwrap();
        assert_eq!(*ran.borrow(), [2, 0, 1]);
        assert!(!scheduler.has_ready());
    }

    #[test]
    fn none_is_lost_that_another_thread_wakes() {
        let (mut scheduler, turns) = (Scheduler::new(), Rc::new(Cell::new(0)));
        let given = Arc::new(AtomicUsize::new(0));
        let (counted, seen) = (turns.clone(), given.clone());
        let (sender, receiver) = std::sync::mpsc::channel();
        scheduler.spawn(std::future::poll_fn(move |cx| {
            counted.set(seen.load(Ordering::Relaxed));
            let _ = sender.send(cx.waker().clone());
            Poll::Pending
        }));
        scheduler.turn(|_| {}).unwrap();
        let waker = receiver.recv().unwrap();
        let number = if cfg!(miri) { 20 } else { 10_000 };
        let thread = std::thread::spawn(move || {
            for n in 1..=number {
                given.store(n, Ordering::Relaxed);
                waker.wake_by_ref();
            }
        });
        while !thread.is_finished() {
            scheduler.turn(|_| {}).unwrap();
        }
        thread.join().unwrap();
        scheduler.turn(|_| {}).unwrap();
        assert_eq!(turns.get(), number, "the last wake was seen");
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
    fn a_wait_that_was_given_up_leaves_no_timer() {
        let timers = Rc::new(Timers::default());
        let mut scheduler = Scheduler::new();
        let own = timers.clone();
        scheduler.spawn(async move {
            for _ in 0..3 {
                either(own.sleep_until(100), yield_now()).await;
            }
            own.sleep_until(7).await;
            Ok(())
        });
        scheduler.turn(|_| ()).unwrap();
        assert_eq!(timers.next_ns(), Some(100));
        while scheduler.has_ready() {
            scheduler.turn(|_| ()).unwrap();
        }
        assert_eq!((timers.next_ns(), timers.waiting.borrow().len()), (Some(7), 1));
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
        let mut owners = vec![];
        while scheduler.has_ready() {
            scheduler.turn(|owner| owners.push(owner)).unwrap();
        }
        assert_eq!(owners, [Some(3), None, Some(1), Some(3), None, Some(1)]);
    }

    #[test]
    fn a_failure_ends_the_turn() {
        let mut scheduler = Scheduler::new();
        scheduler.spawn(async { Err(DataflowError::Expression("divide by zero".into())) });
        assert!(scheduler.turn(|_| ()).is_err());
    }
}
