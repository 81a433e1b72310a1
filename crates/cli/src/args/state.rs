//! The arguments of jobs that keep checkpoints.

use clap::{Args, ValueEnum};

/// Where a job keeps checkpoints.
#[derive(Debug, Clone, Args)]
pub(crate) struct StateArgs {
    /// Keeps checkpoints in this directory, or under this URL of a bucket: the job goes on where it
    /// was when it is run again, and a node that dies is started again
    #[arg(long, value_name = "DIR|URL")]
    pub(crate) state: Option<String>,

    /// The job's name among those of the directory [default: the file's name without extension]
    #[arg(long, value_name = "NAME", requires = "state")]
    pub(crate) job: Option<String>,

    /// The checkpoint that it goes on from: the latest one, none, or one by its number or name
    #[arg(long, value_name = "latest|none|N|NAME", requires = "state", default_value = "latest")]
    pub(crate) from: String,

    /// Drops state that the SQL has no use for any more, and begins what is new empty
    #[arg(long, requires = "state")]
    pub(crate) evolve: bool,

    /// The version of a pool's table that is pinned: the one that the job was saved with, or the
    /// newest one
    #[arg(long, requires = "state", value_enum, default_value_t)]
    pub(crate) pin: PinnedVersion,

    /// Ends another run of the job that may be alive
    #[arg(long, requires = "state")]
    pub(crate) take_over: bool,

    /// The other nodes that srun or another launcher has started exit with code 75 if one does not
    /// come back, or shrink: they go on without it
    #[arg(long, value_name = "exit|shrink", requires = "state", default_value = "exit")]
    pub(crate) on_loss: OnLoss,

    /// How long they wait until a node that was lost comes back
    #[arg(
        long,
        value_name = "SECONDS",
        requires = "state",
        default_value_t = 60,
        value_parser = super::seconds()
    )]
    pub(crate) rejoin_timeout: u32,
}

/// The answer of the other nodes if one does not come back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnLoss {
    /// They end, so that their launcher or its queue starts all again.
    Exit,
    /// They go on without it.
    Shrink,
}

/// The version of a pool's table that a job pins when it goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum PinnedVersion {
    /// The one that it was saved with.
    #[default]
    Saved,
    /// The newest one.
    Latest,
}

#[derive(Debug, Args)]
pub(crate) struct StopArgs {
    /// The job
    pub(crate) job: String,

    /// The directory of its checkpoints, or their URL
    #[arg(long, value_name = "DIR|URL")]
    pub(crate) state: String,
}

#[derive(Debug, Args)]
pub(crate) struct RescaleArgs {
    /// The job
    pub(crate) job: String,

    /// Processes that share the work from now on
    #[arg(long, value_name = "N", value_parser = super::nodes)]
    pub(crate) nodes: u32,

    /// The directory of its checkpoints, or their URL
    #[arg(long, value_name = "DIR|URL")]
    pub(crate) state: String,
}
