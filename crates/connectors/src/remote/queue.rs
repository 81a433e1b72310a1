//! A bounded queue from a task or thread to the reader of a split, which wakes the reader's worker.

use std::task::Waker;

use tokio::sync::mpsc::{Receiver, Sender, channel};

/// The two ends of a queue with room for `length` items; `waker` is that of the reader's context.
pub(crate) fn queue<T>(length: usize, waker: &Waker) -> (QueueSender<T>, Receiver<T>) {
    let (items, receiver) = channel(length);
    (QueueSender { items, worker: WakeAtEnd(waker.clone()) }, receiver)
}

/// The sender's end. Dropping it ends the queue.
pub(crate) struct QueueSender<T> {
    items: Sender<T>,
    /// Dropped behind `items`: the worker finds the queue ended.
    worker: WakeAtEnd,
}

impl<T> QueueSender<T> {
    /// Waits for room, then sends an item; false when nobody reads any more.
    pub(crate) async fn send(&self, item: T) -> bool {
        let is_sent = self.items.send(item).await.is_ok();
        self.wake();
        is_sent
    }

    /// As [`send`](Self::send), for a thread that may block.
    pub(crate) fn send_blocking(&self, item: T) -> bool {
        let is_sent = self.items.blocking_send(item).is_ok();
        self.wake();
        is_sent
    }

    /// Wakes the worker, for something that does not go through the queue.
    pub(crate) fn wake(&self) {
        self.waker().wake_by_ref();
    }

    /// Wakes the worker.
    pub(crate) fn waker(&self) -> &Waker {
        &self.worker.0
    }
}

struct WakeAtEnd(Waker);

impl Drop for WakeAtEnd {
    fn drop(&mut self) {
        self.0.wake_by_ref();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use tokio::sync::mpsc::error::TryRecvError;

    use super::*;

    #[derive(Default)]
    struct Calls(AtomicUsize);

    impl Wake for Calls {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn each_item_and_the_end_wake_the_worker() {
        let calls = Arc::new(Calls::default());
        let (sender, mut receiver) = queue(2, &calls.clone().into());
        let called = || calls.0.load(Ordering::SeqCst);
        assert_eq!((receiver.try_recv(), called()), (Err(TryRecvError::Empty), 0));
        assert!(sender.send_blocking(7) && sender.send_blocking(8));
        assert_eq!((receiver.try_recv(), receiver.try_recv(), called()), (Ok(7), Ok(8), 2));
        drop(sender);
        assert_eq!((receiver.try_recv(), called()), (Err(TryRecvError::Disconnected), 3));
    }
}
