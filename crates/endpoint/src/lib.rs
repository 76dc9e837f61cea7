//! A site: the dispatcher of one endpoint, and its nodes from a batch system.
//!
//! - [`dispatcher`]: receives tasks from a manager, runs them on leased workers, and reports outcomes. A [`crew::Crew`]
//!   has the workers of one tenant and one runtime: tenants share no worker. It leases them when tasks arrive, in lanes
//!   ([`lane::Lane`]: one lease, or those of a gang, with pools of channels and their thread). It gives them back when
//!   no tasks arrive for a while, or when others find no room ([`crowd`]). Nothing here is durable: the manager keeps
//!   every task until it has stored the outcome;
//! - [`contents`]: long arguments and results, which travel through a content store;
//! - [`watch`]: files that triggers wait for, in directories and buckets that the site sees;
//! - [`connection`]: the connection to a manager on another host, and [`outbox`]: outcomes that wait for it;
//! - [`blocks`]: jobs of a batch system, as many as the tasks can use, from a [`provider`].

pub mod blocks;
pub mod connection;
mod contents;
mod crew;
mod crowd;
mod dispatcher;
mod lane;
mod outbox;
pub mod provider;
mod watch;

pub use contents::Contents;
pub use dispatcher::{Admission, Dispatcher, Handle, Invites, Most, Options, Places, Suits, Tenants};
