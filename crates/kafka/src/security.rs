//! How a client shows who it is. The protocol and the mechanism are checked before a client is
//! made: its own errors tell how it should have been compiled.

use connectors::{OptionReader, refuse};
use dataflow::connector::Options;
use dataflow::error::ConnectorError;
use rdkafka::ClientConfig;

const PROTOCOL: &str = "properties.security.protocol";
const MECHANISM: &str = "properties.sasl.mechanism";

/// The protocols. The client takes them in either case, and so do we.
const PROTOCOLS: [&str; 4] = ["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"];

/// The mechanisms. All but the first one come with OpenSSL.
const MECHANISMS: [&str; 3] = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"];

/// Refuses a property that this client does not have, by its option.
///
/// # Errors
/// When it does not.
pub(crate) fn check_property(option: &str, key: &str, value: &str) -> Result<(), ConnectorError> {
    let one_of = |values: &[&str]| {
        let given = Options::from([(option.to_owned(), value.to_owned())]);
        OptionReader(&given).choice(option, values)
    };
    match key {
        "security.protocol" => match one_of(&PROTOCOLS)? {
            Some(1 | 3) => needs_tls(option, value),
            _ => Ok(()),
        },
        "sasl.mechanism" | "sasl.mechanisms" => match value {
            "OAUTHBEARER" => Err(no_tokens(option)),
            "GSSAPI" => Err(refuse(option, "Kerberos is not supported", Some(other_mechanisms()))),
            _ => match one_of(&MECHANISMS)? {
                Some(0) => Ok(()),
                _ => needs_tls(option, value),
            },
        },
        "enable.sasl.oauthbearer.unsecure.jwt" => Err(no_tokens(option)),
        _ if key.starts_with("sasl.oauthbearer.") => Err(no_tokens(option)),
        _ if key.starts_with("ssl.") => needs_tls(option, "it"),
        _ => Ok(()),
    }
}

/// Refuses properties that lack others.
///
/// # Errors
/// When one is missing.
pub(crate) fn check_all(config: &ClientConfig) -> Result<(), ConnectorError> {
    let protocol = config.get("security.protocol").unwrap_or_default().to_ascii_uppercase();
    if !protocol.starts_with("SASL") {
        return Ok(());
    }
    let has = |key: &str| config.get(key).is_some();
    if !has("sasl.mechanism") && !has("sasl.mechanisms") {
        let hint = format!("write one of {}", MECHANISMS.join(", "));
        return Err(refuse(MECHANISM, format!("is missing: '{PROTOCOL}' asks for it"), Some(hint)));
    }
    for key in ["sasl.username", "sasl.password"] {
        if !has(key) {
            let hint = "a secret may be a variable or a file: '${KAFKA_PASSWORD}', \
                        '${file:/run/secrets/kafka}'";
            let (option, message) = (format!("properties.{key}"), "is missing");
            return Err(refuse(&option, message, Some(hint.into())));
        }
    }
    Ok(())
}

/// The error of a table whose client would have to ask for tokens.
pub(crate) fn no_tokens(option: &str) -> ConnectorError {
    let message = "OAUTHBEARER is not supported: no client here asks a server for tokens";
    refuse(option, message, Some(other_mechanisms()))
}

fn other_mechanisms() -> String {
    format!("a listener of the brokers for {} is needed", MECHANISMS.join(", "))
}

/// Refuses what only a client with TLS has.
fn needs_tls(option: &str, what: &str) -> Result<(), ConnectorError> {
    if cfg!(feature = "tls") {
        return Ok(());
    }
    let message = format!("{what} needs OpenSSL, and this program was built without it");
    let hint = "build one with it: cargo build --release --features kafka-tls";
    Err(refuse(option, message, Some(hint.into())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::properties::client_config;

    /// The option at fault and the whole error.
    fn refused(pairs: &[(&str, &str)]) -> Option<(String, String)> {
        let options =
            pairs.iter().map(|(key, value)| (format!("properties.{key}"), (*value).into()));
        match client_config(&options.collect()) {
            Ok(_) => None,
            Err(ConnectorError::Option { key, message, hint }) => {
                Some((key, format!("{message}; {}", hint.unwrap_or_default())))
            }
            Err(other) => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_client_that_is_not_there_is_named_by_its_option() {
        let says = |pairs: &[(&str, &str)], option: &str, words: &str| {
            let (key, text) = refused(pairs).unwrap_or_else(|| panic!("{pairs:?} is taken"));
            assert_eq!(key, format!("properties.{option}"));
            assert!(text.contains(words) && !text.contains("recompile"), "{text}");
        };
        let sasl = ("security.protocol", "SASL_PLAINTEXT");
        for (key, value) in [
            ("sasl.mechanism", "OAUTHBEARER"),
            ("sasl.mechanisms", "OAUTHBEARER"),
            ("sasl.oauthbearer.token.endpoint.url", "https://tokens.example"),
            ("enable.sasl.oauthbearer.unsecure.jwt", "true"),
            ("sasl.jaas.config", "x.OAuthBearerLoginModule required clientId=\"secret\";"),
        ] {
            says(&[sasl, (key, value)], key, "OAUTHBEARER is not supported");
        }
        says(&[("sasl.mechanism", "GSSAPI")], "sasl.mechanism", "Kerberos");
        says(&[("sasl.mechanism", "PLAN")], "sasl.mechanism", "did you mean 'PLAIN'?");
        says(&[("security.protocol", "TLS")], "security.protocol", "SASL_PLAINTEXT");
        says(&[sasl], "sasl.mechanism", "is missing");
        let plain = ("sasl.mechanism", "PLAIN");
        says(&[sasl, plain], "sasl.username", "is missing");
        says(&[sasl, plain, ("sasl.username", "ann")], "sasl.password", "${KAFKA_PASSWORD}");
        let encrypted = [
            ("security.protocol", "SSL"),
            ("security.protocol", "sasl_ssl"),
            ("sasl.mechanism", "SCRAM-SHA-512"),
            ("ssl.ca.location", "/etc/ca.pem"),
        ];
        for pair in encrypted.into_iter().filter(|_| !cfg!(feature = "tls")) {
            says(&[pair], pair.0, "--features kafka-tls");
        }
    }

    #[test]
    fn a_client_that_is_there_is_made() {
        assert_eq!(refused(&[("security.protocol", "plaintext")]), None);
        let user = [("sasl.username", "ann"), ("sasl.password", "x")];
        let sasl = [("security.protocol", "sasl_plaintext"), ("sasl.mechanism", "PLAIN")];
        assert_eq!(refused(&[sasl, user].concat()), None);
        if cfg!(feature = "tls") {
            let sasl = [("security.protocol", "SASL_SSL"), ("sasl.mechanism", "SCRAM-SHA-256")];
            assert_eq!(refused(&[sasl, user].concat()), None);
        }
    }
}
