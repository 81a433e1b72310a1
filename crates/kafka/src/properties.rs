//! `properties.…` of a table as properties of the client.

use connectors::refuse;
use dataflow::connector::Options;
use dataflow::error::ConnectorError;
use rdkafka::ClientConfig;

use crate::security;

/// What the options of properties begin with.
pub(crate) const PREFIX: &str = "properties.";

/// Properties of clients of Java that say nothing to this one: how keys and values are decoded is
/// the table's matter.
const JAVA_ALONE: [&str; 5] = [
    "key.deserializer",
    "value.deserializer",
    "key.serializer",
    "value.serializer",
    "partition.discovery.interval.ms",
];

/// Properties that the connector decides.
const OWN: [(&str, &str); 4] = [
    ("enable.auto.commit", "positions lie in checkpoints"),
    ("enable.auto.offset.store", "positions lie in checkpoints"),
    ("enable.partition.eof", "the connector needs it"),
    ("transactional.id", "write 'sink.transactional-id-prefix'"),
];

/// The client's properties that a table names.
///
/// # Errors
/// When one is not known, or belongs to the connector.
pub(crate) fn client_config(options: &Options) -> Result<ClientConfig, ConnectorError> {
    let mut config = ClientConfig::new();
    for (option, value) in options {
        let Some(key) = option.strip_prefix(PREFIX) else { continue };
        if JAVA_ALONE.contains(&key) || key == "auto.offset.reset" {
            continue;
        }
        if let Some((_, why)) = OWN.iter().find(|(own, _)| *own == key) {
            let message = "is decided by the connector";
            return Err(refuse(option, message, Some(format!("leave it out: {why}"))));
        }
        match key {
            "sasl.jaas.config" => jaas(option, value, &mut config)?,
            "ssl.truststore.location" | "ssl.keystore.location" => {
                let hint = "give certificates as files of PEM: 'properties.ssl.ca.location', \
                            'properties.ssl.certificate.location', 'properties.ssl.key.location'";
                return Err(refuse(option, "stores of Java are not read", Some(hint.into())));
            }
            _ => {
                security::check_property(option, key, value)?;
                config.set(key, value);
            }
        }
        check(option, &config)?;
    }
    security::check_all(&config)?;
    Ok(config)
}

/// Refuses a property that the client does not know, by its option.
fn check(option: &str, config: &ClientConfig) -> Result<(), ConnectorError> {
    use rdkafka::error::KafkaError;
    match config.create_native_config() {
        Ok(_) => Ok(()),
        Err(KafkaError::ClientConfig(_, description, ..)) => {
            let hint = "names and values are those of librdkafka: \
                        https://github.com/confluentinc/librdkafka/blob/master/CONFIGURATION.md";
            Err(refuse(option, masked(&description), Some(hint.into())))
        }
        Err(error) => Err(refuse(option, masked(&error.to_string()), None)),
    }
}

/// The text without what may be a secret: what stands between quotation marks after `value`.
fn masked(text: &str) -> String {
    match text.split_once("value \"") {
        Some((before, _)) => format!("{before}value …"),
        None => text.to_owned(),
    }
}

/// User and password as clients of Java have them: `…PlainLoginModule required username="…"
/// password="…";`.
fn jaas(option: &str, value: &str, config: &mut ClientConfig) -> Result<(), ConnectorError> {
    let find = |name: &str| {
        let behind = value.split_once(&format!("{name}="))?.1;
        let quote = behind.chars().next().filter(|mark| matches!(mark, '"' | '\''))?;
        Some(behind[1..].split_once(quote)?.0.to_owned())
    };
    if value.contains("OAuthBearerLoginModule") {
        return Err(security::no_tokens(option));
    }
    let is_known = ["PlainLoginModule", "ScramLoginModule"].iter().any(|of| value.contains(of));
    match (is_known, find("username"), find("password")) {
        (true, Some(user), Some(password)) => {
            config.set("sasl.username", user).set("sasl.password", password);
            Ok(())
        }
        _ => {
            let hint = "write 'properties.sasl.username' and 'properties.sasl.password'";
            Err(refuse(option, "is no user and password", Some(hint.into())))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(pairs: &[(&str, &str)]) -> Result<ClientConfig, String> {
        let options = pairs.iter().map(|(key, value)| (key.to_string(), value.to_string()));
        // With the hint.
        client_config(&options.collect()).map_err(|error| format!("{error:?}"))
    }

    #[test]
    fn properties_of_tables_are_those_of_the_client() {
        let jaas = "org.apache.kafka.common.security.plain.PlainLoginModule required \
                    username=\"ann\" password=\"a=b;c\";";
        let config = config(&[
            ("topic", "t"),
            ("properties.bootstrap.servers", "a:1"),
            ("properties.sasl.jaas.config", jaas),
            ("properties.key.deserializer", "org.apache.kafka.Strings"),
            ("properties.auto.offset.reset", "none"),
        ]);
        let config = config.unwrap();
        assert_eq!(config.get("bootstrap.servers"), Some("a:1"));
        assert_eq!(config.get("sasl.username"), Some("ann"));
        assert_eq!(config.get("sasl.password"), Some("a=b;c"));
        let others = ["topic", "key.deserializer", "auto.offset.reset", "sasl.jaas.config"];
        assert!(others.iter().all(|key| config.get(key).is_none()));
    }

    #[test]
    fn what_the_client_does_not_know_is_refused_by_its_option() {
        let text = |pair| config(&[pair]).unwrap_err();
        let error = text(("properties.fetch.wibble", "1"));
        assert!(error.contains("fetch.wibble"), "{error}");
        assert!(text(("properties.enable.auto.commit", "true")).contains("enable.auto.commit"));
        assert!(text(("properties.ssl.truststore.location", "/x.jks")).contains("PEM"));
        let error = text(("properties.sasl.jaas.config", "x.OtherModule password=\"secret\";"));
        assert!(!error.contains("secret"), "{error}");
    }
}
