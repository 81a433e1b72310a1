//! Server-sent events: a connection that is made again whenever it ends.

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use dataflow::error::ConnectorError;
use reqwest::StatusCode;
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};

use super::request::Request;
use crate::file::LINE_BYTES_MAX;
use crate::remote::{
    Backoff, ByteQueueSender, ByteStream, Io, TaskStreams, byte_queue, chain, queue,
};

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// The pause before connecting again, unless the server names one.
const RECONNECT: Duration = Duration::from_millis(500);

/// The longest pause that a server may name.
const RECONNECT_MAX: Duration = Duration::from_secs(60);

/// Starts the task that listens.
pub(super) fn listen(
    io: &Arc<Io>,
    request: Request,
    of_type: Option<String>,
    is_json: bool,
    waker: &Waker,
) -> TaskStreams {
    let (arrivals, queue) = queue(2, waker);
    let (sender, bytes) = byte_queue(waker);
    let place = request.place().to_owned();
    let stream = ByteStream { place: place.clone(), bytes, may_break: false };
    let task = io.spawn(async move {
        arrivals.send(Ok(Some(stream))).await;
        let mut parser = Parser::new(of_type, is_json);
        let end = events(&request, &mut parser, &sender).await;
        // Said before the stream ends: it must not be missed when the rows are read.
        arrivals.send(end.map(|()| None)).await;
    });
    TaskStreams { place, queue, _task: Some(task) }
}

async fn events(
    request: &Request,
    parser: &mut Parser,
    sender: &ByteQueueSender,
) -> Result<(), ConnectorError> {
    let mut backoff = Backoff::new(request.retry_timeout_ns());
    loop {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
        if let Ok(id) = HeaderValue::from_bytes(&parser.last_id)
            && !id.is_empty()
        {
            headers.insert(LAST_EVENT_ID, id);
        }
        let mut answer = request.get(&headers, &mut backoff).await?;
        if answer.status() == StatusCode::NO_CONTENT {
            return Ok(());
        }
        check_type(request, answer.headers())?;
        let ended = loop {
            match answer.chunk().await {
                Ok(Some(piece)) => {
                    let records = parser.push(&piece).map_err(|message| ConnectorError::Io {
                        place: request.place().to_owned(),
                        message,
                        hint: None,
                    })?;
                    if !records.is_empty() {
                        backoff.reset();
                    }
                    if !sender.send(records).await {
                        return Ok(());
                    }
                }
                Ok(None) => break "it ended".to_owned(),
                Err(error) => break chain(&error.without_url()),
            }
        };
        tracing::debug!(place = request.place(), ended, "connecting again");
        parser.disconnected();
        tokio::time::sleep(parser.reconnect).await;
    }
}

fn check_type(request: &Request, headers: &HeaderMap) -> Result<(), ConnectorError> {
    let given = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
    if given.split(';').next().is_some_and(|kind| kind.trim() == "text/event-stream") {
        return Ok(());
    }
    Err(ConnectorError::Io {
        place: request.place().to_owned(),
        message: format!("the answer is '{given}' and not a stream of events"),
        hint: Some("leave 'mode' out for an address that gives whole answers".into()),
    })
}

/// Cuts a stream of events into records, as the HTML standard says (9.2.6).
struct Parser {
    of_type: Option<String>,
    is_json: bool,
    /// The line that is being read.
    line: Vec<u8>,
    /// Whether the last byte was a carriage return: a line feed belongs to it.
    after_return: bool,
    /// Whether the first line has been read, which a mark may begin.
    begun: bool,
    data: Option<Vec<u8>>,
    event: Vec<u8>,
    id: Vec<u8>,
    /// The id of the last whole event.
    last_id: Vec<u8>,
    reconnect: Duration,
}

impl Parser {
    fn new(of_type: Option<String>, is_json: bool) -> Self {
        Self {
            of_type,
            is_json,
            line: Vec::new(),
            after_return: false,
            begun: false,
            data: None,
            event: Vec::new(),
            id: Vec::new(),
            last_id: Vec::new(),
            reconnect: RECONNECT,
        }
    }

    /// The records of the events that have ended, each with its line end.
    fn push(&mut self, bytes: &[u8]) -> Result<Bytes, String> {
        let mut records = BytesMut::new();
        for byte in bytes {
            match byte {
                b'\n' if std::mem::take(&mut self.after_return) => {}
                b'\n' | b'\r' => {
                    self.after_return = *byte == b'\r';
                    self.end_of_line(&mut records);
                }
                _ => {
                    self.after_return = false;
                    self.line.push(*byte);
                }
            }
            let held = self.line.len() + self.data.as_ref().map_or(0, Vec::len);
            if held > LINE_BYTES_MAX {
                return Err(format!("no event ends within {LINE_BYTES_MAX} bytes"));
            }
        }
        Ok(records.freeze())
    }

