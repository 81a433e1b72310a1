//! The formats that are read in order as a source: a blob is a flow.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use dataflow::error::ConnectorError;
use dataflow::source::{Flow, FlowContext, FlowInfo, Source};

use super::{Blob, input};
use crate::format::{Compression, Decoder, DecoderFlow, Format, Refuser, Target};

/// A blob always has its next byte; this is how long a flow waits that finds none.
const POLL_NS: u64 = 1_000_000;

/// Blobs that are read in order.
pub(super) struct TextSource {
    blobs: Vec<Arc<dyn Blob>>,
    format: Format,
    /// How they are packed, where their names do not tell.
    packed: Option<Compression>,
    target: Arc<Target>,
}

impl TextSource {
    pub(super) fn open(
        blobs: Vec<Arc<dyn Blob>>,
        format: Format,
        packed: Option<Compression>,
        target: Arc<Target>,
    ) -> Result<Self, ConnectorError> {
        format.check(&target.declared)?;
        let source = Self { blobs, format, packed, target };
        if !source.blobs.is_empty() {
            source.decoder(0, Refuser::silent(&source.target))?;
        }
        Ok(source)
    }

    fn decoder(&self, flow: usize, refuser: Refuser) -> Result<Box<dyn Decoder>, ConnectorError> {
        let input = input(&*self.blobs[flow], self.packed)?;
        let mut decoder = self.format.decoder(input, refuser);
        decoder.start()?;
        Ok(decoder)
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
        let flow = |blob: &Arc<dyn Blob>| FlowInfo {
            name: blob.name(),
            bytes: Some(blob.bytes()),
            ..FlowInfo::default()
        };
        Ok(self.blobs.iter().map(flow).collect())
    }

    fn open(&self, flow: usize, context: &FlowContext) -> Result<Box<dyn Flow>, ConnectorError> {
        let decoder = self.decoder(flow, Refuser::new(&self.target, context))?;
        Ok(Box::new(DecoderFlow::new(decoder, context, POLL_NS)))
    }
}
