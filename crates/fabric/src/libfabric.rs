//! Remote memory access over libfabric: RDMA where the hardware supports it, and software providers elsewhere.
//!
//! The library is loaded when a channel first needs it, so the same program runs on hosts without it. A worker loads it
//! after the fork, because it may start threads. Any version from 1.15 on is supported.

mod choice;
mod control;
pub mod ffi;
mod handshake;
mod layout;
mod link;
mod pipe;
mod receive;
mod registration;
mod send_queue;
#[cfg(test)]
mod tests;

pub use choice::{Choice, ChoiceError};
use control::Control;
pub use control::FabricSleeper;
pub use link::FabricLink;
pub(crate) use link::MAX_PAUSE;
pub use pipe::{OpenResult, Pipe};

/// An error of libfabric or of its use.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FabricError {
    /// The library is not installed, or too old.
    #[error(
        "libfabric cannot be used on this machine: {0}; install it (Debian and Ubuntu: libfabric1), or use another transport"
    )]
    Absent(String),
    /// No provider of this name has the required capabilities.
    #[error(
        "libfabric {version} offers no provider `{provider}` here with reliable datagrams, remote writes and completion data \
         (`fi_info -t FI_EP_RDM -c FI_RMA` lists what it has)"
    )]
    NoProvider {
        /// Requested provider.
        provider: String,
        /// Version of the library.
        version: String,
    },
    /// The provider has no such domain.
    #[error("libfabric's provider `{provider}` has no domain `{domain}` here; it has {found}")]
    NoDomain {
        /// Requested provider.
        provider: String,
        /// Requested domain.
        domain: String,
        /// Available domains.
        found: String,
    },
    /// The library could not allocate memory.
    #[error("libfabric has no memory left")]
    NoMemory,
    /// A call of the library failed.
    #[error("libfabric could not {what}: {text} ({error})")]
    Failed {
        /// The operation.
        what: &'static str,
        /// The library's error number.
        error: i32,
        /// The library's error text.
        text: String,
    },
}
