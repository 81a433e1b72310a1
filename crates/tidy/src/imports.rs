//! The imports of the modules of a crate, read from the text of their files.
//!
//! An import is a path that begins with `crate`, `self`, `super` or the name of a module below,
//! in a `use` or in the middle of code. It leads to the module that *defines* the name: a name that
//! another module only passes on (`pub use`) is followed to where it comes from.
//!
//! Code that is compiled for tests alone does not count: tests may look at everything. Names in
//! comments and strings do not count either.
//!
//! Out of scope: it expands no macros and knows no types. A method that is called on a
//! value needs no import, so a dependency by types alone is not seen.

use std::collections::{BTreeMap, BTreeSet};

use crate::tree::{File, Tree};

/// Names on the way to a name that is passed on, before the search ends: more means that two
/// modules pass it on to each other.
const STEPS_MAX: usize = 16;
/// Keywords before the name of an item.
const ITEMS: [&str; 9] =
    ["fn", "struct", "enum", "trait", "type", "const", "static", "union", "macro_rules"];

/// One import: from where to where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Import {
    /// The file that imports.
    pub file: String,
    /// The line of the path, from 1.
    pub line: usize,
    /// The path as it is written, without braces.
    pub path: String,
    /// The module that imports, below the root of the crate; the root itself is empty.
    pub from: Vec<String>,
    /// The module that defines what is imported.
    pub to: Vec<String>,
}

/// The modules of a crate outside tests, with their lengths, and what they import of each other.
#[derive(Debug, Default)]
pub struct Imports {
    /// Each module and the lines of its file.
    pub modules: BTreeMap<Vec<String>, usize>,
    /// All imports of one module by another, in the order of files and lines.
    pub imports: Vec<Import>,
}

/// Reads the crate whose sources are below `source`, as `crates/plan/src/`.
#[must_use]
pub fn of_crate(tree: &Tree, source: &str) -> Imports {
    let mut modules = BTreeMap::new();
    for file in tree.with(&["rs"]) {
        if let Some(path) = file.path.strip_prefix(source).and_then(module_path) {
            modules.insert(path, Module::read(file));
        }
    }
    let for_tests = modules.iter().flat_map(|(path, module)| {
        module
            .for_tests
            .iter()
            .map(move |name| [path.as_slice(), std::slice::from_ref(name)].concat())
    });
    let for_tests: BTreeSet<Vec<String>> = for_tests.collect();
    modules.retain(|path, _| (1..=path.len()).all(|end| !for_tests.contains(&path[..end])));
    let mut found = Imports::default();
    for (from, module) in &modules {
        found.modules.insert(from.clone(), module.lines);
        for used in &module.uses {
            // The root of a crate passes names on: that is no dependency of its own.
            if from.is_empty() && used.passed_on {
                continue;
            }
            let Some(to) = resolve(&modules, &used.path, STEPS_MAX) else { continue };
            if to != *from {
                let (file, path) = (module.file.clone(), used.path.join("::"));
                found.imports.push(Import { file, line: used.line, path, from: from.clone(), to });
            }
        }
    }
    found
}

/// The module of a file below `src/`: `a/mod.rs` and `a.rs` are the module `a`.
fn module_path(path: &str) -> Option<Vec<String>> {
    let mut parts: Vec<String> = path.strip_suffix(".rs")?.split('/').map(str::to_owned).collect();
    let last = parts.last()?.as_str();
    if last == "mod" || (parts.len() == 1 && ["lib", "main"].contains(&last)) {
        parts.pop();
    }
    Some(parts)
}

