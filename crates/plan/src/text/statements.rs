//! Which statement a piece of a script is. Queries inside stay tokens; only what is ours is parsed
//! here.

use dataflow::connector::{Vacuum, WriteMode};
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};

use crate::text::ddl::{self, CreateTable};
use crate::text::diagnostics::Diagnostic;
use crate::text::syntax::{Cursor, Ident, is_word};

/// How a plan is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ExplainFormat {
    /// Lines for a reader.
    #[default]
    Text,
    /// One JSON object.
    Json,
    /// A digraph in the language of Graphviz.
    Dot,
}

impl ExplainFormat {
    /// All, as a user writes them.
    pub const NAMES: [&str; 3] = ["text", "json", "dot"];

    /// The format of this name, in any case.
    pub fn of(name: &str) -> Option<Self> {
        let formats = [Self::Text, Self::Json, Self::Dot];
        let at = Self::NAMES.iter().position(|known| known.eq_ignore_ascii_case(name))?;
        Some(formats[at])
    }
}

/// The options of EXPLAIN.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ExplainOptions {
    pub(crate) format: ExplainFormat,
    /// Whether it tells what a job with checkpoints saves.
    pub(crate) recovery: bool,
}

/// One statement.
#[derive(Debug)]
pub(crate) enum Statement {
    CreateTable(Box<CreateTable>),
    CreateView {
        name: Ident,
        if_not_exists: bool,
        columns: Vec<Ident>,
        query: Vec<TokenWithSpan>,
    },
    Drop {
        view: bool,
        name: Ident,
        if_exists: bool,
    },
    Insert {
        table: Ident,
        mode: WriteMode,
        columns: Vec<Ident>,
        query: Vec<TokenWithSpan>,
    },
    Select(Vec<TokenWithSpan>),
    Explain(Box<Statement>, ExplainOptions),
    /// Runs a query, and shows its plan with what the workers did.
    Analyze(Box<Statement>, ExplainOptions),
    ShowTables,
    Describe(Ident),
    Vacuum {
        table: Ident,
        how: Vacuum,
    },
    Set {
        key: Ident,
        value: Ident,
    },
    BeginSet,
    EndSet,
}

/// The words that statements begin with.
const FIRST_WORDS: &[&str] = &[
    "CREATE", "DROP", "INSERT", "SELECT", "WITH", "VALUES", "SET", "SHOW", "DESCRIBE", "EXPLAIN",
    "BEGIN", "END", "EXECUTE", "VACUUM",
];

/// Parses the tokens of one piece, which may be more than one statement: `EXECUTE STATEMENT SET
/// BEGIN INSERT …`.
pub(crate) fn parse(tokens: &[TokenWithSpan]) -> Result<Vec<Statement>, Diagnostic> {
    let mut cursor = Cursor::new(tokens);
    let opened = cursor.words("EXECUTE");
    if opened || cursor.words("BEGIN") {
        cursor.expect_words(if opened { "STATEMENT SET BEGIN" } else { "STATEMENT SET" })?;
        return if opened && cursor.peek().is_some() {
            Ok(vec![Statement::BeginSet, parse_one(cursor)?])
        } else {
            cursor.end()?;
            Ok(vec![Statement::BeginSet])
        };
    }
    Ok(vec![parse_one(cursor)?])
}

/// `ANALYZE`, `(ANALYZE, RECOVERY, FORMAT JSON)` or nothing.
fn explain_options(cursor: &mut Cursor<'_>) -> Result<(bool, ExplainOptions), Diagnostic> {
    let mut analyze = cursor.words("ANALYZE");
    let mut options = ExplainOptions::default();
    let option = |token: &TokenWithSpan| {
        ["FORMAT", "ANALYZE", "RECOVERY"].iter().any(|word| is_word(token, word))
    };
    let opens = cursor.peek().is_some_and(|token| token.token == Token::LParen);
    if !opens || !cursor.peek_at(1).is_some_and(option) {
        return Ok((analyze, options));
    }
    cursor.expect(&Token::LParen)?;
    loop {
        if cursor.words("FORMAT") {
            let name = cursor.ident("a format")?;
            options.format = ExplainFormat::of(&name.text).ok_or_else(|| {
                let error = Diagnostic::at(name.place, format!("unknown format '{}'", name.text));
                error.nearest("formats", &name.text, ExplainFormat::NAMES)
            })?;
        } else if cursor.words("ANALYZE") {
            analyze = true;
        } else if cursor.words("RECOVERY") {
            options.recovery = true;
        } else {
            return Err(cursor.expected("ANALYZE, FORMAT or RECOVERY"));
        }
        if !cursor.token(&Token::Comma) {
            cursor.expect(&Token::RParen)?;
            return Ok((analyze, options));
        }
    }
}

