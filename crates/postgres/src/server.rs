//! Where a server is, and who asks it: `url`, `username`, `password`.

use std::fmt;
use std::time::Duration;

use connectors::{OptionReader, nearest, refuse};
use dataflow::error::ConnectorError;

/// The port where nothing is said.
const PORT: u16 = 5432;

/// How long a connection may take to be made.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Options of Java's driver that mean nothing here.
const IGNORED: &[&str] = &[
    "reWriteBatchedInserts",
    "stringtype",
    "tcpKeepAlive",
    "socketTimeout",
    "loginTimeout",
    "prepareThreshold",
    "binaryTransfer",
    "autosave",
];

/// The parameters of an address that are understood.
const KNOWN: &[&str] = &[
    "user",
    "password",
    "sslmode",
    "ssl",
    "sslrootcert",
    "currentSchema",
    "ApplicationName",
    "application_name",
    "connectTimeout",
    "connect_timeout",
];

/// How a connection is encrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TlsMode {
    Disable,
    /// Encrypted if the server can.
    Prefer,
    /// Encrypted; who answers is checked if there is a file with certificates.
    Require,
    /// The certificate is one of an authority that is trusted.
    VerifyCa,
    /// And it is made out to the host.
    VerifyFull,
}

impl TlsMode {
    /// The mode of this name.
    ///
    /// # Errors
    /// When there is none.
    pub(crate) fn of(name: &str) -> Result<Self, String> {
        Ok(match name {
            "disable" => Self::Disable,
            "prefer" | "allow" => Self::Prefer,
            "require" => Self::Require,
            "verify-ca" => Self::VerifyCa,
            "verify-full" => Self::VerifyFull,
            name => {
                return Err(format!(
                    "has 'sslmode={name}', which is none of disable, prefer, require, verify-ca \
                     and verify-full"
                ));
            }
        })
    }
}

/// A password, which nobody prints.
#[derive(Clone, PartialEq, Eq, Default)]
pub(crate) struct Secret(pub(crate) String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

/// A database of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PgServer {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) database: String,
    pub(crate) user: String,
    pub(crate) password: Option<Secret>,
    pub(crate) tls: TlsMode,
    /// The file with the certificates that are trusted.
    pub(crate) root_certificate: Option<String>,
    /// `search_path`.
    pub(crate) schema: Option<String>,
    pub(crate) application: String,
    pub(crate) connect_timeout: Duration,
}

impl PgServer {
    /// Reads 'url', 'username' and 'password'.
    ///
    /// # Errors
    /// When one of them is missing or none.
    pub(crate) fn new(options: OptionReader<'_>) -> Result<Self, ConnectorError> {
        let hint = "write 'url' = 'postgresql://localhost:5432/mydb'";
        let url = options.required("url", hint)?;
        let mut server =
            Self::of_url(url).map_err(|message| refuse("url", message, Some(hint.into())))?;
        if let Some(user) = options.text("username") {
            user.clone_into(&mut server.user);
        }
        if let Some(password) = options.text("password") {
            server.password = Some(Secret(password.to_owned()));
        }
        if server.user.is_empty() {
            let hint = "write 'username' = 'postgres'";
            return Err(refuse("username", "is missing", Some(hint.into())));
        }
        Ok(server)
    }

