//! Groups of functions that exchange messages as MPI ranks do.
//!
//! A group has N *ranks*, numbered from 0. Each rank is a function or a process, on any host. The ranks meet, connect
//! to each other in the best way that works between each two of them, and then send messages and run collectives.
//!
//! The program that starts a rank passes it an [`Invitation`]: the address of a rendezvous, the group's name, secret
//! and size. [`Invitation::accept`] returns when all ranks have arrived and are connected. This example adds a number
//! over all ranks:
//!
//! ```no_run
//! use dayfly_comm::{Datatype, Invitation, Operation};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let invitation = Invitation::from_environment()?.ok_or("start this with dayfly run")?;
//! let world = invitation.accept()?; // keep it while the group is used
//! let own = f64::from(world.communicator.rank()).to_ne_bytes();
//! let mut sum = [0; 8];
//! world.communicator.allreduce(&own, &mut sum, Datatype::F64, &Operation::Sum)?;
//! println!("{}", f64::from_ne_bytes(sum));
//! # Ok(())
//! # }
//! ```
//!
//! # Communicating
//!
//! A [`Communicator`] is a group of ranks seen from one of them. It sends and receives messages
//! ([`Communicator::send`], [`Communicator::recv`]), runs collectives ([`Communicator::allreduce`] and others), and
//! starts operations in the background ([`Communicator::scope`]). [`Communicator::split`] makes communicators of some
//! ranks. Matching and ordering follow MPI 4.0. The [`table`] chooses the algorithm of a collective by its size. A
//! [`post`] sends owned messages from any thread or asynchronous task.
//!
//! If a rank is lost, operations that need it return `rank_lost` instead of waiting; [`Communicator::shrink`] continues
//! with the remaining ranks. Every operation ends by [`Options::deadline`] at the latest. If ranks call different
//! collectives, all of them get `mismatch`.
//!
//! # Connecting
//!
//! [`join`](join()) leads from a name and a secret to connections. It has these parts:
//!
//! - [`connect`] tries the routes between each two ranks: shared memory within a host, TCP, TCP through NATs by
//!   simultaneous open, a relay, and a store ([`store_route`]). Both ends prove that they know the group's secret, and
//!   encrypt what leaves a host unless the network is trusted.
//! - [`PeerConnection`] is the result: one authenticated connection for each pair of ranks, with its [`Route`];
//!   [`LostRanks`] lists the lost ranks.
//! - [`membership`] sends heartbeats to the rendezvous ([`dayfly_rendezvous`]) and receives losses.
//! - [`connect_queue`] holds the requests to connect two ranks, if the group connects on demand.
//! - [`service`] publishes names among ranks.
//! - [`connector`] joins for ranks in a sandbox without a network, and carries their bytes.
//!
//! [`cost`] predicts time and price of an operation over each channel.

pub mod connect;
pub mod connector;
pub mod cost;
pub mod invitation;
pub mod join;
mod lost_ranks;
pub mod membership;
mod peer_connection;
mod route;
pub mod store_route;

mod collective;
pub mod connect_queue;
mod copy;
pub mod datatype;
pub mod detached;
mod engine;
mod group;
mod matching;
mod message;
mod nonblocking;
pub mod operation;
pub mod options;
pub mod post;
pub mod service;
mod shrink;
pub mod table;
mod wake;
mod wire;

pub use datatype::Datatype;
pub use group::Communicator;
pub use invitation::{GROUP_VARIABLE, Invitation, World};
pub use join::{Channel, JoinOptions, Joined, join};
pub use lost_ranks::LostRanks;
pub use matching::{ANY_SOURCE, ANY_TAG, Status};
pub use nonblocking::{Request, Scope, Serve};
pub use operation::Operation;
pub use options::Options;
pub use peer_connection::PeerConnection;
pub use route::Route;
