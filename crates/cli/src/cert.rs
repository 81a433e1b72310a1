//! `millstream cert`: an authority for a cluster, and certificates of its nodes.

use std::process::ExitCode;

use millstream::cluster::certs;

use crate::args::{CertArgs, CertCommand};
use crate::failure::Failure;

/// Makes what is asked for, and says on standard error where it is.
pub(crate) fn cert(args: &CertArgs) -> Result<ExitCode, Failure> {
    let (made, message) = match &args.make {
        CertCommand::Init { directory, days } => (
            certs::init(directory, *days),
            format!("an authority for {days} days in {}; ca.key stays there", directory.display()),
        ),
        CertCommand::Issue { authority, directory, days, reader: true } => (
            certs::issue_reader(authority, directory, *days),
            format!(
                "a reader's certificate for {days} days in {}, for --pool-certs",
                directory.display()
            ),
        ),
        CertCommand::Issue { authority, directory, days, reader: false } => (
            certs::issue(authority, directory, *days),
            format!("a certificate for {days} days in {}, for --certs", directory.display()),
        ),
    };
    made.map_err(|error| Failure::runtime(&error.to_string(), None))?;
    eprintln!("{message}");
    Ok(ExitCode::SUCCESS)
}
