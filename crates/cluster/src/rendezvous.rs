//! Where nodes that a launcher started leave word for each other: a shared directory, or the
//! launcher itself.
//!
//! In a directory each node has a file, `.millstream-JOB-RANK`, that holds one [`Card`]. It appears
//! whole, under a name that nobody else may take, and is gone once the node has met the others.
//! A card of a killed job is told from one of a running job by asking at its address; and a card
//! is believed only as far as the node there knows the token of the card.

use std::fs::{File, FileType, Metadata, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;

use crate::error::ClusterError;
use crate::launcher::Assignment;
use crate::mesh::{JobToken, JoinDeadline};
use crate::pmi;

/// Bytes of a card at most.
const CARD_BYTES_MAX: u64 = 1000;
/// How long the owner of a file may take to answer, or it is thought to be gone.
const ANSWER: Duration = Duration::from_secs(1);
/// How often a file that a dead job left is taken away before somebody else is to blame.
const TAKES_MAX: u32 = 8;

/// The address of a node, for the others.
#[derive(Debug, Clone)]
pub(crate) struct Card {
    pub(crate) rank: u32,
    pub(crate) nodes: u32,
    /// Where it listens.
    pub(crate) at: SocketAddr,
    pub(crate) process: u32,
    pub(crate) host: String,
    /// The secret that a connecting node has to know.
    pub(crate) token: JobToken,
}

impl Card {
    /// `1,rank,nodes,address,process,host,token`; no blanks, as PMI wants it.
    pub(crate) fn encode(&self) -> String {
        let Self { rank, nodes, at, process, host, token } = self;
        format!("1,{rank},{nodes},{at},{process},{host},{}", token.hex())
    }

    pub(crate) fn decode(text: &str) -> Option<Self> {
        let fields: Vec<&str> = text.trim().split(',').collect();
        let ["1", rank, nodes, at, process, host, token] = fields[..] else { return None };
        Some(Self {
            rank: rank.parse().ok()?,
            nodes: nodes.parse().ok()?,
            at: at.parse().ok()?,
            process: process.parse().ok()?,
            host: host.to_owned(),
            token: JobToken::parse(token)?,
        })
    }

    /// Whether the node that wrote this may still be there.
    pub(crate) fn lives(&self) -> bool {
        let here = self.host == host() && Path::new("/proc/self").exists();
        if here && !Path::new(&format!("/proc/{}", self.process)).exists() {
            return false;
        }
        TcpStream::connect_timeout(&self.at, ANSWER).is_ok()
    }
}

/// The name of this host.
pub(crate) fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '-' || c == '.' { c } else { '_' };
    let name: String = name.trim().chars().take(255).map(plain).collect();
    if name.is_empty() { "localhost".into() } else { name }
}

/// The medium over which nodes exchange their cards.
pub(crate) enum CardExchange {
    /// A directory that all nodes see.
    Directory(Directory),
    /// The launcher has distributed all cards.
    Launcher(Vec<Card>),
}

impl CardExchange {
    /// Leaves this node's card.
    ///
    /// # Errors
    /// When the directory cannot be written or another job is there, or when the launcher does not
    /// hand out all cards in time.
    pub(crate) fn publish(
        assignment: &Assignment,
        directory: Option<&Path>,
        card: &Card,
        deadline: JoinDeadline,
    ) -> Result<Self, ClusterError> {
        if let (Some(fd), None) = (assignment.pmi, directory) {
            match pmi::exchange(fd, card, deadline) {
                Ok(cards) => return Ok(Self::Launcher(cards)),
                Err(pmi::PmiError::Late) => {
                    let seconds = deadline.limit.as_secs_f32();
                    return Err(ClusterError::Barrier { nodes: card.nodes, seconds });
                }
                // All nodes have the same launcher, and come to the same conclusion.
                Err(pmi::PmiError::Deaf(detail)) => {
                    tracing::debug!(%detail, "the launcher does not speak PMI-1");
                }
            }
        }
        let path = directory.unwrap_or(&assignment.directory).to_owned();
        let mut directory = Directory { path, job: assignment.job.clone(), own: None };
        directory.publish(card)?;
        Ok(Self::Directory(directory))
    }

    /// The card of a node, if it has left one.
    ///
    /// # Errors
    /// When the directory cannot be read, or holds what another user wrote.
    pub(crate) fn read(&self, rank: u32) -> Result<Option<Card>, ClusterError> {
        match self {
            Self::Directory(directory) => directory.read(rank),
            Self::Launcher(cards) => Ok(cards.get(rank as usize).cloned()),
        }
    }

    /// Where a node that has not come was looked for.
    pub(crate) fn place(&self) -> String {
        match self {
            Self::Directory(Directory { path, job, .. }) => {
                format!("it has written no file for job '{job}' in {}", path.display())
            }
            Self::Launcher(_) => "the launcher does not know its address".into(),
        }
    }
}

/// A directory with cards. Dropping it takes this node's card away.
pub(crate) struct Directory {
    path: PathBuf,
    job: String,
    own: Option<PathBuf>,
}

