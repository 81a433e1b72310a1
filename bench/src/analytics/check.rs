//! Compares results with answers of DuckDB to the same SQL over the same rows: for three scales
//! they are in `bench/answers`, where `make.py` computes them. At other scales, and to the joins of
//! I-Store's paper, DataFusion computes the answers from the same rows.
//!
//! ```text
//! # q11 0.1 2541 ER 1            query, scale, rows, a letter a column, the columns of ORDER BY
//! 3221  154237.6                 the first rows, all if there are few
//! = 81f3a0b2c4d5e6f7  1.25e9     sums over all rows, if there are more than these
//! ```
//!
//! The letters: values of `E` are exact, those of `R` are rounded by one of the engines.

use arrow::array::RecordBatch;
use arrow::error::ArrowError;
use arrow::util::display::{ArrayFormatter, FormatOptions};

use super::run::QueryOutcome;
use super::{Query, Suite, SuiteConnector, SuitePlan};
use crate::run::BenchError;

/// The scales of the answers, for a reader.
const SCALES: &str = "0.01, 0.1 and 1";

/// Parts of the queries that DataFusion does not support, and equivalents that it does.
const REPHRASED: [(&str, &str); 3] = [
    ("timestamp('2013-07-01-00.00.00.000000')", "TIMESTAMP '2013-07-01 00:00:00'"),
    ("timestamp(", "to_timestamp("),
    // It would give this sum and the sum of the bare column the same name.
    ("cast(ol_amount as decimal(10,2))", "ol_amount + 0"),
];

/// The greatest difference of two values of an inexact column, relative to the larger of them and
/// 1: quotients of decimals have at least six digits behind the point.
const TOLERANCE: f64 = 1e-6;

/// The outcome of the check of the results.
#[derive(Debug, Default)]
pub struct Checked {
    /// The engine that computed the answers.
    pub against: String,
    /// The number of results.
    pub all: usize,
    /// The number of correct results.
    pub right: usize,
    /// The first difference of each other result: query, row and column.
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
    /// For each column, if not all rows are stored: a sum of hashes, or of values.
    pub sums: Option<Vec<String>>,
}

impl Suite {
    /// The stored answer to a query at a scale, if there is one.
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
    /// All rows of a result, without an order.
    fn of(result: &[RecordBatch]) -> Result<Self, ArrowError> {
        let mut answer = Self::default();
        for batch in result {
            let exact = batch.schema();
            let exact = exact.fields().iter().map(|field| {
                let of = field.data_type();
                !of.is_decimal() && !of.is_floating()
            });
            answer.exact = exact.collect();
            answer.first.extend(texts(batch)?);
        }
        answer.rows = answer.first.len();
        Ok(answer)
    }

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

    /// Compares a result with the answer.
    ///
    /// # Errors
    /// The first difference: a row and a column.
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
        // If rows are left out, the rows of the last key may be others.
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

    /// The number of first rows whose keys of ORDER BY are unique, so that their order is fixed.
    fn certain(&self) -> usize {
        let same = |a: &[String], b: &[String]| self.order.iter().all(|at| a[*at] == b[*at]);
        let tie = self.first.windows(2).position(|pair| same(&pair[0], &pair[1]));
        tie.unwrap_or(self.first.len().saturating_sub(1))
    }

