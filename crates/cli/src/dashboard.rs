//! The status of this process's jobs, for Prometheus and as JSON: `--metrics`.
//! `millstream top` reads the latter.
//!
//! Jobs report to a [`Dashboard`], and the [`Server`](crate::serve::Server) reads it. Counters of
//! jobs that have ended are kept, so that they only grow while the process lives. The number of
//! series is bounded: workers beyond [`WORKERS_SHOWN_MAX`] are added up as `other`, statements
//! beyond [`STATEMENTS_SHOWN_MAX`] are omitted, and nothing that comes from data is a label.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{SystemTime, UNIX_EPOCH};

use millstream::{
    Counters, Error, ExplainFormat, JOB_METRICS, Job, JobMetric, JobProgress, Metric, MetricKind,
    MetricUnit, Observer, OperatorCounters, Report, Snapshot, WorkerCounters, counters_to_json,
};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use crate::human;

/// Workers that have a series of their own.
const WORKERS_SHOWN_MAX: u32 = 256;
/// Statements of a job that are named.
const STATEMENTS_SHOWN_MAX: usize = 64;
/// Characters of a statement's name that are shown.
const NAME_CHARS_MAX: usize = 80;

/// The status of this process's jobs. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Dashboard(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// The job that runs.
    job: Option<Running>,
    /// Its progress.
    progress: Option<JobProgress>,
    /// Counters of jobs that have ended, by worker.
    ended_workers: BTreeMap<u32, Series>,
    /// Those of [`JOB_METRICS`].
    ended_jobs: Vec<f64>,
    started: u64,
    succeeded: u64,
    failed: u64,
    cancelled: u64,
}

#[derive(Debug)]
struct Running {
    /// Name and line.
    statements: Vec<(String, usize)>,
    bounded: bool,
    /// Names, in the order in which workers count them.
    operators: Vec<String>,
    /// The plan for a reader, and as JSON.
    plan: (String, String),
    /// How many jobs began before.
    number: u64,
}

/// The metrics of a worker over all jobs, or of all workers beyond [`WORKERS_SHOWN_MAX`].
#[derive(Debug, Clone)]
struct Series {
    node: u32,
    counters: Counters,
    /// Whether a job runs there: a gauge tells of now.
    runs: bool,
}

impl Series {
    /// Of a worker in the job that runs.
    fn running(of: &WorkerCounters) -> Self {
        Self { node: of.node, counters: of.counters, runs: true }
    }

    /// Of a worker in a job that has ended.
    fn ended(of: &WorkerCounters) -> Self {
        Self { node: of.node, counters: of.counters.counters_only(), runs: false }
    }

    /// Adds to the series with this key.
    fn add_to<K: Ord>(self, all: &mut BTreeMap<K, Series>, key: K) {
        match all.get_mut(&key) {
            Some(series) => {
                series.counters.add(&self.counters);
                series.runs |= self.runs;
            }
            None => drop(all.insert(key, self)),
        }
    }

    fn shows(&self, metric: &Metric) -> bool {
        self.runs || metric.kind == MetricKind::Counter
    }
}

impl Observer for Dashboard {
    fn started(&self, job: &Job) {
        let mut state = self.lock();
        let name = |name: &str| name.chars().take(NAME_CHARS_MAX).collect();
        let statements = job.statements().iter().take(STATEMENTS_SHOWN_MAX);
        let statements = statements.map(|s| (name(&s.name), s.line)).collect();
        state.started += 1;
        state.job = Some(Running {
            statements,
            bounded: job.bounded(),
            operators: job.operators(),
            plan: (job.explain_as(ExplainFormat::Text), job.explain_as(ExplainFormat::Json)),
            number: state.started,
        });
        state.progress = None;
    }

    fn progress(&self, progress: &JobProgress) {
        self.lock().progress = Some(progress.clone());
    }

    fn ended(&self, result: &Result<Report, Error>) {
        let mut state = self.lock();
        let last = state.progress.take();
        let (workers, progress) = match result {
            Ok(report) => {
                let workers = report.workers.clone();
                let ended = JobProgress {
                    elapsed: report.elapsed,
                    counters: report.total,
                    bad: report.bad,
                    checkpoints: report.checkpoints.clone(),
                    ..JobProgress::default()
                };
                (workers, Some(ended))
            }
            // Of a job that failed, its last report counts.
            Err(_) => (last.iter().flat_map(|p| p.workers.clone()).collect(), last),
        };
        match result {
            Ok(report) if report.cancelled => state.cancelled += 1,
            Ok(_) => state.succeeded += 1,
            Err(Error::Interrupted) => state.cancelled += 1,
            Err(_) => state.failed += 1,
        }
        let State { ended_workers, ended_jobs, .. } = &mut *state;
        for worker in &workers {
            Series::ended(worker).add_to(ended_workers, worker.worker);
        }
        ended_jobs.resize(JOB_METRICS.len(), 0.0);
        for (sum, JobMetric { metric, read }) in ended_jobs.iter_mut().zip(JOB_METRICS) {
            let value = progress.as_ref().and_then(read);
            *sum += value.filter(|_| metric.kind == MetricKind::Counter).unwrap_or(0.0);
        }
        state.job = None;
    }
}

