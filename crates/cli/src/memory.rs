//! `millstream memory`: a memory server, until it is asked to end; and those of one job.

mod metrics;

use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::Duration;

use millstream::FabricKind;
use millstream::pool::{MemoryOptions, MemoryServer};

use crate::args::{MemoryArgs, ProgressStyle};
use crate::failure::Failure;
use crate::screen::Screen;
use crate::serve::Server;
use crate::session::print;
use crate::{human, log, signals};

/// How often the command looks whether it should end.
const LOOK: Duration = Duration::from_millis(50);

/// Runs the command.
pub(crate) fn memory(args: &MemoryArgs) -> Result<ExitCode, Failure> {
    log::start(&args.log.log, &Screen::new(ProgressStyle::None), None);
    if args.fabric == FabricKind::Mpi {
        let hint = "use shm, tcp, verbs or auto";
        return Err(Failure::usage("a memory server is not read by mpi", Some(hint)));
    }
    let cancel = signals::cancel_flag(None)?;
    let server = MemoryServer::start(MemoryOptions {
        bytes: args.bytes,
        name: args.name.clone(),
        listen: args.listen,
        fabric: args.fabric,
        certs: args.certs.clone(),
        read_token: args.read_token_file.clone(),
        threads: args.threads as usize,
        lease: Duration::from_millis(args.lease),
        directory: args.dir.clone(),
    })
    .map_err(|error| Failure::of(&error, "", ""))?;
    let stats = server.stats();
    let page = move || metrics::page(&stats.get());
    let metrics = args.metrics.map(|address| Server::of_page(address, &args.metrics_name, page));
    let _metrics = metrics.transpose()?;
    print(&format!(
        "memory server {} at {}: {}, read by {}\n",
        args.name,
        server.address(),
        human::bytes(args.bytes),
        server.fabrics().join(" and ")
    ));
    while !cancel.load(Ordering::Acquire) && server.is_running() {
        std::thread::sleep(LOOK);
    }
    let last = server.stop();
    let lost = match last.tables {
        0 => "no tables".to_owned(),
        tables => human::counted(tables.into(), "table"),
    };
    let kept = if args.dir.is_some() { "kept" } else { "lost" };
    let leases = match last.leases {
        0 => "no leases".to_owned(),
        leases => format!("{} end", human::counted(leases.into(), "lease")),
    };
    eprintln!(
        "memory server {} has ended: {lost} with {} {kept}, {leases}",
        args.name,
        human::bytes(last.bytes)
    );
    Ok(ExitCode::SUCCESS)
}

/// The memory servers of a job, which end when the answer is dropped, and their addresses.
///
/// # Errors
/// When one cannot be started.
pub(crate) fn of_job(
    (count, bytes): (u32, u64),
) -> Result<(Vec<MemoryServer>, Vec<String>), Failure> {
    let server = |number: u32| {
        let listen = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
        let name = format!("m{number}");
        let options = MemoryOptions { bytes, name, listen, ..MemoryOptions::default() };
        MemoryServer::start(options).map_err(|error| Failure::of(&error, "", ""))
    };
    let servers = (0..count).map(server).collect::<Result<Vec<_>, _>>()?;
    let addresses = servers.iter().map(|server| server.address().to_string()).collect();
    Ok((servers, addresses))
}
