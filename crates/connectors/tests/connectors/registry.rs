//! Messages that name a schema of a registry, which a server of this process plays.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use arrow::array::{ArrayRef, Int64Array, StringArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use axum::extract::Request;
use axum::http::StatusCode;
use connectors::messages::{MessageDecoder, MessageEncoder, MessageFormat, MessageRows};
use dataflow::bad::BadRows;
use dataflow::connector::TableDef;
use dataflow::error::ConnectorError;
use serde_json::json;

use crate::bed::*;
use crate::formats::{encoded, fixture};
use crate::servers::serving::Serving;

/// A bound on waits that should be short.
const LONG: Duration = Duration::from_secs(60);

#[derive(Default)]
struct Played {
    answers: HashMap<String, (u16, String)>,
    /// How often each was asked for, with the credentials and the body of the last.
    asked: BTreeMap<String, (u32, String, String)>,
}

/// A registry that knows what it is told.
struct Registry {
    played: Arc<Mutex<Played>>,
    serving: Serving,
}

impl Registry {
    fn new() -> Self {
        let played = Arc::<Mutex<Played>>::default();
        let own = Arc::clone(&played);
        let serving = Serving::start(move |listener| async move {
            let app = axum::Router::new().fallback(move |request: Request| {
                let own = Arc::clone(&own);
                async move {
                    let (head, body) = request.into_parts();
                    let body = axum::body::to_bytes(body, 1 << 20).await.unwrap_or_default();
                    let key = format!("{} {}", head.method, head.uri.path());
                    let who = head.headers.get("authorization").and_then(|of| of.to_str().ok());
                    let mut own = own.lock().unwrap();
                    let asked = own.asked.entry(key.clone()).or_default();
                    asked.0 += 1;
                    asked.1 = who.unwrap_or_default().to_owned();
                    asked.2 = String::from_utf8_lossy(&body).into_owned();
                    let unknown = (404, r#"{"error_code":40403,"message":"not found"}"#.into());
                    let (status, text) = own.answers.get(&key).cloned().unwrap_or(unknown);
                    (StatusCode::from_u16(status).unwrap(), text)
                }
            });
            axum::serve(listener, app).await.unwrap();
        });
        Self { played, serving }
    }

    fn url(&self) -> String {
        format!("http://{}/of/all/", self.serving.address)
    }

    fn says(&self, key: &str, status: u16, answer: &serde_json::Value) {
        let key = key.replace(" /", " /of/all/");
        self.played.lock().unwrap().answers.insert(key, (status, answer.to_string()));
    }

    fn asked(&self, key: &str) -> (u32, String, String) {
        let key = key.replace(" /", " /of/all/");
        self.played.lock().unwrap().asked.get(&key).cloned().unwrap_or_default()
    }
}

fn confluent(schema: &SchemaRef, registry: &Registry, format: &str) -> TableDef {
    let (key, url) = (format!("{format}.url"), registry.url());
    table(schema, &[("format", format), ("topic", "clicks"), (&key, &url)])
}

fn message(id: u32, values: &[u8]) -> Vec<u8> {
    [&[0], &id.to_be_bytes()[..], values].concat()
}

struct Decoding {
    decoder: MessageDecoder,
    bad: Arc<BadRows>,
}

type Read = (Vec<String>, Vec<u32>, Vec<String>);

impl Decoding {
    fn of(table: &TableDef) -> Self {
        let all: Vec<usize> = (0..table.schema.fields().len()).collect();
        let bad = Arc::new(BadRows::collecting());
        let decoder = MessageFormat::new(table, &all).unwrap().decoder(&bad);
        Self { decoder, bad }
    }

    fn push(&mut self, messages: &[Vec<u8>]) -> Result<(), ConnectorError> {
        messages.iter().try_for_each(|message| self.decoder.push(Some(message)))
    }

