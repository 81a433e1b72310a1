//! Carries out one unit after another, and keeps what `.mode` and its like have changed.

use std::io::Write;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use millstream::{
    Error, Job, Report, RowFormat, RowTarget, RunOptions, Script, Session, Vocabulary,
};

use super::dot::{self, Dot};
use super::units::{Unit, units};
use crate::args::SqlArgs;
use crate::chart::ChartConnector;
use crate::failure::Failure;
use crate::output::OutputWriter;
use crate::screen::Screen;
use crate::session::millstream_session;
use crate::telemetry::Telemetry;
use crate::{human, rows, script, signals, summary, terminal};

/// How often a running query is asked whether it has ended, and Ctrl-C looked for.
const TICK: Duration = Duration::from_millis(20);
/// Files that read each other.
const DEPTH_MAX: usize = 16;
/// The first words of a query.
const QUERY_WORDS: [&str; 7] = ["SELECT", "WITH", "VALUES", "TABLE", "INSERT", "BEGIN", "EXECUTE"];

/// The next step after a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    GoOn,
    Leave,
}

/// The state of a shell.
pub(super) struct Shell<'a> {
    session: Session,
    names: Arc<Mutex<Vocabulary>>,
    output: OutputWriter,
    screen: Screen,
    telemetry: &'a Telemetry,
    /// Set by a Ctrl-C, until somebody looks.
    interrupted: Arc<AtomicBool>,
    /// Set by a Ctrl-C too, until the next unit: a reader of standard output is not waited for.
    stopped: Arc<AtomicBool>,
    interactive: bool,
    /// Where rows go unless a file was named.
    shown: RowTarget,
    mode: RowFormat,
    /// Where the rows of the next `SELECT` go.
    file: Option<RowTarget>,
    timer: bool,
    /// The last SQL, for `.explain`.
    last: String,
    /// Files that are being read.
    depth: usize,
}

/// A statement, or a set of them, in a text.
struct ScriptPart<'a> {
    /// The name of the text in errors.
    name: &'a str,
    text: &'a str,
    part: Range<usize>,
    /// Whether statements of the text were carried out before.
    goes_on: bool,
}

impl<'a> Shell<'a> {
    /// A shell as the arguments say.
    pub(super) fn new(
        args: &SqlArgs,
        screen: Screen,
        telemetry: &'a Telemetry,
        interactive: bool,
    ) -> Result<Self, Failure> {
        let output = OutputWriter::stdout(&screen);
        let fail = |error: Error| Failure::of(&error, "", "");
        let builder = millstream_session(&args.layout).output("stdout", output.clone());
        let builder = builder.output_for_programs(rows::for_programs(&args.rows));
        let (interrupted, stopped) = (signals::interrupt_flag()?, signals::interrupt_flag()?);
        let builder = builder.interrupted_by(Arc::clone(&interrupted));
        let mut session = builder.build().map_err(fail)?;
        let target = rows::target(&args.rows, &output)?;
        session.rows_to(target.clone()).map_err(fail)?;
        let mode = match target {
            RowTarget::Output(format) => format,
            _ => rows::unsaid(&args.rows),
        };
        let (shown, file) = match target {
            RowTarget::File { .. } => (RowTarget::Output(mode), Some(target)),
            shown => (shown, None),
        };
        let names = Arc::new(Mutex::new(session.vocabulary()));
        output.heed(&stopped);
        Ok(Self {
            session,
            names,
            output,
            screen,
            telemetry,
            interrupted,
            stopped,
            interactive,
            shown,
            mode,
            file,
            timer: false,
            last: String::new(),
            depth: 0,
        })
    }

    /// The names that may be typed; they change with the statements.
    pub(super) fn names(&self) -> Arc<Mutex<Vocabulary>> {
        Arc::clone(&self.names)
    }

    /// Writes to standard output, where it is read.
    pub(super) fn say(&mut self, text: &str) {
        self.output.clip(false);
        if let Err(error) = self.output.write_all(text.as_bytes()) {
            tracing::debug!(%error, "standard output");
        }
    }

