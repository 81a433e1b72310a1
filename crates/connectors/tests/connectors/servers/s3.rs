//! A subset of S3: objects in memory, by path-style addresses.
//!
//! Puts, copies, gets with ranges and conditions, heads, deletes, listings in pages (version 2) and
//! multipart uploads. Of a signature only the key is looked at.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::Response;

use super::Serving;

/// The key that opens the store.
pub const KEY: &str = "tester";

/// Entries of a page of a listing: few, so that tests turn pages.
const PAGE: usize = 2;

/// When objects were written: later than any test runs, and long ago.
const YOUNG: [&str; 2] = ["Tue, 01 Jan 2199 05:00:00 GMT", "2199-01-01T05:00:00.123Z"];
const OLD: [&str; 2] = ["Tue, 01 Jan 2013 05:00:00 GMT", "2013-01-01T05:00:00.123Z"];

#[derive(Default)]
pub struct StoreState {
    /// By `/bucket/key`: the version and the bytes.
    pub objects: BTreeMap<String, (u64, Bytes)>,
    /// Uploads that were begun and neither completed nor aborted, with their parts.
    pub uploads: HashMap<String, BTreeMap<u32, Bytes>>,
    /// Method, path and range of each request, in order.
    pub log: Vec<String>,
    /// Whether it passes over the conditions of puts, as some stores do.
    pub takes_all: bool,
    /// How many requests it refuses, as a store does that is overloaded.
    pub refusals: usize,
    /// The beginnings of the paths of objects that were written long ago.
    pub old: Vec<String>,
    versions: u64,
}

/// A store that runs.
pub struct S3 {
    pub state: Arc<Mutex<StoreState>>,
    serving: Serving,
}

impl S3 {
    pub fn start() -> Self {
        let state = Arc::new(Mutex::new(StoreState::default()));
        let router = Router::new().fallback(handle).with_state(Arc::clone(&state));
        let serving = Serving::start(|listener| async move {
            axum::serve(listener, router).await.unwrap();
        });
        Self { state, serving }
    }

    pub fn endpoint(&self) -> String {
        format!("http://{}", self.serving.address)
    }

    pub fn put(&self, path: &str, bytes: impl Into<Bytes>) {
        self.state.lock().unwrap().put(path.to_owned(), bytes.into());
    }

    pub fn get(&self, path: &str) -> Option<Bytes> {
        self.state.lock().unwrap().objects.get(path).map(|(_, bytes)| bytes.clone())
    }

    /// What was asked since the last call.
    pub fn log(&self) -> Vec<String> {
        std::mem::take(&mut self.state.lock().unwrap().log)
    }
}

impl StoreState {
    /// When an object was written, as a header and in a listing.
    fn modified(&self, path: &str) -> [&'static str; 2] {
        if self.old.iter().any(|old| path.starts_with(old)) { OLD } else { YOUNG }
    }

    fn put(&mut self, path: String, bytes: Bytes) {
        self.versions += 1;
        self.objects.insert(path, (self.versions, bytes));
    }
}

fn query_of(text: &str) -> HashMap<String, String> {
    text.split('&')
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .map(|(key, value)| (decode(key), decode(&value.replace('+', " "))))
        .collect()
}

async fn handle(State(state): State<Arc<Mutex<StoreState>>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = to_bytes(body, usize::MAX).await.unwrap();
    let path = decode(parts.uri.path());
    let query = query_of(parts.uri.query().unwrap_or(""));
    let mut state = state.lock().unwrap();
    let range = parts.headers.get("range").and_then(|range| range.to_str().ok()).unwrap_or("");
    state.log.push(format!("{} {path} {range}", parts.method).trim_end().to_owned());
    if state.refusals > 0 {
        state.refusals -= 1;
        return respond(StatusCode::SERVICE_UNAVAILABLE, "");
    }
    let signed = parts.headers.get("authorization").and_then(|value| value.to_str().ok());
    let known = signed.is_some_and(|value| value.contains(&format!("Credential={KEY}/")));
    if !known && !path.starts_with("/public/") {
        let body = "<Error><Code>InvalidAccessKeyId</Code><Message>who are you?</Message></Error>";
        return respond(StatusCode::FORBIDDEN, body);
    }
    let upload = query.get("uploadId");
    match (&parts.method, upload) {
        (&Method::GET, None) if query.contains_key("list-type") => list(&state, &path, &query),
        (&Method::GET | &Method::HEAD, None) => get(&state, &path, &parts.headers),
        (&Method::PUT, None) if parts.headers.contains_key("x-amz-copy-source") => {
            let source = parts.headers["x-amz-copy-source"].to_str().unwrap();
            let source = format!("/{}", decode(source).trim_start_matches('/'));
            let Some((_, bytes)) = state.objects.get(&source).cloned() else { return missing() };
            state.put(path, bytes);
            respond(StatusCode::OK, "<CopyObjectResult><ETag>\"x\"</ETag></CopyObjectResult>")
        }
        (&Method::PUT, None) => {
            let creates = parts.headers.get("if-none-match").is_some_and(|tag| tag == "*");
            if creates && !state.takes_all && state.objects.contains_key(&path) {
                return respond(StatusCode::PRECONDITION_FAILED, "");
            }
            state.put(path, body);
            let tag = format!("\"v{}\"", state.versions);
            Response::builder().header("etag", tag).body(Body::empty()).unwrap()
        }
        (&Method::POST, None) if query.contains_key("delete") => delete(&mut state, &path, &body),
        (&Method::POST, None) => {
            state.versions += 1;
            let id = format!("upload-{}", state.versions);
            state.uploads.insert(id.clone(), BTreeMap::new());
            let tag = "InitiateMultipartUploadResult";
            respond(StatusCode::OK, &format!("<{tag}><UploadId>{id}</UploadId></{tag}>"))
        }
        (&Method::PUT, Some(id)) => {
            let number: u32 = query["partNumber"].parse().unwrap();
            let Some(parts) = state.uploads.get_mut(id) else { return missing() };
            parts.insert(number, body);
            let response = Response::builder().header("etag", format!("\"part-{number}\""));
            response.body(Body::empty()).unwrap()
        }
        (&Method::POST, Some(id)) => {
            let Some(parts) = state.uploads.remove(id) else { return missing() };
            let whole: Vec<u8> = parts.into_values().flatten().collect();
            state.put(path, whole.into());
            let tag = "CompleteMultipartUploadResult";
            respond(StatusCode::OK, &format!("<{tag}><ETag>\"x\"</ETag></{tag}>"))
        }
        (&Method::DELETE, Some(id)) => match state.uploads.remove(id) {
            Some(_) => respond(StatusCode::NO_CONTENT, ""),
            None => missing(),
        },
        _ => respond(StatusCode::METHOD_NOT_ALLOWED, ""),
    }
}

