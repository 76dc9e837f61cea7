//! `dayfly manual`: manual pages, for packages.

use std::path::PathBuf;

use clap::{Args, CommandFactory};
use dayfly_command::Global;
use dayfly_protocol::error::{Code, Failure};

use crate::Cli;

/// Write a manual page for each command into a directory, for example below /usr/share/man/man1.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  dayfly manual /usr/local/share/man/man1")]
pub struct Arguments {
    /// An existing directory
    dir: PathBuf,
}

pub fn run(arguments: &Arguments, _: &Global) -> Result<(), Failure> {
    clap_mangen::generate_to(Cli::command(), &arguments.dir).map_err(|error| {
        let text = format!("the manual cannot be written to {}: {error}", arguments.dir.display());
        Failure::new(Code::InvalidRequest, text)
    })
}
