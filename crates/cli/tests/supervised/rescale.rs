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
    dir.await_that(|| !chain::is_open(&store, &old).unwrap());
    let asked = chain::ask(&store, &name, 2, JobRequest::Stop).unwrap();
    assert_eq!(job.ends(), Some(130), "{}", dir.log());
    assert_eq!(chain::answer_to(&store, &asked).unwrap(), Some(RequestAnswer::Accepted));
    assert!(!chain::is_open(&store, &asked).unwrap(), "it is done");
    let (_, message) = dir.run(&["state", "list", "--state", "state"]);
    assert!(message.contains("stopped"), "{message}");
}

#[test]
fn a_job_whose_state_one_node_cannot_hold_goes_back_to_two() {
    const ROWS: usize = 60_000;
    let dir = Dir::new("too-few");
    // Two nodes hold these groups, each half of them; one has no memory for all.
    let sql = "SET 'millstream.checkpoint' = '100 ms';
        SET 'millstream.exchange' = 'shuffle';
        SET 'millstream.idle_timeout' = '200 ms';
        SET 'millstream.state_bytes' = '2 MiB';
        CREATE TABLE come (n BIGINT, ts TIMESTAMP(3), WATERMARK FOR ts AS ts) WITH (
          'connector' = 'file', 'path' = 'in/', 'format' = 'csv', 'watch' = '20ms',
          'watch.settle' = '0s');
        CREATE TABLE seen (n BIGINT)
          WITH ('connector' = 'file', 'path' = 'seen/', 'format' = 'csv');
        CREATE TABLE written (n BIGINT, c BIGINT)
          WITH ('connector' = 'file', 'path' = 'out/', 'format' = 'csv');
        EXECUTE STATEMENT SET BEGIN
          INSERT INTO seen SELECT n FROM come;
          INSERT INTO written SELECT n, count(*)
            FROM TUMBLE(TABLE come, DESCRIPTOR(ts), INTERVAL '1' HOUR)
            GROUP BY window_start, window_end, n;
        END;";
    dir.write("q.sql", sql);
    std::fs::create_dir(dir.0.join("in")).unwrap();
    let put = |name: &str, hour: u32, rows: usize| {
        let row = |n: usize| format!("{},2026-01-01 {hour:02}:00:00\n", n * 1_000_003);
        let rows: String = (0..rows).map(row).collect();
        dir.write("next", &format!("n,ts\n{rows}"));
        std::fs::rename(dir.0.join("next"), dir.0.join(name)).unwrap();
    };
    put("in/1.csv", 1, ROWS);
    let mut job = dir.start(dir.command(&ON_TWO));
    dir.await_that(|| dir.published("seen").len() == ROWS || job.has_ended());
    let (code, message) = rescale(&dir, "1");
    assert_eq!(code, Some(1), "{message}\n{}", dir.log());
    assert!(message.contains("on 2 nodes again"), "{message}");
    let log = dir.log();
    assert!(log.contains("cannot run on 1 node, and goes back to 2"), "{log}");
    assert!(log.contains("state needs"), "{log}");
    // It goes on where it was.
    put("in/2.csv", 3, 1);
    dir.await_that(|| dir.published("out").len() == ROWS || job.has_ended());
    let (code, message) = dir.run(&["stop", "q", "--state", "state"]);
    assert_eq!(code, Some(0), "{message}");
    assert_eq!(job.ends(), Some(130), "{}", dir.log());
    assert_eq!(dir.rows("seen").len(), ROWS + 1);
    assert_eq!(dir.rows("out").len(), ROWS);
}

#[test]
fn a_second_run_that_is_refused_takes_no_requests_of_the_first() {
    let dir = Dir::new("second");
    dir.write("q.sql", &windows(60_000, "'rate' = '20000',"));
    let (store, name) = (DirectoryStore::new(dir.0.join("state")), ObjectName::job("q").unwrap());
    let mut job = dir.start(dir.command(&ON_TWO));
    dir.await_more_than(0, &mut job);
    // The first run has taken this request, and is carrying it out.
    let asked = chain::ask(&store, &name, 1, JobRequest::Stop).unwrap();
    chain::answer(&store, &asked, &RequestAnswer::Accepted).unwrap();
    let (code, message) = dir.run(&ON_TWO);
    assert_eq!(code, Some(2), "{message}");
    assert!(message.contains("runs as generation"), "{message}");
    assert!(chain::is_open(&store, &asked).unwrap());
}
