//! Temporal joins: each row of a stream with the version of a table at its time.
//!
//! ```sql
//! orders AS o JOIN rates FOR SYSTEM_TIME AS OF o.ts AS r ON o.currency = r.currency
//! ```
//!
//! DataFusion has no such join. A pass over the tokens makes a condition of it, in which the time
//! of the table is that of its watermark; [`crate::lower::temporal`] recognises the condition:
//!
//! ```text
//! orders AS o JOIN rates AS r ON __as_of(o.ts, r.ts) AND o.currency = r.currency
//! ```
//!
//! As of a processing time (`PROCTIME()`) a table without versions is met as it was read: the
//! clause is left out, and the join is one with a table that ends.
//!
//! `ASOF JOIN` ([`asof`]) is another way to write it, which names the time of the table too.

pub(crate) mod asof;

use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::exec_err;
use datafusion::common::tree_node::TreeNode;
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::{
    ColumnarValue, Expr, LogicalPlan, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDFImpl,
    Signature, Volatility,
};
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan, Word};

use crate::catalog::{Catalog, Entry};
use crate::text::diagnostics::{Diagnostic, Place};
use crate::text::syntax::{Cursor, is_word};

const NAME: &str = "__as_of";

pub(crate) const FORM: &str =
    "write stream AS s JOIN versions FOR SYSTEM_TIME AS OF s.ts AS v ON s.k = v.k";

/// Replaces each `FOR SYSTEM_TIME AS OF` and each `ASOF JOIN`.
pub(crate) fn rewrite(
    tokens: &[TokenWithSpan],
    catalog: &Catalog,
) -> Result<Vec<TokenWithSpan>, Diagnostic> {
    let tokens = asof::rewrite(tokens)?;
    let mut out: Vec<TokenWithSpan> = Vec::with_capacity(tokens.len());
    let mut cursor = Cursor::new(&tokens);
    while let Some(token) = cursor.peek() {
        let place = Place::of(token.span);
        if !cursor.words("FOR SYSTEM_TIME AS OF") {
            out.push(token.clone());
            cursor.skip(1);
            continue;
        }
        if let Some(version) = version(&mut cursor)? {
            read_version(&mut out, &cursor, version, place)?;
            continue;
        }
        let start = cursor.rest();
        let from = cursor.position();
        cursor.ident("the time of a row of the stream").map_err(|error| error.hint(FORM))?;
        while cursor.token(&Token::Period) {
            cursor.ident("a column")?;
        }
        let time = &start[..cursor.position() - from];
        let lookup = time.last().is_some_and(|name| is_processing_time(name, &tokens, catalog));
        let Some(Token::Word(table)) = out.last().map(|last| last.token.clone()) else {
            return Err(Diagnostic::at(place, "FOR SYSTEM_TIME follows a table").hint(FORM));
        };
        let alias_from = cursor.position();
        let rest = cursor.rest();
        let mut name = table.clone();
        let named = cursor.words("AS");
        if named || cursor.peek().is_some_and(|next| !is_word(next, "ON")) {
            cursor.ident("a name")?;
            if let Some(Token::Word(alias)) = rest.get(usize::from(named)).map(|t| t.token.clone())
            {
                name = alias;
            }
        }
        out.extend_from_slice(&rest[..cursor.position() - alias_from]);
        let on = cursor.peek().cloned();
        let Some(on) = on.filter(|_| cursor.words("ON")) else {
            let error = "FOR SYSTEM_TIME AS OF belongs to a JOIN with ON";
            return Err(Diagnostic::at(place, error).hint(FORM));
        };
        let span = on.span;
        out.push(on);
        if lookup && has_no_versions(&table.value, catalog) {
            continue;
        }
        let put = |token: Token| TokenWithSpan { token, span };
        out.extend([Token::make_word(NAME, None), Token::LParen].map(put));
        out.extend_from_slice(time);
        let mut put = |token: Token| out.push(TokenWithSpan { token, span });
        put(Token::Comma);
        match versions(&table.value, catalog, place)? {
            Some(column) => {
                put(quoted(name.value));
                put(Token::Period);
                put(quoted(column));
            }
            // The error will name it.
            None => time.iter().for_each(|token| put(token.token.clone())),
        }
        put(Token::RParen);
        put(Token::make_keyword("AND"));
    }
    Ok(out)
}

/// Reads `VERSION 7`, if that comes next.
fn version(cursor: &mut Cursor<'_>) -> Result<Option<u64>, Diagnostic> {
    // A column may have that name.
    if !matches!(cursor.peek_at(1).map(|next| &next.token), Some(Token::Number(..)))
        || !cursor.words("VERSION")
    {
        return Ok(None);
    }
    let place = cursor.place();
    match cursor.next().map(|next| &next.token) {
        Some(Token::Number(digits, _)) if digits.parse::<u64>().is_ok_and(|number| number > 0) => {
            Ok(digits.parse().ok())
        }
        _ => Err(Diagnostic::at(place, "a version is a whole number from 1 on")),
    }
}

