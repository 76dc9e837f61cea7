//! Where ranks meet: each brings what others need to find it, and gets what all others brought once all are there.
//!
//! A rank opens one TLS connection and keeps it while it is of the group; that it ends, or is silent for a heartbeat,
//! means that the rank is lost, and the others hear it. Names and numbers only: no byte of the group's messages comes
//! by here, except in the relay, which cannot read them.
//!
//! - [`messages`]: what a rank and the rendezvous say to each other;
//! - [`client`]: a rank's connection;
//! - [`keys`]: what a group's secret becomes;
//! - [`socket`]: sockets on ports that connections share, as opening NATs needs;
//! - `server`, behind the feature of that name: the rendezvous, and its relay.

pub mod client;
pub mod keys;
pub mod messages;
#[cfg(feature = "server")]
mod relay;
#[cfg(feature = "server")]
pub mod server;
pub mod socket;
#[cfg(feature = "server")]
mod state;
