//! The threads of a node's workers, kept from one statement of a session to the next (Q6).
//!
//! A thread belongs to a place of the node: worker 2 of every statement runs on the same thread,
//! which waits for the next task between two statements. A panic of a task is an error of its
//! group, and the thread goes on. Tasks never outlive the [`TaskGroup`] that started them.

use std::io;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use dataflow::panics::{Panicked, caught};

type Task = Box<dyn FnOnce() + Send>;

/// Threads by their place in the node; started when a place has its first task. Dropping them waits
/// until they have ended.
#[derive(Default)]
pub(crate) struct WorkerThreads(Vec<WorkerThread>);

/// A thread that runs the tasks it is sent, until nobody can send more.
struct WorkerThread {
    tasks: Sender<Task>,
    thread: JoinHandle<()>,
}

impl WorkerThreads {
    /// Begins the tasks of a statement.
    pub(crate) fn group(&mut self) -> TaskGroup<'_> {
        TaskGroup { threads: self, running: Arc::default() }
    }

    /// Hands a task to the thread at a place. Places get their threads in their order.
    fn send(&mut self, at: usize, name: &str, task: Task) -> io::Result<()> {
        if at == self.0.len() {
            let (tasks, received) = mpsc::channel::<Task>();
            let runs = move || received.iter().for_each(|task| task());
            let thread = thread::Builder::new().name(name.into()).spawn(runs)?;
            self.0.push(WorkerThread { tasks, thread });
        }
        let gone = |_| io::Error::other("the thread has ended");
        self.0[at].tasks.send(task).map_err(gone)
    }
}

impl Drop for WorkerThreads {
    fn drop(&mut self) {
        // All are told before the first is waited for.
        let ending: Vec<_> = self.0.drain(..).map(|kept| kept.thread).collect();
        for thread in ending {
            // It catches the panics of its tasks.
            let _ = thread.join();
        }
    }
}

/// The tasks of a statement on a node's threads. Dropping it waits until all of them have ended.
pub(crate) struct TaskGroup<'a> {
    threads: &'a mut WorkerThreads,
    running: Arc<Running>,
}

impl TaskGroup<'_> {
    /// Starts a task on the thread at a place of the node, which is called `name` if it is new. The
    /// places before have had tasks; one that has a task begins this one behind it.
    ///
    /// # Errors
    /// When the operating system gives no thread.
    pub(crate) fn start(
        &mut self,
        at: usize,
        name: &str,
        task: impl FnOnce() + Send + 'static,
    ) -> io::Result<()> {
        let count = TaskCount::begin(&self.running);
        let task = move || {
            if let Err(panicked) = caught(task) {
                count.0.lock().panicked.get_or_insert(panicked);
            }
            // Behind the task and all that it held.
            drop(count);
        };
        self.threads.send(at, name, Box::new(task))
    }

    /// Waits until all tasks have ended.
    ///
    /// # Errors
    /// The first panic of one.
    pub(crate) fn join(self) -> Result<(), Panicked> {
        self.running.wait();
        self.running.lock().panicked.take().map_or(Ok(()), Err)
    }
}

impl Drop for TaskGroup<'_> {
    fn drop(&mut self) {
        self.running.wait();
    }
}

/// Counts the tasks of a group that have not ended.
#[derive(Default)]
struct Running {
    state: Mutex<RunningState>,
    ended: Condvar,
}

#[derive(Default)]
struct RunningState {
    tasks: usize,
    panicked: Option<Panicked>,
}

impl Running {
    fn wait(&self) {
        let mut state = self.lock();
        while state.tasks > 0 {
            state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, RunningState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A task that has not ended, as long as it lives.
struct TaskCount(Arc<Running>);

impl TaskCount {
    fn begin(running: &Arc<Running>) -> Self {
        running.lock().tasks += 1;
        Self(Arc::clone(running))
    }
}

impl Drop for TaskCount {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.tasks -= 1;
        if state.tasks == 0 {
            self.0.ended.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread::ThreadId;

    use super::*;

    /// Runs a task at each place, and gives the threads on which they ran.
    fn threads_of(threads: &mut WorkerThreads, places: usize) -> Vec<ThreadId> {
        let (ran, all) = mpsc::channel();
        let mut group = threads.group();
        for at in 0..places {
            let ran = ran.clone();
            let task = move || ran.send((at, thread::current().id())).expect("it is received");
            group.start(at, "worker", task).expect("a thread");
        }
        drop(ran);
        group.join().expect("no panic");
        let mut all: Vec<_> = all.iter().collect();
        all.sort_by_key(|(at, _)| *at);
        all.into_iter().map(|(_, thread)| thread).collect()
    }

    #[test]
    fn each_place_keeps_its_thread() {
        let mut threads = WorkerThreads::default();
        assert_eq!(threads_of(&mut threads, 0), []);
        let first = threads_of(&mut threads, 3);
        assert!(first[0] != first[1] && first[1] != first[2] && first[0] != first[2]);
        assert_eq!(threads_of(&mut threads, 3), first);
        assert_eq!(threads_of(&mut threads, 1), first[..1]);
        assert_eq!(threads_of(&mut threads, 4)[..3], first);
    }

    #[test]
    fn a_panic_is_an_error_of_its_group_alone() {
        let mut threads = WorkerThreads::default();
        let before = threads_of(&mut threads, 3);
        let mut group = threads.group();
        group.start(1, "worker", || panic!("the tape is torn")).expect("a thread");
        assert_eq!(group.join().expect_err("it panicked").message, "the tape is torn");
        assert_eq!(threads_of(&mut threads, 3), before);
    }

    #[test]
    fn a_group_waits_for_its_tasks_until_they_have_dropped_what_they_hold() {
        let mut threads = WorkerThreads::default();
        let held = Arc::new(());
        let (go, wait) = mpsc::channel::<()>();
        let mut group = threads.group();
        let holds = Arc::clone(&held);
        let task = move || {
            let _holds = holds;
            let _ = wait.recv();
        };
        group.start(0, "worker", task).expect("a thread");
        let lets_go = thread::spawn(move || drop(go));
        drop(group);
        assert_eq!(Arc::strong_count(&held), 1);
        lets_go.join().expect("no panic");
    }

    thread_local! {
        static LEAVES: RefCell<Option<CountsDrop>> = const { RefCell::new(None) };
    }

    struct CountsDrop(Arc<AtomicUsize>);

    impl Drop for CountsDrop {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn dropping_the_threads_ends_them() {
        let ended = Arc::new(AtomicUsize::new(0));
        let mut threads = WorkerThreads::default();
        let mut group = threads.group();
        for at in 0..4 {
            let leaves = CountsDrop(Arc::clone(&ended));
            let task = move || LEAVES.with_borrow_mut(|kept| *kept = Some(leaves));
            group.start(at, "worker", task).expect("a thread");
        }
        group.join().expect("no panic");
        assert_eq!(ended.load(Ordering::SeqCst), 0, "they wait for another statement");
        drop(threads);
        assert_eq!(ended.load(Ordering::SeqCst), 4);
    }
}
