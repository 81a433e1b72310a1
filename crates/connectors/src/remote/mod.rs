//! What the connectors share that read and write over a network.
//!
//! ```text
//! worker thread                                  thread `millstream-io`, one for the process
//! SplitReader::next ◀─ decoder ◀─ Feed ◀─ bounded queue ◀─ task: connect, read, reconnect
//! ```
//!
//! A task gives *streams* of bytes, one after the other: a connection of a socket, an answer over
//! HTTP, an object. Each stream is decoded by a reader of its own, so that no record is ever put
//! together from the ends of two streams.
//!
//! Invariants: a worker never waits for a network, it answers
//! [`Next::Wait`](dataflow::source::Next::Wait); a task that is ahead of its worker stops reading
//! when [`feed::PIECES_MAX`] pieces lie in the queue, and the sender feels it; a task ends with
//! the flow that started it.

mod backoff;
mod errors;
mod feed;
mod flow;
mod io;
mod lines;
mod options;
pub(crate) mod redirects;

use std::time::Duration;

pub(crate) use backoff::Backoff;
pub(crate) use errors::{chain, lost};
pub(crate) use feed::{Feed, FeedSender, PIECE_BYTES, feed};
pub(crate) use flow::{Arrival, Nap, Stream, StreamReader, Streams, TaskStreams, decode};
pub(crate) use io::{Io, Task, died};
pub(crate) use lines::{WholeLines, lines_in};
pub(crate) use options::{PATIENCE, line_format, patience_ns, stream_format, text_format};

/// After so long without a byte the system asks whether the other end is still there: one that is
/// gone without a word is noticed, and what stands between keeps the connection.
pub(crate) const KEEPALIVE: Duration = Duration::from_secs(30);
