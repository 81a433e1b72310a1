//! Secrets in the options of tables: `${NAME}` stands for a variable of the environment, and
//! `${file:PATH}` for what a file has.
//!
//! A text keeps the reference: it is in plans, in checkpoints and in what nodes tell each other.
//! Each process resolves it where a connector is given its options. From then on the value is
//! masked in everything that the process shows. It keeps the values for all of its sessions, since
//! its log and its error messages are those of all of them.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::{PoisonError, RwLock};
use std::{env, fs, io};

/// The text in place of a secret.
const MASK: &str = "…";

/// A value that is shorter is not masked: it would be found in words that have nothing to do with
/// it.
const MASKED_BYTES_MIN: usize = 4;

/// The bytes of a file that is a secret, at most.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// The values, longest first, so that one that is part of another does not uncover it.
static VALUES: RwLock<BTreeSet<(std::cmp::Reverse<usize>, String)>> = RwLock::new(BTreeSet::new());

/// The value of an option with its references resolved; unchanged if it has none. `$${` stands for
/// `${`.
///
/// # Errors
/// When a reference has no end, or names a variable or a file that cannot be read as UTF-8; with
/// the hint.
pub fn resolve(value: &str) -> Result<Cow<'_, str>, (String, String)> {
    if !value.contains("${") {
        return Ok(Cow::Borrowed(value));
    }
    let mut resolved = String::with_capacity(value.len());
    let mut rest = value;
    while let Some(at) = rest.find("${") {
        let (before, reference) = rest.split_at(at);
        if let Some(before) = before.strip_suffix('$') {
            resolved.push_str(before);
            resolved.push_str("${");
            rest = &reference[2..];
            continue;
        }
        resolved.push_str(before);
        let Some(end) = reference.find('}') else {
            let hint = "close it with '}', or write '$${' for the text '${'";
            return Err((format!("'{reference}' has no end"), hint.into()));
        };
        let secret = look_up(&reference[2..end])?;
        keep(&secret);
        resolved.push_str(&secret);
        rest = &reference[end + 1..];
    }
    resolved.push_str(rest);
    Ok(Cow::Owned(resolved))
}

fn look_up(name: &str) -> Result<String, (String, String)> {
    if let Some(path) = name.strip_prefix("file:") {
        let hint = "a reference to a file is '${file:/path/to/it}'";
        let secret = read(path).map_err(|error| (format!("{path}: {error}"), hint.into()))?;
        // An editor ends a file with the end of a line.
        let secret = secret.strip_suffix('\n').unwrap_or(&secret);
        return Ok(secret.strip_suffix('\r').unwrap_or(secret).to_owned());
    }
    env::var(name).map_err(|error| {
        let message = match error {
            env::VarError::NotPresent => format!("the environment has no variable '{name}'"),
            env::VarError::NotUnicode(_) => format!("the variable '{name}' is not UTF-8"),
        };
        (message, format!("set {name}, or write '$${{' for the text '${{'"))
    })
}

fn read(path: &str) -> io::Result<String> {
    use io::Read;
    let mut text = String::new();
    fs::File::open(path)?.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(io::Error::other(format!("it has more than {FILE_BYTES_MAX} bytes")));
    }
    Ok(text)
}

fn keep(secret: &str) {
    if secret.len() >= MASKED_BYTES_MIN {
        let mut values = VALUES.write().unwrap_or_else(PoisonError::into_inner);
        values.insert((std::cmp::Reverse(secret.len()), secret.to_owned()));
    }
}

/// A text that is shown, without the values that references stood for.
#[must_use]
pub fn masked(text: &str) -> Cow<'_, str> {
    let mut shown = Cow::Borrowed(text);
    for (_, secret) in VALUES.read().unwrap_or_else(PoisonError::into_inner).iter() {
        if shown.contains(secret.as_str()) {
            shown = Cow::Owned(shown.replace(secret.as_str(), MASK));
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_resolved_and_their_values_masked() {
        let directory = env::temp_dir().join(format!("millstream-secret-{}", std::process::id()));
        fs::write(&directory, "hush-in-file\r\n").unwrap();
        let path = directory.display().to_string();
        // The environment of a test process has at least this one.
        let home = env::var("PATH").unwrap();
        let cases = [
            ("plain $x {y}".to_owned(), "plain $x {y}".to_owned()),
            ("a$${b}".to_owned(), "a${b}".to_owned()),
            (format!("x-${{file:{path}}}-y"), "x-hush-in-file-y".to_owned()),
            ("${PATH}${PATH}".to_owned(), format!("{home}{home}")),
        ];
        for (value, expected) in cases {
            assert_eq!(resolve(&value).unwrap(), expected, "{value}");
        }
        assert_eq!(masked("it is hush-in-file, again hush-in-file"), "it is …, again …");
        assert_eq!(masked("nothing of it"), "nothing of it");
        fs::remove_file(directory).unwrap();
    }

    #[test]
    fn what_cannot_be_resolved_is_named() {
        let message = |value: &str| resolve(value).unwrap_err().0;
        assert_eq!(message("a ${NAME"), "'${NAME' has no end");
        assert_eq!(
            message("${NO_SUCH_VARIABLE_HERE}"),
            "the environment has no variable 'NO_SUCH_VARIABLE_HERE'"
        );
        assert!(message("${file:/no/such/file}").starts_with("/no/such/file: No such file"));
        assert!(message("${file:/dev/zero}").contains("more than 65536 bytes"));
    }

    #[test]
    fn a_secret_within_another_does_not_uncover_it() {
        for secret in ["inner-part", "outer-inner-part-outer", "abc"] {
            keep(secret);
        }
        assert_eq!(masked("outer-inner-part-outer inner-part abc"), "… … abc");
    }
}
