//! The words that Dayfly's processes say to each other: ids, wire structs, versions and error codes.
//!
//! Nothing here does I/O, reads a clock or holds a key. These conversations are defined:
//!
//! - [`slot`]: what a client and a worker write into each other's rings, once per invocation;
//! - [`hello`]: the fixed-size opening of every connection to a node, and the node's verdict;
//! - [`node_api`]: the framed requests a verified peer may make of a node (lease, release, code, cancel, fate);
//! - [`executor`]: what a node and its executors say over the executor's one control socket;
//! - [`exception`]: exceptions of functions as text;
//! - [`fabric`]: what the two ends of a channel over libfabric tell each other;
//! - [`api`]: the manager's HTTP bodies, and what managers and nodes say over the nodes' own connection;
//! - [`contents`]: bytes that stay behind while others speak of them;
//! - [`environment`]: what Python workers import;
//! - [`short`]: ids as people write them;
//! - [`text`]: foreign text, made safe to show, for every program;
//! - [`tasks`]: functions, tasks and endpoints in the manager's HTTP bodies;
//! - [`dispatch`]: what a manager and an endpoint's dispatcher say over the endpoint's own connection.
//!
//! Every failure that can reach a user has an [`error::Code`], which is stable and documented.

pub mod accounts;
pub mod api;
pub mod blob;
pub mod bounds;
pub mod contents;
pub mod dispatch;
pub mod durations;
pub mod entry_point;
pub mod environment;
pub mod error;
pub mod exception;
pub mod executor;
pub mod fabric;
pub mod flows;
pub mod hello;
pub mod here;
pub mod ids;
pub mod node_api;
pub mod short;
pub mod slot;
pub mod tasks;
pub mod text;
pub mod triggers;
pub mod version;

/// Version of everything in this crate. Peers with different wire versions refuse each other and name both.
pub const WIRE_VERSION: u16 = 3;