/// The module that defines what the path, from the root of the crate, ends at.
fn resolve(
    modules: &BTreeMap<Vec<String>, Module>,
    path: &[String],
    steps: usize,
) -> Option<Vec<String>> {
    let depth = (0..=path.len()).rev().find(|end| modules.contains_key(&path[..*end]))?;
    let (at, rest) = path.split_at(depth);
    let module = &modules[at];
    let Some(name) = rest.first() else { return Some(at.to_vec()) };
    if module.items.contains(name) || steps == 0 {
        return Some(at.to_vec());
    }
    let follow = |used: &Use| {
        let path = [&used.path, &rest[1..]].concat();
        if path == rest { None } else { resolve(modules, &path, steps - 1) }
    };
    if let Some(used) = module.uses.iter().find(|used| used.name.as_ref() == Some(name)) {
        return follow(used);
    }
    for all in module.uses.iter().filter(|used| used.is_glob) {
        let path = [all.path.as_slice(), rest].concat();
        let defines = |to: &Vec<String>| modules[to].items.contains(name);
        if let Some(to) = resolve(modules, &path, steps - 1).filter(defines) {
            return Some(to);
        }
    }
    // A name of another crate that this module passes on.
    let foreign = module.foreign.contains(name);
    (!foreign).then(|| at.to_vec())
}

/// The content of one file.
#[derive(Debug, Default)]
struct Module {
    file: String,
    lines: usize,
    uses: Vec<Use>,
    /// Names of the items that it defines.
    items: BTreeSet<String>,
    /// Names that it imports from other crates.
    foreign: BTreeSet<String>,
    /// Modules below it that are compiled for tests alone.
    for_tests: BTreeSet<String>,
}

/// A path into the crate.
#[derive(Debug, Clone)]
struct Use {
    line: usize,
    /// From the root of the crate.
    path: Vec<String>,
    /// Its name here; nothing where it stands in the middle of code.
    name: Option<String>,
    is_glob: bool,
    /// Whether others may take it from here.
    passed_on: bool,
}

impl Module {
    fn read(file: &File) -> Self {
        let module = module_path_of(file);
        let mut read =
            Self { file: file.path.clone(), lines: file.text.lines().count(), ..Self::default() };
        let tokens = read.outside_tests(&tokens_of(&file.text));
        let children: BTreeSet<&str> = (tokens.windows(2))
            .filter(|pair| pair[0].text == "mod")
            .map(|pair| pair[1].text.as_str())
            .collect();
        let mut reader = Reader { tokens: &tokens, at: 0, module, children, inner: Vec::new() };
        reader.read(&mut read);
        read
    }

    /// The tokens outside items that are compiled for tests alone; notes modules of such.
    fn outside_tests(&mut self, tokens: &[Token]) -> Vec<Token> {
        let mut kept = Vec::new();
        let mut at = 0;
        while at < tokens.len() {
            let end = attribute_end(tokens, at);
            if end == at {
                kept.push(tokens[at].clone());
                at += 1;
                continue;
            }
            let words: Vec<&str> =
                tokens[at..end].iter().map(|token| token.text.as_str()).collect();
            let inner = words.get(1) == Some(&"!");
            let tests =
                words.contains(&"cfg") && words.contains(&"test") && !words.contains(&"not");
            at = end;
            if inner || !tests {
                continue;
            }
            let item = at;
            at = item_end(tokens, at);
            let words = tokens[item..at].windows(3);
            for named in words.filter(|words| words[0].text == "mod" && words[2].text == ";") {
                self.for_tests.insert(named[1].text.clone());
            }
        }
        kept
    }
}

/// The module of a file by its whole path.
fn module_path_of(file: &File) -> Vec<String> {
    let below = file.path.split_once("/src/").map_or(file.path.as_str(), |(_, below)| below);
    module_path(below).unwrap_or_default()
}

/// Behind the attribute that begins at `at`; `at` itself where none does.
fn attribute_end(tokens: &[Token], at: usize) -> usize {
    let text = |at: usize| tokens.get(at).map_or("", |token| token.text.as_str());
    let opens = if text(at + 1) == "!" { at + 2 } else { at + 1 };
    if text(at) != "#" || text(opens) != "[" {
        return at;
    }
    let mut depth = 0;
    for (i, token) in tokens.iter().enumerate().skip(opens) {
        match token.text.as_str() {
            "[" => depth += 1,
            "]" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return i + 1;
        }
    }
    tokens.len()
}

