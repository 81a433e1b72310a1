//! Structured logs on standard error, without tearing the progress line.

use std::io::{self, Write};

use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use millstream::secrets;

use crate::failure::colored;
use crate::screen::Screen;
use crate::trace::Traces;

/// Logs what `targets` lets through, above the progress line of `screen`; spans go to `traces`.
pub(crate) fn start(targets: &Targets, screen: &Screen, traces: Option<&Traces>) {
    let lines = tracing_subscriber::fmt::layer().with_ansi(colored()).with_writer(screen.clone());
    let spans = traces.map(|traces| traces.layer().with_filter(Traces::filter()));
    let started = tracing_subscriber::registry()
        .with(spans)
        .with(lines.with_filter(targets.clone()))
        .try_init();
    // The only other subscriber could be our own.
    debug_assert!(started.is_ok());
}

impl<'a> MakeWriter<'a> for Screen {
    type Writer = LogLine;

    fn make_writer(&'a self) -> Self::Writer {
        LogLine { screen: self.clone(), bytes: Vec::new() }
    }
}

/// Gathers one event and shows it when it is complete.
pub(crate) struct LogLine {
    screen: Screen,
    bytes: Vec<u8>,
}

impl Write for LogLine {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for LogLine {
    fn drop(&mut self) {
        self.screen.line(secrets::masked(String::from_utf8_lossy(&self.bytes).trim_end()).as_ref());
    }
}
