//! `CREATE TABLE` in Flink's form.
//!
//! ```text
//! CREATE TABLE t (
//!   a INT NOT NULL, text STRING, origin STRING METADATA FROM 'file' VIRTUAL,
//!   ts AS to_timestamp_millis(text),
//!   WATERMARK FOR ts AS ts - INTERVAL '5' SECOND IDLE TIMEOUT INTERVAL '1' MINUTE
//! ) DISTRIBUTED BY HASH(a) INTO 8 BUCKETS WITH ('connector' = 'pool')
//! ```
//!
//! Only the form is checked here; whether the connector exists and what its options are is the
//! catalog's matter.

use arrow::datatypes::{DataType, Field};
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};

use crate::text::bounds::COLUMNS_MAX;
use crate::text::diagnostics::{Diagnostic, Place};
use crate::text::interval::{Interval, interval};
use crate::text::syntax::{self, Cursor, Ident, parser, syntax_error};
use crate::text::type_syntax;

/// A table as it was declared.
#[derive(Debug)]
pub(crate) struct CreateTable {
    pub(crate) name: Ident,
    pub(crate) if_not_exists: bool,
    /// None where the connector is to tell.
    pub(crate) columns: Vec<ColumnDecl>,
    pub(crate) watermark: Option<WatermarkDecl>,
    pub(crate) buckets: Vec<BucketsDecl>,
    /// The columns of the `PRIMARY KEY`, and where it stands.
    pub(crate) key: Option<(Place, Vec<Ident>)>,
    pub(crate) options: Vec<OptionDecl>,
    /// The query of CREATE TABLE AS, whose columns it has where none are declared.
    pub(crate) query: Option<Vec<TokenWithSpan>>,
}

#[derive(Debug)]
pub(crate) struct ColumnDecl {
    /// Of type NULL where it is computed.
    pub(crate) field: Field,
    pub(crate) place: Place,
    pub(crate) origin: ColumnOrigin,
}

/// Where the values of a column come from.
#[derive(Debug)]
pub(crate) enum ColumnOrigin {
    Data,
    /// From where the data stands, under this key.
    Metadata {
        key: Ident,
        /// Whether statements that write the table leave it out, though its connector could write
        /// it.
        is_virtual: bool,
    },
    /// From this expression over the other columns.
    Computed(Vec<TokenWithSpan>),
}

#[derive(Debug)]
pub(crate) struct WatermarkDecl {
    pub(crate) column: Ident,
    pub(crate) delay: Option<Interval>,
    pub(crate) idle_timeout: Option<Interval>,
}

/// `HASH(column) INTO count BUCKETS`.
#[derive(Debug)]
pub(crate) struct BucketsDecl {
    pub(crate) column: Ident,
    /// A power of two.
    pub(crate) count: u32,
}

#[derive(Debug)]
pub(crate) struct OptionDecl {
    pub(crate) key: Ident,
    pub(crate) value: Ident,
}

/// Reads what follows `CREATE TABLE [IF NOT EXISTS]`, also `AS query` at its end.
pub(crate) fn create_table(
    cursor: &mut Cursor<'_>,
    if_not_exists: bool,
) -> Result<CreateTable, Diagnostic> {
    let name = cursor.ident("the table's name")?;
    let mut table = CreateTable {
        name,
        if_not_exists,
        columns: vec![],
        watermark: None,
        buckets: vec![],
        key: None,
        options: vec![],
        query: None,
    };
    if cursor.token(&Token::LParen) && !cursor.token(&Token::RParen) {
        loop {
            element(cursor, &mut table)?;
            if !cursor.token(&Token::Comma) {
                break;
            }
        }
        if !cursor.token(&Token::RParen) {
            return Err(cursor.expected("',' or ')'"));
        }
    }
    let place = cursor.place();
    if cursor.words("PARTITIONED BY") {
        return Err(Diagnostic::at(place, "tables are not partitioned by name")
            .hint("leave the clause out: every source is cut into flows by itself"));
    }
    if cursor.words("DISTRIBUTED BY") {
        table.buckets = buckets(cursor)?;
    }
    options(cursor, &mut table.options)?;
    if cursor.words("AS") {
        let query = cursor.rest().to_vec();
        if query.is_empty() {
            return Err(cursor.expected("a query"));
        }
        table.query = Some(query);
        return Ok(table);
    }
    cursor.end()?;
    Ok(table)
}

