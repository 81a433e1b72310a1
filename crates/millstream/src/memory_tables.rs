//! Tables and functions that the program gives to its session.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use plan::{BatchAggregate, BatchFunction, Diagnostic};

use crate::embedded::tables::{HeldTable, MEMORY, TABLE};
use crate::embedded::{AppendSource, FailedRows, MemoryTable};
use crate::error::Error;
use crate::session::Session;

impl Session {
    /// Makes a table of rows in memory, which ends. One of the same name that was made so before is
    /// replaced; queries that are planned go on with the rows of that one.
    ///
    /// # Errors
    /// [`Error::Usage`] when the name is that of another kind of table, or of a view.
    pub fn add_table(&mut self, name: &str, table: MemoryTable) -> Result<(), Error> {
        self.hold(name, HeldTable::Table(table), "")
    }

    /// Makes a table without an end, to which the program appends. `watermark` is empty, or what
    /// stands in the parentheses of `CREATE TABLE`:
    /// `WATERMARK FOR ts AS ts - INTERVAL '5' SECOND`.
    /// `bytes_max` bytes of rows may wait: see
    /// [`APPENDED_BYTES_MAX`](crate::embedded::APPENDED_BYTES_MAX).
    ///
    /// # Errors
    /// [`Error::Usage`] when the name is taken, or the watermark does not fit the columns.
    pub fn add_source(
        &mut self,
        name: &str,
        schema: SchemaRef,
        watermark: &str,
        bytes_max: usize,
    ) -> Result<AppendSource, Error> {
        let source = AppendSource::new(name, schema, bytes_max);
        self.hold(name, HeldTable::Appended(source.clone()), watermark)?;
        Ok(source)
    }

    /// Makes a table of the rows that the program puts aside. A table of the same name that was
    /// made so before is replaced.
    ///
    /// # Errors
    /// [`Error::Usage`] when the name is that of another kind of table, or of a view.
    pub fn add_failed_rows(&mut self, name: &str) -> Result<FailedRows, Error> {
        let kept = FailedRows::new();
        self.hold(name, HeldTable::Failed(kept.clone()), "")?;
        Ok(kept)
    }

    /// Adds a function to those of SQL. One of the same name that was added before is replaced.
    ///
    /// ```
    /// use std::sync::Arc;
    ///
    /// use arrow::array::{ArrayRef, AsArray};
    /// use arrow::compute::kernels::numeric::add;
    /// use arrow::datatypes::{DataType, Int64Type};
    /// use millstream::{BatchFunction, FunctionVolatility, Session};
    ///
    /// struct Twice;
    ///
    /// impl BatchFunction for Twice {
    ///     fn name(&self) -> &str {
    ///         "twice"
    ///     }
    ///     fn arguments(&self) -> &[DataType] {
    ///         &[DataType::Int64]
    ///     }
    ///     fn returns(&self) -> &DataType {
    ///         &DataType::Int64
    ///     }
    ///     fn volatility(&self) -> FunctionVolatility {
    ///         FunctionVolatility::Immutable
    ///     }
    ///     fn call(&self, args: &[ArrayRef], _rows: usize) -> Result<ArrayRef, String> {
    ///         add(&args[0], &args[0]).map_err(|error| error.to_string())
    ///     }
    /// }
    ///
    /// let mut session = Session::builder().build()?;
    /// session.add_function(Arc::new(Twice))?;
    /// let rows = session.collect("SELECT twice(x) AS y FROM (VALUES (20), (1)) AS t (x)")?;
    /// assert_eq!(rows[0].column(0).as_primitive::<Int64Type>().values(), &[40, 2]);
    /// # Ok::<(), millstream::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Usage`] when the name is that of another function, or cannot be one.
    pub fn add_function(&mut self, function: Arc<dyn BatchFunction>) -> Result<(), Error> {
        self.planner.add_function(function).map_err(misused)
    }

    /// Adds an aggregate to the functions of SQL. One of the same name that was added before is
    /// replaced.
    ///
    /// # Errors
    /// [`Error::Usage`] when the name is that of another function, or cannot be one, or when it has
    /// no arguments or no state.
    pub fn add_aggregate(&mut self, aggregate: Arc<dyn BatchAggregate>) -> Result<(), Error> {
        self.planner.add_aggregate(aggregate).map_err(misused)
    }

    fn hold(&mut self, name: &str, held: HeldTable, parenthesis: &str) -> Result<(), Error> {
        let quoted = format!("\"{}\"", name.replace('"', "\"\""));
        let key = name.replace('\'', "''");
        let is_ours = self.memory.lock().contains_key(name);
        let before = self.memory.lock().insert(name.to_owned(), held);
        let drop =
            if is_ours { format!("DROP TABLE IF EXISTS {quoted};\n") } else { String::new() };
        let within =
            if parenthesis.is_empty() { String::new() } else { format!("({parenthesis}) ") };
        let options = format!("'connector' = '{MEMORY}', '{TABLE}' = '{key}'");
        let sql = format!("{drop}CREATE TABLE {quoted} {within}WITH ({options})");
        let Err(diagnostics) = self.planner.plan(&sql) else { return Ok(()) };
        match before {
            Some(before) => self.memory.lock().insert(name.to_owned(), before),
            None => self.memory.lock().remove(name),
        };
        let first = diagnostics.into_iter().next();
        let (message, hint) =
            first.map_or((sql, None), |error| (error.message, error.hint.or(error.detail)));
        Err(Error::Usage { message, hint: hint.unwrap_or_else(|| "choose another name".into()) })
    }
}

fn misused(error: Diagnostic) -> Error {
    Error::Usage { message: error.message, hint: error.hint.unwrap_or_default() }
}
