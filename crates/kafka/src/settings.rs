//! The options of a table, read.

use std::collections::BTreeMap;
use std::time::Duration;

use connectors::{OptionReader, messages, refuse};
use dataflow::connector::TableDef;
use dataflow::error::ConnectorError;
use rdkafka::ClientConfig;

use crate::properties::{PREFIX, client_config};

/// How long brokers are tried again, where 'retry.timeout' says nothing.
const RETRY_TIMEOUT: Duration = Duration::from_secs(300);

/// How long brokers are tried at the start of a query at most.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// How often a topic is asked for new partitions, where the table says nothing: as Flink does.
const DISCOVERY: Duration = Duration::from_secs(300);

/// The option that names the transactions of a sink.
pub(crate) const TRANSACTIONAL_ID: &str = "sink.transactional-id-prefix";

/// Bytes of the name of a topic at most, as brokers have it.
const TOPIC_BYTES_MAX: usize = 249;

/// A topic, and how its brokers are reached.
#[derive(Debug, Clone)]
pub(crate) struct Topic {
    pub(crate) name: String,
    pub(crate) servers: String,
    pub(crate) config: ClientConfig,
    /// How long to try again while rows flow.
    pub(crate) retry_timeout: Duration,
    /// How long to try at the start.
    pub(crate) start_timeout: Duration,
}

impl Topic {
    pub(crate) fn new(table: &TableDef) -> Result<Self, ConnectorError> {
        let options = OptionReader(&table.options);
        let name = options.required("topic", "write 'topic' = 'clicks'")?.to_owned();
        let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if name.is_empty() || name.len() > TOPIC_BYTES_MAX || !name.bytes().all(is_letter) {
            let hint = "a topic has a name of letters, digits, '.', '_' and '-'; one table reads \
                        one topic";
            return Err(refuse("topic", format!("'{name}' is no topic"), Some(hint.into())));
        }
        let servers = "properties.bootstrap.servers";
        let hint = "write 'properties.bootstrap.servers' = 'localhost:9092'";
        let servers = options.required(servers, hint)?.to_owned();
        messages::require_format(options)?;
        let retry = options.duration_ns("retry.timeout")?.map(Duration::from_nanos);
        let retry_timeout = retry.unwrap_or(RETRY_TIMEOUT);
        let start_timeout = retry_timeout.min(START_TIMEOUT);
        let config = client_config(&table.options)?;
        Ok(Self { name, servers, config, retry_timeout, start_timeout })
    }

    /// A partition, as messages name it.
    pub(crate) fn partition(&self, partition: i32) -> String {
        format!("{}[{partition}]", self.name)
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
