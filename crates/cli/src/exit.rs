//! How a command that failed says so: a line on standard error, and an exit status that a script can act on.

use std::io::Write;
use std::process::ExitCode;

use clap::error::ErrorKind;
use mayfly_protocol::api::ErrorBody;
use mayfly_protocol::error::{Code, Failure};

use crate::output;

/// The command, its function or Mayfly failed.
const FAILED: u8 = 1;
/// The command was not understood.
const USAGE: u8 = 2;
/// Nobody answers.
const UNREACHABLE: u8 = 3;
/// Somebody answers, and refuses.
const REFUSED: u8 = 4;

/// The exit status for a code; the table in docs/reference/cli.md says the same.
pub fn status(code: Code) -> u8 {
    match code {
        Code::InvalidRequest => USAGE,
        Code::Unreachable | Code::TimedOut => UNREACHABLE,
        Code::NotFound
        | Code::Unauthorized
        | Code::LeaseExpired
        | Code::LeaseEnded
        | Code::NoCapacity
        | Code::TooLarge
        | Code::VersionMismatch
        | Code::PythonMismatch
        | Code::EnvironmentBuilding
        | Code::EnvironmentFailed
        | Code::IsolationUnavailable
        | Code::WorkerBusy
        | Code::Replayed
        | Code::TransportRefused
        | Code::PayloadTooLarge
        | Code::Rejected
        | Code::StaleEpoch
        | Code::QuotaExceeded
        | Code::Forbidden => REFUSED,
        _ => FAILED,
    }
}

fn tell(line: &str) {
    // With nobody at the other end there is nobody to tell.
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Tells of a failure.
pub fn report(failure: &Failure, json: bool) -> ExitCode {
    if json {
        let body = ErrorBody { error: failure.clone() };
        tell(&serde_json::to_string(&body).unwrap_or_else(|error| error.to_string()));
    } else {
        tell(&format!(
            "error [{}]: {}",
            failure.code.name(),
            output::lines(&failure.message)
        ));
    }
    ExitCode::from(status(failure.code))
}

/// Tells of arguments that were not understood, or prints the help that was asked for.
pub fn usage(error: &clap::Error, json: bool) -> ExitCode {
    if json && !matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        let text = error.render().to_string();
        let text = text.strip_prefix("error: ").unwrap_or(&text).trim();
        return report(&Failure::new(Code::InvalidRequest, text), true);
    }
    let _ = error.print();
    ExitCode::from(error.exit_code() as u8)
}
