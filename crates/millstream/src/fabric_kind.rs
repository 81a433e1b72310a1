//! Which transport carries rows: the only place that knows them by name.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;
use std::sync::Arc;

use fabric::mpi::MpiFabric;
use fabric::shm::{ShmFabric, ShmOptions};
use fabric::tcp::{TcpFabric, TcpOptions};
use fabric::verbs::{Survey, VerbsFabric, VerbsOptions, probe, probe_groups, survey};
use fabric::{Caps, Fabric, FabricError};
use plan::EndNeed;

use crate::error::Error;

/// A transport between workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum FabricKind {
    /// For each pair of nodes what suits it: shared memory on a machine, RDMA between machines that
    /// both have a device, else TCP.
    Auto,
    /// Shared memory, between processes of one machine and between threads of one process.
    #[default]
    Shm,
    /// TCP sockets.
    Tcp,
    /// RDMA devices, chosen by the variable [`RDMA_VARIABLE`] of each process.
    Verbs,
    /// MPI, between processes that `mpirun` started.
    Mpi,
}

/// Names the variable with options for RDMA devices, as `device=mlx5_0,gid=3`. A variable, since
/// devices and addresses have other names on each machine.
pub const RDMA_VARIABLE: &str = "MILLSTREAM_RDMA";

impl FabricKind {
    /// All, as a user would write them.
    pub const NAMES: [&str; 5] = ["auto", "shm", "tcp", "verbs", "mpi"];

    /// Memory of each end of a link besides its ring. The memory that the operating system keeps
    /// for a socket adapts to the traffic: it is named, but not counted.
    pub(crate) fn end_needs(self) -> Vec<EndNeed> {
        let need = |name, what, bytes: usize| EndNeed { name, what, bytes: bytes as u64 };
        match self {
            // TCP and RDMA take less.
            FabricKind::Auto | FabricKind::Shm => {
                vec![need("inboxes", "for notices and messages", ShmFabric::ENDPOINT_BYTES)]
            }
            FabricKind::Tcp => vec![
                need("frames", "for what is read and written", TcpFabric::ENDPOINT_BYTES),
                need("sockets", "the system's: net.ipv4.tcp_{r,w}mem", 0),
            ],
            FabricKind::Verbs => {
                vec![need("queues", "for notices and messages", VerbsFabric::ENDPOINT_BYTES)]
            }
            FabricKind::Mpi => {
                vec![need("frames", "for what is read and written", MpiFabric::ENDPOINT_BYTES)]
            }
        }
    }

    /// Memory of a worker for the network's multicast, if there may be such.
    pub(crate) fn member_bytes(self) -> u64 {
        match self {
            FabricKind::Auto | FabricKind::Verbs => VerbsFabric::MEMBER_BYTES as u64,
            FabricKind::Shm | FabricKind::Tcp | FabricKind::Mpi => 0,
        }
    }

    /// Opens it on this machine alone; see [`FabricKind::open_at`].
    ///
    /// # Errors
    /// As [`FabricKind::open_at`].
    pub fn open(self) -> Result<Arc<dyn Fabric>, FabricError> {
        self.open_at(IpAddr::V4(Ipv4Addr::LOCALHOST), false, true)
    }

    /// Opens it, with what suits a job, where other nodes reach this one at an address; see
    /// [`RDMA_VARIABLE`] for devices, which may name another. With `prefault` shared memory has its
    /// pages before rows come, as memory of RDMA devices always has; with `checksum` all that
    /// travels by TCP carries checksums.
    ///
    /// # Errors
    /// When there is no such device, or the system gives no memory or socket.
    pub fn open_at(
        self,
        address: IpAddr,
        prefault: bool,
        checksum: bool,
    ) -> Result<Arc<dyn Fabric>, FabricError> {
        Ok(match self {
            // All that one call can open is this machine's.
            FabricKind::Auto | FabricKind::Shm => {
                ShmFabric::new(ShmOptions { prefault, ..ShmOptions::default() })?
            }
            FabricKind::Tcp => {
                TcpFabric::new(TcpOptions { bind: address, checksum, ..TcpOptions::default() })?
            }
            FabricKind::Verbs => {
                let options = rdma_options_at(address);
                VerbsFabric::new(options.map_err(|detail| FabricError::Device { detail })?)?
            }
            FabricKind::Mpi => MpiFabric::new(fabric::Publish::Notify)?,
        })
    }

