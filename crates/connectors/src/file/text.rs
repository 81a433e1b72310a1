//! The text formats as a source: a file is a flow.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use arrow::datatypes::{DataType, SchemaRef};
use dataflow::error::ConnectorError;
use dataflow::source::{Flow, FlowContext, FlowInfo, Source};

use super::csv::{CsvFlow, Dialect};
use super::json::JsonFlow;
use super::paths::io_error;
use super::rows::{Refuser, Target, check_castable};

/// A text format, with what there is to know about it.
pub(super) enum Format {
    Csv(Dialect),
    Json,
}

/// Text files.
pub(super) struct TextSource {
    /// The files and their sizes in bytes.
    files: Vec<(PathBuf, u64)>,
    format: Format,
    target: Arc<Target>,
}

impl TextSource {
    /// Looks at the first file, so that a column that does not exist is reported before anything
    /// runs.
    pub(super) fn open(
        paths: Vec<PathBuf>,
        format: Format,
        target: Arc<Target>,
    ) -> Result<Self, ConnectorError> {
        if let Format::Csv(_) = format {
            for field in target.declared.fields() {
                check_castable(field, &DataType::Utf8, "a CSV file")?;
            }
        }
        let mut files = Vec::with_capacity(paths.len());
        for path in paths {
            let metadata = fs::metadata(&path).map_err(|error| io_error(&path, &error))?;
            files.push((path, metadata.len()));
        }
        let source = Self { files, format, target };
        if !source.files.is_empty() {
            let target = Arc::clone(&source.target);
            source.open_file(0, Refuser { target, bad: Arc::default() })?;
        }
        Ok(source)
    }

    fn open_file(&self, file: usize, refuser: Refuser) -> Result<Box<dyn Flow>, ConnectorError> {
        let (path, _) = &self.files[file];
        Ok(match &self.format {
            Format::Csv(dialect) => Box::new(CsvFlow::open(path, dialect.clone(), refuser)?),
            Format::Json => Box::new(JsonFlow::open(path, refuser)?),
        })
    }
}

impl Source for TextSource {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.target.projected)
    }

    fn bounded(&self) -> bool {
        true
    }

    fn flows(
        &self,
        _workers: u32,
        _time_column: Option<usize>,
    ) -> Result<Vec<FlowInfo>, ConnectorError> {
        let flow = |(path, bytes): &(PathBuf, u64)| FlowInfo {
            name: path.display().to_string(),
            bytes: Some(*bytes),
            ..FlowInfo::default()
        };
        Ok(self.files.iter().map(flow).collect())
    }

    fn open(&self, flow: usize, context: &FlowContext) -> Result<Box<dyn Flow>, ConnectorError> {
        let target = Arc::clone(&self.target);
        self.open_file(flow, Refuser { target, bad: Arc::clone(&context.bad) })
    }
}