    /// An event that was cut off is none; the server will give it again.
    fn disconnected(&mut self) {
        self.line.clear();
        self.after_return = false;
        self.begun = false;
        self.data = None;
        self.event.clear();
        self.id.clone_from(&self.last_id);
    }

    fn end_of_line(&mut self, records: &mut BytesMut) {
        let line = std::mem::take(&mut self.line);
        let mut text = line.as_slice();
        if !std::mem::replace(&mut self.begun, true) {
            text = text.strip_prefix("\u{feff}".as_bytes()).unwrap_or(text);
        }
        if text.is_empty() {
            self.end_of_event(records);
            return;
        }
        let colon = text.iter().position(|byte| *byte == b':').unwrap_or(text.len());
        let value = text.get(colon + 1..).unwrap_or_default();
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match &text[..colon] {
            b"data" => match &mut self.data {
                // An object may go over several lines, a record may not.
                Some(data) => {
                    data.push(if self.is_json { b' ' } else { b'\n' });
                    data.extend_from_slice(value);
                }
                None => self.data = Some(value.to_vec()),
            },
            b"event" => self.event = value.to_vec(),
            b"id" if !value.contains(&0) => self.id = value.to_vec(),
            b"retry" => {
                let millis = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
                if let Some(millis) = millis {
                    self.reconnect = Duration::from_millis(millis).min(RECONNECT_MAX);
                }
            }
            // A comment, or a field of later times.
            _ => {}
        }
    }

    fn end_of_event(&mut self, records: &mut BytesMut) {
        self.last_id.clone_from(&self.id);
        let event = std::mem::take(&mut self.event);
        let Some(data) = self.data.take() else { return };
        let event = if event.is_empty() { b"message".to_vec() } else { event };
        if self.of_type.as_ref().is_none_or(|wanted| wanted.as_bytes() == event) {
            records.extend_from_slice(&data);
            records.extend_from_slice(b"\n");
        }
    }
}

/// The records of a stream of events that arrives in pieces of `piece` bytes; `None` where it is
/// refused.
pub(crate) fn events_in(bytes: &[u8], piece: usize) -> Option<Vec<u8>> {
    let mut parser = Parser::new(None, true);
    let records = bytes.chunks(piece).map(|piece| parser.push(piece).ok());
    records.collect::<Option<Vec<_>>>().map(|records| records.concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &str = "\u{feff}: hello\r\nretry: 7\r\n\r\nid: 1\ndata: {\"a\":\ndata:1}\n\n\
                          event: other\rdata: {\"a\":2}\r\rid: 3\ndata\n\ndata: cut";

    fn records(parser: &mut Parser, bytes: &[u8]) -> String {
        String::from_utf8(parser.push(bytes).unwrap().to_vec()).unwrap()
    }

    #[test]
    fn events_are_records_in_whatever_pieces_they_come() {
        let expected = "{\"a\": 1}\n{\"a\":2}\n\n";
        let mut whole = Parser::new(None, true);
        assert_eq!(records(&mut whole, STREAM.as_bytes()), expected);
        assert_eq!((whole.last_id.as_slice(), whole.reconnect.as_millis()), (&b"3"[..], 7));
        let mut bytewise = Parser::new(None, true);
        let bytes = STREAM.as_bytes().chunks(1);
        assert_eq!(bytes.map(|b| records(&mut bytewise, b)).collect::<String>(), expected);
    }

    #[test]
    fn a_type_chooses_and_others_still_move_the_id() {
        let mut parser = Parser::new(Some("other".into()), true);
        assert_eq!(records(&mut parser, STREAM.as_bytes()), "{\"a\":2}\n");
        assert_eq!(parser.last_id, b"3");
    }

    #[test]
    fn an_event_that_was_cut_off_is_not_taken() {
        let mut parser = Parser::new(None, false);
        assert_eq!(records(&mut parser, b"id: 1\ndata: x\n\nid: 2\ndata: y"), "x\n");
        parser.disconnected();
        assert_eq!(parser.last_id, b"1");
        assert_eq!(records(&mut parser, b"\n\ndata: z\n\n"), "z\n");
    }

    #[test]
    fn an_event_without_end_is_refused_at_the_bound() {
        let mut parser = Parser::new(None, true);
        let half = vec![b'x'; LINE_BYTES_MAX / 2 + 1];
        assert!(parser.push(&half).is_ok());
        assert!(parser.push(&half).unwrap_err().contains("no event ends within"));
    }
}
