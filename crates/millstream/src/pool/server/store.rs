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

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io::Write;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use fabric::{EventFd, Slab};
use pool::home::{Effect, HeldPart, SavedVersion};
use pool::record;
use pool::record::part::PART_BYTES_MAX;

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
    /// By table that is not damaged: the number of its file.
    pub(super) tables: BTreeMap<String, u64>,
    /// By extent: its checksum.
    pub(super) extents: HashMap<u32, u32>,
    /// The number of the next table's file.
    pub(super) next: u64,
    /// By table that is damaged: the numbers of all files that name it.
    pub(super) damaged: BTreeMap<String, BTreeSet<u64>>,
    /// Whether a part, or an extent of one, could not be read: the server that has the table tells
    /// what that means when it claims the extent.
    pub(super) lost_parts: bool,
}

impl Files {
    /// A table is damaged, by this file of it or by another one.
    pub(super) fn damage(&mut self, table: &str, file: Option<u64>) {
        let files = self.damaged.entry(table.to_owned()).or_default();
        files.extend(file.into_iter().chain(self.tables.remove(table)));
    }

    /// The files that name a table.
    fn of(&self, table: &str) -> Vec<u64> {
        let damaged = self.damaged.get(table).into_iter().flatten();
        self.tables.get(table).into_iter().chain(damaged).copied().collect()
    }

    /// Removes files of extents that no table or part has, and no file names. Where a table or a
    /// part could not be read it is not known which those are, and all are left.
    ///
    /// # Errors
    /// When the system refuses.
    pub(super) fn sweep(
        &self,
        directory: &Directory,
        is_named: &dyn Fn(u32) -> bool,
    ) -> std::io::Result<()> {
        if !self.damaged.is_empty() || self.lost_parts {
            return Ok(());
        }
        for (entry, name) in directory.entries()? {
            let is_used = |number| self.extents.contains_key(&number) || is_named(number);
            if matches!(entry, Entry::Extent(number) if !is_used(number)) {
                directory.remove(&name)?;
            }
        }
        Ok(())
    }
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
        let work = Work {
            directory,
            files,
            broken: None,
            failed: HashMap::new(),
            unsaved: BTreeMap::new(),
        };
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
    /// By the owner of a part that could not be saved: the extents that its file names, and that
    /// are not held any more. Their files stay as long.
    unsaved: BTreeMap<u64, BTreeSet<u32>>,
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

    /// Saves what is held for another server. Where that fails, and extents are not held any more,
    /// their files stay until it succeeds: the file that is there names them.
    fn part(&mut self, part: &HeldPart) -> Result<(), String> {
        if let Some(broken) = &self.broken {
            return Err(broken.clone());
        }
        let saved = self.write_part(part);
        match &saved {
            Ok(()) => {
                for number in self.unsaved.remove(&part.owner).unwrap_or_default() {
                    // One that is not free yet has a task of its own.
                    if !self.files.extents.contains_key(&number) {
                        self.remove_extent(number);
                    }
                }
            }
            Err(reason) => {
                let name = Entry::Part(part.owner).name();
                tracing::warn!("{name} of a memory server cannot be saved: {reason}");
                self.keep_named(part);
            }
        }
        saved
    }

