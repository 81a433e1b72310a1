//! A schema registry of tests, which answers when it is told to.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::task::{Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use arrow::datatypes::{DataType, Field, Schema};
use dataflow::connector::TableDef;

/// A bound on waits that should be short.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// The status and the body of an answer.
pub(crate) type Answer = (u16, String);

/// The answer that has the schema of the [`table`].
pub(crate) fn schema() -> Answer {
    let fields = r#"[{"name":"n","type":"long"}]"#;
    let schema = format!(r#"{{"type":"record","name":"Click","fields":{fields}}}"#);
    (200, serde_json::json!({ "schema": schema }).to_string())
}

/// Where it listens, and what gives it the answer to a request.
pub(crate) fn registry() -> (String, Sender<Answer>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (answer, answers) = channel::<Answer>();
    thread::spawn(move || {
        for (status, body) in answers {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = BufReader::new(stream.try_clone().unwrap());
            let (mut line, mut length) = (String::new(), 0);
            while request.read_line(&mut line).unwrap() > 2 {
                let lower = line.to_lowercase();
                if let Some(value) = lower.strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
                line.clear();
            }
            request.read_exact(&mut vec![0; length]).unwrap();
            let length = body.len();
            let head = format!("HTTP/1.1 {status} Said\r\nConnection: close");
            write!(stream, "{head}\r\nContent-Length: {length}\r\n\r\n{body}").unwrap();
        }
    });
    (format!("http://{address}"), answer)
}

/// A table of a number, whose schema is one of the registry.
pub(crate) fn table(url: &str) -> TableDef {
    let options = [
        ("topic", "clicks"),
        ("properties.bootstrap.servers", "127.0.0.1:1"),
        ("format", "avro-confluent"),
        ("avro-confluent.url", url),
    ];
    TableDef {
        name: "t".into(),
        schema: Arc::new(Schema::new(vec![Field::new("n", DataType::Int64, true)])),
        options: options.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
        metadata: Default::default(),
        buckets: vec![],
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Wakes this thread.
pub(crate) fn unparks() -> Waker {
    Waker::from(Arc::new(Unpark(thread::current())))
}
