//! Errors of measurements.

use crate::busy::Busy;
use dayfly_protocol::error::Code;

/// Why there is no reliable measurement.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system refused an operation.
    #[error("cannot {what}: {source}; check the process's limits and permissions and run the measurement again")]
    Os {
        /// The operation, as the end of "cannot ...".
        what: &'static str,
        /// The system's error.
        source: std::io::Error,
    },
    /// The peer of a baseline ended or stopped responding.
    #[error("the peer process of the baseline `{baseline}` {what}; run the measurement again")]
    Peer {
        /// The baseline's name.
        baseline: String,
        /// What happened to the peer.
        what: &'static str,
    },
    /// The raw TLS echo could not be set up or broke.
    #[error("the raw TLS echo failed: {0}; this is a fault of the baseline, not of Dayfly")]
    Tls(String),
    /// The subject of the measurement failed, with this text.
    #[error("{0}")]
    Subject(String),
    /// The machine was too busy for reliable figures.
    #[error(transparent)]
    Busy(#[from] Box<Busy>),
    /// The picture could not be drawn.
    #[error("cannot draw the picture: {0}")]
    Picture(String),
}

impl Error {
    /// Returns the error code for users.
    pub fn code(&self) -> Code {
        match self {
            Error::Busy(_) => Code::NoCapacity,
            _ => Code::Internal,
        }
    }

    /// Returns the last error of the operating system for an operation.
    pub(crate) fn last_os(what: &'static str) -> Self {
        Error::Os {
            what,
            source: std::io::Error::last_os_error(),
        }
    }

    /// Returns a function that adds the operation to an I/O error.
    pub(crate) fn os(what: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Error::Os { what, source }
    }
}
