//! The options of a table, read.

use std::collections::BTreeMap;
use std::time::Duration;

use connectors::{OptionReader, messages, refuse};
use dataflow::connector::TableDef;
use dataflow::error::ConnectorError;
use rdkafka::ClientConfig;
use regex::{Regex, RegexBuilder};

use crate::properties::{PREFIX, client_config};

/// How long brokers are tried again, where 'retry.timeout' says nothing.
const RETRY_TIMEOUT: Duration = Duration::from_secs(300);

/// How long brokers are tried at the start of a query at most.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// How often a topic is asked for new partitions, where the table says nothing: as Flink does.
const DISCOVERY: Duration = Duration::from_secs(300);

/// The option that names the transactions of a sink.
pub(crate) const TRANSACTIONAL_ID: &str = "sink.transactional-id-prefix";

/// The option that chooses topics by their names.
pub(crate) const PATTERN: &str = "topic-pattern";

/// Bytes of a compiled pattern at most.
const PATTERN_BYTES_MAX: usize = 1 << 20;

/// How the names of the brokers' own topics begin.
const INTERNAL: &str = "__";

/// Bytes of the name of a topic at most, as brokers have it.
const TOPIC_BYTES_MAX: usize = 249;

/// A topic or several, and how their brokers are reached.
#[derive(Debug, Clone)]
pub(crate) struct Topic {
    /// The name of the topic; of several what the table says.
    pub(crate) name: String,
    /// The noun for messages: it is one topic, or several.
    noun: &'static str,
    pub(crate) servers: String,
    pub(crate) config: ClientConfig,
    /// How long to try again while rows flow.
    pub(crate) retry_timeout: Duration,
    /// How long to try at the start.
    pub(crate) start_timeout: Duration,
}

impl Topic {
    /// The topic of a sink.
    ///
    /// # Errors
    /// When there is none, or options do not fit.
    pub(crate) fn new(table: &TableDef) -> Result<Self, ConnectorError> {
        let options = OptionReader(&table.options);
        if options.text(PATTERN).is_some() {
            let hint = Some("write 'topic' = 'clicks'".to_owned());
            return Err(refuse(PATTERN, "chooses topics to read, and one is written", hint));
        }
        let name = options.required("topic", "write 'topic' = 'clicks'")?;
        check_name(name)?;
        Self::reached(table, name, "topic")
    }

    /// The topics of a source.
    ///
    /// # Errors
    /// When there are none, or options do not fit.
    pub(crate) fn of_source(table: &TableDef) -> Result<(Self, TopicChoice), ConnectorError> {
        let options = OptionReader(&table.options);
        let choice = TopicChoice::given(options)?;
        let startup = "scan.startup.specific-offsets";
        if !choice.is_one() && options.text(startup).is_some() {
            let hint = "write 'scan.startup.mode' = 'timestamp', or a table for each topic";
            let message = "names partitions of one topic, and the table reads several";
            return Err(refuse(startup, message, Some(hint.into())));
        }
        let (name, noun) = match &choice {
            TopicChoice::Pattern(_, text) => (text.clone(), "topics like"),
            TopicChoice::Names(names) if choice.is_one() => (names.join(";"), "topic"),
            TopicChoice::Names(names) => (names.join(";"), "topics"),
        };
        Ok((Self::reached(table, &name, noun)?, choice))
    }

    fn reached(table: &TableDef, name: &str, noun: &'static str) -> Result<Self, ConnectorError> {
        let (options, name) = (OptionReader(&table.options), name.to_owned());
        let servers = "properties.bootstrap.servers";
        let hint = "write 'properties.bootstrap.servers' = 'localhost:9092'";
        let servers = options.required(servers, hint)?.to_owned();
        messages::require_format(options)?;
        let retry = options.duration_ns("retry.timeout")?.map(Duration::from_nanos);
        let retry_timeout = retry.unwrap_or(RETRY_TIMEOUT);
        let start_timeout = retry_timeout.min(START_TIMEOUT);
        let config = client_config(&table.options)?;
        Ok(Self { name, noun, servers, config, retry_timeout, start_timeout })
    }