/// Makes the table in front a reading of one of its versions, by the name that the catalog knows.
fn read_version(
    out: &mut Vec<TokenWithSpan>,
    behind: &Cursor<'_>,
    version: u64,
    place: Place,
) -> Result<(), Diagnostic> {
    let Some(TokenWithSpan { token: Token::Word(table), span }) = out.pop() else {
        let error = Diagnostic::at(place, "FOR SYSTEM_TIME follows a table");
        return Err(error.hint("write FROM t FOR SYSTEM_TIME AS OF VERSION 7"));
    };
    let mut put = |token: Token| out.push(TokenWithSpan { token, span });
    put(quoted(Catalog::version_name(&table.value, version)));
    let is_named = match behind.peek().map(|next| &next.token) {
        Some(Token::Word(next)) => {
            let is_name = next.quote_style.is_some() || next.keyword == Keyword::NoKeyword;
            is_name || next.keyword == Keyword::AS
        }
        _ => false,
    };
    if !is_named {
        put(Token::make_keyword("AS"));
        put(Token::Word(table));
    }
    Ok(())
}

/// Whether the rows of a table are no versions: as of the time of processing, each is met as it was
/// read, which is what a join without a time says.
fn has_no_versions(name: &str, catalog: &Catalog) -> bool {
    matches!(catalog.get(name), Some(Entry::Table(table)) if table.event_time.is_none())
}

/// Whether `name` is a column that the query, a view or a table makes of `PROCTIME()`.
fn is_processing_time(name: &TokenWithSpan, query: &[TokenWithSpan], catalog: &Catalog) -> bool {
    let Token::Word(Word { value: name, .. }) = &name.token else { return false };
    let named = |at: usize| {
        let mut cursor = Cursor::new(&query[at..]);
        cursor.words("PROCTIME")
            && cursor.token(&Token::LParen)
            && cursor.token(&Token::RParen)
            && {
                cursor.words("AS");
                cursor.ident("a name").is_ok_and(|ident| ident.text == *name)
            }
    };
    let viewed = |expr: &Expr| {
        matches!(expr, Expr::Alias(alias) if alias.name == *name
            && matches!(&*alias.expr, Expr::ScalarFunction(call) if call.name() == "proctime"))
    };
    let known = |entry: &Entry| match entry {
        Entry::Table(table) => {
            table.computed().any(|column| column.field.name() == name && column.is_proctime())
        }
        Entry::View(view) => {
            let made = |node: &LogicalPlan| Ok(node.expressions().iter().any(viewed));
            view.plan.exists(made).unwrap_or(false)
        }
    };
    (0..query.len()).any(named) || catalog.entries().any(|(_, entry)| known(entry))
}

/// The time of the versions of a table, if there is such a table.
fn versions(name: &str, catalog: &Catalog, place: Place) -> Result<Option<String>, Diagnostic> {
    match catalog.get(name) {
        Some(Entry::Table(table)) => match &table.event_time {
            Some(time) => Ok(Some(time.column.clone())),
            None => Err(Diagnostic::at(place, format!("table '{name}' has no watermark"))
                .detail("its event time says from when on a row is the version of its key")
                .hint(
                    "declare it: WATERMARK FOR ts AS ts - INTERVAL '5' SECOND; or leave FOR \
                       SYSTEM_TIME out, if the table ends",
                )),
        },
        Some(Entry::View(_)) => {
            let error = format!("'{name}' is a view, and versions are those of a table");
            Err(Diagnostic::at(place, error).hint("name the table itself"))
        }
        None => Ok(None),
    }
}

fn quoted(text: String) -> Token {
    Token::Word(Word { value: text, quote_style: Some('"'), keyword: Keyword::NoKeyword })
}

/// Whether an expression has the condition in it.
pub(crate) fn is_asked(expr: &Expr) -> bool {
    expr.exists(|node| Ok(times(node).is_some())).unwrap_or(false)
}

/// The two times of the condition, and whether the version must be earlier than the row.
pub(crate) fn times(expr: &Expr) -> Option<(&Expr, &Expr, bool)> {
    match expr {
        Expr::ScalarFunction(call) if call.func.name() == NAME => match &call.args[..] {
            [row, version, rest @ ..] => Some((row, version, !rest.is_empty())),
            _ => None,
        },
        _ => None,
    }
}

/// `__as_of(row, version)`: whether a version is the one at a row's time; with TRUE behind, the one
/// before it. It is the condition of a join and never computed.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct AsOf {
    signature: Signature,
}

impl AsOf {
    pub(crate) fn new() -> Self {
        Self { signature: Signature::variadic_any(Volatility::Stable) }
    }
}

impl ScalarUDFImpl for AsOf {
    fn name(&self) -> &str {
        NAME
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> DfResult<DataType> {
        Ok(DataType::Boolean)
    }

    fn return_field_from_args(&self, _: ReturnFieldArgs<'_>) -> DfResult<FieldRef> {
        Ok(Field::new(NAME, DataType::Boolean, false).into())
    }

    fn invoke_with_args(&self, _: ScalarFunctionArgs) -> DfResult<ColumnarValue> {
        exec_err!("versions at a time are for streams, and not for what waits for all rows")
    }
}
