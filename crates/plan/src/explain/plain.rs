//! The user's expressions in the place of names that the planner has made.

use arrow::datatypes::Schema;

use crate::logical::windows::bound_named;
use crate::text::names::MERGED;

/// Functions of the planner that give what they are called with, in another form.
const OF_OURS: &[&str] = &[
    "__calendar",
    "__cast",
    "__floor_micros",
    "__floor_millis",
    "__floor_nanos",
    "__floor_seconds",
    "__key",
    "__length",
    "__only",
    "__within_calendar",
];

/// A text with the columns and functions that the planner has made under the names by which the
/// user knows them: columns as `names` has them, a bound of a window as its column, and what the
/// planner has put around a column as that. A name that nobody knows has no underscores in front.
pub(crate) fn plain(text: &str, names: &[(String, String)]) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find(is_of_word) {
        out.push_str(&rest[..start]);
        rest = &rest[start..];
        let end = rest.find(|c| !is_of_word(c)).unwrap_or(rest.len());
        let (word, behind) = rest.split_at(end);
        rest = behind;
        if let Some(column) = bound_named(word).filter(|_| behind.starts_with('(')) {
            out.push_str(column);
            rest = &behind[call_bytes(behind)..];
        } else if OF_OURS.contains(&word) && behind.starts_with('(') {
            let (call, behind) = behind.split_at(call_bytes(behind));
            let inner = call.strip_prefix('(').and_then(|call| call.strip_suffix(')'));
            out.push_str(&plain(first_of(inner.unwrap_or(call)), names));
            rest = behind;
        } else if let Some(behind) = behind.strip_prefix('.').filter(|_| word == MERGED) {
            rest = behind;
        } else {
            let known = names.iter().find(|(name, _)| name == word);
            let bare = word.strip_prefix("__").unwrap_or(word);
            out.push_str(known.map_or(bare, |(_, shown)| shown));
        }
    }
    out.push_str(rest);
    out
}

/// The columns of a schema under the names by which the user knows them.
pub(crate) fn shown(schema: &Schema, names: &[(String, String)]) -> Vec<String> {
    schema.fields().iter().map(|field| plain(field.name(), names)).collect()
}

fn is_of_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The first of arguments.
fn first_of(args: &str) -> &str {
    let (mut depth, mut quoted) = (0_usize, false);
    for (at, c) in args.char_indices() {
        match c {
            '"' => quoted = !quoted,
            '(' if !quoted => depth += 1,
            ')' if !quoted => depth = depth.saturating_sub(1),
            ',' if !quoted && depth == 0 => return &args[..at],
            _ => {}
        }
    }
    args
}

/// How long the parentheses are with which a text begins.
fn call_bytes(text: &str) -> usize {
    let (mut depth, mut quoted) = (0, false);
    for (at, c) in text.char_indices() {
        match c {
            '"' => quoted = !quoted,
            '(' if !quoted => depth += 1,
            ')' if !quoted => depth -= 1,
            _ => continue,
        }
        if depth == 0 && !quoted {
            return at + 1;
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_names_are_told_as_the_user_wrote_them() {
        let names = [("key_1".to_string(), "origin".into()), ("key_10".into(), "dest".into())];
        let shown = |text| plain(text, &names);
        assert_eq!(shown("project key_1, key_10, key_100"), "project origin, dest, key_100");
        let call = r#"__tumble_start(t.ts, Utf8("1"), Utf8("0)")) > now() AND key_1 = 1"#;
        assert_eq!(shown(call), "window_start > now() AND origin = 1");
        assert_eq!(shown("unnest(__hop_ends(f(ts), a))"), "unnest(window_end)");
        assert_eq!(shown("__tumble_start"), "tumble_start");
        assert_eq!(shown("__key(key_1) = f(__length(i))"), "origin = f(i)");
        assert_eq!(shown("__only(first(x, 1), count(y)) + __merged.k"), "first(x, 1) + k");
    }
}
