//! The tables that a restarted server finds in its directory.
//!
//! Extents are copied into memory of the server, compared with their checksums, and sealed, by all
//! processors: what clients map is sealed memory, which no file can be. A table of which one byte
//! is not as it was written is damaged, and so is one whose record does not agree with the others;
//! the others are there.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{Error, ErrorKind, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use fabric::{Fabric, Slab};
use pool::PoolError;
use pool::home::{HeldPart, Home, SavedVersion};
use pool::manifest::{ExtentHolder, MANIFEST_BYTES_MAX};
use pool::record;
use pool::record::part::PART_BYTES_MAX;

use super::directory::{Directory, Entry};
use super::extents::Extents;
use super::store::Files;
use crate::pool::fabrics::OpenFabric;

/// Bytes of a file of a table at most: a manifest, and a checksum for each extent of it.
const TABLE_FILE_BYTES_MAX: u64 = MANIFEST_BYTES_MAX + (16 << 20);

/// Bytes of an extent that are read at a time.
const READ_BYTES: usize = 256 << 10;

/// Threads that read.
const READERS_MAX: usize = 8;

/// The bytes of a page: those of an extent are rounded up to it.
const PAGE_BYTES: u64 = 4096;

/// The tables of a directory.
pub(super) struct Found {
    pub(super) files: Files,
    pub(super) versions: Vec<SavedVersion>,
    /// What is held for other servers, as far as it is there.
    pub(super) parts: Vec<HeldPart>,
    /// By extent of these: its memory, its used bytes and their checksum.
    extents: HashMap<u32, FoundExtent>,
    /// By table.
    damaged: BTreeMap<String, Damage>,
    /// No file has this number of an extent or a higher one, or names it.
    next_extent: u32,
}

/// The damage of a table.
#[derive(Default)]
struct Damage {
    /// The error of each damaged file.
    reasons: Vec<String>,
    /// The other servers that have parts of it, as far as that can be read.
    holders: Vec<ExtentHolder>,
}

/// An extent that was read.
struct FoundExtent {
    slab: Slab,
    used: u32,
    crc: u32,
}

/// Bytes of the memory of an extent of which these are used.
fn memory_of(used: u32) -> u64 {
    u64::from(used).max(1).next_multiple_of(PAGE_BYTES)
}

/// An extent that is to be read: of a table by its position, or held for another server.
struct SavedExtent {
    table: Option<usize>,
    number: u32,
    used: u32,
    crc: u32,
}

/// Reads a directory.
///
/// # Errors
/// When it or a file of it cannot be read, or its tables do not fit `bytes_max`. A file that is not
/// there, or has other bytes than were written, is damage of its table alone.
pub(super) fn read(
    directory: &Directory,
    maker: &dyn Fabric,
    bytes_max: u64,
) -> std::io::Result<Found> {
    let mut found = Found {
        files: Files::default(),
        versions: Vec::new(),
        parts: Vec::new(),
        extents: HashMap::new(),
        damaged: BTreeMap::new(),
        next_extent: 0,
    };
    let mut entries = directory.entries()?;
    entries.sort_unstable_by(|(_, a), (_, b)| a.cmp(b));
    let (mut saved, mut parts) = (BTreeMap::new(), Vec::new());
    for (entry, name) in entries {
        match &entry {
            Entry::Table(number) => found.table(directory, *number, &mut saved)?,
            Entry::Extent(number) => {
                found.next_extent = found.next_extent.max(number.saturating_add(1));
            }
            Entry::Part(owner) => found.part(directory, *owner, &mut parts)?,
            Entry::Unfinished => directory.remove(&name)?,
        }
    }
    let (damaged, saved) =
        saved.into_values().partition(|(of, _)| found.damaged.contains_key(&of.manifest.table));
    found.leave_unread(damaged);
    let saved: Vec<(SavedVersion, Vec<u32>)> = saved;
    let held = parts.iter().flat_map(|(part, _): &(HeldPart, Vec<u32>)| &part.extents);
    let held: u64 = held.map(|(_, used)| memory_of(*used)).sum();
    let needed = held + saved.iter().map(|(version, _)| bytes_of(version)).sum::<u64>();
    if needed > bytes_max {
        let message = format!("its tables need {needed} bytes, and --bytes says {bytes_max}");
        return Err(Error::other(message));
    }
    found.read_extents(directory, maker, saved, parts)?;
    found.files.sweep(directory, &|_| false)?;
    Ok(found)
}

