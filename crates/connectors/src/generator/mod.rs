//! `generator`: rows out of nothing, the same ones every time.
//!
//! Row `i` of a stream is a pure function of the seed and `i`. Blocks of rows are dealt out to the
//! flows like cards, so that any number of workers and nodes reads the same stream.
//!
//! ```text
//! rows    0 … 8191   8192 … 16383   16384 … 24575   24576 … 32767   …
//! flows   0          1              0               1                  (two flows)
//! ```
//!
//! A row is described per column ([`fields`]) or by a ready-made workload of the papers
//! (S14): `ysb`, `nexmark`, `cluster-monitoring`, `ro`. With 'preload' the rows are made when a
//! flow is opened and then only handed out, so that a benchmark measures the engine and not this.

use std::sync::Arc;

use arrow::datatypes::{DataType, Schema, SchemaRef};
use dataflow::connector::{Connector, OptionSpec, Options, TableDef};
use dataflow::error::ConnectorError;
use dataflow::sink::Sink;
use dataflow::source::Source;

mod cluster;
mod columns;
mod distribution;
mod fields;
mod flow;
mod nexmark;
mod preloaded;
mod random;
mod ro;
mod ysb;

use columns::{Column, Timeline};
use distribution::{NAMES, ValueDistribution};

use crate::options::{OptionReader, nearest, refuse, sql_type};

/// The connector `generator`.
#[derive(Debug, Clone, Copy)]
pub struct Generator;

/// Rows of a block, and of a batch at most.
pub const BLOCK_ROWS: usize = 8192;

/// The event time of the first row, unless 'start' says otherwise: fixed, so that two runs agree.
const START: &str = "2024-01-01 00:00:00";

/// The ready-made workloads.
const KINDS: &[&str] = &["ysb", "nexmark", "cluster-monitoring", "ro"];

const OPTIONS: &[OptionSpec] = &[
    OptionSpec {
        key: "kind",
        values: "ysb | nexmark | cluster-monitoring | ro",
        default: "none: by 'fields.…'",
        doc: "A ready-made workload, whose columns need no declaration.",
    },
    OptionSpec {
        key: "seed",
        values: "integer",
        default: "0",
        doc: "Another seed gives other rows; the same seed gives the same.",
    },
    OptionSpec {
        key: "rows",
        values: "integer",
        default: "unbounded; the table ad of ysb has 1000",
        doc: "Rows of the stream, over all flows.",
    },
    OptionSpec {
        key: "repeat",
        values: "integer",
        default: "1",
        doc: "How often the rows are repeated; their event time goes on. Needs 'rows'.",
    },
    OptionSpec {
        key: "rate",
        values: "integer",
        default: "unlimited",
        doc: "Rows a second, over all flows, by the wall clock.",
    },
    OptionSpec {
        key: "flows",
        values: "integer",
        default: "the number of workers",
        doc: "Physical data flows among which the stream is divided.",
    },
    OptionSpec {
        key: "start",
        values: "timestamp",
        default: START,
        doc: "Event time of the first row.",
    },
    OptionSpec {
        key: "interval",
        values: "duration",
        default: "1 s / rate, or 1us",
        doc: "Event time between a row and the next (between events for nexmark).",
    },
    OptionSpec {
        key: "disorder",
        values: "duration",
        default: "0ms",
        doc: "How far the event time of a row may lie before its place, at random; a bare number \
              is milliseconds.",
    },
    OptionSpec {
        key: "preload",
        values: "true | false",
        default: "false",
        doc: "Whether all rows are made when a flow is opened and kept in memory. Needs 'rows'.",
    },
    OptionSpec {
        key: "layout",
        values: "columns | fixed",
        default: "columns",
        doc: "How rows lie in memory that 'preload' keeps: in columns, or as records of fixed \
              length, which are decoded when they are read.",
    },
    OptionSpec {
        key: "fixed.record_bytes",
        values: "integer",
        default: "the columns that are read and nothing else",
        doc: "How long such a record is; bytes behind its columns are ignored.",
    },
    OptionSpec {
        key: "keys",
        values: "integer",
        default: "ysb 10000000, ro 100000000, nexmark and cluster-monitoring 10000",
        doc: "Different keys of a ready-made workload: key, auction or job_id.",
    },
    OptionSpec {
        key: "distribution",
        values: "uniform | zipf | pareto",
        default: "uniform; pareto for nexmark, zipf for cluster-monitoring",
        doc: "How often each of the keys comes.",
    },
    OptionSpec {
        key: "exponent",
        values: "number",
        default: "zipf 1, pareto 1.16",
        doc: "How skewed the keys are.",
    },
    OptionSpec {
        key: "table",
        values: "event | ad for ysb; bid | auction | person for nexmark",
        default: "event, bid",
        doc: "Which of the tables of a ready-made workload.",
    },
    OptionSpec {
        key: "proportions",
        values: "bids:auctions:persons",
        default: "46:3:1",
        doc: "How many events of each kind a cycle of nexmark has.",
    },
    OptionSpec {
        key: "fields.<column>.kind",
        values: "uniform | zipf | pareto | sequence | constant | choice | time",
        default: "uniform; time for TIMESTAMP",
        doc: "How a declared column is made.",
    },
    OptionSpec {
        key: "fields.<column>.min",
        values: "number",
        default: "0",
        doc: "The least value: the first of a sequence, the most frequent of zipf and pareto.",
    },
    OptionSpec {
        key: "fields.<column>.max",
        values: "number",
        default: "999999, or what the type holds",
        doc: "The largest value; a sequence begins anew after it.",
    },
    OptionSpec {
        key: "fields.<column>.exponent",
        values: "number",
        default: "zipf 1, pareto 1.16",
        doc: "How skewed zipf and pareto are.",
    },
    OptionSpec {
        key: "fields.<column>.value",
        values: "text",
        default: "",
        doc: "The value of a constant.",
    },
    OptionSpec {
        key: "fields.<column>.values",
        values: "texts, separated by commas",
        default: "",
        doc: "The values of a choice, each as likely.",
    },
    OptionSpec {
        key: "fields.<column>.null_rate",
        values: "number of 0 to 1",
        default: "0",
        doc: "The share of nulls.",
    },
];

