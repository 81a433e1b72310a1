//! `bench wire` and `bench shuffle`: the data plane without SQL; `bench session`: what a statement
//! costs beside its rows.

use std::process::ExitCode;

use bench::report::{FigureReport, ReportSection};
use bench::session::SessionPlan;
use bench::shuffle::{Carrier, Sweep};
use bench::wire::{Effort, Transport, open};
use millstream::FabricKind;
use millstream::cluster::{ClusterError, Control, Invitation, LocalLaunch, launch_local};

use super::{BenchArgs, TIMEOUT, failed, writable, write_report};
use crate::failure::Failure;
use crate::signals;

/// Integers of a process: as many as the paper has.
const ROWS: u64 = 5_000_000;
/// Processes, where it is not said how many.
const NODES: [u32; 3] = [2, 4, 8];

/// Measures transports.
pub(super) fn wire(args: &BenchArgs) -> Result<ExitCode, Failure> {
    writable(args.report.as_deref())?;
    let usual = [FabricKind::Shm, FabricKind::Tcp, FabricKind::Verbs];
    let kinds = args.fabric.map_or(usual.to_vec(), |kind| vec![kind]);
    let plain = kinds.contains(&FabricKind::Tcp).then(Transport::without_checksums);
    let transports: Vec<Transport> = kinds.into_iter().map(Transport::of).chain(plain).collect();
    let effort = Effort { runs: args.runs as usize, ..Effort::default() };
    let report = bench::wire::measure(&transports, effort);
    write_report(&report, args.json, args.report.as_deref(), args.check)
}

/// Nodes of a session, and workers of each, where it is not said how many: as many as the cost of a
/// statement has a bar for.
const SESSION: (u32, u32) = (4, 4);
/// Statements of a session behind its first one.
const STATEMENTS: usize = 20;

/// Measures statements of a session.
pub(super) fn session(args: &BenchArgs) -> Result<ExitCode, Failure> {
    writable(args.report.as_deref())?;
    let given = |flag: &str, number: u32, usual: u32| {
        if args.set_flags.has(flag) { number } else { usual }
    };
    let plan = SessionPlan {
        nodes: given("--nodes", args.nodes, SESSION.0),
        workers: given("--workers", args.workers, SESSION.1),
        fabrics: args.fabric.map_or(vec![FabricKind::Shm, FabricKind::Tcp], |kind| vec![kind]),
        sessions: args.runs as usize,
        statements: STATEMENTS,
        settings: args.set.clone(),
    };
    let report = bench::session::measure(&plan).map_err(|error| failed(&error.into()))?;
    write_report(&report, args.json, args.report.as_deref(), args.check)
}

/// Measures integers through two shuffles.
pub(super) fn shuffle(args: &BenchArgs) -> Result<ExitCode, Failure> {
    let cluster = |error: ClusterError| failed(&error.into());
    if let Some(invitation) = Invitation::from_env().map_err(cluster)? {
        signals::ignore_interrupts()?;
        let control = invitation.join().map_err(cluster)?;
        // Node 0 tells what failed.
        let section = section(args, &control);
        return section.map(|_| ExitCode::SUCCESS).map_err(|_| Failure::silent());
    }
    writable(args.report.as_deref())?;
    let nodes = if args.nodes > 1 { vec![args.nodes] } else { NODES.to_vec() };
    let mut sections = Vec::new();
    for nodes in nodes {
        let launch = LocalLaunch::new(nodes).map_err(cluster)?;
        let launched = launch_local(launch).map_err(cluster)?;
        let section = section(args, &launched.control);
        drop(launched.control);
        launched.children.wait(TIMEOUT);
        sections.push(section?);
    }
    let about = vec![
        "Each process makes integers and shuffles them; each that arrives becomes half as large \
         again and is shuffled once more; count and sum are checked (Q10)."
            .into(),
        "Sockets without a threshold are the paper's baseline: an integer for another process is \
         written to its socket at once. Sockets with the thresholds of the rings stand beside it."
            .into(),
        "Making and dividing integers is the same work whatever carries them, and in all times."
            .into(),
    ];
    let title = "Integers through two shuffles".into();
    let report = FigureReport { title, about, sections };
    write_report(&report, args.json, args.report.as_deref(), args.check)
}

/// This process's part of the measurement.
fn section(args: &BenchArgs, control: &Control) -> Result<ReportSection, Failure> {
    let kinds = args.fabric.map_or(vec![FabricKind::Shm, FabricKind::Tcp], |kind| vec![kind]);
    let mut carriers = Vec::new();
    for kind in kinds {
        let fabric =
            open(kind, None).map_err(|error| Failure::runtime(&error.to_string(), None))?;
        carriers.push((format!("rings over {kind}"), Carrier::Rings(fabric)));
    }
    carriers.push(("sockets".into(), Carrier::Sockets));
    let sweep = Sweep {
        carriers,
        rank: control.rank() as usize,
        nodes: control.nodes() as usize,
        rows: args.rows.unwrap_or(ROWS),
        runs: args.runs as usize,
    };
    let gather = |step: &str, bytes| {
        control.all_gather(step, bytes).map_err(|error: ClusterError| error.to_string())
    };
    match sweep.run(&gather) {
        Ok(section) => {
            control.close();
            Ok(section)
        }
        Err(error) => {
            control.fail(&error.to_string());
            Err(Failure::runtime(&error.to_string(), None))
        }
    }
}
