//! The one thread on which everything waits for networks.

use std::future::Future;
use std::sync::{Arc, Mutex, Weak, mpsc};

use dataflow::error::ConnectorError;
use tokio::runtime::{Builder, Handle, Runtime};

/// The runtime of the process, while somebody uses it. It knows nothing of nodes: several in one
/// process share it as they share the network.
static SHARED: Mutex<Weak<Io>> = Mutex::new(Weak::new());

/// A runtime of one thread. It ends with its last user.
#[derive(Debug)]
pub(crate) struct Io(Option<Runtime>);

impl Io {
    /// The runtime of this process, started if need be.
    ///
    /// # Errors
    /// When no thread can be started.
    pub(crate) fn shared() -> Result<Arc<Self>, ConnectorError> {
        let mut shared = SHARED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(io) = shared.upgrade() {
            return Ok(io);
        }
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("millstream-io")
            .enable_all()
            .build()
            .map_err(|error| ConnectorError::Io {
                place: "network".into(),
                message: format!("cannot start its thread: {error}"),
                hint: None,
            })?;
        let io = Arc::new(Self(Some(runtime)));
        *shared = Arc::downgrade(&io);
        Ok(io)
    }

    fn handle(&self) -> Option<&Handle> {
        self.0.as_ref().map(Runtime::handle)
    }

    /// Starts a task that ends, at its next wait, when the result is dropped.
    pub(crate) fn spawn(
        self: &Arc<Self>,
        future: impl Future<Output = ()> + Send + 'static,
    ) -> Task {
        let handle = self.handle().map(|handle| handle.spawn(future));
        Task { handle, _io: Arc::clone(self) }
    }

    /// Waits for `future`, which runs on the other thread: for what happens before rows flow, and
    /// for sinks. May be called from a thread that belongs to another runtime.
    ///
    /// # Errors
    /// The outcome of the future, or an error if it died.
    pub(crate) fn wait<T: Send + 'static>(
        &self,
        future: impl Future<Output = Result<T, ConnectorError>> + Send + 'static,
    ) -> Result<T, ConnectorError> {
        let (done, result) = mpsc::sync_channel(1);
        if let Some(handle) = self.handle() {
            handle.spawn(async move {
                // Nobody is left to tell only if the waiting thread is gone.
                let _ = done.send(future.await);
            });
        }
        result.recv().unwrap_or_else(|_| Err(died("network")))
    }
}

impl Drop for Io {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            // Not to wait: the last user may be on a thread that must not block.
            runtime.shutdown_background();
        }
    }
}

/// A task that was started; dropping it ends the task.
#[derive(Debug)]
pub(crate) struct Task {
    handle: Option<tokio::task::JoinHandle<()>>,
    _io: Arc<Io>,
}

impl Drop for Task {
    fn drop(&mut self) {
        if let Some(handle) = &self.handle {
            handle.abort();
        }
    }
}

/// A task ended without saying how: a bug, which must not look like the end of the input.
pub(crate) fn died(place: &str) -> ConnectorError {
    ConnectorError::Io {
        place: place.to_owned(),
        message: "the task that reads it ended unexpectedly".into(),
        hint: Some("the log has more: MILLSTREAM_LOG=debug".into()),
    }
}
