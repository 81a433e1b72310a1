//! The thread of a server.

use std::net::SocketAddr;

use tokio::runtime::{Builder, Runtime};

/// A server's thread. Dropping it ends the server.
pub struct Serving {
    pub address: SocketAddr,
    runtime: Option<Runtime>,
}

impl Serving {
    /// Starts `serve` on a listener at a free port.
    pub fn start<F: Future<Output = ()> + Send + 'static>(
        serve: impl FnOnce(tokio::net::TcpListener) -> F,
    ) -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        runtime.spawn(serve(listener));
        Self { address, runtime: Some(runtime) }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
