//! Rows from web addresses.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::mpsc::channel;

use connectors::Http;
use dataflow::connector::{Connector, TableDef};
use dataflow::error::ConnectorError;
use dataflow::source::{Next, ReaderContext, SplitReader};

use crate::bed::*;
use crate::servers::nobody;
use crate::servers::peer::{Peer, Then, answer};

fn web(url: &str, options: &[(&str, &str)]) -> TableDef {
    let options: Vec<_> = [("url", url)].iter().chain(options).copied().collect();
    table(&columns(&[("a", BIGINT), ("b", VARCHAR)]), &options)
}

fn ok(headers: &str, body: &str) -> String {
    answer("200 OK", headers, body)
}

/// All rows of the only flow.
fn read_all(table: &TableDef, context: &ReaderContext) -> Result<Vec<String>, ConnectorError> {
    let source = source(&Http, table)?;
    assert_eq!(source.splits(3, None)?.len(), 1);
    let mut flow = source.open(&nth(0), None, context)?;
    drain(&mut *flow).map(|batch| rows(&batch))
}

#[test]
fn an_answer_is_a_table_in_any_of_its_shapes() {
    let array = ok("", "[{\"a\":1, \"b\":\"x\"},\n {\"b\":\"y,]\",\n  \"a\":2}\n]\n");
    let lines = ok("", "{\"a\":1,\"b\":\"x\"}\n{\"a\":2,\"b\":\"y,]\"}");
    let csv = ok("", "b,a\nx,1\n\"y,]\",2\n");
    for (text, format) in [(&array, "json"), (&lines, "json"), (&csv, "csv")] {
        let peer = Peer::http(vec![(text, Then::Close)]);
        let table = web(&peer.url(), &[("format", format)]);
        assert_eq!(read_all(&table, &context()).unwrap(), ["1|x", "2|y,]"]);
        let request = peer.received.recv().unwrap();
        assert!(request.starts_with("get /rows http/1.1\r\n"), "{request}");
        assert!(request.contains("user-agent: millstream/"), "{request}");
    }
}

#[test]
fn columns_are_those_of_an_answer() {
    let text = ok("", "[{\"a\":1.5,\"at\":\"2013-01-01 05:00:00\"}]");
    let peer = Peer::http(vec![(&text, Then::Close)]);
    let schema = Http.infer(&web(&peer.url(), &[]).options).unwrap().unwrap();
    assert_eq!(schema.field_with_name("a").unwrap().data_type(), &DOUBLE);
    assert!(matches!(
        schema.field_with_name("at").unwrap().data_type(),
        arrow::datatypes::DataType::Timestamp(..)
    ));
}

#[test]
fn bad_records_are_counted_and_an_array_without_end_is_one() {
    let text = ok("", "[{\"a\":1},{\"a\":\"x\"},{\"a\":3},{\"a\":4");
    let peer = Peer::http(vec![(&text, Then::Close)]);
    let context = context();
    assert_eq!(read_all(&web(&peer.url(), &[]), &context).unwrap(), ["1|NULL", "3|NULL"]);
    let reasons: Vec<String> = bad(&context).into_iter().map(|bad| bad.1).collect();
    assert_eq!(reasons.len(), 3);
    assert!(reasons.iter().any(|reason| reason == "the array does not end"), "{reasons:?}");
}

/// The answers of `flow` up to its next wait for a time of the clock, which is `at`.
fn until(flow: &mut dyn SplitReader, at: u64) -> Vec<String> {
    let mut read = Vec::new();
    loop {
        match flow.next(100).unwrap() {
            Next::Batch(batch) => read.extend(rows(&batch)),
            Next::Wait { until_ns } if until_ns == at => return read,
            Next::Pending | Next::Wait { .. } => std::thread::yield_now(),
            Next::End => panic!("polling does not end"),
        }
    }
}

