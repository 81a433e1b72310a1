//! Layer 4: topics of Kafka as tables.
//!
//! ```text
//! topics ─▶ partitions, each of one worker by its name
//! partition ─▶ queue of the client ─▶ PartitionReader ─▶ rows          a split for each partition
//! rows ─▶ messages ─▶ client ─▶ broker                                 at least once
//! rows ─▶ messages ─▶ staged, a part of the checkpoint ─▶ one transaction with its marker
//! ```
//!
//! The protocol is that of librdkafka. Threads of its own wait for the network, so that a worker
//! never does. The formats are those of the crate `connectors`.
//!
//! Absent on purpose: consumer groups. Who reads which partition is the job's to decide, and
//! positions lie in its checkpoints.
#![deny(unsafe_code)]

use std::sync::{Arc, LazyLock};

use arrow::datatypes::{DataType, TimeUnit};
use connectors::messages::{MESSAGE_OPTIONS, TYPED_OPTIONS};
use dataflow::connector::{Connector, MetadataSpec, OptionSpec, TableDef};
use dataflow::error::ConnectorError;
use dataflow::sink::Sink;
use dataflow::source::Source;

mod client;
mod columns;
mod errors;
mod flink;
mod headers;
mod hostile;
mod keys;
#[cfg(test)]
mod late_registry;
mod properties;
mod queue;
mod reader;
mod security;
mod settings;
mod sink;
mod source;
mod staged;
mod transaction;
mod writer;

use settings::{SinkSettings, SourceSettings, Topic};

/// The connector `kafka`.
#[derive(Debug, Clone, Copy)]
pub struct KafkaConnector;

const fn option(
    key: &'static str,
    values: &'static str,
    default: &'static str,
    doc: &'static str,
) -> OptionSpec {
    OptionSpec { key, values, default, doc }
}

static OPTIONS: [OptionSpec; 24] = {
    let [on_bad, delimiter, quote, comment, null] = MESSAGE_OPTIONS;
    [
        option(
            "topic",
            "name, or several separated by ;",
            "",
            "The topic, or the topics that a source reads. They must be there.",
        ),
        option(
            settings::PATTERN,
            "regular expression",
            "none",
            "In place of 'topic': a source reads all topics whose whole name matches, and those \
             that come while it runs.",
        ),
        option(
            "properties.bootstrap.servers",
            "host:port, or several separated by commas",
            "",
            "Brokers to be asked for the others.",
        ),
        option(
            "properties.<name>",
            "text",
            "that of the client",
            "A property of the client, librdkafka, such as properties.security.protocol; also \
             properties.sasl.jaas.config as Java has it.",
        ),
        option(
            "format",
            "csv | json | raw | avro | avro-confluent | protobuf | protobuf-confluent",
            "",
            "The format of the value of a message; 'raw' is the value as it is, of one column.",
        ),
        option(
            "scan.startup.mode",
            "earliest-offset | latest-offset | group-offsets | timestamp | specific-offsets",
            "group-offsets with a properties.group.id, else earliest-offset",
            "Where a job begins to read; one that goes on from a checkpoint reads on.",
        ),
        option(
            "scan.startup.timestamp-millis",
            "integer",
            "none",
            "With 'timestamp': the first messages that are as late, in milliseconds since 1970.",
        ),
        option(
            "scan.startup.specific-offsets",
            "partition:0,offset:42;partition:1,offset:300",
            "none",
            "With 'specific-offsets': the first offset of each partition.",
        ),
        option(
            "scan.bounded.mode",
            "unbounded | latest-offset",
            "unbounded",
            "Whether the table ends with what is in the topic when the job begins.",
        ),
        option(
            "scan.topic-partition-discovery.interval",
            "duration",
            "5min",
            "How often to ask whether there are new partitions, or topics that match, which are \
             read from their beginning; '0s' to read those alone that are there at the start.",
        ),
        option(
            "on_gap",
            "fail | skip",
            "fail",
            "Whether the query ends, or a bad row is counted and the first message that is left \
             follows, where messages to be read are not in the topic any more.",
        ),
        option(
            "retry.timeout",
            "duration",
            "5min",
            "How long to try again when no broker can be reached, before the query fails; at its \
             start 30s at most.",
        ),
        option(
            "key.fields",
            "columns, separated by ;",
            "none",
            "The columns of the key. They are read from the value, unless \
             'value.fields-include' = 'EXCEPT_KEY'.",
        ),
        option(
            keys::PREFIX,
            "text",
            "none",
            "What the names of the columns of the key begin with in the table, and not in the key; \
             with 'value.fields-include' = 'EXCEPT_KEY'.",
        ),
        option(
            "key.format",
            "raw | csv | json",
            "raw for one column, else json",
            "The format of the key. 'raw' is the text of one column.",
        ),
        option(
            "value.fields-include",
            "ALL | EXCEPT_KEY",
            "ALL",
            "Whether the columns of the key are in the value, too.",
        ),
        option(
            "sink.partitioner",
            "default | fixed | round-robin",
            "default",
            "The partition of a message: by a hash of its key as clients of Java compute it, one \
             for each worker, or one after another.",
        ),
        option(
            "sink.delivery-guarantee",
            "at-least-once | exactly-once",
            "at-least-once",
            "Whether rows are sent as they come, or in one transaction with each checkpoint.",
        ),
        option(
            settings::TRANSACTIONAL_ID,
            "text",
            "none",
            "With 'exactly-once': a name that no other job and no other sink has. The state of \
             the sink in the topic's cluster has that name.",
        ),
        on_bad,
        delimiter,
        quote,
        comment,
        null,
    ]
};