fn bytes_of(version: &SavedVersion) -> u64 {
    let extents = version.manifest.own_extents().map(|(_, used)| memory_of(used));
    extents.sum::<u64>() + 2 * version.bytes.len() as u64
}

impl Found {
    /// Reads the file of a table. Of two files of one table the newer counts, and the other goes:
    /// it would come back when the table has been dropped.
    ///
    /// # Errors
    /// When the system refuses.
    fn table(
        &mut self,
        directory: &Directory,
        number: u64,
        saved: &mut BTreeMap<String, (SavedVersion, Vec<u32>)>,
    ) -> std::io::Result<()> {
        self.files.next = self.files.next.max(number.saturating_add(1));
        let name = Entry::Table(number).name();
        let bytes = match directory.bytes(Entry::Table(number), TABLE_FILE_BYTES_MAX) {
            Err(error) => Err((None, damage(&name, error)?)),
            Ok(bytes) => Ok(bytes),
        };
        let version = bytes.and_then(|bytes| {
            let table = record::table(&bytes);
            record::decode(&bytes).map_err(|error| (table, error.to_string()))
        });
        match version {
            Ok(read) => {
                // They are named, whether their files are there or not.
                let own = read.0.manifest.own_extents();
                let numbers = own.map(|(extent, _)| extent.number.saturating_add(1));
                self.next_extent = numbers.fold(self.next_extent, u32::max);
                let table = read.0.manifest.table.clone();
                let of = |before: &(SavedVersion, Vec<u32>)| before.0.manifest.version;
                let is_older = saved.get(&table).is_some_and(|before| of(before) >= of(&read));
                let older = if is_older {
                    Some(number)
                } else {
                    saved.insert(table.clone(), read);
                    self.files.tables.insert(table.clone(), number)
                };
                if let Some(older) = older {
                    let name = Entry::Table(older).name();
                    tracing::warn!("{name} has an older version of table '{table}' and is removed");
                    directory.remove(&name)?;
                }
            }
            Err((table, reason)) => {
                let table = table.unwrap_or_else(|| format!("file {name}"));
                // A whole file of it stays where it is known.
                self.files.damaged.entry(table.clone()).or_default().insert(number);
                self.damaged.entry(table).or_default().reasons.push(format!("{name}: {reason}"));
            }
        }
        Ok(())
    }

    /// Versions of tables of which another file cannot be read: nobody knows which one was the
    /// newest. Their files go with the tables, and no file of an extent goes before.
    fn leave_unread(&mut self, versions: Vec<(SavedVersion, Vec<u32>)>) {
        for (version, _) in versions {
            let manifest = &version.manifest;
            let file = self.files.tables.get(&manifest.table);
            let name = file.map_or_else(String::new, |number| Entry::Table(*number).name());
            let reason = format!("{name} has version {} of it", manifest.version);
            self.damage(manifest.table.clone(), reason, manifest.holders.clone());
        }
    }

    /// Reads the file of what is held for another server.
    ///
    /// # Errors
    /// When the system refuses.
    fn part(
        &mut self,
        directory: &Directory,
        owner: u64,
        parts: &mut Vec<(HeldPart, Vec<u32>)>,
    ) -> std::io::Result<()> {
        let name = Entry::Part(owner).name();
        let read = match directory.bytes(Entry::Part(owner), PART_BYTES_MAX) {
            Err(error) => Err(damage(&name, error)?),
            Ok(bytes) => record::part::decode(&bytes).map_err(|error| error.to_string()),
        };
        match read {
            Ok((part, sums)) if part.owner == owner => {
                let numbers = part.extents.iter().map(|(number, _)| number.saturating_add(1));
                self.next_extent = numbers.fold(self.next_extent, u32::max);
                parts.push((part, sums));
            }
            Ok(_) => self.lose_part(&format!("{name}: it is of another server")),
            Err(reason) => self.lose_part(&format!("{name}: {reason}")),
        }
        Ok(())
    }