    /// Reads an address as libpq and JDBC write it. The message has nothing of it but names, for
    /// it may have a password.
    fn of_url(url: &str) -> Result<Self, String> {
        let url = url.strip_prefix("jdbc:").unwrap_or(url);
        let rest = url.strip_prefix("postgresql://").or_else(|| url.strip_prefix("postgres://"));
        let Some(rest) = rest else {
            return Err("is no address of Postgres".into());
        };
        let (place, parameters) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, database) = place.split_once('/').unwrap_or((place, ""));
        let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
        let (user, password) = match user.split_once(':') {
            Some((user, password)) => (user, Some(Secret(decoded(password)?))),
            None => (user, None),
        };
        if host.contains(',') {
            return Err("names several servers: name the one that is written".into());
        }
        let (host, port) = split_port(host)?;
        let mut server = Self {
            host,
            port,
            database: decoded(database)?,
            user: decoded(user)?,
            password,
            tls: TlsMode::Prefer,
            root_certificate: None,
            schema: None,
            application: "millstream".into(),
            connect_timeout: CONNECT_TIMEOUT,
        };
        for pair in parameters.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            server.parameter(&decoded(key)?, decoded(value)?)?;
        }
        if server.database.is_empty() {
            server.database.clone_from(&server.user);
        }
        if server.database.is_empty() {
            return Err("names no database".into());
        }
        let all = [&server.host, &server.database, &server.user, &server.application];
        if all.iter().any(|text| text.contains('\0')) {
            return Err("has a zero in it".into());
        }
        Ok(server)
    }

    fn parameter(&mut self, key: &str, value: String) -> Result<(), String> {
        match key {
            "user" => self.user = value,
            "password" => self.password = Some(Secret(value)),
            "ssl" if value == "false" => {}
            "ssl" => self.tls = TlsMode::VerifyFull,
            "sslmode" => self.tls = TlsMode::of(&value)?,
            "sslrootcert" => self.root_certificate = Some(value),
            "currentSchema" => self.schema = Some(value),
            "ApplicationName" | "application_name" => self.application = value,
            "connectTimeout" | "connect_timeout" => {
                let seconds =
                    value.parse().map_err(|_| format!("'{key}' is no number of seconds"))?;
                self.connect_timeout = match seconds {
                    0 => CONNECT_TIMEOUT,
                    seconds => Duration::from_secs(seconds),
                };
            }
            key if IGNORED.contains(&key) => {}
            key => {
                let near = nearest(key, KNOWN.iter().copied());
                let near = near.map(|near| format!("; did you mean '{near}'?")).unwrap_or_default();
                return Err(format!("has a parameter '{key}', which is not known{near}"));
            }
        }
        Ok(())
    }

    /// The server and the database, for messages: without user and password.
    pub(crate) fn place(&self) -> String {
        format!("{}:{}/{}", self.host, self.port, self.database)
    }
}

/// `host:port`, `[::1]:port` or one of them without the port.
fn split_port(host: &str) -> Result<(String, u16), String> {
    let (name, port) = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((name, rest)) => (name, rest.strip_prefix(':')),
        None => host.split_once(':').map_or((host, None), |(name, port)| (name, Some(port))),
    };
    let port = match port {
        None | Some("") => PORT,
        Some(port) => port.parse().map_err(|_| format!("'{port}' is no port"))?,
    };
    let name = if name.is_empty() { "localhost" } else { name };
    Ok((decoded(name)?, port))
}

/// A text with `%20` for a space and the like.
fn decoded(text: &str) -> Result<String, String> {
    let mut bytes = vec![];
    let mut rest = text.as_bytes();
    while let Some((&first, behind)) = rest.split_first() {
        rest = behind;
        if first != b'%' {
            bytes.push(first);
            continue;
        }
        let code = behind.get(..2).and_then(|code| std::str::from_utf8(code).ok());
        let byte = code.and_then(|code| u8::from_str_radix(code, 16).ok());
        bytes.push(byte.ok_or("has a '%' that is no code: write '%25' for it")?);
        rest = &behind[2..];
    }
    String::from_utf8(bytes).map_err(|_| "is no text of UTF-8".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_others_write_them() {
        let server =
            PgServer::of_url("postgresql://ann:p%40ss:x@db.example/shop?sslmode=require").unwrap();
        assert_eq!((server.host.as_str(), server.port), ("db.example", 5432));
        assert_eq!((server.user.as_str(), server.database.as_str()), ("ann", "shop"));
        assert_eq!(server.password, Some(Secret("p@ss:x".into())));
        assert_eq!(server.tls, TlsMode::Require);
        let jdbc = "jdbc:postgresql://[::1]:6543/a?user=bo&password=x&reWriteBatchedInserts=true";
        let server = PgServer::of_url(jdbc).unwrap();
        assert_eq!((server.host.as_str(), server.port, server.user.as_str()), ("::1", 6543, "bo"));
        for url in ["mysql://h/d", "postgresql://h:x/d", "postgresql://a,b/d", "postgresql://h/%zz"]
        {
            assert!(PgServer::of_url(url).is_err(), "{url}");
        }
        let message = PgServer::of_url("postgresql://u:secret@h/d?sslmod=require").unwrap_err();
        assert!(message.contains("'sslmode'") && !message.contains("secret"), "{message}");
    }

    #[test]
    fn a_password_is_not_printed() {
        let server = PgServer::of_url("postgresql://ann:hush@h/d").unwrap();
        assert!(!format!("{server:?}").contains("hush"));
    }
}
