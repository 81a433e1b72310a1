//! Layer 4: the nodes of a job.
//!
//! Starts the processes of a job on this machine, or meets those that a launcher started, connects
//! each with each, and gives them the few
//! things that a job needs beside its data: an exchange of small byte strings by step, notes from
//! one to another, a word about progress, a request to end, and one clear reason when a node dies.
//! Rows never travel here.
//!
//! ```text
//!   rank 0  listens ── starts ──▶ ranks 1..N          Invitation in the environment
//!   rank r  ── Hello{token, rank, port} ──▶ rank 0 ── Welcome{ports of all} ──▶ rank r
//!   rank r  ── Hello ──▶ ranks 1..r, accepts r+1..N   one connection per pair (A1)
//!
//!   mpirun, srun start ranks 0..N         rank and size in the environment: Assignment
//!   rank r  ── Card{address, token} ──▶ a shared directory, or the launcher (PMI-1)
//!   rank r  ── Hello{token of s} ──▶ ranks s < r, accepts r+1..N
//! ```
//!
//! Invariants:
//! * A node that dies or falls silent is a [`NodeFailure`] on every other node within five seconds,
//!   and all nodes name the same one: where rank 0 started the processes it knows best, and its
//!   verdict is awaited. Processes that rank 0 started have ended by then, too
//!   ([`Children::wait_after`]).
//! * Frames are limited and checked before they are believed; a peer without the job's token is
//!   refused.
//! * Nothing outlives a rank 0 that started the others: the kernel kills the children of a launcher
//!   that dies.
//! * Nothing listens beyond loopback unless nodes show certificates of their cluster, or the caller
//!   says that the network is trusted.
//!
//! Out of scope: encrypting rows, restarting a node, knowledge of operators.
//!
//! ```
//! let nodes = cluster::in_process(2)?;
//! std::thread::scope(|scope| {
//!     for control in &nodes {
//!         scope.spawn(move || {
//!             let all = control.all_gather("greet", vec![control.rank() as u8]).unwrap();
//!             assert_eq!(all, [[0], [1]]);
//!             control.close()
//!         });
//!     }
//! });
//! # Ok::<(), cluster::ClusterError>(())
//! ```
#![forbid(unsafe_code)]

mod acceptor;
mod attach;
mod bootstrap;
pub mod certs;
mod control;
mod control_thread;
mod error;
mod frame;
#[doc(hidden)]
pub mod hostile;
mod launch;
mod launcher;
mod mesh;
mod messages;
mod pmi;
mod rendezvous;
mod secure;

pub use attach::{Attachment, Role, Service};
pub use bootstrap::JoinOptions;
pub use control::{Control, ControlId, PROGRESS_BYTES_MAX};
pub use error::{Cause, ClusterError, NodeFailure};
pub use frame::FRAME_BYTES_MAX;
pub use launch::{Children, LOST_AFTER, Launched, LocalLaunch, StderrLine, launch_local};
pub use launcher::{Assignment, JOB_VARIABLE};
pub use mesh::{INVITATION_VARIABLE, Invitation, in_process};
pub use messages::CONTROL_MESSAGE_BYTES_MAX;

/// Nodes of a job at most: each keeps a connection with every other.
pub const NODES_MAX: u32 = 256;
