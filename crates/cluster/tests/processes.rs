//! Jobs of real processes: this program starts itself, as a node or as a launcher.
//!
//! It has no harness because a node is this program too, told apart by the invitation in its
//! environment.

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cluster::{ClusterError, Control, Invitation, Launched, LocalLaunch, launch_local};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

/// Within this time a death is known everywhere.
const KNOWN: Duration = Duration::from_secs(5);

/// Tells a node or launcher what to do.
const ROLE: &str = "CLUSTER_TEST_ROLE";

const CASES: &[(&str, fn())] = &[
    ("four processes exchange and end in good order", exchange),
    ("a killed node is named by all within 5 s", killed),
    ("a stopped node is named by all within 5 s", stopped),
    ("stopped nodes end with the job", stopped_for_good),
    ("a node that exits is named with its code", exits),
    ("a node that fails is quoted", fails),
    ("a node that dies before it joins is named", stillborn),
    ("a program that is not there is named", no_program),
    ("a port in use is named and nothing is started", port_in_use),
    ("children end with their launcher", orphans),
];

fn main() -> ExitCode {
    match (Invitation::from_env(), std::env::var(ROLE)) {
        (Ok(Some(invitation)), Ok(role)) => return node(&invitation, &role),
        (Ok(None), Ok(role)) if role == "launcher" => return launcher(),
        (Err(error), _) => panic!("{error}"),
        _ => {}
    }
    for (name, case) in CASES {
        let start = Instant::now();
        case();
        println!("{name}: ok ({} ms)", start.elapsed().as_millis());
    }
    ExitCode::SUCCESS
}

/// A node: does what its role says, then tells on standard error which failure it saw.
fn node(invitation: &Invitation, role: &str) -> ExitCode {
    if role == "stillborn" && invitation.rank() == 1 {
        return ExitCode::from(7);
    }
    let control = match invitation.join() {
        Ok(control) => control,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let mine = std::process::id().to_le_bytes().to_vec();
    let pids = match control.all_gather("processes", mine) {
        Ok(pids) => pids,
        // Rank 0 may have killed one before this node knows the exchange's end.
        Err(error) => {
            eprintln!("{error}");
            control.close();
            return ExitCode::SUCCESS;
        }
    };
    // A node that ends from here on does not take this step from nodes that have not received all
    // yet.
    let _ = control.all_gather("known", Vec::new());
    assert_eq!(pids.len(), invitation.nodes() as usize);
    assert_eq!((control.generation(), invitation.generation()), (7, 7));
    match (role, control.rank()) {
        ("exits", 2) => std::process::exit(3),
        ("fails", 2) => control.fail("cannot write out.csv: no space left on device"),
        _ => {}
    }
    // Ends when the others do, or when one dies.
    match control.all_gather("end", vec![control.rank() as u8]) {
        Ok(_) => eprintln!("done"),
        Err(error) => eprintln!("{error}"),
    }
    control.close();
    ExitCode::SUCCESS
}

/// Launches nodes, prints their processes and waits to be killed.
fn launcher() -> ExitCode {
    let mut launch = LocalLaunch::new(3).unwrap();
    launch.env = vec![(ROLE.into(), "waits".into())];
    launch.generation = 7;
    let launched = launch_local(launch).unwrap();
    for process in processes(&launched.control).into_iter().skip(1) {
        println!("{process}");
    }
    println!();
    // Not the exchange in which the nodes wait: with it all of them would end.
    let _ = std::io::stdin().read_line(&mut String::new());
    ExitCode::SUCCESS
}

/// Starts four nodes of a role; their lines come through the receiver.
fn launch(role: &str) -> (Result<Launched, ClusterError>, Receiver<(u32, String)>) {
    let (lines, received) = channel();
    let lines = Mutex::new(lines);
    let mut launch = LocalLaunch::new(4).unwrap();
    launch.env = vec![(ROLE.into(), role.into())];
    launch.generation = 7;
    launch.stderr = Arc::new(move |rank, line| {
        lines.lock().unwrap().send((rank, line.to_owned())).unwrap();
    });
    (launch_local(launch), received)
}

fn processes(control: &Control) -> Vec<u32> {
    let mine = std::process::id().to_le_bytes().to_vec();
    let all = control.all_gather("processes", mine).unwrap();
    let _ = control.all_gather("known", Vec::new());
    all.iter().map(|bytes| u32::from_le_bytes(bytes[..].try_into().unwrap())).collect()
}

fn pid(process: u32) -> Pid {
    Pid::from_raw(process as i32).unwrap()
}

/// Checks that rank 0 and the given survivors name the same failure in time.
fn all_name(launched: Launched, lines: &Receiver<(u32, String)>, survivors: &[u32], what: &str) {
    let start = Instant::now();
    let failure = launched.control.await_failure(KNOWN).expect("a failure");
    assert_eq!(failure.to_string(), what);
    let mut reported: Vec<_> = survivors
        .iter()
        .map(|_| {
            let left = KNOWN.saturating_sub(start.elapsed());
            lines.recv_timeout(left).unwrap_or_else(|error| panic!("{what}: {error}"))
        })
        .collect();
    reported.sort();
    let expected: Vec<_> = survivors.iter().map(|&rank| (rank, what.to_owned())).collect();
    assert_eq!(reported, expected);
    launched.control.close();
    drop(launched.children);
    assert_eq!(lines.recv_timeout(KNOWN), Err(RecvTimeoutError::Disconnected));
}

fn exchange() {
    let (launched, lines) = launch("waits");
    let Launched { control, children } = launched.unwrap();
    let processes = processes(&control);
    assert_eq!(processes[0], std::process::id());
    let end = control.all_gather("end", vec![0]).unwrap();
    assert_eq!(end, [[0], [1], [2], [3]]);
    control.close();
    assert_eq!(control.failure(), None);
    children.wait(KNOWN);
    let mut reported: Vec<_> = lines.iter().collect();
    reported.sort();
    assert_eq!(reported, [1, 2, 3].map(|rank| (rank, "done".to_owned())));
}

fn killed() {
    let (launched, lines) = launch("waits");
    let launched = launched.unwrap();
    let process = processes(&launched.control)[2];
    kill_process(pid(process), Signal::KILL).unwrap();
    let what = format!("node 2 (process {process}) was killed by signal 9");
    all_name(launched, &lines, &[1, 3], &what);
}

fn stopped() {
    let (launched, lines) = launch("waits");
    let launched = launched.unwrap();
    let process = processes(&launched.control)[3];
    kill_process(pid(process), Signal::STOP).unwrap();
    let what = format!("node 3 (process {process}) has been silent for 3.0 s");
    all_name(launched, &lines, &[1, 2], &what);
}

/// The one that is named is not waited for, and another that is stopped, too, not for long.
fn stopped_for_good() {
    let (launched, _lines) = launch("waits");
    let Launched { control, children } = launched.unwrap();
    let processes = processes(&control);
    let open = |rank: usize| pidfd_open(pid(processes[rank]), PidfdFlags::empty()).unwrap();
    let stopped = [1, 3].map(|rank| {
        kill_process(pid(processes[rank]), Signal::STOP).unwrap();
        open(rank)
    });
    let failure = loop {
        // As long as it takes on a busy machine.
        if let Some(failure) = control.await_failure(KNOWN) {
            break failure;
        }
    };
    assert!(failure.to_string().ends_with("has been silent for 3.0 s"), "{failure}");
    drop(control);
    children.wait_after(&failure);
    for process in &stopped {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let ended = poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&at_once)).unwrap();
        assert_eq!(ended, 1, "a stopped node outlives its job");
    }
}

