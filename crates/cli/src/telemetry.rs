//! What others may watch while a command runs: logs, metrics, spans.

use millstream::{Error, Job, Observer, Progress, Report};

use crate::args::{LogArgs, TelemetryArgs};
use crate::board::Board;
use crate::failure::Failure;
use crate::log;
use crate::screen::Screen;
use crate::serve::Server;
use crate::trace::Traces;

/// Started at the beginning of a command, ended at its end.
pub(crate) struct Telemetry {
    screen: Screen,
    board: Option<Board>,
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
        let board = args.metrics.filter(|_| serve).map(|address| (address, Board::default()));
        let server = match &board {
            Some((address, board)) => Some(Server::start(*address, &args.metrics_name, board)?),
            None => None,
        };
        let board = board.map(|(_, board)| board);
        Ok(Self { screen: screen.clone(), board, traces, _server: server })
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
        self.screen.begins(job.sinks());
        if let Some(board) = &self.board {
            board.started(job);
        }
    }

    fn progress(&self, progress: &Progress) {
        self.screen.show(progress);
        if let Some(board) = &self.board {
            board.progress(progress);
        }
    }

    fn ended(&self, result: &Result<Report, Error>) {
        if let Some(board) = &self.board {
            board.ended(result);
        }
    }
}
