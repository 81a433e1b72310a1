//! A connection to a server: queries as text, and COPY in both directions.
//!
//! A call waits for the server, so that it is made on a thread of its own, never by a worker. A
//! connection whose call failed is dropped: nobody knows what it would answer next.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{ChannelBinding, SCRAM_SHA_256, ScramSha256};
use rustix::net::sockopt;
use rustls::{ClientConnection, StreamOwned};

use crate::errors::PgError;
use crate::frames::{FieldCursor, FrameReader, PgFrame, error_of, row_of, send};
use crate::server::{PgServer, Secret, TlsMode};
use crate::tls;

/// Versions of the protocol, and the number that asks for encryption in place of one.
const PROTOCOL: u32 = 3 << 16;
const ENCRYPTION: u32 = 80_877_103;

/// How long an answer to the beginning of a connection may take.
const GREETING: Duration = Duration::from_secs(30);

/// How long nothing at all may come while an answer is waited for: a server may think for long, and
/// one that is gone is found by the probes of the system.
const ANSWER: Duration = Duration::from_secs(600);

/// Seconds until a connection on which nothing moves is probed, and between probes; and how many of
/// them remain without an answer before it is given up.
const PROBED: [Duration; 2] = [Duration::from_secs(10), Duration::from_secs(5)];
const PROBES: u32 = 4;

/// Rows of an answer that is kept whole at most.
const ROWS_MAX: usize = 1 << 16;
/// Bytes of their messages at most.
const ROWS_BYTES_MAX: usize = 64 << 20;

/// Bytes of rows that are sent as one message.
const PIECE_BYTES: usize = 1 << 20;

/// The settings of each session: the form of values, the time zone, and the order of scans.
const SESSION: &str = "SET datestyle = 'ISO, YMD'; SET intervalstyle = 'postgres'; \
                       SET timezone = 'UTC'; SET bytea_output = 'hex'; \
                       SET extra_float_digits = 1; SET synchronize_seqscans = off";

/// A row of an answer, each value as text.
pub(crate) type TextRow = Vec<Option<String>>;

enum Stream {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Stream {
    fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain(socket) => socket,
            Self::Tls(stream) => stream.get_ref(),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.read(into),
            Self::Tls(stream) => stream.read(into),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.write(bytes),
            Self::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(socket) => socket.flush(),
            Self::Tls(stream) => stream.flush(),
        }
    }
}

/// The purpose of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    Queries,
    /// The changes of the database.
    Replication,
}

/// A connection.
pub(crate) struct PgConnection {
    stream: Stream,
    frames: FrameReader,
}

impl PgConnection {
    /// Connects once.
    ///
    /// # Errors
    /// When the server is away, or refuses.
    pub(crate) fn open(server: &PgServer, purpose: Purpose) -> Result<Self, PgError> {
        let socket = connect(server)?;
        let stream = encrypted(socket, server)?;
        let mut connection = Self { stream, frames: FrameReader::default() };
        connection.set_timeout(GREETING)?;
        connection.greet(server, purpose)?;
        connection.set_timeout(ANSWER)?;
        connection.query(SESSION)?;
        Ok(connection)
    }

    /// How long a call waits for bytes.
    ///
    /// # Errors
    /// When the connection is gone.
    pub(crate) fn set_timeout(&self, timeout: Duration) -> Result<(), PgError> {
        let socket = self.stream.socket();
        let set = socket.set_read_timeout(Some(timeout));
        set.and_then(|()| socket.set_write_timeout(Some(ANSWER)))
            .map_err(|error| PgError::of_io(&error))
    }

    fn send(&mut self, tag: Option<u8>, body: &[u8]) -> Result<(), PgError> {
        send(&mut self.stream, tag, body)
    }

    fn flush(&mut self) -> Result<(), PgError> {
        self.stream.flush().map_err(|error| io_error(&error))
    }

