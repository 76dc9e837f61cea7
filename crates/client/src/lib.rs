//! The client library of Dayfly: lease workers, connect to them, invoke functions.
//!
//! A program uses workers in three steps. Each step is a type, and each costs less than the one before:
//!
//! 1. A [`Client`] knows one manager, or one node. [`Client::connect`] finds the manager by argument, environment or
//!    state directory, and starts an embedded one if there is none. The client sends it HTTP requests for leases and
//!    status only, never calls.
//! 2. A [`Lease`] is the signed, time-limited right to some workers on one node. It uploads code ([`Lease::put_code`])
//!    and opens channels. The node verifies the lease itself, so no call waits for the manager. A lease ends when its
//!    time is over, when its last clone is dropped, or when the manager revokes it.
//! 3. A channel connects this process to one worker: shared memory on the node's host, TCP or TLS elsewhere. From here
//!    on only the channel is involved: a call to a hot worker on the same host makes no system call.
//!
//! This example leases two workers and calls a function of a shared library on one of them:
//!
//! ```no_run
//! use dayfly_client::{CallOptions, Client, Form, LeaseOptions};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::connect(None)?;
//! let lease = client.lease(LeaseOptions::native(2))?;
//! let code = lease.put_code(&std::fs::read("libsquare.so")?)?;
//! let pool = lease.pool(Default::default())?; // opens a channel to each worker
//! let square = pool.register(code, Form::Plain { symbol: "square".into() })?;
//! let output = pool.call(square, &2.0f64.to_le_bytes(), CallOptions::default())?;
//! assert_eq!(output.as_slice(), &4.0f64.to_le_bytes());
//! # Ok(())
//! # }
//! ```
//!
//! # Pool, fleet, channel or tasks
//!
//! - [`Pool`] is the usual choice. It spreads calls over all workers of a lease and is used from any thread. The thread
//!   that waits for a call polls the rings, so no other thread has to wake up. A call that did not run because its
//!   worker died is retried on another worker.
//! - [`Channel`] is one channel to one worker, for one thread at a time. It has the lowest latency: it shares and
//!   allocates nothing. The caller chooses the worker and handles its death.
//! - [`Fleet`] is a pool over many nodes. It leases workers while calls wait and gives them back when they are idle, and
//!   calls that did not run move from a lost node to another one.
//! - [`Tasks`] submits durable tasks to the manager. A task survives the end of this process and has exactly one
//!   outcome.
//!
//! [`Offload`] divides a loop between this program and a pool, so that the program never waits for its calls.
//!
//! # Errors
//!
//! Leasing and connecting return [`Error`], calls return [`CallError`]. Both carry a [`Code`] that is stable across
//! releases, and a message that states what to do. [`Error::retry`] states whether the same request may be repeated. A
//! call whose worker died is `not_executed` or `maybe_executed`; only calls with [`CallOptions::idempotent`] are
//! retried after the latter.
//!
//! # Without a manager
//!
//! [`Client::allowance`] leases directly from nodes, and [`Client::node`] uses one node without any manager.
//! [`Lease::delegate`] passes some workers of a lease to another process or to a function.

mod allowance;
mod channel;
mod client;
mod contents;
mod delegation;
mod discovery;
mod embedded_manager;
mod error;
mod fleet;
pub mod former_name;
mod keepalive;
mod lease;
mod local_socket;
mod manager;
mod node;
pub mod offload;
mod open_request;
mod pool;
mod random;
mod resolver;
mod tasks;
mod worker_output;

pub use allowance::AllowanceOptions;
pub use channel::{Channel, ChannelOptions, Completion, Reply};
pub use client::{Client, Node};
pub use contents::HeldContents;
pub use dayfly_fabric::{Allocator, Buffer, Choice, ChoiceError, Received, Transport, TransportError};
pub use dayfly_protocol::api::{
    Borrow, Connection, Grant, HostPath, LeaseChange, LeaseStatus, LoanTerms, Mode, NodeStatus, Placement, Runtime,
    Sandbox,
};
pub use dayfly_protocol::cores::{CoresError, MilliCores};
pub use dayfly_protocol::error::{Code, Failure, Retry};
pub use dayfly_protocol::executor::Form;
pub use dayfly_protocol::ids::{CodeHash, FunctionIndex, WorkerIndex};
pub use dayfly_protocol::node_api::Stream;
pub use dayfly_protocol::slot::{Geometry, Status};
pub use dayfly_protocol::text::encoded;
pub use delegation::Delegation;
pub use discovery::{MANAGER_VARIABLE, default_state_dir, find_manager};
pub use error::{CallError, Error};
pub use fleet::{Fleet, FleetOptions, FleetStatus};
pub use lease::{Lease, LeaseOptions};
pub use offload::Offload;
pub use pool::{
    CallId, CallOptions, CopiedBytes, FunctionId, Input, Outcome, Output, OutputBuffer, Pool, PoolOptions,
    ReturnedBuffer,
};
pub use tasks::{Tasks, TasksOptions};
pub use worker_output::{OutputReader, WorkerOutput};
