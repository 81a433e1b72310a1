//! What the two engines answer, as text that is equal where the values are.

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Decimal128Type, Float64Type, Int64Type};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use rusqlite::types::Value;
use rusqlite::{Connection, Error, params_from_iter};

use super::{Dialect, Query, Relation};

/// Rows as text; sorted if the query leaves their order open.
pub type Rows = Vec<String>;

/// A database of SQLite in memory.
pub struct Sqlite(Connection);

impl Sqlite {
    /// One with these tables.
    ///
    /// # Panics
    /// When SQLite does not take them.
    pub fn new(tables: &[Relation]) -> Self {
        let connection = Connection::open_in_memory().expect("memory");
        connection.pragma_update(None, "case_sensitive_like", true).expect("it is known");
        for table in tables {
            connection.execute_batch(&table.declared_there()).expect("a table");
            let places = vec!["?"; table.rows.num_columns()].join(", ");
            let sql = format!("INSERT INTO {} VALUES ({places})", table.name);
            let mut insert = connection.prepare(&sql).expect("a statement");
            for row in values(&table.rows) {
                insert.execute(params_from_iter(row)).expect("a row");
            }
        }
        Self(connection)
    }

    /// Adds a view.
    ///
    /// # Errors
    /// SQLite's.
    pub fn view(&self, name: &str, sql: &str) -> Result<(), Error> {
        self.0.execute_batch(&format!("CREATE VIEW {name} AS {}", Dialect::Theirs.of(sql)))
    }

    /// The rows of a query.
    ///
    /// # Errors
    /// SQLite's.
    pub fn rows(&self, query: &Query) -> Result<Rows, Error> {
        let mut statement = self.0.prepare(&Dialect::Theirs.of(&query.sql))?;
        let columns = statement.column_count();
        let mut found = statement.query([])?;
        let mut rows = vec![];
        while let Some(row) = found.next()? {
            let values = (0..columns).map(|at| row.get::<_, Value>(at));
            rows.push(shown(values.collect::<Result<_, _>>()?));
        }
        Ok(in_order(rows, query))
    }
}

/// Our rows.
pub fn ours(batches: &[RecordBatch], query: &Query) -> Rows {
    in_order(batches.iter().flat_map(values).map(shown).collect(), query)
}

fn in_order(mut rows: Rows, query: &Query) -> Rows {
    if !query.ordered {
        rows.sort();
    }
    rows
}

fn shown(row: Vec<Value>) -> String {
    let text = |value: Value| match value {
        Value::Null => "NULL".into(),
        Value::Integer(number) => number.to_string(),
        // SQLite gives whole numbers as integers where it can, and has no -0.0.
        Value::Real(number) if number.fract() == 0.0 && number.abs() < 1e15 => {
            (number as i64).to_string()
        }
        Value::Real(number) => format!("{number:?}"),
        Value::Text(text) => format!("'{text}'"),
        Value::Blob(bytes) => format!("{bytes:?}"),
    };
    row.into_iter().map(text).collect::<Vec<_>>().join("|")
}

/// The rows of a batch as SQLite has them.
fn values(batch: &RecordBatch) -> Vec<Vec<Value>> {
    let columns: Vec<_> = batch.columns().iter().map(|column| column_values(column)).collect();
    (0..batch.num_rows()).map(|row| columns.iter().map(|of| of[row].clone()).collect()).collect()
}

fn column_values(column: &dyn Array) -> Vec<Value> {
    let some = |row: usize, value: Value| if column.is_null(row) { Value::Null } else { value };
    let rows = 0..column.len();
    let as_type = |of: DataType| cast(column, &of).expect("it converts");
    match column.data_type() {
        DataType::Null => rows.map(|_| Value::Null).collect(),
        DataType::Float16 | DataType::Float32 | DataType::Float64 => {
            let floats = as_type(DataType::Float64);
            let floats = floats.as_primitive::<Float64Type>();
            rows.map(|row| some(row, Value::Real(floats.value(row)))).collect()
        }
        // A whole number of 64 bits without a sign, beside one with a sign.
        DataType::Decimal128(_, 0) => {
            let numbers = column.as_primitive::<Decimal128Type>();
            rows.map(|row| some(row, Value::Integer(numbers.value(row) as i64))).collect()
        }
        DataType::Decimal128(_, scale) => {
            let decimals = column.as_primitive::<Decimal128Type>();
            let (more, less) = ((*scale - 2).max(0) as u32, (2 - *scale).max(0) as u32);
            let hundredths = |row| decimals.value(row) * 10_i128.pow(less) / 10_i128.pow(more);
            rows.map(|row| some(row, Value::Integer(hundredths(row) as i64))).collect()
        }
        of if of.is_integer() || *of == DataType::Boolean => {
            let numbers = as_type(DataType::Int64);
            let numbers = numbers.as_primitive::<Int64Type>();
            rows.map(|row| some(row, Value::Integer(numbers.value(row)))).collect()
        }
        _ => {
            let options =
                FormatOptions::default().with_timestamp_format(Some("%Y-%m-%d %H:%M:%S%.3f"));
            let texts = ArrayFormatter::try_new(column, &options).expect("every type prints");
            rows.map(|row| some(row, Value::Text(texts.value(row).to_string()))).collect()
        }
    }
}
