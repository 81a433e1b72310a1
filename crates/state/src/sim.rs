//! A disk in memory, for tests and simulated runs: it may be full, fail, and damage what it keeps.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{Disk, DiskFile};

/// Faults of a [`SimDisk`]. None by default.
#[derive(Debug, Clone, Default)]
pub struct SimDiskOptions {
    /// How many bytes all files may have together.
    pub bytes_max: Option<u64>,
    /// The number of a read that fails, from 0.
    pub fails_at: Option<u64>,
    /// The number of a read of which one bit is not what was written, from 0.
    pub damages_at: Option<u64>,
}

/// A disk that is a map.
#[derive(Debug, Default)]
pub struct SimDisk {
    options: SimDiskOptions,
    content: Arc<Mutex<Content>>,
}

#[derive(Debug, Default)]
struct Content {
    files: BTreeMap<u64, Vec<u8>>,
    created: u64,
    bytes: u64,
    reads: u64,
}

impl SimDisk {
    /// An empty disk.
    pub fn new(options: SimDiskOptions) -> Arc<Self> {
        Arc::new(Self { options, content: Arc::default() })
    }

    /// Files that are there now.
    pub fn files(&self) -> usize {
        locked(&self.content).files.len()
    }

    /// Reads so far.
    pub fn reads(&self) -> u64 {
        locked(&self.content).reads
    }
}

fn locked(content: &Mutex<Content>) -> MutexGuard<'_, Content> {
    content.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Disk for SimDisk {
    fn create(&self) -> io::Result<Box<dyn DiskFile>> {
        let mut content = locked(&self.content);
        let number = content.created;
        content.created += 1;
        content.files.insert(number, Vec::new());
        let (options, content) = (self.options.clone(), Arc::clone(&self.content));
        Ok(Box::new(SimFile { number, options, content }))
    }
}

struct SimFile {
    number: u64,
    options: SimDiskOptions,
    content: Arc<Mutex<Content>>,
}

impl DiskFile for SimFile {
    fn name(&self) -> String {
        format!("simulated file {}", self.number)
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut content = locked(&self.content);
        content.bytes += bytes.len() as u64;
        if self.options.bytes_max.is_some_and(|max| content.bytes > max) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        content.files.entry(self.number).or_default().extend_from_slice(bytes);
        Ok(())
    }

    fn finish(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn read(&self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        let mut content = locked(&self.content);
        let number = content.reads;
        content.reads += 1;
        if self.options.fails_at == Some(number) {
            return Err(io::Error::other("the device does not answer"));
        }
        let file = content.files.get(&self.number).and_then(|file| file.get(at as usize..));
        let there = file.and_then(|rest| rest.get(..bytes.len()));
        bytes.copy_from_slice(there.ok_or(io::ErrorKind::UnexpectedEof)?);
        if self.options.damages_at == Some(number) {
            bytes[number as usize * 7919 % bytes.len()] ^= 1 << (number % 8);
        }
        Ok(())
    }
}

impl Drop for SimFile {
    fn drop(&mut self) {
        let mut content = locked(&self.content);
        let file = content.files.remove(&self.number);
        content.bytes -= file.map_or(0, |file| file.len() as u64);
    }
}
