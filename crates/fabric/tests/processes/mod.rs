//! Two real processes that talk over a transport. The test binary starts itself once more; the two
//! exchange addresses and keys over the pipes of the second one, which stand for the control plane.

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fabric::{
    Armed, Completion, Endpoint, ErrorKind, Fabric, Flags, LinkId, OpId, RemoteKey, RemoteRange,
    Slab, SlabRange, Src,
};

/// Tells a process of this binary that it is the second one, and what to do.
const ROLE: &str = "MILLSTREAM_TEST_ROLE";
/// Marks a line of the control plane among those of the test harness.
const MARK: char = '@';
const MESSAGES: u32 = 4000;
const SLOT: usize = 512;
const TIMEOUT: Duration = Duration::from_secs(10);

mod again;
#[allow(dead_code, reason = "tests/shm.rs goes through it, the others start nothing of it")]
pub mod extents;
#[allow(dead_code, reason = "tests/faults.rs goes through it, the others start nothing of it")]
pub mod steps;

/// Runs the second process; does nothing when this process is the first one. The first one starts
/// the test of this name.
pub fn second(fabric: impl FnOnce() -> Arc<dyn Fabric>) {
    let Ok(role) = std::env::var(ROLE) else { return };
    let mut lines = std::io::stdin().lines();
    let mut ask = |line: &[u8]| {
        println!("\n{MARK}{}", hex(line));
        lines.next().map(|line| unhex(line.expect("a line").trim_start_matches(MARK)))
    };
    let fabric = fabric();
    match role.as_str() {
        extents::STARVES => return extents::starve(&*fabric, ask),
        extents::LETS_GO => return extents::let_go(&*fabric),
        _ => {}
    }
    if let Some(step) = role.strip_prefix("until ") {
        return steps::until(&*fabric, step, ask);
    }
    let mut side = Side::connect(&*fabric, 1, |line| ask(line).expect("the first process answers"));
    match role.as_str() {
        "echo" => side.echo(),
        extents::RELEASES | extents::KEEPS => {
            let mut ask = |line: &[u8]| ask(line).expect("the first process answers");
            extents::fill(&mut *side.end, &*fabric, role == extents::RELEASES, &mut ask);
        }
        // Blocks until it is killed.
        _ => drop(ask(b"ready")),
    }
}

/// Sends thousands of messages to a second process and back, one side spinning and one sleeping.
pub fn exchange(fabric: &dyn Fabric, test: &str) {
    let mut second = Second::start(test, "echo");
    let mut side = Side::connect(fabric, 0, |line| second.ask(line));
    for i in 0..MESSAGES {
        side.send(i);
        let back = side.next(false);
        assert_eq!(back, Completion::Notify { imm: i });
        side.check(i);
    }
    assert_eq!(side.next(true), gone());
    assert!(second.child.wait().expect("the second process ends").success());
}

/// Kills the second process and awaits that this is noticed, by somebody who spins or who sleeps;
/// returns the address that the second process had.
pub fn notices_death(fabric: &dyn Fabric, test: &str, sleeps: bool) -> Vec<u8> {
    let mut second = Second::start(test, "wait");
    let mut address = Vec::new();
    let mut side = Side::connect(fabric, 0, |line| {
        let answer = second.ask(line);
        if address.is_empty() {
            address.clone_from(&answer);
        }
        answer
    });
    assert_eq!(second.next(), b"ready");
    second.child.kill().expect("the process can be killed");
    second.child.wait().expect("the second process ends");
    assert_eq!(side.next(sleeps), gone());
    assert_eq!(side.end.budget().ops, 0);
    address
}

fn gone() -> Completion {
    Completion::Error { id: None, kind: ErrorKind::Disconnected }
}

/// The second process, seen from the first.
struct Second {
    child: Child,
    to: ChildStdin,
    from: Lines<BufReader<ChildStdout>>,
}