#[test]
fn polls_are_an_interval_apart_and_ask_for_what_is_new() {
    let first = ok("etag: \"one\"\r\n", "[{\"a\":1}]");
    let same = answer("304 Not Modified", "", "");
    let second = ok("last-modified: Tue, 01 Jan 2013 05:00:00 GMT\r\n", "[{\"a\":2}]");
    let third = ok("", "[]");
    let script = [&first, &same, &second, &third];
    let peer = Peer::http(script.iter().map(|text| (text.as_str(), Then::Close)).collect());
    let clock = Arc::new(ManualClock::default());
    let context = ReaderContext::new(clock.clone(), Arc::default());
    let source = source(&Http, &web(&peer.url(), &[("interval", "5s")])).unwrap();
    assert!(!source.bounded());
    let mut flow = source.open(&nth(0), None, &context).unwrap();
    const S: u64 = 1_000_000_000;
    assert_eq!(until(&mut *flow, 5 * S), ["1|NULL"]);
    clock.set(5 * S);
    assert_eq!(until(&mut *flow, 10 * S), [""; 0]);
    // A poll that is late is not made up for.
    clock.set(22 * S);
    assert_eq!(until(&mut *flow, 27 * S), ["2|NULL"]);
    clock.set(27 * S);
    assert_eq!(until(&mut *flow, 32 * S), [""; 0]);
    let asked: Vec<String> = peer.received.iter().take(4).collect();
    assert!(!asked[0].contains("if-none-match"), "{}", asked[0]);
    assert!(asked[1].contains("if-none-match: \"one\"\r\n"), "{}", asked[1]);
    assert!(asked[2].contains("if-none-match: \"one\"\r\n"), "{}", asked[2]);
    assert!(asked[3].contains("if-modified-since: tue, 01 jan 2013"), "{}", asked[3]);
    assert!(!asked[3].contains("if-none-match"), "{}", asked[3]);
}

#[test]
fn refusals_are_told_with_what_to_do() {
    for (status, expected) in [
        ("404 Not Found", "check 'url'"),
        ("401 Unauthorized", "'header.authorization'"),
        ("429 Too Many Requests", "'interval'; the server names 7 s"),
        ("500 Internal Server Error", ""),
    ] {
        let text = answer(status, "retry-after: 7\r\n", "secret");
        let peer = Peer::http(vec![(&text, Then::Close)]);
        let url = peer.url() + "?token=hush";
        let options = [("retry.timeout", "0"), ("header.authorization", "Bearer hush")];
        let error = refused(read_all(&web(&url, &options), &context()));
        assert!(error.to_string().contains(&format!("the server answers {status}")), "{error}");
        assert!(hint(&error).contains(expected), "{error}");
        assert!(!format!("{error:?}").contains("hush"), "{error:?}");
        assert!(peer.received.recv().unwrap().contains("authorization: bearer hush"));
    }
    let url = format!("http://me:hush@{}/?token=hush", nobody());
    let error = refused(read_all(&web(&url, &[("retry.timeout", "0")]), &context()));
    assert!(error.to_string().contains("cannot be reached"), "{error}");
    assert!(!format!("{error:?}").contains("hush"), "{error:?}");
}

#[test]
fn a_server_in_trouble_is_asked_again() {
    let trouble = answer("503 Service Unavailable", "", "");
    let good = ok("", "{\"a\":1}");
    let peer = Peer::http(vec![(&trouble, Then::Close), (&good, Then::Close)]);
    assert_eq!(read_all(&web(&peer.url(), &[]), &context()).unwrap(), ["1|NULL"]);
}

const CUT: &str = "HTTP/1.1 200 OK\r\ncontent-length: 99\r\netag: \"x\"\r\n\r\n{\"a\":1}\n{\"a\":2";

#[test]
fn an_answer_that_breaks_off_ends_a_single_question() {
    let peer = Peer::http(vec![(CUT, Then::Close)]);
    let table = web(&peer.url(), &[]);
    let source = source(&Http, &table).unwrap();
    let context = context();
    let mut flow = source.open(&nth(0), None, &context).unwrap();
    assert_eq!(rows(&await_batch(&mut *flow).unwrap()), ["1|NULL"]);
    let error = refused(drain(&mut *flow));
    assert!(error.to_string().contains("the connection was lost"), "{error}");
    assert_eq!(context.bad.count(), 0);
}

