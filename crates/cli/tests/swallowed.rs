//! Two ranks whose connection for rows goes through a middle box that takes everything from some
//! byte on, acknowledges it, and hands nothing on, not even the end. Whichever byte it is, the last
//! ones too, the job ends with the rows that it has without the box.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

/// First bytes of the address at which rows come in; the port, and the IP address, stand behind
/// these and sixteen more.
const ADDRESS: [u8; 8] = *b"MLSTCP\x00\x01";
const PORT_AT: usize = 24;
const ADDRESS_BYTES: usize = 30;

const QUERY: &str = "
    CREATE TABLE numbers (n BIGINT, ts TIMESTAMP(3), WATERMARK FOR ts AS ts) WITH (
        'connector' = 'generator', 'rows' = '20000', 'interval' = '1ms',
        'fields.n.kind' = 'sequence');
    SELECT window_start, n % 100, count(*), sum(n)
    FROM TUMBLE(TABLE numbers, DESCRIPTOR(ts), INTERVAL '5' SECOND)
    GROUP BY window_start, n % 100;";

/// How rows travel.
const WAYS: [(&str, &str); 4] = [
    ("1", "SET millstream.exchange = 'merge';"),
    ("1", "SET millstream.exchange = 'shuffle'; SET millstream.ring_mode = 'read';"),
    ("2", "SET millstream.exchange = 'shuffle';"),
    ("2", "SET millstream.exchange = 'merge'; SET millstream.progress = 'thread';"),
];

/// The bytes that are swallowed of the first connection for rows.
#[derive(Debug, Clone, Copy)]
struct Hole {
    /// Of what the one says that connects, or of the answers.
    of_caller: bool,
    /// From this byte on, or from the end where that is earlier.
    from: usize,
}

/// Stands between the two ranks.
struct Middle {
    hole: Option<Hole>,
    /// Somebody has connected for rows.
    used: AtomicBool,
    /// Bytes that the first one said who connected, and that were answered.
    bytes: [AtomicUsize; 2],
    /// The ports at which it stands for others.
    ports: Mutex<Vec<(u16, u16)>>,
}

impl Middle {
    fn new(hole: Option<Hole>) -> Arc<Self> {
        let (bytes, ports) = (<[AtomicUsize; 2]>::default(), Mutex::default());
        Arc::new(Self { hole, used: AtomicBool::new(false), bytes, ports })
    }

    /// Listens in place of `port`, for the control plane or for rows.
    fn stand_for(self: &Arc<Self>, port: u16, rows: bool) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let own = listener.local_addr().unwrap().port();
        let middle = self.clone();
        thread::spawn(move || {
            for caller in listener.incoming() {
                let Ok(called) = TcpStream::connect(("127.0.0.1", port)) else { continue };
                middle.join(caller.unwrap(), called, rows);
            }
        });
        own
    }

    fn join(self: &Arc<Self>, caller: TcpStream, called: TcpStream, rows: bool) {
        let first = rows && !self.used.swap(true, Ordering::Relaxed);
        let (back, there) = (caller.try_clone().unwrap(), called.try_clone().unwrap());
        for (from, to, at) in [(caller, there, 0), (called, back, 1)] {
            let middle = self.clone();
            thread::spawn(move || match (rows, first) {
                (false, _) => middle.rewrite(from, to),
                (true, false) => pass(from, to),
                (true, true) => middle.swallow(from, to, at),
            });
        }
    }

    /// Puts itself in the place of each address.
    fn rewrite(self: &Arc<Self>, mut from: TcpStream, mut to: TcpStream) {
        let (mut held, mut chunk) = (Vec::new(), vec![0; 64 << 10]);
        while let Ok(n @ 1..) = from.read(&mut chunk) {
            held.extend_from_slice(&chunk[..n]);
            let mut done = 0;
            while let Some(at) = held[done..].windows(8).position(|bytes| bytes == ADDRESS) {
                let Some(address) = held.get_mut(done + at..done + at + ADDRESS_BYTES) else {
                    break;
                };
                let port = &mut address[PORT_AT..PORT_AT + 2];
                let own = self.own(u16::from_le_bytes([port[0], port[1]]));
                port.copy_from_slice(&own.to_le_bytes());
                done += at + ADDRESS_BYTES;
            }
            // The beginning of an address waits for the rest; a few bytes that look like one may be
            // all that comes.
            let rest = &held[done..];
            let begins = |at: &usize| {
                let bytes = &rest[*at..];
                bytes.starts_with(&ADDRESS) || (bytes.len() >= 4 && ADDRESS.starts_with(bytes))
            };
            let ready = done + (0..rest.len()).find(begins).unwrap_or(rest.len());
            if to.write_all(&held[..ready]).is_err() {
                break;
            }
            held.drain(..ready);
        }
        let _ = to.shutdown(Shutdown::Write);
    }

    /// The port at which it stands for this one.
    fn own(self: &Arc<Self>, port: u16) -> u16 {
        let mut ports = self.ports.lock().unwrap();
        if let Some((_, own)) = ports.iter().find(|(theirs, own)| *theirs == port || *own == port) {
            return *own;
        }
        let own = self.stand_for(port, true);
        ports.push((port, own));
        own
    }

    /// One way of the connection of which something is swallowed.
    fn swallow(&self, mut from: TcpStream, mut to: TcpStream, at: usize) {
        let hole = self.hole.filter(|hole| hole.of_caller == (at == 0)).map(|hole| hole.from);
        let (mut chunk, mut gone) = (vec![0; 64 << 10], false);
        while let Ok(n @ 1..) = from.read(&mut chunk) {
            let before = self.bytes[at].fetch_add(n, Ordering::Relaxed);
            let left = hole.map_or(n, |hole| hole.saturating_sub(before).min(n));
            // A process that is gone receives nothing, and the sender does not learn of it.
            gone |= left < n && to.write_all(&chunk[..left]).is_err();
            gone = gone || (left == n && to.write_all(&chunk[..n]).is_err());
        }
        if self.hole.is_none() || (hole.is_none() && !gone) {
            let _ = to.shutdown(Shutdown::Write);
        }
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream) {
    let _ = std::io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Write);
}

