//! The thread that keeps the tables of a server in a directory.
//!
//! ```text
//!   sealed extent ─▶ its file ─┐
//!   sealed extent ─▶ its file ─┴─▶ commit: 3.table.tmp ─ rename ─▶ 3.table ─▶ the version appears
//!                              └─▶ hold: 1f….part.tmp ─ rename ─▶ 1f….part ─▶ the part is held
//! ```
//!
//! Tasks are done in order. Invariants: the file of a table or a part names extents whose files are
//! on the disk; an extent's file goes after the last such file that names it; what is said to other
//! servers is said when all that was to be saved before is on the disk.

use std::collections::{BTreeMap, HashMap};
use std::io::Write;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use fabric::{EventFd, Slab};
use pool::home::{Effect, HeldPart, SavedVersion};
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
    /// What is held for another server, in place of what was held before.
    Part(Box<HeldPart>),
    /// The tables of these names go.
    Drop { client: ClientId, tables: Vec<String> },
    /// Something is said to another server then.
    Then(Effect),
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
                StoreTask::Part(part) => {
                    let saved = self.part(&part);
                    match part.client {
                        Some(client) => Event::PartSaved(client, saved),
                        None => continue,
                    }
                }
                StoreTask::Drop { client, tables } => {
                    let dropped = tables.iter().try_for_each(|table| self.drop_table(table));
                    Event::Dropped(client, dropped)
                }
                StoreTask::Then(effect) => match self.then(effect) {
                    Some(event) => event,
                    None => continue,
                },
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
        let own = version.manifest.own_extents();
        let sums = self.sums(own.map(|(extent, _)| extent.number))?;
        let table = &version.manifest.table;
        let file = self.files.tables.get(table).copied().unwrap_or(self.files.next);
        let bytes = record::encode(version, &sums);
        let replaced = self.directory.replace(Entry::Table(file), &bytes);
        replaced.map_err(|error| error.to_string())?;
        self.files.tables.insert(table.clone(), file);
        self.files.next = self.files.next.max(file + 1);
        self.sync()
    }

    /// The checksums of extents whose files are on the disk.
    fn sums(&self, numbers: impl Iterator<Item = u32>) -> Result<Vec<u32>, String> {
        let sum = |number| {
            self.files.extents.get(&number).copied().ok_or_else(|| {
                let reason = self.failed.get(&number).cloned();
                reason.unwrap_or_else(|| "an extent is not there".into())
            })
        };
        numbers.map(sum).collect()
    }

    fn part(&mut self, part: &HeldPart) -> Result<(), String> {
        if let Some(broken) = &self.broken {
            return Err(broken.clone());
        }
        let name = Entry::Part(part.owner);
        if part.extents.is_empty() {
            let removed = self.directory.remove(&name.name());
            removed.map_err(|error| error.to_string())?;
            return self.sync();
        }
        let sums = self.sums(part.extents.iter().map(|(number, _)| *number))?;
        let replaced = self.directory.replace(name, &record::part::encode(part, &sums));
        replaced.map_err(|error| error.to_string())?;
        self.sync()
    }

    /// What is said to another server. Where it is not known what the disk has, nothing that frees
    /// a part is.
    fn then(&self, effect: Effect) -> Option<Event> {
        match (&self.broken, effect) {
            (None, effect) => Some(Event::Then(effect)),
            (Some(broken), Effect::Hold(of)) => {
                Some(Event::Held(of.load, of.peer, Err(broken.clone())))
            }
            (Some(broken), Effect::Introduce(of)) => {
                Some(Event::PeerLost(of.peer, of.link, broken.clone()))
            }
            (Some(_), _) => None,
        }
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