    /// One of several topics.
    pub(crate) fn named(&self, name: &str) -> Self {
        Self { name: name.to_owned(), noun: "topic", ..self.clone() }
    }

    /// Its noun and name, for messages.
    pub(crate) fn title(&self) -> String {
        format!("{} '{}'", self.noun, self.name)
    }

    /// A partition, as messages name it.
    pub(crate) fn partition(&self, partition: i32) -> String {
        format!("{}[{partition}]", self.name)
    }
}

fn check_name(name: &str) -> Result<(), ConnectorError> {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if name.is_empty() || name.len() > TOPIC_BYTES_MAX || !name.bytes().all(is_letter) {
        let hint = "a topic has a name of letters, digits, '.', '_' and '-'; a source reads \
                    several by 'topic' = 'a;b' or by 'topic-pattern'";
        return Err(refuse("topic", format!("'{name}' is no topic"), Some(hint.into())));
    }
    Ok(())
}

/// The topics that a table reads.
#[derive(Debug, Clone)]
pub(crate) enum TopicChoice {
    /// One or several, each once.
    Names(Vec<String>),
    /// All whose whole name matches, with the text of the pattern. Topics of the brokers' own are
    /// none of them.
    Pattern(Regex, String),
}

impl TopicChoice {
    fn given(options: OptionReader<'_>) -> Result<Self, ConnectorError> {
        let (names, pattern) = (options.text("topic"), options.text(PATTERN));
        let Some(text) = pattern else {
            let names = options.required("topic", "write 'topic' = 'clicks'")?;
            let mut each: Vec<String> = vec![];
            for name in names.split(';').map(str::trim) {
                check_name(name)?;
                if each.iter().any(|known| known == name) {
                    return Err(refuse("topic", format!("it names '{name}' twice"), None));
                }
                each.push(name.to_owned());
            }
            return Ok(Self::Names(each));
        };
        if names.is_some() {
            let hint = Some("leave one of them out".to_owned());
            return Err(refuse(PATTERN, "there is a 'topic', too", hint));
        }
        let built = |text: &str| RegexBuilder::new(text).size_limit(PATTERN_BYTES_MAX).build();
        // By itself, too: its parentheses might close ours.
        let pattern = built(text).and_then(|_| built(&format!("^(?:{text})$")));
        let pattern = pattern.map_err(|error| {
            let hint = Some("write 'topic-pattern' = 'clicks-.*'".to_owned());
            refuse(PATTERN, format!("'{text}' is no regular expression: {error}"), hint)
        })?;
        Ok(Self::Pattern(pattern, text.to_owned()))
    }

    /// Whether it is one topic by its name.
    pub(crate) fn is_one(&self) -> bool {
        matches!(self, Self::Names(names) if names.len() == 1)
    }

    /// Whether a topic of a list of all is read.
    pub(crate) fn has(&self, topic: &str) -> bool {
        match self {
            Self::Names(names) => names.iter().any(|name| name == topic),
            Self::Pattern(pattern, _) => !topic.starts_with(INTERNAL) && pattern.is_match(topic),
        }
    }
}

/// Where a job begins to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Startup {
    Earliest,
    Latest,
    /// Where the group of 'properties.group.id' has come to, and else at one of the ends.
    Group {
        else_latest: bool,
    },
    /// Milliseconds since 1970.
    Timestamp(i64),
    Specific(BTreeMap<i32, i64>),
}

/// How a table is read.
#[derive(Debug, Clone)]
pub(crate) struct SourceSettings {
    pub(crate) startup: Startup,
    pub(crate) bounded: bool,
    pub(crate) skips_gaps: bool,
    /// How often the topic is asked for new partitions; `None` if it is not.
    pub(crate) discovery: Option<Duration>,
}

