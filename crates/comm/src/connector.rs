//! Joins groups for ranks in a sandbox without a network.
//!
//! Such a rank cannot dial. A *connector*, a process of its node outside the sandbox, joins in its place
//! ([`join`](crate::join())): it meets the others at the rendezvous, dials them and proves the group's secret. Then it
//! gives the rank a Unix socket for each other rank. For a rank on the same host it is the socket over which both share
//! memory. For others it is one end of a pair, and the connector (`forwarder`) carries the bytes of the other end
//! through TLS. It never passes a TCP socket: its holder could break its connection and dial any address in the network
//! in which it was made.
//!
//! Input from the sandbox is hostile: [`serve`](serve()) bounds the number of ranks, their rate, their requests and
//! every duration. The connector trusts only its node, which sends it [`ConnectorConfig`] with the permitted
//! rendezvous.
//!
//! - `messages`: the protocol between the two;
//! - `client`: the rank's side;
//! - [`serve`](mod@serve), `session`: the connector's side;
//! - [`process`]: the connector as a process of a node.

mod client;
mod config;
mod forwarder;
mod messages;
pub mod process;
mod rate_limit;
pub mod serve;
mod session;

pub use client::join_through;
pub use config::ConnectorConfig;
pub use serve::serve;

/// Path of the connector's socket inside a sandbox.
pub const SOCKET: &str = "/dayfly/code/group.sock";
