//! Writing: a thread of the sink's own waits for the peer.

use std::io::Write;
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use arrow::record_batch::RecordBatch;
use dataflow::connector::TableDef;
use dataflow::error::ConnectorError;
use dataflow::sink::{Placement, Room, Sink, SinkVisibility, SinkWriter, WriterContext};

use super::Settings;
use super::encoding::{SentFormat, SentRows};
use super::source::unreachable;
use crate::options::refuse;
use crate::queued::QueuedWriter;

/// Bytes that are held back before they are written without waiting for a flush.
const STREAM_BYTES_MAX: usize = 64 << 10;

/// How long a peer may leave its end unread before the query fails.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// Between two attempts to connect.
const RETRY: Duration = Duration::from_millis(100);

pub(super) struct SocketSink {
    address: String,
    retry_timeout: Duration,
    format: SentFormat,
}

impl SocketSink {
    pub(super) fn new(settings: Settings, table: &TableDef) -> Result<Self, ConnectorError> {
        let [address] = <[String; 1]>::try_from(settings.addresses).map_err(|addresses| {
            let message = format!("{} addresses; a sink writes to one", addresses.len());
            refuse("address", message, Some("write one INSERT for each".into()))
        })?;
        let retry_timeout = Duration::from_nanos(settings.retry_timeout_ns);
        let format = SentFormat::new(table, &settings.format)?;
        Ok(Self { address, retry_timeout, format })
    }

    fn connect(&self) -> Result<TcpStream, ConnectorError> {
        let ends = Instant::now() + self.retry_timeout;
        loop {
            let connected = self.address.to_socket_addrs().and_then(|mut found| {
                let missing = || std::io::Error::other("the name has no address");
                TcpStream::connect_timeout(&found.next().ok_or_else(missing)?, WRITE_TIMEOUT)
            });
            match connected {
                Ok(socket) => return Ok(socket),
                Err(error) if Instant::now() >= ends => {
                    return Err(unreachable(&self.address, &error.to_string()));
                }
                Err(_) => std::thread::sleep(RETRY),
            }
        }
    }
}

impl Sink for SocketSink {
    fn placement(&self) -> Placement {
        Placement::Gather
    }

    fn staging(&self) -> SinkVisibility {
        SinkVisibility::AsTheyCome
    }

    fn open(&self, context: &WriterContext) -> Result<Box<dyn SinkWriter>, ConnectorError> {
        let socket = self.connect()?;
        let place = self.address.clone();
        let prepared =
            socket.set_nodelay(true).and_then(|()| socket.set_write_timeout(Some(WRITE_TIMEOUT)));
        prepared.map_err(|error| broken(&place, &error))?;
        let mut pending = vec![];
        let rows = self.format.begin(&place, &mut pending);
        let rows = rows.map_err(|error| unfit(&place, &error))?;
        let (mut to, of) =
            (socket.try_clone().map_err(|error| broken(&place, &error))?, place.clone());
        let write = move |bytes: &[u8]| to.write_all(bytes).map_err(|error| broken(&of, &error));
        let queued = Some(QueuedWriter::start(&place, &context.waker, write)?);
        Ok(Box::new(SocketWriter { place, socket, queued, rows, pending }))
    }
}

struct SocketWriter {
    place: String,
    socket: TcpStream,
    /// Until it is committed.
    queued: Option<QueuedWriter>,
    rows: SentRows,
    pending: Vec<u8>,
}

impl SinkWriter for SocketWriter {
    fn room(&mut self) -> Room {
        self.queued.as_ref().map_or(Room::Ready, QueuedWriter::room)
    }

    fn write(&mut self, batch: &RecordBatch) -> Result<(), ConnectorError> {
        let encoded = self.rows.encode(batch, &mut self.pending);
        encoded.map_err(|error| unfit(&self.place, &error))?;
        if self.pending.len() >= STREAM_BYTES_MAX { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), ConnectorError> {
        let Some(queued) = &self.queued else { return Ok(()) };
        self.rows.end(&mut self.pending).map_err(|error| unfit(&self.place, &error))?;
        if self.pending.is_empty() {
            queued.drain().map(drop)
        } else {
            queued.send(std::mem::take(&mut self.pending))
        }
    }

    fn settle(&mut self) -> Result<Room, ConnectorError> {
        self.drain()
    }

    fn drain(&mut self) -> Result<Room, ConnectorError> {
        self.flush()?;
        self.queued.as_ref().map_or(Ok(Room::Ready), QueuedWriter::drain)
    }

    fn commit(mut self: Box<Self>) -> Result<(), ConnectorError> {
        self.flush()?;
        let queued = self.queued.take();
        queued.map_or(Ok(()), |queued| queued.finish())?;
        self.socket.shutdown(Shutdown::Write).map_err(|error| broken(&self.place, &error))
    }
}

impl Drop for SocketWriter {
    /// Ends the thread of a writer that was given up, though its peer reads nothing.
    fn drop(&mut self) {
        if self.queued.take().is_some() {
            // It fails when the connection is gone already.
            let _ = self.socket.shutdown(Shutdown::Both);
        }
    }
}

fn broken(place: &str, error: &std::io::Error) -> ConnectorError {
    use std::io::ErrorKind;
    let message = match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => {
            format!("the peer has read nothing for {} s", WRITE_TIMEOUT.as_secs())
        }
        _ => format!("the connection was lost: {error}"),
    };
    let hint = Some("what was sent before cannot be taken back".into());
    ConnectorError::Io { place: place.to_owned(), message, hint }
}

fn unfit(place: &str, error: &dyn std::fmt::Display) -> ConnectorError {
    ConnectorError::Io { place: place.to_owned(), message: error.to_string(), hint: None }
}
