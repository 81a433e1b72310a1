//! Sources whose readers are clones of one value.

use arrow::datatypes::SchemaRef;
use dataflow::error::ConnectorError;
use dataflow::source::{Position, ReaderContext, Source, Split, SplitReader};

/// A source of `splits` splits, each of which is read by a clone of `reader` from its beginning.
pub struct Flows<R> {
    pub schema: SchemaRef,
    pub bounded: bool,
    pub splits: u32,
    pub reader: R,
}

impl<R: SplitReader + Clone + Sync + 'static> Source for Flows<R> {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn bounded(&self) -> bool {
        self.bounded
    }

    fn splits(&self, _: u32, _: Option<usize>) -> Result<Vec<Split>, ConnectorError> {
        Ok(vec![Split::default(); self.splits as usize])
    }

    fn open(
        &self,
        _: &Split,
        _: Option<&Position>,
        _: &ReaderContext,
    ) -> Result<Box<dyn SplitReader>, ConnectorError> {
        Ok(Box::new(self.reader.clone()))
    }
}