impl Connector for Generator {
    fn name(&self) -> &'static str {
        "generator"
    }

    fn options(&self) -> &'static [OptionSpec] {
        OPTIONS
    }

    fn infer(&self, options: &Options) -> Result<Option<SchemaRef>, ConnectorError> {
        let options = OptionReader(options);
        let seed = options.integer("seed", 0)?.unwrap_or(0);
        let timeline = Timeline::new(options, seed, options.integer("rate", 1)?)?;
        let model = ready_made(options, seed, timeline)?;
        Ok(model.map(|model| {
            let fields: Vec<_> = model.columns.into_iter().map(|column| column.field).collect();
            Arc::new(Schema::new(fields)) as SchemaRef
        }))
    }

    fn source(
        &self,
        table: &TableDef,
        projection: &[usize],
    ) -> Result<Arc<dyn Source>, ConnectorError> {
        let options = OptionReader(&table.options);
        let seed = options.integer("seed", 0)?.unwrap_or(0);
        let timeline = Timeline::new(options, seed, options.integer("rate", 1)?)?;
        let model = match ready_made(options, seed, timeline)? {
            Some(model) => model.declared_as(&table.schema)?,
            None => fields::model(options, &table.schema, seed, timeline)?,
        };
        Ok(Arc::new(flow::GeneratorSource::new(options, timeline, model.project(projection)?)?))
    }

    fn sink(&self, _table: &TableDef) -> Result<Arc<dyn Sink>, ConnectorError> {
        Err(refuse(
            "connector",
            "'generator' can only be read from",
            Some("write to 'file', 'stdout' or 'blackhole'".into()),
        ))
    }
}

/// The workload of 'kind', if that is given.
fn ready_made(
    options: OptionReader<'_>,
    seed: u64,
    timeline: Timeline,
) -> Result<Option<Model>, ConnectorError> {
    let kind = options.choice("kind", KINDS)?;
    check_kind(options, kind.map(|kind| KINDS[kind]))?;
    let Some(kind) = kind else { return Ok(None) };
    let model = match KINDS[kind] {
        "ysb" => ysb::model(options, seed, timeline)?,
        "nexmark" => nexmark::model(options, seed, timeline)?,
        "cluster-monitoring" => cluster::model(options, seed, timeline)?,
        _ => ro::model(options, seed, timeline)?,
    };
    Ok(Some(model))
}

/// Refuses options that say nothing of a table of this kind.
fn check_kind(options: OptionReader<'_>, kind: Option<&str>) -> Result<(), ConnectorError> {
    for key in options.0.keys() {
        match (key.as_str(), kind) {
            ("table", None | Some("cluster-monitoring" | "ro")) => {
                let hint = Some("write 'kind' = 'nexmark' or 'kind' = 'ysb'".into());
                return Err(refuse(key, "speaks of the tables of nexmark and of ysb", hint));
            }
            ("proportions", None | Some("ysb" | "cluster-monitoring" | "ro")) => {
                let hint = Some("write 'kind' = 'nexmark'".into());
                return Err(refuse(key, "speaks of the tables of nexmark", hint));
            }
            ("keys" | "distribution" | "exponent", None) => {
                let hint = Some(format!("write 'kind' = '{}', or 'fields.<column>.max'", KINDS[0]));
                return Err(refuse(key, "speaks of a ready-made table, which has a 'kind'", hint));
            }
            (column, Some(kind)) if column.starts_with("fields.") => {
                let message = format!("is ignored: a table of kind '{kind}' makes its own columns");
                return Err(refuse(key, message, Some("leave it out, or 'kind'".into())));
            }
            _ => {}
        }
    }
    Ok(())
}

