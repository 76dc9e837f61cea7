//! Remote memory over libfabric: RDMA where there is hardware for it, and its software providers elsewhere.
//!
//! The library is opened when a channel first wants it, so one program runs on machines without it, and a worker does
//! that after the fork, for it may start threads. Sites have anything from version 1.15 on.

mod choice;
pub mod ffi;
mod landing;
mod link;
mod opening;
mod pipe;
mod registration;
mod sending;
#[cfg(test)]
mod tests;

pub use choice::{Choice, ChoiceError};
pub(crate) use link::LONGEST_NAP;
pub use link::{FabricLink, FabricSleeper};
pub use pipe::{Opened, Pipe};

/// The connection on which a channel was opened, for as long as the channel lasts.
struct Control(crate::stream::wire::Wire);

/// What went wrong between us and libfabric.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FabricError {
    /// It is not installed, or too old.
    #[error(
        "libfabric cannot be used on this machine: {0}; install it (Debian and Ubuntu: libfabric1), or use another transport"
    )]
    Absent(String),
    /// It has no such provider that can do what is needed.
    #[error(
        "libfabric {version} offers no provider `{provider}` here with reliable datagrams, remote writes and completion data \
         (`fi_info -t FI_EP_RDM -c FI_RMA` lists what it has)"
    )]
    NoProvider {
        /// As asked for.
        provider: String,
        /// Of the library.
        version: String,
    },
    /// The provider has no such domain.
    #[error("libfabric's provider `{provider}` has no domain `{domain}` here; it has {found}")]
    NoDomain {
        /// As asked for.
        provider: String,
        /// As asked for.
        domain: String,
        /// Those that there are.
        found: String,
    },
    /// No memory for its own structures.
    #[error("libfabric has no memory left")]
    NoMemory,
    /// A call of it failed.
    #[error("libfabric could not {what}: {text} ({error})")]
    Failed {
        /// What was tried.
        what: &'static str,
        /// Its error number.
        error: i32,
        /// Its words for it.
        text: String,
    },
}