/// Deletes the objects of a bucket that the body names.
fn delete(state: &mut StoreState, bucket: &str, body: &[u8]) -> Response {
    let body = String::from_utf8(body.to_vec()).unwrap();
    let mut answer = "<DeleteResult>".to_owned();
    for key in body.split("<Key>").skip(1) {
        let key = key.split_once("</Key>").unwrap().0;
        state.objects.remove(&format!("{}/{key}", bucket.trim_end_matches('/')));
        write!(answer, "<Deleted><Key>{key}</Key></Deleted>").unwrap();
    }
    respond(StatusCode::OK, &(answer + "</DeleteResult>"))
}

fn get(state: &StoreState, path: &str, headers: &HeaderMap) -> Response {
    let Some((version, bytes)) = state.objects.get(path) else { return missing() };
    let tag = format!("\"v{version}\"");
    if headers.get("if-match").is_some_and(|wanted| wanted != tag.as_str()) {
        return respond(StatusCode::PRECONDITION_FAILED, "");
    }
    let response =
        Response::builder().header("etag", tag).header("last-modified", state.modified(path)[0]);
    let range = headers.get("range").map(|range| parse(range.to_str().unwrap(), bytes.len()));
    let response = match range {
        None => response.status(200).body(Body::from(bytes.clone())),
        Some(range) => {
            let shown = format!("bytes {}-{}/{}", range.start, range.end - 1, bytes.len());
            let body = Body::from(bytes.slice(range));
            response.status(206).header("content-range", shown).body(body)
        }
    };
    response.unwrap()
}

fn parse(range: &str, length: usize) -> Range<usize> {
    let (start, end) = range.strip_prefix("bytes=").unwrap().split_once('-').unwrap();
    match (start.parse::<usize>(), end.parse::<usize>()) {
        (Ok(start), Ok(end)) => start..(end + 1).min(length),
        (Ok(start), Err(_)) => start..length,
        (Err(_), Ok(last)) => length.saturating_sub(last)..length,
        (Err(_), Err(_)) => panic!("a range without ends"),
    }
}

fn list(state: &StoreState, bucket: &str, query: &HashMap<String, String>) -> Response {
    let root = format!("{}/", bucket.trim_end_matches('/'));
    let prefix = query.get("prefix").map_or("", String::as_str);
    let after = query.get("continuation-token").map_or("", String::as_str);
    let mut entries: BTreeMap<String, String> = BTreeMap::new();
    for (path, (version, bytes)) in &state.objects {
        let Some(key) = path.strip_prefix(&root) else { continue };
        let Some(rest) = key.strip_prefix(prefix) else { continue };
        match rest.split_once('/').filter(|_| query.contains_key("delimiter")) {
            Some((directory, _)) => {
                let entry = format!("{prefix}{directory}/");
                let tag = "CommonPrefixes";
                let text = format!("<{tag}><Prefix>{entry}</Prefix></{tag}>");
                entries.insert(entry, text);
            }
            None => {
                let size = bytes.len();
                let modified = state.modified(path)[1];
                let text = format!(
                    "<Contents><Key>{key}</Key><Size>{size}</Size><ETag>\"v{version}\"</ETag>\
                     <LastModified>{modified}</LastModified></Contents>"
                );
                entries.insert(key.to_owned(), text);
            }
        }
    }
    let rest: Vec<_> = entries.iter().filter(|(key, _)| key.as_str() > after).collect();
    let mut body = "<ListBucketResult>".to_owned();
    rest.iter().take(PAGE).for_each(|(_, text)| body.push_str(text));
    write!(body, "<IsTruncated>{}</IsTruncated>", rest.len() > PAGE).unwrap();
    if rest.len() > PAGE {
        let tag = "NextContinuationToken";
        write!(body, "<{tag}>{}</{tag}>", rest[PAGE - 1].0).unwrap();
    }
    body.push_str("</ListBucketResult>");
    respond(StatusCode::OK, &body)
}

fn missing() -> Response {
    respond(StatusCode::NOT_FOUND, "<Error><Code>NoSuchKey</Code></Error>")
}

fn respond(status: StatusCode, body: &str) -> Response {
    Response::builder().status(status).body(Body::from(body.to_owned())).unwrap()
}

/// Percent signs resolved.
fn decode(text: &str) -> String {
    let mut out = Vec::new();
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let hex: Vec<u8> = bytes.by_ref().take(2).collect();
            let hex = std::str::from_utf8(&hex).unwrap();
            out.push(u8::from_str_radix(hex, 16).unwrap());
        } else {
            out.push(byte);
        }
    }
    String::from_utf8(out).unwrap()
}
