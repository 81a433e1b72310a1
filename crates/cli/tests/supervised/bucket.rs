//! Jobs whose checkpoints lie in a bucket.

use std::process::Command;

use super::*;

#[path = "../../../connectors/tests/connectors/servers/s3.rs"]
#[expect(dead_code, reason = "the tests of connectors use more of it")]
mod s3;
#[path = "../../../connectors/tests/connectors/servers/serving.rs"]
mod serving;

use s3::{KEY, S3};
use serving::Serving;

const RUN: [&str; 8] =
    ["run", "q.sql", "--state", "s3://bucket/jobs", "--workers", "1", "--nodes", "2"];

/// A command that finds the server by its environment.
fn command(dir: &Dir, endpoint: &str, args: &[&str]) -> Command {
    let mut command = dir.command(args);
    command
        .env("AWS_ENDPOINT_URL", endpoint)
        .env("AWS_REGION", "us-east-1")
        .env("AWS_ACCESS_KEY_ID", KEY)
        .env("AWS_SECRET_ACCESS_KEY", "hush");
    command
}

/// A job that is killed goes on, and its rows are there once.
fn goes_on(name: &str, endpoint: &str) {
    let expected = undisturbed(name, 40_000);
    let dir = Dir::new(name);
    dir.write("q.sql", &windows(40_000, "'rate' = '1500',").replace("100 ms", "500 ms"));
    let mut job = dir.start(command(&dir, endpoint, &RUN));
    dir.await_more_than(0, &mut job);
    let nodes = job.below();
    signal(nodes[nodes.len() - 1], Signal::KILL);
    dir.await_that(|| dir.log().contains("the job is started again (1)"));
    signal(job.id(), Signal::KILL);
    assert_eq!(job.ends(), None, "{}", dir.log());
    let list = ["state", "list", "--state", "s3://bucket/jobs"];
    let (code, message) = reported(&command(&dir, endpoint, &list).output().unwrap());
    assert_eq!(code, Some(0), "{message}");
    assert!(message.lines().any(|line| line.starts_with("q ")), "{message}");
    let (code, message) = reported(&command(&dir, endpoint, &RUN).output().unwrap());
    assert_eq!(code, Some(0), "{message}\n{}", dir.log());
    assert!(message.contains("goes on from checkpoint"), "{message}");
    assert_eq!(dir.rows("out"), expected, "{}", dir.log());
    assert!(!dir.log().contains("hush") && !message.contains("hush"));
    let (_, message) = reported(&command(&dir, endpoint, &list).output().unwrap());
    assert!(message.contains("done"), "{message}");
}

#[test]
fn a_job_goes_on_from_a_bucket() {
    goes_on("bucket", &S3::start().endpoint());
}

/// The server at the address of `MILLSTREAM_S3`, which `scripts/s3.sh` starts.
#[test]
fn a_job_goes_on_from_a_bucket_of_a_real_server() {
    if let Ok(endpoint) = std::env::var("MILLSTREAM_S3") {
        goes_on("real-bucket", &endpoint);
    }
}

#[test]
fn a_bucket_that_passes_over_conditions_is_refused() {
    let (dir, server) = (Dir::new("unconditional"), S3::start());
    server.state.lock().unwrap().takes_all = true;
    dir.write("q.sql", &windows(1000, ""));
    let (code, message) = reported(&command(&dir, &server.endpoint(), &RUN).output().unwrap());
    assert_eq!(code, Some(1), "{message}");
    assert!(message.contains("s3://bucket/jobs/q"), "{message}");
    assert!(message.contains("two runs of a job"), "{message}");
    assert_eq!(dir.parts(), 0);
}
