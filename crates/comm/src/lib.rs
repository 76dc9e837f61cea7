//! Functions that talk to each other: N ranks form a group, connect to each other as well as they can, and exchange messages and
//! run collectives as MPI ranks do.
//!
//! - [`join`](join()): the way into a group, which uses what follows.
//! - [`rendezvous`]: where ranks meet, by name and secret; its server is behind the feature `server`.
//! - [`connect`]: from what ranks say of themselves to connections, all at once: sockets of the host, TCP, TCP through NATs by
//!   simultaneous open, a [`relay`].
//! - [`membership`]: heartbeats, and news of ranks that are lost.
//! - [`road`]: what connecting hands to communicating: one authenticated road for each pair of ranks, and news of lost ranks.

pub mod connect;
pub mod join;
pub mod keys;
pub mod membership;
#[cfg(feature = "server")]
pub mod relay;
pub mod rendezvous;
pub mod road;

pub use join::{JoinOptions, Joined, join};