    /// The rows, the numbers of their messages, and the bad ones.
    fn rows(&mut self) -> Result<Read, ConnectorError> {
        let MessageRows { rows, messages } = self.decoder.rows(&|at| format!("m{at}"))?;
        let bad = self.bad.take().into_iter();
        let bad = bad.map(|bad| format!("{}: {}", bad.place, bad.reason)).collect();
        Ok((crate::bed::rows(&rows), messages, bad))
    }
}

const FIRST: &str = r#"{"type":"record","name":"Click","fields":[
    {"name":"id","type":"int"},{"name":"gone","type":"string"}]}"#;
/// A column was added, one removed, one widened.
const SECOND: &str = r#"{"type":"record","name":"Click","fields":[
    {"name":"page","type":["null","string"]},{"name":"id","type":"long"}]}"#;

fn clicks() -> SchemaRef {
    columns(&[("id", BIGINT), ("page", VARCHAR)])
}

#[test]
fn schemas_change_from_message_to_message() {
    let registry = Registry::new();
    registry.says("GET /schemas/ids/1", 200, &json!({"schema": FIRST}));
    registry.says("GET /schemas/ids/2", 200, &json!({"schema": SECOND, "schemaType": "AVRO"}));
    registry.says("GET /schemas/ids/3", 200, &json!({"schema": "{}", "schemaType": "JSON"}));
    registry.says("GET /schemas/ids/4", 200, &json!({"schema": "\"string\""}));
    let messages = [
        message(1, b"\x02\x02x"),
        message(2, b"\x02\x02y\x04"),
        message(1, b"\x06\x00"),
        message(9, b"\x06"),
        b"{\"id\": 1}".to_vec(),
        message(2, b"\x00\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
        message(2, b"\x00"),
        message(3, b"\x00"),
        message(4, b"\x00"),
        b"\x00\x00".to_vec(),
    ];
    let mut of = Decoding::of(&confluent(&clicks(), &registry, "avro-confluent"));
    for _ in 0..3 {
        of.push(&messages).unwrap();
        let (rows, numbers, bad) = of.rows().unwrap();
        assert_eq!(rows, ["1|NULL", "2|y", "3|NULL", &format!("{}|NULL", i64::MAX)]);
        assert_eq!(numbers, [0, 1, 2, 5]);
        let places: Vec<_> = bad.iter().map(|bad| &bad[..2]).collect();
        assert_eq!(places, ["m3", "m4", "m6", "m7", "m8", "m9"], "{bad:#?}");
        assert!(bad[0].contains("schema 9") && bad[0].contains("does not know it"), "{}", bad[0]);
        assert!(bad[1].contains("0 and the number of a schema"), "{}", bad[1]);
        assert!(bad[3].contains("schema 3 is one of JSON"), "{}", bad[3]);
        assert!(bad[4].contains("not that of a record"), "{}", bad[4]);
    }
    // Each number once, however many messages have it; one that is unknown not more often.
    for id in [1, 2, 3, 4, 9] {
        assert_eq!(registry.asked(&format!("GET /schemas/ids/{id}")).0, 1, "{id}");
    }
    // A column that is NOT NULL must be there.
    let schema = Arc::new(Schema::new(vec![Field::new("page", VARCHAR, false)]));
    let mut of = Decoding::of(&confluent(&schema, &registry, "avro-confluent"));
    of.push(&messages[..3]).unwrap();
    let (rows, _, bad) = of.rows().unwrap();
    assert_eq!(rows, ["y"]);
    assert!(bad[0].contains("schema 1") && bad[0].contains("no such column"), "{}", bad[0]);
}

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn rows_wait_for_a_registry_that_is_in_trouble() {
    let registry = Registry::new();
    registry.says("GET /schemas/ids/1", 503, &json!({"message": "starting"}));
    let mut of = Decoding::of(&confluent(&clicks(), &registry, "avro-confluent"));
    let woken = Arc::new(Woken::default());
    of.decoder.wakes(&Waker::from(Arc::clone(&woken)));
    of.push(&[message(1, b"\x02\x02x"), b"?".to_vec()]).unwrap();
    let begun = Instant::now();
    while registry.asked("GET /schemas/ids/1").0 < 2 {
        assert!(of.decoder.is_waiting().unwrap());
        assert!(begun.elapsed() < LONG);
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(!woken.0.load(Ordering::SeqCst));
    registry.says("GET /schemas/ids/1", 200, &json!({"schema": FIRST}));
    while of.decoder.is_waiting().unwrap() {
        assert!(begun.elapsed() < LONG);
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(woken.0.load(Ordering::SeqCst));
    let (rows, numbers, bad) = of.rows().unwrap();
    assert_eq!((rows, numbers, bad.len()), (vec!["1|NULL".to_owned()], vec![0], 1));
    // Pauses between the requests grow, so that there are few of them.
    let (times, _, _) = registry.asked("GET /schemas/ids/1");
    assert!(u128::from(times) <= 3 + begun.elapsed().as_millis() / 50, "{times} requests");
}

#[test]
fn a_registry_that_is_gone_or_refuses_is_an_error() {
    let registry = Registry::new();
    registry.says("GET /schemas/ids/1", 401, &json!({"message": "who are you?"}));
    registry.says("GET /schemas/ids/2", 500, &json!({"message": "broken"}));
    let mut table_of = confluent(&clicks(), &registry, "avro-confluent");
    table_of.options.insert("retry.timeout".into(), "0".into());
    table_of.options.insert("avro-confluent.basic-auth.user-info".into(), "me:secret".into());
    let fails = |table: &TableDef, id| {
        let mut of = Decoding::of(table);
        of.push(&[message(id, b"\x02\x02x")]).and_then(|()| of.rows().map(drop)).unwrap_err()
    };
    let error = fails(&table_of, 1);
    assert!(error.to_string().contains("401") && hint(&error).contains("basic-auth"), "{error}");
    assert_eq!(registry.asked("GET /schemas/ids/1").1, "Basic bWU6c2VjcmV0");
    assert!(!format!("{error:?}").contains("secret"), "{error:?}");
    let error = fails(&table_of, 2).to_string();
    assert!(error.contains("500") && error.contains("broken"), "{error}");
    table_of.options.remove("avro-confluent.basic-auth.user-info");
    let token = ("avro-confluent.bearer-auth.token".to_owned(), "ticket".to_owned());
    table_of.options.extend([token]);
    fails(&table_of, 1);
    assert_eq!(registry.asked("GET /schemas/ids/1").1, "Bearer ticket");
    drop(registry);
    let error = fails(&table_of, 1);
    assert!(error.to_string().contains("cannot be reached"), "{error}");
}

#[test]
fn schemas_that_refer_to_others_are_read_with_them() {
    let registry = Registry::new();
    let reference =
        |subject: &str, version| json!({"name": subject, "subject": subject, "version": version});
    let outer = r#"{"type":"record","name":"Outer","namespace":"a","fields":[
        {"name":"id","type":"long"},{"name":"inner","type":"a.Inner"}]}"#;
    let inner = r#"{"type":"record","name":"Inner","namespace":"a","fields":[
        {"name":"color","type":"a.Color"}]}"#;
    let color = r#"{"type":"enum","name":"Color","namespace":"a","symbols":["RED","BLUE"]}"#;
    let references = json!([reference("inner", 3), reference("color", 1)]);
    registry.says("GET /schemas/ids/1", 200, &json!({"schema": outer, "references": references}));
    let references = json!([reference("color", 1)]);
    let of_inner = json!({"schema": inner, "references": references});
    registry.says("GET /subjects/inner/versions/3", 200, &of_inner);
    registry.says("GET /subjects/color/versions/1", 200, &json!({"schema": color}));
    let inner = DataType::Struct(columns(&[("color", VARCHAR)]).fields().clone());
    let schema = columns(&[("id", BIGINT), ("inner", inner)]);
    let mut of = Decoding::of(&confluent(&schema, &registry, "avro-confluent"));
    of.push(&[message(1, b"\x02\x02")]).unwrap();
    let (rows, _, bad) = of.rows().unwrap();
    assert_eq!((rows, bad), (vec!["1|{color: BLUE}".to_owned()], vec![]));
    // One that is not there, and a circle.
    registry.says(
        "GET /schemas/ids/2",
        200,
        &json!({"schema": outer, "references": [reference("none", 1)]}),
    );
    registry.says(
        "GET /schemas/ids/3",
        200,
        &json!({"schema": outer, "references": [reference("circle", 1)]}),
    );
    let circle = json!({"schema": outer, "references": [reference("circle", 1)]});
    registry.says("GET /subjects/circle/versions/1", 200, &circle);
    of.push(&[message(2, b""), message(3, b"")]).unwrap();
    let (rows, _, bad) = of.rows().unwrap();
    assert!(rows.is_empty() && bad[0].contains("version 1 of 'none'"), "{bad:?}");
    assert_eq!(bad.len(), 2);
}

