//! The formats that are read in order as a source: a blob is a split.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use dataflow::error::ConnectorError;
use dataflow::source::{Position, ReaderContext, Source, Split, SplitReader};

use super::{Blob, beginning, input, of_several};
use crate::format::{Compression, DecoderReader, Format, Refuser, TargetColumns, VersionedInput};

/// Blobs that are read in order.
pub(super) struct TextSource {
    blobs: Vec<Arc<dyn Blob>>,
    format: Format,
    /// How they are packed, where their names do not tell.
    packed: Option<Compression>,
    target: Arc<TargetColumns>,
}

impl TextSource {
    pub(super) fn open(
        blobs: Vec<Arc<dyn Blob>>,
        format: Format,
        packed: Option<Compression>,
        target: Arc<TargetColumns>,
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

    fn splits(
        &self,
        _workers: u32,
        _time_column: Option<usize>,
    ) -> Result<Vec<Split>, ConnectorError> {
        let split = |(number, blob): (usize, &Arc<dyn Blob>)| Split {
            number,
            name: blob.name(),
            bytes: Some(blob.bytes()),
            ..Split::default()
        };
        Ok(self.blobs.iter().enumerate().map(split).collect())
    }

    fn open(
        &self,
        split: &Split,
        from: Option<&Position>,
        context: &ReaderContext,
    ) -> Result<Box<dyn SplitReader>, ConnectorError> {
        let blob = &self.blobs[split.number];
        let (input, version) = (input(&**blob, self.packed, context)?, blob.version());
        let input = VersionedInput { input, version };
        let refuser = Refuser::new(&self.target, context);
        Ok(Box::new(DecoderReader::open(&self.format, input, from, refuser)?))
    }
}
