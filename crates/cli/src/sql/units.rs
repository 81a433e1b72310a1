//! The shell's units of work: one statement, a whole statement set, or a dot command.

use super::lexer::{SqlToken, SqlTokens, TokenKind, tokens};

/// A part of a text that is carried out as one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit<'a> {
    /// `.tables`, up to the end of its line.
    Dot {
        /// The command without its line end.
        text: &'a str,
    },
    /// SQL, with the semicolon that ends it.
    Sql {
        /// Its text.
        text: &'a str,
        /// Where it begins in the whole text, in bytes.
        at: usize,
    },
}

/// The units of a text, in their order. The last may lack its semicolon; then `complete` is false.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Units<'a> {
    pub(crate) list: Vec<Unit<'a>>,
    pub(crate) complete: bool,
}

/// Cuts a text into units.
pub(crate) fn units(text: &str) -> Units<'_> {
    let mut tokens = tokens(text);
    let mut list = Vec::new();
    while let Some(first) = tokens.next() {
        if !first.is_significant() {
            // A comment that nothing closes may hide anything.
            if first.open {
                return Units { list, complete: false };
            }
        } else if is_dot(&first, text) {
            let line = text[first.at..].lines().next().unwrap_or_default();
            list.push(Unit::Dot { text: line.trim_end() });
            tokens.at = first.at + line.len();
        } else if first.kind != TokenKind::Semicolon {
            tokens.at = first.at;
            let complete = skip_statement(&mut tokens);
            list.push(Unit::Sql { text: text[first.at..tokens.at].trim_end(), at: first.at });
            if !complete {
                return Units { list, complete };
            }
        }
    }
    Units { list, complete: true }
}

/// A dot that begins a line, with a letter or nothing behind it.
fn is_dot(token: &SqlToken<'_>, text: &str) -> bool {
    let before = text[..token.at].rsplit('\n').next().unwrap_or_default();
    let behind = text[token.end()..].chars().next();
    let command = behind.is_none_or(|c| c.is_alphabetic() || c.is_whitespace());
    token.text == "." && before.trim().is_empty() && command
}

/// Takes the pieces of a statement or statement set; false if its end is missing.
fn skip_statement(tokens: &mut SqlTokens<'_>) -> bool {
    let mut words = 0;
    let (mut begins, mut is_set) = (false, false);
    // The first word since the last semicolon is END.
    let (mut is_first, mut is_end) = (true, false);
    for token in tokens {
        match token.kind {
            TokenKind::Semicolon if !is_set || is_end => return true,
            TokenKind::Semicolon => (is_first, is_end) = (true, false),
            _ if token.is_significant() => {
                words += 1;
                begins |= words == 1 && (token.is_word("BEGIN") || token.is_word("EXECUTE"));
                is_set |= words == 2 && begins && token.is_word("STATEMENT");
                is_end |= is_first && token.is_word("END");
                is_first = false;
            }
            _ => {}
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(text: &str) -> (Vec<&str>, bool) {
        let units = units(text);
        let texts = units.list.iter().map(|unit| match unit {
            Unit::Dot { text } | Unit::Sql { text, .. } => *text,
        });
        (texts.collect(), units.complete)
    }

    #[test]
    fn a_text_is_cut_where_statements_end() {
        assert_eq!(
            texts("SELECT ';';\n -- x;\nSELECT 2 ;;"),
            (vec!["SELECT ';';", "SELECT 2 ;"], true)
        );
        assert_eq!(texts("SELECT 1"), (vec!["SELECT 1"], false));
        assert_eq!(texts("SELECT 1; SELECT 'a"), (vec!["SELECT 1;", "SELECT 'a"], false));
        assert_eq!(texts(" -- nothing"), (vec![], true));
        assert_eq!(texts("/* open"), (vec![], false));
    }

    #[test]
    fn a_statement_set_is_one_unit() {
        let set = "BEGIN STATEMENT SET; INSERT INTO a SELECT 1; END;";
        assert_eq!(texts(&format!("{set} SELECT 1;")), (vec![set, "SELECT 1;"], true));
        let set = "EXECUTE STATEMENT SET BEGIN INSERT INTO a SELECT 1; END;";
        assert_eq!(texts(set), (vec![set], true));
        assert!(!texts("BEGIN STATEMENT SET; INSERT INTO a SELECT 1;").1);
        assert_eq!(texts("BEGIN; SELECT 1;").0.len(), 2);
    }

    #[test]
    fn a_dot_command_takes_its_line_whatever_is_in_it() {
        assert_eq!(
            texts(".mode csv\nSELECT 1;\n  .output it's.csv\n.quit"),
            (vec![".mode csv", "SELECT 1;", ".output it's.csv", ".quit"], true)
        );
        // Within a statement a dot is a dot.
        assert_eq!(texts("SELECT t\n.a FROM t;"), (vec!["SELECT t\n.a FROM t;"], true));
        assert_eq!(texts("SELECT 1; .5"), (vec!["SELECT 1;", ".5"], false));
    }

    /// Each is one statement for the planner too, and gives one row.
    #[test]
    fn the_planner_ends_statements_at_the_same_places() {
        for sql in [
            "SELECT ';', 'it''s;', E'it\\'s;' AS e;",
            "SELECT 1 AS \";\" -- ;\n /* ; /* ; */ ; */ ;",
            "SELECT $$;'$$ AS a, $x$ $$ ; $x$ AS b;",
            "SELECT 1 AS `;`;",
            "SELECT 'a' -- it's\n, 2;",
        ] {
            assert_eq!(texts(sql).0.len(), 1, "{sql}");
            assert!(texts(sql).1, "{sql}");
            let mut session = millstream::Session::builder().build().expect("a session");
            let rows = session.collect(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
            assert_eq!(rows.iter().map(|batch| batch.num_rows()).sum::<usize>(), 1, "{sql}");
        }
    }

    #[test]
    fn units_know_where_they_begin() {
        let text = ".help\n\n  SELECT 1;\n.tables\nSELECT 2;";
        let begins: Vec<usize> = units(text)
            .list
            .iter()
            .filter_map(|unit| match unit {
                Unit::Sql { text: sql, at } => {
                    assert!(text[*at..].starts_with(sql));
                    Some(*at)
                }
                Unit::Dot { .. } => None,
            })
            .collect();
        assert_eq!(begins.len(), 2);
    }
}
