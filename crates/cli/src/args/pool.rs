//! The arguments of `millstream pool`.

use clap::{Args, Subcommand};

use super::{LogArgs, PoolArgs};

#[derive(Debug, Args)]
pub(crate) struct PoolCommandArgs {
    /// The subcommand.
    #[command(subcommand)]
    pub(crate) command: PoolCommand,

    #[command(flatten)]
    pub(crate) pool: PoolArgs,

    /// Writes JSON instead of a table
    #[arg(long, global = true)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) log: LogArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum PoolCommand {
    /// Lists the tables.
    Ls,
    /// Shows the servers, or what a table consists of.
    Stat {
        /// The table
        table: Option<String>,
    },
    /// Reads all blocks of a table, and has the servers compare them with what was written.
    Verify {
        /// The table
        table: String,
    },
    /// Drops a table; statements that read it go on.
    Drop {
        /// The table
        table: String,
    },
    /// Gives up a server that never comes back: tables that lay there in part are dropped.
    Forget {
        /// The server's name
        server: String,
    },
}
