//! Completions for the Tab key, from the text before the cursor.
//!
//! ```text
//! .mode c            values of a dot command
//! FROM f             tables and views
//! f.ori              columns of the table, or of the table behind an alias
//! WITH ('conn        options; `'connector' = 'fi` connectors
//! SET mill           settings
//! anything else      columns of the tables that the statement names, functions, keywords, tables
//! ```

use millstream::{NamedRelation, Vocabulary};

use super::dot;
use super::lexer::{SqlToken, TokenKind, tokens};

/// The words of the dialect.
#[rustfmt::skip]
pub(crate) const KEYWORDS: &[&str] = &[
    "ALL", "AND", "ANY", "ARRAY", "AS", "ASC", "ASOF", "AT", "BEGIN", "BETWEEN", "BIGINT",
    "BOOLEAN", "BY", "CASE", "CAST", "CREATE", "CROSS", "CUBE", "CUMULATE", "CURRENT", "DATE",
    "DAY", "DECIMAL", "DESC", "DESCRIBE", "DESCRIPTOR", "DISTINCT", "DOUBLE", "DROP", "ELSE",
    "END", "EXCEPT", "EXECUTE", "EXISTS", "EXPLAIN", "EXTRACT", "FALSE", "FILTER", "FLOAT",
    "FOR", "FROM", "FULL", "GROUP", "GROUPING", "HAVING", "HOP", "HOUR", "IF", "IN", "INNER",
    "INSERT", "INT", "INTERSECT", "INTERVAL", "INTO", "IS", "JOIN", "LEFT", "LIKE", "LIMIT",
    "MATCH_CONDITION", "MILLISECOND", "MINUTE", "MONTH", "NOT", "NULL", "OFFSET", "ON", "OR",
    "ORDER", "OUTER", "OVER", "PARTITION", "PRECEDING", "RANGE", "RIGHT", "ROLLUP", "ROW",
    "ROWS", "SECOND", "SELECT", "SESSION", "SET", "SETS", "SHOW", "SMALLINT", "STATEMENT",
    "STRING", "TABLE", "TABLES", "TEMPORARY", "THEN", "TIME", "TIMESTAMP", "TINYINT", "TO",
    "TRUE", "TUMBLE", "UNBOUNDED", "UNION", "USING", "VACUUM", "VALUES", "VARCHAR", "VIEW",
    "WATERMARK", "WHEN", "WHERE", "WINDOW", "WITH", "YEAR",
];

/// Candidates at the cursor.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Candidates {
    /// Texts that take the place of what stands from a byte on.
    Texts(usize, Vec<String>),
    /// Names of files, for what stands from a byte on.
    Files(usize),
}

/// The candidates at byte `cursor` of `text`.
pub(crate) fn offer(text: &str, cursor: usize, names: &Vocabulary) -> Candidates {
    let before = &text[..cursor];
    let line = before.rsplit('\n').next().unwrap_or_default();
    let all: Vec<SqlToken<'_>> = tokens(before).collect();
    // The statement that the cursor is in.
    let from = all.iter().rposition(|p| p.kind == TokenKind::Semicolon).map_or(0, |at| at + 1);
    let statement: Vec<SqlToken<'_>> =
        all[from..].iter().copied().filter(SqlToken::is_significant).collect();
    if line.starts_with('.') && statement.first().is_none_or(|first| first.text == ".") {
        return dot_offer(line, cursor, names);
    }
    // The word being typed, and the text before it.
    let (typed, done) = match all.last() {
        Some(last) if is_typed(last) => (last.text, &statement[..statement.len() - 1]),
        _ => ("", &statement[..]),
    };
    let start = cursor - typed.len();
    // The name of a setting has dots.
    if let [set, key, ..] = &statement[..]
        && set.is_word("SET")
        && key.kind == TokenKind::Word
        && !statement.iter().any(|token| token.text == "=")
    {
        let settings = names.settings.iter().map(|(spec, _)| spec.name.to_owned());
        return Candidates::Texts(key.at, matching(settings, &before[key.at..]));
    }
    if let Some(inner) = typed.strip_prefix('\'') {
        return match in_quotes(done, names) {
            Quoted::Texts(texts) => Candidates::Texts(start + 1, matching(texts, inner)),
            Quoted::Path => Candidates::Files(start + 1),
        };
    }
    let rest = &text[cursor..];
    let end = rest.find(';').unwrap_or(rest.len());
    let mut whole = statement.clone();
    let behind: Vec<SqlToken<'_>> = tokens(&rest[..end]).filter(SqlToken::is_significant).collect();
    whole.extend(behind);
    Candidates::Texts(start, words(typed, done, &whole, names))
}

