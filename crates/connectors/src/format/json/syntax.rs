//! Explains a text that is no JSON to people: the library that decodes it says which
//! of its own states it was in.

/// The hint where an object goes on.
const END: &str = "the end of the line";

/// The tokens that may come next.
#[derive(Clone, Copy)]
enum Next {
    Value,
    /// A value, or the end of the array.
    First,
    Key,
    /// A key, or the end of the object.
    FirstKey,
    Colon,
    /// A comma, or the end of the array or object.
    Behind,
}

/// The fault of a line that should be one object; `None` if it is one.
pub(super) fn fault(text: &[u8]) -> Option<String> {
    let start = text.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
    let is = match text[start..].trim_ascii_end() {
        [b'{', ..] => None,
        [b'"', ..] => Some("a text"),
        [b'-' | b'0'..=b'9', ..] => Some("a number"),
        b"true" | b"false" => Some("a BOOLEAN"),
        b"null" => Some("null"),
        _ => Some("none"),
    };
    if let Some(is) = is {
        return Some(format!("a row is a JSON object, and this is {is}"));
    }
    let mut scan = Scan::new(text, start);
    let expected = scan.object().err()?;
    if expected == END && scan.peek() == Some(b'{') {
        return Some("expected one object a line".into());
    }
    let column = String::from_utf8_lossy(&text[..scan.at]).chars().count() + 1;
    let found = match String::from_utf8_lossy(&text[scan.at..]).chars().next() {
        Some(found) => format!("'{found}'"),
        None => END.to_owned(),
    };
    Some(format!("no JSON: at character {column} {expected} is missing, and there is {found}"))
}

/// Goes over JSON, token by token.
pub(super) struct Scan<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Scan<'a> {
    pub(super) fn new(text: &'a [u8], at: usize) -> Self {
        Self { text, at }
    }

    /// Where it stands.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    /// Goes on while bytes are such; tells over how many.
    fn skip(&mut self, such: impl Fn(u8) -> bool) -> usize {
        let count = self.text[self.at..].iter().take_while(|byte| such(**byte)).count();
        self.at += count;
        count
    }

    /// Goes over an object, up to the end of the text.
    ///
    /// # Errors
    /// The missing token at this place.
    fn object(&mut self) -> Result<(), &'static str> {
        self.value()?;
        self.skip(|byte| byte.is_ascii_whitespace());
        if self.peek().is_none() { Ok(()) } else { Err(END) }
    }

    /// Goes over a value.
    ///
    /// # Errors
    /// As [`object`](Self::object).
    pub(super) fn value(&mut self) -> Result<(), &'static str> {
        let (mut ends, mut next) = (vec![], Next::Value);
        loop {
            self.skip(|byte| byte.is_ascii_whitespace());
            let byte = self.peek();
            next = match (next, byte) {
                (Next::First | Next::FirstKey | Next::Behind, Some(end @ (b'}' | b']')))
                    if ends.last() == Some(&end) =>
                {
                    self.at += 1;
                    ends.pop();
                    Next::Behind
                }
                (Next::Key | Next::FirstKey, Some(b'"')) => {
                    self.string()?;
                    Next::Colon
                }
                (Next::Key | Next::FirstKey, _) => return Err("the name of a field"),
                (Next::Colon, Some(b':')) => {
                    self.at += 1;
                    Next::Value
                }
                (Next::Colon, _) => return Err("':'"),
                (Next::Behind, Some(b',')) => {
                    self.at += 1;
                    if ends.last() == Some(&b'}') { Next::Key } else { Next::Value }
                }
                (Next::Behind, _) => {
                    return Err(if ends.last() == Some(&b'}') {
                        "',' or '}'"
                    } else {
                        "',' or ']'"
                    });
                }
                (Next::Value | Next::First, Some(b'{')) => {
                    self.at += 1;
                    ends.push(b'}');
                    Next::FirstKey
                }
                (Next::Value | Next::First, Some(b'[')) => {
                    self.at += 1;
                    ends.push(b']');
                    Next::First
                }
                (Next::Value | Next::First, _) => {
                    self.scalar()?;
                    Next::Behind
                }
            };
            if ends.is_empty() {
                return Ok(());
            }
        }
    }

    fn scalar(&mut self) -> Result<(), &'static str> {
        match self.peek() {
            Some(b'"') => self.string(),
            Some(b'-' | b'0'..=b'9') => self.number(),
            _ => {
                let rest = &self.text[self.at..];
                let word = ["true", "false", "null"].into_iter();
                let word = word.filter(|word| rest.starts_with(word.as_bytes())).map(str::len);
                self.at += word.max().ok_or("a value")?;
                Ok(())
            }
        }
    }

    fn string(&mut self) -> Result<(), &'static str> {
        self.at += 1;
        loop {
            let rest = &self.text[self.at..];
            self.at += memchr::memchr2(b'"', b'\\', rest).unwrap_or(rest.len());
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(());
                }
                Some(_) => self.at = self.text.len().min(self.at + 2),
                None => return Err("the '\"' that ends a text"),
            }
        }
    }

    fn number(&mut self) -> Result<(), &'static str> {
        let digits = |scan: &mut Self| match scan.skip(|byte| byte.is_ascii_digit()) {
            0 => Err("a digit"),
            _ => Ok(()),
        };
        self.skip(|byte| byte == b'-');
        digits(self)?;
        if self.peek() == Some(b'.') {
            self.at += 1;
            digits(self)?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            self.skip(|byte| byte == b'+' || byte == b'-');
            digits(self)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::fault;

    #[test]
    fn what_is_missing_is_said_where_it_is() {
        let missing = |column, what: &str, found: &str| {
            Some(format!("no JSON: at character {column} {what} is missing, and there is {found}"))
        };
        let cases = [
            (r#"{"a":1,"b":[1,2,{}],"c":"\"x","d":-1.5e+3,"e":null} "#, None),
            (r#"{}"#, None),
            (r#"5"#, Some("a row is a JSON object, and this is a number".into())),
            (r#""x""#, Some("a row is a JSON object, and this is a text".into())),
            (r#"null "#, Some("a row is a JSON object, and this is null".into())),
            (r#"nope"#, Some("a row is a JSON object, and this is none".into())),
            (r#"{"a":1},"#, missing(8, "the end of the line", "','")),
            (r#"{"a":1 "b":2}"#, missing(8, "',' or '}'", "'\"'")),
            (r#"{"ü":1,"b":tru}"#, missing(12, "a value", "'t'")),
            (r#"{"a":[1,}"#, missing(9, "a value", "'}'")),
            (r#"{"a":[1}"#, missing(8, "',' or ']'", "'}'")),
            (r#"{"a":1} {"a":2}"#, Some("expected one object a line".into())),
            (r#"{a:1}"#, missing(2, "the name of a field", "'a'")),
            (r#"{"a" 1}"#, missing(6, "':'", "'1'")),
            (r#"{"a":1.}"#, missing(8, "a digit", "'}'")),
            (r#"{"a":"x}"#, missing(9, "the '\"' that ends a text", "the end of the line")),
            (r#"{"a":"x\"#, missing(9, "the '\"' that ends a text", "the end of the line")),
        ];
        for (text, expected) in cases {
            assert_eq!(fault(text.as_bytes()), expected, "{text}");
        }
    }
}
