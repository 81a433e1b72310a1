//! Topics by TLS with passwords by SCRAM, of a program with the feature `tls`. The broker's
//! certificate is one that nobody has signed, and is given as the one to be trusted.

use std::time::Instant;

use dataflow::connector::{Connector, TableDef};
use dataflow::error::ConnectorError;
use dataflow::sink::WriterContext;
use kafka::KafkaConnector;

use crate::broker::{TIMEOUT, send, topic, values};
use crate::publish::{exactly, expected, how, open, sink, staged_of, write};
use crate::read::{self, BOUNDED, numbered, rows, table, texts};

/// The options of a client of the encrypted port with this certificate and password.
fn encrypted(mut table: TableDef, certificate: &str, hash: &str, password: &str) -> TableDef {
    let data = std::env::var("KAFKA_DATA").expect("scripts/test-world.sh names the broker's data");
    let own = [
        ("bootstrap.servers", read::port(3)),
        ("security.protocol", "SASL_SSL".into()),
        ("ssl.ca.location", format!("{data}/{certificate}.pem")),
        ("sasl.mechanism", format!("SCRAM-SHA-{hash}")),
        ("sasl.username", "ann".into()),
        ("sasl.password", password.into()),
    ];
    let own = own.map(|(key, value)| (format!("properties.{key}"), value));
    table.options.extend(own);
    table
}

#[test]
fn encrypted_topics_are_read_and_written() {
    for hash in ["256", "512"] {
        let topic = topic("tls", 1, &[]);
        let own = encrypted(table(&topic, &[BOUNDED]), "cert", hash, "right");
        write(&encrypted(table(&topic, &[]), "cert", hash, "right"), 0, 0, 5_000);
        assert_eq!(values(&topic, true), expected(0, 5_000));
        assert_eq!(read::open(&*read::source(&own), 0, None).rest().len(), 5_000);
        let sink = sink(&encrypted(exactly(&topic), "cert", hash, "right"));
        let (mark, staged) = staged_of(&*sink, &mut *open(&*sink, 0), 5_000, 5_010);
        sink.publish(&staged, how(false, mark)).unwrap();
        sink.publish(&staged, how(true, mark)).unwrap();
        assert_eq!(values(&topic, true), expected(0, 5_010));
    }
}

#[test]
fn a_wrong_certificate_or_password_is_one_error_at_once() {
    let topic = topic("tls-refused", 1, &[]);
    // A broker that is away is waited for longer than the test takes.
    let patient = |table: TableDef| {
        let mut table = table;
        table.options.insert("retry.timeout".into(), "1 h".into());
        table
    };
    let since = Instant::now();
    for (certificate, password, says, hints) in [
        ("other", "right", "no encrypted connection", "properties.ssl.ca.location"),
        ("cert", "wrong", "the broker refuses to let it in", "properties.sasl.password"),
    ] {
        let of = |table| patient(encrypted(table, certificate, "256", password));
        let (plain, exactly) = (of(table(&topic, &[])), of(exactly(&topic)));
        let source = KafkaConnector.source(&plain, &[0, 1]).unwrap();
        let errors: [ConnectorError; 3] = [
            source.splits(1, None).unwrap_err(),
            sink(&plain).open(&WriterContext::of(0)).err().unwrap(),
            sink(&exactly).mark().unwrap_err(),
        ];
        for error in errors {
            let text = format!("{error:?}");
            assert!(text.contains(says) && text.contains(hints), "{text}");
            assert!(!text.contains("wrong"), "{text}");
        }
    }
    assert!(since.elapsed() < TIMEOUT);
    // The broker is there, and takes those who are right.
    send(&topic, 0, texts(&numbered(0, 3)));
    let own = encrypted(table(&topic, &[BOUNDED]), "cert", "256", "right");
    assert_eq!(read::open(&*read::source(&own), 0, None).rest(), rows(0, 3));
}
