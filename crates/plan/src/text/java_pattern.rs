//! Patterns of times as Java's `DateTimeFormatter` writes them, which are those of Flink.

/// A pattern of Java as one of `to_char`; one of `to_char` stays as it is.
///
/// # Errors
/// The reason why it is no pattern.
pub(crate) fn strftime(pattern: &str) -> Result<String, String> {
    if pattern.contains('%') {
        return Ok(pattern.to_owned());
    }
    let mut out = String::new();
    let mut rest = pattern;
    while let Some(first) = rest.chars().next() {
        let count = rest.chars().take_while(|letter| *letter == first).count();
        if first == '\'' {
            let Some((text, behind)) = quoted(&rest[1..]) else {
                return Err(format!("a quote of the pattern '{pattern}' is not closed"));
            };
            out += &text;
            rest = behind;
            continue;
        }
        match letter_in_strftime(first, count) {
            Some(known) => out.push_str(known),
            None if first.is_ascii_alphabetic() => {
                let letters = first.to_string().repeat(count);
                return Err(format!(
                    "a pattern of times has no '{letters}': write y M d H h m s S a E D, or a \
                     pattern such as '%Y-%m-%d'"
                ));
            }
            None => out.extend(std::iter::repeat_n(first, count)),
        }
        rest = &rest[first.len_utf8() * count..];
    }
    Ok(out)
}

/// The text behind a quote up to the next one, and the rest; two quotes are one.
fn quoted(mut rest: &str) -> Option<(String, &str)> {
    if let Some(behind) = rest.strip_prefix('\'') {
        return Some(("'".into(), behind));
    }
    let mut text = String::new();
    loop {
        let (part, behind) = rest.split_once('\'')?;
        text += part;
        match behind.strip_prefix('\'') {
            Some(more) => {
                text.push('\'');
                rest = more;
            }
            None => return Some((text, behind)),
        }
    }
}

fn letter_in_strftime(letter: char, count: usize) -> Option<&'static str> {
    Some(match (letter, count) {
        ('y' | 'u', 2) => "%y",
        ('y' | 'u', 1 | 4) => "%Y",
        ('M' | 'L', 1) => "%-m",
        ('M' | 'L', 2) => "%m",
        ('M' | 'L', 3) => "%b",
        ('M' | 'L', 4) => "%B",
        ('d', 1) => "%-d",
        ('d', 2) => "%d",
        ('D', 1) => "%-j",
        ('D', 3) => "%j",
        ('E', 1..=3) => "%a",
        ('E', 4) => "%A",
        ('a', 1) => "%p",
        ('H', 1) => "%-H",
        ('H', 2) => "%H",
        ('h', 1) => "%-I",
        ('h', 2) => "%I",
        ('m', 1) => "%-M",
        ('m', 2) => "%M",
        ('s', 1) => "%-S",
        ('s', 2) => "%S",
        ('S', 3) => "%3f",
        ('S', 6) => "%6f",
        ('S', 9) => "%9f",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_of_java_are_those_of_to_char() {
        let known = [
            ("yyyy-MM-dd HH:mm:ss.SSS", "%Y-%m-%d %H:%M:%S.%3f"),
            ("d.M.yy, h 'o''clock' a", "%-d.%-m.%y, %-I o'clock %p"),
            ("EEEE, d MMMM", "%A, %-d %B"),
            ("yyyy-MM-dd'T'HH:mm", "%Y-%m-%dT%H:%M"),
            ("%d/%m", "%d/%m"),
            ("''", "'"),
        ];
        for (java, ours) in known {
            assert_eq!(strftime(java).expect("it is known"), ours, "{java}");
        }
        assert!(strftime("yyyy-QQ").is_err());
        assert!(strftime("yyyy 'open").is_err());
    }
}
