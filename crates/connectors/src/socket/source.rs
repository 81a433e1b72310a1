//! Reading: a task for each address.

use std::io::ErrorKind;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use bytes::Bytes;
use dataflow::error::ConnectorError;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::format::{Format, Refuser};
use crate::remote::{
    Backoff, ByteQueueSender, ByteStream, Framing, Io, PIECE_BYTES, QueueSender, TaskStreams,
    byte_queue, queue,
};

/// How long one attempt to connect may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How a connection ended.
enum End {
    /// The peer has closed it: there is no more.
    Closed,
    /// It broke.
    Lost,
    /// Nobody reads the rows any more.
    Unread,
}

/// Starts the task that reads `address`.
pub(super) fn connect(
    io: &Arc<Io>,
    address: String,
    retry_timeout_ns: u64,
    records: (Format, Refuser),
    waker: &Waker,
) -> TaskStreams {
    let (arrivals, queue) = queue(1, waker);
    let place = address.clone();
    let task = io.spawn(async move {
        let end = read(&address, retry_timeout_ns, &records, &arrivals).await;
        arrivals.send(end.map(|()| None)).await;
    });
    TaskStreams { place, queue, _task: Some(task) }
}

/// Connection after connection, until the peer closes one.
async fn read(
    address: &str,
    retry_timeout_ns: u64,
    (format, refuser): &(Format, Refuser),
    arrivals: &QueueSender<Result<Option<ByteStream>, ConnectorError>>,
) -> Result<(), ConnectorError> {
    let mut backoff = Backoff::new(retry_timeout_ns);
    loop {
        let socket = open(address, &mut backoff).await?;
        let (sender, bytes) = byte_queue(arrivals.waker());
        let stream = ByteStream { place: address.to_owned(), bytes, may_break: true };
        if !arrivals.send(Ok(Some(stream))).await {
            return Ok(());
        }
        let mut pieces = Framing::of(format);
        let end = receive(&socket, &sender, &mut pieces, &mut backoff).await;
        let rest = pieces.take_rest();
        match (end, rest) {
            (End::Unread, _) => return Ok(()),
            (End::Closed, rest) => {
                if let Some((_, line)) = rest {
                    sender.send(line).await;
                }
                return Ok(());
            }
            (End::Lost, Some((number, line))) => {
                let reason = "the connection was lost within the record".to_owned();
                refuser.refuse(format!("{address}:{number}"), reason, line.trim_ascii())?;
                arrivals.wake();
            }
            (End::Lost, None) => {}
        }
        tracing::warn!(address, "the connection was lost: connecting again");
        // A peer that accepts and hangs up at once must not be asked without end.
        if !backoff.again().await {
            return Err(unreachable(address, "the peer hangs up at once"));
        }
    }
}

async fn open(address: &str, backoff: &mut Backoff) -> Result<TcpStream, ConnectorError> {
    loop {
        let reason = match timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await {
            Ok(Ok(socket)) => return Ok(socket),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {} s", CONNECT_TIMEOUT.as_secs()),
        };
        tracing::debug!(address, reason, "cannot connect");
        if !backoff.again().await {
            return Err(unreachable(address, &reason));
        }
    }
}

async fn receive(
    socket: &TcpStream,
    sender: &ByteQueueSender,
    pieces: &mut Framing,
    backoff: &mut Backoff,
) -> End {
    let mut buffer = vec![0; PIECE_BYTES];
    loop {
        if socket.readable().await.is_err() {
            return End::Lost;
        }
        match socket.try_read(&mut buffer) {
            Ok(0) => return End::Closed,
            Ok(bytes) => {
                backoff.reset();
                let whole: Bytes = pieces.push(&buffer[..bytes]);
                if !sender.send(whole).await {
                    return End::Unread;
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => {
                tracing::debug!(%error, "a socket broke");
                return End::Lost;
            }
        }
    }
}

/// Nobody listens at `address`.
pub(super) fn unreachable(address: &str, reason: &str) -> ConnectorError {
    ConnectorError::Io {
        place: address.to_owned(),
        message: format!("cannot connect: {reason}"),
        hint: Some(
            "something must listen there, such as `nc -lk 9000`; 'retry.timeout' is how \
                    long to try"
                .into(),
        ),
    }
}
