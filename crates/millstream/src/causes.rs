//! Which of the errors of a job is the cause of the others.

use cluster::ClusterError;
use dataflow::error::DataflowError;

use crate::error::Error;

/// Of the errors of a node's workers the one that explains the others, whichever came first.
pub(crate) fn worst(errors: impl Iterator<Item = Error>) -> Error {
    errors.min_by_key(remoteness).unwrap_or(Error::Cluster(ClusterError::Closed))
}

/// How far an error is from its cause: a connection that broke is the consequence of something
/// else, and a link that could not be reconnected says more of it than one that has only ended, as
/// those within a process do when a worker ends.
fn remoteness(error: &Error) -> u32 {
    match error.cause() {
        Error::Dataflow(DataflowError::NotReconnected { .. }) => 1,
        error if is_link(error) => 2,
        _ => 0,
    }
}

/// Whether a connection with another worker has failed.
pub(crate) fn is_link(error: &Error) -> bool {
    use DataflowError::{Link, NotReconnected};
    let of_worker = matches!(error, Error::Dataflow(Link { .. } | NotReconnected { .. }));
    of_worker || matches!(error, Error::Link(_) | Error::Fabric(_))
}

#[cfg(test)]
mod tests {
    use channel::LinkError;

    use super::*;

    #[test]
    fn of_several_errors_the_cause_is_reported_whichever_comes_first() {
        let link = || DataflowError::Link { worker: 3, source: LinkError::Closed };
        let not_reconnected = || {
            let reason = "no device".into();
            DataflowError::NotReconnected { worker: 1, source: LinkError::Closed, reason }
        };
        let own = || DataflowError::Expression("too large".into());
        let worst_of =
            |order: Vec<DataflowError>| worst(order.into_iter().map(Error::from)).to_string();
        for order in [vec![link(), not_reconnected()], vec![not_reconnected(), link()]] {
            assert_eq!(worst_of(order), Error::from(not_reconnected()).to_string());
        }
        for order in [vec![not_reconnected(), own(), link()], vec![own(), not_reconnected()]] {
            assert_eq!(worst_of(order), Error::from(own()).to_string());
        }
    }
}