    /// Runs the statements and dot commands of a text up to the first failure. `name` stands for it
    /// in messages.
    pub(super) fn run(&mut self, name: &str, text: &str) -> Result<Next, Failure> {
        let mut goes_on = false;
        for unit in units(text).list {
            self.stopped.store(false, Ordering::Release);
            self.interrupted.store(false, Ordering::Relaxed);
            let next = match unit {
                Unit::Dot { text } => self.command(dot::parse(text)?)?,
                Unit::Sql { text: sql, at } => {
                    let part = at..at + sql.len();
                    let part = ScriptPart { name, text, part, goes_on };
                    goes_on = true;
                    self.timed(&part)?
                }
            };
            if self.interactive {
                *self.names.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) =
                    self.session.vocabulary();
            }
            if next == Next::Leave {
                return Ok(next);
            }
        }
        Ok(Next::GoOn)
    }

    fn timed(&mut self, part: &ScriptPart<'_>) -> Result<Next, Failure> {
        let start = Instant::now();
        let result = self.statement(part);
        if self.timer {
            self.screen.line(&format!("took {}", human::duration(start.elapsed())));
        }
        result
    }

    fn statement(&mut self, of: &ScriptPart<'_>) -> Result<Next, Failure> {
        let fail = |error: Error| Failure::of(&error, of.name, of.text);
        self.last = of.text[of.part.clone()].to_owned();
        let target = self.file.as_ref().unwrap_or(&self.shown).clone();
        self.output.clip(matches!(target, RowTarget::Output(RowFormat::Table)));
        self.session.rows_to(target.clone()).map_err(fail)?;
        let planned = match self.session.sql_part(of.text, of.part.clone(), of.goes_on) {
            Err(Error::Interrupted) => return self.was_interrupted(),
            planned => planned.map_err(fail)?,
        };
        if planned.jobs().is_empty() {
            return Ok(Next::GoOn);
        }
        let gives_rows = gives_rows(&planned);
        if gives_rows && self.interactive && !bounded(&planned) {
            self.explain_wait(&target);
        }
        let result = self.run_planned(&planned);
        self.screen.clear();
        let report = match result {
            Ok(report) => report,
            Err(_) if self.output.reader_is_gone() => return Ok(Next::Leave),
            Err(Error::Interrupted) => return self.was_interrupted(),
            Err(error) => return Err(fail(error)),
        };
        self.report_end(&report, gives_rows);
        if report.cancelled && !self.interactive {
            return Err(Failure::interrupted());
        }
        Ok(Next::GoOn)
    }

    /// After Ctrl-C an interactive shell goes on, and a script ends.
    fn was_interrupted(&mut self) -> Result<Next, Failure> {
        if !self.interactive {
            return Err(Failure::interrupted());
        }
        self.screen.line("interrupted");
        Ok(Next::GoOn)
    }

    /// A query without an end may show nothing for a long time.
    fn explain_wait(&self, target: &RowTarget) {
        let ends = match target {
            RowTarget::Output(RowFormat::Csv | RowFormat::Json) => {
                "this query has no end: Ctrl-C ends it"
            }
            _ => {
                "this query has no end: its rows are shown when Ctrl-C ends it; .mode csv shows \
                 them as they come"
            }
        };
        self.screen.line(ends);
    }

    /// The summary of a query that has ended well.
    fn report_end(&mut self, report: &Report, gave_rows: bool) {
        if gave_rows && let Some(RowTarget::File { path, .. }) = self.file.take() {
            let rows = human::counted(report.total.rows_out, "row");
            self.screen.line(&format!("{rows} written to {path}"));
        }
        if self.output.was_clipped() {
            self.screen.line("cut at the edge of the terminal; .mode csv shows whole rows");
        }
        let total = &report.total;
        let lost = total.late > 0 || report.bad > 0 || report.cancelled;
        if lost || (self.interactive && !gave_rows) {
            self.screen.line(&summary::summary(report));
        }
    }

    /// Runs it on threads of this process. The first Ctrl-C drops a query that would end by itself,
    /// and ends one that would not; the second one drops any.
    fn run_planned(&self, planned: &Script) -> Result<Report, Error> {
        let (cancel, abort) = (AtomicBool::new(false), AtomicBool::new(false));
        let options = RunOptions {
            control: None,
            cancel: Some(&cancel),
            abort: Some(&abort),
            observer: Some(self.telemetry),
            state: None,
            restarts: 0,
        };
        let ends = bounded(planned);
        thread::scope(|scope| {
            let (running, ended) = mpsc::channel::<()>();
            let job = scope.spawn(move || {
                let result = planned.run(&options);
                drop(running);
                result
            });
            while ended.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
                if self.interrupted.swap(false, Ordering::Relaxed) {
                    let first = !cancel.swap(true, Ordering::Relaxed);
                    abort.fetch_or(ends || !first, Ordering::Relaxed);
                }
            }
            job.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    fn command(&mut self, command: Dot<'_>) -> Result<Next, Failure> {
        let fail = |error: Error| Failure::of(&error, "", "");
        match command {
            Dot::Quit => return Ok(Next::Leave),
            Dot::Help => self.say(&dot::help(terminal::size().0)),
            Dot::Timer(on) => self.timer = on,
            Dot::Chart(true) => {
                let chart = ChartConnector::new(self.output.clone());
                self.shown = RowTarget::Connector(Arc::new(chart));
            }
            Dot::Chart(false) => self.shown = RowTarget::Output(self.mode),
            Dot::Mode(mode) => {
                self.mode = match mode {
                    "csv" => RowFormat::Csv,
                    "json" => RowFormat::Json,
                    _ => RowFormat::Table,
                };
                self.shown = RowTarget::Output(self.mode);
            }
            Dot::Output(None) => self.file = None,
            Dot::Output(Some(path)) => {
                let target = RowTarget::File { path: path.to_owned(), format: None };
                self.session.rows_to(target.clone()).map_err(fail)?;
                self.file = Some(target);
            }
            Dot::Read(path) => return self.read(Path::new(path)),
            Dot::Tables => self.tables(),
            Dot::Schema(name) => self.schema(name)?,
            Dot::Set(Some((key, Some(value)))) => self.session.set(key, value).map_err(fail)?,
            Dot::Set(assigned) => self.settings(assigned.map(|(key, _)| key))?,
            Dot::Explain(sql) => self.explain(sql)?,
        }
        Ok(Next::GoOn)
    }

    fn read(&mut self, path: &Path) -> Result<Next, Failure> {
        if self.depth == DEPTH_MAX {
            let message =
                format!("{} is read by {DEPTH_MAX} files within each other", path.display());
            return Err(Failure::usage(&message, Some("do they read themselves?")));
        }
        let script = script::read(path)?;
        self.depth += 1;
        let result = self.run(&script.name, &script.sql);
        self.depth -= 1;
        result
    }

    fn tables(&mut self) {
        let relations = self.session.vocabulary().relations;
        let width = relations.iter().map(|r| r.name.chars().count()).max().unwrap_or(0);
        let line = |relation: &millstream::NamedRelation| {
            format!("{:width$}  {}\n", relation.name, relation.connector.unwrap_or("view"))
        };
        let text: String = relations.iter().map(line).collect();
        self.say(&text);
    }

    fn schema(&mut self, name: Option<&str>) -> Result<(), Failure> {
        let all = self.session.vocabulary().relations;
        let matching = all.iter().filter(|relation| name.is_none_or(|name| name == relation.name));
        let mut names: Vec<String> = matching.map(|relation| relation.name.clone()).collect();
        // A name that is unknown gets its message from the planner.
        names.extend(name.filter(|_| names.is_empty()).map(str::to_owned));
        for name in names {
            // This makes a connector tell columns that are not known yet.
            let describe = format!("DESCRIBE \"{}\"", name.replace('"', "\"\""));
            let described = self.session.sql(&describe);
            if let Err(Error::Interrupted) = described {
                return self.was_interrupted().map(drop);
            }
            described.map_err(|error| Failure::of(&error, "<typed>", &describe))?;
            let relations = self.session.vocabulary().relations;
            let Some(relation) = relations.iter().find(|relation| relation.name == name) else {
                continue;
            };
            let width = relation.columns.iter().map(|(c, _)| c.chars().count()).max().unwrap_or(0);
            let mut text = format!("{name} ({})\n", relation.connector.unwrap_or("view"));
            for (column, of) in &relation.columns {
                text += &format!("  {column:width$}  {of}\n");
            }
            self.say(&text);
        }
        Ok(())
    }

    fn settings(&mut self, name: Option<&str>) -> Result<(), Failure> {
        let all = self.session.vocabulary().settings;
        let matching: Vec<_> =
            all.iter().filter(|(spec, _)| name.is_none_or(|name| name == spec.name)).collect();
        if let (Some(name), true) = (name, matching.is_empty()) {
            let message = format!("unknown setting '{name}'");
            return Err(Failure::usage(&message, Some(".set lists the settings")));
        }
        let width = matching.iter().map(|(spec, _)| spec.name.len()).max().unwrap_or(0);
        let mut text = String::new();
        for (spec, assigned) in matching {
            let value = assigned.as_deref().unwrap_or(spec.default);
            let shown_default = if assigned.is_some() {
                format!("  (default {})", spec.default)
            } else {
                "".into()
            };
            text += &format!("{:width$}  {value}{shown_default}\n", spec.name);
        }
        self.say(&text);
        Ok(())
    }

    fn explain(&mut self, sql: Option<&str>) -> Result<(), Failure> {
        let sql = sql.map_or_else(|| self.last.clone(), str::to_owned);
        let first: String =
            sql.trim_start_matches(['(', ' ', '\n', '\t']).chars().take(10).collect();
        let first = first.split_whitespace().next().unwrap_or_default().to_uppercase();
        if !QUERY_WORDS.contains(&first.as_str()) {
            let message = if sql.is_empty() {
                "there is nothing to explain yet".to_owned()
            } else {
                format!("only queries are explained, and this begins with {first}")
            };
            return Err(Failure::usage(&message, Some(".explain SELECT …")));
        }
        let explained = self.session.explain(&sql);
        if let Err(Error::Interrupted) = explained {
            return self.was_interrupted().map(drop);
        }
        let text = explained.map_err(|error| Failure::of(&error, "<typed>", &sql))?;
        self.say(&text);
        Ok(())
    }
}

/// Whether all of it ends by itself.
fn bounded(planned: &Script) -> bool {
    planned.jobs().iter().all(Job::bounded)
}

/// Whether something of it is shown rather than written to tables.
fn gives_rows(planned: &Script) -> bool {
    let mut statements = planned.jobs().iter().flat_map(|job| job.statements());
    statements.any(|statement| !statement.name.starts_with("INSERT INTO "))
}
