//! `dayfly completions`: shell completions.

use clap::{Args, CommandFactory};
use clap_complete::Shell;
use dayfly_command::Global;
use dayfly_protocol::error::Failure;

use crate::{Cli, output};

/// Print completions for a shell.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dayfly completions bash > ~/.local/share/bash-completion/completions/dayfly
  dayfly completions zsh > ~/.zfunc/_dayfly          with ~/.zfunc on $fpath
  dayfly completions fish > ~/.config/fish/completions/dayfly.fish")]
pub struct Arguments {
    /// Shell
    #[arg(value_enum)]
    shell: Shell,
}

pub fn run(arguments: &Arguments, _: &Global) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut Cli::command(), "dayfly", &mut script);
    output::bytes(&script);
    Ok(())
}
