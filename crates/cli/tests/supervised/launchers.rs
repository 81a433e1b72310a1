//! Ranks of a launcher, which this test plays: each is a supervisor with its node as a child.

use std::process::Command;

use super::*;

const ROWS: u32 = 40_000;

/// Starts a rank.
fn rank(dir: &Dir, family: &str, rank: usize, nodes: usize, args: &[&str]) -> Running {
    let run = ["run", "q.sql", "--state", "state", "--workers", "1"];
    let mut command = dir.command(&[&run[..], args].concat());
    set_rank(&mut command, family, rank, nodes);
    command.env("MILLSTREAM_RENDEZVOUS", &dir.0);
    dir.start(command)
}

fn ranks(dir: &Dir, family: &str, nodes: usize, args: &[&str]) -> Vec<Running> {
    (0..nodes).map(|at| rank(dir, family, at, nodes, args)).collect()
}

fn end(ranks: &mut [Running]) -> Vec<Option<i32>> {
    ranks.iter_mut().map(Running::ends).collect()
}

/// Waits until a rank has a child other than `before`.
fn child(dir: &Dir, of: &mut Running, before: Option<i32>) -> i32 {
    let found = || {
        assert!(!of.has_ended(), "{}", dir.log());
        of.below().first().copied().filter(|child| Some(*child) != before)
    };
    await_some(found, || dir.log())
}

/// Kills nodes of a launcher's job, one behind the other.
fn killed(family: &str, fabric: &str, victims: &[usize]) {
    let name = format!("launched-{family}");
    let expected = undisturbed(&name, ROWS);
    let dir = Dir::new(&name);
    dir.write("q.sql", &windows(ROWS, "'rate' = '4000',"));
    let mut ranks = ranks(&dir, family, 3, &["--fabric", fabric]);
    for victim in victims {
        let parts = dir.parts();
        dir.await_more_than(parts, &mut ranks[0]);
        let node = child(&dir, &mut ranks[*victim], None);
        signal(node, Signal::KILL);
        child(&dir, &mut ranks[*victim], Some(node));
    }
    assert_eq!(end(&mut ranks), [Some(0); 3], "{}", dir.log());
    assert_eq!(dir.rows("out"), expected, "{}", dir.log());
    assert!(dir.log().contains("was killed by signal 9"), "{}", dir.log());
    assert!(dir.log().contains("goes on from checkpoint"), "{}", dir.log());
    assert_eq!(dir.names("."), ["log", "out", "q.sql", "state"], "nothing else is left behind");
}

#[test]
fn killed_ranks_of_mpirun_come_back() {
    killed("open", "shm", &[1]);
}

#[test]
fn killed_ranks_of_hydra_come_back() {
    killed("hydra", "tcp", &[0, 2]);
}

#[test]
fn killed_ranks_of_srun_come_back() {
    killed("slurm", "tcp", &[2, 0]);
}

#[test]
fn killed_ranks_of_any_other_launcher_come_back() {
    killed("own", "shm", &[0]);
}

#[test]
fn a_rank_whose_supervisor_is_gone_ends_all_and_all_go_on_when_they_are_run_again() {
    let expected = undisturbed("gone", ROWS);
    let dir = Dir::new("gone");
    dir.write("q.sql", &windows(ROWS, "'rate' = '4000',"));
    let args = ["--fabric", "tcp", "--rejoin-timeout", "2"];
    let mut job = ranks(&dir, "slurm", 3, &args);
    dir.await_more_than(0, &mut job[0]);
    let node = child(&dir, &mut job[1], None);
    signal(job[1].id(), Signal::KILL);
    assert_eq!(end(&mut job), [Some(75), None, Some(75)], "{}", dir.log());
    assert!(dir.log().contains("node 1 did not join"), "{}", dir.log());
    assert!(!runs(node), "its node has ended with it");
    let mut job = ranks(&dir, "slurm", 3, &args);
    assert_eq!(end(&mut job), [Some(0); 3], "{}", dir.log());
    assert_eq!(dir.rows("out"), expected, "{}", dir.log());
}

/// A shell that plays mpirun, and starts three ranks.
fn launcher(dir: &Dir) -> Running {
    let rank = dir.command(&["run", "q.sql", "--state", "state", "--workers", "1"]);
    let mut shell = Command::new("sh");
    let script = "for rank in 0 1 2; do OMPI_COMM_WORLD_RANK=$rank \"$@\" & done; wait";
    shell.args(["-c", script, "launcher"]).arg(rank.get_program()).args(rank.get_args());
    for (name, value) in rank.get_envs() {
        shell.envs(value.map(|value| (name, value)));
    }
    set_rank(&mut shell, "open", 0, 3);
    shell.env("MILLSTREAM_RENDEZVOUS", &dir.0).current_dir(&dir.0);
    dir.start(shell)
}

