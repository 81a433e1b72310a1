//! Polling: answer after answer.

use std::sync::Arc;
use std::task::Waker;

use bytes::Bytes;
use dataflow::error::ConnectorError;
use dataflow::source::ReaderContext;
use fabric::Clock;
use reqwest::header::{
    ETAG, HeaderMap, HeaderName, HeaderValue, IF_MODIFIED_SINCE, IF_NONE_MATCH, LAST_MODIFIED,
};
use reqwest::{Response, StatusCode};
use tokio::sync::mpsc::{Receiver, error::TryRecvError};

use super::array::ArrayLines;
use super::request::Request;
use crate::format::{Format, Refuser};
use crate::remote::{
    Backoff, ByteQueueSender, ByteStream, Framing, Io, NextStream, QueueSender, StreamSource, Task,
    byte_queue, died, queue,
};

/// Bytes of an answer that are looked at to find out its columns.
const SAMPLE_BYTES: usize = 1 << 20;

/// The answers of one address. The task of a poll lives until its answer is read; the time of the
/// next is asked of the worker's clock.
pub(super) struct Polls {
    io: Arc<Io>,
    request: Request,
    interval_ns: Option<u64>,
    format: Format,
    refuser: Refuser,
    clock: Arc<dyn Clock>,
    waker: Waker,
    /// The validators of the last whole answer.
    known: HeaderMap,
    poll: Option<Poll>,
    next_ns: u64,
}

/// A poll under way.
struct Poll {
    events: Receiver<Result<PollEvent, ConnectorError>>,
    _task: Task,
}

/// The events of a poll, in this order.
enum PollEvent {
    Stream(ByteStream),
    /// It has been read; these are its validators for the next poll.
    Done(HeaderMap),
}

impl Polls {
    pub(super) fn new(
        io: Arc<Io>,
        request: Request,
        interval_ns: Option<u64>,
        format: Format,
        refuser: Refuser,
        context: &ReaderContext,
    ) -> Self {
        let next_ns = context.clock.now_ns();
        Self {
            io,
            request,
            interval_ns,
            format,
            refuser,
            clock: Arc::clone(&context.clock),
            waker: context.waker.clone(),
            known: HeaderMap::new(),
            poll: None,
            next_ns,
        }
    }

    fn begin(&mut self) {
        let (sender, events) = queue(1, &self.waker);
        let poll = Answer {
            request: self.request.clone(),
            known: self.known.clone(),
            format: self.format.clone(),
            once: self.interval_ns.is_none(),
            refuser: self.refuser.clone(),
        };
        let task = self.io.spawn(async move {
            let end = poll.ask(&sender).await;
            sender.send(end.map(PollEvent::Done)).await;
        });
        self.poll = Some(Poll { events, _task: task });
    }
}

impl StreamSource for Polls {
    fn next(&mut self) -> Result<NextStream, ConnectorError> {
        loop {
            if let Some(poll) = &mut self.poll {
                match poll.events.try_recv() {
                    Ok(Ok(PollEvent::Stream(stream))) => return Ok(NextStream::Stream(stream)),
                    Ok(Ok(PollEvent::Done(known))) => {
                        self.known = known;
                        self.poll = None;
                    }
                    Ok(Err(error)) => return Err(error),
                    Err(TryRecvError::Empty) => return Ok(NextStream::Pending),
                    Err(TryRecvError::Disconnected) => return Err(died(self.request.place())),
                }
                if self.interval_ns.is_none() {
                    return Ok(NextStream::End);
                }
            }
            let now = self.clock.now_ns();
            if now < self.next_ns {
                return Ok(NextStream::Wait { until_ns: self.next_ns });
            }
            // A poll that took longer than the interval is not made up for.
            self.next_ns = now + self.interval_ns.unwrap_or(0);
            self.begin();
        }
    }
}

/// One poll.
struct Answer {
    request: Request,
    known: HeaderMap,
    format: Format,
    /// Whether nobody will ask again: then the rest must not be missed.
    once: bool,
    /// Takes a record that was cut off.
    refuser: Refuser,
}

