//! The little of PMI-1 that it takes to hand every node the cards of all: lines of text over a
//! descriptor that the launcher left open.
//!
//! ```text
//!   cmd=init pmi_version=1 pmi_subversion=1        cmd=response_to_init … rc=0
//!   cmd=get_my_kvsname                             cmd=my_kvsname kvsname=K
//!   cmd=put kvsname=K key=millstream-1 value=CARD  cmd=put_result rc=0 …
//!   cmd=barrier_in                                 cmd=barrier_out …       when all have come
//!   cmd=get kvsname=K key=millstream-2             cmd=get_result rc=0 … value=CARD
//!   cmd=finalize                                   cmd=finalize_ack …
//! ```
//!
//! A launcher ends a job whose process began this and did not finish; so it is finished at once.

use std::io::ErrorKind;
use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};

use crate::mesh::JoinDeadline;
use crate::rendezvous::{Card, left};

/// Bytes of an answer at most.
const LINE_BYTES_MAX: usize = 8192;

/// Why there are no cards.
#[derive(Debug)]
pub(crate) enum PmiError {
    /// Not all nodes have come in time.
    Late,
    /// The launcher does not speak this protocol.
    Deaf(String),
}

/// Hands this node's card to the launcher and gets those of all nodes, by rank.
pub(crate) fn exchange(
    fd: i32,
    card: &Card,
    deadline: JoinDeadline,
) -> Result<Vec<Card>, PmiError> {
    let mut launcher = Launcher::open(fd, deadline).map_err(|e| PmiError::Deaf(e.to_string()))?;
    launcher.ask("cmd=init pmi_version=1 pmi_subversion=1", "response_to_init")?;
    let named = launcher.ask("cmd=get_my_kvsname", "my_kvsname")?;
    let space = field(&named, "kvsname").ok_or_else(|| PmiError::Deaf(named.clone()))?.to_owned();
    let own = card.encode();
    let put = format!("cmd=put kvsname={space} key=millstream-{} value={own}", card.rank);
    launcher.ask(&put, "put_result")?;
    launcher.ask("cmd=barrier_in", "barrier_out")?;
    let mut cards = Vec::new();
    for rank in 0..card.nodes {
        let get = format!("cmd=get kvsname={space} key=millstream-{rank}");
        let got = launcher.ask(&get, "get_result")?;
        let card = field(&got, "value").and_then(Card::decode);
        cards.push(card.ok_or_else(|| PmiError::Deaf(got.clone()))?);
    }
    launcher.ask("cmd=finalize", "finalize_ack")?;
    Ok(cards)
}

struct Launcher {
    fd: OwnedFd,
    deadline: JoinDeadline,
    /// Bytes behind the last answer.
    rest: Vec<u8>,
}

impl Launcher {
    /// A copy of a descriptor that this process inherited.
    fn open(fd: i32, deadline: JoinDeadline) -> std::io::Result<Self> {
        let itself = pidfd_open(getpid(), PidfdFlags::empty())?;
        let fd = pidfd_getfd(itself, fd, PidfdGetfdFlags::empty())?;
        Ok(Self { fd, deadline, rest: Vec::new() })
    }

    /// Sends a line and awaits the answer of a kind.
    fn ask(&mut self, line: &str, kind: &str) -> Result<String, PmiError> {
        let deaf = |error: std::io::Error| PmiError::Deaf(error.to_string());
        let mut bytes = line.as_bytes().to_vec();
        bytes.push(b'\n');
        let mut unsent = &bytes[..];
        while !unsent.is_empty() {
            match rustix::io::write(&self.fd, unsent) {
                Ok(n) => unsent = &unsent[n..],
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => self.wait(PollFlags::OUT)?,
                Err(errno) => return Err(deaf(errno.into())),
            }
        }
        let answer = self.line()?;
        let good = field(&answer, "cmd") == Some(kind)
            && field(&answer, "rc").is_none_or(|code| code == "0");
        if good { Ok(answer) } else { Err(PmiError::Deaf(answer)) }
    }

    fn line(&mut self) -> Result<String, PmiError> {
        loop {
            if let Some(end) = self.rest.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                return Ok(String::from_utf8_lossy(&line).trim().to_owned());
            }
            if self.rest.len() > LINE_BYTES_MAX {
                return Err(PmiError::Deaf("its answer has no end".into()));
            }
            self.wait(PollFlags::IN)?;
            let mut chunk = [0; 1024];
            match rustix::io::read(&self.fd, &mut chunk) {
                Ok(0) => return Err(PmiError::Deaf(ErrorKind::UnexpectedEof.to_string())),
                Ok(n) => self.rest.extend_from_slice(&chunk[..n]),
                Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
                Err(errno) => return Err(PmiError::Deaf(errno.to_string())),
            }
        }
    }

    fn wait(&self, flags: PollFlags) -> Result<(), PmiError> {
        let left = left(self.deadline).ok_or(PmiError::Late)?;
        let limit = Timespec::try_from(left).map_err(|_| PmiError::Late)?;
        match poll(&mut [PollFd::new(&self.fd, flags)], Some(&limit)) {
            Ok(0) => Err(PmiError::Late),
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(PmiError::Deaf(errno.to_string())),
        }
    }
}

/// The value of a key in `key=value key=value …`.
fn field<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    line.split_ascii_whitespace().find_map(|part| part.strip_prefix(key)?.strip_prefix('='))
}
