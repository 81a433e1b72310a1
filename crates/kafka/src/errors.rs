//! Errors of the client, for the author of the SQL.

use dataflow::error::ConnectorError;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};

/// An error at a place of a topic.
pub(crate) fn failed(
    place: impl Into<String>,
    message: impl Into<String>,
    hint: &str,
) -> ConnectorError {
    ConnectorError::Io { place: place.into(), message: message.into(), hint: Some(hint.into()) }
}

/// The error of a code that no retry mends. `None` of all that may pass.
pub(crate) fn final_error(place: &str, code: Code, reason: &str) -> Option<ConnectorError> {
    let (message, hint) = match code {
        Code::Authentication | Code::SaslAuthenticationFailed => (
            format!("the broker refuses to let it in: {reason}"),
            "check 'properties.sasl.mechanism', 'properties.sasl.username' and \
             'properties.sasl.password'",
        ),
        Code::UnsupportedSASLMechanism => (
            format!("the broker does not know the mechanism: {reason}"),
            "check 'properties.sasl.mechanism'",
        ),
        Code::SSL => (
            format!("no encrypted connection: {reason}"),
            "check 'properties.ssl.ca.location' and the certificate of the broker",
        ),
        Code::TopicAuthorizationFailed => (
            "the user may not use the topic".into(),
            "ask for the right to read or write it: kafka-acls.sh",
        ),
        Code::GroupAuthorizationFailed => (
            "the user may not use the group".into(),
            "ask for the right to read the group of 'properties.group.id' or, of a sink, of \
             'sink.transactional-id-prefix'",
        ),
        Code::TransactionalIdAuthorizationFailed => (
            "the user may not write by transactions of this name".into(),
            "ask for the right to 'sink.transactional-id-prefix': kafka-acls.sh \
             --transactional-id",
        ),
        Code::UnknownTopic | Code::UnknownTopicOrPartition => (
            "there is no such topic, or it was deleted".into(),
            "check 'topic', or make it: kafka-topics.sh --create --topic NAME --partitions 4",
        ),
        Code::UnknownPartition => (
            "there is no such partition any more: the topic was deleted or made anew".into(),
            "a topic that was made anew is read by a job that begins: --from none",
        ),
        Code::MessageSizeTooLarge => (
            format!("a message is larger than the topic takes: {reason}"),
            "raise max.message.bytes of the topic and 'properties.message.max.bytes'",
        ),
        Code::NotImplemented | Code::BadCompression => (
            format!("messages are packed in a way that this program cannot unpack: {reason}"),
            "pack them by gzip, snappy, lz4 or zstd: compression.type of the topic",
        ),
        Code::InvalidTransactionTimeout => (
            "the brokers do not take transactions as long as that".into(),
            "lower 'properties.transaction.timeout.ms', or raise transaction.max.timeout.ms of \
             the brokers",
        ),
        _ => return None,
    };
    Some(failed(place, message, hint))
}

/// Whether brokers that have just started may answer so, too.
pub(crate) fn is_unknown_topic(code: Code) -> bool {
    matches!(code, Code::UnknownTopic | Code::UnknownTopicOrPartition | Code::UnknownPartition)
}

/// The code of an error, where it has one.
pub(crate) fn code_of(error: &KafkaError) -> Option<Code> {
    match error {
        KafkaError::Transaction(error) => Some(error.code()),
        error => error.rdkafka_error_code(),
    }
}

/// An error of the client, with a hint where its code has one.
pub(crate) fn unexpected(place: &str, error: &KafkaError) -> ConnectorError {
    let own = code_of(error).and_then(|code| final_error(place, code, &error.to_string()));
    own.unwrap_or_else(|| {
        failed(place, error.to_string(), "the log has more: MILLSTREAM_LOG=debug")
    })
}

/// No broker can be reached.
pub(crate) fn unreachable(servers: &str, reason: &str) -> ConnectorError {
    failed(
        format!("kafka {servers}"),
        format!("no broker can be reached: {reason}"),
        "check 'properties.bootstrap.servers', and that a broker runs there; 'retry.timeout' is \
         how long to try",
    )
}
