//! Computed columns: `name AS expression` in `CREATE TABLE`.
//!
//! A source of such a table reads what its expressions need and evaluates them batch by batch, so
//! that whatever comes behind it — watermarks too — takes a computed column for one of the data.

use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use dataflow::error::ConnectorError;
use dataflow::source::{ColumnBounds, Next, Position, ReaderContext, Source, Split, SplitReader};
use datafusion::error::Result as DfResult;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::utils::{collect_columns, reassign_expr_columns};

use crate::expr::failure::message_of;
use crate::text::wording::runtime_message;

/// An expression over the columns that a table reads.
#[derive(Debug, Clone)]
pub(crate) struct Computed {
    expr: Arc<dyn PhysicalExpr>,
    /// The column that it makes.
    pub(crate) field: Field,
}

impl Computed {
    /// The column `name` of an expression over columns of `schema`; any kind of text is VARCHAR.
    pub(crate) fn new(name: &str, expr: Arc<dyn PhysicalExpr>, schema: &Schema) -> DfResult<Self> {
        let data_type = match expr.data_type(schema)? {
            text if text.is_string() => DataType::Utf8,
            DataType::Dictionary(_, values) => *values,
            other => other,
        };
        let field = Field::new(name, data_type, expr.nullable(schema)?);
        Ok(Self { expr, field })
    }

    /// Whether it is `PROCTIME()` and nothing else.
    pub(crate) fn is_proctime(&self) -> bool {
        self.expr.to_string() == "proctime()"
    }

    /// The names of the columns that it needs.
    pub(crate) fn inputs(&self) -> Vec<String> {
        collect_columns(&self.expr).iter().map(|column| column.name().to_owned()).collect()
    }
}

/// An output column of a [`ComputingSource`].
#[derive(Debug, Clone)]
enum Output {
    /// As it was read, by position.
    Read(usize),
    Computed(Computed),
}

/// A source and what is computed from its rows.
pub(crate) struct ComputingSource {
    inner: Arc<dyn Source>,
    outputs: Arc<[Output]>,
    schema: SchemaRef,
}

impl ComputingSource {
    /// Gives out `outputs`: columns of `inner` by name, or computed from them.
    pub(crate) fn new(
        inner: Arc<dyn Source>,
        outputs: Vec<Result<String, Box<Computed>>>,
    ) -> DfResult<Self> {
        let read = inner.schema();
        let mut fields = Vec::with_capacity(outputs.len());
        let outputs = outputs.into_iter().map(|output| match output {
            Ok(name) => {
                let index = read.index_of(&name)?;
                fields.push(read.field(index).clone());
                Ok(Output::Read(index))
            }
            Err(computed) => {
                fields.push(computed.field.clone());
                let expr = reassign_expr_columns(computed.expr, &read)?;
                Ok(Output::Computed(Computed { expr, field: computed.field }))
            }
        });
        let outputs = outputs.collect::<DfResult<Arc<[Output]>>>()?;
        Ok(Self { inner, outputs, schema: Arc::new(Schema::new(fields)) })
    }
}

impl Source for ComputingSource {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn bounded(&self) -> bool {
        self.inner.bounded()
    }

    fn repeats(&self) -> bool {
        self.inner.repeats()
    }

    fn splits(
        &self,
        workers: u32,
        time_column: Option<usize>,
    ) -> Result<Vec<Split>, ConnectorError> {
        let read = time_column.and_then(|column| match self.outputs.get(column)? {
            Output::Read(index) => Some(*index),
            Output::Computed(_) => None,
        });
        self.inner.splits(workers, read)
    }

    fn bounds(&self, column: usize) -> ColumnBounds {
        match self.outputs.get(column) {
            Some(&Output::Read(index)) => self.inner.bounds(index),
            _ => ColumnBounds::default(),
        }
    }

    fn open(
        &self,
        split: &Split,
        from: Option<&Position>,
        context: &ReaderContext,
    ) -> Result<Box<dyn SplitReader>, ConnectorError> {
        Ok(Box::new(ComputingFlow {
            inner: self.inner.open(split, from, context)?,
            outputs: Arc::clone(&self.outputs),
            schema: Arc::clone(&self.schema),
        }))
    }
}

struct ComputingFlow {
    inner: Box<dyn SplitReader>,
    outputs: Arc<[Output]>,
    schema: SchemaRef,
}

impl SplitReader for ComputingFlow {
    fn next(&mut self, rows_max: usize) -> Result<Next, ConnectorError> {
        let batch = match self.inner.next(rows_max)? {
            Next::Batch(batch) => batch,
            next => return Ok(next),
        };
        let columns = self.outputs.iter().map(|output| match output {
            Output::Read(index) => Ok(Arc::clone(batch.column(*index))),
            Output::Computed(computed) => compute(computed, &batch),
        });
        let columns = columns.collect::<Result<Vec<_>, ConnectorError>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options)
            .map(Next::Batch)
            .map_err(|error| refused("*", error.to_string()))
    }

    fn position(&self) -> Position {
        self.inner.position()
    }

    fn owes(&self) -> bool {
        self.inner.owes()
    }
}

fn compute(computed: &Computed, batch: &RecordBatch) -> Result<ArrayRef, ConnectorError> {
    let Computed { expr, field } = computed;
    let value = expr.evaluate(batch).and_then(|value| value.into_array(batch.num_rows()));
    let array =
        value.map_err(|error| refused(field.name(), runtime_message(&message_of(&error))))?;
    cast(&array, field.data_type()).map_err(|error| refused(field.name(), error.to_string()))
}

/// The error that a row has no value of a computed column.
fn refused(column: &str, message: String) -> ConnectorError {
    ConnectorError::Column { column: column.to_owned(), message, hint: None }
}
