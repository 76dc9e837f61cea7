//! `dayfly version`.

use clap::Args;
use dayfly_command::Global;
use dayfly_protocol::WIRE_VERSION;
use dayfly_protocol::error::Failure;
use serde_json::json;

use crate::output;

/// Print the release of this program.
#[derive(Debug, Args)]
#[command(after_help = "Programs of different releases work together if their wire versions are equal.")]
pub struct Arguments {}

pub fn run(_: &Arguments, global: &Global) -> Result<(), Failure> {
    let version = env!("CARGO_PKG_VERSION");
    let (target, profile, compiler) = (
        env!("DAYFLY_BUILT_FOR"),
        env!("DAYFLY_BUILT_AS"),
        env!("DAYFLY_BUILT_BY"),
    );
    output::line(&if global.json {
        output::json(&json!({
            "version": version,
            "wire_version": WIRE_VERSION,
            "build": { "target": target, "profile": profile, "compiler": compiler },
        }))?
    } else {
        format!(
            "dayfly {version}\n  wire version  {WIRE_VERSION}\n  built for     {target} ({profile})\n  built by      {compiler}"
        )
    });
    Ok(())
}
