//! Connections that outlive a job: clients attach to a service, such as a memory server.
//!
//! Without certificates a service listens on loopback alone, and its clients show the token of a
//! file that the owner of the service alone can read ([`token_file`]). With certificates both sides
//! show one of their cluster, as nodes do. Who shows the token of another file, or a certificate of
//! a reader, is a [`Role::Reader`]: the meaning of that, and of messages, is up to the service and
//! its clients.
//!
//! Nothing here waits but [`Attachment::connect`]: a service and its clients look at many
//! connections from one thread.

mod token_file;

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::certs::NODE_NAME;
use crate::error::ClusterError;
use crate::mesh::{JobToken, listen};
use crate::secure::{Identity, Peers, SecureStream, Security, objection};
use token_file::TokenFile;

/// Connections that are accepted before one of them is looked at.
const ACCEPTED_MAX: usize = 64;
/// Bytes that wait to be sent to a peer at most; with more, the connection ends.
const OUTBOX_BYTES_MAX: usize = 64 << 20;
/// Bytes that are read of a connection before another one is looked at.
const READ_BYTES: usize = 64 << 10;
/// Bytes of room that a connection keeps for its next message.
const KEPT_BYTES: usize = 4 * READ_BYTES;

/// The role that a client has proved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// A process of the service's owner, or a node of its cluster.
    Owner,
    /// One that was given the readers' token or a reader's certificate.
    Reader,
}

/// The listening side.
#[derive(Debug)]
pub struct Service {
    listener: TcpListener,
    address: SocketAddr,
    security: Security,
    /// Where there are no certificates.
    token: Option<TokenFile>,
    /// That of readers, where there are no certificates and a file was named for it.
    readers: Option<TokenFile>,
}

/// A connection between a client and a service.
#[derive(Debug)]
pub struct Attachment {
    stream: SecureStream,
    inbox: Vec<u8>,
    outbox: Vec<u8>,
    /// Bytes of `outbox` that were sent.
    sent: usize,
}

impl Service {
    /// Listens, beyond loopback with the certificate of a directory alone. A file may be named in
    /// which the token of readers is left; its group may read it, too.
    ///
    /// # Errors
    /// When the address cannot be had, there is no certificate or no place for a token, or the file
    /// for readers is there already or cannot be written.
    pub fn listen(
        at: SocketAddr,
        certs: Option<&Path>,
        readers: Option<&Path>,
    ) -> Result<Self, ClusterError> {
        let security = security(certs, Peers::ReadersToo)?;
        if certs.is_none() && !at.ip().is_loopback() {
            return Err(ClusterError::Unproved { addr: at });
        }
        let listener = listen(at)?;
        listener.set_nonblocking(true).map_err(ClusterError::system("a socket option"))?;
        let address = listener.local_addr().map_err(ClusterError::system("a socket's address"))?;
        let token = certs.is_none().then(|| TokenFile::publish(address)).transpose()?;
        let readers = readers.map(TokenFile::of_readers).transpose()?;
        Ok(Self { listener, address, security, token, readers })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The role of a client that shows this token; none when it may not attach. Where there are
    /// certificates it has shown one before, and the token says nothing.
    pub fn role(&self, attachment: &Attachment, token: &[u8]) -> Option<Role> {
        let Some(own) = &self.token else {
            let is_node = attachment.stream.shows(NODE_NAME);
            return Some(if is_node { Role::Owner } else { Role::Reader });
        };
        let shown = JobToken::of(token.try_into().ok()?);
        let of_reader = self.readers.as_ref().is_some_and(|of| of.token.same(&shown));
        if own.token.same(&shown) {
            return Some(Role::Owner);
        }
        of_reader.then_some(Role::Reader)
    }

    /// Connections that have come since the last call, and whether more have come that the system
    /// refuses to give: then it is no use to ask again at once.
    pub fn accept(&self) -> (Vec<Attachment>, bool) {
        let mut accepted = Vec::new();
        while accepted.len() < ACCEPTED_MAX {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                // The connection is gone again.
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => continue,
                Err(error) => {
                    tracing::debug!("a connection cannot be accepted: {error}");
                    return (accepted, true);
                }
            };
            let options = stream.set_nonblocking(true).and_then(|()| stream.set_nodelay(true));
            match options.and_then(|()| self.security.server(stream)) {
                Ok(stream) => accepted.push(Attachment::of(stream)),
                Err(error) => tracing::debug!(%error, "a new connection"),
            }
        }
        (accepted, false)
    }
}

