//! Layer 4: tables of Postgres as tables.
//!
//! ```text
//! rows ─▶ text of COPY ─▶ queue ─▶ thread ─▶ one transaction for all that wait     at least once
//! rows ─▶ text of COPY ─▶ staged, a part of the checkpoint ─▶ one transaction with its marker
//! COPY ─▶ thread ─▶ a few batches, queued ─▶ reader                      a table, as it is now
//! slot ─▶ thread ─▶ a few batches, queued ─▶ reader                      its changes
//! ```
//!
//! The protocol is spoken here, as far as it is needed: queries and COPY, both as text. Threads of
//! their own wait for the server, so that a worker never does. What a server sends is hostile.
//!
//! Absent on purpose: prepared transactions, and transactions that are open while rows are
//! computed.
#![forbid(unsafe_code)]

use std::sync::Arc;

use arrow::datatypes::{DataType, TimeUnit};
use dataflow::connector::{Connector, MetadataSpec, OptionSpec, TableDef};
use dataflow::error::ConnectorError;
use dataflow::sink::Sink;
use dataflow::source::Source;

mod cdc;
mod changes;
mod client;
mod decode;
mod encode;
mod errors;
mod following;
mod frames;
mod key;
mod lag;
mod overlap;
mod pgoutput;
mod pieces;
mod publish;
mod ranges;
mod replication;
mod scan;
mod server;
mod sink;
mod snapshot;
mod staged;
mod streaming;
mod table;
mod tls;
mod transactions;
mod types;
mod write;

/// The connector `postgres`, or `jdbc`, as tables of Flink call it.
#[derive(Debug, Clone, Copy)]
pub struct PostgresConnector {
    name: &'static str,
}

/// Every connector of this crate.
pub fn all() -> Vec<Arc<dyn Connector>> {
    vec![
        Arc::new(PostgresConnector { name: "postgres" }),
        Arc::new(PostgresConnector { name: "jdbc" }),
        Arc::new(PostgresCdcConnector),
    ]
}

/// The connector `postgres-cdc`.
#[derive(Debug, Clone, Copy)]
pub struct PostgresCdcConnector;

const fn option(
    key: &'static str,
    values: &'static str,
    default: &'static str,
    doc: &'static str,
) -> OptionSpec {
    OptionSpec { key, values, default, doc }
}

static OPTIONS: [OptionSpec; 14] = [
    option(
        "url",
        "postgresql://host:port/database?name=value&…",
        "",
        "The server and the database, also with `jdbc:` in front. Parameters: sslmode (disable, \
         prefer, require, verify-ca, verify-full), sslrootcert, currentSchema, user, password, \
         application_name, connect_timeout.",
    ),
    option("table-name", "table, or schema.table", "", "The table, as it is spelled there."),
    option("username", "text", "that of the url", "Who asks."),
    option("password", "text", "none", "The password; it is shown nowhere."),
    option("driver", "text", "none", "Not needed: for tables of Flink."),
    option(
        "retry.timeout",
        "duration",
        "5min",
        "How long to try again when the server cannot be reached, before the query fails; at its \
         start 30s at most.",
    ),
    option(
        "lookup.cache.ttl",
        "duration",
        "read once",
        "A table that a stream looks rows up in: how often it is read anew.",
    ),
    option(
        "lookup.full-cache.periodic-reload.interval",
        "duration",
        "read once",
        "The same, as newer tables of Flink have it.",
    ),
    option(
        "primary-key",
        "columns, separated by ;",
        "none",
        "A sink: the columns of a key, as PRIMARY KEY (…) NOT ENFORCED has them. A row whose key \
         is there changes the row that has it.",
    ),
    option(
        "sink.buffer-flush.max-rows",
        "integer",
        "10000",
        "A sink without checkpoints: rows after which those that wait are written; 0: whatever \
         their number.",
    ),
    option(
        "sink.buffer-flush.interval",
        "duration",
        "1s",
        "A sink without checkpoints: how long a row waits at most; 0: for any time.",
    ),
    option(
        "sink.delivery-guarantee",
        "exactly-once | at-least-once",
        "exactly-once",
        "In a job that keeps checkpoints: whether rows are written with each checkpoint, in one \
         transaction, or as they come.",
    ),
    option(
        "sink.marker-table",
        "table, or schema.table",
        "millstream_marker",
        "Where a sink counts its publications. It is made if it is not there.",
    ),
    option(
        "sink.marker-name",
        "text",
        "the job's number and the table's name",
        "The row of that table: a name that no other sink has.",
    ),
];

impl Connector for PostgresConnector {
    fn name(&self) -> &'static str {
        self.name
    }

    fn options(&self) -> &'static [OptionSpec] {
        &OPTIONS
    }

    fn source(
        &self,
        table: &TableDef,
        projection: &[usize],
    ) -> Result<Arc<dyn Source>, ConnectorError> {
        Ok(Arc::new(scan::PgSource::new(table, projection)?))
    }

    fn sink(&self, table: &TableDef) -> Result<Arc<dyn Sink>, ConnectorError> {
        Ok(Arc::new(sink::PgSink::new(table)?))
    }
}

static CDC_OPTIONS: [OptionSpec; 8] = {
    let [url, table, user, password, _, retry, ..] = OPTIONS;
    [
        url,
        table,
        user,
        password,
        retry,
        option(
            "slot.name",
            "text",
            "none: one that ends with the job",
            "The replication slot, of this table alone. The server keeps the changes that no \
             checkpoint has; a job with --state needs it.",
        ),
        option(
            "publication.name",
            "text",
            "millstream_ and the table's name",
            "The publication, which has the table. It is made if it is not there.",
        ),
        option(
            "scan.startup.mode",
            "initial | latest-offset",
            "initial",
            "Whether the rows that are there when the job begins come first, with op r, or \
             changes alone.",
        ),
    ]
};

static CDC_METADATA: [MetadataSpec; 3] = [
    MetadataSpec {
        key: "lsn",
        data_type: DataType::Int64,
        doc: "The place of the transaction in the log.",
    },
    MetadataSpec {
        key: "sequence",
        data_type: DataType::Int64,
        doc: "The number of the change among those of its transaction; 0 for rows that were there.",
    },
    MetadataSpec {
        key: "timestamp",
        data_type: DataType::Timestamp(TimeUnit::Millisecond, None),
        doc: "The time of its commit (UTC); of rows that were there, when they were read.",
    },
];

impl Connector for PostgresCdcConnector {
    fn name(&self) -> &'static str {
        "postgres-cdc"
    }

    fn options(&self) -> &'static [OptionSpec] {
        &CDC_OPTIONS
    }

    fn metadata(&self) -> &'static [MetadataSpec] {
        &CDC_METADATA
    }

    fn source(
        &self,
        table: &TableDef,
        projection: &[usize],
    ) -> Result<Arc<dyn Source>, ConnectorError> {
        Ok(Arc::new(cdc::CdcSource::new(table, projection)?))
    }

    fn sink(&self, table: &TableDef) -> Result<Arc<dyn Sink>, ConnectorError> {
        let message = "'postgres-cdc' can only be read";
        let hint = format!("write to it by 'connector' = 'postgres': INSERT INTO {}", table.name);
        Err(connectors::refuse("connector", message, Some(hint)))
    }
}
