//! The thread that keeps the tables of a server in a directory.
//!
//! ```text
//!   sealed extent ─▶ its file ─┐
//!   sealed extent ─▶ its file ─┴─▶ commit: 3.table.tmp ─ rename ─▶ 3.table ─▶ the version appears
//! ```
//!
//! Tasks are done in order. Invariants: a table's file names extents whose files are on the disk;
//! an extent's file goes after the last table's file that names it.

use std::collections::{BTreeMap, HashMap};
use std::io::Write;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use fabric::{EventFd, Slab};
use pool::home::SavedVersion;
use pool::record;

use super::ClientId;
use super::directory::{Directory, Entry};
use super::mover::Event;

/// Bytes of an extent that are copied to be written at a time.
const WRITTEN_BYTES: usize = 1 << 20;

/// A task.
pub(super) enum StoreTask {
    /// The first bytes of a sealed extent, with their checksum.
    Extent { number: u32, slab: Slab, used: u32, crc: u32 },
    /// A version, in place of the one before.
    Version(Box<SavedVersion>),
    /// The table of this name goes.
    Drop { client: ClientId, table: String },
    /// The extent is not used any more.
    Free(u32),
}

/// The content of the directory.
#[derive(Debug, Default)]
pub(super) struct Files {
    /// By table: the number of its file.
    pub(super) tables: BTreeMap<String, u64>,
    /// By extent: its checksum.
    pub(super) extents: HashMap<u32, u32>,
    /// The number of the next table's file.
    pub(super) next: u64,
}

/// The handle of the thread, which ends when this is dropped and all was done.
pub(super) struct Store {
    tasks: Option<Sender<StoreTask>>,
    thread: Option<JoinHandle<()>>,
}

impl Store {
    /// Starts it; `signal` is signalled after each event.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub(super) fn start(
        directory: Directory,
        files: Files,
        events: Sender<Event>,
        signal: Arc<EventFd>,
    ) -> std::io::Result<Self> {
        let (tasks, received) = channel();
        let work = Work { directory, files, broken: None, failed: HashMap::new() };
        let thread = std::thread::Builder::new().name("store".into());
        let thread = thread.spawn(move || work.run(&received, &events, &signal))?;
        Ok(Self { tasks: Some(tasks), thread: Some(thread) })
    }

    pub(super) fn ask(&self, task: StoreTask) {
        if let Some(tasks) = &self.tasks {
            // It ends with this handle alone.
            let _ = tasks.send(task);
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.tasks = None;
        if let Some(thread) = self.thread.take()
            && let Err(panic) = thread.join()
        {
            tracing::error!("the store of a memory server has panicked: {panic:?}");
        }
    }
}

struct Work {
    directory: Directory,
    files: Files,
    /// Why it is not known what the disk has: nothing is removed or promised any more.
    broken: Option<String>,
    /// Extents that could not be written, and why.
    failed: HashMap<u32, String>,
}

impl Work {
    fn run(mut self, tasks: &Receiver<StoreTask>, events: &Sender<Event>, signal: &EventFd) {
        while let Ok(task) = tasks.recv() {
            let event = match task {
                StoreTask::Extent { number, slab, used, crc } => {
                    self.extent(number, &slab, used, crc);
                    // The memory may be wanted.
                    drop(slab);
                    Event::LetGo(number)
                }
                StoreTask::Version(version) => Event::Saved(version.load, self.version(&version)),
                StoreTask::Drop { client, table } => {
                    Event::Dropped(client, self.drop_table(&table))
                }
                StoreTask::Free(number) => {
                    self.free(number);
                    continue;
                }
            };
            if events.send(event).is_err() {
                // The tasks that came before the end are done.
                continue;
            }
            signal.signal();
        }
    }

    fn extent(&mut self, number: u32, slab: &Slab, used: u32, crc: u32) {
        let name = Entry::Extent(number).name();
        let written = self.directory.write(&name, |file| {
            let range = slab.range(0..used as usize).map_err(std::io::Error::other)?;
            let mut piece = vec![0; WRITTEN_BYTES.min(range.len())];
            for from in (0..range.len()).step_by(WRITTEN_BYTES) {
                let length = WRITTEN_BYTES.min(range.len() - from);
                let part = range.part(from, length).map_err(std::io::Error::other)?;
                part.snapshot(&mut piece[..length]);
                file.write_all(&piece[..length])?;
            }
            Ok(())
        });
        match written {
            Ok(()) => drop(self.files.extents.insert(number, crc)),
            Err(error) => drop(self.failed.insert(number, error.to_string())),
        }
    }

    fn version(&mut self, version: &SavedVersion) -> Result<(), String> {
        if let Some(broken) = &self.broken {
            return Err(broken.clone());
        }
        let mut sums = Vec::with_capacity(version.manifest.extents.len());
        for (extent, _) in &version.manifest.extents {
            match self.files.extents.get(&extent.number) {
                Some(sum) => sums.push(*sum),
                None => {
                    let reason = self.failed.get(&extent.number).cloned();
                    return Err(reason.unwrap_or_else(|| "an extent is not there".into()));
                }
            }
        }
        let table = &version.manifest.table;
        let file = self.files.tables.get(table).copied().unwrap_or(self.files.next);
        let bytes = record::encode(version, &sums);
        let replaced = self.directory.replace(Entry::Table(file), &bytes);
        replaced.map_err(|error| error.to_string())?;
        self.files.tables.insert(table.clone(), file);
        self.files.next = self.files.next.max(file + 1);
        self.sync()
    }

    fn drop_table(&mut self, table: &str) -> Result<(), String> {
        let Some(file) = self.files.tables.remove(table) else { return Ok(()) };
        let removed = self.directory.remove(&Entry::Table(file).name());
        removed.map_err(|error| error.to_string())?;
        self.sync()
    }

    /// Has the names on the disk. Where that fails it is not known which version a restart finds,
    /// so that the files of both are left.
    fn sync(&mut self) -> Result<(), String> {
        self.directory.sync().map_err(|error| {
            let broken = format!("{error}; a restart of the memory server tells what it has");
            tracing::error!("the directory of a memory server: {broken}");
            self.broken.get_or_insert(broken).clone()
        })
    }

    fn free(&mut self, number: u32) {
        self.failed.remove(&number);
        if self.files.extents.remove(&number).is_some()
            && self.broken.is_none()
            && let Err(error) = self.directory.remove(&Entry::Extent(number).name())
        {
            tracing::warn!("a file of a memory server cannot be removed: {error}");
        }
    }
}
