//! Words of this repository's own in the texts that users read: messages, help, names of metrics
//! and options, and pages.
//!
//! [`PHRASES`] has the expressions that are jargon wherever they stand. It is a shorter list than
//! that of names ([`words`](crate::words)): many of those words are ordinary English in a sentence,
//! as *known* and *near* are. A text is a string literal of a crate outside its tests, or a page.
//! [`EXCEPTIONS`] has the places where an expression is right.

use crate::imports::strings_of;
use crate::tree::{File, Finding, Tree};

/// An expression in lower case, and what the field says.
pub const PHRASES: &[(&str, &str)] = &[
    ("aloft", "in flight"),
    ("bell", "event descriptor"),
    ("bells", "event descriptors"),
    ("deals out", "divides"),
    ("dealt out", "divided"),
    ("feed", "source task, input"),
    ("feeds", "source tasks, inputs"),
    ("foretold", "predicted, estimated"),
    ("gave out", "emitted, drained"),
    ("give out", "emit, drain"),
    ("given out", "emitted, drained"),
    ("gives out", "emits, drains"),
    ("giving out", "emitting, draining"),
    ("handed", "passed"),
    ("handover", "local exchange"),
    ("hands over", "passes by reference"),
    ("heard", "received"),
    ("laid down", "exported"),
    ("lane", "exchange port"),
    ("lanes", "exchange ports"),
    ("lays down", "exports"),
    ("ledger", "operation table, memory accounting"),
    ("left out", "omitted, dropped"),
    ("lobby", "listener"),
    ("mend", "reconnect"),
    ("mended", "reconnected"),
    ("mends", "reconnects"),
    ("onward", "watermark forwarding"),
    ("owe", "pending acknowledgement"),
    ("owed", "pending acknowledgements"),
    ("owes", "has pending"),
    ("parcel", "broadcast frame"),
    ("parcels", "broadcast frames"),
    ("patience", "timeout"),
    ("reception", "acceptor"),
    ("ripe", "due"),
    ("shelf", "dead-letter buffer"),
    ("sleeper", "parked worker"),
    ("steer", "tree update"),
    ("stir", "notify"),
    ("tally", "checksum, counters"),
    ("teller", "occupancy"),
    ("told", "reported, announced, distinguished"),
    ("trunk", "shared connection"),
    ("trunks", "shared connections"),
    ("unfold", "expand"),
    ("unfolded", "expanded"),
    ("unfolds", "expands"),
    ("weave", "lower"),
    ("weaver", "pipeline builder"),
    ("widened", "multi-window rows"),
    ("workshop", "reconnect service"),
];

/// Where an expression is right, and why: a part of the path, the expression, the reason.
pub const EXCEPTIONS: &[(&str, &str, &str)] = &[
    ("docs/decisions/", "", "a decision is a record of its time, with the words of that time"),
    ("/conformance/", "", "assertions of a suite of tests"),
    ("plan/src/catalog/declare.rs", "patience", "the former name of an option, for its error"),
    ("docs/design/adding-a-source.md", "owes", "a method of the trait, whose rename is to come"),
];

/// Expressions of our own in messages, help, and names of metrics and options.
#[must_use]
pub fn in_literals(tree: &Tree) -> Vec<Finding> {
    let sources = tree.with(&["rs"]).filter(|file| is_source(&file.path));
    let mut found = Vec::new();
    for file in sources {
        // Tests stand at the end of a file.
        let end = file.text.find("#[cfg(test)]\nmod ").unwrap_or(file.text.len());
        for literal in strings_of(&file.text[..end]) {
            // A line of the source that goes on in the next one.
            let text = literal.text.replace("\\\n", " ");
            found.extend(findings(file, literal.line, &text));
        }
    }
    found
}

