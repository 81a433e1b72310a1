//! Tables that are streams: built without SQL, and read by queries.

use std::sync::Arc;

use dataflow::connector::{Connector, TableDef};
use dataflow::error::ConnectorError;
use dataflow::sink::Sink;

/// Stands for the connector of tables that are streams, which are only read, by their operators.
pub(crate) struct Streams;

impl Connector for Streams {
    fn name(&self) -> &'static str {
        "stream"
    }

    fn sink(&self, table: &TableDef) -> Result<Arc<dyn Sink>, ConnectorError> {
        Err(ConnectorError::Option {
            key: "connector".into(),
            message: format!("'{}' is a stream and cannot be written", table.name),
            hint: Some("INSERT INTO a table that CREATE TABLE made".into()),
        })
    }
}
