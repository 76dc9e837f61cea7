//! A site: the dispatcher of one endpoint, and its nodes from a batch system.
//!
//! - [`dispatcher`]: receives tasks from a manager, runs them on leased workers, and reports outcomes. Nothing here is
//!   durable: the manager keeps every task until it has stored the outcome;
//! - [`worker_set`]: the workers of one tenant and one runtime; tenants share no worker. It leases workers when tasks
//!   arrive, and releases them when no tasks arrive for a while or when other worker sets need the room
//!   ([`fair_share`]);
//! - [`lease_driver`]: the pools of channels of one lease, or of the leases of a gang, and their thread;
//! - [`lending`]: what nodes could lend to tasks, which decides among workers that could have one;
//! - [`dispatcher_state`]: what all worker sets of a dispatcher share;
//! - [`contents`]: long arguments and results, which travel through a content store;
//! - [`watch`]: files that triggers wait for, in directories and buckets of the site;
//! - [`connection`]: the connection to a manager on another host, and [`outbox`]: outcomes that wait for it;
//! - [`blocks`]: jobs of a batch system, as many as the tasks can use, from a [`provider`].

pub mod blocks;
pub mod connection;
mod contents;
mod dispatcher;
mod dispatcher_state;
mod fair_share;
mod lease_driver;
mod lending;
mod outbox;
pub mod provider;
mod watch;
mod worker_set;

pub use contents::Contents;
pub use dispatcher::{
    ConnectionFuture, Dispatcher, ElasticNodes, Handle, Invitations, NodeLimits, Options, RuntimeCheck,
    TenantConnections,
};
pub use lending::{LendingNode, LendingNodes};