#[test]
fn a_schema_that_two_others_refer_to_comes_before_both() {
    let registry = Registry::new();
    let reference =
        |name: &str, subject: &str| json!({"name": name, "subject": subject, "version": 1});
    let order = r#"{"type":"record","name":"Order","fields":[
        {"name":"to","type":"Address"},{"name":"of","type":"Customer"}]}"#;
    let customer =
        r#"{"type":"record","name":"Customer","fields":[{"name":"a","type":"Address"}]}"#;
    let address =
        r#"{"type":"record","name":"Address","fields":[{"name":"city","type":"string"}]}"#;
    let both = [reference("Address", "address"), reference("Customer", "customer")];
    let of_order =
        |references: &[&serde_json::Value]| json!({"schema": order, "references": references});
    registry.says("GET /schemas/ids/1", 200, &of_order(&[&both[0], &both[1]]));
    registry.says("GET /schemas/ids/2", 200, &of_order(&[&both[1], &both[0]]));
    // One of them by a second name.
    let again = reference("Place", "address");
    registry.says("GET /schemas/ids/3", 200, &of_order(&[&both[0], &again, &both[1]]));
    let of_customer = json!({"schema": customer, "references": [&both[0]]});
    registry.says("GET /subjects/customer/versions/1", 200, &of_customer);
    registry.says("GET /subjects/address/versions/1", 200, &json!({"schema": address}));
    let to = DataType::Struct(columns(&[("city", VARCHAR)]).fields().clone());
    let mut of = Decoding::of(&confluent(&columns(&[("to", to)]), &registry, "avro-confluent"));
    of.push(&[1, 2, 3].map(|id| message(id, b"\x02x\x02y"))).unwrap();
    let (rows, _, bad) = of.rows().unwrap();
    assert_eq!((rows, bad), (vec!["{city: x}".to_owned(); 3], vec![]));
    // A file that two import by names of their own.
    let main =
        r#"syntax = "proto3"; import "a.proto"; import "b.proto"; message M { int64 id = 1; }"#;
    let references = [reference("a.proto", "common"), reference("b.proto", "common")];
    let main = json!({"schema": main, "schemaType": "PROTOBUF", "references": references});
    registry.says("GET /schemas/ids/4", 200, &main);
    let common = json!({"schema": "syntax = \"proto3\";", "schemaType": "PROTOBUF"});
    registry.says("GET /subjects/common/versions/1", 200, &common);
    let ids = columns(&[("id", BIGINT)]);
    let mut of = Decoding::of(&confluent(&ids, &registry, "protobuf-confluent"));
    of.push(&[message(4, b"\x00\x08\x07")]).unwrap();
    let (rows, _, bad) = of.rows().unwrap();
    assert_eq!((rows, bad), (vec!["7".to_owned()], vec![]));
}

