//! What others see of a running job: metrics over HTTP, and spans at a collector.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::trace::v1::Span;
use rustix::process::{Pid, Signal, kill_process};
use tests::command::{Dir, program, run_sql};
use tonic::{Request, Response, Status};

const ENDLESS: &str = "
    CREATE TABLE numbers (n BIGINT, ts TIMESTAMP(3), WATERMARK FOR ts AS ts) WITH (
        'connector' = 'generator', 'rate' = '100000', 'fields.n.kind' = 'sequence');
    CREATE TABLE kept (start TIMESTAMP(3), c BIGINT) WITH ('connector' = 'blackhole');
    SELECT 1 AS first;
    INSERT INTO kept SELECT window_start, count(*)
        FROM TUMBLE(TABLE numbers, DESCRIPTOR(ts), INTERVAL '10' MILLISECOND)
        GROUP BY window_start, window_end;";

/// Asks for a page until it has what is wanted; a job needs some time for its first rows.
fn page(address: &str, path: &str, wanted: impl Fn(&str) -> bool) -> String {
    loop {
        let mut stream = TcpStream::connect(address).expect("the server");
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("a request");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
        if wanted(body) {
            return answer;
        }
    }
}

/// The job with its metrics, and where they are.
fn watched(dir: &Dir, args: &[&str]) -> (Child, String) {
    dir.write("q.sql", ENDLESS);
    let mut child = Command::new(program())
        .args(["run", "q.sql", "--quiet", "--metrics=127.0.0.1:0"])
        .args(args)
        .current_dir(dir.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command starts");
    let mut line = String::new();
    let mut lines = BufReader::new(child.stderr.take().expect("standard error"));
    lines.read_line(&mut line).expect("a line");
    let address = line.trim().strip_prefix("metrics on http://").expect(&line);
    let address = address.strip_suffix("/metrics").expect("a path").to_owned();
    (child, address)
}

#[test]
fn metrics_tell_of_each_worker_and_of_the_job() {
    for layout in [["--nodes", "1", "--workers", "2"], ["--nodes", "2", "--workers", "1"]] {
        let dir = Dir::new("metrics");
        let (mut child, address) = watched(&dir, &layout);
        let fired = |page: &str| {
            page.lines().any(|line| {
                line.strip_prefix("millstream_windows_total{").is_some_and(|l| !l.ends_with(" 0.0"))
            })
        };
        let answer = page(&address, "/metrics", fired);
        assert!(answer.contains("application/openmetrics-text"), "{answer}");
        let (_, text) = answer.split_once("\r\n\r\n").unwrap();
        let node = if layout[1] == "1" { 0 } else { 1 };
        for part in [
            "millstream_input_rows_total{node=\"0\",worker=\"0\"} ".to_owned(),
            format!("millstream_input_rows_total{{node=\"{node}\",worker=\"1\"}} "),
            "millstream_watermark_seconds{".into(),
            "millstream_jobs_total{result=\"succeeded\"} 1.0\n".into(),
            "millstream_job_statement{statement=\"INSERT INTO kept\",line=\"6\"} 1.0\n".into(),
            "millstream_bad_rows_total 0.0\n".into(),
        ] {
            assert!(text.contains(&part), "{part}:\n{text}");
        }
        assert!(text.ends_with("# EOF\n"), "{text}");
        // Every line is a comment, or a name with labels and a number.
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (name, value) = line.rsplit_once(' ').expect(line);
            assert!(name.starts_with("millstream_") && value.parse::<f64>().is_ok(), "{line}");
        }
        let status = page(&address, "/status", |body| body.contains("INSERT INTO kept"));
        assert!(status.contains("application/json"), "{status}");
        assert!(status.contains("\"jobs\":{\"succeeded\":1,\"failed\":0,"), "{status}");
        let pid = Pid::from_raw(child.id() as i32).unwrap();
        kill_process(pid, Signal::INT).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(130));
        assert!(TcpStream::connect(&address).is_err(), "nobody listens any more");
    }
}

/// What `millstream top` says of a job.
fn top(args: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(program()).arg("top").args(args).stdin(Stdio::null()).output();
    let output = output.expect("the command starts");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("it is text");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// The numbers under a key in a line of JSON, in their order.
fn numbers(json: &str, key: &str) -> Vec<f64> {
    let key = format!("\"{key}\":");
    let rest = json.split(&key).skip(1);
    rest.filter_map(|rest| rest.split([',', '}']).next()?.parse().ok()).collect()
}

#[test]
fn a_running_job_is_looked_at_from_another_terminal() {
    for layout in [["--nodes", "1", "--workers", "2"], ["--nodes", "2", "--workers", "1"]] {
        let dir = Dir::new("top");
        let (mut child, address) = watched(&dir, &layout);
        page(&address, "/status", |body| body.contains("INSERT INTO kept"));
        // Until there are rows in an interval; in the first ones there may be none yet.
        let told = loop {
            let look = ["--count", "1", "--interval", "200ms", "--json"];
            let (code, out, err) = top(&[&[address.as_str()][..], &look].concat());
            assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
            assert_eq!(out.lines().count(), 1, "{out}");
            if numbers(&out, "output_rows").iter().filter(|&&rows| rows > 0.0).count() >= 4 {
                break out;
            }
        };
        for part in ["\"name\":\"0 Scan numbers\"", "\"clock_ms\":", "\"skew\":", "\"job\":{"] {
            assert!(told.contains(part), "{part}: {told}");
        }
        let workers: BTreeSet<u64> =
            numbers(&told, "worker").into_iter().map(|worker| worker as u64).collect();
        assert_eq!(workers, BTreeSet::from([0, 1]), "those of all nodes: {told}");
        let nodes = numbers(&told, "node").into_iter().fold(0.0, f64::max);
        assert_eq!(nodes, if layout[1] == "2" { 1.0 } else { 0.0 }, "{told}");
        assert!(numbers(&told, "busy_seconds").iter().any(|&busy| busy > 0.0), "{told}");
        assert!(numbers(&told, "watermark_seconds").iter().any(|&seconds| seconds > 1e9), "{told}");

        let (code, out, _) = top(&[&address, "--count", "2", "--interval", "100ms"]);
        assert_eq!(code, Some(0), "{out}");
        assert_eq!(out.matches("WindowAggregate [1]").count(), 1, "the plan, once: {out}");
        assert_eq!(out.matches("INSERT INTO kept: for ").count(), 2, "{out}");
        for (part, count) in [("  operator", 2), ("  worker", 2), ("  0 Scan numbers", 2)] {
            assert_eq!(out.lines().filter(|line| line.starts_with(part)).count(), count, "{out}");
        }
        assert!(out.contains("  1 of node "), "{out}");
        assert!(!out.contains('\u{1b}'), "this is no terminal: {out}");

        let pid = Pid::from_raw(child.id() as i32).unwrap();
        kill_process(pid, Signal::INT).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(130));
        let (code, _, err) = top(&[&address]);
        assert_eq!(code, Some(1), "{err}");
        assert!(err.contains("cannot read") && err.contains("--metrics"), "{err}");
    }
}