/// Reads `WITH (…)`.
fn options(cursor: &mut Cursor<'_>, options: &mut Vec<OptionDecl>) -> Result<(), Diagnostic> {
    if !cursor.words("WITH") {
        return Err(cursor
            .expected("WITH")
            .hint("say where the rows are: WITH ('connector' = 'file', 'path' = '…')"));
    }
    cursor.expect(&Token::LParen)?;
    loop {
        let key = cursor.string("an option")?;
        cursor.expect(&Token::Eq)?;
        let value = cursor.string("the option's value")?;
        if let Some(twice) = options.iter().find(|o| o.key.text == key.text) {
            let line = twice.key.place.line;
            return Err(Diagnostic::at(key.place, format!("option '{}' is given twice", key.text))
                .detail(format!("the first is in line {line}")));
        }
        options.push(OptionDecl { key, value });
        if !cursor.token(&Token::Comma) {
            break;
        }
    }
    cursor.expect(&Token::RParen)
}

/// Buckets of a table at most, all columns multiplied.
const BUCKETS_MAX: u64 = 65_536;

/// The form of the clause, for hints.
const BUCKETS_FORM: &str = "DISTRIBUTED BY HASH(a) INTO 8 BUCKETS, HASH(b) INTO 4 BUCKETS";

/// Reads what follows `DISTRIBUTED BY`.
fn buckets(cursor: &mut Cursor<'_>) -> Result<Vec<BucketsDecl>, Diagnostic> {
    let form = |error: Diagnostic| error.hint(format!("write {BUCKETS_FORM}"));
    let mut buckets: Vec<BucketsDecl> = vec![];
    let mut all = 1;
    loop {
        cursor.expect_words("HASH").map_err(form)?;
        cursor.expect(&Token::LParen).map_err(form)?;
        let column = cursor.ident("a column").map_err(form)?;
        cursor
            .expect(&Token::RParen)
            .map_err(|error| error.hint(format!("name one column at a time: {BUCKETS_FORM}")))?;
        if buckets.iter().any(|other| other.column.text == column.text) {
            let message = format!("column '{}' has its buckets twice", column.text);
            return Err(Diagnostic::at(column.place, message));
        }
        cursor.expect_words("INTO").map_err(form)?;
        let place = cursor.place();
        let count: u64 = match cursor.next().map(|next| &next.token) {
            Some(Token::Number(digits, _)) => digits.parse().unwrap_or(u64::MAX),
            _ => return Err(form(Diagnostic::at(place, "expected a number of buckets"))),
        };
        if count == 1 {
            let message = "one bucket has all rows: a column has two buckets or more";
            return Err(Diagnostic::at(place, message).hint("write 2, or leave the column out"));
        }
        if !count.is_power_of_two() {
            let near = count.clamp(2, BUCKETS_MAX).next_power_of_two();
            let message = format!("{count} buckets: their number is a power of two");
            return Err(Diagnostic::at(place, message).hint(format!("write {near}")));
        }
        all = count.saturating_mul(all);
        if all > BUCKETS_MAX {
            let message = format!("a table has at most {BUCKETS_MAX} buckets");
            let error = Diagnostic::at(place, message);
            return Err(error.hint("the numbers of buckets of all columns are multiplied"));
        }
        cursor.expect_words("BUCKETS").map_err(form)?;
        buckets.push(BucketsDecl { column, count: count as u32 });
        if !cursor.token(&Token::Comma) {
            return Ok(buckets);
        }
    }
}

