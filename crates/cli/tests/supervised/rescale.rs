//! `millstream rescale` and `millstream stop`, which ask the supervisor through the chain.

use millstream::checkpoint::chain::{self, JobRequest, RequestAnswer};
use millstream::checkpoint::{DirectoryStore, ObjectName};

use super::*;

const ON_TWO: [&str; 8] = ["run", "q.sql", "--state", "state", "--workers", "1", "--nodes", "2"];

fn rescale(dir: &Dir, nodes: &str) -> (Option<i32>, String) {
    dir.run(&["rescale", "q", "--nodes", nodes, "--state", "state"])
}

#[test]
fn a_job_goes_on_with_other_numbers_of_nodes_while_it_runs() {
    let expected = undisturbed("rescaled", 24_000);
    let dir = Dir::new("rescaled");
    dir.write("q.sql", &windows(24_000, "'rate' = '2400',"));
    let mut job = dir.start(dir.command(&ON_TWO));
    dir.await_more_than(0, &mut job);
    let (code, message) = rescale(&dir, "2");
    assert_eq!(code, Some(1), "{message}");
    assert!(message.contains("is not rescaled: it runs on 2 nodes already"), "{message}");
    for nodes in [3, 1] {
        let (code, message) = rescale(&dir, &nodes.to_string());
        assert_eq!(code, Some(0), "{message}\n{}", dir.log());
        assert!(message.starts_with("job 'q' goes on from checkpoint "), "{message}");
        let on = if nodes == 1 { "1 node" } else { "3 nodes" };
        assert!(message.ends_with(&format!(" on {on}\n")), "{message}");
        assert!(dir.log().contains(&format!("is started again on {on}")), "{}", dir.log());
        let parts = dir.parts();
        dir.await_more_than(parts, &mut job);
        // The supervisor's child, and what that has started.
        assert_eq!(job.below().len(), nodes, "{}", dir.log());
    }
    assert_eq!(job.ends(), Some(0), "{}", dir.log());
    assert_eq!(dir.rows("out"), expected, "{}", dir.log());
    assert!(!dir.0.join("state/q/ask").read_dir().is_ok_and(|mut left| left.next().is_some()));
    let (code, message) = rescale(&dir, "2");
    assert_eq!(code, Some(1), "{message}");
    assert!(message.contains("job 'q' does not run"), "{message}");
    assert!(message.contains("--nodes 2"), "{message}");
}

#[test]
fn nobody_answers_for_a_job_whose_supervisor_is_gone() {
    let dir = Dir::new("alone");
    dir.write("q.sql", &windows(60_000, "'rate' = '20000',"));
    let (code, message) = rescale(&dir, "3");
    assert_eq!(code, Some(2), "{message}");
    assert!(message.contains("state has no job 'q'"), "{message}");
    let mut job = dir.start(dir.command(&ON_TWO));
    dir.await_more_than(0, &mut job);
    signal(job.id(), Signal::KILL);
    assert_eq!(job.ends(), None);
    let (code, message) = rescale(&dir, "3");
    assert_eq!(code, Some(1), "{message}");
    assert!(message.contains("nobody answers for job 'q'"), "{message}");
}

#[test]
fn a_job_stops_for_a_request_that_another_machine_has_left() {
    let dir = Dir::new("asked");
    dir.write("q.sql", &windows(60_000, "'rate' = '20000',"));
    let (store, name) = (DirectoryStore::new(dir.0.join("state")), ObjectName::job("q").unwrap());
    // The run that begins behind this request does not answer it.
    let old = chain::ask(&store, &name, 1, JobRequest::Stop).unwrap();
    let mut job = dir.start(dir.command(&ON_TWO));
    dir.await_more_than(0, &mut job);
    assert!(!chain::is_open(&store, &old).unwrap());
    let asked = chain::ask(&store, &name, 2, JobRequest::Stop).unwrap();
    assert_eq!(job.ends(), Some(130), "{}", dir.log());
    assert_eq!(chain::answer_to(&store, &asked).unwrap(), Some(RequestAnswer::Accepted));
    assert!(!chain::is_open(&store, &asked).unwrap(), "it is done");
    let (_, message) = dir.run(&["state", "list", "--state", "state"]);
    assert!(message.contains("stopped"), "{message}");
}