impl SourceSettings {
    pub(crate) fn new(table: &TableDef) -> Result<Self, ConnectorError> {
        let options = OptionReader(&table.options);
        let bounded = options.choice("scan.bounded.mode", &["unbounded", "latest-offset"])?;
        let skips_gaps = options.choice("on_gap", &["fail", "skip"])? == Some(1);
        let (startup, bounded) = (startup(options)?, bounded == Some(1));
        let discovery = options.duration_ns("scan.topic-partition-discovery.interval")?;
        let discovery = discovery.map_or(DISCOVERY, Duration::from_nanos);
        let discovery = Some(discovery).filter(|interval| !(bounded || interval.is_zero()));
        Ok(Self { startup, bounded, skips_gaps, discovery })
    }
}

fn startup(options: OptionReader<'_>) -> Result<Startup, ConnectorError> {
    let modes = ["earliest-offset", "latest-offset", "group-offsets", "timestamp"];
    let [earliest, latest, group, timestamp] = modes;
    let modes = [earliest, latest, group, timestamp, "specific-offsets"];
    let (time_key, offsets_key) =
        ("scan.startup.timestamp-millis", "scan.startup.specific-offsets");
    let group_key = "properties.group.id";
    let has_group = options.text(group_key).is_some();
    let mode = options.choice("scan.startup.mode", &modes)?;
    for (key, of) in [(time_key, 3), (offsets_key, 4)] {
        if options.text(key).is_some() && mode != Some(of) {
            let hint = format!("write 'scan.startup.mode' = '{}' too", modes[of]);
            return Err(refuse(key, "belongs to another mode", Some(hint)));
        }
    }
    Ok(match mode {
        Some(0) => Startup::Earliest,
        Some(1) => Startup::Latest,
        None if !has_group => Startup::Earliest,
        None | Some(2) => {
            options.required(group_key, "write 'properties.group.id' = 'my-group'")?;
            let reset = format!("{PREFIX}auto.offset.reset");
            let reset = options.choice(&reset, &["earliest", "latest", "none"])?;
            Startup::Group { else_latest: reset == Some(1) }
        }
        Some(3) => {
            options.required(time_key, "write it as milliseconds since 1970")?;
            let millis = options.integer(time_key, 0)?.unwrap_or_default();
            Startup::Timestamp(i64::try_from(millis).unwrap_or(i64::MAX))
        }
        Some(_) => {
            let hint = "write 'partition:0,offset:42;partition:1,offset:300'";
            let text = options.required(offsets_key, hint)?;
            let offsets = specific(text).ok_or_else(|| {
                refuse(offsets_key, format!("'{text}' has no offsets"), Some(hint.into()))
            });
            Startup::Specific(offsets?)
        }
    })
}

/// `partition:0,offset:42;partition:1,offset:300`.
fn specific(text: &str) -> Option<BTreeMap<i32, i64>> {
    let one = |text: &str| {
        let (partition, offset) = text.split_once(',')?;
        let partition = partition.trim().strip_prefix("partition:")?.trim().parse::<u16>().ok()?;
        let offset = offset.trim().strip_prefix("offset:")?.trim().parse::<i64>();
        Some((i32::from(partition), offset.ok().filter(|offset| *offset >= 0)?))
    };
    let parts = text.split(';').filter(|part| !part.trim().is_empty());
    let all = parts.map(one).collect::<Option<BTreeMap<_, _>>>()?;
    (!all.is_empty()).then_some(all)
}

/// Which partition a message goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Partitioning {
    /// By its key; without one, any.
    ByKey,
    /// One for each worker.
    Fixed,
    /// One after another.
    RoundRobin,
}

/// How a table is written.
#[derive(Debug, Clone)]
pub(crate) struct SinkSettings {
    pub(crate) partitioning: Partitioning,
    /// With 'exactly-once': the transactional id.
    pub(crate) transactional_id: Option<String>,
}

