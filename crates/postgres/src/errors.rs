//! Errors of the server and of the connection, for the author of the SQL.

use std::io;

use dataflow::error::ConnectorError;

/// A failure of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PgError {
    /// The server cannot be reached, or has gone.
    Away(String),
    /// The server refuses something.
    Refused(ServerError),
    /// The server does not keep to the protocol.
    Breach(String),
    /// Something is wrong on this side: a certificate, a value.
    Own {
        /// The message.
        message: String,
        /// The hint.
        hint: String,
    },
}

/// An error that the server has told.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ServerError {
    /// Five letters and digits (SQLSTATE).
    pub(crate) code: String,
    pub(crate) message: String,
    pub(crate) detail: Option<String>,
    pub(crate) hint: Option<String>,
    /// The context, such as the line and column of a COPY.
    pub(crate) context: Option<String>,
}

impl ServerError {
    /// Whether the same may succeed later.
    fn may_pass(&self) -> bool {
        let is_of = |class: &str| self.code.starts_with(class);
        // The connection failed, the server shuts down or starts, has no connection or memory left,
        // or another transaction was in the way.
        ["08", "53", "57P", "40", "55P03", "55006", "25P03"].into_iter().any(is_of)
    }
}

impl PgError {
    pub(crate) fn of_io(error: &io::Error) -> Self {
        Self::Away(error.to_string())
    }

    /// Whether it is worth to try again.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            Self::Away(_) => true,
            Self::Refused(error) => error.may_pass(),
            Self::Breach(_) | Self::Own { .. } => false,
        }
    }

    /// The error at a place: a table, or a server.
    pub(crate) fn at(&self, place: &str) -> ConnectorError {
        match self {
            Self::Away(reason) => failed(
                place,
                format!("the server cannot be reached: {reason}"),
                "check 'url', and that the server runs; 'retry.timeout' is how long to try",
            ),
            Self::Breach(reason) => {
                failed(place, format!("what answers is no Postgres: {reason}"), "check 'url'")
            }
            Self::Own { message, hint } => failed(place, message.clone(), hint),
            Self::Refused(error) => {
                let mut message = error.message.clone();
                for more in [&error.detail, &error.context].into_iter().flatten() {
                    message = format!("{message}; {more}");
                }
                let own = hint_of(&error.code).map(str::to_owned).or_else(|| error.hint.clone());
                ConnectorError::Io { place: place.to_owned(), message, hint: own }
            }
        }
    }
}

/// The hint for an error.
fn hint_of(code: &str) -> Option<&'static str> {
    Some(match code {
        "28P01" | "28000" => "check 'username' and 'password', and pg_hba.conf of the server",
        "3D000" => "check the database at the end of 'url'",
        "42P01" => "check 'table-name', or make the table there: Postgres makes none by itself",
        "42501" => "ask for the right: GRANT … ON … TO …",
        "42P10" => {
            "an upsert needs a unique index of just these columns: ALTER TABLE … ADD PRIMARY KEY \
             (…)"
        }
        "23505" => "declare PRIMARY KEY (…) NOT ENFORCED, so that the row that is there is changed",
        "53300" => "raise max_connections of the server, or use fewer workers",
        "22003" | "22P02" | "22007" | "22008" => "check the types of the columns in Postgres",
        _ => return None,
    })
}

/// An error at a place.
pub(crate) fn failed(place: &str, message: impl Into<String>, hint: &str) -> ConnectorError {
    ConnectorError::Io {
        place: place.to_owned(),
        message: message.into(),
        hint: Some(hint.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_the_server_is_told_with_what_to_do() {
        let message = "relation \"t\" does not exist".into();
        let error = ServerError { code: "42P01".into(), message, ..ServerError::default() };
        let error = PgError::Refused(error);
        assert!(!error.may_pass());
        let ConnectorError::Io { place, message, hint } = error.at("postgres table 't'") else {
            panic!()
        };
        assert_eq!(place, "postgres table 't'");
        assert_eq!(message, "relation \"t\" does not exist");
        assert!(hint.unwrap().contains("'table-name'"));
    }

    #[test]
    fn what_may_pass_is_tried_again() {
        let of = |code: &str| {
            PgError::Refused(ServerError { code: code.into(), ..ServerError::default() }).may_pass()
        };
        assert!(["57P03", "57P01", "40001", "40P01", "53300", "08006"].iter().all(|code| of(code)));
        assert!(!["28P01", "42P01", "23505", "22003"].iter().any(|code| of(code)));
    }
}
