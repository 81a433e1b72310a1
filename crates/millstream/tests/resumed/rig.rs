//! Jobs of this process that are stopped behind a checkpoint and go on.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use millstream::checkpoint::chain::{self, ResumeFrom};
use millstream::checkpoint::{DirectoryStore, ObjectName, Store};
use millstream::pool::PoolOptions;
use millstream::{
    CheckpointOptions, Error, FabricKind, Job, JobProgress, Observer, PlanDecisions, Report,
    RunOptions, Script, Session,
};

/// How long a checkpoint may take, on a machine that is busy with other things.
const TIMEOUT: Duration = Duration::from_secs(180);

/// A directory that is removed at the end.
pub struct Dir(pub PathBuf);

impl Dir {
    pub fn new(name: &str) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("millstream-resumed-{name}-{}-{next}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// Where the checkpoints of its jobs lie.
    pub fn store(&self) -> DirectoryStore {
        DirectoryStore::new(self.0.join("state"))
    }

    pub fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    /// The rows of a file or of all files of a directory, sorted, without headers.
    pub fn rows(&self, name: &str) -> Vec<String> {
        let path = self.0.join(name);
        let files = match fs::read_dir(&path) {
            Ok(entries) => entries.map(|entry| entry.unwrap().path()).collect(),
            Err(_) => vec![path],
        };
        let mut rows = Vec::new();
        for file in files {
            assert!(!file.file_name().unwrap().to_string_lossy().starts_with('.'), "{file:?}");
            let text = fs::read_to_string(&file).unwrap();
            rows.extend(text.lines().skip(1).map(str::to_owned));
        }
        rows.sort();
        rows
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Where and how a job runs.
#[derive(Debug, Clone, Copy)]
pub struct Layout {
    pub nodes: u32,
    pub workers: u32,
    pub fabric: FabricKind,
}

pub const ONE: Layout = Layout { nodes: 1, workers: 2, fabric: FabricKind::Shm };

/// When a job is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// It reads all of its input.
    End,
    /// It is stopped in good order behind a few checkpoints.
    Stop,
    /// It is dropped behind a few checkpoints, as if its processes were killed.
    Drop,
}

/// The lines that a job has for its user.
#[derive(Default)]
struct Lines(Mutex<Vec<String>>);

impl Observer for Lines {
    fn started(&self, _: &Job) {}

    fn progress(&self, _: &JobProgress) {}

    fn recovers(&self, line: &str) {
        self.0.lock().unwrap().push(line.to_owned());
    }
}

pub struct Run<'a> {
    pub dir: &'a Dir,
    pub layout: Layout,
    pub settings: &'a [(&'a str, &'a str)],
    pub evolve: bool,
    /// Where a memory server is.
    pub pool: Option<SocketAddr>,
    /// Whether the newest versions of its tables are pinned, and not those of the checkpoint.
    pub pins_latest: bool,
    pub until: Until,
    /// The store, if it is not the directory alone.
    pub store: Option<&'a Arc<dyn Store>>,
}

impl<'a> Run<'a> {
    pub fn of(dir: &'a Dir) -> Self {
        Self {
            dir,
            layout: ONE,
            settings: &[],
            evolve: false,
            pool: None,
            pins_latest: false,
            until: Until::End,
            store: None,
        }
    }

    pub fn options(&self) -> CheckpointOptions {
        CheckpointOptions {
            store: self.store.cloned().unwrap_or_else(|| Arc::new(self.dir.store())),
            job: "job".into(),
            from: ResumeFrom::Latest,
            evolve: self.evolve,
            take_over: false,
            begun: Vec::new(),
        }
    }

    pub fn session(&self) -> Session {
        let Layout { nodes, workers, fabric } = self.layout;
        let mut builder = Session::builder().nodes(nodes).workers(workers).fabric(fabric);
        for (key, value) in self.settings {
            builder = builder.set(key, value);
        }
        if let Some(address) = self.pool {
            builder = builder.pool(PoolOptions::new(vec![address.to_string()]));
        }
        builder.build().unwrap()
    }

    /// Runs a script, and gives back the lines for the user.
    pub fn sql(&self, sql: &str) -> Result<Vec<String>, Error> {
        self.planned(|session| session.sql(sql))
    }

    /// Runs the script that `plan` makes.
    pub fn planned(
        &self,
        plan: impl FnOnce(&mut Session) -> Result<Script, Error>,
    ) -> Result<Vec<String>, Error> {
        let options = self.options();
        let mut session = self.session();
        let mut decisions = PlanDecisions::of(&options)?;
        if self.pins_latest {
            decisions.versions.clear();
        }
        session.resume(&decisions);
        let script = plan(&mut session)?;
        let (lines, flag) = (Lines::default(), AtomicBool::new(false));
        let (ended, before) = (AtomicBool::new(false), newest(&options));
        let result: Result<Report, Error> = std::thread::scope(|scope| {
            if self.until != Until::End {
                scope.spawn(|| {
                    let since = Instant::now();
                    while newest(&options) < before.max(1) + 1 && !ended.load(Ordering::Acquire) {
                        assert!(since.elapsed() < TIMEOUT, "no checkpoint comes");
                        std::thread::sleep(Duration::from_millis(5));
                    }
                    flag.store(true, Ordering::Release);
                });
            }
            let result = script.run(&RunOptions {
                cancel: (self.until == Until::Stop).then_some(&flag),
                abort: (self.until == Until::Drop).then_some(&flag),
                observer: Some(&lines),
                state: Some(&options),
                ..RunOptions::default()
            });
            ended.store(true, Ordering::Release);
            result
        });
        match (result, self.until) {
            (Err(Error::Interrupted), Until::Drop) | (Ok(_), _) => {}
            (Err(error), _) => return Err(error),
        }
        Ok(lines.0.into_inner().unwrap())
    }
}

/// The number of the last checkpoint of a job; 0 if there is none.
fn newest(options: &CheckpointOptions) -> u64 {
    let name = ObjectName::job(&options.job).unwrap();
    let view = chain::look(&*options.store, &name);
    view.ok().and_then(|view| view.checkpoint).map_or(0, |of| of.number)
}
