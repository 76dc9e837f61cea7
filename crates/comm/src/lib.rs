//! Functions that talk to each other: N ranks form a group, connect to each other as well as they can, and exchange messages and
//! run collectives as MPI ranks do.
//!
//! Connecting:
//! - [`Invitation`]: what a rank is told by whoever started it, and all of the way to a [`Communicator`].
//! - [`join`](join()): the way into a group: ranks meet at a rendezvous ([`dayfly_rendezvous`]), then use what follows.
//! - [`connect`]: from what ranks say of themselves to connections, all at once: sockets of the host, TCP, TCP through NATs by
//!   simultaneous open, a relay, storage ([`stored`]).
//! - [`connector`]: joins outside for ranks in a sandbox without a network, and carries their bytes.
//! - [`membership`]: heartbeats, and news of ranks that are lost.
//! - [`switchboard`]: between a rank and the thread that connects it, where ranks connect when they first need each other.
//! - [`road`]: what connecting hands to communicating: one authenticated road for each pair of ranks, and news of lost ranks.
//!
//! Communicating:
//! - [`Communicator`]: ranks that exchange messages ([`Communicator::send`], [`Communicator::recv`]) and compute together
//!   ([`Communicator::allreduce`] and so on).
//!
//! ```no_run
//! use dayfly_comm::{Datatype, Invitation, Operation};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let invitation = Invitation::from_environment()?.ok_or("start this with dayfly run")?;
//! let world = invitation.accept()?; // keep it while the group is used
//! let mut sum = [0; 8];
//! let own = f64::from(world.communicator.rank()).to_ne_bytes();
//! world.communicator.allreduce(&own, &mut sum, Datatype::F64, &Operation::Sum)?;
//! # Ok(())
//! # }
//! ```

pub mod connect;
pub mod connector;
pub mod cost;
pub mod invitation;
pub mod join;
pub mod membership;
pub mod road;
pub mod stored;

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
pub mod switchboard;
pub mod table;
mod wire;

pub use book::{ANY_SOURCE, ANY_TAG, Status};
pub use datatype::Datatype;
pub use group::Communicator;
pub use invitation::{GROUP_VARIABLE, Invitation, World};
pub use join::{Channel, JoinOptions, Joined, join};
pub use nonblocking::{Request, Scope};
pub use operation::Operation;
pub use options::Options;
