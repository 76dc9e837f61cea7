//! Storage that several hosts share, for data without a shorter path between them: S3 object storage, a directory, or
//! Redis.
//!
//! - [`StoreUrl`]: the URL of a store, displayed without its secrets.
//! - [`Objects`]: named objects in a bucket or a directory; [`BlockingObjects`] is the same for programs without an async
//!   runtime.
//! - [`open_bucket`]: the client of a bucket, for libraries that take one.
//! - [`Streams`]: numbered entries in Redis.
//!
//! Every error is a [`dayfly_protocol::error::Failure`] that names the store and the operation. Every call has a time
//! limit.

mod blocking;
mod objects;
mod store_url;
mod streams;

pub use blocking::BlockingObjects;
pub use objects::{ObjectBytes, ObjectInfo, ObjectWriter, Objects, open_bucket};
pub use store_url::{Kind, StoreUrl};
pub use streams::{Entry, Reader, Streams};

use std::time::Duration;

use dayfly_protocol::error::{Code, Failure};

/// How long requests to a store that does not respond, or that is temporarily unable to, are repeated.
pub const TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit for connecting.
const CONNECT: Duration = Duration::from_secs(5);

/// Returns an async runtime for one thread's calls to a store.
///
/// # Errors
/// `Internal` when the system has no file descriptors left.
pub fn runtime(url: &StoreUrl) -> Result<tokio::runtime::Runtime, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| Failure::new(Code::Internal, format!("no runtime for the store {url}: {error}")))
}
