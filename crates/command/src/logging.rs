//! Logs on standard error, because standard output contains results. Daemons can also export traces.

use std::fmt;

use clap::ValueEnum;
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::text;
use dayfly_telemetry::export::{self, Exporter};
use tracing::field::Field;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::fmt::format::{Writer, debug_fn};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

use crate::Global;

/// Format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Readable text
    Text,
    /// One JSON object per line
    Json,
}

/// Logging and tracing of a program.
#[derive(Debug, Clone, Copy)]
pub struct Telling {
    /// Default log level.
    pub level: &'static str,
    /// Service name in exported traces; `None` for programs that export none.
    pub service: Option<&'static str>,
}

/// Starts logging and tracing. Dropping the returned exporter sends the remaining traces.
pub fn start(global: &Global, usual: Telling) -> Result<Option<Exporter>, Failure> {
    let wanted = global
        .log
        .as_deref()
        .filter(|wanted| !wanted.is_empty())
        .unwrap_or(usual.level);
    let filter = EnvFilter::try_new(wanted).map_err(|error| {
        Failure::new(
            Code::InvalidRequest,
            format!("`{wanted}` is no log level: {error}; use error, warn, info, debug or trace"),
        )
    })?;
    let traces = usual.service.map(export::layer).transpose()?.flatten();
    let (traces, exporter) = traces.unzip();
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(crate::colours(&std::io::stderr()));
    let lines = match global.log_format {
        LogFormat::Text => lines.fmt_fields(debug_fn(field).delimited(" ")).boxed(),
        LogFormat::Json => lines.json().boxed(),
    };
    tracing_subscriber::registry()
        .with(traces)
        .with(lines.with_filter(filter))
        .init();
    Ok(exporter)
}

/// Writes a field of an entry. Peers and workers choose the content of many fields, so a field must not begin another
/// entry.
fn field(writer: &mut Writer<'_>, field: &Field, value: &dyn fmt::Debug) -> fmt::Result {
    let value = text::line(&format!("{value:?}"), text::MAX_FIELD_BYTES);
    match field.name() {
        "message" => write!(writer, "{value}"),
        name => write!(writer, "{name}={value}"),
    }
}