    fn lose_part(&mut self, reason: &str) {
        tracing::error!("what is held for another memory server is damaged: {reason}");
        self.files.lost_parts = true;
    }

    fn damage(&mut self, table: String, reason: String, holders: Vec<ExtentHolder>) {
        self.files.damage(&table, None);
        let damage = self.damaged.entry(table).or_default();
        damage.reasons.push(reason);
        damage.holders.extend(holders);
    }

    /// Publishes extents, which have been read.
    fn publish(
        &mut self,
        numbers: impl Iterator<Item = u32>,
        extents: &mut Extents,
    ) -> std::io::Result<()> {
        for number in numbers {
            let Some(of) = self.extents.remove(&number) else { continue };
            extents.publish(number, of.slab, of.used, of.crc).map_err(Error::other)?;
        }
        Ok(())
    }

    /// Reads the extents of all tables, and of what is held for other servers.
    ///
    /// # Errors
    /// When the system refuses.
    fn read_extents(
        &mut self,
        directory: &Directory,
        maker: &dyn Fabric,
        saved: Vec<(SavedVersion, Vec<u32>)>,
        parts: Vec<(HeldPart, Vec<u32>)>,
    ) -> std::io::Result<()> {
        let mut wanted = Vec::new();
        let mut owners: HashMap<u32, Option<usize>> = HashMap::new();
        let mut damaged: BTreeMap<usize, String> = BTreeMap::new();
        for (table, (version, sums)) in saved.iter().enumerate() {
            for ((extent, used), crc) in version.manifest.own_extents().zip(sums) {
                let (number, crc) = (extent.number, *crc);
                if extent.server != 0 || owners.insert(number, Some(table)).is_some() {
                    let name = Entry::Extent(number).name();
                    damaged.insert(table, format!("{name}: it is another table's, too"));
                    continue;
                }
                wanted.push(SavedExtent { table: Some(table), number, used, crc });
            }
        }
        for (part, sums) in &parts {
            for ((number, used), crc) in part.extents.iter().zip(sums) {
                let (number, used, crc) = (*number, *used, *crc);
                if owners.contains_key(&number) {
                    let name = Entry::Extent(number).name();
                    self.lose_part(&format!("{name}: it is another table's, too"));
                    continue;
                }
                owners.insert(number, None);
                wanted.push(SavedExtent { table: None, number, used, crc });
            }
        }
        for (of, read) in read_all(directory, maker, &wanted) {
            match read {
                Ok(slab) => {
                    let extent = FoundExtent { slab, used: of.used, crc: of.crc };
                    self.extents.insert(of.number, extent);
                }
                Err(error) => {
                    let name = Entry::Extent(of.number).name();
                    let reason = format!("{name}: {}", damage(&name, error)?);
                    match of.table {
                        Some(table) => drop(damaged.entry(table).or_insert(reason)),
                        None => self.lose_part(&reason),
                    }
                }
            }
        }
        let table_of = |number: &u32| owners.get(number).copied().flatten();
        let is_damaged = |number: &u32| table_of(number).is_some_and(|t| damaged.contains_key(&t));
        self.extents.retain(|number, _| !is_damaged(number));
        let of_parts: HashSet<u32> = self.extents.keys().copied().collect();
        let is_there = |number: &u32| of_parts.contains(number) && owners[number].is_none();
        for (mut part, _) in parts {
            part.extents.retain(|(number, _)| is_there(number));
            self.parts.push(part);
        }
        for (number, extent) in &self.extents {
            self.files.extents.insert(*number, extent.crc);
        }
        for (table, (version, _)) in saved.into_iter().enumerate() {
            match damaged.remove(&table) {
                Some(reason) => {
                    let holders = version.manifest.holders.clone();
                    self.damage(version.manifest.table.clone(), reason, holders);
                }
                None => self.versions.push(version),
            }
        }
        Ok(())
    }
}