impl Directory {
    fn file(&self, rank: u32) -> PathBuf {
        self.path.join(format!(".millstream-{}-{rank}", self.job))
    }

    fn publish(&mut self, card: &Card) -> Result<(), ClusterError> {
        let file = self.file(card.rank);
        let mut temporary = file.clone().into_os_string();
        temporary.push(format!(".{}.{}.part", card.host, card.process));
        let temporary = PathBuf::from(temporary);
        let written = write_new(&temporary, &card.encode());
        let taken = written.and_then(|()| self.take(&temporary, &file));
        let _ = std::fs::remove_file(&temporary);
        match taken {
            Ok(None) => {
                self.own = Some(file);
                Ok(())
            }
            Ok(Some(other)) => Err(ClusterError::Taken {
                file,
                job: self.job.clone(),
                rank: card.rank,
                process: other.process,
                host: other.host,
            }),
            Err(source) => Err(self.unusable(source)),
        }
    }

    /// Gives a card its name, unless a node that lives has it: its card.
    fn take(&self, temporary: &Path, file: &Path) -> std::io::Result<Option<Card>> {
        for _ in 0..TAKES_MAX {
            // A link fails where the name is there, on network file systems too; a rename would
            // take it from another.
            match std::fs::hard_link(temporary, file) {
                Ok(()) => return Ok(None),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(_) if !file.exists() => return std::fs::rename(temporary, file).map(|()| None),
                Err(error) => return Err(error),
            }
            match read_card(file)? {
                Some(card) if card.lives() => return Ok(Some(card)),
                _ => {
                    tracing::debug!(file = %file.display(), "left behind by an earlier job");
                    match std::fs::remove_file(file) {
                        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                        _ => {}
                    }
                }
            }
        }
        Err(std::io::Error::other("somebody else keeps writing the same file"))
    }

    fn read(&self, rank: u32) -> Result<Option<Card>, ClusterError> {
        // A network file system may remember for half a minute that a file was not there, unless
        // the directory is opened.
        let look = std::fs::read_dir(&self.path).map(|mut entries| drop(entries.next()));
        look.and_then(|()| read_card(&self.file(rank))).map_err(|source| self.unusable(source))
    }

    fn unusable(&self, source: std::io::Error) -> ClusterError {
        ClusterError::Rendezvous { directory: self.path.clone(), source }
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if let Some(own) = self.own.take()
            && let Err(error) = std::fs::remove_file(&own)
        {
            tracing::debug!(%error, file = %own.display(), "cannot remove");
        }
    }
}

fn write_new(path: &Path, text: &str) -> std::io::Result<()> {
    // Of an earlier process with the same number.
    let _ = std::fs::remove_file(path);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())?;
    file.write_all(b"\n")?;
    file.sync_all()
}

/// The card in a file; `None` where there is no file, or no card in it. A file of that name
/// may be of any owner and kind: opening it neither waits nor follows a link.
fn read_card(path: &Path) -> std::io::Result<Option<Card>> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let opened = OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path);
    let strange = |kind: FileType| {
        let message = format!("it is {}, not a file that a node has left", kind_of(kind));
        named(path, &std::io::Error::new(ErrorKind::InvalidData, message))
    };
    let file = match opened {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => {
            let found = std::fs::symlink_metadata(path).map(|metadata| metadata.file_type());
            return Err(match found {
                Ok(kind) if !kind.is_file() => strange(kind),
                _ => named(path, &error),
            });
        }
    };
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(strange(metadata.file_type()));
    }
    if !is_ours(&metadata) {
        let error = std::io::Error::new(ErrorKind::PermissionDenied, "it is another user's");
        return Err(named(path, &error));
    }
    if metadata.len() > CARD_BYTES_MAX {
        let message = format!("it has {} bytes, and no node writes so many", metadata.len());
        return Err(named(path, &std::io::Error::new(ErrorKind::InvalidData, message)));
    }
    Ok(read_text(file).and_then(|text| Card::decode(&text)))
}

/// The kind of a file that is not regular, in words.
fn kind_of(kind: FileType) -> &'static str {
    if kind.is_symlink() {
        "a symbolic link"
    } else if kind.is_dir() {
        "a directory"
    } else if kind.is_fifo() {
        "a named pipe"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    }
}

fn read_text(file: File) -> Option<String> {
    let mut text = String::new();
    file.take(CARD_BYTES_MAX).read_to_string(&mut text).ok().map(|_| text)
}

