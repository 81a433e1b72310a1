//! The processes of a launcher (`mpirun`, `srun`) that run the same program: each is a node of the
//! jobs of its sessions.
//!
//! Sessions and runs have numbers, which are the same in all processes, since all make the same
//! calls in the same order. The processes meet for each by a name that is made of its number:
//!
//! ```text
//! Session()       meet "job.s1"      ─▶ all_gather("session"): clock, workers, settings
//! r.fetchall()    meet "job.s1.r1"   ─▶ all_gather("run"): SQL, functions, tables ─▶ the run
//! ```

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use millstream::cluster::{Assignment, ClusterError, Control, JoinOptions};
use millstream::{Error, WORKERS_MAX};

/// How long the processes wait for each other if nothing else is set.
const JOIN_TIMEOUT: Duration = Duration::from_secs(60);

/// Sessions that this process has made.
static SESSIONS: AtomicU32 = AtomicU32::new(0);

/// The place of this process among those of the launcher, for one session.
pub(crate) struct Ranks {
    assignment: Assignment,
    options: JoinOptions,
    runs: AtomicU32,
    /// The clock of rank 0 when the session was made.
    pub(crate) started: SystemTime,
    /// A number that the session of all processes has, and no other.
    pub(crate) number: u128,
    /// The workers of each process: as many as every one can have.
    pub(crate) workers: u32,
}

/// What a process says of its session to the others.
pub(crate) struct SessionCard<'s> {
    /// The workers that were asked for.
    pub(crate) workers: Option<u32>,
    /// Settings, pool and state as a text. They have to be the same everywhere.
    pub(crate) settings: &'s str,
}

impl Ranks {
    /// Meets the other processes of the launcher; `None` where this one is alone.
    ///
    /// # Errors
    /// When they do not come in time, or their sessions differ.
    pub(crate) fn meet(own: &SessionCard<'_>) -> Result<Option<Self>, Error> {
        let Some(mut assignment) = Assignment::from_env()? else { return Ok(None) };
        let session = SESSIONS.fetch_add(1, Ordering::Relaxed) + 1;
        assignment.job = format!("{}.s{session}", assignment.job);
        let options = options(&assignment)?;
        let control = assignment.join(&options)?;
        let cores = || std::thread::available_parallelism().map_or(1, |of| of.get() as u32);
        let neighbours = assignment.local.unwrap_or(assignment.nodes).max(1);
        let can = assignment.cores.unwrap_or_else(|| cores() / neighbours);
        let (can, now) = (own.workers.unwrap_or(can).clamp(1, WORKERS_MAX), SystemTime::now());
        let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let ns = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
        let asked = own.workers.map_or_else(String::new, |of| of.to_string());
        let version = env!("CARGO_PKG_VERSION");
        let settings = own.settings;
        let message = format!("{ns}\n{can}\n{version}\n{asked}\n{settings}");
        let all = control.all_gather("session", message.into_bytes())?;
        let all: Vec<Vec<String>> = all.iter().map(|message| lines(message, 5)).collect();
        let names = ["its version", "its number of workers", "its settings, pool or state"];
        for (at, name) in (2..).zip(names) {
            differs(&control, &all, at, name)?;
        }
        let number = |line: &str| line.parse::<u64>().ok();
        let workers = all.iter().filter_map(|lines| number(&lines[1])).min().unwrap_or(1);
        let ns = number(&all[0][0]).unwrap_or(ns);
        control.close();
        let started = UNIX_EPOCH + Duration::from_nanos(ns);
        let job = assignment.job.bytes();
        let number = job.fold(u128::from(ns), |number, byte| {
            number.rotate_left(8) ^ u128::from(byte) ^ (u128::from(byte) << 64)
        });
        let workers = (workers as u32).clamp(1, WORKERS_MAX);
        let runs = AtomicU32::new(0);
        Ok(Some(Self { assignment, options, runs, started, number, workers }))
    }

