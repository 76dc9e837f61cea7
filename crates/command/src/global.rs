//! The options that every command takes.

use std::path::PathBuf;

use clap::Args;

use crate::logging::LogFormat;

/// What every command takes.
#[derive(Debug, Args)]
pub struct Global {
    /// Print for programs: JSON on standard output, errors as JSON on standard error
    #[arg(long, global = true, display_order = 900)]
    pub json: bool,
    /// Connection file of the manager, or its state directory [default: $DAYFLY_MANAGER, or that of `dayfly up`]
    #[arg(long, global = true, value_name = "PATH", display_order = 901)]
    pub manager: Option<PathBuf>,
    /// What to log on standard error: error, warn, info, debug, trace, or directives such as dayfly_node=debug
    #[arg(
        long,
        global = true,
        value_name = "LEVEL",
        env = "DAYFLY_LOG",
        hide_env_values = true,
        display_order = 902
    )]
    pub log: Option<String>,
    /// How to log
    #[arg(
        long,
        global = true,
        value_enum,
        default_value = "text",
        value_name = "FORMAT",
        display_order = 903
    )]
    pub log_format: LogFormat,
}