/// Expressions of our own in pages.
#[must_use]
pub fn in_pages(tree: &Tree) -> Vec<Finding> {
    let is_page = |file: &&File| {
        // The list of changes has the former names.
        file.path.starts_with("docs/") || !file.path.contains('/') && file.path != "CHANGELOG.md"
    };
    let mut found = Vec::new();
    for file in tree.with(&["md"]).filter(is_page) {
        // An expression may go over the end of a line: it is found in the first one.
        let lines: Vec<(usize, &str)> = file.lines().collect();
        for (at, (line, text)) in lines.iter().enumerate() {
            let next = lines.get(at + 1).map_or("", |(_, next)| next);
            let before = phrases_in(next);
            let mut both = phrases_in(&format!("{text} {next}"));
            for phrase in before {
                if let Some(at) = both.iter().position(|found| *found == phrase) {
                    both.remove(at);
                }
            }
            found.extend(both.into_iter().filter_map(|phrase| finding(file, *line, phrase)));
        }
    }
    found
}

fn is_source(path: &str) -> bool {
    let is_library = path.starts_with("crates/") || path.starts_with("bench/");
    let is_test = path.ends_with("tests.rs") || path.contains("/tests/");
    is_library && path.contains("/src/") && !is_test && !path.starts_with("crates/tidy/")
}

type Phrase = (&'static str, &'static str);

fn findings(file: &File, line: usize, text: &str) -> Vec<Finding> {
    phrases_in(text).into_iter().filter_map(|phrase| finding(file, line, phrase)).collect()
}

fn finding(file: &File, line: usize, (phrase, better): Phrase) -> Option<Finding> {
    let is_exception = EXCEPTIONS.iter().any(|(path, expression, _)| {
        file.path.contains(path) && (expression.is_empty() || *expression == phrase)
    });
    let message = format!("\"{phrase}\": the field says {better}");
    (!is_exception).then(|| Finding::new(&file.path, line, message))
}

/// The expressions in a text, as often as they stand there.
fn phrases_in(text: &str) -> Vec<Phrase> {
    let words = text.to_lowercase();
    let words = words.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    let words: Vec<&str> = words.collect();
    let mut found = Vec::new();
    for phrase in PHRASES {
        let parts: Vec<&str> = phrase.0.split(' ').collect();
        let times = words.windows(parts.len()).filter(|window| *window == parts).count();
        found.extend(std::iter::repeat_n(*phrase, times));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(path: &str, text: &str) -> Tree {
        Tree { root: ".".into(), files: vec![File::new(path, text)] }
    }

    #[test]
    fn an_expression_is_found_in_literals_outside_tests() {
        let found = |text: &str| in_literals(&tree("crates/x/src/a.rs", text)).len();
        assert_eq!(found("let a = \"rows are given \\\n    out\"; let given_out = 1;"), 1);
        assert_eq!(found("let a = r#\"the \"lobby\"\"#; // a lobby"), 1);
        assert_eq!(found("let a = \"dashboard 'patience'\"; let b = 'b';"), 1);
        assert_eq!(found("let a = 1;\n#[cfg(test)]\nmod tests { const A: &str = \"lobby\"; }"), 0);
        assert_eq!(in_literals(&tree("crates/x/tests/a.rs", "let a = \"lobby\";")).len(), 0);
    }

    #[test]
    fn an_expression_is_found_in_pages_once() {
        let lines = |path: &str, text: &str| -> Vec<usize> {
            in_pages(&tree(path, text)).iter().map(|finding| finding.line).collect()
        };
        assert_eq!(lines("docs/a.md", "late rows are left\nout, and left out\n"), [1, 2]);
        assert_eq!(lines("README.md", "| `mended` |"), [1]);
        assert_eq!(lines("CHANGELOG.md", "the lobby"), [0; 0]);
        assert_eq!(lines("docs/decisions/1.md", "the lobby"), [0; 0]);
    }

    #[test]
    fn expressions_are_in_order() {
        assert!(PHRASES.is_sorted_by_key(|(phrase, _)| phrase));
    }
}
