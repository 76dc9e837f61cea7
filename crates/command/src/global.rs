//! Options of all commands.

use std::path::PathBuf;

use clap::Args;

use crate::logging::LogFormat;

/// Options of all commands.
#[derive(Debug, Args)]
pub struct Global {
    /// Print JSON: results on standard output, errors on standard error
    #[arg(long, global = true, display_order = 900)]
    pub json: bool,
    /// Connection file or state directory of the manager [default: $DAYFLY_MANAGER, else that of `dayfly up`]
    #[arg(long, global = true, value_name = "PATH", display_order = 901)]
    pub manager: Option<PathBuf>,
    /// Log level on standard error: error, warn, info, debug, trace, or directives such as dayfly_node=debug
    #[arg(
        long,
        global = true,
        value_name = "LEVEL",
        env = "DAYFLY_LOG",
        hide_env_values = true,
        display_order = 902
    )]
    pub log: Option<String>,
    /// Format of the log
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