#[test]
fn schemas_that_are_too_many_are_forgotten_and_asked_for_again() {
    const SCHEMAS: u32 = 1_001;
    let registry = Registry::new();
    (0..SCHEMAS).for_each(|id| {
        registry.says(&format!("GET /schemas/ids/{id}"), 200, &json!({"schema": FIRST}));
    });
    let messages: Vec<_> = (0..SCHEMAS).map(|id| message(id, b"\x02\x02x")).collect();
    let mut of = Decoding::of(&confluent(&clicks(), &registry, "avro-confluent"));
    let mut asked = [0; 2];
    for asked in &mut asked {
        of.push(&messages).unwrap();
        let (rows, _, bad) = of.rows().unwrap();
        assert_eq!((rows.len(), bad.len()), (messages.len(), 0));
        *asked = (0..SCHEMAS).map(|id| registry.asked(&format!("GET /schemas/ids/{id}")).0).sum();
    }
    // Some are there still: those that came behind the one with which they were too many.
    assert!(asked[0] >= SCHEMAS && asked[1] > asked[0] + SCHEMAS / 2, "{asked:?}");
}

fn two_rows() -> RecordBatch {
    let ids: ArrayRef = Arc::new(Int64Array::from(vec![1, 2]));
    let pages: ArrayRef = Arc::new(StringArray::from(vec![Some("y"), None]));
    batch(&[("id", ids), ("page", pages)])
}