fn parse_one(mut cursor: Cursor<'_>) -> Result<Statement, Diagnostic> {
    if cursor.words("END") {
        cursor.end()?;
        return Ok(Statement::EndSet);
    }
    if cursor.words("EXPLAIN") {
        let (analyze, options) = explain_options(&mut cursor)?;
        if !analyze {
            cursor.words("PLAN FOR");
        }
        if cursor.peek().is_some_and(|token| is_word(token, "EXPLAIN")) {
            return Err(cursor.expected("a statement to explain"));
        }
        if analyze {
            return Ok(Statement::Analyze(Box::new(parse_one(cursor)?), options));
        }
        return Ok(Statement::Explain(Box::new(parse_one(cursor)?), options));
    }
    if cursor.words("CREATE") {
        return create(&mut cursor);
    }
    if cursor.words("DROP") {
        return drop(&mut cursor);
    }
    if cursor.words("INSERT") {
        let overwrites = cursor.words("OVERWRITE");
        if overwrites {
            cursor.words("INTO");
            cursor.words("TABLE");
        } else {
            cursor.expect_words("INTO")?;
        }
        let mode = if overwrites { WriteMode::Overwrite } else { WriteMode::Insert };
        return insert(&mut cursor, mode);
    }
    if cursor.words("SET") {
        return set(&mut cursor);
    }
    if cursor.words("SHOW") {
        cursor.expect_words("TABLES")?;
        cursor.end()?;
        return Ok(Statement::ShowTables);
    }
    if cursor.words("DESCRIBE") || cursor.words("DESC") {
        let name = cursor.ident("a table or view")?;
        cursor.end()?;
        return Ok(Statement::Describe(name));
    }
    if cursor.words("VACUUM") {
        return vacuum(&mut cursor);
    }
    let query = ["SELECT", "WITH", "VALUES", "TABLE"];
    match cursor.peek() {
        Some(first) if query.iter().any(|word| is_word(first, word)) => {
            Ok(Statement::Select(cursor.rest().to_vec()))
        }
        Some(first) if first.token == Token::LParen => {
            Ok(Statement::Select(cursor.rest().to_vec()))
        }
        Some(first) => Err(cursor.expected("a statement").nearest(
            "statements",
            &first.token.to_string().to_uppercase(),
            FIRST_WORDS.iter().copied(),
        )),
        None => Err(cursor.expected("a statement")),
    }
}

/// `VACUUM table [RETAIN n HOURS] [DRY RUN]`.
fn vacuum(cursor: &mut Cursor<'_>) -> Result<Statement, Diagnostic> {
    let table = cursor.ident("a table")?;
    let mut how = Vacuum::default();
    if cursor.words("RETAIN") {
        let hours = cursor.peek().and_then(|token| match &token.token {
            Token::Number(digits, _) => digits.parse::<f64>().ok(),
            _ => None,
        });
        let hours = hours.ok_or_else(|| cursor.expected("a number of hours"))?;
        cursor.skip(1);
        cursor.expect_words("HOURS")?;
        // What is too much is the most.
        how.retain_ms = Some((hours * 3_600_000.0) as u64);
    }
    how.dry_run = cursor.words("DRY RUN");
    cursor.end()?;
    Ok(Statement::Vacuum { table, how })
}

fn create(cursor: &mut Cursor<'_>) -> Result<Statement, Diagnostic> {
    let temporary = cursor.words("TEMPORARY") || cursor.words("TEMP");
    if cursor.words("TABLE") {
        let if_not_exists = cursor.words("IF NOT EXISTS");
        return ddl::create_table(cursor, if_not_exists)
            .map(|table| Statement::CreateTable(Box::new(table)));
    }
    if !cursor.words("VIEW") {
        let what = if temporary { "TABLE or VIEW" } else { "TABLE, VIEW or TEMPORARY" };
        let error = cursor.expected(what);
        return Err(match cursor.peek() {
            Some(found) => error.nearest(
                "kinds",
                &found.token.to_string().to_uppercase(),
                ["TABLE", "VIEW", "TEMPORARY"],
            ),
            None => error,
        });
    }
    let if_not_exists = cursor.words("IF NOT EXISTS");
    let name = cursor.ident("the view's name")?;
    let mut columns = vec![];
    if cursor.token(&Token::LParen) {
        columns = names(cursor)?;
    }
    cursor.expect_words("AS")?;
    let query = cursor.rest().to_vec();
    if query.is_empty() {
        return Err(cursor.expected("a query"));
    }
    Ok(Statement::CreateView { name, if_not_exists, columns, query })
}