fn named(path: &Path, error: &std::io::Error) -> std::io::Error {
    std::io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// Whether this user alone can have written a file.
fn is_ours(metadata: &Metadata) -> bool {
    metadata.uid() == rustix::process::geteuid().as_raw() && metadata.mode() & 0o022 == 0
}

/// Time that is left until the deadline.
pub(crate) fn left(deadline: JoinDeadline) -> Option<Duration> {
    Some(deadline.until.saturating_duration_since(Instant::now())).filter(|left| !left.is_zero())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    struct Temporary(PathBuf);

    impl Temporary {
        fn new(name: &str) -> Self {
            let name = format!("millstream-board-{name}-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            std::fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn directory(&self) -> Directory {
            Directory { path: self.0.clone(), job: "job".into(), own: None }
        }

        fn names(&self) -> Vec<String> {
            let entries = std::fs::read_dir(&self.0).unwrap();
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
        }
    }

    impl Drop for Temporary {
        fn drop(&mut self) {
            std::fs::remove_dir_all(&self.0).unwrap();
        }
    }

    fn card(at: SocketAddr) -> Card {
        let (process, token) = (std::process::id(), JobToken::random().unwrap());
        Card { rank: 1, nodes: 3, at, process, host: host(), token }
    }

    fn listener() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        (listener, at)
    }

    #[test]
    fn a_card_survives_and_damage_does_not_panic() {
        let text = card("[::1]:77".parse().unwrap()).encode();
        assert!(text.len() < CARD_BYTES_MAX as usize && !text.contains(' '), "{text}");
        assert_eq!(Card::decode(&text).unwrap().encode(), text);
        for end in 0..text.len() {
            assert!(Card::decode(&text[..end]).is_none(), "{}", &text[..end]);
        }
        assert!(Card::decode(&text.replacen('1', "2", 1)).is_none());
    }

    #[test]
    fn a_card_is_found_as_long_as_its_directory_is_held() {
        let (_listener, at) = listener();
        let temporary = Temporary::new("found");
        let mut directory = temporary.directory();
        assert!(directory.read(1).unwrap().is_none());
        let left = card(at);
        directory.publish(&left).unwrap();
        assert_eq!(temporary.names(), [".millstream-job-1"]);
        let found = temporary.directory().read(1).unwrap().unwrap();
        assert_eq!(found.encode(), left.encode());
        drop(directory);
        assert!(temporary.names().is_empty());
    }

    #[test]
    fn a_file_of_a_dead_job_is_replaced_and_that_of_a_living_one_is_not() {
        let (living, at) = listener();
        let temporary = Temporary::new("replaced");
        let mut first = temporary.directory();
        first.publish(&card(at)).unwrap();
        let own = card("127.0.0.1:1".parse().unwrap());
        match temporary.directory().publish(&own) {
            Err(error @ ClusterError::Taken { rank: 1, .. }) => {
                assert!(error.to_string().contains("job 'job'"), "{error}");
            }
            other => panic!("{other:?}"),
        }
        drop(living);
        let mut second = temporary.directory();
        second.publish(&own).unwrap();
        assert_eq!(first.read(1).unwrap().unwrap().encode(), own.encode());
        // Neither is what nobody could have written whole.
        std::fs::write(temporary.0.join(".millstream-job-2"), "half a ca").unwrap();
        assert!(second.read(2).unwrap().is_none());
        let mut third = temporary.directory();
        third.publish(&Card { rank: 2, ..own }).unwrap();
        std::mem::forget(first);
    }

    #[test]
    fn a_directory_that_is_not_there_is_named() {
        let (_listener, at) = listener();
        let mut missing = Directory { path: "/no/such".into(), job: "job".into(), own: None };
        let error = missing.publish(&card(at)).unwrap_err();
        assert!(error.to_string().contains("/no/such"), "{error}");
        assert!(error.hint().unwrap().contains("--rendezvous"));
    }

    #[test]
    fn what_others_may_write_is_not_believed() {
        use std::os::unix::fs::PermissionsExt;
        let (_listener, at) = listener();
        let temporary = Temporary::new("others");
        let mut directory = temporary.directory();
        directory.publish(&card(at)).unwrap();
        let file = temporary.0.join(".millstream-job-1");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o666)).unwrap();
        let error = directory.read(1).unwrap_err().to_string();
        assert!(error.contains(".millstream-job-1"), "{error}");
        std::os::unix::fs::symlink(&file, temporary.0.join(".millstream-job-2")).unwrap();
        assert!(directory.read(2).is_err());
    }

    #[test]
    fn what_is_no_file_of_a_node_is_named_and_nobody_waits_for_it() {
        use rustix::fs::{CWD, FileType, Mode, mknodat};
        let temporary = Temporary::new("strange");
        let path = |rank: u32| temporary.0.join(format!(".millstream-job-{rank}"));
        mknodat(CWD, path(0), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        std::fs::create_dir(path(1)).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(path(2)).unwrap();
        std::os::unix::fs::symlink("/dev/zero", path(3)).unwrap();
        File::create(path(4)).unwrap().set_len(1 << 40).unwrap();
        let kinds = ["a named pipe", "a directory", "a socket", "a symbolic link", "1099511627776"];
        for (rank, kind) in (0..).zip(kinds) {
            let own = Card { rank, ..card("127.0.0.1:1".parse().unwrap()) };
            let read = temporary.directory().read(rank).unwrap_err().to_string();
            let published = temporary.directory().publish(&own).unwrap_err().to_string();
            for error in [read, published] {
                assert!(error.contains(kind) && error.contains(".millstream-job-"), "{error}");
            }
            assert!(std::fs::symlink_metadata(path(rank)).is_ok(), "it is still there");
        }
    }
}
