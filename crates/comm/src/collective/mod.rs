//! Collective operations.
//!
//! Each algorithm is written once, as an asynchronous function over sends and receives that the engine moves; a blocking
//! operation polls it to its end where it is called, a non-blocking one is polled whenever its rank waits for anything.
//!
//! All messages of a collective carry its number on the communicator and what was called ([`Call`]); see
//! [`crate::engine`] for what happens when that does not fit together.

mod call;
mod op;

pub use call::{Call, Kind};
pub use op::{Op, Run};
