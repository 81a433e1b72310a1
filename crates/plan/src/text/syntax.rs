//! A script as tokens with places, and a cursor over the tokens of one statement.
//!
//! Everything that the planner reads goes through these tokens, also what DataFusion's parser gets:
//! whatever is rewritten keeps the place of what the user wrote.

use datafusion::sql::sqlparser::ast::{
    self, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArgumentList, FunctionArguments,
    ObjectName,
};
use datafusion::sql::sqlparser::parser::{Parser, ParserError};
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan, Tokenizer};

use crate::text::depth;
use crate::text::diagnostics::{Diagnostic, Place, nearest};
use crate::text::dialect::OurDialect;
use crate::text::file_names;

/// The function that is called in place of a window in FROM, in SELECT of a query that the user did
/// not write.
pub(crate) const WINDOW_CALL: &str = "__window";

/// The dialect of all SQL here.
pub(crate) static DIALECT: OurDialect = OurDialect;

/// A name and where it stands.
#[derive(Debug, Clone)]
pub(crate) struct Ident {
    pub(crate) text: String,
    pub(crate) place: Place,
}

/// A script without the mark of its encoding that some editors write in front (U+FEFF).
pub(crate) fn unmarked(sql: &str) -> &str {
    sql.strip_prefix('\u{feff}').unwrap_or(sql)
}

/// The call of a function with these arguments and nothing else.
pub(crate) fn function_call(name: ast::Ident, args: Vec<Expr>) -> Expr {
    let args = args.into_iter().map(|arg| FunctionArg::Unnamed(FunctionArgExpr::Expr(arg)));
    let args = args.collect();
    let args = FunctionArgumentList { duplicate_treatment: None, args, clauses: vec![] };
    Expr::Function(Function {
        name: ObjectName::from(vec![name]),
        uses_odbc_syntax: false,
        parameters: FunctionArguments::None,
        args: FunctionArguments::List(args),
        filter: None,
        null_treatment: None,
        over: None,
        within_group: vec![],
    })
}

/// The tokens of a script without blanks and comments, cut at `;`. No piece is empty.
pub(crate) fn split(sql: &str) -> Result<Vec<Vec<TokenWithSpan>>, Diagnostic> {
    let tokens = Tokenizer::new(&DIALECT, sql).tokenize_with_location().map_err(|error| {
        let place = Place {
            line: error.location.line.max(1) as usize,
            column: error.location.column.max(1) as usize,
            length: 1,
        };
        let error = Diagnostic::at(place, lower_first(&error.message));
        if error.message.contains("nterminated") {
            error.hint("close it with the quote that opened it")
        } else {
            error
        }
    })?;
    let significant = tokens.into_iter().filter(|t| !matches!(t.token, Token::Whitespace(_)));
    let mut pieces = vec![vec![]];
    for token in significant {
        match token.token {
            Token::SemiColon => pieces.push(vec![]),
            Token::EOF => {}
            _ => pieces.last_mut().into_iter().for_each(|piece| piece.push(token.clone())),
        }
    }
    pieces.retain(|piece| !piece.is_empty());
    pieces.iter().try_for_each(|piece| depth::check(piece))?;
    pieces.iter_mut().for_each(|piece| file_names::as_names(piece));
    Ok(pieces)
}

/// The text of a script from the first to the last of `tokens`.
pub(crate) fn text_of(sql: &str, tokens: &[TokenWithSpan]) -> String {
    let (Some(first), Some(last)) = (tokens.first(), tokens.last()) else { return String::new() };
    let offset = |line: u64, column: u64| {
        let start: usize =
            sql.split_inclusive('\n').take(line as usize - 1).map(str::len).sum::<usize>();
        let rest = &sql[start..];
        let mut chars = rest.char_indices().map(|(at, _)| at).chain([rest.len()]);
        start + chars.nth(column as usize - 1).unwrap_or(rest.len())
    };
    let (start, end) = (first.span.start, last.span.end);
    sql[offset(start.line, start.column)..offset(end.line, end.column)].to_string()
}

