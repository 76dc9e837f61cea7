//! Why a manager does not start.

use std::net::SocketAddr;
use std::path::PathBuf;

use dayfly_protocol::error::{Code, Failure};

use dayfly_store::StoreError;

/// Why a manager does not start. Each message says what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another process listens on the address.
    #[error("{0} is in use by another process; stop it, or choose another address with `--listen`")]
    AddressInUse(SocketAddr),
    /// The manager cannot listen on the address.
    #[error("cannot listen on {address}: {source}; choose an address of this machine, and a port above 1023")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        source: std::io::Error,
    },
    /// A file of the state directory cannot be read or written.
    #[error("cannot use {path}: {source}; check its owner, its mode and the disk, or choose another state directory")]
    File {
        /// Its path.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A file of the state directory has invalid contents.
    #[error("{path} is damaged ({why}); restore it from a backup, or remove it and the manager makes a new one")]
    Damaged {
        /// Its path.
        path: PathBuf,
        /// The problem.
        why: String,
    },
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The durable tasks failed.
    #[error("{0}")]
    Tasks(#[from] Failure),
    /// The rendezvous of groups cannot listen.
    #[error("{0}")]
    Rendezvous(String),
    /// Keys or certificates cannot be made.
    #[error("cannot make keys and certificates: {0}; check the names given with `--host-name`")]
    Certificate(String),
}

impl Error {
    /// The stable error code.
    pub fn code(&self) -> Code {
        match self {
            Self::AddressInUse(_) => Code::AddressInUse,
            Self::Listen { .. } | Self::Certificate(_) | Self::Rendezvous(_) => Code::InvalidRequest,
            Self::Tasks(failure) => failure.code,
            Self::Store(StoreError::Lost(_)) => Code::StoreLost,
            Self::File { .. } | Self::Damaged { .. } | Self::Store(_) => Code::StoreFailed,
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::new(error.code(), error.to_string())
    }
}
