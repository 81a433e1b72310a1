//! Jobs without SQL, and of both: see [`stream`].

use std::sync::Arc;

use arrow::record_batch::RecordBatch;
use dataflow::sink::Sink;
use plan::Diagnostic;
use stream::{Output, Setup, Stream};

use crate::collect::Collected;
use crate::error::Error;
use crate::script::{RunOptions, Script};
use crate::session::Session;

impl Session {
    /// The rows of a `SELECT`, with the event time of its table where the query gives it out.
    ///
    /// # Errors
    /// [`Error::Sql`] with what is wrong with it, or does not stream.
    pub fn stream(&mut self, query: &str) -> Result<Stream, Error> {
        let fragment = self.planner.fragment(query).map_err(Error::Sql)?;
        Ok(Stream::of_fragment(&fragment))
    }

    /// The rows of a table that SQL has declared.
    ///
    /// # Errors
    /// [`Error::Sql`] when there is no such table, or it cannot be read.
    pub fn table(&mut self, name: &str) -> Result<Stream, Error> {
        self.stream(&format!("SELECT * FROM \"{}\"", name.replace('"', "\"\"")))
    }

    /// Gives a stream a name that SQL may read it by. As with tables, each query that reads it runs
    /// the stream's operators for itself.
    ///
    /// # Errors
    /// [`Error::Usage`] when the name is taken, and [`Error::Stream`] when the stream cannot be
    /// lowered.
    pub fn register(&mut self, name: &str, stream: &Stream) -> Result<(), Error> {
        let fragment = stream::fragment(stream, &self.setup())?;
        self.planner.register(name, fragment).map_err(usage)
    }

    /// The rows of a stream into a table that SQL has declared.
    ///
    /// # Errors
    /// [`Error::Usage`] when there is no such table, or its columns are not the stream's.
    pub fn insert(&self, table: &str, stream: Stream) -> Result<Output, Error> {
        let sink = self.planner.sink(table, stream.schema()).map_err(usage)?;
        Ok(stream.into_sink(table, sink))
    }

    /// A job of streams, which runs as a script does: an operator that several outputs use is run
    /// once.
    ///
    /// # Errors
    /// [`Error::Stream`] when an exchange was asked for that gives wrong results.
    pub fn job(&mut self, outputs: &[Output]) -> Result<Script, Error> {
        let operators = stream::job(outputs, &self.setup())?;
        let names: Vec<_> = outputs.iter().map(Output::name).collect();
        let bounded = outputs.iter().all(Output::bounded);
        let stage = self.planner.stage_of(&names.join(", "), operators, bounded);
        Ok(self.script(vec![stage]))
    }

    /// Runs a stream on nodes of this process and gives back its rows.
    ///
    /// # Errors
    /// As [`Session::job`], and the first failure while it runs.
    pub fn rows(&mut self, stream: &Stream) -> Result<Vec<RecordBatch>, Error> {
        let rows = Collected::default();
        let sink: Arc<dyn Sink> = Arc::new(rows.clone());
        self.job(&[stream.clone().into_sink("rows", sink)])?.run(&RunOptions::default())?;
        Ok(rows.take())
    }

    fn setup(&self) -> Setup {
        let (settings, table_bytes_max) = self.planner.job_and_table_bytes();
        let (epoch, state_bytes_max) = (settings.epoch, settings.state_bytes_max);
        let (workers, beside) = (self.workers.total(), self.workers.per_node);
        let exchange = self.planner.exchange();
        Setup { workers, beside, exchange, epoch, state_bytes_max, table_bytes_max }
    }
}

/// An error that no text of SQL is at fault of.
fn usage(error: Diagnostic) -> Error {
    let Diagnostic { message, detail, hint, .. } = error;
    let hint = hint.or(detail).unwrap_or_else(|| "see the reference of tables".into());
    Error::Usage { message, hint }
}