/// Reads the tokens of a statement from left to right.
pub(crate) struct Cursor<'a> {
    tokens: &'a [TokenWithSpan],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(tokens: &'a [TokenWithSpan]) -> Self {
        Self { tokens, at: 0 }
    }

    /// The token that is read next.
    pub(crate) fn peek(&self) -> Option<&'a TokenWithSpan> {
        self.tokens.get(self.at)
    }

    /// The `n`th token after that.
    pub(crate) fn peek_at(&self, n: usize) -> Option<&'a TokenWithSpan> {
        self.tokens.get(self.at + n)
    }

    pub(crate) fn next(&mut self) -> Option<&'a TokenWithSpan> {
        let token = self.tokens.get(self.at);
        self.at += usize::from(token.is_some());
        token
    }

    /// How many tokens have been read.
    pub(crate) fn position(&self) -> usize {
        self.at
    }

    /// The tokens that have not been read.
    pub(crate) fn rest(&self) -> &'a [TokenWithSpan] {
        &self.tokens[self.at..]
    }

    /// Skips `n` tokens.
    pub(crate) fn skip(&mut self, n: usize) {
        self.at = (self.at + n).min(self.tokens.len());
    }

    /// The place of the next token; at the end, just behind the last.
    pub(crate) fn place(&self) -> Place {
        match (self.peek(), self.tokens.last()) {
            (Some(token), _) => Place::of(token.span),
            (None, Some(last)) => Place {
                line: last.span.end.line as usize,
                column: last.span.end.column as usize,
                length: 1,
            },
            (None, None) => Place { line: 1, column: 1, length: 1 },
        }
    }

    /// From a token up to the last one that was read, if that is in the same line.
    pub(crate) fn since(&self, start: Place) -> Place {
        let last = self.at.checked_sub(1).and_then(|at| self.tokens.get(at));
        match last.map(|token| token.span.end) {
            Some(end) if end.line as usize == start.line => {
                Place { length: (end.column as usize).saturating_sub(start.column), ..start }
            }
            _ => start,
        }
    }

    /// Reads `words` if they come next.
    pub(crate) fn words(&mut self, words: &str) -> bool {
        let count = words.split(' ').count();
        let all = words
            .split(' ')
            .enumerate()
            .all(|(n, word)| self.peek_at(n).is_some_and(|token| is_word(token, word)));
        if all {
            self.at += count;
        }
        all
    }

    /// Reads `token` if it comes next.
    pub(crate) fn token(&mut self, token: &Token) -> bool {
        let found = self.peek().is_some_and(|next| next.token == *token);
        self.at += usize::from(found);
        found
    }

    pub(crate) fn expect_words(&mut self, words: &str) -> Result<(), Diagnostic> {
        if self.words(words) { Ok(()) } else { Err(self.expected(words)) }
    }

    pub(crate) fn expect(&mut self, token: &Token) -> Result<(), Diagnostic> {
        if self.token(token) { Ok(()) } else { Err(self.expected(&format!("'{token}'"))) }
    }

    /// Reads a name, quoted or not.
    pub(crate) fn ident(&mut self, what: &str) -> Result<Ident, Diagnostic> {
        match self.peek() {
            Some(TokenWithSpan { token: Token::Word(word), span }) => {
                self.at += 1;
                Ok(Ident { text: word.value.clone(), place: Place::of(*span) })
            }
            _ => Err(self.expected(what)),
        }
    }

    /// Reads a string between single quotes.
    pub(crate) fn string(&mut self, what: &str) -> Result<Ident, Diagnostic> {
        match self.peek() {
            Some(TokenWithSpan { token: Token::SingleQuotedString(text), span }) => {
                self.at += 1;
                Ok(Ident { text: text.clone(), place: Place::of(*span) })
            }
            _ => Err(self.expected(&format!("{what} in single quotes"))),
        }
    }

    /// Nothing may follow.
    pub(crate) fn end(&self) -> Result<(), Diagnostic> {
        if self.peek().is_none() { Ok(()) } else { Err(self.expected("the end of the statement")) }
    }

    /// The error that something else was expected here.
    pub(crate) fn expected(&self, what: &str) -> Diagnostic {
        let found = match self.peek() {
            Some(token) => format!("found '{}'", token.token),
            None => "found the end of the statement".to_string(),
        };
        Diagnostic::at(self.place(), format!("expected {what}, {found}"))
    }
}

/// Whether a token is an unquoted word, whatever its case.
pub(crate) fn is_word(token: &TokenWithSpan, word: &str) -> bool {
    match &token.token {
        Token::Word(w) => w.quote_style.is_none() && w.value.eq_ignore_ascii_case(word),
        _ => false,
    }
}

/// The tokens up to the end of an element of a list, and the one that ends it: a parser copies what
/// it is given, and a list may be long. In a type, `<` and `>` are brackets.
pub(crate) fn element(tokens: &[TokenWithSpan], is_type: bool) -> &[TokenWithSpan] {
    let mut depth = 0usize;
    for (at, token) in tokens.iter().enumerate() {
        match token.token {
            Token::LParen | Token::LBracket | Token::LBrace => depth += 1,
            Token::Lt if is_type => depth += 1,
            Token::Comma | Token::RParen | Token::RBracket | Token::RBrace if depth == 0 => {
                return &tokens[..=at];
            }
            Token::RParen | Token::RBracket | Token::RBrace => depth -= 1,
            Token::Gt if is_type => depth = depth.saturating_sub(1),
            Token::ShiftRight if is_type => depth = depth.saturating_sub(2),
            _ => {}
        }
    }
    tokens
}