/// Has again what was found in a directory: the tables, the extents that are read, and the files.
/// A record that does not agree with the rest is damaged, and is not read.
///
/// # Errors
/// When there is no memory for it, or a fabric has no room to publish it.
pub(super) fn restore(
    mut home: Home,
    fabrics: Arc<[OpenFabric]>,
    mut found: Found,
) -> std::io::Result<(Home, Extents, Files)> {
    let mut extents = Extents::new(fabrics);
    for version in std::mem::take(&mut found.versions) {
        let (table, manifest) = (version.manifest.table.clone(), Arc::clone(&version.manifest));
        match home.restore(version, memory_of) {
            Ok(()) => {
                let own = manifest.own_extents().map(|(extent, _)| extent.number);
                found.publish(own, &mut extents)?;
            }
            Err(error @ PoolError::Full { .. }) => return Err(Error::other(error)),
            Err(_) => {
                let reason = "its record does not agree with that of another table".to_owned();
                found.damage(table, reason, manifest.holders.clone());
            }
        }
    }
    for part in std::mem::take(&mut found.parts) {
        let name = Entry::Part(part.owner).name();
        let numbers: Vec<u32> = part.extents.iter().map(|(number, _)| *number).collect();
        match home.restore_part(part, memory_of) {
            Ok(()) => found.publish(numbers.into_iter(), &mut extents)?,
            Err(error @ PoolError::Full { .. }) => return Err(Error::other(error)),
            Err(error) => found.lose_part(&format!("{name}: {error}")),
        }
    }
    // Extents that are left belong to records that do not agree.
    found.files.extents.retain(|number, _| !found.extents.contains_key(number));
    for (table, Damage { reasons, holders }) in found.damaged {
        let reason = reasons.join("; ");
        tracing::error!("table '{table}' is damaged: {reason}");
        home.set_damaged(&table, reason, &holders);
    }
    home.skip_extents(found.next_extent);
    Ok((home, extents, found.files))
}

/// Reads extents by several threads.
fn read_all<'a>(
    directory: &Directory,
    maker: &dyn Fabric,
    wanted: &'a [SavedExtent],
) -> Vec<(&'a SavedExtent, std::io::Result<Slab>)> {
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::with_capacity(wanted.len())));
    let work = || {
        while let Some(of) = wanted.get(next.fetch_add(1, Ordering::Relaxed)) {
            let read = read_extent(directory, maker, of);
            done.lock().unwrap_or_else(PoisonError::into_inner).push((of, read));
        }
    };
    let readers = std::thread::available_parallelism().map_or(1, usize::from).min(READERS_MAX);
    std::thread::scope(|scope| {
        (0..readers.min(wanted.len())).for_each(|_| drop(scope.spawn(work)));
    });
    done.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn read_extent(
    directory: &Directory,
    maker: &dyn Fabric,
    of: &SavedExtent,
) -> std::io::Result<Slab> {
    let damaged = |what: String| Error::new(ErrorKind::InvalidData, what);
    let (mut file, length) = directory.read(Entry::Extent(of.number))?;
    if length != u64::from(of.used) {
        return Err(damaged(format!("it has {length} bytes, and {} were written", of.used)));
    }
    let slab = maker.slab(memory_of(of.used) as usize).map_err(Error::other)?;
    let range = slab.range(0..of.used as usize).map_err(Error::other)?;
    let (mut sum, mut piece) = (0, vec![0; READ_BYTES.min(range.len())]);
    for from in (0..range.len()).step_by(READ_BYTES) {
        let piece = &mut piece[..READ_BYTES.min(range.len() - from)];
        file.read_exact(piece)?;
        sum = crc32c::crc32c_append(sum, piece);
        range.place(from, piece);
    }
    if sum != of.crc {
        return Err(damaged("its bytes are not those that were written".into()));
    }
    drop(range);
    maker.seal(slab).map_err(Error::other)
}