#[test]
fn a_port_for_metrics_that_is_taken_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let dir = Dir::new("taken");
    let outcome = run_sql(&dir, "SELECT 1", &[&format!("--metrics={address}")]).ended(1);
    outcome.one_error(&format!("cannot listen on {address}: "), "--metrics=ADDR:PORT");
}

/// A collector that keeps what it is sent.
#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Vec<(String, Span)>>>);

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let mut kept = self.0.lock().unwrap();
        for of_process in request.into_inner().resource_spans {
            let attributes = of_process.resource.unwrap_or_default().attributes;
            let service = attributes.into_iter().find(|a| a.key == "service.name");
            let service = format!("{:?}", service.and_then(|a| a.value).and_then(|v| v.value));
            for spans in of_process.scope_spans {
                kept.extend(spans.spans.into_iter().map(|span| (service.clone(), span)));
            }
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

const WINDOWS: &str = "
    CREATE TABLE numbers (n BIGINT, ts TIMESTAMP(3), WATERMARK FOR ts AS ts) WITH (
        'connector' = 'generator', 'rows' = '20000', 'interval' = '1ms',
        'fields.n.kind' = 'sequence');
    SET millstream.exchange = 'merge';
    SELECT window_start, count(*) AS c
        FROM TUMBLE(TABLE numbers, DESCRIPTOR(ts), INTERVAL '1' SECOND)
        GROUP BY window_start, window_end;";

#[test]
fn spans_of_jobs_epochs_and_windows_reach_a_collector() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let collector = Collector::default();
    let service = TraceServiceServer::new(collector.clone());
    runtime.spawn(tonic::transport::Server::builder().add_service(service).serve(address));
    while TcpStream::connect(address).is_err() {
        std::thread::yield_now();
    }
    let dir = Dir::new("spans");
    let url = format!("http://{address}");
    let args = ["--workers", "2", "--format", "csv", "--quiet", "--otlp", &url];
    let outcome = run_sql(&dir, WINDOWS, &args).ended(0);
    assert_eq!((outcome.out.lines().count(), outcome.err.as_str()), (21, ""));

    let spans = collector.0.lock().unwrap();
    assert!(spans.iter().all(|(service, _)| service.contains("\"millstream\"")), "{spans:?}");
    let named = |name: &str| -> Vec<&Span> {
        spans.iter().map(|(_, span)| span).filter(|span| span.name == name).collect()
    };
    let [job] = named("job")[..] else { panic!("one job: {spans:?}") };
    assert!(job.parent_span_id.is_empty());
    let [statement] = named("statement")[..] else { panic!("one statement: {spans:?}") };
    let sql = statement.attributes.iter().find(|a| a.key == "sql").unwrap();
    assert!(format!("{sql:?}").contains("SELECT window_start"), "{sql:?}");
    let workers = named("worker");
    assert_eq!(workers.len(), 2);
    for span in workers.iter().chain([&statement]) {
        assert_eq!((&span.parent_span_id, &span.trace_id), (&job.span_id, &job.trace_id));
    }
    let ids: BTreeSet<&Vec<u8>> = workers.iter().map(|worker| &worker.span_id).collect();
    for name in ["epoch", "window firing"] {
        let parts = named(name);
        assert!(!parts.is_empty(), "{name}: {spans:?}");
        for span in parts {
            assert!(ids.contains(&span.parent_span_id), "{name} lies within a worker");
            assert!(job.start_time_unix_nano <= span.start_time_unix_nano);
            assert!(span.end_time_unix_nano <= job.end_time_unix_nano);
        }
    }
}

#[test]
fn a_collector_that_is_not_there_is_told_of_once_and_harms_nothing() {
    let dir = Dir::new("no-collector");
    // Not a port that was free a moment ago: another test may have it meanwhile.
    let args = ["--format", "csv", "--quiet", "--otlp", "http://127.0.0.1:1"];
    let outcome = run_sql(&dir, WINDOWS, &args).ended(0);
    assert_eq!(outcome.out.lines().count(), 21);
    assert_eq!(outcome.err.matches("spans did not arrive at ").count(), 1, "{}", outcome.err);
    let outcome = run_sql(&dir, "SELECT 1", &["--otlp", "localhost:4317"]).ended(2);
    outcome.one_error("--otlp localhost:4317: ", "such as http://127.0.0.1:4317");
}