impl Second {
    fn start(test: &str, role: &str) -> Self {
        let mut child = again::this_binary()
            .args(["--exact", test, "--nocapture"])
            .env(ROLE, role)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the test binary starts");
        let to = child.stdin.take().expect("a pipe");
        let from = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        Self { child, to, from }
    }

    fn tell(&mut self, line: &[u8]) {
        writeln!(self.to, "{MARK}{}", hex(line)).expect("the second process reads");
    }

    fn ask(&mut self, line: &[u8]) -> Vec<u8> {
        self.tell(line);
        self.next()
    }

    fn next(&mut self) -> Vec<u8> {
        let line = self.from.find(|line| line.as_ref().is_ok_and(|line| line.starts_with(MARK)));
        unhex(line.expect("the second process writes").expect("text").trim_start_matches(MARK))
    }
}

impl Drop for Second {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One end with its memory.
struct Side {
    end: Box<dyn Endpoint>,
    memory: Slab,
    peer: RemoteKey,
    seen: Vec<Completion>,
}

impl Side {
    fn connect(fabric: &dyn Fabric, local: u32, mut swap: impl FnMut(&[u8]) -> Vec<u8>) -> Self {
        let offer = fabric.offer(LinkId { local, remote: 1 - local }).expect("an offer");
        let address = swap(&offer.address());
        let mut end = offer.connect(&address).expect("connects");
        let memory = fabric.slab(2 * SLOT).expect("memory");
        let all = memory.range(0..2 * SLOT).expect("all of it");
        let key = end.export(&all).expect("own memory");
        let peer = RemoteKey::decode(&swap(&key.encode())).expect("a key");
        end.post_recvs(8);
        end.submit();
        Self { end, memory, peer, seen: Vec::new() }
    }

    /// Writes message `i` and its notice.
    fn send(&mut self, i: u32) {
        let start = Instant::now();
        while self.end.budget().notices == 0 || self.end.budget().ops < 2 {
            self.end.poll(&mut self.seen);
            assert!(start.elapsed() < TIMEOUT, "no receives for message {i}");
        }
        for word in 0..SLOT / 8 {
            let value = u64::from(i) << 32 | word as u64;
            self.memory.store(SLOT + 8 * word, value, std::sync::atomic::Ordering::Relaxed);
        }
        let src = self.memory.range(SLOT..2 * SLOT).expect("in bounds");
        let (dst, id) = (RemoteRange { key: self.peer, offset: 0 }, OpId(i.into()));
        self.end.write(Src::Slab(&src), dst, id, Flags::NONE).expect("posts");
        self.end.write_notify(Src::Empty, dst, i, id, Flags::SIGNAL).expect("posts");
        self.end.submit();
    }

    /// The next completion that is not `Local`.
    fn next(&mut self, sleeps: bool) -> Completion {
        let start = Instant::now();
        loop {
            self.seen.retain(|c| !matches!(c, Completion::Local { .. }));
            if !self.seen.is_empty() {
                let first = self.seen.remove(0);
                if let Completion::Notify { .. } = first {
                    self.end.post_recvs(1);
                }
                return first;
            }
            assert!(start.elapsed() < TIMEOUT, "nothing came");
            if self.end.poll(&mut self.seen) > 0 {
                continue;
            }
            match if sleeps { self.end.arm() } else { Armed::Ready } {
                Armed::Fd(fd) => fabric::wait(&[fd], TIMEOUT),
                Armed::Ready => std::thread::yield_now(),
                Armed::Virtual => panic!("a real transport wakes"),
            }
        }
    }

    fn check(&self, i: u32) {
        for word in 0..SLOT / 8 {
            let value = self.memory.load(8 * word, std::sync::atomic::Ordering::Relaxed);
            assert_eq!(value, u64::from(i) << 32 | word as u64, "word {word} of message {i}");
        }
    }

    fn echo(&mut self) {
        for i in 0..MESSAGES {
            assert_eq!(self.next(true), Completion::Notify { imm: i });
            self.check(i);
            self.send(i);
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let digits = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).expect("hexadecimal");
    (0..text.trim_end().len()).step_by(2).map(digits).collect()
}
