//! Messages between Dayfly's processes: ids, wire structs, versions and error codes.
//!
//! This crate does no I/O, reads no clock and holds no key. Its modules define these conversations:
//!
//! - [`slot`]: the messages that a client and a worker write into each other's rings, once per invocation;
//! - [`hello`]: the fixed-size opening of every connection to a node, and the node's verdict;
//! - [`node_api`]: the framed requests that a verified peer may send to a node (lease, release, code, cancel, status);
//! - [`node_messages`]: the messages between a node and its manager;
//! - [`executor`]: the messages between a node and its executors over each executor's control socket;
//! - [`fabric`]: how the two ends of a channel over libfabric find each other, and what each write carries;
//! - [`api`]: leases, nodes and the site in the bodies of the manager's HTTP API;
//! - [`functions`], [`tasks`], [`endpoints`], [`sharing`], [`triggers`], [`flows`], [`queries`], [`tenancy`]: its other
//!   bodies;
//! - [`dispatch`]: the messages between a manager and an endpoint's dispatcher.
//!
//! Several conversations use these parts:
//!
//! - [`encoding`]: the kinds of payloads, and payloads of several parts;
//! - [`cores`]: amounts of processor time, in thousandths of a core;
//! - [`contents`]: payloads in the content store, which messages refer to by hash;
//! - [`environment`]: the packages that Python workers can import;
//! - [`entry_point`]: the entry points of container images as functions;
//! - [`exception`]: functions' exceptions as text;
//! - [`id_pattern`]: ids in full or abbreviated, as users write them;
//! - [`text`]: escaping of foreign text before a program shows it.
//!
//! Every failure that can reach a user has an [`error::Code`], which is stable and documented.

pub mod api;
pub mod blob;
pub mod bounds;
pub mod call_samples;
pub mod contents;
pub mod cores;
pub mod dispatch;
pub mod durations;
pub mod encoding;
pub mod endpoints;
pub mod entry_point;
pub mod environment;
pub mod error;
pub mod exception;
pub mod executor;
pub mod fabric;
pub mod flows;
pub mod functions;
pub mod hello;
pub mod id_pattern;
pub mod ids;
pub mod local_socket;
mod named;
pub mod node_api;
pub mod node_messages;
pub mod queries;
pub mod sharing;
pub mod sizes;
pub mod slot;
pub mod tasks;
pub mod tenancy;
pub mod text;
pub mod triggers;
pub mod version;

pub use named::UnknownName;

/// Version of all messages in this crate. Peers with different wire versions refuse each other and name both versions.
pub const WIRE_VERSION: u16 = 4;
