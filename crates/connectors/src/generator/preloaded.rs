//! Rows that were made in advance: as columns, or as records that are
//! decoded then.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, DictionaryArray};
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, Field, Int8Type, Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use dataflow::error::ConnectorError;

use super::columns::word_type;
use super::flow::unfit;
use crate::format::fixed::{FixedLayout, FixedOptions};
use crate::options::{OptionReader, refuse};

/// Blocks that are kept in one run, if rows have no strings.
const RUN_BLOCKS: usize = 1024;

/// How rows are kept.
#[derive(Debug, Clone)]
pub(super) enum Preload {
    Columns,
    Records(FixedOptions),
}

impl Preload {
    /// By the options; `None` where rows are not made in advance.
    pub(super) fn new(options: OptionReader<'_>) -> Result<Option<Self>, ConnectorError> {
        let preload = options.bool("preload", false)?;
        let is_fixed = options.choice("layout", &["columns", "fixed"])? == Some(1);
        let key = "fixed.record_bytes";
        if !is_fixed && options.text(key).is_some() {
            let hint = Some("write 'layout' = 'fixed'".to_owned());
            return Err(refuse(key, "speaks of records, and rows are kept as columns", hint));
        }
        if !preload {
            let hint = Some("write 'preload' = 'true'".to_owned());
            let unused = options.text("layout").map(|_| refuse("layout", "needs rows kept", hint));
            return unused.map_or(Ok(None), Err);
        }
        if !is_fixed {
            return Ok(Some(Self::Columns));
        }
        FixedOptions::new(options).map(Self::Records).map(Some)
    }
}

/// Where the columns that are read stand in a record. Words are their numbers.
fn layout(schema: &Schema, given: &FixedOptions) -> Result<FixedLayout, ConnectorError> {
    let fields = schema.fields().iter().map(|field| match field.data_type() {
        words if *words == word_type() => {
            Ok(Arc::new(field.as_ref().clone().with_data_type(DataType::Int8)))
        }
        DataType::Utf8 => Err(ConnectorError::Column {
            column: field.name().clone(),
            message: "its texts have no fixed length".into(),
            hint: Some("leave 'layout' out".into()),
        }),
        _ => Ok(Arc::clone(field)),
    });
    let fields: Vec<Arc<Field>> = fields.collect::<Result<_, _>>()?;
    FixedLayout::new(&Schema::new(fields), given)
}

/// How many rows blocks have.
pub(super) struct BlockRows {
    /// One of them.
    pub(super) each: usize,
    /// All of them.
    pub(super) all: u64,
}

/// Blocks of a flow that were made in advance.
pub(super) enum Preloaded {
    Columns(Runs),
    Records(Records),
}

impl Preloaded {
    /// # Errors
    /// When a column or a value has no place in a record.
    pub(super) fn new(
        keep: &Preload,
        schema: &SchemaRef,
        BlockRows { each: block_rows, all: rows }: BlockRows,
        blocks: impl Iterator<Item = Result<RecordBatch, ArrowError>>,
    ) -> Result<Self, ConnectorError> {
        match keep {
            Preload::Columns => Runs::new(schema, block_rows, blocks).map(Self::Columns),
            Preload::Records(given) => {
                let layout = layout(schema, given)?;
                let bytes = (rows as usize).saturating_mul(layout.record_bytes());
                Records::new(layout, schema, block_rows, bytes, blocks).map(Self::Records)
            }
        }
        .map_err(unfit)
    }

    /// A block, by its number among those of the flow, and some of those behind it, up to so many
    /// together.
    pub(super) fn get(
        &self,
        index: usize,
        blocks: usize,
    ) -> Result<Option<RecordBatch>, ArrowError> {
        match self {
            Self::Columns(runs) => Ok(runs.get(index, blocks)),
            Self::Records(records) => records.get(index, blocks),
        }
    }
}

/// Blocks as they were made. Many lie one behind the other in the arrays of a run: a reader of one
/// counts references to arrays that are in a cache, whereas each block's own would have to be
/// fetched from memory one after the other. Strings would bring the buffers of all blocks along:
/// with them each block is a run of its own.
pub(super) struct Runs {
    runs: Vec<RecordBatch>,
    run_blocks: usize,
    block_rows: usize,
}