    /// This process.
    pub(crate) fn rank(&self) -> u32 {
        self.assignment.rank
    }

    /// All processes.
    pub(crate) fn nodes(&self) -> u32 {
        self.assignment.nodes
    }

    /// Meets the others for a run. `described` are the names and the contents of all that has to be
    /// the same everywhere.
    ///
    /// # Errors
    /// When they do not come in time, or what they run differs.
    pub(crate) fn begin(&self, described: &[(String, String)]) -> Result<Control, Error> {
        let run = self.runs.fetch_add(1, Ordering::Relaxed) + 1;
        let job = format!("{}.r{run}", self.assignment.job);
        let control = Assignment { job, ..self.assignment.clone() }.join(&self.options)?;
        let plain = |text: &str| text.replace(['\n', '\t'], " ");
        let message = described.iter().map(|(name, of)| format!("{}\t{}", plain(name), plain(of)));
        let message = message.collect::<Vec<_>>().join("\n");
        let all = control.all_gather("run", message.into_bytes())?;
        let all: Vec<Vec<String>> = all.iter().map(|message| lines(message, usize::MAX)).collect();
        for (rank, other) in all.iter().enumerate() {
            if let Some(what) = difference(&all[0], other) {
                control.close();
                return Err(unlike(rank, &what));
            }
        }
        Ok(control)
    }
}

/// The name of the first thing in which two runs differ.
fn difference(first: &[String], other: &[String]) -> Option<String> {
    let count = first.len().max(other.len());
    let at = (0..count).find(|at| first.get(*at) != other.get(*at))?;
    let line = first.get(at).or_else(|| other.get(at))?;
    Some(line.split('\t').next().unwrap_or_default().to_owned())
}

fn lines(message: &[u8], count: usize) -> Vec<String> {
    let text = String::from_utf8_lossy(message);
    let mut lines: Vec<String> = text.splitn(count, '\n').map(str::to_owned).collect();
    if count < usize::MAX {
        lines.resize(count, String::new());
    }
    lines
}

fn differs(control: &Control, all: &[Vec<String>], at: usize, name: &str) -> Result<(), Error> {
    match all.iter().position(|lines| lines[at] != all[0][at]) {
        None => Ok(()),
        Some(rank) => {
            // The others find the same, if nobody leaves before they have looked.
            control.close();
            Err(unlike(rank, name))
        }
    }
}

fn unlike(rank: usize, what: &str) -> Error {
    Error::Usage {
        message: format!("node {rank} differs from node 0 in {what}"),
        hint: "all processes of a launcher run the same program, with the same calls".into(),
    }
}

/// Where and how the processes meet: by the variables of the command line.
fn options(assignment: &Assignment) -> Result<JoinOptions, ClusterError> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let path = |name: &str| variable(name).map(PathBuf::from);
    let text = |name: &str| variable(name).map(|value| value.to_string_lossy().into_owned());
    let wrong = |name: &str, value: &str| ClusterError::Environment {
        detail: format!("{name} is '{value}'"),
    };
    let listen = match text("MILLSTREAM_LISTEN") {
        Some(value) => Some(value.parse().map_err(|_| wrong("MILLSTREAM_LISTEN", &value))?),
        None => None,
    };
    let limit = match text("MILLSTREAM_JOIN_TIMEOUT") {
        Some(value) => {
            let seconds = value.parse().map_err(|_| wrong("MILLSTREAM_JOIN_TIMEOUT", &value))?;
            Duration::from_secs(seconds)
        }
        None => JOIN_TIMEOUT,
    };
    // A launcher that hands out addresses does so once, and the processes meet for each run.
    let directory = path("MILLSTREAM_RENDEZVOUS").unwrap_or_else(|| assignment.directory.clone());
    Ok(JoinOptions {
        listen,
        directory: Some(directory),
        limit,
        certs: path("MILLSTREAM_CERTS"),
        insecure: text("MILLSTREAM_INSECURE").is_some_and(|value| value != "0" && value != "false"),
    })
}
