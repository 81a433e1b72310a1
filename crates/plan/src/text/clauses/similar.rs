//! `SIMILAR TO`: a pattern of SQL as the regular expression that matches the same texts.
//!
//! DataFusion takes the pattern for a regular expression, in which `%` and `_` are letters and `.`
//! is any, and which matches a text that has a match within.

use datafusion::sql::sqlparser::ast::{BinaryOperator, Expr, Spanned, Value, ValueWithSpan};

use super::{At, Checked, Refused};

/// Characters that mean themselves to SQL and something else to a regular expression.
const LITERAL: [char; 6] = ['.', '^', '$', '\\', '#', '~'];

/// Writes `x SIMILAR TO 'a%'` as `x ~ '^(?s:a.*)$'`.
pub(super) fn rewrite(expr: &mut Expr) -> Checked {
    let Expr::SimilarTo { negated, expr: value, pattern, escape_char } = expr else {
        return Ok(());
    };
    let behind = || At::Behind(value.span());
    let refused = |message: &str| {
        Refused::with_hint(
            "SIMILAR TO",
            behind(),
            message,
            "write text ~ pattern, a regular expression",
        )
    };
    let escape = match escape_char.as_ref().map(|escape| &escape.value) {
        None => Some('\\'),
        Some(Value::SingleQuotedString(text)) if text.chars().count() <= 1 => text.chars().next(),
        Some(_) => return refused("ESCAPE takes one character in single quotes"),
    };
    let Expr::Value(ValueWithSpan { value: Value::SingleQuotedString(text), span }) = &**pattern
    else {
        return refused("SIMILAR TO takes a pattern in single quotes only");
    };
    let Some(regex) = regex(text, escape) else {
        return refused("the pattern ends with its escape character");
    };
    let value = std::mem::replace(&mut **value, Expr::value(Value::Null));
    let regex = Value::SingleQuotedString(regex);
    let regex = Expr::Value(ValueWithSpan { value: regex, span: *span });
    let op = if *negated { BinaryOperator::PGRegexNotMatch } else { BinaryOperator::PGRegexMatch };
    *expr = Expr::Nested(Box::new(Expr::BinaryOp {
        left: Box::new(value),
        op,
        right: Box::new(regex),
    }));
    Ok(())
}

/// The regular expression; `None` if the pattern breaks off within an escape.
fn regex(pattern: &str, escape: Option<char>) -> Option<String> {
    let mut regex = String::from("^(?s:");
    let mut letters = pattern.chars().peekable();
    // Between brackets `%`, `_` and `.` mean themselves.
    let mut class = false;
    while let Some(letter) = letters.next() {
        match letter {
            letter if Some(letter) == escape => {
                let next = letters.next()?;
                if next.is_ascii_punctuation() {
                    regex.push('\\');
                }
                regex.push(next);
            }
            '[' if class && letters.peek() != Some(&':') => regex.push_str("\\["),
            '&' if class => regex.push_str("\\&"),
            '[' => {
                regex.push(letter);
                if class {
                    // A name within, as `[:digit:]`.
                    for letter in letters.by_ref() {
                        regex.push(letter);
                        if letter == ']' {
                            break;
                        }
                    }
                } else {
                    class = true;
                    regex.extend(letters.next_if_eq(&'^'));
                }
            }
            ']' if class => {
                class = false;
                regex.push(letter);
            }
            '%' if !class => regex.push_str(".*"),
            '_' if !class => regex.push('.'),
            '(' if !class => regex.push_str("(?:"),
            letter if LITERAL.contains(&letter) => regex.extend(['\\', letter]),
            letter => regex.push(letter),
        }
    }
    regex.push_str(")$");
    Some(regex)
}

#[cfg(test)]
mod tests {
    use super::regex;

    #[test]
    fn patterns() {
        let cases = [
            ("a%", "^(?s:a.*)$"),
            ("a_c|b", "^(?s:a.c|b)$"),
            ("a.c", "^(?s:a\\.c)$"),
            ("(a|b)+", "^(?s:(?:a|b)+)$"),
            ("[^a-z_%.]", "^(?s:[^a-z_%\\.])$"),
            ("[[:digit:]]{2}", "^(?s:[[:digit:]]{2})$"),
            ("[a&&b]", "^(?s:[a\\&\\&b])$"),
            ("100!%", "^(?s:100\\%)$"),
            ("!!!x", "^(?s:\\!x)$"),
        ];
        for (pattern, expected) in cases {
            assert_eq!(regex(pattern, Some('!')).as_deref(), Some(expected), "{pattern}");
        }
        assert_eq!(regex("a!", Some('!')), None);
        assert_eq!(regex("a\\", None).as_deref(), Some("^(?s:a\\\\)$"));
    }
}
