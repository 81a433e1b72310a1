//! The peers that the sources and sinks of a process still need, for whoever watches a running job.
//!
//! A worker learns that a peer is lost when it reads from it or writes to it. One that is busy with
//! rows, or has none to write, may do so much later: the process that runs it asks for them
//! meanwhile.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::error::{ConnectorError, DataflowError};
use crate::secrets;

/// A peer that can be lost while nobody reads from it or writes to it.
pub trait PeerCheck: Send + Sync {
    /// Whether it is still there, as far as that is known without waiting.
    ///
    /// # Errors
    /// The error that a read or a write would end with.
    fn check(&self) -> Result<(), ConnectorError>;

    /// The job has failed in this process, for this reason: a peer by which other processes hear of
    /// that can tell them. Called before readers and writers are dropped.
    fn failed(&self, reason: &str) {
        let _ = reason;
    }
}

/// A peer that an operator still needs: it drops this when it has read or written everything.
pub(crate) struct NeededPeer {
    peer: Arc<dyn PeerCheck>,
    /// The operator of the job.
    operator: usize,
}

/// The peers that the workers of a process still need.
#[derive(Default)]
pub struct NeededPeers(Mutex<Vec<Weak<NeededPeer>>>);

impl NeededPeers {
    /// Adds a peer until the answer is dropped.
    pub(crate) fn add(&self, peer: Arc<dyn PeerCheck>, operator: usize) -> Arc<NeededPeer> {
        let needed = Arc::new(NeededPeer { peer, operator });
        let mut peers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        peers.retain(|peer| peer.strong_count() > 0);
        peers.push(Arc::downgrade(&needed));
        needed
    }

    /// Whether all of them are there. It never waits for a peer or for who needs it.
    ///
    /// # Errors
    /// That of the first that is lost, with the operator that needs it.
    pub fn check(&self) -> Result<(), DataflowError> {
        let peers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for needed in peers.iter().filter_map(Weak::upgrade) {
            let lost = |error| DataflowError::from(error).of_operator(needed.operator);
            needed.peer.check().map_err(lost)?;
        }
        Ok(())
    }

    /// Says to all of them why the job fails in this process, without secrets. It may be called
    /// again with what follows from that.
    pub fn report_failure(&self, reason: &str) {
        let reason = secrets::masked(reason);
        let peers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let needed: Vec<_> = peers.iter().filter_map(Weak::upgrade).collect();
        drop(peers);
        needed.iter().for_each(|needed| needed.peer.failed(&reason));
    }

    /// The same, for an error that ends a worker, with its hint.
    pub(crate) fn reported(&self, error: DataflowError) -> DataflowError {
        let hint = match error.cause() {
            DataflowError::Connector(
                ConnectorError::Option { hint, .. }
                | ConnectorError::Column { hint, .. }
                | ConnectorError::Io { hint, .. },
            ) => hint.as_ref(),
            _ => None,
        };
        let hint = hint.map_or_else(String::new, |hint| format!(" ({hint})"));
        self.report_failure(&format!("{error}{hint}"));
        error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Lost(&'static str);

    impl PeerCheck for Lost {
        fn check(&self) -> Result<(), ConnectorError> {
            let (place, message) = (self.0.to_owned(), "it is gone".to_owned());
            Err(ConnectorError::Io { place, message, hint: None })
        }
    }

    #[derive(Default)]
    struct There(Mutex<Vec<String>>);

    impl PeerCheck for There {
        fn check(&self) -> Result<(), ConnectorError> {
            Ok(())
        }

        fn failed(&self, reason: &str) {
            self.0.lock().unwrap().push(reason.into());
        }
    }

    #[test]
    fn peers_that_are_needed_hear_of_failures() {
        let (peers, there) = (NeededPeers::default(), Arc::<There>::default());
        let needed = peers.add(there.clone(), 0);
        let _lost = peers.add(Arc::new(Lost("a")), 1);
        peers.report_failure("no room");
        let error = peers.reported(DataflowError::Expression("too large".into()));
        let hint = Some("make room".into());
        let full = ConnectorError::Io { place: "pool".into(), message: "no room".into(), hint };
        peers.reported(DataflowError::from(full).of_operator(0));
        drop(needed);
        peers.report_failure("later");
        let all = ["no room".to_owned(), error.to_string(), "pool: no room (make room)".to_owned()];
        assert_eq!(*there.0.lock().unwrap(), all);
    }

    #[test]
    fn peers_are_asked_for_until_nobody_needs_them() {
        let peers = NeededPeers::default();
        assert!(peers.check().is_ok(), "there is none");
        let there = peers.add(Arc::<There>::default(), 0);
        let first = peers.add(Arc::new(Lost("a")), 3);
        let second = peers.add(Arc::new(Lost("b")), 5);
        for (needed, operator, place) in [(first, 3, "a"), (second, 5, "b")] {
            let error = peers.check().unwrap_err();
            assert_eq!(error.located().and_then(|at| at.operator), Some(operator));
            assert!(error.to_string().contains(place), "{error}");
            drop(needed);
        }
        assert!(peers.check().is_ok(), "what is left is there");
        drop(there);
        assert!(peers.check().is_ok());
    }
}
