//! Stores in directories, and in memory, keep the same promises.
#![allow(missing_docs)]

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use bytes::Bytes;
use checkpoint::{
    Created, DirectoryStore, MemoryStore, ObjectName, Store, WriteEffect, conformance,
};

/// A directory that goes with its test.
struct Dir(PathBuf);

impl Dir {
    fn new(test: &str) -> Self {
        let path = std::env::temp_dir()
            .join(format!("millstream-checkpoint-{test}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn name(name: &str) -> ObjectName {
    ObjectName::new(name).unwrap()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

const BYTES: Bytes = Bytes::from_static(b"bytes");

#[test]
fn directories_and_memory_keep_the_promises_of_a_store() {
    let dir = Dir::new("conformance");
    for store in [
        Arc::new(DirectoryStore::new(dir.0.join("not/there/yet"))) as Arc<dyn Store>,
        Arc::new(MemoryStore::default()),
    ] {
        conformance::check(&store).unwrap();
    }
}

#[test]
fn files_and_folders_are_for_the_user_alone_and_nothing_is_left_beside_them() {
    let dir = Dir::new("modes");
    let store = DirectoryStore::new(dir.0.join("state"));
    store.create(&name("job/chain/1"), &BYTES).unwrap();
    store.create(&name("job/chain/1"), &BYTES).unwrap();
    store.put(&name("job/seg/2"), &[BYTES]).unwrap();
    let names = ["state", "state/job", "state/job/chain", "state/job/seg"];
    assert!(names.iter().all(|folder| mode(&dir.0.join(folder)) == 0o700));
    for (folder, file) in [("chain", "1"), ("seg", "2")] {
        let folder = dir.0.join("state/job").join(folder);
        let files: Vec<_> = fs::read_dir(&folder).unwrap().map(|file| file.unwrap()).collect();
        assert!(files.len() == 1 && files[0].file_name() == file, "{files:?}");
        assert_eq!(mode(&files[0].path()), 0o600);
    }
    store.delete(&name("job/seg/2")).unwrap();
    store.remove_folder(&name("job")).unwrap();
    assert!(!dir.0.join("state/job/seg").exists() && dir.0.join("state/job/chain/1").exists());
}

#[test]
fn what_is_no_object_is_passed_over_or_refused() {
    let dir = Dir::new("strangers");
    let store = DirectoryStore::new(&dir.0);
    store.create(&name("job/a"), &BYTES).unwrap();
    fs::write(dir.0.join("secret"), b"secret").unwrap();
    symlink(dir.0.join("secret"), dir.0.join("job/link")).unwrap();
    symlink("/", dir.0.join("job/root")).unwrap();
    fs::create_dir(dir.0.join("job/folder")).unwrap();
    fs::write(dir.0.join("job/.hidden"), b"x").unwrap();
    fs::write(dir.0.join("job/a b"), b"x").unwrap();
    let pipe = dir.0.join("job/pipe");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &pipe,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .unwrap();
    let listed = store.list(Some(&name("job"))).unwrap();
    assert!(listed.len() == 1 && listed[0].name == name("job/a"), "{listed:?}");
    for other in ["job/link", "job/folder", "job/pipe"] {
        let error = store.get(&name(other), None).unwrap_err();
        assert_eq!(error.effect, WriteEffect::None);
        assert!(error.to_string().contains(other), "{error}");
        assert_eq!(store.create(&name(other), &BYTES).unwrap(), Created::Exists);
    }
    assert_eq!(fs::read(dir.0.join("secret")).unwrap(), b"secret");
    // A file where a folder is expected: nothing is below it.
    assert_eq!(store.get(&name("job/a/b"), None).unwrap(), None);
    assert_eq!(store.list(Some(&name("job/a"))).unwrap(), []);
    let error = store.create(&name("job/a/b"), &BYTES).unwrap_err();
    assert_eq!(error.effect, WriteEffect::None, "{error}");
}

#[test]
fn a_folder_that_must_not_be_written_is_an_error_that_names_it() {
    let dir = Dir::new("readonly");
    fs::set_permissions(&dir.0, fs::Permissions::from_mode(0o500)).unwrap();
    let store = DirectoryStore::new(&dir.0);
    let created = store.create(&name("job/a"), &BYTES);
    fs::set_permissions(&dir.0, fs::Permissions::from_mode(0o700)).unwrap();
    // Root may write everywhere.
    if let Err(error) = created {
        assert_eq!(error.effect, WriteEffect::None);
        assert!(error.to_string().contains(&dir.0.display().to_string()), "{error}");
    }
}

#[test]
fn leftovers_of_dead_processes_are_removed_and_those_of_living_ones_stay() {
    let dir = Dir::new("leftovers");
    let store = DirectoryStore::new(&dir.0);
    store.create(&name("job/chain/1"), &BYTES).unwrap();
    let machine = machine();
    let mut living = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap();
    let stat = fs::read_to_string(format!("/proc/{}/stat", living.id())).unwrap();
    let started = stat.rsplit_once(')').unwrap().1.split_whitespace().nth(19).unwrap().to_owned();
    let folder = dir.0.join("job/chain");
    let file = |owner: String| folder.join(format!(".tmp-{owner}-0"));
    let dead = file(format!("{machine}-{}-{}", living.id(), started.parse::<u64>().unwrap() + 1));
    let alive = file(format!("{machine}-{}-{started}", living.id()));
    let elsewhere = file("another-1-1".into());
    for path in [&dead, &alive, &elsewhere] {
        fs::write(path, b"x").unwrap();
    }
    assert_eq!(store.clean(&name("job")).unwrap(), 1);
    assert!(!dead.exists() && alive.exists() && elsewhere.exists());
    living.kill().unwrap();
    living.wait().unwrap();
    assert_eq!(store.clean(&name("job")).unwrap(), 1);
    assert!(!alive.exists() && elsewhere.exists() && folder.join("1").exists());
}

/// The machine in the names of temporary files: its boot and the PID namespace.
fn machine() -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let boot: String = boot.chars().filter(char::is_ascii_hexdigit).collect();
    let namespace = fs::read_link("/proc/self/ns/pid").unwrap();
    let digits: String = namespace.to_string_lossy().chars().filter(char::is_ascii_digit).collect();
    format!("{boot}.{digits}")
}
