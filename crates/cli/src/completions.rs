//! `mayfly completions`: what a shell needs to complete command lines.

use clap::{Args, CommandFactory};
use clap_complete::Shell;
use mayfly_protocol::error::Failure;

use crate::{Cli, Global, output};

/// Print completions for a shell.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  mayfly completions bash > ~/.local/share/bash-completion/completions/mayfly
  mayfly completions zsh > ~/.zfunc/_mayfly          with ~/.zfunc on $fpath
  mayfly completions fish > ~/.config/fish/completions/mayfly.fish")]
pub struct Arguments {
    /// Which shell
    #[arg(value_enum)]
    shell: Shell,
}

pub fn run(arguments: &Arguments, _: &Global) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut Cli::command(), "mayfly", &mut script);
    output::bytes(&script);
    Ok(())
}
