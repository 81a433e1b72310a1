//! Jobs whose processes a launcher starts: this program plays the launcher, and with a role in its
//! environment a node.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

use cluster::{Assignment, Control, JOB_VARIABLE, JoinOptions};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Pid, Signal, kill_process};

/// Within this time a death is known everywhere.
const KNOWN: Duration = Duration::from_secs(5);
/// Tells a node what to do when it has met the others.
const ROLE: &str = "LAUNCHERS_TEST_ROLE";
/// Tells a node how long to wait for the others, in milliseconds.
const LIMIT: &str = "LAUNCHERS_TEST_LIMIT";
/// Where nodes leave word.
const DIRECTORY: &str = "LAUNCHERS_TEST_DIRECTORY";
/// Where its certificate is.
const CERTS: &str = "LAUNCHERS_TEST_CERTS";
/// Where a node listens.
const LISTEN: &str = "LAUNCHERS_TEST_LISTEN";
/// A variable that the launcher of a process may have set.
const LAUNCHERS: [&str; 14] = [
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "PMIX_NAMESPACE",
    "PMI_RANK",
    "PMI_SIZE",
    "PMI_FD",
    "MPI_LOCALNRANKS",
    "SLURM_PROCID",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_STEP_NUM_NODES",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "SLURM_SUBMIT_DIR",
];

const CASES: &[(&str, fn())] = &[
    ("each family of launchers starts a job", families),
    ("the launcher hands out addresses by PMI", pmi),
    ("a launcher that speaks something else is not needed", deaf_pmi),
    ("a killed rank is named by all, rank 0 too", killed),
    ("a stopped rank is named by all, rank 0 too", stopped),
    ("a rank that never comes is named by all", missing),
    ("what an earlier job left is passed over", stale),
    ("two jobs of one name in one directory are told apart", twins),
    ("jobs of other names share a directory", neighbours),
    ("a directory that cannot be used is named", unusable),
    ("a rank that thinks of another size is named", unlike),
    ("nobody listens beyond loopback unasked", loopback),
    ("only nodes with certificates of one cluster meet", certificates),
    ("arbitrary bytes do no harm", noise),
];

fn main() -> ExitCode {
    if let Ok(role) = std::env::var(ROLE) {
        return node(&role);
    }
    for (name, case) in CASES {
        let start = Instant::now();
        case();
        println!("{name}: ok ({} ms)", start.elapsed().as_millis());
    }
    ExitCode::SUCCESS
}