    /// The next message that is not a note beside the answers; `None` when the time is over.
    pub(crate) fn try_next(&mut self) -> Result<Option<PgFrame>, PgError> {
        loop {
            match self.frames.next(&mut self.stream)? {
                // A notice, the value of a parameter, a notification.
                Some(PgFrame { tag: b'N' | b'S' | b'A', .. }) => {}
                frame => return Ok(frame),
            }
        }
    }

    fn next(&mut self) -> Result<PgFrame, PgError> {
        self.try_next()?.ok_or_else(|| PgError::Away("it does not answer".into()))
    }

    /// Says who it is.
    fn greet(&mut self, server: &PgServer, purpose: Purpose) -> Result<(), PgError> {
        let mut body = PROTOCOL.to_be_bytes().to_vec();
        let mut parameters = vec![
            ("user", server.user.as_str()),
            ("database", &server.database),
            ("application_name", &server.application),
            ("client_encoding", "UTF8"),
        ];
        if purpose == Purpose::Replication {
            parameters.push(("replication", "database"));
        }
        if let Some(schema) = &server.schema {
            parameters.push(("search_path", schema));
        }
        for text in parameters.into_iter().flat_map(|(key, value)| [key, value]) {
            body.extend(text.as_bytes());
            body.push(0);
        }
        body.push(0);
        self.send(None, &body)?;
        self.flush()?;
        let mut login = Login { server, scram: None, is_proven: true };
        loop {
            let frame = self.next()?;
            match frame.tag {
                b'R' => {
                    if let Some(answer) =
                        login.answer(&frame.body, matches!(self.stream, Stream::Tls(_)))?
                    {
                        self.send(Some(b'p'), &answer)?;
                        self.flush()?;
                    }
                }
                b'E' => return Err(PgError::Refused(error_of(&frame.body)?)),
                b'K' | b'v' => {}
                b'Z' if login.is_proven => return Ok(()),
                tag => return Err(unexpected(tag)),
            }
        }
    }

    /// The rows of a query, or of the last of several. It is text: what comes from elsewhere has to
    /// be quoted.
    ///
    /// # Errors
    /// When the server refuses it, or is away.
    pub(crate) fn query(&mut self, sql: &str) -> Result<Vec<TextRow>, PgError> {
        self.ask(sql)?;
        let (mut rows, mut bytes, mut failed) = (vec![], 0, None);
        loop {
            let frame = self.next()?;
            match frame.tag {
                b'T' => {
                    rows.clear();
                    bytes = 0;
                }
                b'D' => {
                    bytes += frame.body.len();
                    if rows.len() >= ROWS_MAX || bytes > ROWS_BYTES_MAX {
                        let most = format!("{ROWS_MAX} rows or {ROWS_BYTES_MAX} bytes");
                        return Err(PgError::Breach(format!("it answers with more than {most}")));
                    }
                    rows.push(row_of(&frame.body)?);
                }
                b'C' | b'I' => {}
                b'E' => failed = Some(error_of(&frame.body)?),
                b'Z' => return failed.map_or(Ok(rows), |error| Err(PgError::Refused(error))),
                tag => return Err(unexpected(tag)),
            }
        }
    }

    fn ask(&mut self, sql: &str) -> Result<(), PgError> {
        if sql.contains('\0') {
            return Err(PgError::Breach("a query has a zero in it".into()));
        }
        self.send(Some(b'Q'), &[sql.as_bytes(), b"\0"].concat())?;
        self.flush()
    }

    /// Sends rows to a `COPY … FROM STDIN`; gives how many the server has taken.
    ///
    /// # Errors
    /// When the server refuses them, or is away.
    pub(crate) fn copy_in<'a>(
        &mut self,
        sql: &str,
        rows: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<u64, PgError> {
        self.ask(sql)?;
        let begun = self.next()?;
        if begun.tag == b'G' {
            for piece in rows.into_iter().flat_map(|rows| rows.chunks(PIECE_BYTES)) {
                self.send(Some(b'd'), piece)?;
            }
            self.send(Some(b'c'), &[])?;
            self.flush()?;
        }
        let (mut frame, mut taken, mut failed) = (begun, 0, None);
        loop {
            match frame.tag {
                b'G' => {}
                b'C' => taken = count_of(&frame.body)?,
                b'E' => failed = Some(error_of(&frame.body)?),
                b'Z' => return failed.map_or(Ok(taken), |error| Err(PgError::Refused(error))),
                tag => return Err(unexpected(tag)),
            }
            frame = self.next()?;
        }
    }