impl Dashboard {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The page for Prometheus.
    pub(crate) fn page(&self) -> String {
        let mut registry = Registry::with_prefix("millstream");
        registry.register_collector(Box::new(self.clone()));
        let mut page = String::new();
        // Writing to a String cannot fail.
        let _ = text::encode(&mut page, &registry);
        page
    }

    /// The same in short, as JSON.
    pub(crate) fn status(&self) -> String {
        let state = self.lock();
        let workers: Vec<String> = state
            .workers()
            .iter()
            .map(|(worker, series)| {
                let worker = if worker == "other" { "\"other\"" } else { worker };
                let fields = json_fields(&series.counters, |metric| series.shows(metric));
                format!("{{\"node\":{},\"worker\":{worker},{fields}}}", series.node)
            })
            .collect();
        let mut job = "null".to_owned();
        if let Some(running) = &state.job {
            let statements = running.statements.iter();
            let statements: Vec<_> = statements
                .map(|(name, line)| format!("{{\"name\":{},\"line\":{line}}}", json_text(name)))
                .collect();
            let operators: Vec<_> = running.operators.iter().map(|name| json_text(name)).collect();
            let mut fields = vec![
                format!("\"number\":{}", running.number),
                format!("\"statements\":[{}]", statements.join(",")),
                format!("\"bounded\":{}", running.bounded),
                format!("\"operators\":[{}]", operators.join(",")),
            ];
            for (JobMetric { metric, .. }, value) in JOB_METRICS.iter().zip(state.job_values()) {
                let name = metric.name.trim_start_matches("job_");
                fields.extend(value.map(|value| format!("\"{name}\":{value}")));
            }
            if let Some(progress) = &state.progress {
                let waits = human::checkpoint_waits(progress, &running.operators);
                fields
                    .extend(waits.map(|of| format!("\"checkpoint_waits_for\":{}", json_text(&of))));
            }
            job = format!("{{{}}}", fields.join(","));
        }
        let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        format!(
            "{{\"version\":{},\"clock_ms\":{},\"job\":{job},\"jobs\":{{\"succeeded\":{},\
             \"failed\":{},\"cancelled\":{}}},\"workers\":[{}],\"operators\":[{}]}}\n",
            json_text(env!("CARGO_PKG_VERSION")),
            clock.as_millis(),
            state.succeeded,
            state.failed,
            state.cancelled,
            workers.join(","),
            state.operators().join(",")
        )
    }

    /// The plan of the running job, as JSON with the text that EXPLAIN shows.
    pub(crate) fn plan(&self) -> String {
        match &self.lock().job {
            Some(Running { plan: (text, json), .. }) => {
                format!("{{\"text\":{},\"plan\":{}}}\n", json_text(text), json.trim_end())
            }
            None => "null\n".into(),
        }
    }
}

impl State {
    /// The series of each worker by its label, with the counters of jobs that have ended.
    fn workers(&self) -> BTreeMap<String, Series> {
        let mut all = self.ended_workers.clone();
        for worker in self.progress.iter().flat_map(|progress| &progress.workers) {
            Series::running(worker).add_to(&mut all, worker.worker);
        }
        let mut shown: BTreeMap<String, Series> = BTreeMap::new();
        for (worker, series) in all {
            let label = match worker {
                ..WORKERS_SHOWN_MAX => worker.to_string(),
                _ => "other".to_owned(),
            };
            series.add_to(&mut shown, label);
        }
        shown
    }

    /// The operators of the running job on each worker, as JSON.
    fn operators(&self) -> Vec<String> {
        let workers = self.progress.iter().flat_map(|progress| &progress.workers);
        let operator = |of: &WorkerCounters, (at, counters): (usize, &OperatorCounters)| {
            let WorkerCounters { node, worker, .. } = of;
            let fields = json_fields(counters, |_| true);
            format!("{{\"operator\":{at},\"node\":{node},\"worker\":{worker},{fields}}}")
        };
        let of_worker = |of: &WorkerCounters| -> Vec<String> {
            of.operators.iter().enumerate().map(|one| operator(of, one)).collect()
        };
        workers.flat_map(of_worker).collect()
    }

