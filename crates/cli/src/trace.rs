//! Spans of jobs, statements, workers, epochs and windows for a collector: `--otlp`.
//!
//! Spans leave in batches by OTLP over gRPC, on threads of their own; the queue is bounded, and
//! where it is full spans are left out rather than rows delayed. A collector that cannot be reached
//! is told of once, at the end.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{SpanExporter as OtlpExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider, SpanData, SpanExporter};
use tokio::runtime::Runtime;
use tracing::{Subscriber, level_filters::LevelFilter};
use tracing_opentelemetry::OpenTelemetryLayer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::registry::LookupSpan;

use crate::failure::Failure;

/// How long a collector may take for a batch, and for what is left at the end.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Crates whose spans are sent.
const OURS: [&str; 3] = ["millstream", "dataflow", "plan"];

/// Sends spans to a collector.
#[derive(Debug)]
pub(crate) struct Traces {
    url: String,
    provider: SdkTracerProvider,
    lost: Arc<Lost>,
    /// The exporter's connection lives on it.
    runtime: Runtime,
}

/// Spans that did not arrive.
#[derive(Debug, Default)]
struct Lost {
    spans: AtomicU64,
    reason: OnceLock<String>,
}

impl Traces {
    /// Sends to the collector at `url`; nothing is sent yet.
    ///
    /// # Errors
    /// When it is no URL for OTLP over gRPC without TLS.
    pub(crate) fn start(url: &str) -> Result<Self, Failure> {
        let refused = |error: &dyn std::fmt::Display| {
            let hint = "write the gRPC address of a collector, such as http://127.0.0.1:4317";
            Failure::usage(&format!("--otlp {url}: {error}"), Some(hint))
        };
        if !url.starts_with("http://") {
            return Err(refused(&"the address has to begin with http://"));
        }
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).thread_name("otlp").enable_all().build();
        let runtime = runtime.map_err(|error| refused(&error))?;
        let entered = runtime.enter();
        let exporter = OtlpExporter::builder().with_tonic().with_endpoint(url);
        let inner = exporter.with_timeout(TIMEOUT).build().map_err(|error| refused(&error))?;
        let lost = Arc::<Lost>::default();
        let resource = Resource::builder()
            .with_service_name("millstream")
            .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
            .with_attribute(KeyValue::new("process.pid", i64::from(std::process::id())))
            .build();
        let provider = SdkTracerProvider::builder()
            .with_resource(resource)
            .with_batch_exporter(Noticing { inner, lost: Arc::clone(&lost) })
            .build();
        drop(entered);
        Ok(Self { url: url.to_owned(), provider, lost, runtime })
    }

    /// The exporter of spans.
    pub(crate) fn layer<S>(&self) -> OpenTelemetryLayer<S, SdkTracer>
    where
        S: Subscriber + for<'span> LookupSpan<'span>,
    {
        tracing_opentelemetry::layer()
            .with_tracer(self.provider.tracer("millstream"))
            .with_location(false)
            .with_threads(false)
            .with_tracked_inactivity(false)
    }

    /// The spans that are sent: ours.
    pub(crate) fn filter() -> Targets {
        Targets::new().with_targets(OURS.map(|name| (name, LevelFilter::INFO)))
    }

    /// Sends what is left, and warns if anything was lost.
    pub(crate) fn end(self) {
        let ended = self.provider.shutdown_with_timeout(TIMEOUT);
        let spans = self.lost.spans.load(Ordering::Relaxed);
        let reason = self.lost.reason.get().cloned();
        if let Some(reason) = reason.or_else(|| ended.err().map(|error| error.to_string())) {
            tracing::warn!(spans, "spans did not arrive at {}: {reason}", self.url);
        }
        self.runtime.shutdown_timeout(TIMEOUT);
    }
}

/// An exporter that takes notice of what it could not send.
#[derive(Debug)]
struct Noticing {
    inner: OtlpExporter,
    lost: Arc<Lost>,
}

impl SpanExporter for Noticing {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len() as u64;
        let result = self.inner.export(batch).await;
        if let Err(error) = &result {
            self.lost.spans.fetch_add(spans, Ordering::Relaxed);
            self.lost.reason.get_or_init(|| error.to_string());
        }
        result
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.inner.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.inner.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.inner.set_resource(resource);
    }
}
