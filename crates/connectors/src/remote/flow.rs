//! Streams of bytes as one flow of rows.

use dataflow::error::ConnectorError;
use dataflow::source::{Next, Position, Split, SplitReader};
use tokio::sync::mpsc::{Receiver, error::TryRecvError};

use super::byte_queue::ByteQueueReader;
use super::io::{Task, died};
use crate::format::{ByteInput, Decoded, Format, RecordDecoder, Refuser};

/// Bytes with the name of where they come from, for messages.
pub(crate) struct ByteStream {
    pub(crate) place: String,
    pub(crate) bytes: ByteQueueReader,
    /// Whether a record that is cut off at the end is a bad one. Else it is an error, where the
    /// format has an end of its own.
    pub(crate) may_break: bool,
}

/// Makes a reader of the rows of one stream.
pub(crate) type Decode = Box<dyn Fn(ByteStream) -> Box<dyn RecordDecoder> + Send>;

/// Reads every stream in the same format.
pub(crate) fn decode(format: Format, refuser: Refuser) -> Decode {
    Box::new(move |stream| {
        let input = ByteInput::new(Box::new(stream.bytes), stream.place);
        let input = if stream.may_break { input.of_connection() } else { input };
        format.decoder(input, refuser.clone())
    })
}

/// The outcome of asking for the next stream.
pub(crate) enum NextStream {
    /// A stream: what came before it has ended.
    Stream(ByteStream),
    /// Nothing before this time.
    Wait { until_ns: u64 },
    /// Nothing until the worker is woken.
    Pending,
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
            Err(TryRecvError::Empty) => Ok(NextStream::Pending),
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
}

impl<S: StreamSource> StreamReader<S> {
    pub(crate) fn new(split: &Split, streams: S, decode: Decode) -> Self {
        Self { split: split.name.clone(), streams, decode, current: None }
    }
}

impl<S: StreamSource> SplitReader for StreamReader<S> {
    fn next(&mut self, rows_max: usize) -> Result<Next, ConnectorError> {
        loop {
            if let Some(decoder) = &mut self.current {
                match decoder.decode(rows_max)? {
                    Decoded::Batch(batch) => return Ok(Next::Batch(batch)),
                    Decoded::Later => return Ok(Next::Pending),
                    Decoded::End => self.current = None,
                }
            }
            match self.streams.next()? {
                NextStream::Stream(stream) => self.current = Some((self.decode)(stream)),
                NextStream::Wait { until_ns } => return Ok(Next::Wait { until_ns }),
                NextStream::Pending => return Ok(Next::Pending),
                NextStream::End => return Ok(Next::End),
            }
        }
    }

    fn position(&self) -> Position {
        Position::none(&self.split)
    }
}
