//! A peer that says, connection after connection, what a script has it say.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// What becomes of a connection after its words.
pub enum Then {
    /// A clean end.
    Close,
    /// A break, once the test says so.
    Reset(Receiver<()>),
    /// It stays open until the other side ends it.
    Hold,
}

/// A peer and what it was asked.
pub struct Peer {
    pub address: String,
    /// What each connection sent: of HTTP the head of the request, else everything after the
    /// words of the peer.
    pub received: Receiver<String>,
}

impl Peer {
    /// Speaks at once.
    pub fn lines<W: AsRef<[u8]>>(script: Vec<(W, Then)>) -> Self {
        Self::start(script, false)
    }

    /// Listens to a request, then speaks.
    pub fn http<W: AsRef<[u8]>>(script: Vec<(W, Then)>) -> Self {
        Self::start(script, true)
    }

    /// The same at a place that was known before.
    pub fn http_at<W: AsRef<[u8]>>(listener: TcpListener, script: Vec<(W, Then)>) -> Self {
        Self::start_at(listener, script, true)
    }

    pub fn url(&self) -> String {
        format!("http://{}/rows", self.address)
    }

    fn start<W: AsRef<[u8]>>(script: Vec<(W, Then)>, asked: bool) -> Self {
        Self::start_at(TcpListener::bind("127.0.0.1:0").unwrap(), script, asked)
    }

    fn start_at<W: AsRef<[u8]>>(
        listener: TcpListener,
        script: Vec<(W, Then)>,
        asked: bool,
    ) -> Self {
        let address = listener.local_addr().unwrap().to_string();
        let (received, receiver) = channel();
        let script: Vec<(Vec<u8>, Then)> =
            script.into_iter().map(|(words, then)| (words.as_ref().to_vec(), then)).collect();
        std::thread::spawn(move || {
            for (words, then) in script {
                let Ok((socket, _)) = listener.accept() else { return };
                speak(socket, &words, then, asked, &received);
            }
        });
        Self { address, received: receiver }
    }
}

fn speak(mut socket: TcpStream, words: &[u8], then: Then, asked: bool, received: &Sender<String>) {
    if asked {
        let _ = received.send(head(&mut socket));
    }
    // The other side may have gone: that is what some tests are about.
    let _ = socket.write_all(words);
    match then {
        Then::Close => drop(socket),
        Then::Reset(now) => {
            let _ = now.recv();
            rustix::net::sockopt::set_socket_linger(&socket, Some(Duration::ZERO)).unwrap();
        }
        Then::Hold => {
            let mut rest = Vec::new();
            let _ = socket.read_to_end(&mut rest);
            if !asked {
                let _ = received.send(String::from_utf8_lossy(&rest).into_owned());
            }
        }
    }
}

/// The head of a request, in lower case.
fn head(socket: &mut TcpStream) -> String {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && socket.read(&mut byte).unwrap_or(0) == 1 {
        head.push(byte[0]);
    }
    String::from_utf8_lossy(&head).to_lowercase()
}

/// A whole answer of HTTP.
pub fn answer(status: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\n{headers}content-length: {length}\r\nconnection: close\r\n\r\n{body}"
    )
}