#[test]
fn a_sink_adds_its_schema_once_and_names_it() {
    let registry = Registry::new();
    registry.says("POST /subjects/clicks-value/versions", 200, &json!({"id": 258}));
    let table_of = confluent(&clicks(), &registry, "avro-confluent");
    let encoder = MessageEncoder::new(&table_of, &table_of.schema).unwrap();
    assert_eq!(registry.asked("POST /subjects/clicks-value/versions").0, 0);
    let mut messages = vec![];
    for _ in 0..2 {
        encoder
            .encode("t", &two_rows(), |message| messages.extend(message.map(<[u8]>::to_vec)))
            .unwrap();
    }
    assert_eq!(messages[0], [0, 0, 0, 1, 2, 2, 2, 2, 2, b'y']);
    assert_eq!(messages[3], [0, 0, 0, 1, 2, 2, 4, 0]);
    let (times, _, body) = registry.asked("POST /subjects/clicks-value/versions");
    assert_eq!(times, 1);
    let body: serde_json::Value = serde_json::from_str(&body).unwrap();
    let schema: serde_json::Value = serde_json::from_str(body["schema"].as_str().unwrap()).unwrap();
    assert_eq!(
        schema,
        json!({"type": "record", "name": "record", "namespace": "org.apache.flink.avro.generated",
            "fields": [{"name": "id", "type": ["null", "long"]},
                       {"name": "page", "type": ["null", "string"]}]})
    );
    // The rows that were written are read.
    registry.says("GET /schemas/ids/258", 200, &json!({"schema": schema.to_string()}));
    let mut of = Decoding::of(&table_of);
    of.push(&messages).unwrap();
    assert_eq!(of.rows().unwrap().0, ["1|y", "2|NULL", "1|y", "2|NULL"]);
    // A subject of one's own, whose schemas this one does not fit.
    let refuses = json!({"error_code": 409, "message": "incompatible"});
    registry.says("POST /subjects/own%2Fone/versions", 409, &refuses);
    let mut table_of = table_of;
    table_of.options.insert("avro-confluent.subject".into(), "own/one".into());
    let encoder = MessageEncoder::new(&table_of, &table_of.schema).unwrap();
    let error = encoder.encode("t", &two_rows(), |_| {}).unwrap_err();
    assert!(error.to_string().contains("does not fit the earlier ones: incompatible"), "{error}");
}

