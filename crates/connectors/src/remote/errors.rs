//! Errors of networks, in words.

use std::error::Error;

use dataflow::error::ConnectorError;

/// An error with its causes, each once: libraries often repeat the cause in their own text.
pub(crate) fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        next = cause.source();
    }
    text
}

/// An input that broke off and cannot be resumed.
pub(crate) fn lost(place: &str, error: impl std::fmt::Display) -> ConnectorError {
    ConnectorError::Io {
        place: place.to_owned(),
        message: format!("the connection was lost: {error}"),
        hint: Some("rows that were read before are incomplete: run the query again".into()),
    }
}