/// The reason why the bytes of a file are lost.
///
/// # Errors
/// When they may be right, and the system does not give them: too many files are open, or there is
/// no memory, or the file is not this user's alone. The server does not start then, so that nobody
/// drops a table that is whole.
fn damage(name: &str, error: Error) -> std::io::Result<String> {
    /// The system's number of an error of the disk.
    const EIO: i32 = rustix::io::Errno::IO.raw_os_error();
    let lost = [ErrorKind::NotFound, ErrorKind::InvalidData, ErrorKind::UnexpectedEof];
    if lost.contains(&error.kind()) || error.raw_os_error() == Some(EIO) {
        return Ok(error.to_string());
    }
    Err(Error::new(error.kind(), format!("{name}: {error}")))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{IpAddr, Ipv4Addr};

    use pool::manifest::{Definition, Layout, Manifest};
    use pool::pointer::ExtentId;
    use pool::wire::StatementId;

    use super::*;
    use crate::FabricKind;
    use crate::pool::fabrics;

    /// A saved version of two extents: one of this server, and one of another, which it names so.
    fn version(table: &str, own: u32, there: (u16, u64, u32)) -> SavedVersion {
        let (number, identity, other) = there;
        let extent = |server, number| (ExtentId { server, number }, 1);
        let columns = vec![Layout::Fixed(1)];
        let manifest = Manifest {
            table: table.into(),
            version: 1,
            definition: Definition { schema: vec![], columns, buckets: vec![], strip_rows: 1 },
            strips: vec![],
            partitions: vec![0, 0],
            extents: vec![extent(0, own), extent(number, other)],
            holders: vec![ExtentHolder { number, name: "m".into(), identity }],
            origin: None,
        };
        let bytes = Arc::new(manifest.encode());
        let snapshot = StatementId { job: 1, statement: 1 };
        SavedVersion { load: 1, snapshot, manifest: Arc::new(manifest), bytes, goes_on: false }
    }

    #[test]
    fn a_record_that_does_not_agree_with_another_is_damage_of_its_table_alone() {
        let path = std::env::temp_dir().join(format!("millstream-restored-{}", std::process::id()));
        for second in [
            // The server has another number in the first table.
            (2, 9, 1),
            // The number is another server's.
            (1, 8, 1),
            // The extent is the first table's.
            (1, 9, 7),
        ] {
            let _ = std::fs::remove_dir_all(&path);
            let directory = Directory::open(&path).unwrap();
            let versions = [version("a", 3, (1, 9, 7)), version("b", 4, second)];
            for (table, version) in (0..).zip(&versions) {
                let record = record::encode(version, &[crc32c::crc32c(b"1")]);
                directory.replace(Entry::Table(table), &record).unwrap();
            }
            // The last is held for this directory itself.
            for number in [3, 4, 5] {
                let name = Entry::Extent(number).name();
                directory.write(&name, |file| file.write_all(b"1")).unwrap();
            }
            let own = directory.identity().0;
            let part =
                HeldPart { owner: own, name: "m".into(), extents: vec![(5, 1)], client: None };
            let part = record::part::encode(&part, &[crc32c::crc32c(b"1")]);
            directory.replace(Entry::Part(own), &part).unwrap();

            let fabrics = fabrics::of_server(FabricKind::Tcp, IpAddr::V4(Ipv4Addr::LOCALHOST));
            let fabrics: Arc<[OpenFabric]> = fabrics.unwrap();
            let found = read(&directory, &*fabrics[0].fabric, 1 << 20).unwrap();
            let home = Home::new(0, 1 << 20).with_saving().with_identity(own, 1);
            let (home, extents, files) = restore(home, fabrics, found).unwrap();
            let tables = home.tables().into_iter().map(|table| (table.name, table.damaged));
            assert_eq!(tables.collect::<Vec<_>>(), [("a".into(), false), ("b".into(), true)]);
            assert!(files.damaged.contains_key("b") && files.lost_parts);
            let keys = [3, 4, 5].map(|number| extents.key(number, FabricKind::Tcp).is_some());
            assert_eq!(keys, [true, false, false], "what is not counted is not there");
            assert_eq!(home.stat().extents, 1);
            assert_eq!(files.extents.into_keys().collect::<Vec<_>>(), [3]);
            assert!([3, 4, 5].iter().all(|of| path.join(Entry::Extent(*of).name()).exists()));
        }
        let _ = std::fs::remove_dir_all(&path);
    }
}
