//! What can keep a measurement from being made or believed.

use crate::busy::Busy;
use dayfly_protocol::error::Code;

/// A measurement that was not made, or that must not be believed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system refused something that the measurement needs.
    #[error("cannot {what}: {source}; check the process's limits and permissions and run the measurement again")]
    Os {
        /// What was tried, as the end of "cannot ...".
        what: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
    /// The process on the other side of a baseline ended or stopped answering.
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
    /// A subject of the measurement failed; the text is its own.
    #[error("{0}")]
    Subject(String),
    /// The machine was too busy for the figures to mean anything.
    #[error(transparent)]
    Busy(#[from] Box<Busy>),
    /// The picture could not be drawn.
    #[error("cannot draw the picture: {0}")]
    Picture(String),
}

impl Error {
    /// The code under which this is reported to a user.
    pub fn code(&self) -> Code {
        match self {
            Error::Busy(_) => Code::NoCapacity,
            _ => Code::Internal,
        }
    }

    /// The last error of the operating system, with what was tried.
    pub(crate) fn last_os(what: &'static str) -> Self {
        Error::Os {
            what,
            source: std::io::Error::last_os_error(),
        }
    }

    /// Gives an I/O error its context.
    pub(crate) fn os(what: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Error::Os { what, source }
    }
}
