//! Errors between nodes, and whose fault they are.

use std::fmt;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::PathBuf;

use thiserror::Error;

/// A failure of the control plane.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// Zero nodes, or more than [`NODES_MAX`](crate::NODES_MAX). The caller is at fault.
    #[error("a job has 1 to {} nodes, not {nodes}", crate::NODES_MAX)]
    Nodes {
        /// The value that was asked for.
        nodes: u32,
    },
    /// The control plane is not authenticated well enough for other hosts. The caller is at fault.
    #[error("cannot listen on {addr}: beyond loopback, nodes have to prove who they are")]
    NotLoopback {
        /// The value that was asked for.
        addr: SocketAddr,
    },
    /// A service would be open to other hosts, and knows its clients by nothing. The caller is at
    /// fault.
    #[error("cannot listen on {addr}: beyond loopback, clients have to prove who they are")]
    Unproved {
        /// The value that was asked for.
        addr: SocketAddr,
    },
    /// Nothing answers at the address of a service, or it refuses this process.
    #[error("cannot attach to {addr}: {detail}")]
    Attach {
        /// Where it should listen.
        addr: SocketAddr,
        /// The reason.
        detail: String,
    },
    /// There is no token file of a service: it does not run, or for another user.
    #[error("cannot attach to {addr}: no service of this user listens there")]
    NoToken {
        /// Where it should listen.
        addr: SocketAddr,
    },
    /// The token file of a service cannot be used.
    #[error("cannot use the token file {}: {source}", .path.display())]
    TokenFile {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// What a launcher left in the environment contradicts itself. The launcher is at fault, or
    /// whoever imitates one.
    #[error("the launcher's environment is incomplete: {detail}")]
    Environment {
        /// The reason.
        detail: String,
    },
    /// No address of this host is known that others could use.
    #[error("cannot find the address by which other nodes reach this host: {detail}")]
    NoAddress {
        /// The operation that failed.
        detail: String,
    },
    /// The directory in which nodes leave word for each other cannot be used.
    #[error("cannot use the rendezvous directory {}: {source}", .directory.display())]
    Rendezvous {
        /// The directory.
        directory: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// Another process is this node of a job of the same name.
    #[error(
        "process {process} on {host} is node {rank} of job '{job}' already ({})",
        .file.display()
    )]
    Taken {
        /// The bytes that it left.
        file: PathBuf,
        /// The job.
        job: String,
        /// The node that both want to be.
        rank: u32,
        /// The other process.
        process: u32,
        /// Its host.
        host: String,
    },
    /// The other side cannot prove that it is of this cluster, or does not believe that this node
    /// is.
    #[error("node {rank} at {addr} is not of this cluster: {detail}")]
    Stranger {
        /// The node that should be there.
        rank: u32,
        /// Where it listens.
        addr: SocketAddr,
        /// The reason.
        detail: String,
    },
    /// A certificate or key cannot be read or written.
    #[error("{}: {detail}", .file.display())]
    Certificate {
        /// The file.
        file: PathBuf,
        /// The reason.
        detail: String,
    },
    /// Nodes are missing, and the launcher does not tell which.
    #[error("not all of {nodes} nodes came within {seconds} s")]
    Barrier {
        /// Nodes of the job.
        nodes: u32,
        /// How long they were waited for.
        seconds: f32,
    },
    /// Another process has the port. The user chooses another one.
    #[error("cannot listen on {addr}: the port is in use")]
    PortInUse {
        /// The value that was asked for.
        addr: SocketAddr,
    },
    /// The operating system refused to listen.
    #[error("cannot listen on {addr}: {source}")]
    Listen {
        /// The value that was asked for.
        addr: SocketAddr,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// A node's program could not be started.
    #[error("cannot start node {rank} ({program}): {source}")]
    Start {
        /// The node.
        rank: u32,
        /// Its program.
        program: String,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// The environment holds an invitation that this version cannot read. The launcher is of
    /// another version.
    #[error("the invitation in {} is malformed", crate::INVITATION_VARIABLE)]
    Invitation,
    /// A node did not come, or the connection to it could not be made.
    #[error("node {rank} did not join: {detail}")]
    Join {
        /// The node that is missing.
        rank: u32,
        /// The observed failure.
        detail: String,
    },
    /// The other side does not know this job: a stray process, or a left-over of an earlier launch.
    #[error("node {rank} at {addr} refused this process: {reason}")]
    Refused {
        /// The node that refused.
        rank: u32,
        /// Where it listens.
        addr: SocketAddr,
        /// Its message.
        reason: String,
    },
    /// A node failed.
    #[error(transparent)]
    Node(#[from] NodeFailure),
    /// The nodes do not run the same program.
    #[error("node {rank} is at step '{theirs}' while this one is at '{ours}'")]
    Step {
        /// The node that differs.
        rank: u32,
        /// Its step.
        theirs: String,
        /// Our step.
        ours: String,
    },
    /// More bytes than a frame may carry. The caller is at fault.
    #[error("{bytes} bytes exceed a control frame's {}", crate::FRAME_BYTES_MAX)]
    TooLarge {
        /// The value that was asked for.
        bytes: usize,
    },
    /// The handle was closed.
    #[error("the control plane is closed")]
    Closed,
    /// The operating system refused a thread, a socket or a random number.
    #[error("the operating system refused {what}: {source}")]
    System {
        /// The operation that was refused.
        what: &'static str,
        /// Its message.
        source: std::io::Error,
    },
}

impl ClusterError {
    /// A hint for the user.
    pub fn hint(&self) -> Option<String> {
        match self {
            ClusterError::Nodes { .. } => Some("use --nodes 1 for a single process".into()),
            ClusterError::NotLoopback { .. } => Some(
                "use a loopback address such as 127.0.0.1:0 (port 0 takes a free one); beyond \
                     it nodes that mpirun or srun starts need certificates (--certs), or a network \
                     that you trust (--insecure)"
                    .into(),
            ),
            ClusterError::Unproved { .. } => Some(
                "--certs DIR names a certificate, which `millstream cert issue` has made; or use a \
                 loopback address such as 127.0.0.1:0"
                    .into(),
            ),
            ClusterError::TokenFile { source, .. } if source.kind() == ErrorKind::AlreadyExists => {
                Some("it is not written over: remove it, or name another one".into())
            }
            ClusterError::TokenFile { .. } => {
                Some("XDG_RUNTIME_DIR names a directory of this user".into())
            }
            ClusterError::Stranger { .. } => Some(
                "all nodes of a job need --certs, with certificates that one authority has issued \
                 and that have not expired"
                    .into(),
            ),
            ClusterError::Certificate { .. } => Some(
                "`millstream cert init` makes an authority, `millstream cert issue` certificates \
                 of nodes"
                    .into(),
            ),
            ClusterError::Environment { .. } => {
                Some("start it with mpirun or srun, or unset these variables".into())
            }
            ClusterError::NoAddress { .. } => {
                Some("--listen ADDR:0 names it, with an address of this host".into())
            }
            ClusterError::Rendezvous { .. } => {
                Some("--rendezvous DIR names another, which all nodes can write".into())
            }
            ClusterError::Taken { .. } => Some(format!(
                "jobs that run at the same time need names of their own ({}) or directories of \
                 their own (--rendezvous DIR)",
                crate::JOB_VARIABLE
            )),
            ClusterError::Join { .. } | ClusterError::Barrier { .. } => Some(
                "see the messages of that node; --join-timeout waits longer, --rendezvous DIR has \
                 to be one directory for all nodes, and --listen ADDR:0 names an address at which \
                 other hosts reach this one"
                    .into(),
            ),
            ClusterError::PortInUse { .. } => {
                Some("choose another port with --listen, or port 0 for a free one".into())
            }
            ClusterError::Node(failure) => failure.hint(),
            _ => None,
        }
    }

    pub(crate) fn system(what: &'static str) -> impl FnOnce(std::io::Error) -> ClusterError {
        move |source| ClusterError::System { what, source }
    }
}

/// Which node ended the job, and how. Every node of a job gives the same answer.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{}", self.describe())]
pub struct NodeFailure {
    /// The node at fault.
    pub rank: u32,
    /// Its process; 0 where it never said.
    pub process: u32,
    /// How it ended.
    pub cause: Cause,
}

/// How a node ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cause {
    /// It said why, in one line. Lines behind it are for the layer above, which wrote them.
    Reported(String),
    /// Its process ended with this code and without a word.
    Exited(i32),
    /// Its process was killed by this signal.
    Killed(i32),
    /// Its connection closed; nothing is known of its process.
    Lost,
    /// It neither spoke nor closed its connection for this number of milliseconds.
    Silent(u32),
    /// It sent what no node sends.
    Malformed(String),
}

impl NodeFailure {
    /// A hint for the user.
    pub fn hint(&self) -> Option<String> {
        match self.cause {
            Cause::Killed(9) => Some(
                "if nobody killed it, the kernel did, for want of memory: see `dmesg`, and lower \
                 --workers or the state budget"
                    .into(),
            ),
            Cause::Silent(_) => Some(
                "the process is stopped or starved of processor time, or the network no longer \
                 reaches its host"
                    .into(),
            ),
            _ => None,
        }
    }

    fn describe(&self) -> String {
        let Self { rank, process, cause } = self;
        let node = match process {
            0 => format!("node {rank}"),
            _ => format!("node {rank} (process {process})"),
        };
        match cause {
            Cause::Reported(reason) => {
                format!("node {rank}: {}", reason.lines().next().unwrap_or_default())
            }
            Cause::Exited(code) => format!("{node} ended with exit code {code}"),
            Cause::Killed(signal) => format!("{node} was killed by signal {signal}"),
            Cause::Lost => format!("{node} closed its connection before the job had ended"),
            Cause::Silent(ms) => format!("{node} has been silent for {}", Millis(*ms)),
            Cause::Malformed(what) => format!("{node} sent a malformed frame: {what}"),
        }
    }
}

struct Millis(u32);

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{} s", self.0 / 1000, self.0 % 1000 / 100)
    }
}
