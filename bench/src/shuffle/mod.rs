//! Integers through two shuffles (Q10): the rings that carry our exchanges, against a plain
//! middleware over sockets (`millstream bench shuffle`).
//!
//! ```text
//!   integers n ─▶ shuffle 0 ─▶ n becomes 3n/2 ─▶ shuffle 1 ─▶ count, sum
//! ```
//!
//! Every process is one worker and runs the same plan; what differs is what carries the integers.
//! [`rings`] has one ring each way for each pair of workers, shared by both shuffles (Q1), into
//! which one worker writes and from which the other reads in place; [`sockets`] has a socket for
//! each pair, whose bytes the system copies. Integers gather up to a threshold (Q5); workers look
//! at what came before they make more (Q7), and sleep only when there is nothing else to do.
//!
//! The paper's middleware over sockets has no threshold: a row that is for another worker is
//! written to the socket at once, as its section 2.1 says. That is the baseline, sockets with a
//! threshold of one integer; sockets with the thresholds of the rings stand beside it. Where a
//! socket takes no more, what waits for it goes in one write, in both.
//!
//! A row is an integer, or has more words beside it: rows of 64 and 256 bytes go by the usual
//! threshold over all carriers, for a ratio of like with like.
//!
//! Count and sum are checked: there is no figure of a wrong run.

mod rings;
mod sockets;
mod sweep;
mod worker;

use std::sync::Arc;
use std::time::{Duration, Instant};

use fabric::Fabric;
use thiserror::Error;

pub use sweep::Sweep;
pub use worker::{ShuffleCounts, ShufflePlan};

/// The contribution of every process, by rank: an exchange of the control plane. The word names the
/// step.
pub type Gather<'a> = dyn Fn(&str, Vec<u8>) -> Result<Vec<Vec<u8>>, String> + 'a;

/// The transport of integers between workers.
#[derive(Clone)]
pub enum Carrier {
    /// Rings over a transport.
    Rings(Arc<dyn Fabric>),
    /// Sockets without any transport of ours.
    Sockets,
}

/// Why there is no figure.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ShuffleError {
    /// A ring could not be made or broke.
    #[error(transparent)]
    Link(#[from] channel::LinkError),
    /// A socket could not be made or broke.
    #[error("a socket of the middleware: {0}")]
    Socket(#[from] std::io::Error),
    /// Another process failed.
    #[error("{0}")]
    Control(String),
    /// The rows that arrived are not those that were sent: our bug.
    #[error("{got} rows of sum {got_sum} arrived, not {right} of sum {right_sum}")]
    Wrong {
        /// Rows that arrived.
        got: u64,
        /// The sum of their words, modulo 2⁶⁴.
        got_sum: u64,
        /// Rows that there are.
        right: u64,
        /// Their sum.
        right_sum: u64,
    },
}

/// Runs the plan once with all processes and checks the result against [`ShufflePlan::right`];
/// returns the time from when all had begun until all had ended, and what all workers together did.
///
/// # Errors
/// When a process or a connection fails, and for a wrong result.
pub fn run(
    carrier: &Carrier,
    size: &ShufflePlan,
    right: (u64, u64),
    gather: &Gather<'_>,
) -> Result<(Duration, ShuffleCounts), ShuffleError> {
    let barrier = |step: &str| gather(step, Vec::new()).map_err(ShuffleError::Control);
    let (elapsed, outcome) = match carrier {
        Carrier::Rings(fabric) => {
            let mut means = rings::Rings::join(&**fabric, size, gather)?;
            barrier("begin")?;
            timed(|| worker::work(&mut means, size), || barrier("end"))?
        }
        Carrier::Sockets => {
            let mut means = sockets::Sockets::join(size, gather)?;
            barrier("begin")?;
            timed(|| worker::work(&mut means, size), || barrier("end"))?
        }
    };
    let all = gather("outcomes", outcome.encode()).map_err(ShuffleError::Control)?;
    let mut total = ShuffleCounts::default();
    all.iter().filter_map(|bytes| ShuffleCounts::decode(bytes)).for_each(|one| total.add(&one));
    if (total.rows, total.sum) != right {
        return Err(ShuffleError::Wrong {
            got: total.rows,
            got_sum: total.sum,
            right: right.0,
            right_sum: right.1,
        });
    }
    Ok((elapsed, total))
}

fn timed<T, U>(
    work: impl FnOnce() -> Result<T, ShuffleError>,
    end: impl FnOnce() -> Result<U, ShuffleError>,
) -> Result<(Duration, T), ShuffleError> {
    let start = Instant::now();
    let done = work()?;
    end()?;
    Ok((start.elapsed(), done))
}

#[cfg(test)]
mod tests;