    /// Gives the pieces of a `COPY … TO STDOUT`, a row each, until `each` answers `false`. The
    /// connection is of no use then.
    ///
    /// # Errors
    /// When the server refuses it, or is away.
    pub(crate) fn copy_out(
        &mut self,
        sql: &str,
        mut each: impl FnMut(&[u8]) -> Result<bool, PgError>,
    ) -> Result<(), PgError> {
        self.ask(sql)?;
        let mut failed = None;
        loop {
            let frame = self.next()?;
            match frame.tag {
                b'd' => {
                    if !each(&frame.body)? {
                        return Ok(());
                    }
                }
                b'H' | b'c' | b'C' => {}
                b'E' => failed = Some(error_of(&frame.body)?),
                b'Z' => return failed.map_or(Ok(()), |error| Err(PgError::Refused(error))),
                tag => return Err(unexpected(tag)),
            }
        }
    }
}

impl PgConnection {
    /// Whether a message is here whole.
    pub(crate) fn has_more(&self) -> bool {
        self.frames.has_whole()
    }

    /// Begins to follow changes, in both directions.
    ///
    /// # Errors
    /// When the server refuses it, or is away.
    pub(crate) fn start_replication(&mut self, command: &str) -> Result<(), PgError> {
        self.ask(command)?;
        let frame = self.next()?;
        match frame.tag {
            b'W' => Ok(()),
            b'E' => Err(PgError::Refused(error_of(&frame.body)?)),
            tag => Err(unexpected(tag)),
        }
    }

    /// Sends a message while changes are followed.
    ///
    /// # Errors
    /// When the connection is gone.
    pub(crate) fn send_copy(&mut self, body: &[u8]) -> Result<(), PgError> {
        self.send(Some(b'd'), body)?;
        self.flush()
    }
}

/// How many rows a command has changed: the last word of its tag.
fn count_of(body: &[u8]) -> Result<u64, PgError> {
    let tag = FieldCursor(body).text()?;
    Ok(tag.rsplit(' ').next().and_then(|count| count.parse().ok()).unwrap_or(0))
}

fn unexpected(tag: u8) -> PgError {
    PgError::Breach(format!("a message '{}' where none is due", tag.escape_ascii()))
}

fn io_error(error: &io::Error) -> PgError {
    tls::refused(error).unwrap_or_else(|| PgError::of_io(error))
}

/// A connection to one of the addresses of a host.
fn connect(server: &PgServer) -> Result<TcpStream, PgError> {
    let addresses = (server.host.as_str(), server.port).to_socket_addrs();
    let addresses = addresses.map_err(|error| PgError::Away(error.to_string()))?;
    let mut failed = "the name of the host is not known".to_owned();
    for address in addresses {
        match TcpStream::connect_timeout(&address, server.connect_timeout) {
            Ok(socket) => {
                let probed = sockopt::set_socket_keepalive(&socket, true)
                    .and_then(|()| sockopt::set_tcp_keepidle(&socket, PROBED[0]))
                    .and_then(|()| sockopt::set_tcp_keepintvl(&socket, PROBED[1]))
                    .and_then(|()| sockopt::set_tcp_keepcnt(&socket, PROBES));
                let set = socket.set_nodelay(true).and_then(|()| probed.map_err(Into::into));
                let timeouts = socket.set_read_timeout(Some(GREETING));
                set.and(timeouts).map_err(|error| PgError::of_io(&error))?;
                return Ok(socket);
            }
            Err(error) => failed = error.to_string(),
        }
    }
    Err(PgError::Away(failed))
}

