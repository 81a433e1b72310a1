//! Parts that the connectors of networks share.
//!
//! ```text
//! worker thread                                  thread `millstream-io`, one for the process
//! SplitReader::next ◀─ decoder ◀─ bounded byte queue ◀─ task: connect, read, reconnect
//! ```
//!
//! A task gives *streams* of bytes, one after the other: a connection of a socket, an answer over
//! HTTP, an object. Each stream is decoded by a reader of its own, so that no record is ever put
//! together from the ends of two streams.
//!
//! Invariants: a worker never waits for a network, it answers
//! [`Next::Pending`](dataflow::source::Next::Pending), and the task wakes it; a task that is ahead
//! of its worker stops reading when [`byte_queue::PIECES_MAX`] pieces lie in the queue, and the
//! sender feels it; a task ends with the flow that started it.

mod backoff;
mod byte_queue;
mod errors;
mod flow;
mod io;
mod lines;
mod options;
mod queue;
pub(crate) mod redirects;

use std::time::Duration;

pub(crate) use backoff::Backoff;
pub(crate) use byte_queue::{ByteQueueReader, ByteQueueSender, PIECE_BYTES, byte_queue};
pub(crate) use errors::{chain, lost};
pub(crate) use flow::{ByteStream, NextStream, StreamReader, StreamSource, TaskStreams, decode};
pub(crate) use io::{Io, Task, died};
pub(crate) use lines::{Framing, lines_in};
pub(crate) use options::{
    RETRY_TIMEOUT, connection_format, line_format, retry_timeout_ns, row_encoding, stream_format,
};
pub(crate) use queue::{QueueSender, queue};

/// After so long without a byte the system asks whether the other end is still there: one that is
/// gone without a word is noticed, and what stands between keeps the connection.
pub(crate) const KEEPALIVE: Duration = Duration::from_secs(30);
