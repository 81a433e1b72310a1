//! The stream of a control connection: plain TCP, or TLS 1.3 in which both sides
//! show a certificate of the cluster.
//!
//! A certificate is checked before anything else: a peer with none, with one of another cluster,
//! or without TLS gets no further than an alert, and the listening side logs the reason.

use std::fmt;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustls::client::danger::HandshakeSignatureValid;
use rustls::client::verify_server_name;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{
    ClientConfig, ClientConnection, Connection, DigitallySignedStruct, DistinguishedName,
    RootCertStore, ServerConfig, ServerConnection, SignatureScheme,
};

use crate::certs::{NODE_NAME, READER_NAME, read};
use crate::error::ClusterError;

/// Whose certificates a listening side takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Peers {
    /// Those of nodes.
    Nodes,
    /// Those of readers, too.
    ReadersToo,
}

/// How nodes know each other.
#[derive(Clone)]
pub(crate) enum Security {
    /// By a token alone, in the clear.
    Token,
    /// By certificates as well.
    Certificates(Arc<Identity>),
}

/// A node's certificate, and whom it believes.
pub(crate) struct Identity {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

impl Identity {
    /// Reads `node.pem`, `node.key` and `ca.pem` of a directory.
    ///
    /// # Errors
    /// When one is missing, or is none.
    pub(crate) fn load(directory: &Path, peers: Peers) -> Result<Self, ClusterError> {
        let file = |name: &str| directory.join(name);
        let wrong = |name: &str, error: &dyn std::fmt::Display| ClusterError::Certificate {
            file: file(name),
            detail: error.to_string(),
        };
        let certificate = |name: &str| {
            let text = read(&file(name))?;
            CertificateDer::from_pem_slice(text.as_bytes()).map_err(|error| wrong(name, &error))
        };
        let (node, authority) = (certificate("node.pem")?, certificate("ca.pem")?);
        let key = read(&file("node.key"))?;
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes())
            .map_err(|error| wrong("node.key", &error))?;
        let mut roots = RootCertStore::empty();
        roots.add(authority).map_err(|error| wrong("ca.pem", &error))?;
        let roots = Arc::new(roots);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider))
                .build()
                .map_err(|error| wrong("ca.pem", &error))?;
        let verifier = Arc::new(NamedVerifier { chain: verifier, peers });
        let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| wrong("node.pem", &error))?
            .with_client_cert_verifier(verifier)
            .with_single_cert(vec![node.clone()], key.clone_key())
            .map_err(|error| wrong("node.key", &error))?;
        let client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| wrong("node.pem", &error))?
            .with_root_certificates(roots)
            .with_client_auth_cert(vec![node], key)
            .map_err(|error| wrong("node.key", &error))?;
        Ok(Self { client: Arc::new(client), server: Arc::new(server) })
    }
}

/// Checks that a certificate is of the cluster, and made out to one of the peers: a reader is no
/// node, though the same authority has issued its certificate.
#[derive(Debug)]
struct NamedVerifier {
    chain: Arc<dyn ClientCertVerifier>,
    peers: Peers,
}

impl ClientCertVerifier for NamedVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.chain.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let verified = self.chain.verify_client_cert(certificate, intermediates, now)?;
        let is_reader = self.peers == Peers::ReadersToo && is_made_out_to(certificate, READER_NAME);
        if is_reader || is_made_out_to(certificate, NODE_NAME) {
            Ok(verified)
        } else {
            Err(rustls::CertificateError::NotValidForName.into())
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chain.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chain.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chain.supported_verify_schemes()
    }
}

fn is_made_out_to(certificate: &CertificateDer<'_>, name: &str) -> bool {
    let name = ServerName::try_from(name).ok();
    let parsed = ParsedCertificate::try_from(certificate).ok();
    name.zip(parsed).is_some_and(|(name, parsed)| verify_server_name(&parsed, &name).is_ok())
}

/// Says nothing of keys.
impl fmt::Debug for Security {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Token => "Token",
            Self::Certificates(_) => "Certificates",
        })
    }
}

impl Security {
    /// The side that connects.
    pub(crate) fn client(&self, socket: TcpStream) -> std::io::Result<SecureStream> {
        let Self::Certificates(identity) = self else { return Ok(SecureStream::Plain(socket)) };
        let name = ServerName::try_from(NODE_NAME).map_err(std::io::Error::other)?;
        let tls = ClientConnection::new(Arc::clone(&identity.client), name);
        Ok(SecureStream::tls(tls.map_err(std::io::Error::other)?.into(), socket))
    }

    /// The side that listens.
    pub(crate) fn server(&self, socket: TcpStream) -> std::io::Result<SecureStream> {
        let Self::Certificates(identity) = self else { return Ok(SecureStream::Plain(socket)) };
        let tls = ServerConnection::new(Arc::clone(&identity.server));
        Ok(SecureStream::tls(tls.map_err(std::io::Error::other)?.into(), socket))
    }
}

/// A connection, blocking or not as its socket is.
pub(crate) enum SecureStream {
    Plain(TcpStream),
    Tls(Box<Tls>),
}

/// TLS on a socket. Reading never waits for room to write: two nodes that both have much to say
/// would wait for each other.
pub(crate) struct Tls {
    connection: Connection,
    socket: TcpStream,
}

