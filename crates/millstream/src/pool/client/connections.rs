//! Connections with the servers, that are made when somebody asks.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use pool::PoolError;

use super::remote::ANSWER;
use super::{Client, Connected, locked};

/// The state of the connections with the servers.
#[derive(Debug, Default)]
pub(super) enum ConnectionState {
    /// There are none.
    #[default]
    NotConnected,
    Connected {
        connected: Arc<Connected>,
        /// The statement that has asked last.
        statement: u32,
    },
    /// A server has not answered in time, when this statement asked.
    TimedOut { error: PoolError, statement: u32 },
}

impl Client {
    /// The connections; made anew when a server was lost. A statement waits once for a server that
    /// does not answer, however many tables it names; who asks without a statement waits each time.
    pub(super) fn connected(&self) -> Result<Arc<Connected>, PoolError> {
        let now = self.statements.load(Ordering::Relaxed);
        let mut state = locked(&self.connections);
        let timed_out = match &mut *state {
            ConnectionState::NotConnected => None,
            ConnectionState::Connected { connected, statement } => {
                if connected.remotes.iter().all(|remote| remote.is_there()) {
                    *statement = now;
                    return Ok(Arc::clone(connected));
                }
                let timed_out = connected.remotes.iter().find_map(|remote| remote.timed_out());
                timed_out.filter(|_| *statement == now)
            }
            ConnectionState::TimedOut { error, statement } => {
                Some(error.clone()).filter(|_| *statement == now)
            }
        };
        if let Some(error) = timed_out.filter(|_| now > 0) {
            return Err(error);
        }
        *state = ConnectionState::NotConnected;
        let begun = Instant::now();
        let new = Connected::new(&self.options).inspect_err(|error| {
            if begun.elapsed() >= ANSWER {
                *state = ConnectionState::TimedOut { error: error.clone(), statement: now };
            }
        })?;
        let connected = Arc::new(new);
        *state = ConnectionState::Connected { connected: Arc::clone(&connected), statement: now };
        Ok(connected)
    }
}