#[test]
fn the_ranks_of_a_killed_launcher_end_and_go_on_when_they_are_started_again() {
    let expected = undisturbed("orphans", ROWS);
    let dir = Dir::new("orphans");
    dir.write("q.sql", &windows(ROWS, "'rate' = '4000',"));
    let mut shell = launcher(&dir);
    dir.await_more_than(0, &mut shell);
    let processes = shell.below();
    assert!(processes.len() >= 6, "supervisors and nodes: {processes:?}");
    shell.kill();
    let ended = || (!processes.iter().any(|process| runs(*process))).then_some(());
    await_some(ended, || dir.log());
    assert!(dir.log().contains("the launcher of this node is gone"), "{}", dir.log());
    assert_eq!(launcher(&dir).ends(), Some(0), "{}", dir.log());
    assert!(dir.log().contains("goes on from checkpoint"), "{}", dir.log());
    assert_eq!(dir.rows("out"), expected, "{}", dir.log());
}

#[test]
fn a_rank_whose_supervisor_is_started_again_joins_the_others() {
    let expected = undisturbed("pod", ROWS);
    let dir = Dir::new("pod");
    dir.write("q.sql", &windows(ROWS, "'rate' = '4000',"));
    let args = ["--fabric", "tcp"];
    let mut job = ranks(&dir, "own", 3, &args);
    for pod in [1, 0] {
        let parts = dir.parts();
        dir.await_more_than(parts, &mut job[0]);
        signal(job[pod].id(), Signal::KILL);
        assert_eq!(job[pod].ends(), None, "{}", dir.log());
        job[pod] = rank(&dir, "own", pod, 3, &args);
    }
    assert_eq!(end(&mut job), [Some(0); 3], "{}", dir.log());
    assert_eq!(dir.rows("out"), expected, "{}", dir.log());
}

#[test]
fn others_go_on_without_a_rank_that_does_not_come_back() {
    let expected = undisturbed("shrunk", ROWS);
    for (family, victim) in [("slurm", 0), ("own", 2)] {
        let dir = Dir::new("shrunk");
        dir.write("q.sql", &windows(ROWS, "'rate' = '4000',"));
        let args = ["--fabric", "shm", "--rejoin-timeout", "3", "--on-loss", "shrink"];
        let mut job = ranks(&dir, family, 3, &args);
        dir.await_more_than(0, &mut job[0]);
        signal(job[victim].id(), Signal::KILL);
        let mut codes = [Some(0); 3];
        codes[victim] = None;
        assert_eq!(end(&mut job), codes, "{}", dir.log());
        assert_eq!(dir.rows("out"), expected, "{}", dir.log());
        let message = "the job goes on with 2 nodes: others of its 3 nodes have not come back";
        assert!(dir.log().contains(message), "{}", dir.log());
    }
}

#[test]
fn what_a_launcher_does_not_allow_is_refused_with_what_to_do() {
    let dir = Dir::new("refused");
    dir.write("q.sql", &windows(ROWS, "'rate' = '4000',"));
    let mut job = ranks(&dir, "open", 2, &["--on-loss", "shrink"]);
    assert_eq!(end(&mut job), [Some(2); 2], "{}", dir.log());
    assert!(dir.log().contains("--on-loss shrink cannot work under mpirun"), "{}", dir.log());
    let (code, message) = dir.run(&["run", "q.sql", "--state", "state", "--on-loss", "shrink"]);
    assert_eq!(code, Some(2), "{message}");
    assert!(message.contains("--on-loss shrink is for nodes that a launcher starts"), "{message}");
    let mut job = ranks(&dir, "slurm", 2, &[]);
    dir.await_more_than(0, &mut job[0]);
    let (code, message) = dir.run(&["rescale", "q", "--nodes", "3", "--state", "state"]);
    assert_eq!(code, Some(1), "{message}");
    assert!(message.contains("srun has started its 2 nodes"), "{message}");
    assert!(message.contains("stop it by `millstream stop`"), "{message}");
    let (code, message) = dir.run(&["stop", "q", "--state", "state"]);
    assert_eq!(code, Some(0), "{message}");
    assert!(message.contains("is stopped at checkpoint"), "{message}");
    assert_eq!(end(&mut job), [Some(130); 2], "{}", dir.log());
}
