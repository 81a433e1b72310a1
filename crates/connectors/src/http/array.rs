//! An array of JSON objects as one object a line, while it arrives.

/// Turns `[{…}, {…}]` into lines; anything that does not begin as an array is passed on as it is.
///
/// Looks at brackets and strings only: what is wrong within an element is found by its decoder.
#[derive(Debug, Default)]
pub(super) struct ArrayLines {
    shape: Shape,
    /// Brackets that are open within the array.
    depth: u32,
    in_string: bool,
    /// Whether the last byte of a string was a backslash.
    escaped: bool,
    /// Whether a line has begun.
    in_element: bool,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum Shape {
    /// Nothing but white space yet.
    #[default]
    Unknown,
    Lines,
    Array,
    /// The array has ended; what follows stands for itself.
    Ended,
}

impl ArrayLines {
    /// The lines, so far as they have come.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(bytes.len());
        for (at, byte) in bytes.iter().enumerate() {
            match self.shape {
                Shape::Lines | Shape::Ended => {
                    out.extend_from_slice(&bytes[at..]);
                    break;
                }
                Shape::Array => self.element(*byte, &mut out),
                Shape::Unknown if byte.is_ascii_whitespace() => out.push(*byte),
                Shape::Unknown if *byte == b'[' => self.shape = Shape::Array,
                Shape::Unknown => {
                    self.shape = Shape::Lines;
                    out.extend_from_slice(&bytes[at..]);
                    break;
                }
            }
        }
        out
    }

    /// Whether an array has begun and its end has not come.
    pub(super) fn is_open(&self) -> bool {
        self.shape == Shape::Array
    }

    fn element(&mut self, byte: u8, out: &mut Vec<u8>) {
        if self.in_string {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' => self.escaped = true,
                b'"' => self.in_string = false,
                _ => {}
            }
            out.push(byte);
            return;
        }
        match byte {
            b',' | b']' if self.depth == 0 => {
                if self.in_element {
                    out.push(b'\n');
                }
                self.in_element = false;
                if byte == b']' {
                    self.shape = Shape::Ended;
                }
                return;
            }
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => self.depth = self.depth.saturating_sub(1),
            b'"' => self.in_string = true,
            _ => {}
        }
        if byte.is_ascii_whitespace() {
            // A line end within an object would cut it in two.
            if self.in_element {
                out.push(b' ');
            }
            return;
        }
        self.in_element = true;
        out.push(byte);
    }
}

/// The lines of an answer that arrives in pieces of `piece` bytes; `None` where its array does not
/// end.
pub(crate) fn array_in(bytes: &[u8], piece: usize) -> Option<Vec<u8>> {
    let mut lines = ArrayLines::default();
    let all: Vec<u8> = bytes.chunks(piece).flat_map(|piece| lines.push(piece)).collect();
    (!lines.is_open()).then_some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same in one piece and byte by byte.
    fn lines(text: &str) -> String {
        let whole = ArrayLines::default().push(text.as_bytes());
        let mut lines = ArrayLines::default();
        let bytes: Vec<u8> =
            text.bytes().flat_map(|byte| lines.push(std::slice::from_ref(&byte))).collect();
        assert_eq!(whole, bytes);
        String::from_utf8(whole).unwrap()
    }

    #[test]
    fn elements_are_lines() {
        let array = "\n[ {\"a\":1},\n {\"b\":[1,\n2], \"c\":\"x,]\\\"\\\\\"}\n]\n";
        let expected = "\n{\"a\":1}\n{\"b\":[1, 2], \"c\":\"x,]\\\"\\\\\"} \n\n";
        assert_eq!(lines(array), expected);
        assert_eq!(lines("[]"), "");
        assert_eq!(lines("[{}]"), "{}\n");
    }

    #[test]
    fn lines_stay_what_they_are() {
        let text = "{\"a\":[1,2]}\n{\"a\":[3,4]}\n";
        assert_eq!(lines(text), text);
    }

    #[test]
    fn an_array_that_broke_off_is_seen() {
        let mut lines = ArrayLines::default();
        lines.push(b"[{}, {");
        assert!(lines.is_open());
        lines.push(b"}]");
        assert!(!lines.is_open());
    }
}