/// Behind the item, field or statement that begins at `at`, its other attributes with it.
fn item_end(tokens: &[Token], at: usize) -> usize {
    let mut start = at;
    while attribute_end(tokens, start) > start {
        start = attribute_end(tokens, start);
    }
    let ends_with_braces =
        tokens[start..].iter().take(4).all(|token| !["use", "let"].contains(&token.text.as_str()));
    let mut depth = 0_usize;
    for (i, token) in tokens.iter().enumerate().skip(start) {
        match token.text.as_str() {
            "{" | "(" | "[" => depth += 1,
            "}" | ")" | "]" if depth == 0 => return i,
            "}" => {
                depth -= 1;
                if depth == 0 && ends_with_braces {
                    return i + 1;
                }
            }
            ")" | "]" => depth -= 1,
            ";" | "," if depth == 0 => return i + 1,
            _ => {}
        }
    }
    tokens.len()
}

/// Reads the paths of a file.
struct Reader<'a> {
    tokens: &'a [Token],
    at: usize,
    /// The module of the file.
    module: Vec<String>,
    /// The modules below it.
    children: BTreeSet<&'a str>,
    /// The inline modules around `at`: each with the braces that it stands in.
    inner: Vec<usize>,
}

impl Reader<'_> {
    fn text(&self, ahead: usize) -> &str {
        self.tokens.get(self.at + ahead).map_or("", |token| token.text.as_str())
    }

    fn read(&mut self, into: &mut Module) {
        let mut depth = 0_usize;
        while self.at < self.tokens.len() {
            match self.text(0) {
                "{" => depth += 1,
                "}" => {
                    depth = depth.saturating_sub(1);
                    self.inner.retain(|at| *at < depth + 1);
                }
                "mod" if self.text(2) == "{" => self.inner.push(depth + 1),
                "use" => {
                    let passed_on = self.at.checked_sub(1).is_some_and(|before| {
                        ["pub", ")"].contains(&self.tokens[before].text.as_str())
                    });
                    self.at += 1;
                    self.tree(&[], passed_on, into);
                    continue;
                }
                // `pub(in crate::a)` says who may see it.
                "in" if self.at > 0 && self.tokens[self.at - 1].text == "(" => {
                    while self.text(0) != ")" && self.at < self.tokens.len() {
                        self.at += 1;
                    }
                }
                "crate" | "super" | "self" if self.text(1) == "::" => {
                    self.inline(into);
                    continue;
                }
                word if ITEMS.contains(&word) => {
                    let name = if self.text(1) == "!" { self.text(2) } else { self.text(1) };
                    into.items.insert(name.to_owned());
                }
                _ => {}
            }
            self.at += 1;
        }
    }

    /// A path in the middle of code.
    fn inline(&mut self, into: &mut Module) {
        let line = self.tokens[self.at].line;
        let mut path = vec![self.text(0).to_owned()];
        while self.text(1) == "::" && is_word(self.text(2)) {
            path.push(self.text(2).to_owned());
            self.at += 2;
        }
        self.at += 1;
        if let Some(path) = self.absolute(&path) {
            let (name, is_glob, passed_on) = (None, false, false);
            into.uses.push(Use { line, path, name, is_glob, passed_on });
        }
    }

    /// A tree of a `use`, behind `before`; ends behind it.
    fn tree(&mut self, before: &[String], passed_on: bool, into: &mut Module) {
        let mut path = before.to_vec();
        let line = self.tokens.get(self.at).map_or(0, |token| token.line);
        loop {
            match self.text(0) {
                "{" => {
                    self.at += 1;
                    while self.text(0) != "}" && self.at < self.tokens.len() {
                        self.tree(&path, passed_on, into);
                        if self.text(0) == "," {
                            self.at += 1;
                        }
                    }
                    self.at += 1;
                    return;
                }
                "::" => self.at += 1,
                "*" => {
                    self.at += 1;
                    if let Some(path) = self.absolute(&path) {
                        into.uses.push(Use { line, path, name: None, is_glob: true, passed_on });
                    }
                    return;
                }
                word if is_word(word) && word != "as" => {
                    path.push(word.to_owned());
                    self.at += 1;
                }
                _ => break,
            }
        }
        // `a::{self}` names `a`.
        if path.len() > 1 && path.last().is_some_and(|last| last == "self") {
            path.pop();
        }
        let mut name = path.last().cloned();
        if self.text(0) == "as" {
            name = Some(self.text(1).to_owned());
            self.at += 2;
        } else if path.is_empty() {
            self.at += 1;
        }
        match self.absolute(&path) {
            Some(path) => into.uses.push(Use { line, path, name, is_glob: false, passed_on }),
            None => into.foreign.extend(name),
        }
    }

    /// The path from the root of the crate; nothing where it leads out of the crate.
    fn absolute(&self, path: &[String]) -> Option<Vec<String>> {
        let first = path.first()?.as_str();
        if first == "crate" {
            return Some(path[1..].to_vec());
        }
        if self.children.contains(first) {
            return Some([self.module.as_slice(), path].concat());
        }
        if !["self", "super"].contains(&first) {
            return None;
        }
        let rest =
            path.iter().take_while(|word| ["self", "super"].contains(&word.as_str())).count();
        let ups = path[..rest].iter().filter(|word| *word == "super").count();
        // An inline module is part of its file.
        let ups = ups.saturating_sub(self.inner.len());
        let kept = self.module.len().checked_sub(ups)?;
        Some([&self.module[..kept], &path[rest..]].concat())
    }
}

