//! `millstream explain`.

use std::process::ExitCode;

use crate::args::{ExplainArgs, ProgressStyle};
use crate::failure::Failure;
use crate::screen::Screen;
use crate::session::{millstream_session, print};
use crate::{log, script};

/// Runs the command.
pub(crate) fn explain(args: &ExplainArgs) -> Result<ExitCode, Failure> {
    log::start(&args.log.log, &Screen::new(ProgressStyle::None), None);
    let script = script::read(&args.job.file)?;
    let explained = millstream_session(&args.job.layout)
        .build()
        .and_then(|mut session| session.explain_as(&script.sql, args.format));
    match explained {
        Ok(text) => {
            print(&text);
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => Err(Failure::of(&error, &script.name, &script.sql)),
    }
}
