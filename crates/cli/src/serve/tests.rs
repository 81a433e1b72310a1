use std::io::{Read, Write};

use super::*;

#[path = "../../../../fuzz/replay/mutate.rs"]
mod mutate;
#[path = "../../../../fuzz/replay/seeds.rs"]
mod seeds;

fn server(head_time_max: Duration) -> Server {
    let address = "127.0.0.1:0".parse().unwrap();
    let names = ["Metrics.example.org".to_owned()];
    Server::within(address, &names, &Dashboard::default(), head_time_max).unwrap()
}

fn connect(server: &Server) -> std::net::TcpStream {
    std::net::TcpStream::connect(server.address).unwrap()
}

/// Until the other end closes; a connection that is given up may be reset.
fn rest(mut stream: std::net::TcpStream) -> String {
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8(answer).unwrap()
}

fn ask(server: &Server, host: &str) -> String {
    let mut stream = connect(server);
    let request = format!("GET /status HTTP/1.1\r\nHost: {host}\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    rest(stream)
}

#[test]
fn only_who_names_this_server_is_answered() {
    let server = server(HEAD_TIME_MAX);
    let hosts = ["127.0.0.1:9464", "10.0.0.7", "[::1]:80", "localhost:1", "a.LOCALHOST"];
    for host in hosts.iter().chain(&["metrics.Example.org", "metrics.example.org.:9464"]) {
        let answer = ask(&server, host);
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "{host}: {answer}");
    }
    for host in ["evil.example.org", "evil.example.org:9464", "127.0.0.1.evil.org", "", ":80"] {
        let answer = ask(&server, host);
        assert!(answer.starts_with("HTTP/1.1 403 "), "{host}: {answer}");
        assert!(answer.contains("--metrics-name"), "{answer}");
    }
    let mut without = connect(&server);
    without.write_all(b"GET /status HTTP/1.0\r\n\r\n").unwrap();
    assert!(rest(without).starts_with("HTTP/1.0 200 OK"));
}

#[test]
fn half_open_connections_keep_nobody_out_and_are_bounded() {
    let server = server(Duration::from_secs(3600));
    let half = |server: &Server| {
        let mut stream = connect(server);
        stream.write_all(b"GET /status HTTP/1.1\r\nHost: ").unwrap();
        stream
    };
    let mut open: Vec<_> = (0..CONNECTIONS_MAX).map(|_| half(&server)).collect();
    assert!(ask(&server, "localhost").starts_with("HTTP/1.1 200 OK"));
    // The first one gave way.
    assert_eq!(rest(open.remove(0)), "");
    let mut last = open.pop().unwrap();
    last.write_all(b"localhost\r\n\r\n").unwrap();
    assert!(rest(last).starts_with("HTTP/1.1 200 OK"));
}

#[test]
fn a_head_has_a_time_and_a_length() {
    let server = server(Duration::from_millis(50));
    let mut slow = connect(&server);
    slow.write_all(b"GET /status HTTP/1.1\r\n").unwrap();
    assert!(!rest(slow).contains("200 OK"), "it comes to an end");
    let mut long = connect(&server);
    let head = format!("GET /status HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(HEAD_BYTES_MAX));
    // The server may have closed before it has all.
    let _ = long.write_all(head.as_bytes());
    assert!(!rest(long).contains("200 OK"));
}

/// Requests, whole and damaged.
fn requests() -> Vec<(String, Vec<u8>)> {
    let head = "GET /status HTTP/1.1\r\nHost: localhost\r\n";
    let all = [
        ("good", format!("{head}\r\n")),
        ("good-old", "GET /metrics HTTP/1.0\r\n\r\n".into()),
        ("good-body", format!("{head}Content-Length: 3\r\n\r\nabc")),
        ("good-pieces", format!("{head}Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n")),
        ("bad-host", "GET /plan HTTP/1.1\r\nHost: evil.example.org\r\n\r\n".into()),
        ("bad-host-empty", "GET /plan HTTP/1.1\r\nHost: []:\r\n\r\n".into()),
        ("bad-path", "GET /nowhere HTTP/1.1\r\nHost: localhost\r\n\r\n".into()),
        ("bad-method", "DELETE /status HTTP/1.1\r\nHost: localhost\r\n\r\n".into()),
        ("bad-length", format!("{head}Content-Length: -1\r\n\r\n")),
        ("bad-lengths", format!("{head}Content-Length: 1\r\nContent-Length: 2\r\n\r\n")),
        ("bad-version", "GET /status HTTP/9.9\r\n\r\n".into()),
        ("bad-two", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".into()),
        ("bad-fields", format!("{head}{}\r\n", "X: y\r\n".repeat(200))),
        ("bad-half", head[..30].into()),
        ("bad-bytes", "\u{16}\u{3}\u{1}\0\0".into()),
        ("bad-nothing", String::new()),
    ];
    all.map(|(name, text)| (name.to_owned(), text.into_bytes())).into()
}

/// The corpus of requests, and each with some changes: answered or not, the connection ends,
/// and the next one is served.
#[test]
fn whatever_a_request_is_the_next_one_is_answered() {
    let server = server(HEAD_TIME_MAX);
    let send = |bytes: &[u8]| {
        let mut stream = connect(&server);
        // The server may have closed before it has all.
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let answer = rest(stream);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1."), "{answer}");
        answer.contains(" 200 OK\r\n")
    };
    let all = seeds::read(&seeds::corpus(env!("CARGO_MANIFEST_DIR"), "metrics"), requests);
    for (name, bytes) in &all {
        assert_eq!(send(bytes), name.starts_with("good"), "{name}");
    }
    mutate::each(&seeds::contents(&all), 500, send);
    assert!(ask(&server, "localhost").starts_with("HTTP/1.1 200 OK"));
}