fn drop(cursor: &mut Cursor<'_>) -> Result<Statement, Diagnostic> {
    cursor.words("TEMPORARY");
    let view = cursor.words("VIEW");
    if !view {
        cursor.expect_words("TABLE").map_err(|_| cursor.expected("TABLE or VIEW"))?;
    }
    let if_exists = cursor.words("IF EXISTS");
    let name = cursor.ident("a name")?;
    cursor.end()?;
    Ok(Statement::Drop { view, name, if_exists })
}

fn insert(cursor: &mut Cursor<'_>, mode: WriteMode) -> Result<Statement, Diagnostic> {
    let table = cursor.ident("the table to write")?;
    let mut columns = vec![];
    // A parenthesis may also open the query.
    let query_opens = cursor.peek_at(1).is_some_and(|t| is_word(t, "SELECT") || is_word(t, "WITH"));
    if !query_opens && cursor.token(&Token::LParen) {
        columns = names(cursor)?;
    }
    let query = cursor.rest().to_vec();
    if query.is_empty() {
        return Err(cursor.expected("a query"));
    }
    Ok(Statement::Insert { table, mode, columns, query })
}

/// Names up to the closing parenthesis.
fn names(cursor: &mut Cursor<'_>) -> Result<Vec<Ident>, Diagnostic> {
    let mut names = vec![cursor.ident("a column")?];
    while cursor.token(&Token::Comma) {
        names.push(cursor.ident("a column")?);
    }
    cursor.expect(&Token::RParen)?;
    Ok(names)
}

/// `SET 'key' = 'value'` or `SET a.b.c = value`; `TO` stands for `=`.
fn set(cursor: &mut Cursor<'_>) -> Result<Statement, Diagnostic> {
    let key = match cursor.peek().map(|t| &t.token) {
        Some(Token::SingleQuotedString(_)) => cursor.string("a setting")?,
        _ => {
            let mut key = cursor.ident("a setting")?;
            while cursor.token(&Token::Period) {
                let part = cursor.ident("a setting")?;
                key.text = format!("{}.{}", key.text, part.text);
                if part.place.line == key.place.line {
                    key.place.length = part.place.column + part.place.length - key.place.column;
                }
            }
            key
        }
    };
    if !cursor.words("TO") {
        cursor.expect(&Token::Eq)?;
    }
    let place = cursor.place();
    if let Some(TokenWithSpan { token: Token::SingleQuotedString(_), .. }) = cursor.peek() {
        let value = cursor.string("a value")?;
        cursor.end()?;
        return Ok(Statement::Set { key, value });
    }
    let mut text = String::new();
    while let Some(token) = cursor.next() {
        text.push_str(&token.token.to_string());
    }
    if text.is_empty() {
        return Err(cursor.expected("a value"));
    }
    Ok(Statement::Set { key, value: Ident { text, place } })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::syntax::split;

    fn one(sql: &str) -> Result<Vec<Statement>, Diagnostic> {
        parse(&split(sql).expect("tokens")[0])
    }

    #[test]
    fn a_setting_may_be_quoted_or_not() {
        for sql in ["SET 'a.b' = '64 MB'", "SET a.b = 64MB", "set a.b to '64 MB'"] {
            let parsed = one(sql).expect(sql);
            let [Statement::Set { key, value }] = &parsed[..] else { panic!("{sql}") };
            assert_eq!(key.text, "a.b");
            assert_eq!(value.text.replace(' ', ""), "64MB");
        }
    }

    #[test]
    fn a_statement_set_may_open_in_two_ways() {
        assert!(matches!(one("BEGIN STATEMENT SET").as_deref(), Ok([Statement::BeginSet])));
        assert!(matches!(
            one("EXECUTE STATEMENT SET BEGIN INSERT INTO a SELECT 1").as_deref(),
            Ok([Statement::BeginSet, Statement::Insert { .. }])
        ));
        assert!(matches!(one("END").as_deref(), Ok([Statement::EndSet])));
    }

    #[test]
    fn columns_of_an_insert_are_told_from_its_query() {
        let parsed = one("INSERT INTO t (a, b) SELECT 1, 2").expect("an insert");
        let [Statement::Insert { columns, query, .. }] = &parsed[..] else { panic!() };
        assert_eq!((columns.len(), query.len()), (2, 4));
        let parsed = one("INSERT INTO t (SELECT 1)").expect("an insert");
        let [Statement::Insert { columns, query, .. }] = &parsed[..] else { panic!() };
        assert_eq!((columns.len(), query.len()), (0, 4));
    }

    #[test]
    fn formats_have_names() {
        assert_eq!(ExplainFormat::of("JSON"), Some(ExplainFormat::Json));
        assert_eq!(ExplainFormat::of("xml"), None);
    }
}
