//! `dayfly bench` and `dayfly simulate`: execute the program that measures and simulates, `dayfly-bench`.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use dayfly_command::beside;
use dayfly_protocol::error::{Code, Failure};

const PROGRAM: &str = "dayfly-bench";

/// Why `dayfly-bench` did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// There is none beside `dayfly`, nor on the `PATH`.
    #[error(
        "`{PROGRAM}`, the program that measures and simulates, is neither beside `dayfly` nor on the PATH. Copy it into the directory of \
         `dayfly`; `make build` makes both"
    )]
    Missing,
    /// The operating system refused to start it.
    #[error("{} cannot be started: {source}. Install it again, as a program that you may run", .path.display())]
    Refused {
        /// What was tried.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

impl From<StartError> for Failure {
    fn from(error: StartError) -> Self {
        let code = match error {
            StartError::Missing => Code::NotFound,
            StartError::Refused { .. } => Code::Internal,
        };
        Failure::new(code, error.to_string())
    }
}

/// Replaces this process by `dayfly-bench`, with the same arguments and environment. Returns only when that fails.
pub fn run() -> StartError {
    let path = beside(PROGRAM);
    let source = Command::new(&path).args(std::env::args_os().skip(1)).exec();
    match source.kind() {
        std::io::ErrorKind::NotFound => StartError::Missing,
        _ => StartError::Refused { path, source },
    }
}
