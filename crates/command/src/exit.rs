//! How a command that failed says so: a line on standard error, and an exit status that a script can act on.

use std::io::Write;
use std::process::ExitCode;

use dayfly_protocol::api::ErrorBody;
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::text;

/// The command, its function or Dayfly failed.
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
        | Code::Ambiguous
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
            text::lines(&failure.message, text::MAX_LINES_BYTES)
        ));
        if let Some(exception) = &failure.exception {
            tell(text::lines(&exception.traceback, text::MAX_LINES_BYTES).trim_end());
        }
    }
    ExitCode::from(status(failure.code))
}