/// The connection, encrypted as its server asks for it.
fn encrypted(mut socket: TcpStream, server: &PgServer) -> Result<Stream, PgError> {
    if server.tls == TlsMode::Disable {
        return Ok(Stream::Plain(socket));
    }
    send(&mut socket, None, &ENCRYPTION.to_be_bytes())?;
    let mut answer = [0];
    // One byte, and no more: what an attacker has put behind it is not taken for the server's.
    socket.read_exact(&mut answer).map_err(|error| PgError::of_io(&error))?;
    match answer[0] {
        b'S' => {
            let mut stream = StreamOwned::new(tls::client(server)?, socket);
            while stream.conn.is_handshaking() {
                let done = stream.conn.complete_io(&mut stream.sock);
                done.map_err(|error| io_error(&error))?;
            }
            Ok(Stream::Tls(Box::new(stream)))
        }
        b'N' if server.tls == TlsMode::Prefer => Ok(Stream::Plain(socket)),
        b'N' => Err(PgError::Own {
            message: "the server does not encrypt".into(),
            hint: "set ssl = on there, or write 'sslmode=disable' in 'url'".into(),
        }),
        tag => Err(unexpected(tag)),
    }
}

/// The proof of who asks.
struct Login<'a> {
    server: &'a PgServer,
    scram: Option<ScramSha256>,
    /// Whether the server has proven that it knows the password, where it has begun to.
    is_proven: bool,
}

impl Login<'_> {
    /// The answer to a request; `None`: nothing.
    fn answer(&mut self, body: &[u8], is_encrypted: bool) -> Result<Option<Vec<u8>>, PgError> {
        let mut cursor = FieldCursor(body);
        match cursor.u32()? {
            0 => Ok(None),
            3 if !is_encrypted => Err(PgError::Own {
                message: "the server asks for the password as it is, and nothing is encrypted"
                    .into(),
                hint: "write 'sslmode=require' in 'url', or scram-sha-256 in pg_hba.conf".into(),
            }),
            3 => Ok(Some([self.password()?.as_bytes(), b"\0"].concat())),
            5 => {
                let salt = cursor.u32()?.to_be_bytes();
                let user = self.server.user.as_bytes();
                let hash = md5_hash(user, self.password()?.as_bytes(), salt);
                Ok(Some([hash.as_bytes(), b"\0"].concat()))
            }
            10 => self.begin_scram(cursor).map(Some),
            11 => {
                let scram = self.scram.as_mut().ok_or_else(|| unexpected(b'R'))?;
                scram.update(cursor.0).map_err(|error| PgError::Breach(error.to_string()))?;
                Ok(Some(scram.message().to_vec()))
            }
            12 => {
                let scram = self.scram.as_mut().ok_or_else(|| unexpected(b'R'))?;
                scram.finish(cursor.0).map_err(|error| PgError::Breach(error.to_string()))?;
                self.is_proven = true;
                Ok(None)
            }
            other => Err(PgError::Own {
                message: format!("the server asks for a proof that is not known here ({other})"),
                hint: "let it in by scram-sha-256: pg_hba.conf".into(),
            }),
        }
    }

    fn password(&self) -> Result<&str, PgError> {
        let password = self.server.password.as_ref().map(|Secret(password)| password.as_str());
        password.filter(|password| !password.contains('\0')).ok_or_else(|| PgError::Own {
            message: "the server asks for a password".into(),
            hint: "write 'password' = '…'".into(),
        })
    }

    fn begin_scram(&mut self, mut cursor: FieldCursor<'_>) -> Result<Vec<u8>, PgError> {
        let mut mechanisms = vec![];
        while cursor.0.first().is_some_and(|byte| *byte != 0) {
            mechanisms.push(cursor.text()?);
        }
        if mechanisms.iter().all(|name| name != SCRAM_SHA_256) {
            let message = format!("the server asks for {}", mechanisms.join(", "));
            let hint = "let it in by scram-sha-256: pg_hba.conf".into();
            return Err(PgError::Own { message, hint });
        }
        let password = self.password()?.as_bytes();
        let scram = ScramSha256::new(password, ChannelBinding::unsupported());
        let length = (scram.message().len() as u32).to_be_bytes();
        let answer = [SCRAM_SHA_256.as_bytes(), b"\0", &length, scram.message()].concat();
        (self.scram, self.is_proven) = (Some(scram), false);
        Ok(answer)
    }
}

