//! Computed columns: `name AS expression` in `CREATE TABLE`.
//!
//! The scan of such a table reads what its expressions need, and a step of it evaluates them batch
//! by batch: all steps and operators behind it, and the watermark, see a column like any other.

use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use dataflow::error::ConnectorError;
use dataflow::scan::{ScanStep, SplitStep};
use dataflow::source::{ReaderContext, Split};
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

/// An output column of [`Compute`].
#[derive(Debug, Clone)]
enum Output {
    /// As it was read, by position.
    Read(usize),
    Computed(Computed),
}

/// The step of a scan that computes columns from the columns that are read.
#[derive(Clone)]
pub(crate) struct Compute {
    outputs: Arc<[Output]>,
    schema: SchemaRef,
}

impl Compute {
    /// Gives `outputs`: columns of `read` by name, or computed from them.
    pub(crate) fn new(
        read: &Schema,
        outputs: Vec<Result<String, Box<Computed>>>,
    ) -> DfResult<Self> {
        let mut fields = Vec::with_capacity(outputs.len());
        let outputs = outputs.into_iter().map(|output| match output {
            Ok(name) => {
                let index = read.index_of(&name)?;
                fields.push(read.field(index).clone());
                Ok(Output::Read(index))
            }
            Err(computed) => {
                fields.push(computed.field.clone());
                let expr = reassign_expr_columns(computed.expr, read)?;
                Ok(Output::Computed(Computed { expr, field: computed.field }))
            }
        });
        let outputs = outputs.collect::<DfResult<Arc<[Output]>>>()?;
        Ok(Self { outputs, schema: Arc::new(Schema::new(fields)) })
    }

    /// Whether it does anything: the columns that are read are those that outputs need.
    pub(crate) fn is_needed(&self) -> bool {
        let is_read =
            |(at, output): (usize, &Output)| matches!(output, Output::Read(from) if *from == at);
        !self.outputs.iter().enumerate().all(is_read)
    }
}

impl ScanStep for Compute {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn is_stateless(&self) -> bool {
        true
    }

    fn passes_on(&self, output: usize) -> Option<usize> {
        match self.outputs.get(output)? {
            Output::Read(index) => Some(*index),
            Output::Computed(_) => None,
        }
    }

    fn open(&self, _: &Split, _: &mut ReaderContext) -> Box<dyn SplitStep> {
        Box::new(self.clone())
    }

    fn describe(&self) -> String {
        let computed = self.outputs.iter().filter_map(|output| match output {
            Output::Read(_) => None,
            Output::Computed(computed) => Some(computed.field.name().as_str()),
        });
        format!("compute {}", computed.collect::<Vec<_>>().join(", "))
    }
}

impl SplitStep for Compute {
    fn apply(&mut self, batch: RecordBatch) -> Result<RecordBatch, ConnectorError> {
        let columns = self.outputs.iter().map(|output| match output {
            Output::Read(index) => Ok(Arc::clone(batch.column(*index))),
            Output::Computed(computed) => compute(computed, &batch),
        });
        let columns = columns.collect::<Result<Vec<_>, ConnectorError>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options)
            .map_err(|error| refused("*", error.to_string()))
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