static METADATA: [MetadataSpec; 6] = [
    MetadataSpec { key: "topic", data_type: DataType::Utf8, doc: "The topic of the message." },
    MetadataSpec { key: "partition", data_type: DataType::Int64, doc: "Its partition." },
    MetadataSpec {
        key: "offset",
        data_type: DataType::Int64,
        doc: "Its offset in the partition. Bad rows are named by it: `clicks[3]:1234`.",
    },
    MetadataSpec {
        key: "timestamp",
        data_type: DataType::Timestamp(TimeUnit::Millisecond, None),
        doc: "Its time (UTC), as its producer or the broker has set it; NULL if nobody has. \
              Written; NULL is the time of sending.",
    },
    MetadataSpec {
        key: "key",
        data_type: DataType::Utf8,
        doc: "Its key; NULL if it has none. A key that is no text of UTF-8 is read by a column of \
              BYTES. Written.",
    },
    MetadataSpec {
        key: "headers",
        data_type: DataType::Utf8,
        doc: "Its headers as a JSON object of texts, or in a column of MAP<STRING, BYTES> as they \
              are; of several with one name the last. NULL if it has none. Written from a map.",
    },
];

impl Connector for KafkaConnector {
    fn name(&self) -> &'static str {
        "kafka"
    }

    fn options(&self) -> &'static [OptionSpec] {
        static ALL: LazyLock<Vec<OptionSpec>> =
            LazyLock::new(|| [&OPTIONS[..], &TYPED_OPTIONS[..], &flink::OPTIONS[..]].concat());
        &ALL
    }

    fn metadata(&self) -> &'static [MetadataSpec] {
        &METADATA
    }

    fn written_metadata(&self) -> &'static [&'static str] {
        &["timestamp", "key", "headers"]
    }

    fn source(
        &self,
        table: &TableDef,
        projection: &[usize],
    ) -> Result<Arc<dyn Source>, ConnectorError> {
        let table = &flink::translated(table, false)?;
        let (topics, settings) = (Topic::of_source(table)?, SourceSettings::new(table)?);
        Ok(Arc::new(source::KafkaSource::new(table, projection, topics, settings)?))
    }

    fn sink(&self, table: &TableDef) -> Result<Arc<dyn Sink>, ConnectorError> {
        let table = &flink::translated(table, true)?;
        let (topic, settings) = (Topic::new(table)?, SinkSettings::new(table)?);
        Ok(Arc::new(sink::KafkaSink::new(topic, settings, writer::KafkaEncoder::new(table)?)))
    }
}