/// A node: tells on standard output what it met, and on standard error what went wrong.
fn node(role: &str) -> ExitCode {
    let var = |name: &str| std::env::var(name).ok();
    let options = JoinOptions {
        listen: var(LISTEN).map(|addr| addr.parse().unwrap()),
        directory: var(DIRECTORY).map(PathBuf::from),
        limit: Duration::from_millis(var(LIMIT).map_or(20_000, |ms| ms.parse().unwrap())),
        certs: var(CERTS).map(PathBuf::from),
        insecure: false,
    };
    let joined =
        Assignment::from_env().and_then(|reported| reported.expect("a launcher").join(&options));
    let control = match joined {
        Ok(control) => control,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let all = control.all_gather("ranks", vec![control.rank() as u8]).unwrap();
    assert!(all.iter().enumerate().all(|(rank, bytes)| bytes == &[rank as u8]));
    // A node that ends from here on does not take this step from nodes that have not received all
    // yet.
    let known = control.all_gather("known", Vec::new());
    println!("{} of {}", control.rank(), all.len());
    if role == "waits" {
        known.unwrap();
        wait(&control);
    }
    control.close();
    ExitCode::SUCCESS
}

fn wait(control: &Control) {
    match control.await_failure(4 * KNOWN) {
        Some(failure) => eprintln!("{failure}"),
        None => eprintln!("nothing happened"),
    }
}

/// A directory that is removed at the end.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let name = format!("millstream-launchers-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn files(&self) -> usize {
        std::fs::read_dir(&self.0).unwrap().count()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

type Vars = Vec<(&'static str, String)>;

/// The environment that a family of launchers gives a rank.
fn output_text(family: &str, rank: u32, nodes: u32, job: &str) -> Vars {
    let text = |number: u32| number.to_string();
    match family {
        "open" => vec![
            ("OMPI_COMM_WORLD_RANK", text(rank)),
            ("OMPI_COMM_WORLD_SIZE", text(nodes)),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", text(nodes)),
            ("PMIX_NAMESPACE", job.into()),
        ],
        // Only its parent tells what job it is.
        "hydra" => vec![
            ("PMI_RANK", text(rank)),
            ("PMI_SIZE", text(nodes)),
            ("MPI_LOCALNRANKS", text(nodes)),
        ],
        "slurm" => vec![
            ("SLURM_PROCID", text(rank)),
            ("SLURM_STEP_NUM_TASKS", text(nodes)),
            ("SLURM_STEP_NUM_NODES", text(1)),
            ("SLURM_JOB_ID", job.into()),
            ("SLURM_STEP_ID", text(0)),
        ],
        _ => vec![
            ("MILLSTREAM_RANK", text(rank)),
            ("MILLSTREAM_NODES", text(nodes)),
            (JOB_VARIABLE, job.into()),
        ],
    }
}

/// A node that runs.
struct Node {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Node {
    fn start(role: &str, directory: Option<&Path>, vars: &Vars) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        for name in LAUNCHERS {
            command.env_remove(name);
        }
        if let Some(directory) = directory {
            command.env(DIRECTORY, directory);
        }
        let vars = vars.iter().map(|(name, value)| (name, value));
        command.env(ROLE, role).envs(vars).stdin(Stdio::null());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    /// Waits until it has met the others.
    fn met(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    /// Its last words.
    fn end(mut self) -> (bool, String) {
        let mut words = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut words).unwrap();
        (self.child.wait().unwrap().success(), words.trim().to_owned())
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id() as i32).unwrap();
        kill_process(pid, signal).unwrap();
    }
}

fn start(role: &str, dir: &Dir, family: &str, job: &str, ranks: &[u32], nodes: u32) -> Vec<Node> {
    let start = |&rank| Node::start(role, Some(&dir.0), &output_text(family, rank, nodes, job));
    ranks.iter().map(start).collect()
}

fn all_join(mut nodes: Vec<Node>) {
    let count = nodes.len();
    for (rank, node) in nodes.iter_mut().enumerate() {
        assert_eq!(node.met(), format!("{rank} of {count}"));
    }
    for node in nodes {
        assert_eq!(node.end(), (true, String::new()));
    }
}

fn families() {
    for family in ["open", "hydra", "slurm", "own"] {
        let dir = Dir::new(family);
        all_join(start("ends", &dir, family, "families", &[0, 1, 2, 3], 4));
        assert_eq!(dir.files(), 0, "{family}: nothing is left behind");
    }
}

/// A launcher that speaks PMI-1 with one of its processes.
fn speak(mut end: UnixStream, space: &Mutex<BTreeMap<String, String>>, barrier: &Barrier) {
    let lines = BufReader::new(end.try_clone().unwrap()).lines();
    for line in lines.map_while(Result::ok) {
        let field = |key: &str| {
            let found = line.split(' ').find_map(|part| part.strip_prefix(key)?.strip_prefix('='));
            found.unwrap_or_default().to_owned()
        };
        let answer = match field("cmd").as_str() {
            "init" => "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0".into(),
            "get_my_kvsname" => "cmd=my_kvsname kvsname=kvs_7_0".into(),
            "put" => {
                assert_eq!(field("kvsname"), "kvs_7_0");
                space.lock().unwrap().insert(field("key"), field("value"));
                "cmd=put_result rc=0 msg=success".into()
            }
            "barrier_in" => {
                barrier.wait();
                "cmd=barrier_out rc=0".into()
            }
            "get" => format!(
                "cmd=get_result rc=0 msg=success value={}",
                space.lock().unwrap()[&field("key")]
            ),
            "finalize" => "cmd=finalize_ack rc=0".into(),
            other => panic!("the command '{other}'"),
        };
        writeln!(end, "{answer}").unwrap();
    }
}

fn pmi() {
    let barrier = Arc::new(Barrier::new(3));
    let space = Arc::new(Mutex::new(BTreeMap::new()));
    let mut nodes = Vec::new();
    for rank in 0..3u32 {
        let (ours, theirs) = UnixStream::pair().unwrap();
        fcntl_setfd(&theirs, FdFlags::empty()).unwrap();
        let mut vars = output_text("hydra", rank, 3, "");
        vars.push(("PMI_FD", theirs.as_raw_fd().to_string()));
        nodes.push(Node::start("ends", None, &vars));
        let (space, barrier) = (Arc::clone(&space), Arc::clone(&barrier));
        std::thread::spawn(move || speak(ours, &space, &barrier));
    }
    all_join(nodes);
    assert_eq!(space.lock().unwrap().len(), 3);
}

fn deaf_pmi() {
    let mut nodes = Vec::new();
    for rank in 0..2u32 {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        fcntl_setfd(&theirs, FdFlags::empty()).unwrap();
        let mut vars = output_text("hydra", rank, 2, "");
        vars.push(("PMI_FD", theirs.as_raw_fd().to_string()));
        nodes.push(Node::start("ends", None, &vars));
        ours.write_all(b"cmd=response_to_init pmi_version=2 rc=-1\n").unwrap();
        // It stays open until this process ends, as that of a launcher does.
        std::mem::forget(ours);
    }
    all_join(nodes);
}

/// Lets something happen to a rank and compares what the others say of it.
fn all_name(victim: usize, signal: Signal, what: &str) {
    let dir = Dir::new("named");
    let mut nodes = start("waits", &dir, "slurm", "named", &[0, 1, 2, 3], 4);
    nodes.iter_mut().for_each(|node| drop(node.met()));
    let process = nodes[victim].child.id();
    let began = Instant::now();
    nodes[victim].signal(signal);
    let victim_node = nodes.remove(victim);
    let expected = format!("node {victim} (process {process}) {what}");
    for node in nodes {
        assert_eq!(node.end(), (true, expected.clone()));
    }
    assert!(began.elapsed() < KNOWN, "{:?}", began.elapsed());
    if signal == Signal::STOP {
        victim_node.signal(Signal::KILL);
    }
    assert!(!victim_node.end().0);
}

fn killed() {
    for victim in [0, 2] {
        all_name(victim, Signal::KILL, "closed its connection before the job had ended");
    }
}

fn stopped() {
    for victim in [0, 3] {
        all_name(victim, Signal::STOP, "has been silent for 3.0 s");
    }
}

fn missing() {
    let dir = Dir::new("missing");
    for absent in [0, 2] {
        let ranks: Vec<u32> = (0..4).filter(|&rank| rank != absent).collect();
        let nodes: Vec<_> = ranks
            .iter()
            .map(|&rank| {
                let mut vars = output_text("open", rank, 4, "missing");
                vars.push((LIMIT, "1500".into()));
                Node::start("ends", Some(&dir.0), &vars)
            })
            .collect();
        for node in nodes {
            let (well, words) = node.end();
            assert!(!well);
            assert!(words.starts_with(&format!("node {absent} did not join: ")), "{words}");
            assert!(words.contains("it has written no file for job 'missing' in "), "{words}");
        }
        assert_eq!(dir.files(), 0);
    }
}

fn stale() {
    let dir = Dir::new("stale");
    // Killed while it waited for the others.
    let mut left = start("waits", &dir, "slurm", "stale", &[0, 1, 2], 4);
    while dir.files() < 3 {
        std::thread::yield_now();
    }
    for node in &mut left {
        node.child.kill().unwrap();
        node.child.wait().unwrap();
    }
    assert!(dir.files() >= 3);
    // Those above look for those below, and find what is not there any more.
    let mut nodes = start("ends", &dir, "slurm", "stale", &[3, 2, 1, 0], 4);
    nodes.reverse();
    all_join(nodes);
}

fn twins() {
    let dir = Dir::new("twins");
    let mut first = start("ends", &dir, "own", "twins", &[0], 2);
    let file = dir.0.join(".millstream-twins-0");
    while !file.exists() {
        std::thread::yield_now();
    }
    let second = start("ends", &dir, "own", "twins", &[0], 2).remove(0);
    let (well, words) = second.end();
    assert!(!well);
    let process = first[0].child.id();
    assert!(words.starts_with(&format!("process {process} on ")), "{words}");
    assert!(words.contains(" is node 0 of job 'twins' already "), "{words}");
    // The first has not suffered.
    first.extend(start("ends", &dir, "own", "twins", &[1], 2));
    all_join(first);
}

fn neighbours() {
    let dir = Dir::new("neighbours");
    let one = start("ends", &dir, "slurm", "17", &[0, 1, 2], 3);
    let other = start("ends", &dir, "slurm", "18", &[0, 1], 2);
    all_join(one);
    all_join(other);
    assert_eq!(dir.files(), 0);
}

fn unusable() {
    let missing = Path::new("/no/such/directory");
    let node = Node::start("ends", Some(missing), &output_text("open", 0, 2, "unusable"));
    let (well, words) = node.end();
    assert!(!well);
    let expected = "cannot use the rendezvous directory /no/such/directory: No such file";
    assert!(words.starts_with(expected), "{words}");
}

fn unlike() {
    let dir = Dir::new("unlike");
    let smaller = start("ends", &dir, "own", "unlike", &[0], 2);
    let mut vars = output_text("own", 1, 3, "unlike");
    vars.push((LIMIT, "500".into()));
    let (well, words) = Node::start("ends", Some(&dir.0), &vars).end();
    assert!(!well);
    assert_eq!(words, "node 0 did not join: it is node 0 of 2");
    let right = start("ends", &dir, "own", "unlike", &[1], 2);
    all_join(smaller.into_iter().chain(right).collect());
}

/// Starts two ranks with certificates, and gives back how they ended.
fn with_certs(dir: &Dir, certs: [Option<&str>; 2]) -> [(bool, String); 2] {
    let start = |rank: u32| {
        let mut vars = output_text("own", rank, 2, "certs");
        vars.push((LIMIT, "2000".into()));
        let certs = certs[rank as usize].map(|name| dir.0.join(name).display().to_string());
        vars.extend(certs.map(|certs| (CERTS, certs)));
        Node::start("ends", Some(&dir.0), &vars)
    };
    let nodes = [start(0), start(1)];
    nodes.map(Node::end)
}

fn certificates() {
    let dir = Dir::new("certs");
    for (authority, days) in [("ours", 30), ("theirs", 30), ("old", 0)] {
        cluster::certs::init(&dir.0.join(authority), 30).unwrap();
        for node in ["0", "1"] {
            let node = dir.0.join(format!("{authority}-{node}"));
            cluster::certs::issue(&dir.0.join(authority), &node, days).unwrap();
        }
    }
    let again = cluster::certs::init(&dir.0.join("ours"), 30).unwrap_err();
    assert!(again.to_string().contains("ours/ca.key: File exists"), "{again}");
    let well = (true, String::new());
    assert_eq!(with_certs(&dir, [Some("ours-0"), Some("ours-1")]), [well.clone(), well]);
    // Rank 1 connects, and so sees first what is wrong; rank 0 goes on to listen for the right one.
    let alert = "a connection was refused within 2 s: it does not accept the certificate of this";
    let foreign = "is not of this cluster: its certificate is not of this cluster";
    for (certs, first, second) in [
        ([Some("ours-0"), Some("theirs-1")], alert, foreign),
        ([Some("old-0"), Some("old-1")], alert, foreign),
        (
            [Some("ours-0"), None],
            "a connection was refused within 2 s: it does not speak TLS as nodes do",
            "does not speak this protocol",
        ),
        (
            [None, Some("ours-1")],
            "a connection was refused within 2 s: it does not speak this protocol",
            "is not of this cluster: it does not speak TLS as nodes do",
        ),
    ] {
        let [zero, one] = with_certs(&dir, certs);
        assert!(!zero.0 && zero.1.starts_with("node 1 did not join: "), "{certs:?}: {}", zero.1);
        assert!(zero.1.contains(first), "{certs:?}: {}", zero.1);
        assert!(!one.0 && one.1.starts_with("node 0 "), "{certs:?}: {}", one.1);
        // Its answer is lost where the connection ends before it is read.
        let answers = [second, "unexpected end of file", "Connection reset by peer"];
        assert!(answers.iter().any(|answer| one.1.contains(answer)), "{certs:?}: {}", one.1);
    }
    let [zero, _] = with_certs(&dir, [Some("nowhere"), Some("nowhere")]);
    assert!(zero.1.contains("nowhere/node.pem: No such file"), "{}", zero.1);
}

/// Somebody who sends arbitrary bytes to a node that waits is dropped, and the node waits on.
fn noise() {
    let dir = Dir::new("noise");
    cluster::certs::init(&dir.0.join("ca"), 30).unwrap();
    cluster::certs::issue(&dir.0.join("ca"), &dir.0.join("node"), 30).unwrap();
    for certs in [None, Some(dir.0.join("node").display().to_string())] {
        let start = |rank: u32| {
            let mut vars = output_text("own", rank, 2, "noise");
            vars.extend(certs.clone().map(|certs| (CERTS, certs)));
            Node::start("ends", Some(&dir.0), &vars)
        };
        let waits = start(0);
        let file = dir.0.join(".millstream-noise-0");
        let card = loop {
            match std::fs::read_to_string(&file) {
                Ok(card) => break card,
                Err(_) => std::thread::yield_now(),
            }
        };
        let at = card.split(',').nth(3).unwrap();
        let mut seed = 88_172_645_463_325_252_u64;
        for round in 0..200 {
            let mut socket = TcpStream::connect(at).unwrap();
            // The first byte is sometimes that of TLS, or of the protocol.
            let mut bytes = vec![[0x16, b'M', 0, 0xff][round % 4]];
            for _ in 0..round * 8 {
                seed ^= seed << 13;
                seed ^= seed >> 7;
                seed ^= seed << 17;
                bytes.push(seed as u8);
            }
            // It may have hung up already.
            let _ = socket.write_all(&bytes);
        }
        all_join(vec![waits, start(1)]);
    }
}

fn loopback() {
    let mut vars = output_text("own", 0, 2, "loopback");
    vars.push((LISTEN, "192.0.2.1:0".into()));
    let dir = Dir::new("loopback");
    let (well, words) = Node::start("ends", Some(&dir.0), &vars).end();
    assert!(!well);
    assert!(words.starts_with("cannot listen on 192.0.2.1:0: "), "{words}");
    assert_eq!(dir.files(), 0);
}
