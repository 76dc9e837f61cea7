//! All unsafe calls into libfabric's C interface.

mod abi;
mod endpoint;
mod library;

pub use abi::{Context, Entry, is_from_peer};
pub use endpoint::{Endpoint, NAME_BYTES, Region, Target, Wait};
pub use library::{Library, Provider};