fn exits() {
    let (launched, lines) = launch("exits");
    let launched = launched.unwrap();
    let process = processes(&launched.control)[2];
    let what = format!("node 2 (process {process}) ended with exit code 3");
    all_name(launched, &lines, &[1, 3], &what);
}

fn fails() {
    let (launched, lines) = launch("fails");
    let launched = launched.unwrap();
    processes(&launched.control);
    let what = "node 2: cannot write out.csv: no space left on device";
    all_name(launched, &lines, &[1, 2, 3], what);
}

fn stillborn() {
    let (launched, _lines) = launch("stillborn");
    let error = launched.unwrap_err().to_string();
    assert!(error.starts_with("node 1 (process "), "{error}");
    assert!(error.ends_with(") ended with exit code 7"), "{error}");
}

fn no_program() {
    let mut launch = LocalLaunch::new(2).unwrap();
    launch.program = "no/such/program".into();
    let error = launch_local(launch).unwrap_err().to_string();
    assert!(error.starts_with("cannot start node 1 (no/such/program): "), "{error}");
}

fn port_in_use() {
    let taken = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let mut launch = LocalLaunch::new(2).unwrap();
    launch.listen = taken.local_addr().unwrap();
    launch.program = "no/such/program".into();
    let error = launch_local(launch.clone()).unwrap_err().to_string();
    assert_eq!(error, format!("cannot listen on {}: the port is in use", launch.listen));
}

fn orphans() {
    let mut launcher = Command::new(std::env::current_exe().unwrap())
        .env(ROLE, "launcher")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let lines = BufReader::new(launcher.stdout.take().unwrap()).lines();
    let processes: Vec<u32> = lines
        .map(Result::unwrap)
        .take_while(|line| !line.is_empty())
        .map(|line| line.parse().unwrap())
        .collect();
    assert_eq!(processes.len(), 2);
    let watched: Vec<_> = processes
        .iter()
        .map(|&process| pidfd_open(pid(process), PidfdFlags::empty()).unwrap())
        .collect();
    launcher.kill().unwrap();
    launcher.wait().unwrap();
    for process in &watched {
        let limit = Timespec { tv_sec: KNOWN.as_secs() as i64, tv_nsec: 0 };
        let ended = poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&limit)).unwrap();
        assert_eq!(ended, 1, "a node outlives its launcher");
    }
}
