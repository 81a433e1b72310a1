//! Columns that grow by a value at a time, of formats that know their types: Avro and Protobuf.
//!
//! Invariant: all columns of a table have as many values as there are whole rows, between two rows.
//! A row of which a value cannot be read is taken back.

use std::sync::Arc;

use arrow::array::{ArrayData, ArrayRef, BooleanBufferBuilder, make_array};
use arrow::buffer::Buffer;
use arrow::datatypes::{ArrowNativeType, DataType, Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use dataflow::error::ConnectorError;

use super::rows::{TargetColumns, unfit};
use super::typed::Mapping;

/// A column that grows.
#[derive(Debug)]
pub(crate) struct ValueCells {
    data_type: DataType,
    valid: BooleanBufferBuilder,
    pub(crate) values: CellValues,
}

/// The values of a column by how they lie in memory.
#[derive(Debug)]
pub(crate) enum CellValues {
    /// Nothing but NULL.
    Nothing,
    Bools(BooleanBufferBuilder),
    Ints(Vec<i32>),
    Longs(Vec<i64>),
    Floats(Vec<f32>),
    Doubles(Vec<f64>),
    Decimals(Vec<i128>),
    /// Texts or bytes.
    Texts(TextCells),
    Rows(Vec<ValueCells>),
    Lists(CellRuns, Box<ValueCells>),
    Maps(CellRuns, Box<[ValueCells; 2]>),
}

/// Texts or bytes, one behind the other.
#[derive(Debug, Default)]
pub(crate) struct TextCells {
    runs: CellRuns,
    bytes: Vec<u8>,
}

impl TextCells {
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.bytes.extend_from_slice(bytes);
        self.runs.push(self.bytes.len())
    }
}

/// Where the values of a row end among those of all.
#[derive(Debug)]
pub(crate) struct CellRuns(Vec<i32>);

impl Default for CellRuns {
    fn default() -> Self {
        Self(vec![0])
    }
}

impl CellRuns {
    /// Ends the values of a row: there are `count` of all rows.
    ///
    /// # Errors
    /// When they are more than a column has.
    pub(crate) fn push(&mut self, count: usize) -> Result<(), String> {
        let count = i32::try_from(count);
        self.0.push(count.map_err(|_| "the values of a column are too large together")?);
        Ok(())
    }

    fn end(&self) -> usize {
        self.0.last().map_or(0, |end| end.as_usize())
    }

    /// Takes back all rows but the first ones; gives how many values are left.
    fn truncate(&mut self, rows: usize) -> usize {
        self.0.truncate(rows + 1);
        self.end()
    }

    fn finish(&mut self) -> Buffer {
        Buffer::from_vec(std::mem::take(self).0)
    }
}

impl ValueCells {
    /// An empty column; `None` where there is no way to fill one of that type.
    pub(crate) fn new(data_type: &DataType) -> Option<Self> {
        use DataType::{
            Binary, Boolean, Date32, Decimal128, Float32, Float64, Int32, Int64, List, Map, Null,
            Struct, Time32, Time64, Timestamp, UInt64, Utf8,
        };
        let values = match data_type {
            Null => CellValues::Nothing,
            Boolean => CellValues::Bools(BooleanBufferBuilder::new(0)),
            Int32 | Date32 | Time32(_) => CellValues::Ints(vec![]),
            Int64 | UInt64 | Time64(_) | Timestamp(..) => CellValues::Longs(vec![]),
            Float32 => CellValues::Floats(vec![]),
            Float64 => CellValues::Doubles(vec![]),
            Decimal128(..) => CellValues::Decimals(vec![]),
            Utf8 | Binary => CellValues::Texts(TextCells::default()),
            Struct(fields) => {
                let fields = fields.iter().map(|field| Self::new(field.data_type()));
                CellValues::Rows(fields.collect::<Option<_>>()?)
            }
            List(item) => {
                CellValues::Lists(CellRuns::default(), Box::new(Self::new(item.data_type())?))
            }
            Map(entries, _) => match entries.data_type() {
                Struct(fields) if fields.len() == 2 => {
                    let [key, value] = [0, 1].map(|at| Self::new(fields[at].data_type()));
                    CellValues::Maps(CellRuns::default(), Box::new([key?, value?]))
                }
                _ => return None,
            },
            _ => return None,
        };
        Some(Self { data_type: data_type.clone(), valid: BooleanBufferBuilder::new(0), values })
    }

    pub(crate) fn data_type(&self) -> &DataType {
        &self.data_type
    }

    pub(crate) fn len(&self) -> usize {
        self.valid.len()
    }

    /// A value was pushed.
    pub(crate) fn pushed(&mut self) {
        self.valid.append(true);
    }

    pub(crate) fn push_null(&mut self) -> Result<(), String> {
        match &mut self.values {
            CellValues::Nothing => {}
            CellValues::Bools(values) => values.append(false),
            CellValues::Ints(values) => values.push(0),
            CellValues::Longs(values) => values.push(0),
            CellValues::Floats(values) => values.push(0.0),
            CellValues::Doubles(values) => values.push(0.0),
            CellValues::Decimals(values) => values.push(0),
            CellValues::Texts(texts) => texts.push(b"")?,
            CellValues::Rows(fields) => fields.iter_mut().try_for_each(Self::push_null)?,
            CellValues::Lists(runs, items) => runs.push(items.len())?,
            CellValues::Maps(runs, entries) => runs.push(entries[0].len())?,
        }
        self.valid.append(false);
        Ok(())
    }

