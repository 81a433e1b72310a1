//! The formats that are read in order as a source: a blob is a flow.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use dataflow::error::ConnectorError;
use dataflow::source::{Flow, FlowContext, FlowInfo, Source};

use super::{Blob, POLL_NS, beginning, input, of_several};
use crate::format::{Compression, DecoderFlow, Format, Refuser, Target};

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
        let mut source = Self { blobs, format, packed, target };
        // Nothing can be seen of columns in an empty file.
        let first = source.blobs.iter().find(|blob| blob.bytes() > 0).or(source.blobs.first());
        let Some(first) = first.cloned() else { return Ok(source) };
        let several = source.blobs.len() > 1;
        match source.start(&first) {
            Ok(()) if several => source.target = source.target.of_several(),
            Err(ConnectorError::Column { .. }) if several => {
                let files = source.blobs.iter().filter(|blob| blob.bytes() > 0);
                let schemas = files.map(|blob| source.format.infer(beginning(blob, packed)?));
                let schemas = schemas.collect::<Result<Vec<_>, _>>()?;
                source.target = of_several(source.target, schemas.iter());
                source.start(&first)?;
            }
            started => started?,
        }
        Ok(source)
    }

    /// Looks at the beginning of a blob.
    fn start(&self, blob: &Arc<dyn Blob>) -> Result<(), ConnectorError> {
        let refuser = Refuser::silent(&self.target);
        self.format.decoder(beginning(blob, self.packed)?, refuser).start().map(drop)
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
        let input = input(&*self.blobs[flow], self.packed)?;
        let mut decoder = self.format.decoder(input, Refuser::new(&self.target, context));
        decoder.start()?;
        Ok(Box::new(DecoderFlow::new(decoder, context, POLL_NS)))
    }
}