impl AsFd for Service {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Attachment {
    /// Connects with a service; gives the token with which this process may attach: that of a file
    /// of readers, if one is named, or that which the service has left for its user; empty where
    /// certificates prove it.
    ///
    /// # Errors
    /// When nothing answers there, or what does is not of this user.
    pub fn connect(
        at: SocketAddr,
        certs: Option<&Path>,
        token_file: Option<&Path>,
        limit: Duration,
    ) -> Result<(Self, Vec<u8>), ClusterError> {
        let security = security(certs, Peers::Nodes)?;
        let failed =
            |error: std::io::Error| ClusterError::Attach { addr: at, detail: error.to_string() };
        let socket = TcpStream::connect_timeout(&at, limit).map_err(failed)?;
        let token = match (certs, token_file) {
            (Some(_), _) => Vec::new(),
            (None, Some(file)) => TokenFile::read_of_readers(file)?.bytes().to_vec(),
            (None, None) => TokenFile::read(at)?.bytes().to_vec(),
        };
        socket.set_nodelay(true).map_err(failed)?;
        socket.set_nonblocking(true).map_err(failed)?;
        let stream = security.client(socket).map_err(failed)?;
        Ok((Self::of(stream), token))
    }

    fn of(stream: SecureStream) -> Self {
        Self { stream, inbox: Vec::new(), outbox: Vec::new(), sent: 0 }
    }

    /// Queues bytes; [`Attachment::flush`] sends them.
    pub fn send(&mut self, bytes: &[u8]) {
        self.outbox.extend_from_slice(bytes);
    }

    /// Sends what the socket takes.
    ///
    /// # Errors
    /// When the peer is gone, or takes nothing.
    pub fn flush(&mut self) -> std::io::Result<()> {
        while self.sent < self.outbox.len() {
            match self.stream.write(&self.outbox[self.sent..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(n) => self.sent += n,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(reason(error)),
            }
        }
        if self.sent == self.outbox.len() {
            self.outbox.clear();
            self.outbox.shrink_to(KEPT_BYTES);
            self.sent = 0;
        } else if self.outbox.len() - self.sent > OUTBOX_BYTES_MAX {
            return Err(std::io::Error::new(
                ErrorKind::TimedOut,
                "it takes nothing of what is sent",
            ));
        }
        match self.stream.flush() {
            Err(error) if error.kind() != ErrorKind::WouldBlock => Err(reason(error)),
            _ => Ok(()),
        }
    }

    /// Whether there are bytes that the socket has not taken.
    pub fn holds_bytes(&self) -> bool {
        self.sent < self.outbox.len() || self.stream.holds_bytes()
    }

    /// Says that nothing more will be sent or read. The socket goes with the value.
    pub fn end(&self) {
        // A peer that has gone needs no word.
        let _ = self.stream.socket().shutdown(Shutdown::Both);
    }

    /// The bytes that have come and were not taken.
    pub fn received(&self) -> &[u8] {
        &self.inbox
    }

    /// Takes bytes off the front of [`Attachment::received`].
    pub fn take(&mut self, bytes: usize) {
        self.inbox.drain(..bytes);
        // The room of a long message is not kept for short ones.
        if self.inbox.capacity() > KEPT_BYTES && self.inbox.len() <= READ_BYTES {
            self.inbox.shrink_to(READ_BYTES);
        }
    }

    /// Reads once; false when nothing has come.
    ///
    /// # Errors
    /// When the connection has ended or broke.
    pub fn read(&mut self) -> std::io::Result<bool> {
        let filled = self.inbox.len();
        self.inbox.resize(filled + READ_BYTES, 0);
        let read = loop {
            match self.stream.read(&mut self.inbox[filled..]) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                read => break read,
            }
        };
        self.inbox.truncate(filled + read.as_ref().copied().unwrap_or(0));
        match read {
            Ok(0) => Err(std::io::Error::new(ErrorKind::UnexpectedEof, "the connection has ended")),
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(reason(error)),
        }
    }
}

impl AsFd for Attachment {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// An error of the stream, in words where TLS has objected.
fn reason(error: std::io::Error) -> std::io::Error {
    match objection(&error) {
        Some(why) => std::io::Error::new(error.kind(), why),
        None => error,
    }
}

fn security(certs: Option<&Path>, peers: Peers) -> Result<Security, ClusterError> {
    Ok(match certs {
        None => Security::Token,
        Some(directory) => Security::Certificates(Arc::new(Identity::load(directory, peers)?)),
    })
}
