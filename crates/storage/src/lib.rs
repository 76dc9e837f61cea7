//! Storage that several hosts share, for data without a shorter path between them: S3 object storage, a directory, or
//! Redis.
//!
//! - [`Place`]: the location of a store as a URL, displayed without its secrets.
//! - [`Objects`]: named objects in a bucket or a directory; [`Blocking`] is the same for programs without an async
//!   runtime.
//! - [`Streams`]: numbered entries in Redis.
//!
//! Every error is a [`dayfly_protocol::error::Failure`] that names the store and the operation. Every call has a time
//! limit.

mod objects;
mod place;
mod streams;

pub use objects::{Blocking, Listed, Objects, Reading, Writing};
pub use place::{Kind, Place};
pub use streams::{Entry, Reader, Streams};

use std::time::Duration;

use dayfly_protocol::error::{Code, Failure};

/// How long requests to a store that does not respond, or that is temporarily unable to, are repeated.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// Time limit for connecting.
const CONNECT: Duration = Duration::from_secs(5);

/// Returns an async runtime for one thread's calls to a store.
///
/// # Errors
/// `Internal` when the system has no file descriptors left.
pub fn runtime(place: &Place) -> Result<tokio::runtime::Runtime, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| Failure::new(Code::Internal, format!("no runtime for the store {place}: {error}")))
}
