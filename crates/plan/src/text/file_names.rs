//! Names of files where a table may stand: `FROM 'flights.parquet'`.

use std::collections::HashSet;

use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan, Word};

use crate::text::outline::Outline;
use crate::text::syntax::is_word;

/// Makes a name of each text in quotes that stands where a table may: all else knows tables by
/// names.
pub(crate) fn as_names(tokens: &mut [TokenWithSpan]) {
    let is_text = |token: &TokenWithSpan| matches!(token.token, Token::SingleQuotedString(_));
    if !tokens.iter().any(is_text) {
        return;
    }
    let outline = Outline::of(tokens);
    let commas: HashSet<usize> = outline.commas().iter().map(|mark| mark.at).collect();
    let names: Vec<usize> = (1..tokens.len())
        .filter(|&at| is_text(&tokens[at]) && is_behind(&outline, &commas, at))
        .collect();
    for at in names {
        if let Token::SingleQuotedString(text) = &tokens[at].token {
            let (value, keyword) = (text.clone(), Keyword::NoKeyword);
            tokens[at].token = Token::Word(Word { value, quote_style: Some('"'), keyword });
        }
    }
}

/// Whether what stands before a token lets a table follow.
fn is_behind(outline: &Outline<'_>, commas: &HashSet<usize>, at: usize) -> bool {
    let before = |back: usize| at.checked_sub(back).and_then(|at| outline.tokens.get(at));
    let is = |back: usize, words: &[&str]| {
        before(back).is_some_and(|token| words.iter().any(|word| is_word(token, word)))
    };
    if commas.contains(&(at - 1)) || is(1, &["JOIN"]) {
        return true;
    }
    match before(1) {
        // Not EXTRACT(HOUR FROM …), nor IS DISTINCT FROM.
        Some(from) if is_word(from, "FROM") => outline.is_plain(at - 1) && !is(2, &["DISTINCT"]),
        Some(table) if is_word(table, "TABLE") => {
            !is(2, &["CREATE", "REPLACE", "DROP", "ALTER", "TRUNCATE", "TEMPORARY", "TEMP"])
        }
        Some(into) if is_word(into, "INTO") => is(2, &["INSERT"]),
        Some(first) => at == 1 && (is_word(first, "DESCRIBE") || is_word(first, "DESC")),
        None => false,
    }
}

/// Whether a name is that of a file, and what a query calls its rows: `2013` of
/// `flights/2013.csv.gz`.
pub(crate) fn file_stem(name: &str) -> Option<&str> {
    let last = name.trim_end_matches('/').rsplit('/').next().unwrap_or(name);
    let stem = last.split('.').next().filter(|stem| !stem.is_empty()).unwrap_or(last);
    (name.contains('/') || stem.len() < last.len()).then_some(stem)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::syntax::split;

    /// The texts of a statement that are names of tables.
    fn names(sql: &str) -> Vec<String> {
        let mut tokens = split(sql).expect("tokens").swap_remove(0);
        as_names(&mut tokens);
        let quoted = |token: TokenWithSpan| match token.token {
            Token::Word(Word { value, quote_style: Some('"'), .. }) => Some(value),
            _ => None,
        };
        tokens.into_iter().filter_map(quoted).collect()
    }

    #[test]
    fn texts_where_a_table_may_stand_are_names() {
        for (sql, expected) in [
            ("SELECT 'a' FROM 'b.csv' WHERE c = 'd'", vec!["b.csv"]),
            ("SELECT 1 FROM t, 'b.csv' AS b JOIN 'c.csv' USING (x)", vec!["b.csv", "c.csv"]),
            (
                "SELECT 1 FROM t WHERE a IN (SELECT b FROM 'c.csv') AND d IN ('e', 'f')",
                vec!["c.csv"],
            ),
            (
                "SELECT * FROM TUMBLE(TABLE 'a.csv', DESCRIPTOR(ts), INTERVAL '1' HOUR)",
                vec!["a.csv"],
            ),
            ("INSERT INTO 'a.csv' SELECT 'x', 'y' FROM b ORDER BY c, 'z'", vec!["a.csv"]),
            ("DESCRIBE 'a.csv'", vec!["a.csv"]),
            ("WITH x AS (SELECT 1 FROM 'a.csv') SELECT 'b' UNION SELECT 'c' FROM x", vec!["a.csv"]),
            ("SELECT a IS DISTINCT FROM 'b' FROM c", vec![]),
            ("SELECT a IS NOT DISTINCT FROM 'b', 'c' FROM d", vec![]),
            ("SELECT EXTRACT(HOUR FROM 'a'), trim(BOTH 'b' FROM 'c') FROM d", vec![]),
            ("INSERT INTO t VALUES ('a', 'b'), ('c', 'd')", vec![]),
            ("CREATE TABLE 'a' (b INT)", vec![]),
        ] {
            assert_eq!(names(sql), expected, "{sql}");
        }
    }

    #[test]
    fn rows_of_a_file_are_called_as_it_is() {
        for (name, stem) in [
            ("flights.csv", Some("flights")),
            ("data/flights.csv.gz", Some("flights")),
            ("s3://bucket/2013/*.parquet", Some("*")),
            ("data/", Some("data")),
            ("./flights", Some("flights")),
            (".hidden", None),
            ("flights", None),
        ] {
            assert_eq!(file_stem(name), stem, "{name}");
        }
    }
}
