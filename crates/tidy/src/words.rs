//! Words of this repository's own that stand where the field has a word, and names that two types
//! have.
//!
//! [`WORDS`] has a word for each thing that streaming engines, databases and operating systems
//! already have a name for. It must not be a part of a name, or a name, or the name of a type, as
//! its row says: many of these words are ordinary English, and are right in a sentence.
//!
//! A type that other modules see has a name of its own in the workspace, so that a reader who looks
//! for it finds one. A `bool` is tested by `if`.

use std::collections::{BTreeMap, BTreeSet};

use crate::imports::{Token, tokens_of};
use crate::tree::{File, Finding, Tree};

/// Where a word must not stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// In any name, also as one of its words: `bell`, `wake_bell`, `BellRope`.
    Part,
    /// As a whole name of anything: `told`, but not `told_late` in the name of a test.
    Name,
    /// As the whole name of a type or a variant: `Gate`.
    Type,
}

use Scope::{Name, Part, Type};

/// A word, where it must not stand, and the field's word for the thing.
pub const WORDS: &[(&str, Scope, &str)] = &[
    ("admit", Name, "validate"),
    ("aloft", Part, "in-flight payload"),
    ("aside", Part, "spillable state"),
    ("bell", Part, "event descriptor"),
    ("board", Part, "dashboard"),
    ("cast", Type, "broadcast"),
    ("feed", Name, "source task, input edge"),
    ("flight", Type, "datagram multicast, in-flight payload"),
    ("folded", Type, "rows consumed by the fused kernel"),
    ("front", Type, "local pre-aggregation of heavy hitters"),
    ("gate", Type, "async mutex"),
    ("given", Type, "arguments, retention"),
    ("had", Type, "payload acknowledgement"),
    ("handed", Part, "passed by reference"),
    ("handover", Part, "local exchange"),
    ("heard", Name, "received, acknowledged"),
    ("holes", Name, "sparse ids"),
    ("keeping", Type, "grace processing"),
    ("kept", Type, "retained, uncommitted"),
    ("known", Type, "statistics, observed"),
    ("lack", Part, "negative acknowledgement"),
    ("landing", Type, "reassembly"),
    ("lane", Type, "exchange port"),
    ("lead", Type, "distribution"),
    ("ledger", Part, "operation table, memory accounting"),
    ("lobby", Part, "listener"),
    ("looked", Type, "lookup join"),
    ("meeting", Part, "join specification, bootstrap"),
    ("mend", Part, "reconnect"),
    ("mended", Part, "reconnected"),
    ("mender", Part, "reconnect service"),
    ("near", Type, "dense-key kernel"),
    ("news", Name, "events"),
    ("notes", Name, "control messages"),
    ("onward", Part, "watermark forwarding"),
    ("owe", Name, "pending acknowledgement"),
    ("owed", Name, "pending acknowledgements"),
    ("pace", Part, "watermark alignment, rate"),
    ("parcel", Part, "broadcast frame"),
    ("patience", Part, "timeout"),
    ("reception", Part, "acceptor"),
    ("ripe", Part, "due windows"),
    ("rounds", Type, "multi-pass processing"),
    ("routes", Type, "outputs"),
    ("said", Name, "announced, message"),
    ("shelf", Part, "dead-letter buffer"),
    ("sleeper", Part, "parked worker"),
    ("spare", Name, "recycled memory"),
    ("spent", Name, "drained"),
    ("spread", Type, "distribution, range"),
    ("steer", Part, "tree update"),
    ("stir", Part, "notify"),
    ("tally", Part, "checksum sink, counters"),
    ("teller", Part, "occupancy"),
    ("told", Name, "announced, reported"),
    ("took", Type, "acknowledgement"),
    ("trunk", Part, "shared connection"),
    ("turn", Type, "guard, control thread"),
    ("unfold", Part, "expand"),
    ("waits", Type, "spill specification"),
    ("wanted", Type, "requested columns"),
    ("weave", Part, "lower"),
    ("weaver", Part, "pipeline builder"),
    ("widened", Part, "multi-window rows"),
    ("workshop", Part, "reconnect service"),
];

/// Names in which a word is right, the crate of which that holds (all if it is empty), and why.
pub const EXCEPTIONS: &[(&str, &str, &str)] = &[
    ("Cast", "", "an expression of DataFusion, whose name it is"),
    ("FLIGHT", "", "a protocol of Arrow, whose name it is"),
    ("Flight", "", "a protocol of Arrow, whose name it is"),
    ("try_unfold", "plan", "a function of the futures crate"),
    ("notes", "plan", "a field of DataFusion's diagnostics"),
];

/// Words of our own, by crate.
#[must_use]
pub fn own_words(tree: &Tree) -> Vec<Finding> {
    let found = sources(tree).flat_map(|(krate, file)| {
        let names = tokens_of(&file.text).into_iter().filter(|token| is_name(&token.text));
        let is_right = move |name: &str| {
            let mut exceptions = EXCEPTIONS.iter();
            exceptions.any(|(known, of, _)| *known == name && (of.is_empty() || *of == krate))
        };
        names.filter(move |token| !is_right(&token.text)).filter_map(|token| {
            let (word, _, better) =
                WORDS.iter().find(|(word, scope, _)| stands_in(word, *scope, &token.text))?;
            let message = format!("`{}`: the field says {better} for `{word}`", token.text);
            Some(Finding::new(&file.path, token.line, message))
        })
    });
    found.collect()
}