impl Answer {
    async fn ask(
        self,
        events: &QueueSender<Result<PollEvent, ConnectorError>>,
    ) -> Result<HeaderMap, ConnectorError> {
        let mut backoff = Backoff::new(self.request.retry_timeout_ns());
        let answer = self.request.get(&self.known, &mut backoff).await?;
        if answer.status() == StatusCode::NOT_MODIFIED {
            return Ok(self.known);
        }
        let known = validators(answer.headers());
        let (sender, bytes) = byte_queue(events.waker());
        let stream =
            ByteStream { place: self.request.place().to_owned(), bytes, may_break: !self.once };
        if !events.send(Ok(PollEvent::Stream(stream))).await {
            return Ok(known);
        }
        let mut body = Body::new(&self.format);
        match body.pass_on(answer, &sender).await {
            Ok(()) if body.array.is_some_and(|array| array.is_open()) => {
                let place = self.request.place().to_owned();
                self.refuser.refuse(place, "the array does not end".to_owned(), b"")?;
                Ok(known)
            }
            Ok(()) => Ok(known),
            Err(error) => {
                let error = self.request.broken(error);
                if self.once {
                    // Or the decoder would take this for the end of a whole answer.
                    if !self.format.is_of_lines() {
                        sender.fail(error.clone()).await;
                    }
                    return Err(error);
                }
                tracing::warn!(%error, "the next poll will ask for the whole again");
                if let Some((line, text)) = body.pieces.take_rest() {
                    let place = format!("{}:{line}", self.request.place());
                    let reason = "the connection was lost within the record".to_owned();
                    self.refuser.refuse(place, reason, text.trim_ascii())?;
                    events.wake();
                }
                Ok(HeaderMap::new())
            }
        }
    }
}

/// The body of an answer on its way to the decoder.
struct Body {
    array: Option<ArrayLines>,
    pieces: Framing,
}

impl Body {
    fn new(format: &Format) -> Self {
        let is_json = matches!(format, Format::Json);
        Self { array: is_json.then(ArrayLines::default), pieces: Framing::of(format) }
    }

    /// Passes on whole lines, and what is left at the end; bytes that are no lines as they come.
    async fn pass_on(
        &mut self,
        mut answer: Response,
        sender: &ByteQueueSender,
    ) -> Result<(), reqwest::Error> {
        while let Some(piece) = answer.chunk().await? {
            let whole = match &mut self.array {
                Some(array) => self.pieces.push(&array.push(&piece)),
                None => self.pieces.push(&piece),
            };
            if !sender.send(whole).await {
                return Ok(());
            }
        }
        if let Some((_, line)) = self.pieces.take_rest() {
            sender.send(line).await;
        }
        Ok(())
    }
}

/// By what an answer is known again.
fn validators(headers: &HeaderMap) -> HeaderMap {
    let mut known = HeaderMap::new();
    let mut keep = |given: HeaderName, asked: HeaderName| {
        if let Some(value) = headers.get(given) {
            known.insert(asked, HeaderValue::clone(value));
        }
    };
    keep(ETAG, IF_NONE_MATCH);
    keep(LAST_MODIFIED, IF_MODIFIED_SINCE);
    known
}

/// The beginning of an answer, in whole lines if it has some.
pub(super) async fn sample(request: &Request, format: &Format) -> Result<Bytes, ConnectorError> {
    let mut backoff = Backoff::new(request.retry_timeout_ns());
    let mut answer = request.get(&HeaderMap::new(), &mut backoff).await?;
    let (mut sample, mut array) = (Vec::new(), ArrayLines::default());
    while sample.len() < SAMPLE_BYTES {
        let piece = answer.chunk().await.map_err(|error| request.broken(error))?;
        let Some(piece) = piece else { return Ok(sample.into()) };
        if let Format::Json = format {
            sample.extend(array.push(&piece));
        } else {
            sample.extend_from_slice(&piece);
        }
    }
    if !format.is_of_lines() {
        return Ok(sample.into());
    }
    // The last line may be cut.
    let end = sample.iter().rposition(|byte| *byte == b'\n').map_or(sample.len(), |at| at + 1);
    sample.truncate(end);
    Ok(sample.into())
}
