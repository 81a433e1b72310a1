//! JSON that is no line for each object: an array of objects, and objects of several lines.
//!
//! Such a text becomes lines where it stands, byte for byte, so that offsets stay what they are: a
//! line end within an object becomes a space, and what stands between objects a line end. What
//! begins as lines, and may be damaged in its first one, is left as it is.

use crate::format::input::ByteMap;

/// Bytes of a text that decide about its layout, however many have come.
pub(super) const LAYOUT_BYTES: usize = 64 << 10;

/// Whether a text is to be made lines; `None` if the bytes that have come do not tell. Lines are
/// told by the first of them, if it is whole.
pub(super) fn is_document(text: &[u8], is_all: bool) -> Option<bool> {
    let no_more = is_all || text.len() >= LAYOUT_BYTES;
    let text = &text[..text.len().min(LAYOUT_BYTES)];
    let undecided = no_more.then_some(false);
    let Some(first) = text.iter().position(|byte| !byte.is_ascii_whitespace()) else {
        return undecided;
    };
    match text[first] {
        b'[' => return Some(true),
        b'{' => {}
        _ => return Some(false),
    }
    let mut nesting = Flattened::default();
    for (at, byte) in text[first..].iter().enumerate() {
        if *byte != b'\n' {
            nesting.pass(*byte);
            continue;
        }
        if nesting.depth == 0 || nesting.in_string {
            return Some(false);
        }
        // An object that goes on has a name or an end there, and one of lines begins.
        let behind = text[first + at..].iter().find(|byte| !byte.is_ascii_whitespace());
        return behind.map(|byte| matches!(byte, b'"' | b'}')).or(undecided);
    }
    undecided
}

/// Makes lines of an array of objects, or of objects of several lines.
#[derive(Debug, Default)]
pub(super) struct Flattened {
    /// Brackets that are open, but for that of the array of all.
    depth: u32,
    in_array: bool,
    in_string: bool,
    escaped: bool,
    /// Whether there is a value since the last separator, so that the next line end is one: the
    /// number of a line is that of its value.
    has_value: bool,
}

impl Flattened {
    /// Passes a byte within a value.
    fn pass(&mut self, byte: u8) {
        match byte {
            _ if self.escaped => self.escaped = false,
            b'\\' if self.in_string => self.escaped = true,
            b'"' => self.in_string = !self.in_string,
            _ if self.in_string => {}
            b'{' | b'[' => self.depth = self.depth.saturating_add(1),
            b'}' | b']' => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
    }
}

impl Flattened {
    /// A line end behind a value, else a space.
    fn separator(&mut self) -> u8 {
        if std::mem::take(&mut self.has_value) { b'\n' } else { b' ' }
    }
}

impl ByteMap for Flattened {
    fn apply(&mut self, bytes: &mut [u8]) {
        for byte in bytes {
            let separates = self.depth == 0 && self.in_array && !self.in_string;
            match *byte {
                b'\n' | b'\r' if self.depth > 0 => {
                    // No string has a line end: one that was not closed ends here.
                    (self.in_string, self.escaped) = (false, false);
                    *byte = b' ';
                }
                b',' if separates => *byte = self.separator(),
                b'\n' => {
                    (self.in_string, self.escaped) = (false, false);
                    *byte = self.separator();
                }
                b'[' if self.depth == 0 && !self.in_array && !self.in_string => {
                    self.in_array = true;
                    *byte = b' ';
                }
                b']' if separates => {
                    self.in_array = false;
                    *byte = b' ';
                }
                other => {
                    self.has_value |= !other.is_ascii_whitespace();
                    self.pass(other);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flat(text: &str) -> String {
        let mut whole = text.as_bytes().to_vec();
        Flattened::default().apply(&mut whole);
        // In any pieces.
        for pieces in 1..7 {
            let (mut bytes, mut map) = (text.as_bytes().to_vec(), Flattened::default());
            bytes.chunks_mut(pieces).for_each(|piece| map.apply(piece));
            assert_eq!(bytes, whole);
        }
        String::from_utf8(whole).unwrap()
    }

    #[test]
    fn what_stands_between_objects_is_a_line_end() {
        assert_eq!(flat("[{\"a\":1},{\"a\":2}]"), " {\"a\":1}\n{\"a\":2} ");
        assert_eq!(
            flat("[\n  {\n \"a\": [1,\n2]\r\n  },\n  {\"b\": \"],\\\"\"}\n]\n"),
            "    {  \"a\": [1, 2]    }\n   {\"b\": \"],\\\"\"}\n  "
        );
        assert_eq!(flat("{\n\"a\":1\n}\n{\n\"a\":2\n}\n"), "{ \"a\":1 }\n{ \"a\":2 }\n");
        // An array that ends, and lines behind it.
        assert_eq!(flat("[1]\n{\"a\":1}\n{\"a\":2}\n"), " 1 \n{\"a\":1}\n{\"a\":2}\n");
        // What is not closed takes no line behind an array's bracket with it.
        assert_eq!(flat("[\n{\"a\":1}\n{\"a\":2}\n"), "  {\"a\":1}\n{\"a\":2}\n");
        assert_eq!(flat("[\"x\n{\"a\":1}\n"), " \"x\n{\"a\":1}\n");
        assert_eq!(flat("]]}{}\n"), "]]}{}\n");
    }

    #[test]
    fn lines_are_told_by_the_first() {
        let is = |text: &str| is_document(text.as_bytes(), false);
        assert_eq!(is(" \n [1"), Some(true));
        assert_eq!(is("{\"a\":\n \"x\""), Some(true));
        assert_eq!(is("{\n}"), Some(true));
        assert_eq!(is("{\"a\":1}\n"), Some(false));
        assert_eq!(is("{\"a\":1\n{\"a\":2}\n"), Some(false));
        assert_eq!(is("{\"a\":\"x\n\"y\":1}"), Some(false));
        assert_eq!(is("nope"), Some(false));
        for begun in ["", " \n", "{\"a\":1", "{\n  "] {
            assert_eq!(is(begun), None);
            assert_eq!(is_document(begun.as_bytes(), true), Some(false), "{begun}");
        }
        // Bytes that come later change nothing.
        for begun in [" ".repeat(LAYOUT_BYTES), format!("{{\"a\": \"{}", "x".repeat(LAYOUT_BYTES))]
        {
            assert_eq!(is(&begun), Some(false));
            assert_eq!(is(&format!("{begun}[1]")), Some(false));
            assert_eq!(is(&format!("{begun}\",\n\"b\": 1\n}}\n")), Some(false));
        }
    }
}