#[test]
fn an_answer_that_breaks_off_is_polled_again_as_a_whole() {
    let whole = ok("", "{\"a\":1}\n{\"a\":2}\n");
    let peer = Peer::http(vec![(CUT, Then::Close), (&whole, Then::Close)]);
    let clock = Arc::new(ManualClock::default());
    let context = ReaderContext::new(clock.clone(), Arc::default());
    let source = source(&Http, &web(&peer.url(), &[("interval", "5ms")])).unwrap();
    let mut flow = source.open(&nth(0), None, &context).unwrap();
    assert_eq!(until(&mut *flow, 5_000_000), ["1|NULL"]);
    let place = format!("{}:2", peer.url());
    assert_eq!(context.bad.kept()[0].place, place);
    assert_eq!(bad(&context)[0].1, "the connection was lost within the record");
    clock.set(5_000_000);
    assert_eq!(until(&mut *flow, 10_000_000), ["1|NULL", "2|NULL"]);
    let asked: Vec<String> = peer.received.iter().take(2).collect();
    assert!(!asked[1].contains("if-none-match"), "{}", asked[1]);
}

const EVENTS: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n\r\n";

#[test]
fn events_are_records_and_go_on_behind_the_last_whole_one() {
    let first = format!(
        "{EVENTS}retry: 1\nid: 7\ndata: {{\"a\":1,\ndata:  \"b\":\"x\"}}\n\nid: 8\ndata: {{\"a\""
    );
    let second = format!("{EVENTS}: again\nid: 8\ndata: {{\"a\":2}}\n\ndata: oops\n\n");
    let end = answer("204 No Content", "", "");
    let (now, reset) = channel();
    let peer =
        Peer::http(vec![(&first, Then::Reset(reset)), (&second, Then::Close), (&end, Then::Close)]);
    let table = web(&peer.url(), &[("mode", "sse")]);
    let source = source(&Http, &table).unwrap();
    assert!(!source.bounded());
    let context = context();
    let mut flow = source.open(&nth(0), None, &context).unwrap();
    assert_eq!(rows(&await_batch(&mut *flow).unwrap()), ["1|x"]);
    now.send(()).unwrap();
    assert_eq!(rows(&drain(&mut *flow).unwrap()), ["2|NULL"]);
    assert_eq!(context.bad.count(), 1, "what is no JSON");
    let asked: Vec<String> = peer.received.iter().take(3).collect();
    assert!(asked[0].contains("accept: text/event-stream"), "{}", asked[0]);
    assert!(!asked[0].contains("last-event-id"), "{}", asked[0]);
    assert!(asked[1].contains("last-event-id: 7\r\n"), "{}", asked[1]);
    assert!(asked[2].contains("last-event-id: 8\r\n"), "{}", asked[2]);
}

#[test]
fn events_of_a_type_and_in_csv() {
    let text = format!("{EVENTS}event: row\ndata: 1,x\ndata: 2,y\n\ndata: 3,z\n\n");
    let end = answer("204 No Content", "", "");
    let peer = Peer::http(vec![(&text, Then::Close), (&end, Then::Close)]);
    let options = [("mode", "sse"), ("event", "row"), ("format", "csv")];
    assert_eq!(read_all(&web(&peer.url(), &options), &context()).unwrap(), ["1|x", "2|y"]);
}

#[test]
fn an_answer_that_is_no_stream_of_events_is_refused() {
    let text = ok("content-type: application/json\r\n", "{}");
    let peer = Peer::http(vec![(&text, Then::Close)]);
    let error = refused(read_all(&web(&peer.url(), &[("mode", "sse")]), &context()));
    assert!(error.to_string().contains("'application/json'"), "{error}");
    assert!(hint(&error).contains("leave 'mode' out"), "{error}");
}

