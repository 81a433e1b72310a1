//! SQL without its secrets, as it is stored and shown.

/// Words of an option's name that make its value a secret.
const SECRET: &[&str] = &[
    "secret",
    "password",
    "passwd",
    "passphrase",
    "token",
    "credential",
    "auth",
    "cookie",
    "header",
    "private",
    "signature",
    "apikey",
    "api_key",
    "api-key",
    "access_key",
    "access-key",
];
/// The text in place of a secret.
const MASK: &str = "…";

/// The text with the values of options masked whose names speak of secrets, and with the user and
/// the query of every address: `'token' = '…'`, `'https://…@host/x?…'`. Comments go, for they may
/// have anything.
#[must_use]
pub fn mask(sql: &str) -> String {
    let mut masked = String::with_capacity(sql.len());
    let mut rest = sql;
    // The last text and whether `=` came behind it.
    let (mut name, mut assigned) = (String::new(), false);
    while let Some(first) = rest.chars().next() {
        if let Some(length) = comment(rest) {
            masked.push(' ');
            rest = &rest[length..];
        } else if first == '\'' {
            let length = literal(rest);
            let text = rest[1..length].strip_suffix('\'').unwrap_or(&rest[1..length]);
            let is_secret = assigned && SECRET.iter().any(|word| name.contains(word));
            masked.push('\'');
            if is_secret {
                masked.push_str(MASK);
            } else {
                mask_address(text, &mut masked);
            }
            masked.push('\'');
            (name, assigned) = (text.to_lowercase(), false);
            rest = &rest[length..];
        } else if first.is_alphanumeric() || "_.-\"`".contains(first) {
            let is_word = |c: char| c.is_alphanumeric() || "_.-\"`".contains(c);
            let length = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
            let word = &rest[..length];
            // `SET s3.secret_access_key = '…'` names its option without quotes.
            if !assigned || !word.chars().all(|c| c.is_ascii_digit()) {
                (name, assigned) = (word.to_lowercase(), false);
            }
            masked.push_str(word);
            rest = &rest[length..];
        } else {
            assigned = match first {
                '=' => true,
                _ => assigned && first.is_whitespace(),
            };
            masked.push(first);
            rest = &rest[first.len_utf8()..];
        }
    }
    masked
}

/// Bytes of the comment at the beginning of the text.
fn comment(text: &str) -> Option<usize> {
    if text.starts_with("--") {
        return Some(text.find('\n').unwrap_or(text.len()));
    }
    // A hint is part of the query.
    if !text.starts_with("/*") || text.starts_with("/*+") {
        return None;
    }
    Some(text.find("*/").map_or(text.len(), |end| end + 2))
}

/// Bytes of the literal at the beginning of the text, with its quotes. A quote within it is
/// doubled.
fn literal(text: &str) -> usize {
    let bytes = text.as_bytes();
    let mut at = 1;
    while at < bytes.len() {
        if bytes[at] != b'\'' {
            at += 1;
        } else if bytes.get(at + 1) == Some(&b'\'') {
            at += 2;
        } else {
            return at + 1;
        }
    }
    bytes.len()
}

/// Appends a text; of addresses in it without user, password and query.
fn mask_address(text: &str, masked: &mut String) {
    let Some((scheme, rest)) = text.split_once("://") else {
        masked.push_str(text);
        return;
    };
    masked.push_str(scheme);
    masked.push_str("://");
    let (place, query) = match rest.split_once('?') {
        Some((place, _)) => (place, true),
        None => (rest, false),
    };
    let host = place.split('/').next().unwrap_or(place);
    match host.rfind('@') {
        Some(at) => {
            masked.push_str(MASK);
            masked.push_str(&place[at..]);
        }
        None => masked.push_str(place),
    }
    if query {
        masked.push('?');
        masked.push_str(MASK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_masked_and_the_rest_stays() {
        let cases = [
            ("SELECT 'it''s' AS token, 1", "SELECT 'it''s' AS token, 1"),
            (
                "WITH ('s3.secret_access_key' = 'hu''sh', 'path' = 'x')",
                "WITH ('s3.secret_access_key' = '…', 'path' = 'x')",
            ),
            ("WITH ('headers' =\n'Authorization: Bearer x')", "WITH ('headers' =\n'…')"),
            ("SET s3.session_token = 'x';", "SET s3.session_token = '…';"),
            ("'url' = 'https://me:pw@h:1/a?signature=x&y'", "'url' = 'https://…@h:1/a?…'"),
            ("'path' = 's3://b/a*.csv'", "'path' = 's3://b/a*.csv'"),
            ("a -- password 'x'\nb /* 'token' */ c", "a  \nb   c"),
            ("SELECT /*+ SHUFFLE(t) */ 1", "SELECT /*+ SHUFFLE(t) */ 1"),
            ("'Password'='x", "'Password'='…'"),
            ("SELECT a FROM t WHERE b = 'https'", "SELECT a FROM t WHERE b = 'https'"),
        ];
        for (sql, masked) in cases {
            assert_eq!(mask(sql), masked);
        }
    }
}