/// The rows of a table.
struct Model {
    columns: Vec<Column>,
    /// The event, counted over the whole timeline, that a row is.
    event: Box<dyn Fn(u64) -> u64 + Send + Sync>,
    /// How many rows there are at most, if the table is no stream.
    rows_max: Option<u64>,
}

impl Model {
    /// A table whose row `i` is event `i`.
    fn rows(columns: Vec<Column>) -> Self {
        Self { columns, event: Box::new(|row| row), rows_max: None }
    }

    /// The columns that a table declares, in its order and types. A name may be written in another
    /// case or without underscores: `dateTime` is `date_time`.
    fn declared_as(mut self, schema: &Schema) -> Result<Self, ConnectorError> {
        let mut columns = Vec::with_capacity(schema.fields().len());
        for field in schema.fields() {
            let bare = |name: &str| name.replace('_', "").to_ascii_lowercase();
            let same = |column: &Column| bare(column.field.name()) == bare(field.name());
            let Some(index) = self.columns.iter().position(same) else {
                let names = self.columns.iter().map(|column| column.field.name().as_str());
                let all: Vec<&str> = names.collect();
                return Err(ConnectorError::Column {
                    column: field.name().clone(),
                    message: "the workload has no such column".into(),
                    hint: Some(match nearest(field.name(), all.iter().copied()) {
                        Some(near) => format!("did you mean '{near}'?"),
                        None => format!("its columns are {}", all.join(", ")),
                    }),
                });
            };
            columns.push(self.columns.swap_remove(index).declared_as(field)?);
        }
        self.columns = columns;
        Ok(self)
    }

    /// The columns of a query.
    fn project(mut self, projection: &[usize]) -> Result<Self, ConnectorError> {
        let columns = std::mem::take(&mut self.columns);
        let mut columns: Vec<Option<Column>> = columns.into_iter().map(Some).collect();
        let chosen = projection.iter().map(|index| {
            columns.get_mut(*index).and_then(Option::take).ok_or_else(|| ConnectorError::Column {
                column: index.to_string(),
                message: "is not a column of the table, or is asked for twice".into(),
                hint: None,
            })
        });
        Ok(Self { columns: chosen.collect::<Result<_, _>>()?, ..self })
    }
}

/// The key of a ready-made workload: a number of `0..keys`.
#[derive(Debug, Clone, Copy)]
struct Key(ValueDistribution);

impl Key {
    fn new(
        options: OptionReader<'_>,
        keys: u64,
        distribution: &str,
    ) -> Result<Self, ConnectorError> {
        let keys = options.integer("keys", 1)?.unwrap_or(keys);
        let keys = i64::try_from(keys)
            .map_err(|_| refuse("keys", format!("{keys} keys do not fit BIGINT"), None))?;
        let name = match options.choice("distribution", NAMES)? {
            Some(name) => name,
            None => NAMES.iter().position(|name| *name == distribution).unwrap_or(0),
        };
        let exponent = exponent(options, "exponent", NAMES[name])?;
        Ok(Self(ValueDistribution::new(name, 0, keys - 1, exponent)))
    }

    /// How many there are at most.
    fn count(&self) -> u64 {
        self.0.values()
    }

    fn draw(&self, random: &random::Column, row: u64) -> i64 {
        self.0.draw(random.draws(row))
    }
}

/// The exponent of a distribution: 80 % of the rows on 20 % of the keys for Pareto's.
fn exponent(
    options: OptionReader<'_>,
    key: &str,
    distribution: &str,
) -> Result<f64, ConnectorError> {
    let default = if distribution == "pareto" { 1.16 } else { 1.0 };
    options.number(key, default, "of more than 0, at most 20", |value| value > 0.0 && value <= 20.0)
}

/// An error about a column that cannot have the declared type.
fn unfit_type(column: &str, made: &DataType, declared: &DataType) -> ConnectorError {
    ConnectorError::Column {
        column: column.to_owned(),
        message: format!("is {}, not {}", sql_type(made), sql_type(declared)),
        hint: Some(format!("declare it as {}", sql_type(made))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_of_a_column_is_in_the_table_of_options() {
        let listed: Vec<&str> = OPTIONS
            .iter()
            .filter_map(|option| option.key.strip_prefix("fields.<column>."))
            .collect();
        assert_eq!(listed, fields::SETTINGS);
        let kinds = OPTIONS.iter().find(|option| option.key == "fields.<column>.kind");
        assert_eq!(kinds.map(|option| option.values), Some(&*fields::KINDS.join(" | ")));
    }
}