    /// Takes back all values but the first ones.
    pub(crate) fn truncate(&mut self, rows: usize) {
        self.valid.truncate(rows);
        match &mut self.values {
            CellValues::Nothing => {}
            CellValues::Bools(values) => values.truncate(rows),
            CellValues::Ints(values) => values.truncate(rows),
            CellValues::Longs(values) => values.truncate(rows),
            CellValues::Floats(values) => values.truncate(rows),
            CellValues::Doubles(values) => values.truncate(rows),
            CellValues::Decimals(values) => values.truncate(rows),
            CellValues::Texts(TextCells { runs, bytes }) => bytes.truncate(runs.truncate(rows)),
            CellValues::Rows(fields) => fields.iter_mut().for_each(|field| field.truncate(rows)),
            CellValues::Lists(runs, items) => items.truncate(runs.truncate(rows)),
            CellValues::Maps(runs, entries) => {
                let left = runs.truncate(rows);
                entries.iter_mut().for_each(|entry| entry.truncate(left));
            }
        }
    }

    /// The column, which is empty afterwards.
    pub(crate) fn finish(&mut self) -> Result<ArrayRef, ArrowError> {
        self.finish_data().map(make_array)
    }

    fn finish_data(&mut self) -> Result<ArrayData, ArrowError> {
        let rows = self.valid.len();
        let valid = self.valid.finish();
        let builder = ArrayData::builder(self.data_type.clone()).len(rows);
        let builder = match &mut self.values {
            CellValues::Nothing => return builder.build(),
            CellValues::Bools(values) => builder.add_buffer(values.finish().into_inner()),
            CellValues::Ints(values) => builder.add_buffer(taken(values)),
            CellValues::Longs(values) => builder.add_buffer(taken(values)),
            CellValues::Floats(values) => builder.add_buffer(taken(values)),
            CellValues::Doubles(values) => builder.add_buffer(taken(values)),
            CellValues::Decimals(values) => builder.add_buffer(taken(values)),
            CellValues::Texts(TextCells { runs, bytes }) => {
                builder.add_buffer(runs.finish()).add_buffer(taken(bytes))
            }
            CellValues::Rows(fields) => {
                let fields = fields.iter_mut().map(Self::finish_data);
                builder.child_data(fields.collect::<Result<_, _>>()?)
            }
            CellValues::Lists(runs, items) => {
                builder.add_buffer(runs.finish()).add_child_data(items.finish_data()?)
            }
            CellValues::Maps(runs, entries) => {
                let DataType::Map(of, _) = &self.data_type else { return builder.build() };
                let count = entries[0].len();
                let entries = entries.iter_mut().map(Self::finish_data);
                let entries = ArrayData::builder(of.data_type().clone())
                    .len(count)
                    .child_data(entries.collect::<Result<_, _>>()?)
                    .build()?;
                builder.add_buffer(runs.finish()).add_child_data(entries)
            }
        };
        builder.null_bit_buffer(Some(valid.into_inner())).build()
    }
}

fn taken<T: ArrowNativeType>(values: &mut Vec<T>) -> Buffer {
    Buffer::from_vec(std::mem::take(values))
}

/// The columns of a table that grow by a row at a time, of the types that the data have.
#[derive(Debug)]
pub(crate) struct GrowingRows {
    pub(crate) mapping: Mapping,
    /// The columns of the data that are read.
    schema: SchemaRef,
    columns: Vec<ValueCells>,
    rows: usize,
}

impl GrowingRows {
    /// For data of these columns at `place`.
    ///
    /// # Errors
    /// When they do not fit the table.
    pub(crate) fn new(
        target: &TargetColumns,
        schema: &Schema,
        place: &str,
    ) -> Result<Self, ConnectorError> {
        let mapping = Mapping::new(target, schema, place)?;
        let schema = schema.project(&mapping.columns_read());
        let schema = schema.map_err(|error| unfit(place, &error))?;
        let columns = schema.fields().iter().map(|field| {
            ValueCells::new(field.data_type()).ok_or_else(|| ConnectorError::Column {
                column: field.name().clone(),
                message: format!("{} is not read from {place}", field.data_type()),
                hint: Some("leave it out".into()),
            })
        });
        let columns = columns.collect::<Result<_, _>>()?;
        Ok(Self { mapping, schema: Arc::new(schema), columns, rows: 0 })
    }

    /// Whole rows.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Adds a row: `fill` pushes a value to each column, in the order of those that are
    /// [read](Mapping::columns_read).
    ///
    /// # Errors
    /// The error of `fill`; then nothing was added.
    pub(crate) fn push(
        &mut self,
        fill: impl FnOnce(&mut [ValueCells]) -> Result<(), String>,
    ) -> Result<(), String> {
        let rows = self.rows;
        let filled = fill(&mut self.columns);
        if filled.is_ok() {
            self.rows += 1;
        } else {
            self.columns.iter_mut().for_each(|column| column.truncate(rows));
        }
        filled
    }

    /// The rows, which are none afterwards.
    pub(crate) fn finish(&mut self) -> Result<RecordBatch, ArrowError> {
        let columns = self.columns.iter_mut().map(ValueCells::finish).collect::<Result<_, _>>()?;
        let rows = RecordBatchOptions::new().with_row_count(Some(std::mem::take(&mut self.rows)));
        RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &rows)
    }
}