/// A parser of DataFusion's dialect over `tokens`.
pub(crate) fn parser(tokens: &[TokenWithSpan]) -> Parser<'static> {
    Parser::new(&DIALECT)
        .with_recursion_limit(depth::PARSER_LEVELS_MAX)
        .with_tokens_with_locations(tokens.to_vec())
}

/// The error of sqlparser about `tokens`.
pub(crate) fn syntax_error(error: &ParserError, tokens: &[TokenWithSpan]) -> Diagnostic {
    let text = match error {
        ParserError::ParserError(text) | ParserError::TokenizerError(text) => text.as_str(),
        ParserError::RecursionLimitExceeded => "the statement is nested too deeply",
    };
    let end = Cursor { tokens, at: tokens.len() }.place();
    let (message, location) = match text.rsplit_once(" at Line: ") {
        Some((message, location)) => (message, location),
        None => (text, ""),
    };
    let place = location
        .split_once(", Column: ")
        .and_then(|(line, column)| Some((line.parse().ok()?, column.parse().ok()?)))
        .map_or(end, |(line, column): (u64, u64)| {
            let here =
                |t: &&TokenWithSpan| t.span.start.line == line && t.span.start.column == column;
            match tokens.iter().find(here) {
                Some(token) => Place::of(token.span),
                None => Place { line: line as usize, column: column as usize, length: 1 },
            }
        });
    let message = message.strip_prefix("sql parser error: ").unwrap_or(message);
    let message = match message.strip_prefix("Expected: ").and_then(|m| m.rsplit_once(", found: "))
    {
        Some((what, "EOF")) => format!("expected {what}, found the end of the statement"),
        Some((what, found)) => format!("expected {what}, found '{found}'"),
        None => lower_first(message),
    };
    misspelt_hint(Diagnostic::at(place, message), tokens)
}

/// Adds the hint that a keyword is misspelt where that is likely.
pub(crate) fn misspelt_hint(error: Diagnostic, tokens: &[TokenWithSpan]) -> Diagnostic {
    let place = Place { line: error.line, column: error.column, length: error.length };
    match misspelt(tokens, place) {
        Some((word, keyword)) => error.hint(format!("did you mean {keyword} instead of '{word}'?")),
        None => error,
    }
}

/// A word at `place`, or just before, that is nearly a keyword.
fn misspelt(tokens: &[TokenWithSpan], place: Place) -> Option<(String, &'static str)> {
    const KEYWORDS: &[&str] = &[
        "SELECT", "FROM", "WHERE", "GROUP", "HAVING", "ORDER", "LIMIT", "JOIN", "UNION", "VALUES",
    ];
    let at = tokens.iter().position(|t| Place::of(t.span) == place).unwrap_or(tokens.len());
    let words = tokens.get(at.saturating_sub(1)..tokens.len().min(at + 1))?.iter().rev();
    words.map(|token| token.token.to_string()).find_map(|word| {
        let keyword = nearest(&word, KEYWORDS).filter(|_| word.len() > 2)?;
        (!keyword.eq_ignore_ascii_case(&word)).then_some((word, keyword))
    })
}

/// The text with a small first letter, unless it begins with an acronym.
pub(crate) fn lower_first(text: &str) -> String {
    let mut chars = text.chars();
    match (chars.next(), chars.clone().next()) {
        (Some(first), Some(second)) if !second.is_uppercase() => {
            first.to_lowercase().chain(chars).collect()
        }
        _ => text.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_cut_at_semicolons_outside_strings_and_comments() {
        let sql = "SELECT ';' -- a; b\n; /* ; */ ;\n  SET a = 1";
        let pieces = split(sql).expect("a script");
        let texts: Vec<_> = pieces.iter().map(|piece| text_of(sql, piece)).collect();
        assert_eq!(texts, ["SELECT ';'", "SET a = 1"]);
        assert_eq!(pieces[1][0].span.start.line, 3);
        assert_eq!(pieces[1][0].span.start.column, 3);
    }

    #[test]
    fn an_open_string_is_an_error_where_it_opens() {
        let error = split("SELECT 'a").expect_err("an open string");
        assert_eq!((error.line, error.column), (1, 8));
    }

    #[test]
    fn positions_count_characters() {
        let sql = "SELECT 'ä', ü FROM t";
        let pieces = split(sql).expect("a script");
        assert_eq!(text_of(sql, &pieces[0][3..4]), "ü");
    }
}
