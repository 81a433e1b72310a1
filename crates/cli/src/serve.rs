//! The HTTP server of a [`Dashboard`]: `/metrics`, `/status` and `/plan`.
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

use crate::dashboard::Dashboard;
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
    /// Serves `/metrics`, `/status` and `/plan` of a dashboard. Requests may name it by any
    /// address, as `localhost` and by one of `names`.
    ///
    /// # Errors
    /// When the address cannot be listened on.
    pub(crate) fn start(
        address: SocketAddr,
        names: &[String],
        dashboard: &Dashboard,
    ) -> Result<Self, Failure> {
        Self::within(address, names, dashboard, HEAD_TIME_MAX)
    }

    /// Serves `/metrics` alone, as this function writes it.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub(crate) fn of_page(
        address: SocketAddr,
        names: &[String],
        page: impl Fn() -> String + Clone + Send + Sync + 'static,
    ) -> Result<Self, Failure> {
        let routes = Router::new()
            .route("/", get(|| async { "/metrics for Prometheus\n" }))
            .route("/metrics", get(|| async move { ([(CONTENT_TYPE, OPEN_METRICS)], page()) }));
        Self::of_routes(address, guarded(routes, names), HEAD_TIME_MAX)
    }

    fn within(
        address: SocketAddr,
        names: &[String],
        dashboard: &Dashboard,
        head_time_max: Duration,
    ) -> Result<Self, Failure> {
        Self::of_routes(address, router(dashboard, names), head_time_max)
    }

    fn of_routes(
        address: SocketAddr,
        routes: Router,
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
                "metrics on {bound}: anybody who reaches this port can read them, and of a job its \
                 SQL and plan; there is no password"
            );
        }
        runtime.spawn(accept(listener, routes, head_time_max));
        Ok(Self {
            #[cfg(test)]
            address: bound,
            _runtime: runtime,
        })
    }
}

fn router(dashboard: &Dashboard, names: &[String]) -> Router {
    let (of_page, of_status, of_plan) = (dashboard.clone(), dashboard.clone(), dashboard.clone());
    let json = [(CONTENT_TYPE, "application/json")];
    let of_status = {
        let json = json.clone();
        move || async move { (json, of_status.status()) }
    };
    let routes = Router::new()
        .route("/", get(|| async { "/metrics for Prometheus; /status and /plan as JSON\n" }))
        .route("/metrics", get(|| async move { ([(CONTENT_TYPE, OPEN_METRICS)], of_page.page()) }))
        .route("/status", get(of_status))
        .route("/plan", get(move || async move { (json, of_plan.plan()) }));
    guarded(routes, names)
}

/// Routes for those alone that name this server as its users do.
fn guarded(routes: Router, names: &[String]) -> Router {
    let names: Arc<[String]> = names.iter().map(|name| name.to_lowercase()).collect();
    routes.layer(from_fn(move |request, next| named(Arc::clone(&names), request, next)))
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
    let is_own = address.parse::<IpAddr>().is_ok()
        || name == "localhost"
        || name.ends_with(".localhost")
        || names.iter().any(|known_name| known_name == name);
    (!is_own).then_some(host)
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
        // A client may close its half when it has asked, and is answered all the same.
        .half_close(true)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    match tokio::time::timeout(REQUEST_TIME_MAX, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a request for metrics"),
        Err(_) => tracing::debug!("a request for metrics took too long"),
    }
}

#[cfg(test)]
mod tests;
