//! A second process that goes so far and no further: killed or stopped at each step of a handshake
//! and of a transfer.

use rustix::process::{Pid, Signal, kill_process};

use super::*;

/// How far the second process goes. The last two are in the middle of a stream.
pub const STEPS: [&str; 7] =
    ["offer", "connect", "export", "receive", "sleep", "be written to", "write"];

/// The fault that befalls it there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    Killed,
    /// It is there and says nothing: half of a connection.
    Stopped,
}

/// The second process: goes so far, says so, and stays.
pub fn until(fabric: &dyn Fabric, step: &str, mut ask: impl FnMut(&[u8]) -> Option<Vec<u8>>) {
    let stay = |end: &mut dyn FnMut()| {
        println!("\n{MARK}{}", hex(b"there"));
        loop {
            end();
        }
    };
    let mut wait = || std::thread::park();
    let at = STEPS.iter().position(|each| *each == step).expect("a step");
    // The other end's worker is told with the address, so that either end may be the one that
    // dials.
    let reported = ask(b"").expect("the first process answers");
    let local = u32::from(reported[0]);
    let offer = fabric.offer(LinkId { local, remote: 1 - local }).expect("an offer");
    let address = ask(&offer.address()).expect("the first process answers");
    if at == 0 {
        stay(&mut wait);
    }
    let mut end = offer.connect(&address).expect("connects");
    if at == 1 {
        stay(&mut wait);
    }
    let memory = fabric.slab(2 * SLOT).expect("memory");
    let all = memory.range(0..2 * SLOT).expect("all of it");
    let key = end.export(&all).expect("own memory");
    let peer = RemoteKey::decode(&ask(&key.encode()).expect("an answer")).expect("a key");
    if at == 2 {
        stay(&mut wait);
    }
    end.post_recvs(1 << 16);
    end.submit();
    let mut seen = Vec::new();
    match step {
        "receive" => stay(&mut wait),
        "sleep" => {
            while end.poll(&mut seen) > 0 {}
            end.arm();
            stay(&mut wait);
        }
        "be written to" => stay(&mut || {
            end.poll(&mut seen);
            seen.clear();
        }),
        _ => stay(&mut || {
            let dst = RemoteRange { key: peer, offset: 0 };
            let _ = end.write(Src::Slab(&all), dst, OpId(0), Flags::SIGNAL);
            end.submit();
            end.poll(&mut seen);
            seen.clear();
        }),
    }
}

/// The row of a table: the second process comes to a step, meets its fault, and the first one goes
/// on. Returns what the first one was told, in words.
pub fn row(fabric: &dyn Fabric, test: &str, step: &str, fault: Fault, local: u32) -> String {
    let mut second = Second::start(test, &format!("until {step}"));
    let at = STEPS.iter().position(|each| *each == step).expect("a step");
    let offer = fabric.offer(LinkId { local, remote: 1 - local }).expect("an offer");
    assert_eq!(second.next(), b"");
    second.tell(&[1 - local as u8]);
    let address = second.next();
    second.tell(&offer.address());
    let there = |second: &mut Second| {
        assert_eq!(second.next(), b"there");
        second.meet(fault);
    };
    if at == 0 {
        there(&mut second);
        let refused = offer.connect(&address).map(drop);
        return refused.expect_err("nobody connects").to_string();
    }
    let mut end = offer.connect(&address).expect("connects");
    let memory = fabric.slab(2 * SLOT).expect("memory");
    let all = memory.range(0..2 * SLOT).expect("all of it");
    let key = end.export(&all).expect("own memory");
    end.post_recvs(1 << 16);
    end.submit();
    let mut peer = None;
    if at == 1 {
        there(&mut second);
    } else {
        peer = Some(RemoteKey::decode(&second.next()).expect("a key"));
        second.tell(&key.encode());
        if step == "be written to" {
            assert_eq!(second.next(), b"there");
            stream(&mut *end, &all, peer, 1000);
            second.meet(fault);
        } else {
            there(&mut second);
        }
    }
    let reported = stream(&mut *end, &all, peer, u64::MAX);
    // Neither waits for the peer.
    end.close();
    drop(end);
    reported
}

/// Writes until enough was written, the queue is full or the end says something; tells which.
fn stream(end: &mut dyn Endpoint, src: &SlabRange, peer: Option<RemoteKey>, most: u64) -> String {
    let (start, mut seen, mut written, mut idle) = (Instant::now(), Vec::new(), 0, 0);
    // A peer that is stopped takes what the system holds for it, and then nothing.
    while written < most && idle < 20_000 {
        let posted = peer.is_some_and(|key| {
            let dst = RemoteRange { key, offset: 0 };
            end.write(Src::Slab(src), dst, OpId(written), Flags::SIGNAL).is_ok()
        });
        end.submit();
        written += u64::from(posted);
        end.poll(&mut seen);
        let more = seen.iter().any(|c| matches!(c, Completion::Local { .. }));
        idle = if more { 0 } else { idle + 1 };
        let mut kinds = seen.iter().filter_map(|completion| match completion {
            Completion::Error { kind, .. } => Some(*kind),
            _ => None,
        });
        if let Some(kind) = kinds.next() {
            // One failure, and after it nothing but what was outstanding.
            assert!(kinds.all(|kind| kind == ErrorKind::Flushed), "{seen:?}");
            assert_eq!(end.budget().ops, 0);
            return format!("{kind:?}");
        }
        seen.clear();
        // Over shared memory a write needs nobody else; it could go on forever.
        if start.elapsed() > TIMEOUT / 10 {
            break;
        }
    }
    "silence".into()
}

impl Second {
    fn meet(&mut self, fault: Fault) {
        match fault {
            Fault::Killed => {
                self.child.kill().expect("the process can be killed");
                self.child.wait().expect("the second process ends");
            }
            Fault::Stopped => {
                let process = Pid::from_raw(self.child.id() as i32).expect("a process");
                kill_process(process, Signal::STOP).expect("the process can be stopped");
            }
        }
    }
}

/// Descriptors and mappings of shared memory of this process: what an end that failed has to give
/// back.
pub fn held() -> (usize, usize) {
    let descriptors = std::fs::read_dir("/proc/self/fd").expect("Linux").count();
    let maps = std::fs::read_to_string("/proc/self/maps").expect("Linux");
    (descriptors, maps.matches("memfd:").count())
}
