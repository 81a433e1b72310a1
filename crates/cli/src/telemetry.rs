//! Observability while a command runs: logs, metrics, spans.

use millstream::{Error, Job, JobProgress, Observer, Report};

use crate::args::{LogArgs, TelemetryArgs};
use crate::dashboard::Dashboard;
use crate::failure::Failure;
use crate::log;
use crate::screen::Screen;
use crate::serve::Server;
use crate::trace::Traces;

/// Started at the beginning of a command, ended at its end.
pub(crate) struct Telemetry {
    screen: Screen,
    dashboard: Option<Dashboard>,
    traces: Option<Traces>,
    _server: Option<Server>,
}

impl Telemetry {
    /// Starts what the arguments ask for. Only node 0 serves metrics: it knows all nodes.
    pub(crate) fn start(
        args: &TelemetryArgs,
        log: &LogArgs,
        screen: &Screen,
        serve: bool,
    ) -> Result<Self, Failure> {
        let traces = args.otlp.as_deref().map(Traces::start).transpose()?;
        log::start(&log.log, screen, traces.as_ref());
        let dashboard =
            args.metrics.filter(|_| serve).map(|address| (address, Dashboard::default()));
        let server = match &dashboard {
            Some((address, dashboard)) => {
                Some(Server::start(*address, &args.metrics_name, dashboard)?)
            }
            None => None,
        };
        let dashboard = dashboard.map(|(_, dashboard)| dashboard);
        Ok(Self { screen: screen.clone(), dashboard, traces, _server: server })
    }

    /// Sends what has not been sent.
    pub(crate) fn end(self) {
        if let Some(traces) = self.traces {
            traces.end();
        }
    }
}

impl Observer for Telemetry {
    fn started(&self, job: &Job) {
        self.screen.begins(job.operators(), job.sinks());
        if let Some(dashboard) = &self.dashboard {
            dashboard.started(job);
        }
    }

    fn progress(&self, progress: &JobProgress) {
        self.screen.show(progress);
        if let Some(dashboard) = &self.dashboard {
            dashboard.progress(progress);
        }
    }

    fn recovers(&self, line: &str) {
        self.screen.line(line);
    }

    fn ended(&self, result: &Result<Report, Error>) {
        if let Some(dashboard) = &self.dashboard {
            dashboard.ended(result);
        }
    }
}