/// A word or a sign of Rust, and its line.
#[derive(Debug, Clone)]
pub(crate) struct Token {
    pub(crate) line: usize,
    pub(crate) text: String,
}

fn is_word(text: &str) -> bool {
    text.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// The words and signs of a text, without its comments, strings, characters and lifetimes.
pub(crate) fn tokens_of(text: &str) -> Vec<Token> {
    let mut tokens = pieces_of(text);
    tokens.retain(|token| !token.text.contains(['"', '\'']));
    tokens
}

/// The string literals of a text, as they are written.
pub(crate) fn strings_of(text: &str) -> Vec<Token> {
    let mut strings = pieces_of(text);
    strings.retain(|token| token.text.ends_with(['"', '#']) && token.text.contains('"'));
    strings
}

/// The words, signs and literals of a text, without its comments.
fn pieces_of(text: &str) -> Vec<Token> {
    let mut pieces = Vec::new();
    let (mut line, mut rest) = (1, text);
    while let Some(first) = rest.chars().next() {
        let length = match first {
            '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            '/' if rest.starts_with("/*") => rest.find("*/").map_or(rest.len(), |end| end + 2),
            '"' => 1 + string_length(&rest[1..]),
            'r' if raw_length(rest) > 0 => raw_length(rest),
            '\'' => quote_length(rest),
            '_' => word_length(rest),
            c if c.is_alphanumeric() => word_length(rest),
            ':' if rest.starts_with("::") => 2,
            c => c.len_utf8(),
        };
        let (piece, behind) = rest.split_at(length);
        let comment = piece.starts_with("//") || piece.starts_with("/*");
        if !comment && !first.is_whitespace() {
            pieces.push(Token { line, text: piece.to_owned() });
        }
        line += piece.matches('\n').count();
        rest = behind;
    }
    pieces
}

fn word_length(text: &str) -> usize {
    text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len())
}

/// Up to and with the quotation mark that ends the string.
fn string_length(text: &str) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// The length of `r"…"` or `r#"…"#`; 0 where the text begins with neither.
fn raw_length(text: &str) -> usize {
    let hashes = text[1..].chars().take_while(|c| *c == '#').count();
    if !text[1 + hashes..].starts_with('"') {
        return 0;
    }
    let end = format!("\"{}", "#".repeat(hashes));
    let body = hashes + 2;
    text[body..].find(&end).map_or(text.len(), |at| body + at + end.len())
}

/// The length of a character in quotes or of the quote before a lifetime.
fn quote_length(text: &str) -> usize {
    let mut chars = text.char_indices().skip(1);
    match (chars.next(), chars.next()) {
        (Some((_, '\\')), Some((at, escaped))) => {
            let behind = at + escaped.len_utf8();
            text[behind..].find('\'').map_or(text.len(), |end| behind + end + 1)
        }
        (Some(_), Some((at, '\''))) => at + 1,
        _ => 1,
    }
}
