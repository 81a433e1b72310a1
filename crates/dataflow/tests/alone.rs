//! A job on one worker, in virtual time.

use std::sync::Arc;

use dataflow::job::JobGraph;
use dataflow::process::Process;
use dataflow::worker::{Signals, Status, Worker, WorkerConfig};
use fabric::sim::{SimNet, SimOptions};

/// Runs the job to its end; gives the nanoseconds that it took.
pub fn run(job: JobGraph) -> u64 {
    run_until(job, Arc::default())
}

/// The same, where others may end it.
pub fn run_until(job: JobGraph, signals: Arc<Signals>) -> u64 {
    let net = SimNet::new(SimOptions::default());
    let mut worker = Worker::new(WorkerConfig {
        signals,
        ..WorkerConfig::new(
            0,
            1,
            Process::new(0, 1).unwrap(),
            Arc::new(job),
            vec![None],
            net.clock(),
        )
    })
    .unwrap();
    loop {
        match worker.step().unwrap() {
            Status::Done => return net.now_ns(),
            Status::Busy => {}
            Status::Idle { wake_ns } => {
                net.advance_to(wake_ns.expect("it waits for something").max(net.now_ns() + 1));
            }
        }
    }
}