/// A name as SQL has it.
pub(crate) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A text as SQL has it, whatever is in it.
pub(crate) fn literal(text: &str) -> String {
    format!("E'{}'", text.replace('\\', "\\\\").replace('\'', "''"))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use connectors::OptionReader;

    use super::*;

    /// Connects to a server that answers whatever is asked with these bytes, and closes.
    fn answered(bytes: Vec<u8>) -> Result<Vec<TextRow>, PgError> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let answers = thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            let mut asked = [0; 256];
            let _ = socket.read(&mut asked);
            let _ = socket.write_all(&bytes);
            // It closes its direction alone: what comes still is taken, so that nothing is reset.
            let _ = socket.shutdown(std::net::Shutdown::Write);
            let _ = socket.read_to_end(&mut vec![]);
        });
        let url = format!("postgresql://u:p@127.0.0.1:{port}/d?sslmode=disable");
        let options = [("url".to_owned(), url)].into_iter().collect();
        let server = PgServer::new(OptionReader(&options)).unwrap();
        let asked = PgConnection::open(&server, Purpose::Queries)
            .and_then(|mut connection| connection.query("SELECT 1"));
        answers.join().unwrap();
        asked
    }

    fn frame(tag: u8, body: &[u8]) -> Vec<u8> {
        let mut bytes = vec![];
        send(&mut bytes, Some(tag), body).unwrap();
        bytes
    }

    #[test]
    fn a_server_that_is_none_is_an_error() {
        let greeting = [frame(b'R', &[0; 4]), frame(b'Z', b"I")].concat();
        let breaches = [
            b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(),
            vec![0; 64],
            frame(b'Z', b"I")[..3].to_vec(),
            frame(b'R', &[0, 0, 0, 12]),
            frame(b'R', &[0, 0, 0, 11, b'r', b'=']),
            frame(b'R', &[0, 0, 0]),
            frame(b'E', b"no end"),
            [greeting.clone(), frame(b'D', &[0, 9])].concat(),
            [greeting.clone(), frame(b'd', b"x")].concat(),
            [greeting.clone(), frame(b'C', b"no end"), frame(b'D', &[0, 1, 0, 0, 0, 9])].concat(),
        ];
        for bytes in breaches {
            let error = answered(bytes.clone()).unwrap_err();
            let is_fit = matches!(error, PgError::Breach(_) | PgError::Away(_));
            assert!(is_fit, "{bytes:?}: {error:?}");
        }
        // Each row is short enough, and all of them are not.
        let value = vec![b'x'; 24 << 20];
        let row = [&[0, 1][..], &(value.len() as u32).to_be_bytes(), &value].concat();
        let rows = [frame(b'D', &row), frame(b'D', &row), frame(b'D', &row)].concat();
        let ends = [frame(b'C', b"SELECT 3\0"), frame(b'Z', b"I")].concat();
        let error = answered([greeting.clone(), rows, ends].concat()).unwrap_err();
        let PgError::Breach(message) = error else { panic!("{error:?}") };
        assert!(message.contains("more than"), "{message}");
        // It asks for the password as it is, over a connection that everybody can read.
        let error = answered(frame(b'R', &[0, 0, 0, 3])).unwrap_err();
        assert!(matches!(error, PgError::Own { .. }), "{error:?}");
        // It has not proven that it knows the password.
        let begins = frame(b'R', b"\0\0\0\x0aSCRAM-SHA-256\0\0");
        let error = answered([begins, frame(b'R', &[0; 4]), frame(b'Z', b"I")].concat());
        assert!(matches!(error, Err(PgError::Breach(_))), "{error:?}");
    }
}
