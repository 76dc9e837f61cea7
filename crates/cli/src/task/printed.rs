//! The output of a task.

use clap::Args;
use dayfly_client::Client;
use dayfly_command::Global;
use dayfly_protocol::error::Failure;
use dayfly_protocol::id_pattern::IdPattern;
use dayfly_protocol::node_api::Stream;
use dayfly_protocol::tasks::TaskOutputPage;

use super::outcome::ASK;
use crate::{output, values};

/// Show a task's standard output and error: the last 64 KiB, kept with its outcome.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dayfly task output 019a51c3e0f07d2c9b64f1a85be3d207
  dayfly task output 019a51c3e0f07d2c9b64f1a85be3d207 --follow      until the task has ended
  dayfly task output 019a51c3e0f07d2c9b64f1a85be3d207 --stream err  standard error only")]
pub struct Printed {
    /// Id, or at least six digits of its beginning or end
    #[arg(value_name = "ID", value_parser = values::id)]
    pub task: IdPattern,
    /// Follow the output until the task has ended
    #[arg(long, short)]
    pub follow: bool,
    /// Show only standard output or standard error
    #[arg(long, value_enum, value_name = "STREAM")]
    pub stream: Option<Channel>,
    /// Write control characters to a terminal unchanged
    #[arg(long, conflicts_with = "json")]
    pub raw: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Channel {
    /// Standard output
    Out,
    /// Standard error
    Err,
}

/// Prints the output of a task, each stream to the stream of the same name.
pub fn printed(wanted: &Printed, client: &Client, global: &Global) -> Result<(), Failure> {
    let task = super::whole(&wanted.task, client)?;
    let mut printer = output::Printer::new(global.json, wanted.raw);
    let mut from = 0;
    loop {
        let wait_ms = if wanted.follow { ASK.as_millis() } else { 0 };
        let path = format!("/v1/tasks/{task}/output?from={from}&wait_ms={wait_ms}");
        let answer: TaskOutputPage = client.get(&path).map_err(|error| error.0)?;
        if answer.from > from {
            eprintln!(
                "dayfly task: {} bytes before this are not kept any more",
                answer.from - from
            );
        }
        let is_done = answer.over || (!wanted.follow && answer.pieces.is_empty());
        from = answer.next;
        let shown = answer.pieces.into_iter().filter(|piece| match wanted.stream {
            None => true,
            Some(Channel::Out) => piece.stream == Stream::Out,
            Some(Channel::Err) => piece.stream == Stream::Err,
        });
        let shown = shown.map(|piece| (piece.stream, piece.bytes.to_vec()));
        if !printer.show(shown)? || is_done {
            return Ok(());
        }
    }
}
