//! Reports of failures: a line on standard error, and an exit status for scripts.

use std::io::Write;
use std::process::ExitCode;

use dayfly_protocol::api::ErrorBody;
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::text;

/// The command, its function or Dayfly failed.
const FAILED: u8 = 1;
/// Wrong usage.
const USAGE: u8 = 2;
/// No response, or not in time.
const UNREACHABLE: u8 = 3;
/// The request was refused.
const REFUSED: u8 = 4;

/// Returns the exit status for a code, as in the table of docs/reference/cli.md.
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
    // Ignore the error: standard error has no reader.
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Reports a failure on standard error. Returns the exit status.
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
