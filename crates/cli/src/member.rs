//! `millstream run`, as another node than 0: the same program, started by node 0.
//!
//! It takes the SQL from node 0, and leaves it to node 0 to tell the user why a job ended.

use std::process::ExitCode;
use std::sync::atomic::AtomicBool;

use millstream::cluster::{Control, Invitation};
use millstream::{Error, RunOptions};

use crate::args::{ProgressStyle, RunArgs};
use crate::failure::Failure;
use crate::output::OutputWriter;
use crate::recover;
use crate::screen::Screen;
use crate::session::{SCRIPT_STEP, Start, session};
use crate::signals;
use crate::telemetry::Telemetry;

/// Joins, runs this node's part, ends.
pub(crate) fn run(args: &RunArgs, invitation: &Invitation) -> Result<ExitCode, Failure> {
    let screen = Screen::new(ProgressStyle::None);
    let telemetry = Telemetry::start(&args.telemetry, &args.log, &screen, false)?;
    let cancel = signals::member_flag()?;
    let control = invitation
        .join()
        .map_err(|error| Failure::runtime(&error.to_string(), error.hint().as_deref()))?;
    let ended = match work(args, &control, &cancel, &screen) {
        Ok(()) => {
            control.close();
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => {
            tracing::debug!(%error, "this node ends");
            if error.failed_node().is_none() {
                control.fail(&error.reason());
            }
            Err(Failure::silent())
        }
    };
    telemetry.end();
    ended
}

fn work(
    args: &RunArgs,
    control: &Control,
    cancel: &AtomicBool,
    screen: &Screen,
) -> Result<(), Error> {
    let mut scripts = control.all_gather(SCRIPT_STEP, Vec::new())?;
    let (sql, start) =
        Start::decode(&scripts.swap_remove(0)).ok_or(Error::Unlike { rank: 0, what: "script" })?;
    // Node 0 has looked at the arguments, and rows are gathered there.
    let session = session(args, OutputWriter::stdout(screen), &start);
    let session = session.map_err(|_| Error::Unlike { rank: 0, what: "arguments" })?;
    let planned = session?.sql(&sql)?;
    let cancel = Some(cancel);
    let state = recover::state_of(args);
    let state = state.map_err(|_| Error::Unlike { rank: 0, what: "arguments" })?;
    let (control, state) = (Some(control), state.as_ref());
    planned.run(&RunOptions { control, cancel, state, ..RunOptions::default() })?;
    Ok(())
}