#[test]
fn options_are_checked() {
    let refused = |url: &str, options: &[(&str, &str)]| {
        refused(source(&Http, &web(url, options)).map(drop)).to_string()
    };
    assert!(refused("ftp://h/x", &[]).contains("'ftp' is no way to ask"));
    assert!(refused("nonsense", &[]).contains("no address"));
    let url = "http://h/";
    assert!(refused(url, &[("interval", "0")]).contains("longer than nothing"));
    assert!(refused(url, &[("mode", "sse"), ("interval", "1s")]).contains("by themselves"));
    assert!(refused(url, &[("event", "x")]).contains("only server-sent events"));
    assert!(refused(url, &[("header.a b", "x")]).contains("no name of a header"));
    assert!(refused(url, &[("header.a", "x\ny")]).contains("cannot be sent"));
    let error = Http.sink(&web(url, &[])).map(drop).unwrap_err();
    assert!(error.to_string().contains("can only be read"), "{error}");
}

fn leading_to(url: &str) -> String {
    answer("302 Found", &format!("location: {url}\r\n"), "")
}

#[test]
fn headers_and_query_stay_with_the_host_that_they_were_given_for() {
    let rows = ok("", "[{\"a\":1}]");
    let away = Peer::http(vec![(&rows, Then::Close)]);
    let to_other = leading_to(&away.url());
    let to_itself = leading_to("/elsewhere?x=1");
    let first = Peer::http(vec![(&to_itself, Then::Close), (&to_other, Then::Close)]);
    let url = first.url() + "?token=hush";
    let options = [("header.x-api-key", "hush"), ("header.cookie", "c=hush")];
    assert_eq!(read_all(&web(&url, &options), &context()).unwrap(), ["1|NULL"]);
    for line in ["get /rows?token=hush ", "get /elsewhere?x=1 "] {
        let asked = first.received.recv().unwrap();
        assert!(asked.starts_with(line), "{asked}");
        assert!(asked.contains("x-api-key: hush\r\n") && asked.contains("cookie: c=hush\r\n"));
        assert!(!asked.contains("referer"), "{asked}");
    }
    let asked = away.received.recv().unwrap();
    assert!(asked.starts_with("get /rows "), "{asked}");
    assert!(!asked.contains("hush") && !asked.contains("referer"), "{asked}");
}

#[test]
fn a_host_that_was_left_does_not_get_headers_by_the_word_of_another() {
    let rows = ok("", "[{\"a\":1}]");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let back = format!("http://{}/delete-all", listener.local_addr().unwrap());
    let away = leading_to(&back);
    let away = Peer::http(vec![(&away, Then::Close)]);
    let there = leading_to(&away.url());
    let first = Peer::http_at(listener, vec![(&there, Then::Close), (&rows, Then::Close)]);
    let table = web(&first.url(), &[("header.authorization", "hush")]);
    assert_eq!(read_all(&table, &context()).unwrap(), ["1|NULL"]);
    assert!(first.received.recv().unwrap().contains("authorization: hush"));
    let asked = first.received.recv().unwrap();
    assert!(asked.starts_with("get /delete-all ") && !asked.contains("hush"), "{asked}");
}

#[test]
fn redirects_have_an_end_and_lead_to_the_web_alone() {
    let again = leading_to("/rows");
    let peer = Peer::http((0..11).map(|_| (again.as_str(), Then::Close)).collect());
    let error = refused(read_all(&web(&peer.url(), &[]), &context()));
    assert!(error.to_string().contains("more than 10 times"), "{error}");
    for (to, text) in [("file:///etc/passwd", "'file'"), ("http://", "no address")] {
        let away = leading_to(to);
        let peer = Peer::http(vec![(&away, Then::Close)]);
        let error = refused(read_all(&web(&peer.url(), &[]), &context()));
        assert!(error.to_string().contains(text), "{error}");
    }
}