/// Types that other modules see and whose name another one of the workspace has.
#[must_use]
pub fn shared_type_names(tree: &Tree) -> Vec<Finding> {
    let mut types: BTreeMap<String, Vec<Finding>> = BTreeMap::new();
    for (_, file) in sources(tree).filter(|(_, file)| file.path.contains("/src/")) {
        let tokens = tokens_of(&file.text);
        for (at, window) in tokens.windows(2).enumerate() {
            let [kind, name] = window else { continue };
            let declares = ["struct", "enum", "trait", "union"].contains(&kind.text.as_str());
            if declares && is_name(&name.text) && is_visible(&tokens[..at]) {
                let message = format!("`{}` is a type elsewhere too: name what it is", name.text);
                let finding = Finding::new(&file.path, name.line, message);
                types.entry(name.text.clone()).or_default().push(finding);
            }
        }
    }
    types.into_values().filter(|places| places.len() > 1).flatten().collect()
}

/// Matches on a `bool`, where an `if` says the same.
#[must_use]
pub fn matched_bools(tree: &Tree) -> Vec<Finding> {
    let found = sources(tree).flat_map(|(_, file)| {
        let tokens = tokens_of(&file.text);
        let arms: Vec<Finding> = tokens
            .windows(4)
            .filter(|four| {
                let [open, value, dash, arrow] = [0, 1, 2, 3].map(|at| four[at].text.as_str());
                open == "{" && ["true", "false"].contains(&value) && (dash, arrow) == ("=", ">")
            })
            .map(|four| Finding::new(&file.path, four[1].line, "a match on a bool: use `if`"))
            .collect();
        arms
    });
    found.collect()
}

/// The Rust files of the workspace's libraries, programs, models and measurements, with the names
/// of their crates. Integration tests of the whole engine are named by what they show.
fn sources(tree: &Tree) -> impl Iterator<Item = (String, &File)> {
    tree.with(&["rs"]).filter_map(|file| {
        let mut parts = file.path.split('/');
        let krate = match parts.next()? {
            "crates" => parts.next()?,
            root @ ("bench" | "models") => root,
            _ => return None,
        };
        (krate != "tidy" && !file.path.contains("/peers/")).then(|| (krate.to_owned(), file))
    })
}

fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

fn stands_in(word: &str, scope: Scope, name: &str) -> bool {
    match scope {
        Part => words_of(name).contains(word),
        Name => name.to_lowercase() == *word,
        Type => {
            let is_type = name.starts_with(char::is_uppercase) && name.contains(char::is_lowercase);
            is_type && name.to_lowercase() == *word
        }
    }
}

/// The words of a name in lower case: `WakeBell` and `wake_bell` are `wake` and `bell`.
fn words_of(name: &str) -> BTreeSet<String> {
    let mut words = BTreeSet::new();
    for part in name.split('_') {
        let mut word = String::new();
        let mut after_lower = false;
        for c in part.chars() {
            if c.is_uppercase() && after_lower {
                words.insert(std::mem::take(&mut word).to_lowercase());
            }
            after_lower = c.is_lowercase();
            word.push(c);
        }
        words.insert(word.to_lowercase());
    }
    words
}

/// Whether the tokens before `struct` make the type `pub` or `pub(crate)`.
fn is_visible(before: &[Token]) -> bool {
    let ends = |with: &[&str]| {
        let start = before.len().checked_sub(with.len());
        start.is_some_and(|start| before[start..].iter().map(|token| &token.text).eq(with))
    };
    ends(&["pub"]) || ends(&["pub", "(", "crate", ")"])
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn tree(files: &[(&str, &str)]) -> Tree {
        let files = files.iter().map(|(path, text)| File::new(path, text)).collect();
        Tree { root: PathBuf::new(), files }
    }

    #[test]
    fn a_word_is_found_in_the_names_of_its_scope_and_not_in_sentences() {
        let found = |text: &str| own_words(&tree(&[("crates/x/src/a.rs", text)])).len();
        assert_eq!(found("let wake_bell = 1;"), 1);
        assert_eq!(found("struct BellRope;"), 1);
        assert_eq!(found("let told = 1;"), 1);
        assert_eq!(found("fn who_is_told() {}"), 0);
        assert_eq!(found("let gate = Barrier::new();"), 0, "a variable of an ordinary word");
        assert_eq!(found("struct Gate;"), 1);
        assert_eq!(found("// a bell\nlet dashboard = \"lobby\";"), 0);
        assert_eq!(own_words(&tree(&[("tests/tests/a.rs", "let bell = 1;")])).len(), 0);
    }

    #[test]
    fn a_name_of_two_visible_types_is_found() {
        let one = ("crates/x/src/a.rs", "pub struct Output;");
        assert_eq!(shared_type_names(&tree(&[one])).len(), 0);
        let two = ("crates/y/src/b.rs", "pub(crate) enum Output {}");
        assert_eq!(shared_type_names(&tree(&[one, two])).len(), 2);
        let private = ("crates/y/src/b.rs", "enum Output {}");
        assert_eq!(shared_type_names(&tree(&[one, private])).len(), 0);
    }

    #[test]
    fn a_match_on_a_bool_is_found() {
        let found = |text: &str| matched_bools(&tree(&[("crates/x/src/a.rs", text)])).len();
        assert_eq!(found("match is { true => 1, false => 2 }"), 1);
        assert_eq!(found("match (a, b) { (true, _) => 1, _ => 2 }"), 0);
        assert_eq!(found("if is { true } else { false }"), 0);
    }
}