impl SecureStream {
    fn tls(connection: Connection, socket: TcpStream) -> Self {
        Self::Tls(Box::new(Tls { connection, socket }))
    }

    pub(crate) fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain(socket) => socket,
            Self::Tls(tls) => &tls.socket,
        }
    }

    /// Whether the peer has shown a certificate that is made out to this name.
    pub(crate) fn shows(&self, name: &str) -> bool {
        let Self::Tls(tls) = self else { return false };
        let shown = tls.connection.peer_certificates().and_then(<[_]>::first);
        shown.is_some_and(|certificate| is_made_out_to(certificate, name))
    }

    /// Whether the peer has closed the connection, or it has broken; bytes that came before may
    /// still wait to be read.
    pub(crate) fn is_closed(&self) -> bool {
        let closed = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        let mut fds = [PollFd::new(self.socket(), PollFlags::RDHUP)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut fds, Some(&at_once)).is_ok() && fds[0].revents().intersects(closed)
    }

    /// Whether bytes were taken that have not left.
    pub(crate) fn holds_bytes(&self) -> bool {
        match self {
            Self::Plain(_) => false,
            Self::Tls(tls) => tls.connection.wants_write(),
        }
    }
}

impl fmt::Debug for SecureStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecureStream({:?})", self.socket())
    }
}

impl Tls {
    /// Sends what the socket takes.
    fn push(&mut self) -> std::io::Result<()> {
        while self.connection.wants_write() {
            match self.connection.write_tls(&mut self.socket) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        loop {
            match self.connection.reader().read(bytes) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                read => return read,
            }
            // A handshake goes on by what is sent.
            self.push()?;
            self.connection.read_tls(&mut self.socket)?;
            if let Err(error) = self.connection.process_new_packets() {
                // The peer should hear why; whether it does is its own affair.
                let _ = self.push();
                return Err(std::io::Error::new(ErrorKind::InvalidData, error));
            }
        }
    }

    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let taken = self.connection.writer().write(bytes)?;
        self.push()?;
        if taken == 0 && !bytes.is_empty() {
            return Err(ErrorKind::WouldBlock.into());
        }
        Ok(taken)
    }
}

impl Read for SecureStream {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.read(bytes),
            Self::Tls(tls) => tls.read(bytes),
        }
    }
}

impl Write for SecureStream {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.write(bytes),
            Self::Tls(tls) => tls.write(bytes),
        }
    }

    /// # Errors
    /// `WouldBlock` where the socket does not take it all now.
    fn flush(&mut self) -> std::io::Result<()> {
        let Self::Tls(tls) = self else { return Ok(()) };
        tls.push()?;
        if tls.connection.wants_write() { Err(ErrorKind::WouldBlock.into()) } else { Ok(()) }
    }
}

impl AsFd for SecureStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket().as_fd()
    }
}

/// The objection of TLS to the other side, in words; `None` for errors of the socket.
pub(crate) fn objection(error: &std::io::Error) -> Option<String> {
    let error = error.get_ref()?.downcast_ref::<rustls::Error>()?;
    Some(match error {
        rustls::Error::InvalidCertificate(why) => {
            format!("its certificate is not of this cluster ({why})")
        }
        rustls::Error::NoCertificatesPresented => "it shows no certificate".into(),
        rustls::Error::AlertReceived(why) => {
            format!("it does not accept the certificate of this node ({why:?})")
        }
        _ => format!("it does not speak TLS as nodes do ({error})"),
    })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::certs;

    /// Whether a side that takes these peers hears a word of a client with this certificate.
    fn is_heard(own: &Path, client: &Path, peers: Peers) -> bool {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let identity = Arc::new(Identity::load(client, Peers::Nodes).unwrap());
        let mut client = Security::Certificates(identity).client(socket).unwrap();
        let says = std::thread::spawn(move || {
            // A handshake goes on by reading.
            let _ = client.write_all(b"word").and_then(|()| client.flush());
            let _ = client.read(&mut [0; 8]);
        });
        let identity = Arc::new(Identity::load(own, peers).unwrap());
        let socket = listener.accept().unwrap().0;
        let mut server = Security::Certificates(identity).server(socket).unwrap();
        let mut word = [0; 4];
        let received = server.read_exact(&mut word).is_ok() && word == *b"word";
        assert_eq!(server.shows(NODE_NAME) || server.shows(READER_NAME), received);
        drop(server);
        says.join().unwrap();
        received
    }

    #[test]
    fn a_reader_is_no_node() {
        let root = std::env::temp_dir().join(format!("millstream-roles-{}", std::process::id()));
        let [authority, node, reader] = ["authority", "node", "reader"].map(|name| root.join(name));
        certs::init(&authority, 2).unwrap();
        certs::issue(&authority, &node, 1).unwrap();
        certs::issue_reader(&authority, &reader, 1).unwrap();
        assert!(is_heard(&node, &node, Peers::Nodes));
        assert!(is_heard(&node, &node, Peers::ReadersToo));
        assert!(is_heard(&node, &reader, Peers::ReadersToo));
        assert!(!is_heard(&node, &reader, Peers::Nodes));
        assert!(!is_heard(&reader, &node, Peers::ReadersToo), "nobody connects with a reader");
        std::fs::remove_dir_all(root).unwrap();
    }
}