    /// The values of [`JOB_METRICS`].
    fn job_values(&self) -> Vec<Option<f64>> {
        let ended = |at: usize| self.ended_jobs.get(at).copied().unwrap_or(0.0);
        let value = |(at, JobMetric { metric, read }): (usize, &JobMetric)| {
            let now = self.progress.as_ref().and_then(read);
            match metric.kind {
                MetricKind::Counter => Some(ended(at) + now.unwrap_or(0.0)),
                MetricKind::Gauge | MetricKind::Peak => now,
            }
        };
        JOB_METRICS.iter().enumerate().map(value).collect()
    }
}

impl Collector for Dashboard {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let state = self.lock();
        let workers = state.workers();
        let values = |series: &Series| -> Vec<Option<f64>> {
            let values = series.counters.values();
            values.map(|(of, value)| value.filter(|_| series.shows(of))?.number()).collect()
        };
        let series = workers.iter().map(|(worker, of)| (worker, of.node.to_string(), values(of)));
        let series: Vec<_> = series.collect();
        for (at, metric) in Counters::METRICS.iter().enumerate() {
            let mut family = describe(&mut encoder, metric)?;
            for (worker, node, values) in &series {
                let Some(value) = values[at] else { continue };
                let labels = [("node", node.as_str()), ("worker", worker.as_str())];
                put(family.encode_family(&labels)?, metric, value)?;
            }
        }
        for (JobMetric { metric, .. }, value) in JOB_METRICS.iter().zip(state.job_values()) {
            let Some(value) = value else { continue };
            let one = describe(&mut encoder, metric)?;
            put(one, metric, value)?;
        }
        for metric in &PROCESS_METRICS {
            let mut family = describe(&mut encoder, metric)?;
            for (labels, value) in state.others(metric) {
                put(family.encode_family(&labels)?, metric, value)?;
            }
        }
        Ok(())
    }
}

/// Metrics of the process, whose labels are their values.
const PROCESS_METRICS: [Metric; 3] = [JOBS, JOB_STATEMENT, BUILD];
const JOBS: Metric = Metric {
    name: "jobs",
    kind: MetricKind::Counter,
    unit: MetricUnit::Count,
    help: "Jobs that have ended, by their result.",
};
const JOB_STATEMENT: Metric = Metric {
    name: "job_statement",
    kind: MetricKind::Gauge,
    unit: MetricUnit::Count,
    help: "1 for each statement of the running job.",
};
const BUILD: Metric = Metric {
    name: "build",
    kind: MetricKind::Gauge,
    unit: MetricUnit::Count,
    help: "1, with the version.",
};

impl State {
    /// The labels and values of one of [`PROCESS_METRICS`].
    fn others(&self, metric: &Metric) -> Vec<(Vec<(&'static str, String)>, f64)> {
        let label = |key: &'static str, value: &str| (key, value.to_owned());
        if *metric == JOBS {
            let results = [
                ("succeeded", self.succeeded),
                ("failed", self.failed),
                ("cancelled", self.cancelled),
            ];
            return results.map(|(r, n)| (vec![label("result", r)], n as f64)).into();
        }
        if *metric == BUILD {
            return vec![(vec![label("version", env!("CARGO_PKG_VERSION"))], 1.0)];
        }
        let statements = self.job.iter().flat_map(|job| &job.statements);
        let labels = |(name, line): &(String, usize)| {
            (vec![label("statement", name), label("line", &line.to_string())], 1.0)
        };
        statements.map(labels).collect()
    }
}

/// Begins the series of a metric.
fn describe<'a>(
    encoder: &'a mut DescriptorEncoder<'_>,
    metric: &'a Metric,
) -> Result<MetricEncoder<'a>, fmt::Error> {
    let kind = match metric.kind {
        MetricKind::Counter => MetricType::Counter,
        MetricKind::Gauge | MetricKind::Peak => MetricType::Gauge,
    };
    encoder.encode_descriptor(metric.name, metric.help, None, kind)
}

fn put(mut encoder: MetricEncoder<'_>, metric: &Metric, value: f64) -> fmt::Result {
    match metric.kind {
        MetricKind::Counter => encoder.encode_counter::<NoLabelSet, f64, f64>(&value, None),
        MetricKind::Gauge | MetricKind::Peak => encoder.encode_gauge(&value),
    }
}

/// Metrics as fields of a JSON object.
fn json_fields(counters: &impl Snapshot, shows: impl Fn(&Metric) -> bool) -> String {
    let fields = counters_to_json(counters).filter(|(metric, _)| shows(metric));
    let fields = fields.map(|(metric, value)| format!("\"{}\":{value}", metric.name));
    fields.collect::<Vec<_>>().join(",")
}

