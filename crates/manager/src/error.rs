//! Why a manager does not start.

use std::net::SocketAddr;
use std::path::PathBuf;

use dayfly_protocol::error::{Code, Failure};

use dayfly_store::StoreError;

/// Why a manager does not start. Each tells what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Somebody else listens there.
    #[error("{0} is already in use; stop what listens there, or choose another with `--listen`")]
    AddressInUse(SocketAddr),
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}; choose an address of this machine, and a port above 1023")]
    Listen {
        /// Which.
        address: SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file of the state directory.
    #[error("cannot use {path}: {source}; check its owner, its mode and the disk, or choose another state directory")]
    File {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file of the state directory has the wrong contents.
    #[error("{path} is damaged ({why}); restore it from a backup, or remove it to have a new one made")]
    Damaged {
        /// Which.
        path: PathBuf,
        /// How it shows.
        why: String,
    },
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The durable tasks.
    #[error("{0}")]
    Tasks(#[from] Failure),
    /// The place where the ranks of groups meet.
    #[error("{0}")]
    Rendezvous(String),
    /// Cryptography.
    #[error("cannot make keys and certificates: {0}; check the names given with `--host-name`")]
    Certificate(String),
}

impl Error {
    /// Its stable code.
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
