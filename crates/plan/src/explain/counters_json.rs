//! The JSON form of metrics, by the names of their definitions: of `EXPLAIN ANALYZE`, of the page
//! `/status` of a job, and of `millstream top`, which reads that page.

use dataflow::metrics::{Metric, MetricUnit, MetricValue, Snapshot};
use serde_json::Value;

/// The metrics that have a value, in the order of their definitions.
pub fn counters_to_json(
    counters: &impl Snapshot,
) -> impl Iterator<Item = (&'static Metric, Value)> {
    counters.values().filter_map(|(metric, value)| {
        let value = match value? {
            MetricValue::Whole(number) => number.into(),
            MetricValue::Seconds(seconds) => seconds.into(),
            MetricValue::KeyModes(modes) => modes.names().into(),
        };
        Some((metric, value))
    })
}

/// The inverse of [`counters_to_json`]; what the object lacks has no value.
pub fn counters_from_json<S: Snapshot>(object: &Value) -> S {
    S::of_values(|Metric { name, unit, .. }| {
        let value = &object[*name];
        match unit {
            MetricUnit::Nanoseconds | MetricUnit::Longest | MetricUnit::Watermark => {
                value.as_f64().map(MetricValue::Seconds)
            }
            MetricUnit::KeyModes => {
                let names = value.as_array()?.iter().filter_map(Value::as_str);
                Some(MetricValue::key_modes(names))
            }
            MetricUnit::Count | MetricUnit::Bytes | MetricUnit::Hardware | MetricUnit::Round => {
                value.as_u64().map(MetricValue::Whole)
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use dataflow::metrics::OperatorCounters;
    use serde_json::Map;
    use state::{KeyMode, KeyModes};

    use super::*;

    #[test]
    fn metrics_survive_as_json_and_absent_ones_are_left_out() {
        let mut key_modes = KeyModes::default();
        key_modes.insert(KeyMode::Packed);
        let counters = OperatorCounters {
            rows_in: 1 << 60,
            busy_ns: 1_500_000_001,
            watermark_ms: 1_357_034_400_123,
            saved_round: 7,
            key_modes,
            ..OperatorCounters::default()
        };
        let object = |counters: &OperatorCounters| -> Value {
            Value::Object(
                counters_to_json(counters)
                    .map(|(metric, value)| (metric.name.to_owned(), value))
                    .collect::<Map<_, _>>(),
            )
        };
        let json = object(&counters);
        assert_eq!(json["watermark_seconds"], 1_357_034_400.123);
        assert_eq!(json["key_modes"][0], "packed");
        assert_eq!(counters_from_json::<OperatorCounters>(&json), counters);
        let json = object(&OperatorCounters::default());
        assert_eq!((json.get("watermark_seconds"), &json["input_rows"]), (None, &0.into()));
    }
}
