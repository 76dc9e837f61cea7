//! The rendezvous, where the ranks of a group meet. Each rank brings its card, which describes how to reach it, and
//! receives all cards when all ranks have arrived.
//!
//! A rank opens one TLS connection and keeps it while it belongs to the group. If the connection ends, or is silent for
//! a heartbeat interval, the rank is lost and the others are informed. Only names and addresses pass the rendezvous.
//! The group's messages do not, except through the relay, which cannot read them. For as long as a group has ranks, the
//! rendezvous keeps texts that its members publish under names of services.
//!
//! - [`messages`]: the protocol between a rank and the rendezvous;
//! - [`client`]: a rank's connection;
//! - [`keys`]: keys derived from a group's secret;
//! - [`socket`]: sockets with shared ports, for connections through NATs;
//! - `server`, behind the feature of that name: the rendezvous, and its relay.

pub mod client;
#[cfg(feature = "server")]
mod groups;
pub mod keys;
pub mod messages;
#[cfg(feature = "server")]
mod relay;
#[cfg(feature = "server")]
pub mod server;
pub mod socket;