/// Whether the cursor, behind this piece, is still in it.
fn is_typed(token: &SqlToken<'_>) -> bool {
    matches!(token.kind, TokenKind::Word) || (token.kind == TokenKind::Text && token.open)
}

fn dot_offer(line: &str, cursor: usize, names: &Vocabulary) -> Candidates {
    let Some((command, argument)) = line.split_once(' ') else {
        let commands = dot::COMMANDS.iter().map(|command| command.name.to_owned());
        return Candidates::Texts(cursor - line.len(), matching(commands, line));
    };
    let start = cursor - argument.trim_start().len();
    let argument = argument.trim_start();
    let texts: Vec<String> = match dot::COMMANDS.iter().find(|known| known.name == command) {
        None => vec![],
        Some(known) => match known.takes {
            dot::Takes::Nothing => vec![],
            dot::Takes::File => return Candidates::Files(start),
            dot::Takes::OneOf(values) => values.iter().map(|value| (*value).to_owned()).collect(),
            dot::Takes::Relation => names.relations.iter().map(|r| r.name.clone()).collect(),
            dot::Takes::Setting => names.settings.iter().map(|(s, _)| s.name.to_owned()).collect(),
            dot::Takes::Sql => {
                let Candidates::Texts(at, texts) = offer(argument, argument.len(), names) else {
                    return Candidates::Files(cursor);
                };
                return Candidates::Texts(start + at, texts);
            }
        },
    };
    Candidates::Texts(start, matching(texts, argument))
}

/// The text in single quotes.
enum Quoted {
    Texts(Vec<String>),
    Path,
}

fn in_quotes(done: &[SqlToken<'_>], names: &Vocabulary) -> Quoted {
    let word = |at: usize| done.get(at).map(|token| token.text.trim_matches('\''));
    let last = done.len().wrapping_sub(1);
    if done.first().is_some_and(|first| first.is_word("SET")) {
        return Quoted::Texts(names.settings.iter().map(|(s, _)| s.name.to_owned()).collect());
    }
    let connector = chosen_connector(done);
    let options = names.connectors.iter().filter(|(name, _)| connector.is_none_or(|c| c == *name));
    if word(last) == Some("=") {
        let key = word(last.wrapping_sub(1)).unwrap_or_default();
        if key == "connector" {
            let connectors = names.connectors.iter().map(|(name, _)| (*name).to_owned());
            return Quoted::Texts(connectors.collect());
        }
        if key == "path" {
            return Quoted::Path;
        }
        let values = options.flat_map(|(_, options)| options.iter().find(|o| o.key == key));
        let values = values.flat_map(|option| option.values.split('|').map(str::trim));
        // A value such as `integer` is a description, and no text to type.
        let values = values.filter(|_| is_choice(names, key)).map(str::to_owned);
        return Quoted::Texts(values.collect());
    }
    let mut keys: Vec<String> =
        options.flat_map(|(_, options)| options.iter().map(|o| o.key.to_owned())).collect();
    if connector.is_none() {
        keys.push("connector".into());
    }
    Quoted::Texts(keys)
}

/// Whether the values of an option are listed one by one.
fn is_choice(names: &Vocabulary, key: &str) -> bool {
    let mut options = names.connectors.iter().flat_map(|(_, options)| options.iter());
    options.any(|option| option.key == key && option.values.contains('|'))
}

/// The connector that a `WITH (…)` has named already.
fn chosen_connector<'a>(done: &[SqlToken<'a>]) -> Option<&'a str> {
    let at = done.iter().rposition(|token| token.text == "'connector'")?;
    let value = done.get(at + 2).filter(|_| done[at + 1].text == "=")?;
    Some(value.text.trim_matches('\''))
}

