//! Stores that several hosts reach, for what has no shorter way between them: object storage that speaks S3, a directory, Redis.
//!
//! - [`Place`]: where a store is, as a URL; shown without what is secret in it.
//! - [`Objects`]: objects by name, in a bucket or a directory; [`Blocking`] is the same for programs without a runtime.
//! - [`Streams`]: numbered entries in Redis.
//!
//! All errors are a [`dayfly_protocol::error::Failure`] that names the store and what was being done there. Every call ends in time.

mod objects;
mod place;
mod streams;

pub use objects::{Blocking, Listed, Objects, Reading, Writing};
pub use place::{Kind, Place};
pub use streams::{Entry, Reader, Streams};

use std::time::Duration;

use dayfly_protocol::error::{Code, Failure};

/// How long a store that does not answer, or answers that it cannot just now, is asked again.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// How long connecting may take.
const CONNECT: Duration = Duration::from_secs(5);

/// What runs the calls of one thread to a store.
///
/// # Errors
/// When the system has no descriptors left.
pub fn runtime(place: &Place) -> Result<tokio::runtime::Runtime, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| Failure::new(Code::Internal, format!("no runtime for the store {place}: {error}")))
}