impl Runs {
    fn new(
        schema: &SchemaRef,
        block_rows: usize,
        blocks: impl Iterator<Item = Result<RecordBatch, ArrowError>>,
    ) -> Result<Self, ArrowError> {
        let plain = |field: &Arc<Field>| match field.data_type() {
            DataType::Dictionary(..) => true,
            other => other.is_primitive(),
        };
        let run_blocks = if schema.fields().iter().all(plain) { RUN_BLOCKS } else { 1 };
        let mut kept = Self { runs: vec![], run_blocks, block_rows };
        let mut run = Vec::with_capacity(run_blocks);
        for block in blocks {
            run.push(block?);
            if run.len() == run_blocks {
                kept.runs.push(concat_batches(schema, &run)?);
                run.clear();
            }
        }
        kept.runs.push(concat_batches(schema, &run)?);
        Ok(kept)
    }

    fn get(&self, index: usize, blocks: usize) -> Option<RecordBatch> {
        let run = self.runs.get(index / self.run_blocks)?;
        let first = index % self.run_blocks * self.block_rows;
        let rows = run.num_rows().checked_sub(first)?.min(blocks * self.block_rows);
        (rows > 0).then(|| run.slice(first, rows))
    }
}

/// Blocks as records, one behind the other.
pub(super) struct Records {
    layout: FixedLayout,
    schema: SchemaRef,
    block_rows: usize,
    bytes: Vec<u8>,
    /// All columns.
    columns: Vec<usize>,
    /// The words of columns that have few different ones; records have their numbers.
    words: Vec<Option<ArrayRef>>,
}

impl Records {
    /// Reserves `bytes` bytes.
    fn new(
        layout: FixedLayout,
        schema: &SchemaRef,
        block_rows: usize,
        bytes: usize,
        blocks: impl Iterator<Item = Result<RecordBatch, ArrowError>>,
    ) -> Result<Self, ArrowError> {
        let fields = schema.fields().len();
        let (mut kept, mut words) = (Vec::new(), vec![None; fields]);
        kept.try_reserve_exact(bytes).map_err(|error| {
            ArrowError::MemoryError(format!("{bytes} bytes of records: {error}"))
        })?;
        for block in blocks {
            let block = block?;
            let columns = block.columns().iter().zip(&mut words).map(|(column, words)| {
                let Some(numbered) = column.as_dictionary_opt::<Int8Type>() else {
                    return Arc::clone(column);
                };
                words.get_or_insert_with(|| Arc::clone(numbered.values()));
                Arc::new(numbered.keys().clone()) as ArrayRef
            });
            let columns: Vec<ArrayRef> = columns.collect();
            layout
                .encode(&columns, block.num_rows(), &mut kept)
                .map_err(ArrowError::InvalidArgumentError)?;
        }
        let (schema, columns) = (Arc::clone(schema), (0..fields).collect());
        Ok(Self { layout, schema, block_rows, bytes: kept, columns, words })
    }

    fn get(&self, index: usize, blocks: usize) -> Result<Option<RecordBatch>, ArrowError> {
        let block_bytes = self.block_rows * self.layout.record_bytes();
        let begin = (index * block_bytes).min(self.bytes.len());
        let block = &self.bytes[begin..self.bytes.len().min(begin + blocks * block_bytes)];
        if block.is_empty() {
            return Ok(None);
        }
        let columns = self.layout.decode(block, &self.columns)?.into_iter().zip(&self.words);
        let columns = columns.map(|(column, words)| match words {
            None => Ok(column),
            Some(words) => {
                let keys = column.as_primitive::<Int8Type>().clone();
                Ok(Arc::new(DictionaryArray::try_new(keys, Arc::clone(words))?) as ArrayRef)
            }
        });
        let rows = Some(block.len() / self.layout.record_bytes());
        RecordBatch::try_new_with_options(
            Arc::clone(&self.schema),
            columns.collect::<Result<_, ArrowError>>()?,
            &RecordBatchOptions::new().with_row_count(rows),
        )
        .map(Some)
    }
}
