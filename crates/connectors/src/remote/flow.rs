//! Streams of bytes as one flow of rows.

use std::sync::Arc;

use dataflow::error::ConnectorError;
use dataflow::source::{Next, Position, ReaderContext, Split, SplitReader};
use fabric::Clock;
use tokio::sync::mpsc::{Receiver, error::TryRecvError};

use super::byte_queue::ByteQueueReader;
use super::io::{Task, died};
use crate::format::{ByteInput, Decoded, Format, RecordDecoder, Refuser};

/// The shortest and the longest time after which a flow without rows is asked again. The longest
/// bounds how late a row is seen that comes after a silence.
const NAP_NS: (u64, u64) = (500_000, 10_000_000);

/// Bytes with the name of where they come from, for messages.
pub(crate) struct ByteStream {
    pub(crate) place: String,
    pub(crate) bytes: ByteQueueReader,
}

/// Makes a reader of the rows of one stream.
pub(crate) type Decode = Box<dyn Fn(ByteStream) -> Box<dyn RecordDecoder> + Send>;

/// Reads every stream in the same format.
pub(crate) fn decode(format: Format, refuser: Refuser) -> Decode {
    Box::new(move |stream| {
        let input = ByteInput::new(Box::new(stream.bytes), stream.place);
        format.decoder(input, refuser.clone())
    })
}

/// The outcome of asking for the next stream.
pub(crate) enum NextStream {
    /// A stream: what came before it has ended.
    Stream(ByteStream),
    /// Nothing before this time.
    Wait { until_ns: u64 },
    /// Nothing, until it is asked again.
    Nothing,
    /// No more streams.
    End,
}

/// Where streams come from. Asked only when the last one has been read to its end.
pub(crate) trait StreamSource: Send {
    /// The next stream. Does not block.
    fn next(&mut self) -> Result<NextStream, ConnectorError>;
}

/// Streams that a task sends: it says `None` when there are no more.
pub(crate) struct TaskStreams {
    pub(crate) place: String,
    pub(crate) queue: Receiver<Result<Option<ByteStream>, ConnectorError>>,
    pub(crate) _task: Option<Task>,
}

impl StreamSource for TaskStreams {
    fn next(&mut self) -> Result<NextStream, ConnectorError> {
        match self.queue.try_recv() {
            Ok(Ok(Some(stream))) => Ok(NextStream::Stream(stream)),
            Ok(Ok(None)) => Ok(NextStream::End),
            Ok(Err(error)) => Err(error),
            Err(TryRecvError::Empty) => Ok(NextStream::Nothing),
            Err(TryRecvError::Disconnected) => Err(died(&self.place)),
        }
    }
}

/// Reads streams, one after the other.
pub(crate) struct StreamReader<S> {
    split: String,
    streams: S,
    decode: Decode,
    current: Option<Box<dyn RecordDecoder>>,
    nap: Nap,
}

impl<S: StreamSource> StreamReader<S> {
    pub(crate) fn new(split: &Split, streams: S, decode: Decode, context: &ReaderContext) -> Self {
        let nap = Nap::new(Arc::clone(&context.clock));
        Self { split: split.name.clone(), streams, decode, current: None, nap }
    }
}

impl<S: StreamSource> SplitReader for StreamReader<S> {
    fn next(&mut self, rows_max: usize) -> Result<Next, ConnectorError> {
        loop {
            if let Some(decoder) = &mut self.current {
                match decoder.decode(rows_max)? {
                    Decoded::Batch(batch) => {
                        self.nap.reset();
                        return Ok(Next::Batch(batch));
                    }
                    Decoded::Later => return Ok(self.nap.wait()),
                    Decoded::End => self.current = None,
                }
            }
            match self.streams.next()? {
                NextStream::Stream(stream) => self.current = Some((self.decode)(stream)),
                NextStream::Wait { until_ns } => return Ok(Next::Wait { until_ns }),
                NextStream::Nothing => return Ok(self.nap.wait()),
                NextStream::End => return Ok(Next::End),
            }
        }
    }

    fn position(&self) -> Position {
        Position::none(&self.split)
    }
}

/// How long a flow without rows lets the worker sleep: longer with each time in a row.
pub(crate) struct Nap {
    clock: Arc<dyn Clock>,
    nap_ns: u64,
}

impl Nap {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, nap_ns: NAP_NS.0 }
    }

    /// Rows came.
    pub(crate) fn reset(&mut self) {
        self.nap_ns = NAP_NS.0;
    }

    /// No rows came.
    pub(crate) fn wait(&mut self) -> Next {
        let until_ns = self.clock.now_ns() + self.nap_ns;
        self.nap_ns = (self.nap_ns * 2).min(NAP_NS.1);
        Next::Wait { until_ns }
    }
}
