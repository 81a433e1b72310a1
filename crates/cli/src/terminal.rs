//! The capabilities of the terminal.

use std::env;
use std::ffi::OsStr;
use std::io::{self, IsTerminal};

use terminal_size::{Height, Width};

/// Columns and lines of the terminal, or 80 by 24 where there is none.
pub(crate) fn size() -> (usize, usize) {
    match terminal_size::terminal_size() {
        Some((Width(width), Height(height))) if width > 0 && height > 0 => {
            (width.into(), height.into())
        }
        _ => (80, 24),
    }
}

/// Whether standard output may be coloured (<https://no-color.org>).
pub(crate) fn stdout_colored() -> bool {
    let refused = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    !refused && io::stdout().is_terminal()
}

/// Whether characters beyond ASCII can be shown: yes, unless the locale or the terminal says no.
pub(crate) fn unicode() -> bool {
    let set = |name| env::var_os(name).filter(|value| !value.is_empty());
    let locale = set("LC_ALL").or_else(|| set("LC_CTYPE")).or_else(|| set("LANG"));
    let plain = |terminal: &OsStr| terminal == "dumb" || terminal == "linux";
    locale.is_none_or(|locale| is_utf8(&locale.to_string_lossy()))
        && !set("TERM").is_some_and(|terminal| plain(&terminal))
}

fn is_utf8(locale: &str) -> bool {
    let locale = locale.to_ascii_lowercase();
    locale.contains("utf-8") || locale.contains("utf8")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locales_tell_their_encoding() {
        assert!(is_utf8("de_DE.UTF-8") && is_utf8("C.utf8"));
        assert!(!is_utf8("C") && !is_utf8("POSIX") && !is_utf8("de_DE.ISO-8859-1"));
    }
}
