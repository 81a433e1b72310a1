//! The parts of EXPLAIN about an operator: its own description, and labels that its maker attached
//! to it in the user's words. Nothing that runs reads any of it.

use std::fmt;

use arrow::datatypes::SchemaRef;

use super::{DescribeContext, Exchange, Operator};

/// A name and its value, as in `("group by", "origin STRING")`.
pub type Property = (&'static str, String);

/// The description of an operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// The operator, in the words of the field: `WindowJoin`.
    pub name: &'static str,
    /// Its properties, in the order in which EXPLAIN shows them.
    pub properties: Vec<Property>,
}

/// Facts about an operator that only its maker knows.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Labels {
    /// Its name in EXPLAIN, if its kind does not give one.
    pub name: Option<&'static str>,
    /// The table that it reads or writes, as a user knows it: `flights (file)`.
    pub table: Option<String>,
    /// By input, as far as something is known of it.
    pub inputs: Vec<InputLabels>,
    /// The columns that it emits, as a user knows them; empty where these are the names of its
    /// schema.
    pub columns: Vec<String>,
    /// More about it, behind what it says itself.
    pub properties: Vec<Property>,
    /// The estimated number of rows that it emits, if there is an estimate.
    pub rows_estimate: Option<u64>,
}

/// Facts about an input of an operator that only its maker knows.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct InputLabels {
    /// The columns that arrive, as a user knows them; empty where these are the names of its
    /// schema.
    pub columns: Vec<String>,
    /// Why rows are exchanged as they are.
    pub reason: Option<Reason>,
    /// The costs of the exchanges that could have been chosen, with the chosen one.
    pub costs: Vec<Cost>,
    /// The estimated number of rows that arrive, if there is an estimate.
    pub rows_estimate: Option<u64>,
}

impl InputLabels {
    /// Labels of an input of which the columns are known.
    pub fn of_columns(columns: &[String]) -> Self {
        Self { columns: columns.to_vec(), ..Self::default() }
    }
}

impl Labels {
    /// Labels of an operator with one input.
    pub fn of_input(input: InputLabels) -> Self {
        Self { inputs: vec![input], ..Self::default() }
    }
}

/// How rows get from the workers that emit them to those that take them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Strategy {
    /// They stay on their worker.
    Forward,
    /// Each worker aggregates what it has, or keeps rows, and sends deltas to the leaders of keys.
    Merge,
    /// Each row goes to the worker that its key is hashed to.
    Shuffle,
    /// As [`Strategy::Shuffle`], from the half of the workers that reads to the other half.
    UpPar,
    /// Each row goes to every worker.
    Broadcast,
    /// Each process reads all rows itself.
    Pull,
    /// One process reads each row from memory that all share, and it goes to every worker that
    /// needs it.
    Multicast,
    /// Rows go to the workers in turn.
    Rebalance,
    /// All rows go to worker 0.
    Gather,
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Strategy::Forward => "forward",
            Strategy::Merge => "merge",
            Strategy::Shuffle => "shuffle",
            Strategy::UpPar => "uppar",
            Strategy::Broadcast => "broadcast",
            Strategy::Pull => "pull",
            Strategy::Multicast => "multicast",
            Strategy::Rebalance => "rebalance",
            Strategy::Gather => "gather",
        })
    }
}

/// Why an input has its exchange.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// The planner has chosen it, or there is no other.
    Planner(String),
    /// A setting asks for it: its name and value.
    Setting(String),
    /// A hint asks for it.
    Hint {
        /// The hint as it was written.
        hint: String,
        /// Its line in the script, from 1.
        line: usize,
        /// Its column, from 1.
        column: usize,
    },
}

impl Reason {
    /// Why rows of a key need not move.
    pub fn together() -> Self {
        Self::Planner("rows of equal keys are on one worker already".into())
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Planner(text) => f.write_str(text),
            Reason::Setting(setting) => write!(f, "SET {setting}"),
            Reason::Hint { hint, line, column } => write!(f, "hint {hint} at {line}:{column}"),
        }
    }
}

/// The estimated cost of an exchange.
#[derive(Debug, Clone, PartialEq)]
pub enum Cost {
    /// Of a row, on average.
    PerRow {
        /// The exchange.
        strategy: Strategy,
        /// Bytes that travel between processes.
        bytes: f64,
        /// Cycles of a processor.
        cycles: f64,
    },
    /// Of all rows, at most.
    InAll {
        /// The exchange.
        strategy: Strategy,
        /// Bytes of the rows of this input that move to other workers.
        bytes: u64,
    },
}

impl Strategy {
    /// The strategy on a number of workers: on one, rows stay.
    pub(crate) fn on(self, workers: u32) -> Self {
        if workers == 1 { Strategy::Forward } else { self }
    }
}

impl From<Exchange> for Strategy {
    fn from(exchange: Exchange) -> Self {
        match exchange {
            Exchange::Forward => Strategy::Forward,
            Exchange::Merge => Strategy::Merge,
            Exchange::Shuffle => Strategy::Shuffle,
            Exchange::UpPar => Strategy::UpPar,
        }
    }
}

impl Operator {
    /// Describes it. With `readers`, sources report their splits for that many workers.
    pub fn describe(&self, readers: Option<u32>) -> Description {
        let columns: Vec<Vec<String>> =
            (0..self.inputs.len().max(2)).map(|input| self.columns(input)).collect();
        let context = DescribeContext {
            columns: &columns,
            emitted: &self.columns_out(),
            readers,
            fusion: self.fusion,
            builds: &self.builds,
        };
        let mut description = self.spec().describe(&context);
        description.name = self.labels.name.unwrap_or(description.name);
        description.properties.extend(self.labels.properties.iter().cloned());
        description
    }

    /// The columns that arrive at an input, as a user knows them.
    pub fn columns(&self, input: usize) -> Vec<String> {
        if let Some(labels) = self.labels.inputs.get(input)
            && !labels.columns.is_empty()
        {
            return labels.columns.clone();
        }
        let schema = self.spec().input_schema(input);
        schema.map_or(vec![], |schema| names_of(&schema))
    }

    /// The columns that it emits, as a user knows them.
    pub fn columns_out(&self) -> Vec<String> {
        if !self.labels.columns.is_empty() {
            return self.labels.columns.clone();
        }
        self.spec().schema().map_or(vec![], |schema| names_of(&schema))
    }
}

/// The names of columns.
fn names_of(schema: &SchemaRef) -> Vec<String> {
    schema.fields().iter().map(|field| field.name().clone()).collect()
}