fn json_text(text: &str) -> String {
    let mut out = String::from('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => out += &format!("\\u{:04x}", u32::from(c)),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn progress(workers: u32, rows_in: u64) -> JobProgress {
        let counters =
            Counters { rows_in, state_bytes: 5, watermark_ms: 1500, ..Counters::default() };
        let operator = OperatorCounters {
            rows_in,
            rows_out: 1,
            busy_ns: 500_000_000,
            state_bytes: 5,
            watermark_ms: 1500,
            ..OperatorCounters::default()
        };
        let operators = vec![operator];
        let worker = |worker| {
            let operators = operators.clone();
            WorkerCounters { node: worker / 4, worker, counters, operators }
        };
        JobProgress {
            elapsed: Duration::from_secs(2),
            counters,
            bad: 3,
            workers: (0..workers).map(worker).collect(),
            done: Some(0.5),
            lag: Some(Duration::from_secs(4)),
            checkpoints: None,
        }
    }

    fn report(workers: u32, rows_in: u64) -> Report {
        let JobProgress { workers, counters, bad, .. } = progress(workers, rows_in);
        Report { workers, total: counters, bad, ..Report::default() }
    }

    fn line<'a>(page: &'a str, name: &str) -> Option<&'a str> {
        page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))
    }

    #[test]
    fn counters_of_ended_jobs_are_kept_and_gauges_are_of_now() {
        let dashboard = Dashboard::default();
        dashboard.ended(&Ok(report(1, 10)));
        dashboard.progress(&progress(1, 7));
        let page = dashboard.page();
        let of = |name: &str| line(&page, &format!("{name}{{node=\"0\",worker=\"0\"}}"));
        assert_eq!(of("millstream_input_rows_total"), Some("17.0"), "{page}");
        assert_eq!(of("millstream_state_bytes"), Some("5.0"));
        assert_eq!(of("millstream_watermark_seconds"), Some("1.5"));
        assert_eq!(line(&page, "millstream_bad_rows_total"), Some("6.0"));
        assert_eq!(line(&page, "millstream_jobs_total{result=\"succeeded\"}"), Some("1.0"));
        assert_eq!(line(&page, "millstream_job_done_ratio"), Some("0.5"));
        assert_eq!(line(&page, "millstream_job_lag_seconds"), Some("4.0"));
        assert!(page.ends_with("# EOF\n"));
        dashboard.ended(&Err(Error::Interrupted));
        let page = dashboard.page();
        let of = |name: &str| line(&page, &format!("{name}{{node=\"0\",worker=\"0\"}}"));
        assert_eq!(of("millstream_input_rows_total"), Some("17.0"), "{page}");
        assert_eq!(of("millstream_state_bytes"), None);
        assert_eq!(line(&page, "millstream_jobs_total{result=\"cancelled\"}"), Some("1.0"));
    }

    #[test]
    fn the_number_of_series_is_bounded() {
        let dashboard = Dashboard::default();
        let rows =
            |page: &str| page.lines().filter(|l| l.starts_with("millstream_input_rows")).count();
        dashboard.progress(&progress(WORKERS_SHOWN_MAX, 1));
        assert_eq!(rows(&dashboard.page()), 256);
        dashboard.progress(&progress(4 * WORKERS_SHOWN_MAX, 1));
        let page = dashboard.page();
        assert_eq!(rows(&page), 257);
        let other = "millstream_input_rows_total{node=\"64\",worker=\"other\"}";
        assert_eq!(line(&page, other), Some("768.0"));
    }

    #[test]
    fn the_status_is_json() {
        assert_eq!(json_text("a\"\\\n"), "\"a\\\"\\\\\\u000a\"");
        let dashboard = Dashboard::default();
        dashboard.progress(&progress(1, 7));
        let status = dashboard.status();
        assert!(status.starts_with("{\"version\":\""), "{status}");
        assert!(status.contains("\"workers\":[{\"node\":0,\"worker\":0,"), "{status}");
        assert!(status.contains("\"input_rows\":7"), "{status}");
        let operator =
            "\"operators\":[{\"operator\":0,\"node\":0,\"worker\":0,\"busy_seconds\":0.5,";
        assert!(status.contains(operator), "{status}");
        assert_eq!(dashboard.plan(), "null\n", "there is no job");
    }

    /// The reference page names what only this program has.
    #[test]
    fn the_reference_page_is_complete() {
        let page = include_str!("../../../docs/metrics.md");
        for Metric { name, kind, help, .. } in PROCESS_METRICS {
            let suffix = if kind == MetricKind::Counter { "_total" } else { "" };
            let is_there = page.contains(&format!("| `millstream_{name}{suffix}` |"));
            assert!(is_there && page.contains(help), "{name}");
        }
    }
}
