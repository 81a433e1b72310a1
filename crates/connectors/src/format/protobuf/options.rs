//! The options that describe the messages of a table.

use arrow::datatypes::Schema;
use dataflow::connector::OptionSpec;
use dataflow::error::ConnectorError;
use prost_reflect::MessageDescriptor;
use prost_reflect::prost::encode_length_delimiter;

use super::{ProtoEncoder, ProtoRows, columns_of, compiled, described, message_named};
use crate::format::rows::TargetColumns;
use crate::options::{OptionReader, refuse};

pub(crate) const MESSAGE_NAME: &str = "protobuf.message-class-name";
const DESCRIPTOR_FILE: &str = "protobuf.descriptor.file";
const PROTO_FILE: &str = "protobuf.proto.file";
pub(crate) const DEFAULTS: &str = "protobuf.read-default-values";
const NULL: &str = "protobuf.write-null-string-literal";

/// The options of a table of Protobuf.
pub(crate) const OPTIONS: [OptionSpec; 5] = {
    let name = OptionSpec {
        key: MESSAGE_NAME,
        values: "package.Message",
        default: "by the message, with a registry",
        doc: "The type of the messages of Protobuf, as Java or the descriptors call it.",
    };
    let descriptor = OptionSpec {
        key: DESCRIPTOR_FILE,
        values: "file",
        default: "none",
        doc: "A set of descriptors that has the type, as protoc --descriptor_set_out \
              --include_imports writes it.",
    };
    let proto = OptionSpec {
        key: PROTO_FILE,
        values: "file.proto",
        default: "none",
        doc: "A file that has the type; what it imports lies beside it. A sink of \
              'protobuf-confluent' gives it to the registry.",
    };
    let defaults = OptionSpec {
        key: DEFAULTS,
        values: "true | false",
        default: "false",
        doc: "Whether fields, lists and maps that are not in a message have their defaults, and \
              not NULL.",
    };
    let null = OptionSpec {
        key: NULL,
        values: "text",
        default: "an empty text",
        doc: "A sink: the text in place of NULL in lists and maps, where Protobuf has none.",
    };
    [name, descriptor, proto, defaults, null]
};

/// Messages of a type that the options name.
#[derive(Debug, Clone)]
pub(crate) struct ProtoFormat {
    message: MessageDescriptor,
    /// Whether fields that are not there have their defaults.
    defaults: bool,
    /// The text in place of NULL, where a sink has none.
    null: String,
}

impl ProtoFormat {
    /// Messages of a type, as a table has them that says nothing else.
    pub(crate) fn of(message: MessageDescriptor) -> Self {
        Self { message, defaults: false, null: String::new() }
    }

    /// By the options of a table.
    ///
    /// # Errors
    /// When they name no type.
    pub(crate) fn new(options: OptionReader<'_>) -> Result<Self, ConnectorError> {
        let message = proto_type(options, false)?.message;
        let defaults = options.bool(DEFAULTS, false)?;
        Ok(Self { message, defaults, null: proto_null(options).to_owned() })
    }

    /// The columns that its fields can be.
    pub(crate) fn columns(&self) -> Schema {
        columns_of(&self.message)
    }

    /// Rows of a table.
    ///
    /// # Errors
    /// When the type does not fit the table.
    pub(crate) fn rows(&self, target: &TargetColumns) -> Result<ProtoRows, ConnectorError> {
        let place = format!("the message '{}'", self.message.full_name());
        ProtoRows::new(target, &self.message, &place, self.defaults)
    }

    /// A writer of rows of these columns.
    ///
    /// # Errors
    /// When the type does not fit them.
    pub(crate) fn encoder(&self, columns: &Schema) -> Result<ProtoEncoder, ConnectorError> {
        ProtoEncoder::new(columns, &self.message, &self.null)
    }
}

/// A type of messages, for the sink of a registry with the text that it gets.
pub(crate) struct ProtoType {
    pub(crate) message: MessageDescriptor,
    pub(crate) text: Option<String>,
    /// Where the type stands in its file, as messages name it.
    pub(crate) place: Vec<u8>,
}

/// The type that the options name.
pub(crate) fn proto_type(
    options: OptionReader<'_>,
    registered: bool,
) -> Result<ProtoType, ConnectorError> {
    let hint = format!("write '{MESSAGE_NAME}' = 'package.Message'");
    let name = options.required(MESSAGE_NAME, &hint)?;
    let (set, proto) = (options.text(DESCRIPTOR_FILE), options.text(PROTO_FILE));
    let (key, path) = match (set, proto) {
        (Some(_), Some(_)) => {
            return Err(refuse(PROTO_FILE, format!("'{DESCRIPTOR_FILE}' is there, too"), None));
        }
        (Some(path), None) if !registered => (DESCRIPTOR_FILE, path),
        (_, Some(path)) => (PROTO_FILE, path),
        (_, None) => {
            let hint = format!("write '{PROTO_FILE}' = 'message.proto'");
            return Err(refuse(PROTO_FILE, "is missing", Some(hint)));
        }
    };
    let hint = if key == PROTO_FILE {
        "write the path of a .proto file, beside which lies what it imports"
    } else {
        "make it by `protoc --include_imports --descriptor_set_out=FILE message.proto`, or write \
         'protobuf.proto.file' = 'message.proto'"
    };
    let unfit = |reason: String| refuse(key, format!("{path}: {reason}"), Some(hint.to_owned()));
    let (pool, text) = if registered {
        let text = std::fs::read_to_string(path).map_err(|error| unfit(error.to_string()))?;
        // Nothing is imported that the registry would not have.
        let file = compiled(&text, &[]).map_err(unfit)?;
        (file.parent_pool().clone(), Some(text))
    } else {
        (described(path).map_err(unfit)?, None)
    };
    let message = message_named(&pool, name).ok_or_else(|| {
        let known = pool.all_messages().map(|message| message.full_name().to_owned());
        let known: Vec<_> = known.filter(|name| !name.starts_with("google.")).collect();
        let hint = crate::nearest(name, known.iter().map(String::as_str));
        let hint = hint.map(|near| format!("did you mean '{near}'?"));
        refuse(MESSAGE_NAME, format!("{path} has no message '{name}'"), hint)
    })?;
    let place = place_of(&message);
    Ok(ProtoType { message, text, place })
}

/// The text in place of NULL.
pub(crate) fn proto_null(options: OptionReader<'_>) -> &str {
    options.text(NULL).unwrap_or_default()
}

/// The numbers of a type and those that it is within, as messages have them: how many, and each;
/// the first type of a file is one byte.
fn place_of(message: &MessageDescriptor) -> Vec<u8> {
    let mut places = vec![];
    let mut of = Some(message.clone());
    while let Some(message) = of {
        of = message.parent_message();
        let own = message.full_name().to_owned();
        let place = match &of {
            Some(within) => within.child_messages().position(|other| other.full_name() == own),
            None => message.parent_file().messages().position(|other| other.full_name() == own),
        };
        places.insert(0, place.unwrap_or_default());
    }
    if places == [0] {
        return vec![0];
    }
    let mut bytes = vec![];
    for number in [places.len()].into_iter().chain(places) {
        // Zigzag: the numbers are not negative. A `Vec` has room for all.
        let _ = encode_length_delimiter(number << 1, &mut bytes);
    }
    bytes
}