    /// The rows, in which rows of equal keys of ORDER BY are put into a fixed order.
    fn sorted(&self, mut rows: Vec<Vec<String>>) -> Vec<Vec<String>> {
        let same = |a: &[String], b: &[String]| {
            self.order.iter().all(|at| self.agree(*at, &a[*at], &b[*at]))
        };
        // By exact values first: rounded ones differ between engines.
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

/// Compares all results with answers.
///
/// # Errors
/// When there are none at this scale, and the rows to compute them from cannot be generated.
pub fn check(plan: &SuitePlan, outcomes: &[QueryOutcome]) -> Result<Checked, BenchError> {
    let SuitePlan { suite, scale, .. } = *plan;
    if plan.queries.iter().any(|query| suite.answer(query, scale).is_some()) {
        let answer = |query: &Query| {
            suite.answer(query, scale).ok_or_else(|| "there is no answer of DuckDB".to_owned())
        };
        return Ok(held("DuckDB".into(), plan, outcomes, answer));
    }
    let connector = SuiteConnector::new(suite);
    let mut tables = Vec::new();
    for table in suite.tables() {
        tables.push((*table, connector.rows(table, scale)?.to_vec()));
    }
    let refused = |error: oracle::Error| format!("DataFusion gives no answer: {error}");
    let tables = oracle::Tables::new(tables);
    let against = format!("DataFusion: DuckDB's answers are kept for the scales {SCALES}");
    Ok(held(against, plan, outcomes, |query| {
        let tables = tables.as_ref().map_err(|error| error.to_string())?;
        let rephrase = |sql: String, (from, to): &(&str, &str)| sql.replace(from, to);
        let sql = REPHRASED.iter().fold(query.sql(scale), rephrase);
        let rows = tables.rows(sql.trim_end_matches(';')).map_err(refused)?;
        Answer::of(&rows).map_err(|error| error.to_string())
    }))
}

fn held(
    against: String,
    plan: &SuitePlan,
    outcomes: &[QueryOutcome],
    mut answer: impl FnMut(&Query) -> Result<Answer, String>,
) -> Checked {
    let mut checked = Checked { against, all: outcomes.len(), ..Checked::default() };
    for outcome in outcomes {
        let Ok(figures) = &outcome.figures else { continue };
        match answer(&outcome.query).and_then(|answer| answer.check(&figures.result)) {
            Ok(()) => checked.right += 1,
            Err(why) => {
                let (query, way) = (outcome.query.name, plan.name_of(&outcome.way));
                checked.wrong.push(format!("{query} ({way}): {why}"));
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Decimal128Array, Float64Array, Int64Array, StringArray};

    use super::*;

    /// A key, an inexact value and a text.
    fn result(rows: &[(i64, f64, &str)]) -> Vec<RecordBatch> {
        let keys: Int64Array = rows.iter().map(|row| Some(row.0)).collect();
        let values: Float64Array = rows.iter().map(|row| Some(row.1)).collect();
        let texts: StringArray = rows.iter().map(|row| Some(row.2)).collect();
        let columns: [(&str, ArrayRef); 3] =
            [("k", Arc::new(keys)), ("v", Arc::new(values)), ("t", Arc::new(texts))];
        vec![RecordBatch::try_from_iter(columns).unwrap()]
    }

    fn answer(head: &str, rows: &str) -> Answer {
        Answer::parse(&format!("{head}\n{rows}\n# q9 1 0 E\n")).unwrap()
    }

    #[test]
    fn a_wrong_row_is_named_by_its_number_and_column() {
        let right = answer("3 ERE 0", "1\t0.5\ta\n2\t0.25\tb\n2\t0.75\tc");
        let check = |rows: &[(i64, f64, &str)]| right.check(&result(rows)).unwrap_err();
        assert_eq!(right.check(&result(&[(1, 0.5, "a"), (2, 0.25, "b"), (2, 0.75, "c")])), Ok(()));
        let tied = [(1, 0.5 + 1e-9, "a"), (2, 0.75, "c"), (2, 0.25, "b")];
        assert_eq!(right.check(&result(&tied)), Ok(()), "rows of one key have no order");
        let swapped = [(2, 0.25, "b"), (1, 0.5, "a"), (2, 0.75, "c")];
        assert_eq!(check(&swapped), "row 1, k: 2 in place of 1");
        assert_eq!(check(&[(1, 0.5, "a"), (2, 0.25, "b")]), "2 rows in place of 3");
        let value = [(1, 0.5, "a"), (2, 0.25, "b"), (2, 0.7501, "c")];
        assert_eq!(check(&value), "row 3, v: 0.7501 in place of 0.75");
        let text = [(1, 0.5, "a"), (2, 0.25, "b"), (2, 0.75, "d")];
        assert_eq!(check(&text), "row 3, t: d in place of c");
    }

    #[test]
    fn of_a_long_result_each_column_is_summed() {
        let rows = [(1, 0.5, "a"), (2, 0.25, "b"), (3, 0.75, "c")];
        let sums = [["1", "2", "3"], ["a", "b", "c"]].map(|all| sum_of(all.into_iter(), true));
        let sums = format!("1\t0.5\ta\n2\t0.25\tb\n= {}\t1.5\t{}", sums[0], sums[1]);
        let right = answer("3 ERE 0", &sums);
        assert_eq!(right.check(&result(&rows)), Ok(()));
        let wrong = right.check(&result(&[rows[0], rows[1], (3, 0.75, "d")])).unwrap_err();
        assert!(wrong.starts_with("over all rows, t gives"), "{wrong}");
        let wrong = right.check(&result(&[rows[0], rows[1], (3, 0.85, "c")])).unwrap_err();
        assert!(wrong.starts_with("over all rows, v gives 1.6"), "{wrong}");
    }

    #[test]
    fn decimals_have_no_zeros_at_their_end() {
        let decimals = Decimal128Array::from(vec![1_500, 2_000, 0, -50]);
        let decimals = decimals.with_precision_and_scale(10, 3).unwrap();
        let batch = RecordBatch::try_from_iter([("d", Arc::new(decimals) as ArrayRef)]).unwrap();
        assert_eq!(texts(&batch).unwrap().concat(), ["1.5", "2", "0", "-0.05"]);
    }

    #[test]
    fn every_query_has_an_answer_at_each_scale() {
        for suite in Suite::ALL {
            for query in suite.queries() {
                for scale in [0.01, 0.1, 1.0] {
                    assert!(suite.answer(&query, scale).is_some(), "{suite} {query:?} {scale}");
                }
            }
            assert!(suite.queries().iter().all(|query| suite.answer(query, 0.02).is_none()));
        }
    }
}