    /// Whether a process of this machine may use it, asked before others are started that would
    /// all fail in the same way.
    ///
    /// # Errors
    /// Those of [`FabricKind::open`].
    pub fn check(self) -> Result<(), Error> {
        match self {
            FabricKind::Auto | FabricKind::Shm | FabricKind::Tcp => Ok(()),
            FabricKind::Verbs | FabricKind::Mpi => self.open().map(drop).map_err(Error::from),
        }
    }
}

/// Ends what a transport has begun in this process, at the end of the process: an `mpirun` wants to
/// see MPI ended. No session may be used afterwards.
pub fn finish_fabrics() {
    fabric::mpi::finish();
}

/// The options of [`RDMA_VARIABLE`].
fn rdma_options() -> Result<VerbsOptions, String> {
    let text = std::env::var(RDMA_VARIABLE).unwrap_or_default();
    text.parse().map_err(|error| format!("{RDMA_VARIABLE}: {error}"))
}

/// The same where other nodes reach this one at an address, unless they name another.
fn rdma_options_at(address: IpAddr) -> Result<VerbsOptions, String> {
    let options = rdma_options()?;
    let unsaid = options.bind == VerbsOptions::default().bind;
    let bind = if unsaid { address } else { options.bind };
    Ok(VerbsOptions { bind, ..options })
}

/// The protocol of the RDMA device that [`FabricKind::Verbs`] would use at this address, as
/// `RoCE v2`: it reaches those that speak the same.
///
/// # Errors
/// Why there is none that reaches even itself, in words.
pub(crate) fn rdma_network(address: IpAddr) -> Result<String, String> {
    let options = rdma_options_at(address)?;
    let network = survey(&options).choice?.gid.kind.to_string();
    probe(&options).map_err(|error| error.to_string())?;
    Ok(network)
}

/// The RDMA devices of this machine, the one that [`FabricKind::Verbs`] would use, and why; and the
/// capabilities of a connection of it with itself.
///
/// # Errors
/// When [`RDMA_VARIABLE`] is wrong, in words.
pub fn rdma_survey() -> Result<(Survey, Option<Result<Caps, FabricError>>), String> {
    let options = rdma_options()?;
    let found = survey(&options);
    let tried = found.choice.is_ok().then(|| probe(&options));
    Ok((found, tried))
}

/// How the chosen device treats datagrams to a group: bytes of one, and whether they arrive;
/// `None` where there are no groups.
///
/// # Errors
/// When [`RDMA_VARIABLE`] is wrong, or the device refuses, in words.
pub fn rdma_groups() -> Result<Option<(usize, bool)>, String> {
    probe_groups(&rdma_options()?).map_err(|error| error.to_string())
}

impl fmt::Display for FabricKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FabricKind::Auto => "auto",
            FabricKind::Shm => "shm",
            FabricKind::Tcp => "tcp",
            FabricKind::Verbs => "verbs",
            FabricKind::Mpi => "mpi",
        })
    }
}

impl FromStr for FabricKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "auto" => Ok(FabricKind::Auto),
            "shm" => Ok(FabricKind::Shm),
            "tcp" => Ok(FabricKind::Tcp),
            "verbs" => Ok(FabricKind::Verbs),
            "mpi" => Ok(FabricKind::Mpi),
            _ => Err(format!("there is no fabric '{text}'; there are {}", Self::NAMES.join(", "))),
        }
    }
}