/// A directory that is removed at the end.
struct Dir(PathBuf);

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn rank(rank: usize, dir: &Path, workers: &str) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_millstream"));
    for name in ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMI_FD", "SLURM_STEP_NUM_TASKS"] {
        command.env_remove(name);
    }
    let rank = rank.to_string();
    command.envs([("MILLSTREAM_RANK", &*rank), ("MILLSTREAM_NODES", "2")]);
    command.env("MILLSTREAM_JOB", "swallowed").env_remove("MILLSTREAM_LOG");
    command.args(["run", "q.sql", "--fabric", "tcp", "--format", "csv", "--workers", workers]);
    command.arg("--rendezvous").arg(dir).current_dir(dir).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Runs the query through the box: the rows of rank 0, sorted, and what both ranks said.
fn run(name: &str, (workers, way): (&str, &str), middle: &Arc<Middle>) -> (Vec<String>, String) {
    let name = format!("millstream-swallowed-{name}-{}", std::process::id());
    let dir = Dir(std::env::temp_dir().join(name));
    std::fs::create_dir_all(&dir.0).unwrap();
    std::fs::write(dir.0.join("q.sql"), format!("{way}\n{QUERY}")).unwrap();
    let first = rank(0, &dir.0, workers);
    let card = dir.0.join(".millstream-swallowed-0");
    let text = loop {
        match std::fs::read_to_string(&card) {
            Ok(text) => break text,
            Err(_) => thread::yield_now(),
        }
    };
    // It names rank 0's address once.
    let port = text.split("127.0.0.1:").nth(1).and_then(|rest| rest.split(',').next()).unwrap();
    let own = middle.stand_for(port.parse().unwrap(), false);
    std::fs::write(&card, text.replace(&format!(":{port},"), &format!(":{own},"))).unwrap();
    let second = rank(1, &dir.0, workers);
    let ended = [first, second].map(|rank| thread::spawn(|| rank.wait_with_output().unwrap()));
    let [first, second] = ended.map(|rank| rank.join().unwrap());
    let output_text = String::from_utf8([first.stderr, second.stderr].concat()).unwrap();
    assert!(
        first.status.success() && second.status.success(),
        "{}: {output_text}",
        dir.0.display()
    );
    let rows = String::from_utf8(first.stdout).unwrap();
    let mut rows: Vec<_> = rows.lines().map(str::to_owned).collect();
    rows.sort_unstable();
    (rows, output_text)
}

#[test]
fn whichever_bytes_are_swallowed_the_rows_are_the_same() {
    thread::scope(|scope| {
        for (number, way) in WAYS.into_iter().enumerate() {
            scope.spawn(move || {
                let whole = Middle::new(None);
                let (rows, output_text) = run(&format!("{number}-whole"), way, &whole);
                assert_eq!(rows.len(), 401, "{output_text}");
                assert!(!output_text.contains("WARN"), "{output_text}");
                let [caller, called] = whole.bytes.each_ref().map(|n| n.load(Ordering::Relaxed));
                assert!(caller > 1000 && called > 1000, "{caller} and {called} bytes");
                // Some of the last ones, up to those of some frames; and the half.
                let last = [10, 50, 112, 222][number];
                let blanks = [(true, caller - last), (false, called - last), (true, caller / 2)];
                thread::scope(|scope| {
                    for (of_caller, from) in blanks {
                        let rows = &rows;
                        scope.spawn(move || {
                            let hole = Hole { of_caller, from };
                            let middle = Middle::new(Some(hole));
                            let name = format!("{number}-{of_caller}-{from}");
                            let (seen, output_text) = run(&name, way, &middle);
                            assert!(seen == *rows, "{way:?}, {hole:?}: other rows; {output_text}");
                            let half = from == caller / 2;
                            let given_up = output_text.contains("is open and has carried nothing");
                            assert!(given_up || !half, "{way:?}, {hole:?}: {output_text}");
                        });
                    }
                });
            });
        }
    });
}
