//! Checks of a JSON text, and a repair, before the library sees it.
//!
//! The library nests as deep as its stack lets it, and then the process ends. And it takes an
//! escaped pair of surrogates for a wrong letter from U+20000 on: in arrow-json 59 the halves are
//! joined by `|` where a `+` is due, in the lines of apache/arrow-rs#7721. Such pairs are written
//! out here.

use std::borrow::Cow;

/// Levels of arrays and objects in a value at most: beyond, it is a bad row.
pub(super) const DEPTH_MAX: usize = 128;

/// Whether a value nests deeper than [`DEPTH_MAX`].
pub(super) fn is_deep(text: &[u8]) -> bool {
    is_deeper_than(text, DEPTH_MAX)
}

/// Whether a value nests deeper than `levels`.
pub(super) fn is_deeper_than(text: &[u8], levels: usize) -> bool {
    // Few lines have so many brackets, and only those are looked at byte by byte.
    // '[' and '{' differ in one bit.
    let opens = |text: &[u8]| text.iter().map(|byte| u8::from(byte | 0x20 == b'{')).sum::<u8>();
    let opens: usize = text.chunks(128).map(|chunk| usize::from(opens(chunk))).sum();
    opens > levels && nesting(text).greatest > levels
}

/// How deep a text nests.
pub(super) struct Nesting {
    greatest: usize,
    /// Brackets that are open at its end.
    pub(super) open: usize,
}

/// How deep a text nests; brackets within strings are none.
pub(super) fn nesting(text: &[u8]) -> Nesting {
    let mut nesting = Nesting { greatest: 0, open: 0 };
    let (mut in_string, mut escaped) = (false, false);
    for byte in text {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = in_string,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'[' | b'{' => {
                nesting.open += 1;
                nesting.greatest = nesting.greatest.max(nesting.open);
            }
            b']' | b'}' => nesting.open = nesting.open.saturating_sub(1),
            _ => {}
        }
    }
    nesting
}

/// The text with escaped pairs of surrogates written out. One without its other half stays as it
/// is: the library refuses it.
pub(super) fn without_pairs(text: &[u8]) -> Cow<'_, [u8]> {
    if !text.contains(&b'\\') {
        return Cow::Borrowed(text);
    }
    let mut out = Vec::new();
    let (mut at, mut kept) = (0, 0);
    while let Some(found) = text[at..].iter().position(|byte| *byte == b'\\') {
        at += found;
        match pair(&text[at..]) {
            Some(letter) => {
                out.extend_from_slice(&text[kept..at]);
                out.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes());
                at += 2 * ESCAPE_BYTES;
                kept = at;
            }
            // The escaped byte may be a backslash, which begins nothing.
            None => at = (at + 2).min(text.len()),
        }
    }
    if kept == 0 {
        return Cow::Borrowed(text);
    }
    out.extend_from_slice(&text[kept..]);
    Cow::Owned(out)
}

/// Bytes of `\ud842`.
const ESCAPE_BYTES: usize = 6;

/// The letter of the pair of escapes at the beginning of a text.
fn pair(text: &[u8]) -> Option<char> {
    let unit = |at: usize| {
        let escape = text.get(at..at + ESCAPE_BYTES)?.strip_prefix(b"\\u")?;
        escape
            .iter()
            .try_fold(0, |unit, digit| Some(unit << 4 | char::from(*digit).to_digit(16)? as u16))
    };
    let first = unit(0).filter(|unit| (0xd800..0xdc00).contains(unit))?;
    let second = unit(ESCAPE_BYTES)?;
    char::decode_utf16([first, second]).next()?.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brackets_in_strings_do_not_nest() {
        let deep = |depth: usize| format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
        assert!(!is_deep(deep(DEPTH_MAX).as_bytes()));
        assert!(is_deep(deep(DEPTH_MAX + 1).as_bytes()));
        assert!(is_deep("{\"a\":".repeat(DEPTH_MAX + 1).as_bytes()));
        assert!(!is_deep(format!("[\"{}\\\"[\"]", "[".repeat(500)).as_bytes()));
        assert!(!is_deep("[1],".repeat(500).as_bytes()));
    }

    #[test]
    fn pairs_are_written_out_and_halves_stay() {
        let text = |text: &str| String::from_utf8(without_pairs(text.as_bytes()).into()).unwrap();
        assert_eq!(text(r#""\ud842\udfb7""#), "\"𠮷\"");
        assert_eq!(text(r#"a\n\uD83D\uDE00\\ud842\udfb7"#), "a\\n😀\\\\ud842\\udfb7");
        for same in [r"\ud842", r"\udfb7\ud842", r"\ud842x\udfb7", r"\ud842\u0041", r"\u20ac\", ""]
        {
            assert_eq!(text(same), same);
        }
    }
}
