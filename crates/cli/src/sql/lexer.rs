//! SQL as tokens for display: words, texts, comments. It never fails, so that half a statement can
//! be coloured, completed and told from a whole one.
//!
//! The planner has its own tokens; a test of [`super::units`] holds that both agree on where a
//! statement ends.

/// The kind of a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TokenKind {
    /// Blanks and line ends.
    Blank,
    /// `-- …` or `/* … */`.
    Comment,
    /// A keyword or a name.
    Word,
    /// A name in double quotes or backticks.
    Quoted,
    /// A text in single quotes or between dollars.
    Text,
    /// A number.
    Number,
    /// `;`
    Semicolon,
    /// Any other character.
    Sign,
}

/// A piece of SQL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SqlToken<'a> {
    /// Its kind.
    pub(crate) kind: TokenKind,
    /// Where it begins, in bytes.
    pub(crate) at: usize,
    /// Its text.
    pub(crate) text: &'a str,
    /// It has no end: a quote or comment that nothing closes.
    pub(crate) open: bool,
}

impl SqlToken<'_> {
    /// Whether it is this word, whatever its case.
    pub(crate) fn is_word(&self, word: &str) -> bool {
        self.kind == TokenKind::Word && self.text.eq_ignore_ascii_case(word)
    }

    /// Neither blank nor comment.
    pub(crate) fn is_significant(&self) -> bool {
        !matches!(self.kind, TokenKind::Blank | TokenKind::Comment)
    }

    /// Where it ends, in bytes.
    pub(crate) fn end(&self) -> usize {
        self.at + self.text.len()
    }
}

/// The pieces of a text from a place on, without gaps.
#[derive(Debug, Clone)]
pub(crate) struct SqlTokens<'a> {
    text: &'a str,
    /// Where the next one begins, in bytes.
    pub(crate) at: usize,
}

/// All pieces of a text.
pub(crate) fn tokens(text: &str) -> SqlTokens<'_> {
    SqlTokens { text, at: 0 }
}

impl<'a> Iterator for SqlTokens<'a> {
    type Item = SqlToken<'a>;

    fn next(&mut self) -> Option<SqlToken<'a>> {
        let rest = &self.text[self.at..];
        if rest.is_empty() {
            return None;
        }
        let (kind, len, open) = first(rest);
        let token = SqlToken { kind, at: self.at, text: &rest[..len], open };
        self.at += len;
        Some(token)
    }
}

/// Kind and length of the first piece of a text that is not empty, and whether it is open.
fn first(text: &str) -> (TokenKind, usize, bool) {
    let mut chars = text.chars();
    let (c, next) = (chars.next().unwrap_or(' '), chars.next().unwrap_or(' '));
    let run = |take: fn(char) -> bool| text.find(|c| !take(c)).unwrap_or(text.len());
    match c {
        c if c.is_whitespace() => (TokenKind::Blank, run(char::is_whitespace), false),
        '-' if next == '-' => (TokenKind::Comment, text.find('\n').unwrap_or(text.len()), false),
        '/' if next == '*' => block_comment(text),
        '\'' => quoted(TokenKind::Text, text, 0, '\'', false),
        'e' | 'E' if next == '\'' => quoted(TokenKind::Text, text, 1, '\'', true),
        '"' | '`' => quoted(TokenKind::Quoted, text, 0, c, false),
        '$' => dollars(text),
        ';' => (TokenKind::Semicolon, 1, false),
        c if c.is_ascii_digit() => (TokenKind::Number, number(text), false),
        c if is_word(c) => (TokenKind::Word, run(is_word), false),
        c => (TokenKind::Sign, c.len_utf8(), false),
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Digits, a fraction, an exponent.
fn number(text: &str) -> usize {
    let mut len = 0;
    let mut last = ' ';
    for c in text.chars() {
        let exponent = matches!(last, 'e' | 'E') && matches!(c, '+' | '-');
        if !(c.is_ascii_alphanumeric() || c == '.' || c == '_' || exponent) {
            break;
        }
        len += c.len_utf8();
        last = c;
    }
    len
}

/// `/* … */`, which may hold others.
fn block_comment(text: &str) -> (TokenKind, usize, bool) {
    let mut depth = 0;
    let mut at = 0;
    while at < text.len() {
        let rest = &text[at..];
        let step = match rest {
            _ if rest.starts_with("/*") => {
                depth += 1;
                2
            }
            _ if rest.starts_with("*/") => {
                depth -= 1;
                2
            }
            _ => rest.chars().next().map_or(1, char::len_utf8),
        };
        at += step;
        if depth == 0 {
            return (TokenKind::Comment, at, false);
        }
    }
    (TokenKind::Comment, text.len(), true)
}

/// Up to the quote that closes; one that is doubled does not. `from` is where the opening one is.
fn quoted(
    kind: TokenKind,
    text: &str,
    from: usize,
    quote: char,
    backslash: bool,
) -> (TokenKind, usize, bool) {
    let mut chars = text.char_indices().skip(from + 1).peekable();
    while let Some((at, c)) = chars.next() {
        if backslash && c == '\\' {
            chars.next();
        } else if c == quote && chars.next_if(|(_, next)| *next == quote).is_none() {
            return (kind, at + c.len_utf8(), false);
        }
    }
    (kind, text.len(), true)
}

/// `$$ … $$` or `$tag$ … $tag$`.
fn dollars(text: &str) -> (TokenKind, usize, bool) {
    let tag = text[1..].find(|c| !is_word(c)).map_or(text.len(), |len| len + 1);
    if !text[tag..].starts_with('$') {
        return (TokenKind::Sign, 1, false);
    }
    let tag = &text[..=tag];
    match text[tag.len()..].find(tag) {
        Some(at) => (TokenKind::Text, at + 2 * tag.len(), false),
        None => (TokenKind::Text, text.len(), true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(sql: &str) -> Vec<(TokenKind, &str)> {
        let all: Vec<_> = tokens(sql).collect();
        assert_eq!(all.iter().map(|token| token.text).collect::<String>(), sql, "no gaps");
        all.into_iter().filter(SqlToken::is_significant).map(|p| (p.kind, p.text)).collect()
    }

    #[test]
    fn pieces_are_told_apart() {
        use TokenKind::{Number, Quoted, Semicolon, Sign, Text, Word};
        assert_eq!(
            shown("SELECT \"a b\", 'it''s', 1.5e-3 -- no\n/* /* deep */ */ FROM `t`;"),
            [
                (Word, "SELECT"),
                (Quoted, "\"a b\""),
                (Sign, ","),
                (Text, "'it''s'"),
                (Sign, ","),
                (Number, "1.5e-3"),
                (Word, "FROM"),
                (Quoted, "`t`"),
                (Semicolon, ";"),
            ]
        );
        assert_eq!(
            shown("E'a\\'b' $x$ ; $$ ; $x$"),
            [(Text, "E'a\\'b'"), (Text, "$x$ ; $$ ; $x$")]
        );
        assert_eq!(shown("ü€ $1"), [(Word, "ü"), (Sign, "€"), (Sign, "$"), (Number, "1")]);
    }

    #[test]
    fn what_nothing_closes_is_open() {
        for sql in ["'a;", "\"a", "/* a /* */", "$$ a $", "E'a\\'", "'a''"] {
            assert!(tokens(sql).last().is_some_and(|token| token.open), "{sql}");
        }
        for sql in ["'a'", "-- a", "/* */", "$a", "", "''''"] {
            assert!(!tokens(sql).any(|token| token.open), "{sql}");
        }
    }
}
