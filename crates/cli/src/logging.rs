//! Logs, on standard error: standard output belongs to results.

use clap::ValueEnum;
use mayfly_protocol::error::{Code, Failure};
use tracing_subscriber::EnvFilter;

use crate::Global;

/// How lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people
    Text,
    /// One JSON object a line
    Json,
}

/// Starts logging, at the usual level unless told otherwise.
pub fn start(global: &Global, usual: &str) -> Result<(), Failure> {
    let wanted = global
        .log
        .as_deref()
        .filter(|wanted| !wanted.is_empty())
        .unwrap_or(usual);
    let filter = EnvFilter::try_new(wanted).map_err(|error| {
        Failure::new(
            Code::InvalidRequest,
            format!("`{wanted}` is no log level: {error}; use error, warn, info, debug or trace"),
        )
    })?;
    let colours = crate::output::colours(&std::io::stderr());
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(colours);
    match global.log_format {
        LogFormat::Text => builder.init(),
        LogFormat::Json => builder.json().init(),
    }
    Ok(())
}
