//! Connections with the servers, that are made when somebody asks.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use pool::PoolError;

use super::remote::ANSWER;
use super::{Client, Connected, locked};

/// What became of connecting with the servers.
#[derive(Debug, Default)]
pub(super) enum Contact {
    /// Nothing was asked yet.
    #[default]
    None,
    Made {
        connected: Arc<Connected>,
        /// The statement that has asked last.
        statement: u32,
    },
    /// A server was waited for in vain, by this statement.
    Unanswered { error: PoolError, statement: u32 },
}

impl Client {
    /// The connections; made anew when a server was lost. A statement waits once for a server that
    /// does not answer, however many tables it names; who asks without a statement waits each time.
    pub(super) fn connected(&self) -> Result<Arc<Connected>, PoolError> {
        let now = self.statements.load(Ordering::Relaxed);
        let mut contact = locked(&self.contact);
        let unanswered = match &mut *contact {
            Contact::None => None,
            Contact::Made { connected, statement } => {
                if connected.remotes.iter().all(|remote| remote.is_there()) {
                    *statement = now;
                    return Ok(Arc::clone(connected));
                }
                let unanswered = connected.remotes.iter().find_map(|remote| remote.unanswered());
                unanswered.filter(|_| *statement == now)
            }
            Contact::Unanswered { error, statement } => {
                Some(error.clone()).filter(|_| *statement == now)
            }
        };
        if let Some(error) = unanswered.filter(|_| now > 0) {
            return Err(error);
        }
        *contact = Contact::None;
        let begun = Instant::now();
        let new = Connected::new(&self.options).inspect_err(|error| {
            if begun.elapsed() >= ANSWER {
                *contact = Contact::Unanswered { error: error.clone(), statement: now };
            }
        })?;
        let connected = Arc::new(new);
        *contact = Contact::Made { connected: Arc::clone(&connected), statement: now };
        Ok(connected)
    }
}
