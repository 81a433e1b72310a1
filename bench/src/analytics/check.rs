//! Results held against answers that DuckDB gave to the same SQL over the same rows: for three
//! scales they lie in `bench/answers`, where `make.py` computes them.
//!
//! ```text
//! # q11 0.1 2541 ER 1            query, scale, rows, a letter a column, the columns of ORDER BY
//! 3221  154237.6                 the first rows, all if there are few
//! = 81f3a0b2c4d5e6f7  1.25e9     sums over all rows, where not all are there
//! ```
//!
//! The letters: values of `E` are exact, those of `R` are rounded by one of the engines.

use arrow::array::RecordBatch;
use arrow::error::ArrowError;
use arrow::util::display::{ArrayFormatter, FormatOptions};

use super::run::QueryOutcome;
use super::{Query, Suite};

/// By how much two values of an inexact column may differ, against the larger of them and 1:
/// quotients of decimals have six digits behind the point at least.
const TOLERANCE: f64 = 1e-6;

/// What became of the check of the results.
#[derive(Debug, Default)]
pub struct Checked {
    /// The engine that gave the answers.
    pub against: String,
    /// Results that there are.
    pub all: usize,
    /// Results that are right.
    pub right: usize,
    /// What is wrong with others: query, row and column.
    pub wrong: Vec<String>,
}

/// An answer.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Answer {
    /// Rows of the result.
    pub rows: usize,
    /// For each column whether its values are exact.
    pub exact: Vec<bool>,
    /// The columns that the rows are ordered by.
    pub order: Vec<usize>,
    /// The first rows as texts.
    pub first: Vec<Vec<String>>,
    /// For each column, where not all rows are there: a sum of hashes, or of values.
    pub sums: Option<Vec<String>>,
}

impl Suite {
    /// The answer to a query at a scale, if it is kept.
    pub fn answer(self, query: &Query, scale: f64) -> Option<Answer> {
        let text = match self {
            Suite::Tpch => include_str!("../../answers/tpch.txt"),
            Suite::Ssb => include_str!("../../answers/ssb.txt"),
            Suite::Tpcc => include_str!("../../answers/tpcc.txt"),
        };
        let head = format!("# {} {scale} ", query.name);
        let (_, behind) = text.split_once(&head)?;
        Answer::parse(behind)
    }
}

impl Answer {
    /// Reads an answer from behind its query and scale to the next one.
    fn parse(text: &str) -> Option<Self> {
        let (head, rest) = text.split_once('\n')?;
        let mut head = head.split(' ');
        let rows = head.next()?.parse().ok()?;
        let exact = head.next()?.chars().map(|letter| letter == 'E').collect();
        let order = head.next().unwrap_or("").split(',').filter_map(|at| at.parse().ok()).collect();
        let mut answer = Self { rows, exact, order, ..Self::default() };
        let values = |line: &str| line.split('\t').map(str::to_owned).collect::<Vec<_>>();
        for line in rest.lines().take_while(|line| !line.starts_with("# ")) {
            match line.strip_prefix("= ") {
                Some(sums) => answer.sums = Some(values(sums)),
                None => answer.first.push(values(line)),
            }
        }
        Some(answer)
    }

    /// What is wrong with a result: a row and a column.
    ///
    /// # Errors
    /// The first difference.
    pub fn check(&self, result: &[RecordBatch]) -> Result<(), String> {
        let columns = result.first().map(|batch| batch.schema());
        let name = |at: usize| {
            let field = columns.as_ref().and_then(|schema| schema.fields().get(at).cloned());
            field.map_or_else(|| format!("column {}", at + 1), |field| field.name().clone())
        };
        let mut rows = Vec::new();
        for batch in result {
            rows.extend(texts(batch).map_err(|error| error.to_string())?);
        }
        if rows.len() != self.rows {
            return Err(format!("{} rows in place of {}", rows.len(), self.rows));
        }
        if let Some(width) = rows.first().map(Vec::len).filter(|width| *width != self.exact.len()) {
            return Err(format!("{width} columns in place of {}", self.exact.len()));
        }
        let all_sums = self.sums.iter().flatten().enumerate();
        for (at, sum) in all_sums {
            let got = sum_of(rows.iter().map(|row| row[at].as_str()), self.exact[at]);
            if !self.agree(at, &got, sum) {
                return Err(format!("over all rows, {} gives {got} in place of {sum}", name(at)));
            }
        }
        let right = self.sorted(self.first.clone());
        let complete = rows.len() == right.len();
        // Where rows are left out, those of the last key may be others.
        let rows = if complete { self.sorted(rows) } else { rows };
        let pairs =
            right.iter().zip(&rows).take(if complete { usize::MAX } else { self.certain() });
        for (number, (right, got)) in pairs.enumerate() {
            for (at, (right, got)) in right.iter().zip(got).enumerate() {
                if !self.agree(at, got, right) {
                    let row = number + 1;
                    return Err(format!("row {row}, {}: {got} in place of {right}", name(at)));
                }
            }
        }
        Ok(())
    }

