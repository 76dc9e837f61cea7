//! Logs, on standard error: standard output belongs to results. Daemons also send traces to whoever collects them.

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

/// How lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people
    Text,
    /// One JSON object a line
    Json,
}

/// What a program tells of itself when it is not asked.
#[derive(Debug, Clone, Copy)]
pub struct Telling {
    /// The level at which it logs unless told otherwise.
    pub level: &'static str,
    /// As what it is known to whoever collects traces; none for programs that send none.
    pub service: Option<&'static str>,
}

/// Starts logging and tracing. What it answers sends the last of the traces when it is dropped.
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

/// Writes a field of an entry. Peers and workers choose what is in many of them: none may begin another entry.
fn field(writer: &mut Writer<'_>, field: &Field, value: &dyn fmt::Debug) -> fmt::Result {
    let value = text::line(&format!("{value:?}"), text::MAX_FIELD_BYTES);
    match field.name() {
        "message" => write!(writer, "{value}"),
        name => write!(writer, "{name}={value}"),
    }
}