impl SinkSettings {
    pub(crate) fn new(table: &TableDef) -> Result<Self, ConnectorError> {
        let options = OptionReader(&table.options);
        let partitioner = ["default", "fixed", "round-robin"];
        let partitioning = match options.choice("sink.partitioner", &partitioner)? {
            None | Some(0) => Partitioning::ByKey,
            Some(1) => Partitioning::Fixed,
            Some(_) => Partitioning::RoundRobin,
        };
        let guarantee = ["at-least-once", "exactly-once"];
        let exactly = options.choice("sink.delivery-guarantee", &guarantee)? == Some(1);
        let prefix = TRANSACTIONAL_ID;
        let hint = format!("write '{prefix}' = '{}-…': a name that no other sink has", table.name);
        let transactional_id = match (exactly, options.text(prefix)) {
            (false, _) => None,
            (true, Some(prefix)) if !prefix.is_empty() => Some(prefix.to_owned()),
            (true, _) => return Err(refuse(prefix, "is missing", Some(hint))),
        };
        Ok(Self { partitioning, transactional_id })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(options: &[(&str, &str)]) -> Result<TopicChoice, String> {
        let options = options.iter().map(|(key, value)| (key.to_string(), value.to_string()));
        let options = options.collect();
        TopicChoice::given(OptionReader(&options)).map_err(|error| error.to_string())
    }

    #[test]
    fn a_format_that_messages_do_not_have_is_refused_with_those_that_they_have() {
        let says = |format: &str, words: &str| {
            let options = [("format".to_owned(), format.to_owned())].into();
            let error = messages::require_format(OptionReader(&options)).unwrap_err();
            let text = format!("{error:?}");
            assert!(text.contains(words), "{text}");
        };
        says("jsn", "csv, json, raw, avro, avro-confluent, protobuf, protobuf-confluent");
        says("fixed", "csv, json, raw, avro");
        says("debezium-json", "write 'format' = 'json'");
        for format in ["csv", "JSON", "Raw", "avro-confluent", "protobuf"] {
            let options = [("format".to_owned(), format.to_owned())].into();
            messages::require_format(OptionReader(&options)).unwrap();
        }
    }

    #[test]
    fn topics_are_named_or_match_as_a_whole() {
        let names = |text| match choice(&[("topic", text)]) {
            Ok(TopicChoice::Names(names)) => Ok(names.join("|")),
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err(error),
        };
        assert_eq!(names("a; b.c;d_1").unwrap(), "a|b.c|d_1");
        assert!(choice(&[("topic", "a")]).unwrap().is_one());
        for text in ["", ";", "a;", "a b", "a;a", "a;b/c"] {
            names(text).unwrap_err();
        }
        let pattern = choice(&[(PATTERN, "clicks-.*|x|.*_state")]).unwrap();
        for (topic, is_read) in [
            ("clicks-", true),
            ("clicks-eu", true),
            ("x", true),
            ("my-clicks-eu", false),
            ("xy", false),
            ("a_state", true),
            ("__transaction_state", false),
            ("__share_group_state", false),
            ("__what_comes_later_state", false),
            ("_state", true),
        ] {
            assert_eq!(pattern.has(topic), is_read, "{topic}");
        }
        assert!(!pattern.is_one() && !choice(&[(PATTERN, "a")]).unwrap().is_one());
        assert!(choice(&[(PATTERN, "(")]).unwrap_err().contains("no regular expression"));
        assert!(choice(&[(PATTERN, "a)|(?:b")]).is_err(), "its parentheses are not ours");
        assert!(choice(&[(PATTERN, "(.{1000}){1000}")]).is_err(), "it would be large");
        assert!(choice(&[(PATTERN, "a"), ("topic", "a")]).unwrap_err().contains("too"));
        assert!(choice(&[]).unwrap_err().contains("is missing"));
    }

    #[test]
    fn offsets_are_read_as_they_are_written() {
        let offsets = |text| specific(text).map(|all| all.into_iter().collect::<Vec<_>>());
        let text = "partition:0,offset:42; partition:1, offset:5000000000;";
        assert_eq!(offsets(text), Some(vec![(0, 42), (1, 5_000_000_000)]));
        for text in
            ["", ";", "0:42", "partition:0", "partition:-1,offset:2", "partition:0,offset:-2"]
        {
            assert_eq!(offsets(text), None, "{text}");
        }
    }
}
