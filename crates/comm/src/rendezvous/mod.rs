//! Where ranks meet: each brings what others need to find it, and gets what all others brought once all are there.
//!
//! A rank opens one TLS connection and keeps it while it is of the group; that it ends, or is silent for a heartbeat, means that the
//! rank is lost, and the others hear it. Names and numbers only: no byte of the group's messages comes by here, except in a
//! [relay](crate::relay), which cannot read them.

pub mod client;
pub mod messages;
#[cfg(feature = "server")]
pub mod server;
#[cfg(feature = "server")]
pub mod state;
