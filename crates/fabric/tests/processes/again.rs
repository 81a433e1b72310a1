//! This test binary as a process of its own.

use std::process::Command;

/// Starts this binary once more. A binary for another architecture needs a program that runs
/// it: `MILLSTREAM_TEST_RUNNER` has its name and arguments.
pub fn this_binary() -> Command {
    let binary = std::env::current_exe().expect("this binary has a path");
    let runner = std::env::var("MILLSTREAM_TEST_RUNNER").unwrap_or_default();
    let mut words = runner.split_whitespace();
    let Some(program) = words.next() else { return Command::new(binary) };
    let mut command = Command::new(program);
    command.args(words).arg(binary);
    command
}
