//! The formats that are read in order as a source: a blob is a split, or a range of a large one.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use dataflow::error::ConnectorError;
use dataflow::position::refused;
use dataflow::source::{Position, ReaderContext, Source, Split, SplitReader};

use super::ranges::Ranges;
use super::{Blob, beginning, input, of_several};
use crate::format::{Compression, DecoderReader, Format, Refuser, TargetColumns, VersionedInput};

/// Blobs that are read in order.
pub(super) struct TextSource {
    blobs: Vec<Arc<dyn Blob>>,
    format: Format,
    /// How they are packed, where their names do not tell.
    packed: Option<Compression>,
    target: Arc<TargetColumns>,
    /// The ranges of each blob that may be cut.
    ranges: Vec<Option<Ranges>>,
}

impl TextSource {
    /// Blobs of which one is cut if it has more than `split_bytes`.
    pub(super) fn open(
        blobs: Vec<Arc<dyn Blob>>,
        format: Format,
        packed: Option<Compression>,
        target: Arc<TargetColumns>,
        split_bytes: u64,
    ) -> Result<Self, ConnectorError> {
        format.check(&target.declared)?;
        let ranges = blobs.iter().map(|blob| {
            let packed = packed.unwrap_or_else(|| Compression::of(&blob.name()));
            let cut = format.cut(target.declared.fields().len());
            let cut = cut.filter(|_| packed == Compression::None)?;
            Ranges::new(blob, (cut, matches!(format, Format::Json)), split_bytes)
        });
        let ranges = ranges.collect();
        let mut source = Self { blobs, format, packed, target, ranges };
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

    /// The blob of each split, and its range.
    fn flows(&self, cut: bool) -> impl Iterator<Item = (usize, Option<(&Ranges, usize)>)> {
        self.ranges.iter().enumerate().flat_map(move |(blob, ranges)| {
            let ranges = ranges.as_ref().filter(|_| cut);
            let count = ranges.map_or(1, Ranges::count);
            (0..count).map(move |range| (blob, ranges.map(|ranges| (ranges, range))))
        })
    }

    fn listed(&self, cut: bool) -> Vec<Split> {
        let names = self.flows(cut).map(|(blob, range)| {
            let whole = || (self.blobs[blob].name(), self.blobs[blob].bytes());
            range.map_or_else(whole, |(ranges, range)| ranges.name_and_bytes(range))
        });
        let splits = names.enumerate().map(|(number, (name, bytes))| Split {
            number,
            name,
            bytes: Some(bytes),
            ..Split::default()
        });
        splits.collect()
    }
}

impl Source for TextSource {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.target.projected)
    }

    fn bounded(&self) -> bool {
        true
    }

    /// A single worker has no use for ranges, and rows with a watermark keep the order of a blob.
    fn splits(
        &self,
        workers: u32,
        time_column: Option<usize>,
    ) -> Result<Vec<Split>, ConnectorError> {
        Ok(self.listed(workers > 1 && time_column.is_none()))
    }

    fn splits_in_order(&self, _workers: u32) -> Result<Vec<Split>, ConnectorError> {
        Ok(self.listed(false))
    }

    fn open(
        &self,
        split: &Split,
        from: Option<&Position>,
        context: &ReaderContext,
    ) -> Result<Box<dyn SplitReader>, ConnectorError> {
        let cut = self.flows(true).nth(split.number).and_then(|(blob, range)| {
            let (ranges, range) = range?;
            (ranges.name_and_bytes(range).0 == split.name).then_some((blob, ranges, range))
        });
        let (blob, range) = match cut {
            Some((blob, ranges, range)) => (&self.blobs[blob], Some(ranges.range(range)?)),
            None => match self.blobs.get(split.number) {
                Some(blob) => (blob, None),
                None => return Err(refused(&split.name, "there is no such split".into())),
            },
        };
        let (input, version) = (input(blob, self.packed, context)?, blob.version());
        let input = VersionedInput { input, version };
        let refuser = Refuser::new(&self.target, context);
        let part = (split.name.as_str(), range);
        Ok(Box::new(DecoderReader::open(&self.format, input, part, from, refuser)?))
    }
}