#[test]
fn messages_of_protobuf_name_their_type() {
    let registry = Registry::new();
    let text = fs::read_to_string(fixture("event.proto")).unwrap();
    let schema = json!({"schema": text, "schemaType": "PROTOBUF"});
    registry.says("GET /schemas/ids/1", 200, &schema);
    registry.says("GET /schemas/ids/2", 200, &json!({"schema": FIRST}));
    // The second type of the file; the first within it; the first type; one that is not there.
    let messages = [
        message(1, b"\x02\x02\x08\x07"),
        message(1, b"\x04\x02\x00\x09\x00\x00\x00\x00\x00\x00\xf0\x3f"),
        message(1, b"\x00\x08\x02"),
        message(1, b"\x02\x0c"),
        message(1, b"\x80"),
        message(2, b"\x00"),
        message(1, b"\xfe\xff\xff\xff\x0f"),
        message(1, b"\x01"),
    ];
    let declared = columns(&[("id", BIGINT), ("x", DOUBLE)]);
    let mut of = Decoding::of(&confluent(&declared, &registry, "protobuf-confluent"));
    of.push(&messages).unwrap();
    let (rows, numbers, bad) = of.rows().unwrap();
    assert_eq!(rows, ["7|NULL", "NULL|1.0", "NULL|NULL"]);
    assert_eq!((numbers, bad.len()), (vec![0, 1, 2], 5), "{bad:#?}");
    // A sink gives the file to the registry, and names the type.
    registry.says("POST /subjects/clicks-value/versions", 200, &json!({"id": 1}));
    let place = columns(&[("x", DOUBLE)]);
    let mut table_of = confluent(&place, &registry, "protobuf-confluent");
    let path = fixture("event.proto").display().to_string();
    table_of.options.extend([
        ("protobuf.proto.file".into(), path),
        ("protobuf.message-class-name".into(), "org.example.Event.Place".into()),
    ]);
    let one: ArrayRef = Arc::new(arrow::array::Float64Array::from(vec![1.0]));
    let written = encoded(&table_of, &batch(&[("x", one)]));
    assert_eq!(written, [message(1, b"\x04\x02\x00\x09\x00\x00\x00\x00\x00\x00\xf0\x3f")]);
    let body = registry.asked("POST /subjects/clicks-value/versions").2;
    let body: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!((&body["schemaType"], &body["schema"]), (&json!("PROTOBUF"), &json!(text)));
    table_of.options.insert("format".into(), "protobuf-confluent".into());
    let mut of = Decoding::of(&table_of);
    of.push(&written).unwrap();
    assert_eq!(of.rows().unwrap().0, ["1.0"]);
}

/// The registry at the address of `MILLSTREAM_REGISTRY`, such as Apicurio's
/// `http://localhost:8080/apis/ccompat/v7`: `scripts/registry.sh` starts one.
#[test]
fn a_real_registry_takes_what_is_written_and_gives_it_back() {
    let Ok(url) = std::env::var("MILLSTREAM_REGISTRY") else { return };
    let topic = format!("clicks-{}", std::process::id());
    let of = |schema: &SchemaRef, format: &str, more: &[(&str, &str)]| {
        let key = format!("{format}.url");
        let mut all = vec![("format", format), ("topic", &*topic), (&*key, &*url)];
        all.extend(more);
        table(schema, &all)
    };
    // A column is added: two schemas of one subject.
    let ids = two_rows().project(&[0]).unwrap();
    let mut messages = encoded(&of(&ids.schema(), "avro-confluent", &[]), &ids);
    messages.extend(encoded(&of(&clicks(), "avro-confluent", &[]), &two_rows()));
    assert_ne!(messages[0][1..5], messages[2][1..5]);
    messages.push(message(1_000_000_000, b"\x00"));
    let mut decoding = Decoding::of(&of(&clicks(), "avro-confluent", &[]));
    decoding.push(&messages).unwrap();
    let (rows, _, bad) = decoding.rows().unwrap();
    assert_eq!(rows, ["1|NULL", "2|NULL", "1|y", "2|NULL"]);
    assert!(bad.len() == 1 && bad[0].contains("does not know it"), "{bad:?}");
    let path = fixture("event.proto").display().to_string();
    let more = [
        ("protobuf-confluent.subject", "places"),
        ("protobuf.proto.file", &*path),
        ("protobuf.message-class-name", "org.example.Event.Place"),
    ];
    let place = of(&columns(&[("x", DOUBLE)]), "protobuf-confluent", &more);
    let one: ArrayRef = Arc::new(arrow::array::Float64Array::from(vec![1.5]));
    let messages = encoded(&place, &batch(&[("x", one)]));
    let mut decoding = Decoding::of(&place);
    decoding.push(&messages).unwrap();
    assert_eq!(decoding.rows().unwrap().0, ["1.5"]);
}
