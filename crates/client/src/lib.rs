//! Lease, connect, invoke: how a program uses workers.
//!
//! ```no_run
//! # fn main() -> Result<(), dayfly_client::Error> {
//! use dayfly_client::{CallOptions, Client, Form, LeaseOptions};
//!
//! let client = Client::connect(None)?;                        // finds a manager, or starts one of its own
//! let lease = client.lease(LeaseOptions::native(2))?;         // two workers
//! let code = lease.put_code(&std::fs::read("libsquare.so").unwrap())?;
//! let pool = lease.pool(Default::default())?;                 // opens a channel to each worker
//! let square = pool.register(code, Form::Plain { symbol: "square".into() })?;
//! let reply = pool.call(square, &2.0f64.to_le_bytes(), CallOptions::default())?;
//! # let _ = reply; Ok(()) }
//! ```
//!
//! A [`Client`] speaks to a manager (or to one node directly) over HTTP and sockets, rarely. A [`Lease`] is the signed
//! right to some workers; it opens channels. From then on nothing but the channel is involved:
//!
//! - [`Channel`] is one channel to one worker, used by one thread at a time: the shortest way, nothing is shared, nothing
//!   is allocated.
//! - [`Tasks`] submits durable tasks to the manager, and gets their outcomes.
//! - [`Pool`] spreads calls over all workers of a lease, from any thread. The thread that waits for a call drives the
//!   rings, so no other thread has to be woken; calls that were not executed because their worker died go elsewhere.

mod channel;
mod client;
mod contents;
mod delegation;
mod direct;
mod discover;
mod embedded;
mod error;
pub mod former;
mod here;
mod keepalive;
mod lease;
mod manager;
mod node;
mod opening;
mod pool;
mod printed;
mod resolver;
mod tasks;

pub use channel::{Channel, ChannelOptions, Completion, Reply};
pub use client::{Client, Node};
pub use contents::HeldContents;
pub use dayfly_fabric::{Allocator, Buffer, Choice, ChoiceError, Received, Transport, TransportError};
pub use dayfly_protocol::api::{
    Connection, Grant, HostPath, LeaseStatus, Mode, NodeStatus, Placement, Runtime, Sandbox,
};
pub use dayfly_protocol::error::{Code, Failure, Retry};
pub use dayfly_protocol::executor::Form;
pub use dayfly_protocol::ids::{CodeHash, FunctionIndex, WorkerIndex};
pub use dayfly_protocol::node_api::Stream;
pub use dayfly_protocol::slot::{Geometry, Status};
pub use delegation::Delegation;
pub use direct::AllowanceOptions;
pub use discover::{MANAGER_VARIABLE, default_state_dir};
pub use error::{CallError, Error};
pub use lease::{Lease, LeaseOptions};
pub use pool::{CallId, CallOptions, FunctionId, Input, Outcome, Output, Pool, PoolOptions};
pub use printed::{Printed, Reader};
pub use tasks::{Tasks, TasksOptions, encoded};
