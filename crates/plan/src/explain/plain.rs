//! What the user wrote in the place of names that the planner has made.

use crate::logical::windows::bound_named;

/// A text with the columns and functions that the planner has made under the names by which the
/// user knows them: columns as `names` has them, and a bound of a window as its column.
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
        } else {
            let known = names.iter().find(|(name, _)| name == word);
            out.push_str(known.map_or(word, |(_, shown)| shown));
        }
    }
    out.push_str(rest);
    out
}

fn is_of_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
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
        assert_eq!(shown("__tumble_start"), "__tumble_start");
    }
}