    fn write_part(&mut self, part: &HeldPart) -> Result<(), String> {
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

    /// The file of a part names extents that are not held any more.
    fn keep_named(&mut self, part: &HeldPart) {
        let damaged = |what: String| std::io::Error::new(std::io::ErrorKind::InvalidData, what);
        let named = self.directory.bytes(Entry::Part(part.owner), PART_BYTES_MAX);
        let named = named.and_then(|bytes| {
            record::part::decode(&bytes).map_err(|error| damaged(error.to_string()))
        });
        match named {
            Ok((named, _)) => {
                let held: HashSet<u32> = part.extents.iter().map(|(number, _)| *number).collect();
                let named = named.extents.into_iter().map(|(number, _)| number);
                let gone = named.filter(|number| !held.contains(number)).collect();
                self.unsaved.insert(part.owner, gone);
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => drop(self.breaks(&error)),
        }
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
        let files = self.files.of(table);
        if files.is_empty() {
            return Ok(());
        }
        // A restart has the table again while a file of it is there, and wants its parts.
        for file in files {
            let removed = self.directory.remove(&Entry::Table(file).name());
            removed.map_err(|error| self.breaks(&error))?;
        }
        self.files.tables.remove(table);
        self.sync()?;
        let was_damaged = self.files.damaged.remove(table).is_some();
        let is_named = |number: u32| self.is_named(number);
        if was_damaged
            && self.broken.is_none()
            && let Err(error) = self.files.sweep(&self.directory, &is_named)
        {
            tracing::warn!("files of a table that was damaged cannot be removed: {error}");
        }
        Ok(())
    }

    /// Has the names on the disk. Where that fails it is not known which version a restart finds,
    /// so that the files of both are left.
    fn sync(&mut self) -> Result<(), String> {
        self.directory.sync().map_err(|error| self.breaks(&error))
    }

    /// It is not known any more what the disk has; gives the reason.
    fn breaks(&mut self, error: &std::io::Error) -> String {
        let broken = format!("{error}; a restart of the memory server tells what it has");
        tracing::error!("the directory of a memory server: {broken}");
        self.broken.get_or_insert(broken).clone()
    }

    fn free(&mut self, number: u32) {
        self.failed.remove(&number);
        if self.files.extents.remove(&number).is_some() && !self.is_named(number) {
            self.remove_extent(number);
        }
    }

    /// Whether the file of a part names an extent that is not held any more.
    fn is_named(&self, number: u32) -> bool {
        self.unsaved.values().any(|extents| extents.contains(&number))
    }

    fn remove_extent(&self, number: u32) {
        if self.broken.is_none()
            && let Err(error) = self.directory.remove(&Entry::Extent(number).name())
        {
            tracing::warn!("a file of a memory server cannot be removed: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    const OWNER: u64 = 7;

    /// A store over a directory of its own, which is removed at the end.
    struct Bed {
        path: PathBuf,
        work: Work,
    }

    impl Bed {
        /// With the files of these extents.
        fn new(name: &str, extents: &[u32]) -> Self {
            let name = format!("millstream-store-{}-{name}", std::process::id());
            let path = std::env::temp_dir().join(name);
            let _ = std::fs::remove_dir_all(&path);
            let directory = Directory::open(&path).unwrap();
            let mut files = Files::default();
            for number in extents {
                let name = Entry::Extent(*number).name();
                directory.write(&name, |file| file.write_all(b"1")).unwrap();
                files.extents.insert(*number, 0);
            }
            let (failed, unsaved) = (HashMap::new(), BTreeMap::new());
            Self { path, work: Work { directory, files, broken: None, failed, unsaved } }
        }

        fn is_there(&self, entry: Entry) -> bool {
            self.path.join(entry.name()).exists()
        }

        /// Which of the extents 1 to 4 have files.
        fn extents(&self) -> Vec<u32> {
            (1..=4).filter(|number| self.is_there(Entry::Extent(*number))).collect()
        }

        /// A directory of this name: no file takes its place.
        fn block(&self, name: &str) -> PathBuf {
            let path = self.path.join(name);
            std::fs::create_dir(&path).unwrap();
            path
        }
    }

    impl Drop for Bed {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }

    fn part(extents: &[u32], client: Option<ClientId>) -> HeldPart {
        let extents = extents.iter().map(|number| (*number, 1)).collect();
        HeldPart { owner: OWNER, name: "m0".into(), extents, client }
    }

    #[test]
    fn a_table_whose_file_cannot_be_removed_has_its_parts_elsewhere_as_well() {
        let mut bed = Bed::new("drop", &[1]);
        bed.block("0.table");
        bed.work.files.tables.insert("t".into(), 0);
        assert!(bed.work.drop_table("t").is_err());
        assert!(bed.work.then(Effect::Release(1, vec![3])).is_none());
        let (addresses, extents) = (vec![], vec![]);
        let claim = pool::home::Introduction {
            peer: 1,
            link: 2,
            addresses,
            of: OWNER,
            identity: 1,
            extents,
            all: true,
        };
        let claimed = bed.work.then(Effect::Introduce(Box::new(claim)));
        assert!(matches!(claimed, Some(Event::PeerLost(1, 2, _))));
        bed.work.free(1);
        assert_eq!(bed.extents(), [1], "the file of the table may name it");
    }

    #[test]
    fn extents_that_the_file_of_a_part_names_stay_until_it_is_saved() {
        for left in [&[3][..], &[]] {
            let mut bed = Bed::new("part", &[1, 2, 3, 4]);
            bed.work.part(&part(&[1, 2, 3], Some(1))).unwrap();
            let name = Entry::Part(OWNER).name();
            // Neither is it replaced, nor removed.
            let saved = std::fs::read(bed.path.join(&name)).unwrap();
            let blocked = if left.is_empty() {
                std::fs::remove_file(bed.path.join(&name)).unwrap();
                bed.block(&name)
            } else {
                bed.block(&format!("{name}.tmp"))
            };
            assert!(bed.work.part(&part(left, None)).is_err());
            [1, 4].into_iter().for_each(|number| bed.work.free(number));
            if left.is_empty() {
                // Nobody knows what it names.
                assert!(bed.work.broken.is_some());
                assert_eq!(bed.extents(), [1, 2, 3, 4]);
                continue;
            }
            assert_eq!(bed.extents(), [1, 2, 3], "the part names 1, and 4 is nobody's");
            assert_eq!(std::fs::read(bed.path.join(&name)).unwrap(), saved);
            std::fs::remove_dir(blocked).unwrap();
            bed.work.part(&part(left, None)).unwrap();
            assert_eq!(bed.extents(), [2, 3], "2 is not free yet");
            bed.work.free(2);
            assert_eq!(bed.extents(), [3]);
        }
    }

    #[test]
    fn files_of_a_damaged_table_go_when_it_is_dropped_and_no_other_table_may_have_them() {
        for (others, lost_parts, left) in
            [(vec![], false, vec![1]), (vec!["e"], false, vec![1, 2]), (vec![], true, vec![1, 2])]
        {
            let mut bed = Bed::new("damaged", &[1, 2]);
            // The damaged table has the second.
            bed.work.files.extents.remove(&2);
            bed.work.files.tables.insert("d".into(), 0);
            bed.work.files.damage("d", Some(3));
            others.into_iter().for_each(|other| bed.work.files.damage(other, Some(4)));
            bed.work.files.lost_parts = lost_parts;
            for file in [0, 3, 4] {
                bed.work.directory.replace(Entry::Table(file), b"?").unwrap();
            }
            bed.work.drop_table("d").unwrap();
            assert_eq!(
                [0, 3, 4].map(|file| bed.is_there(Entry::Table(file))),
                [false, false, true]
            );
            assert_eq!(bed.extents(), left);
        }
    }
}
