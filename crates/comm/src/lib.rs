//! Functions that talk to each other: N ranks form a group, connect to each other as well as they can, and exchange messages and
//! run collectives as MPI ranks do.
//!
//! - [`road`]: what connecting hands to communicating: one authenticated road for each pair of ranks, and news of lost ranks.
//! - [`Communicator`]: ranks that exchange messages ([`Communicator::send`], [`Communicator::recv`]) and compute together
//!   ([`Communicator::allreduce`] and so on).

pub mod road;

mod book;
mod collective;
mod copy;
pub mod datatype;
mod engine;
mod group;
mod message;
mod nonblocking;
pub mod operation;
pub mod options;
mod shrink;
pub mod table;
mod wire;

pub use book::{ANY_SOURCE, ANY_TAG, Status};
pub use datatype::Datatype;
pub use group::Communicator;
pub use nonblocking::{Request, Scope};
pub use operation::Operation;
pub use options::Options;
