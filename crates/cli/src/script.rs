//! The SQL that a command is given.

use std::io::Read;
use std::path::Path;

use crate::failure::Failure;

/// Bytes of a script at most: node 0 hands it to the others as one message.
const SCRIPT_BYTES_MAX: u64 = 8 << 20;

/// A script and the name that messages give it.
#[derive(Debug, Clone)]
pub(crate) struct SqlText {
    pub(crate) name: String,
    pub(crate) sql: String,
}

/// Reads a file, or standard input for `-`.
pub(crate) fn read(file: &Path) -> Result<SqlText, Failure> {
    let (name, bytes) = if file.as_os_str() == "-" {
        ("<stdin>".to_owned(), read_bounded(std::io::stdin().lock()))
    } else {
        (file.display().to_string(), std::fs::File::open(file).and_then(read_bounded))
    };
    let bytes = bytes.map_err(|error| {
        let hint = format!("paths are relative to the current directory, {}", current_dir());
        Failure::usage(&format!("cannot read {name}: {error}"), Some(&hint))
    })?;
    let sql = String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let line = error.as_bytes()[..at].iter().filter(|&&byte| byte == b'\n').count() + 1;
        let message = format!("{name}:{line} is not UTF-8");
        Failure::usage(&message, Some("save the file as UTF-8"))
    })?;
    Ok(SqlText { name, sql })
}

fn read_bounded(from: impl Read) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(SCRIPT_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > SCRIPT_BYTES_MAX {
        let message = format!("it has more than {} MiB", SCRIPT_BYTES_MAX >> 20);
        return Err(std::io::Error::new(std::io::ErrorKind::FileTooLarge, message));
    }
    Ok(bytes)
}

fn current_dir() -> String {
    std::env::current_dir().map_or("?".into(), |dir| dir.display().to_string())
}
