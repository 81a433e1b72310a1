//! The HTTP server of a [`Board`]: `/metrics`, `/status` and `/plan`.
//!
//! Clients are not trusted. A connection is for one request and ends soon, well or not; there
//! are at most [`CONNECTIONS_MAX`], and the one that is open for longest gives way to the next. And
//! the request has to name this server as its users do: a page in somebody's browser can have its
//! own name lead to this address, but then it asks for that name.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::header::{CONTENT_TYPE, HOST};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::task::AbortHandle;

use crate::board::Board;
use crate::failure::Failure;

/// Connections that are open at a time.
const CONNECTIONS_MAX: usize = 64;
/// Bytes of a request's head.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// How long the head of a request may take.
const HEAD_TIME_MAX: Duration = Duration::from_secs(5);
/// How long a request may take with its answer.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(30);
/// How long to wait before asking again for connections that the system refuses to give.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Answers HTTP requests until it is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    /// Where it listens.
    #[cfg(test)]
    address: SocketAddr,
    /// Its threads end with it.
    _runtime: Runtime,
}

impl Server {
    /// Serves `/metrics`, `/status` and `/plan` of a board. Requests may name it by any address, as
    /// `localhost` and by one of `names`.
    ///
    /// # Errors
    /// When the address cannot be listened on.
    pub(crate) fn start(
        address: SocketAddr,
        names: &[String],
        board: &Board,
    ) -> Result<Self, Failure> {
        Self::within(address, names, board, HEAD_TIME_MAX)
    }

    fn within(
        address: SocketAddr,
        names: &[String],
        board: &Board,
        head_time_max: Duration,
    ) -> Result<Self, Failure> {
        let refused = |error: std::io::Error| {
            let hint = "choose another with --metrics=ADDR:PORT; port 0 takes a free one";
            Failure::runtime(&format!("cannot listen on {address}: {error}"), Some(hint))
        };
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).thread_name("metrics").enable_all().build();
        let runtime = runtime.map_err(refused)?;
        let listener = runtime.block_on(TcpListener::bind(address)).map_err(refused)?;
        let bound = listener.local_addr().unwrap_or(address);
        tracing::info!("metrics on http://{bound}/metrics");
        if address.port() == 0 {
            eprintln!("metrics on http://{bound}/metrics");
        }
        if !address.ip().is_loopback() {
            tracing::warn!(
                "metrics on {bound}: whoever reaches this port can read them, and the SQL and plan \
                 of the job; there is no password"
            );
        }
        runtime.spawn(accept(listener, router(board, names), head_time_max));
        Ok(Self {
            #[cfg(test)]
            address: bound,
            _runtime: runtime,
        })
    }
}

fn router(board: &Board, names: &[String]) -> Router {
    let names: Arc<[String]> = names.iter().map(|name| name.to_lowercase()).collect();
    let (of_page, of_status, of_plan) = (board.clone(), board.clone(), board.clone());
    let json = [(CONTENT_TYPE, "application/json")];
    let of_status = {
        let json = json.clone();
        move || async move { (json, of_status.status()) }
    };
    Router::new()
        .route("/", get(|| async { "/metrics for Prometheus; /status and /plan as JSON\n" }))
        .route("/metrics", get(|| async move { ([(CONTENT_TYPE, OPEN_METRICS)], of_page.page()) }))
        .route("/status", get(of_status))
        .route("/plan", get(move || async move { (json, of_plan.plan()) }))
        .layer(from_fn(move |request, next| named(Arc::clone(&names), request, next)))
}

/// Passes on what names this server.
async fn named(names: Arc<[String]>, request: Request, next: Next) -> Response {
    match stranger(request.headers(), &names) {
        None => next.run(request).await,
        Some(host) => {
            let message = format!(
                "this server is not asked for as '{host}': use its address, or start the job with \
                 --metrics-name\n"
            );
            (StatusCode::FORBIDDEN, message).into_response()
        }
    }
}

/// The host that a request asks for, where that is not this one. A request that names none comes
/// from no browser.
fn stranger(headers: &HeaderMap, names: &[String]) -> Option<String> {
    let host = headers.get(HOST)?;
    let host = String::from_utf8_lossy(host.as_bytes()).to_lowercase();
    let without_port = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => &host,
    };
    let name = without_port.strip_suffix('.').unwrap_or(without_port);
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    let known = address.parse::<IpAddr>().is_ok()
        || name == "localhost"
        || name.ends_with(".localhost")
        || names.iter().any(|known| known == name);
    (!known).then_some(host)
}

/// Takes connections for as long as the server lives.
async fn accept(listener: TcpListener, router: Router, head_time_max: Duration) {
    // The oldest first.
    let mut open: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::debug!(%error, "a connection to the metrics");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        open.retain(|connection| !connection.is_finished());
        while open.len() >= CONNECTIONS_MAX {
            if let Some(oldest) = open.pop_front() {
                oldest.abort();
            }
        }
        let answered = tokio::spawn(answer(stream, router.clone(), head_time_max));
        open.push_back(answered.abort_handle());
    }
}

/// Answers the request of a connection.
async fn answer(stream: TcpStream, router: Router, head_time_max: Duration) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(head_time_max)
        .max_buf_size(HEAD_BYTES_MAX)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    match tokio::time::timeout(REQUEST_TIME_MAX, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a request for metrics"),
        Err(_) => tracing::debug!("a request for metrics took too long"),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    fn server(head_time_max: Duration) -> Server {
        let address = "127.0.0.1:0".parse().unwrap();
        let names = ["Metrics.example.org".to_owned()];
        Server::within(address, &names, &Board::default(), head_time_max).unwrap()
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
}