/// A column or a clause between the parentheses.
fn element(cursor: &mut Cursor<'_>, table: &mut CreateTable) -> Result<(), Diagnostic> {
    let place = cursor.place();
    if cursor.words("WATERMARK FOR") {
        if table.watermark.is_some() {
            return Err(Diagnostic::at(place, "a table has one watermark"));
        }
        table.watermark = Some(watermark(cursor)?);
        return Ok(());
    }
    let is_named = cursor.words("CONSTRAINT");
    if is_named {
        cursor.ident("the name of a constraint")?;
    }
    if cursor.words("PRIMARY KEY") {
        let columns = key_columns(cursor)?;
        return table.take_key(place, columns);
    }
    if is_named || cursor.words("UNIQUE") {
        return Err(Diagnostic::at(place, "constraints are not supported")
            .hint("leave the clause out: rows are taken as they come"));
    }
    let name = cursor.ident("a column")?;
    if table.columns.len() >= COLUMNS_MAX {
        return Err(Diagnostic::at(place, format!("a table of more than {COLUMNS_MAX} columns"))
            .hint("declare those that are read; an ARRAY or a MAP holds many values"));
    }
    if let Some(twice) = table.columns.iter().find(|c| c.field.name() == &name.text) {
        let line = twice.place.line;
        return Err(Diagnostic::at(place, format!("column '{}' is declared twice", name.text))
            .detail(format!("the first is in line {line}")));
    }
    if cursor.words("AS") {
        let from = syntax::element(cursor.rest(), false);
        let mut expression = parser(from);
        expression.parse_expr().map_err(|e| syntax_error(&e, from))?;
        cursor.skip(expression.index());
        let field = Field::new(name.text, DataType::Null, true);
        let origin = ColumnOrigin::Computed(from[..expression.index()].to_vec());
        comment(cursor)?;
        table.columns.push(ColumnDecl { field, place: name.place, origin });
        return Ok(());
    }
    let data_type = type_syntax::data_type(cursor)?;
    let not_null = cursor.words("NOT NULL");
    if !not_null {
        cursor.words("NULL");
    }
    let key = cursor.place();
    if cursor.words("PRIMARY KEY") {
        not_enforced(cursor, "PRIMARY KEY NOT ENFORCED")?;
        table.take_key(key, vec![name.clone()])?;
    }
    let mut origin = ColumnOrigin::Data;
    if cursor.words("METADATA") {
        let key = if cursor.words("FROM") { cursor.string("a key")? } else { name.clone() };
        origin = ColumnOrigin::Metadata { key, is_virtual: cursor.words("VIRTUAL") };
    }
    comment(cursor)?;
    let field = Field::new(name.text, data_type, !not_null);
    table.columns.push(ColumnDecl { field, place: name.place, origin });
    Ok(())
}

impl CreateTable {
    fn take_key(&mut self, place: Place, columns: Vec<Ident>) -> Result<(), Diagnostic> {
        if self.key.is_some() {
            return Err(Diagnostic::at(place, "a table has one primary key"));
        }
        self.key = Some((place, columns));
        Ok(())
    }
}

/// Reads what follows `PRIMARY KEY` between columns.
fn key_columns(cursor: &mut Cursor<'_>) -> Result<Vec<Ident>, Diagnostic> {
    cursor.expect(&Token::LParen)?;
    let mut columns = vec![cursor.ident("a column")?];
    while cursor.token(&Token::Comma) {
        columns.push(cursor.ident("a column")?);
    }
    cursor.expect(&Token::RParen)?;
    not_enforced(cursor, "PRIMARY KEY (…) NOT ENFORCED")?;
    Ok(columns)
}

/// Reads the end of a key, which is written as `form`.
fn not_enforced(cursor: &mut Cursor<'_>, form: &str) -> Result<(), Diagnostic> {
    let place = cursor.place();
    if cursor.words("NOT ENFORCED") {
        return Ok(());
    }
    Err(Diagnostic::at(place, "a key is not checked here").hint(format!("write {form}")))
}

fn comment(cursor: &mut Cursor<'_>) -> Result<(), Diagnostic> {
    if cursor.words("COMMENT") {
        cursor.string("a comment")?;
    }
    Ok(())
}

/// Reads what follows `WATERMARK FOR`.
fn watermark(cursor: &mut Cursor<'_>) -> Result<WatermarkDecl, Diagnostic> {
    let column = cursor.ident("a time column")?;
    cursor.expect_words("AS")?;
    let place = cursor.place();
    let form = || format!("write WATERMARK FOR {c} AS {c} - INTERVAL '5' SECOND", c = column.text);
    let of = cursor.ident("the time column").map_err(|e| e.hint(form()))?;
    if of.text != column.text {
        let message = "a watermark is its own column minus an interval";
        return Err(Diagnostic::at(place, message).hint(form()));
    }
    let mut delay = None;
    if cursor.token(&Token::Minus) {
        let read = interval(cursor)?;
        if read.ns < 0 {
            return Err(Diagnostic::at(read.place, "a watermark cannot run ahead of its column"));
        }
        delay = Some(read);
    }
    let mut idle_timeout = None;
    if cursor.words("IDLE TIMEOUT") {
        let read = interval(cursor)?;
        if read.ns <= 0 {
            return Err(Diagnostic::at(read.place, "an idle timeout is longer than nothing"));
        }
        idle_timeout = Some(read);
    }
    if !matches!(cursor.peek().map(|t| &t.token), Some(Token::Comma | Token::RParen)) {
        return Err(cursor.expected("IDLE TIMEOUT, ',' or ')'").hint(form()));
    }
    Ok(WatermarkDecl { column, delay, idle_timeout })
}