    /// How many of the first rows stand alone with their key: these come in this order.
    fn certain(&self) -> usize {
        let same = |a: &[String], b: &[String]| self.order.iter().all(|at| a[*at] == b[*at]);
        let tie = self.first.windows(2).position(|pair| same(&pair[0], &pair[1]));
        tie.unwrap_or(self.first.len().saturating_sub(1))
    }

    /// Rows whose keys of ORDER BY are equal, in an order of their own.
    fn sorted(&self, mut rows: Vec<Vec<String>>) -> Vec<Vec<String>> {
        let same = |a: &[String], b: &[String]| {
            self.order.iter().all(|at| self.agree(*at, &a[*at], &b[*at]))
        };
        // By exact values first: the others are not the same in both.
        let key = |row: &Vec<String>| {
            let exact = row.iter().zip(&self.exact);
            let (exact, rounded): (Vec<_>, Vec<_>) = exact.partition(|(_, exact)| **exact);
            let texts =
                |of: Vec<(&String, &bool)>| of.into_iter().map(|(v, _)| v.clone()).collect();
            (texts(exact), texts(rounded)) as (Vec<String>, Vec<String>)
        };
        for tied in rows.chunk_by_mut(|a, b| same(a, b)) {
            tied.sort_by_key(key);
        }
        rows
    }

    fn agree(&self, column: usize, got: &str, right: &str) -> bool {
        if self.exact[column] {
            return got == right;
        }
        match (got.parse::<f64>(), right.parse::<f64>()) {
            (Ok(got), Ok(right)) => {
                (got - right).abs() <= TOLERANCE * right.abs().max(got.abs()).max(1.0)
            }
            _ => got == right,
        }
    }
}

/// Holds all results against the answers of `answer`.
pub fn check(
    against: String,
    outcomes: &[QueryOutcome],
    mut answer: impl FnMut(&Query) -> Result<Answer, String>,
) -> Checked {
    let mut checked = Checked { against, all: outcomes.len(), ..Checked::default() };
    for outcome in outcomes {
        let Ok(figures) = &outcome.figures else { continue };
        match answer(&outcome.query).and_then(|answer| answer.check(&figures.result)) {
            Ok(()) => checked.right += 1,
            Err(why) => {
                let (query, exchange) = (outcome.query.name, &outcome.exchange);
                checked.wrong.push(format!("{query} ({exchange}): {why}"));
            }
        }
    }
    checked
}

/// A sum over a column that does not depend on the order of rows.
fn sum_of<'a>(values: impl Iterator<Item = &'a str>, exact: bool) -> String {
    if exact {
        format!("{:016x}", values.map(hash).fold(0, u64::wrapping_add))
    } else {
        format!("{:e}", values.filter_map(|value| value.parse::<f64>().ok()).sum::<f64>())
    }
}

/// FNV-1a.
fn hash(text: &str) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, step)
}

/// The values of a batch as texts; decimals without zeros at their end.
fn texts(batch: &RecordBatch) -> Result<Vec<Vec<String>>, ArrowError> {
    let options = FormatOptions::default().with_null("NULL");
    let columns: Vec<_> = batch
        .columns()
        .iter()
        .map(|column| {
            Ok((column.data_type().is_decimal(), ArrayFormatter::try_new(column, &options)?))
        })
        .collect::<Result<_, ArrowError>>()?;
    let text = |row: usize, (is_decimal, column): &(bool, ArrayFormatter<'_>)| {
        let text = column.value(row).to_string();
        if *is_decimal && text.contains('.') {
            return text.trim_end_matches('0').trim_end_matches('.').to_owned();
        }
        text
    };
    let row = |row| columns.iter().map(|column| text(row, column)).collect();
    Ok((0..batch.num_rows()).map(row).collect())
}