/// Words: `typed` is the beginning of one, `done` stands before it, `whole` is the statement.
fn words(
    typed: &str,
    done: &[SqlToken<'_>],
    whole: &[SqlToken<'_>],
    names: &Vocabulary,
) -> Vec<String> {
    let relations = || names.relations.iter().map(|relation| quoted_if_needed(&relation.name));
    match done {
        [.., table, dot] if dot.text == "." => {
            let columns = relation_of(table, whole, names);
            let columns = columns.map(|relation| &relation.columns[..]).unwrap_or_default();
            return matching(columns.iter().map(|(name, _)| quoted_if_needed(name)), typed);
        }
        [.., last] if ["FROM", "JOIN", "INTO", "TABLE"].iter().any(|word| last.is_word(word)) => {
            return matching(relations(), typed);
        }
        [first] if ["DESCRIBE", "DESC", "VACUUM"].iter().any(|word| first.is_word(word)) => {
            return matching(relations(), typed);
        }
        [first, ..] if first.is_word("SET") && done.len() == 1 => {
            return matching(names.settings.iter().map(|(spec, _)| spec.name.to_owned()), typed);
        }
        _ => {}
    }
    let named = |relation: &&NamedRelation| {
        whole.iter().any(|token| token.text.trim_matches(['"', '`']) == relation.name)
    };
    // Before the tables are named it may be a column of any.
    let any = !names.relations.iter().any(|relation| named(&relation));
    let of = names.relations.iter().filter(|relation| any || named(relation));
    let columns = of.flat_map(|relation| &relation.columns);
    let mut texts = matching(columns.map(|(name, _)| quoted_if_needed(name)), typed);
    // Everything there is would be no help.
    if typed.is_empty() {
        return if any { vec![] } else { texts };
    }
    let lower = typed.chars().all(|c| !c.is_uppercase());
    let keyword = |word: &&str| if lower { word.to_lowercase() } else { (*word).to_owned() };
    let mut others = matching(KEYWORDS.iter().map(keyword), typed);
    others.extend(matching(names.functions.iter().map(|name| format!("{name}(")), typed));
    others.extend(matching(relations(), typed));
    others.retain(|other| !texts.contains(other));
    texts.append(&mut others);
    texts
}

/// The table of a name or an alias: `FROM bids AS b`, `JOIN bids b`.
fn relation_of<'a>(
    name: &SqlToken<'_>,
    whole: &[SqlToken<'_>],
    names: &'a Vocabulary,
) -> Option<&'a NamedRelation> {
    let bare = |token: &SqlToken<'_>| token.text.trim_matches(['"', '`']).to_owned();
    let find = |name: &str| names.relations.iter().find(|relation| relation.name == name);
    let name = bare(name);
    find(&name).or_else(|| {
        (1..whole.len()).filter(|at| bare(&whole[*at]) == name).find_map(|at| {
            let before = if whole[at - 1].is_word("AS") { at.checked_sub(2)? } else { at - 1 };
            find(&bare(&whole[before]))
        })
    })
}

/// A name as it has to be written in SQL.
fn quoted_if_needed(name: &str) -> String {
    let plain = name.chars().all(|c| c.is_alphanumeric() || c == '_')
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && !KEYWORDS.contains(&name.to_uppercase().as_str());
    if plain { name.to_owned() } else { format!("\"{}\"", name.replace('"', "\"\"")) }
}

/// Those that begin with what was typed, whatever the case, sorted.
fn matching(texts: impl IntoIterator<Item = String>, typed: &str) -> Vec<String> {
    let begins = |text: &String| {
        let text = text.trim_start_matches('"');
        let mut chars = text.chars().flat_map(char::to_lowercase);
        typed.chars().flat_map(char::to_lowercase).all(|c| chars.next() == Some(c))
    };
    let mut texts: Vec<String> = texts.into_iter().filter(begins).collect();
    texts.sort_unstable();
    texts.dedup();
    texts
}

#[cfg(test)]
mod tests {
    use millstream::connector::OptionSpec;
    use millstream::settings;

    use super::*;

    const FILE: &[OptionSpec] = &[
        OptionSpec { key: "path", values: "file", default: "", doc: "." },
        OptionSpec { key: "format", values: "csv | json", default: "", doc: "." },
    ];

    fn names() -> Vocabulary {
        let column = |name: &str| (name.to_owned(), "INT".to_owned());
        let relation = |name: &str, columns: &[&str]| NamedRelation {
            name: name.into(),
            connector: Some("file"),
            columns: columns.iter().map(|name| column(name)).collect(),
        };
        Vocabulary {
            relations: vec![
                relation("bids", &["price", "Prior bid", "item"]),
                relation("flights", &["origin"]),
            ],
            functions: vec!["count".into(), "concat".into()],
            connectors: vec![("file", FILE), ("generator", &[])],
            settings: settings().iter().map(|spec| (*spec, None)).collect(),
        }
    }

    /// The candidates at `|`.
    fn at(text: &str) -> Vec<String> {
        let cursor = text.find('|').expect("a cursor");
        match offer(&text.replace('|', ""), cursor, &names()) {
            Candidates::Texts(_, texts) => texts,
            Candidates::Files(at) => vec![format!("files from {at}")],
        }
    }

    #[test]
    fn tables_follow_from_and_columns_a_table() {
        assert_eq!(at("SELECT * FROM b|"), ["bids"]);
        assert_eq!(at("INSERT INTO |"), ["bids", "flights"]);
        assert_eq!(at("FROM TUMBLE(TABLE fl|"), ["flights"]);
        assert_eq!(at("SELECT bids.p|"), ["\"Prior bid\"", "price"]);
        assert_eq!(at("SELECT b.| FROM bids AS b"), ["\"Prior bid\"", "item", "price"]);
        assert_eq!(at("SELECT b.i| FROM bids b"), ["item"]);
        // Another statement's tables are not this one's.
        assert_eq!(at("SELECT * FROM bids; SELECT | FROM flights"), ["origin"]);
    }

    #[test]
    fn words_are_offered_in_the_case_that_is_typed() {
        assert_eq!(at("SEL|"), ["SELECT"]);
        assert_eq!(at("sel|"), ["select"]);
        assert_eq!(at("SELECT co|"), ["concat(", "count("]);
        assert_eq!(at("SELECT pri| FROM bids"), ["\"Prior bid\"", "price"]);
        assert_eq!(at("|"), Vec::<String>::new());
    }

    #[test]
    fn options_connectors_and_settings_are_offered_in_quotes() {
        assert_eq!(at("CREATE TABLE t (x INT) WITH ('conn|"), ["connector"]);
        assert_eq!(at("… WITH ('connector' = '|"), ["file", "generator"]);
        assert_eq!(at("… WITH ('connector' = 'file', 'f|"), ["format"]);
        assert_eq!(at("… WITH ('connector' = 'file', 'format' = '|"), ["csv", "json"]);
        assert_eq!(at("… WITH ('connector' = 'generator', '|"), Vec::<String>::new());
        assert_eq!(at("… ('path' = 'da|"), ["files from 15"]);
        assert_eq!(at("SET 'millstream.exch|"), ["millstream.exchange"]);
        assert_eq!(at("SET millstream.exch|"), ["millstream.exchange"]);
        assert_eq!(at("SET |").len(), settings().len());
    }

    #[test]
    fn dot_commands_and_their_values_are_offered() {
        assert_eq!(at(".m|"), [".mode"]);
        assert_eq!(at(".mode |"), ["csv", "json", "table"]);
        assert_eq!(at(".schema b|"), ["bids"]);
        assert_eq!(at(".read q|"), ["files from 6"]);
        assert_eq!(at(".timer o|"), ["off", "on"]);
        assert_eq!(at(".explain SELECT * FROM b|"), ["bids"]);
        assert_eq!(at("SELECT 1;\n.ch|"), [".chart"]);
    }
}
