//! Everything that is said to libfabric in C. Above this module there is no unsafe call into it.

mod abi;
mod endpoint;
mod library;

pub use abi::{Context, Entry};
pub use endpoint::{Endpoint, Region, Target, Wait};
pub use library::{Library, Provider};
